//! An arrival's events sorted into the chunks they belong to, by chunk keys.

use std::collections::HashMap;
use std::ops::Range;

use bytes::Bytes;

use super::metadata::{ChunkKeyError, ChunkKeys, Metadata};
use crate::event::{Entries, EventStream, RecordAccessor, Value};
use crate::time::Zone;

/// How long a time slot is and where it begins.
#[derive(Clone, Debug)]
pub struct Timekey {
    /// `timekey` in seconds, above 0.
    pub unit_seconds: i64,
    /// `timekey_zone`, or UTC with `timekey_use_utc`.
    pub zone: Zone,
}

impl Timekey {
    /// The start of the slot that a moment belongs to, in Unix seconds.
    pub fn slot(&self, unix_seconds: i64) -> i64 {
        let unit = self.unit_seconds.max(1);
        let local = unix_seconds.saturating_add(self.zone.offset_seconds(unix_seconds));
        unix_seconds.saturating_sub(local.rem_euclid(unit))
    }
}

/// Splits streams by chunk keys; made once per output.
#[derive(Clone, Debug)]
pub struct Splitter {
    keys: ChunkKeys,
    accessors: Vec<RecordAccessor>,
    timekey: Option<Timekey>,
}

/// What decides the chunk of an event, beside the tag; borrows from the record.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
struct EventKey<'a> {
    timekey: Option<i64>,
    fields: Vec<Option<&'a [u8]>>,
}

/// Events of one key: byte ranges in arrival order, neighbours joined.
#[derive(Default)]
struct Group {
    ranges: Vec<Range<usize>>,
    events: usize,
}

impl Splitter {
    /// A splitter. `timekey` must be given exactly when `time` is a key.
    pub fn new(keys: ChunkKeys, timekey: Option<Timekey>) -> Result<Self, ChunkKeyError> {
        if keys.time && timekey.is_none() {
            return Err(ChunkKeyError { key: "time".into(), expected: "a timekey is expected".into() });
        }
        let accessors = keys
            .fields
            .iter()
            .map(|field| {
                RecordAccessor::parse(field)
                    .map_err(|error| ChunkKeyError { key: field.clone(), expected: error.reason.to_owned() })
            })
            .collect::<Result<_, _>>()?;
        Ok(Self { timekey: timekey.filter(|_| keys.time), keys, accessors })
    }

    /// The keys it splits by.
    pub fn keys(&self) -> &ChunkKeys {
        &self.keys
    }

    /// The parts of a stream, ready for [`super::Append`]. Copies nothing when all events belong to one chunk, or
    /// when those of a chunk stand next to each other.
    pub fn split(&self, stream: &EventStream) -> Vec<(Metadata, Bytes, usize)> {
        if stream.count == 0 {
            return Vec::new();
        }
        if self.timekey.is_none() && self.accessors.is_empty() {
            return vec![(self.metadata(stream, &EventKey::default()), stream.entries.clone(), stream.count)];
        }
        let (order, groups) = self.group(stream);
        order
            .into_iter()
            .zip(groups)
            .map(|(key, group)| (self.metadata(stream, &key), join(&stream.entries, &group), group.events))
            .collect()
    }

    fn group<'a>(&self, stream: &'a EventStream) -> (Vec<EventKey<'a>>, Vec<Group>) {
        let mut order: Vec<EventKey<'a>> = Vec::new();
        let mut index: HashMap<EventKey<'a>, usize> = HashMap::new();
        let mut groups: Vec<Group> = Vec::new();
        let mut current = usize::MAX;
        // Neighbours usually have the same second: its slot is looked up once.
        let mut slot_of = (i64::MIN, i64::MIN);
        let mut entries: Entries<'a> = Entries::new(&stream.entries);
        let mut key = EventKey::default();
        let mut at = 0;
        while let Some((time, record, pair)) = entries.next_with_pair() {
            if let Some(timekey) = &self.timekey {
                if slot_of.0 != time.seconds() || current == usize::MAX {
                    slot_of = (time.seconds(), timekey.slot(time.seconds()));
                }
                key.timekey = Some(slot_of.1);
            }
            key.fields.clear();
            // A path through a plain value finds nothing, as a missing field does.
            key.fields.extend(self.accessors.iter().map(|accessor| accessor.get_raw(record).ok().flatten()));
            if order.get(current) != Some(&key) {
                current = *index.entry(key.clone()).or_insert_with(|| {
                    order.push(key.clone());
                    groups.push(Group::default());
                    groups.len() - 1
                });
            }
            let group = &mut groups[current];
            group.events += 1;
            match group.ranges.last_mut() {
                Some(last) if last.end == at => last.end = at + pair.len(),
                _ => group.ranges.push(at..at + pair.len()),
            }
            at += pair.len();
        }
        (order, groups)
    }

    fn metadata(&self, stream: &EventStream, key: &EventKey<'_>) -> Metadata {
        let value = |raw: &Option<&[u8]>| {
            raw.and_then(|raw| Value::decode(raw).ok()).map_or(Value::Nil, |(value, _)| value)
        };
        Metadata {
            timekey: key.timekey,
            tag: self.keys.tag.then(|| stream.tag.clone()),
            variables: self.keys.fields.iter().cloned().zip(key.fields.iter().map(value)).collect(),
        }
    }
}

fn join(entries: &Bytes, group: &Group) -> Bytes {
    if let [range] = group.ranges.as_slice() {
        return entries.slice(range.clone());
    }
    let total = group.ranges.iter().map(Range::len).sum();
    let mut joined = Vec::with_capacity(total);
    for range in &group.ranges {
        joined.extend_from_slice(&entries[range.clone()]);
    }
    joined.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{EventTime, Tag, msgpack};

    fn chunk_keys(names: &str) -> ChunkKeys {
        let mut keys = ChunkKeys::default();
        for name in names.split(',').filter(|name| !name.is_empty()) {
            match name {
                "tag" => keys.tag = true,
                "time" => keys.time = true,
                field => keys.fields.push(field.to_owned()),
            }
        }
        keys
    }

    fn stream(events: &[(i64, &str)]) -> EventStream {
        let mut entries = Vec::new();
        for (time, host) in events {
            let record = Value::Map(vec![("host".into(), (*host).into())]).to_msgpack();
            msgpack::write_entry(&mut entries, EventTime::Int(*time), &record);
        }
        EventStream { tag: Tag::from("t"), entries: entries.into(), count: events.len() }
    }

    #[test]
    fn one_chunk_copies_nothing() {
        let stream = stream(&[(1, "a"), (2, "b")]);
        for keys in ["", "tag"] {
            let parts = Splitter::new(chunk_keys(keys), None).unwrap().split(&stream);
            assert_eq!(parts.len(), 1);
            assert_eq!(parts[0].1.as_ptr(), stream.entries.as_ptr());
            assert_eq!(parts[0].0.tag.is_some(), keys == "tag");
            assert_eq!(parts[0].2, 2);
        }
    }

    #[test]
    fn splits_by_field_and_time() {
        let timekey = Timekey { unit_seconds: 3600, zone: Zone::parse("+09:00").unwrap() };
        let splitter = Splitter::new(chunk_keys("tag,time,host,none"), Some(timekey)).unwrap();
        let stream = stream(&[(10, "a"), (20, "a"), (30, "b"), (3600, "a"), (40, "a")]);
        let parts = splitter.split(&stream);
        let seen: Vec<_> =
            parts.iter().map(|(metadata, bytes, events)| (metadata.timekey, bytes.len(), *events)).collect();
        let event = stream.entries.len() / 5;
        // The event at 3600 has a longer time.
        let long = event + 2;
        let short = (stream.entries.len() - long) / 4;
        assert_eq!(
            seen,
            [(Some(0), 3 * short, 3), (Some(0), short, 1), (Some(3600), long, 1)],
            "sizes follow the events"
        );
        assert_eq!(parts[0].0.variables, [("host".to_owned(), "a".into()), ("none".to_owned(), Value::Nil)]);
        let total: usize = parts.iter().map(|part| part.1.len()).sum();
        assert_eq!(total, stream.entries.len());
    }

    #[test]
    fn slots_follow_the_zone() {
        let slot = |zone: &str, unit, at| {
            let zone = if zone == "UTC" { Zone::Utc } else { Zone::parse(zone).unwrap() };
            Timekey { unit_seconds: unit, zone }.slot(at)
        };
        let day = 86_400;
        assert_eq!(slot("UTC", day, day + 5), day);
        assert_eq!(slot("+09", day, day + 5), day - 9 * 3600);
        assert_eq!(slot("-0130", 3600, 7200), 5400);
        assert_eq!(slot("UTC", 3600, -1), -3600);
        // 2024-07-01T12:00:00Z is summer in Berlin (+2), 2024-01-01T12:00:00Z is not (+1).
        assert_eq!(slot("Europe/Berlin", day, 1_719_835_200), 1_719_784_800);
        assert_eq!(slot("Europe/Berlin", day, 1_704_110_400), 1_704_063_600);
        assert_eq!(slot("UTC", day, i64::MIN), i64::MIN);
        for bad in ["+9", "+25:00", "Nowhere/Town", "+ab"] {
            assert!(Zone::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn time_needs_a_timekey() {
        assert!(Splitter::new(chunk_keys("time"), None).is_err());
    }
}
