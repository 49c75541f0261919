//! The shape scan: is each entry `[time, map]`, how many are there, without decoding or allocating.
//!
//! A clean stream passes on as the bytes that came. Entries that a Fluentd of any generation would drop or choke on
//! are cut out and replaced: time 0 becomes now, a float keeps its fraction as EventTime, `[[time, metadata], record]`
//! is unwrapped, invalid entries are dropped. Source: Fluentd `in_forward.rb`.

use bytes::{BufMut, Bytes, BytesMut};

use crate::event::msgpack::{self, Head, Stop};
use crate::event::{EventTime, value};

/// What decides the odd cases.
#[derive(Clone, Copy, Debug)]
pub struct EntryRules {
    /// Stands in for time 0 (and nil, see below): the moment of reception.
    pub now: EventTime,
    /// Fluentd's parameter. Here it only decides about a nil time: false turns it into now, true drops the entry.
    pub skip_invalid_event: bool,
}

/// Entries that were left out of a message, with what a log line needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// Entries whose time is no time or whose record is no map.
    pub invalid: usize,
    /// Fluent Bit's group markers (`[[-1, ...], ...]` and -2), which carry no event.
    pub group_markers: usize,
    /// The first invalid one.
    pub first: Option<InvalidEntry>,
}

impl Dropped {
    /// All entries left out.
    pub fn total(&self) -> usize {
        self.invalid + self.group_markers
    }

    fn note_invalid(&mut self, time: &[u8], record: &[u8]) {
        self.invalid += 1;
        if self.first.is_none() {
            self.first = Some(InvalidEntry { time: value::preview(time), record: value::preview(record) });
        }
    }
}

/// An invalid entry as short text for Fluentd's line "skip invalid event: host=... tag=... time=... record=...".
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidEntry {
    /// The time as it came.
    pub time: String,
    /// The record as it came.
    pub record: String,
}

/// What a scan over entries found.
#[derive(Debug)]
pub struct Scan {
    /// Offset after the last whole entry.
    pub end: usize,
    /// Entries to pass on.
    pub count: usize,
    /// The entries to pass on when any had to be replaced; `None` when the bytes are fine as they came.
    pub rewritten: Option<BytesMut>,
    /// What was left out.
    pub dropped: Dropped,
    /// Why the scan ended before its goal.
    pub stop: Option<Stop>,
}

impl Scan {
    /// The entries to pass on: a slice of `bytes` (of which the scan saw the same offsets from `start`), or the
    /// rewritten ones.
    pub fn into_entries(self, bytes: &Bytes, start: usize) -> Bytes {
        match self.rewritten {
            Some(rewritten) => rewritten.freeze(),
            None => bytes.slice(start..self.end),
        }
    }
}

/// Scans entries from `start`: the given number of a Forward-mode array, or all packed ones up to the end of the bytes.
pub fn scan_entries(bytes: &[u8], start: usize, expected: Option<u32>, rules: &EntryRules) -> Scan {
    // Entries of Forward mode lie in the message and its array, packed ones in bytes of their own.
    let depth = if expected.is_some() { 2 } else { 0 };
    let mut scan = Scan { end: start, count: 0, rewritten: None, dropped: Dropped::default(), stop: None };
    let mut left = expected.map_or(u64::MAX, u64::from);
    let mut run_start = start;
    while left > 0 && (expected.is_some() || scan.end < bytes.len()) {
        left -= 1;
        if let Some(end) = clean_entry(bytes, scan.end, depth) {
            scan.end = end;
            scan.count += 1;
            continue;
        }
        let (end, replacement) = match odd_entry(bytes, scan.end, depth, rules, &mut scan.dropped) {
            Ok(found) => found,
            Err(stop) => {
                scan.stop = Some(stop);
                break;
            }
        };
        let out = scan.rewritten.get_or_insert_with(|| BytesMut::with_capacity(bytes.len() - start));
        out.put_slice(bytes.get(run_start..scan.end).unwrap_or_default());
        if let Some((time, record)) = replacement {
            msgpack::write_entry(out, time, record);
            scan.count += 1;
        }
        scan.end = end;
        run_start = end;
    }
    if let Some(out) = &mut scan.rewritten {
        out.put_slice(bytes.get(run_start..scan.end).unwrap_or_default());
    }
    scan
}

/// The end of the entry at `pos` when it is in the form that passes on as it is: a two-element array of a time other
/// than 0 and a map. `None` for anything else, cut and malformed ones included: [`odd_entry`] tells those apart.
#[inline]
fn clean_entry(bytes: &[u8], pos: usize, depth: usize) -> Option<usize> {
    let window = bytes.get(pos..)?.first_chunk::<12>();
    match window {
        // EventTime as every present sender writes it, seconds other than 0, a map of up to 15 keys.
        Some(&[0x92, 0xd7, 0, a, b, c, d, _, _, _, _, map]) if (a | b | c | d) != 0 && map & 0xf0 == 0x80 => {
            msgpack::skip_values(bytes, pos + 12, u64::from(map & 0x0f) * 2, depth + 2).ok()
        }
        _ => {
            if *bytes.get(pos)? != 0x92 {
                return None;
            }
            let record_at = clean_time(bytes, pos + 1)?;
            clean_record(bytes, record_at, depth + 1)
        }
    }
}

/// The end of a time that passes on as it is: an integer or EventTime, not 0.
#[inline]
pub(super) fn clean_time(bytes: &[u8], pos: usize) -> Option<usize> {
    match msgpack::head(bytes, pos).ok()? {
        (Head::Int(seconds), at) if seconds != 0 => Some(at),
        (Head::Ext(msgpack::EVENT_TIME_EXT, 8), at) => {
            let seconds = bytes.get(at..)?.first_chunk::<4>()?;
            (*seconds != [0; 4] && bytes.len() >= at + 8).then_some(at + 8)
        }
        _ => None,
    }
}

/// The end of the map at `pos`, which lies within `depth` arrays.
#[inline]
pub(super) fn clean_record(bytes: &[u8], pos: usize, depth: usize) -> Option<usize> {
    match msgpack::head(bytes, pos).ok()? {
        (Head::Map(count), at) => msgpack::skip_values(bytes, at, u64::from(count) * 2, depth + 1).ok(),
        _ => None,
    }
}

type Replacement<'a> = Option<(EventTime, &'a [u8])>;

/// Looks at one entry that is not clean; answers its end and what to write in its place, if anything.
#[cold]
fn odd_entry<'a>(
    bytes: &'a [u8],
    pos: usize,
    depth: usize,
    rules: &EntryRules,
    dropped: &mut Dropped,
) -> Result<(usize, Replacement<'a>), Stop> {
    let end = msgpack::skip_within(bytes, pos, depth)?;
    let whole = bytes.get(pos..end).unwrap_or_default();
    let (Head::Array(count @ 2..), time_at) = msgpack::head(bytes, pos)? else {
        dropped.note_invalid(whole, NIL);
        return Ok((end, None));
    };
    debug_assert!(count >= 2);
    let record_at = msgpack::skip(bytes, time_at)?;
    let record_end = msgpack::skip(bytes, record_at)?;
    let record = bytes.get(record_at..record_end).unwrap_or_default();
    let time = read_time(bytes, time_at, rules)?;
    let is_map = matches!(msgpack::head(record, 0), Ok((Head::Map(_), _)));
    match time {
        TimeReading::GroupMarker => dropped.group_markers += 1,
        TimeReading::Time(time) if is_map => return Ok((end, Some((time, record)))),
        _ => dropped.note_invalid(bytes.get(time_at..record_at).unwrap_or_default(), record),
    }
    Ok((end, None))
}

const NIL: &[u8] = &[0xc0];

/// What the time element of an entry or message says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum TimeReading {
    /// A time, 0 already replaced by now.
    Time(EventTime),
    /// A group marker of Fluent Bit.
    GroupMarker,
    /// Not a time.
    Invalid,
}

/// Reads a time in any form that some sender uses.
pub(super) fn read_time(bytes: &[u8], pos: usize, rules: &EntryRules) -> Result<TimeReading, Stop> {
    match msgpack::head(bytes, pos)? {
        // Fluent Bit v2: [time, metadata]
        (Head::Array(1..), at) => Ok(match read_plain_time(bytes, at, rules)? {
            TimeReading::Time(EventTime::Int(-2..=-1)) => TimeReading::GroupMarker,
            // The same markers, forced into EventTime's unsigned seconds.
            TimeReading::Time(EventTime::Ext { seconds: 0xffff_fffe.., .. }) => TimeReading::GroupMarker,
            reading => reading,
        }),
        _ => read_plain_time(bytes, pos, rules),
    }
}

fn read_plain_time(bytes: &[u8], pos: usize, rules: &EntryRules) -> Result<TimeReading, Stop> {
    let (head, at) = msgpack::head(bytes, pos)?;
    Ok(match head {
        Head::Int(seconds) => or_now(EventTime::Int(seconds), rules),
        Head::Float(seconds) => float_time(seconds).map_or(TimeReading::Invalid, |time| or_now(time, rules)),
        Head::Ext(msgpack::EVENT_TIME_EXT, 8) => {
            ext_time(bytes, at).map_or(TimeReading::Invalid, |time| or_now(time, rules))
        }
        // The Rust client fruently sends the ten bytes of an EventTime as bin.
        Head::Bin(10) if is_wrapped_ext(bytes, at) => {
            ext_time(bytes, at + 2).map_or(TimeReading::Invalid, |time| or_now(time, rules))
        }
        Head::Nil if !rules.skip_invalid_event => TimeReading::Time(rules.now),
        _ => TimeReading::Invalid,
    })
}

/// True when the bytes at `at` begin like a fixext 8 of EventTime's type.
pub(super) fn is_wrapped_ext(bytes: &[u8], at: usize) -> bool {
    bytes.get(at..).is_some_and(|data| data.starts_with(&[0xd7, 0]))
}

fn or_now(time: EventTime, rules: &EntryRules) -> TimeReading {
    TimeReading::Time(if time.seconds() == 0 { rules.now } else { time })
}

fn ext_time(bytes: &[u8], at: usize) -> Option<EventTime> {
    let &[a, b, c, d, e, f, g, h] = bytes.get(at..)?.first_chunk::<8>()?;
    Some(EventTime::Ext {
        seconds: u32::from_be_bytes([a, b, c, d]),
        nanoseconds: u32::from_be_bytes([e, f, g, h]),
    })
}

/// A float time with its fraction; outside of EventTime's range the whole seconds.
fn float_time(seconds: f64) -> Option<EventTime> {
    if !seconds.is_finite() || seconds.abs() >= 9e18 {
        return None;
    }
    let whole = seconds.floor();
    match u32::try_from(whole as i64) {
        Ok(unsigned) => {
            let nanoseconds = ((seconds - whole) * 1e9).min(999_999_999.0) as u32;
            Some(EventTime::Ext { seconds: unsigned, nanoseconds })
        }
        Err(_) => Some(EventTime::Int(whole as i64)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::EventStream;

    const RULES: EntryRules = EntryRules { now: EventTime::Int(77), skip_invalid_event: true };
    const RECORD: &[u8] = &[0x81, 0xa1, b'k', 1];

    fn entry(time: &[u8]) -> Vec<u8> {
        [&[0x92][..], time, RECORD].concat()
    }

    fn times(entries: &[u8], rules: &EntryRules) -> (Vec<EventTime>, Dropped) {
        let scan = scan_entries(entries, 0, None, rules);
        assert_eq!(scan.stop, None);
        let (count, dropped) = (scan.count, scan.dropped.clone());
        let stream = EventStream {
            tag: "t".into(),
            entries: scan.into_entries(&Bytes::copy_from_slice(entries), 0),
            count,
        };
        let got: Vec<_> = stream.iter().collect();
        assert_eq!(got.len(), count);
        assert!(got.iter().all(|(_, record)| *record == RECORD));
        (got.into_iter().map(|(time, _)| time).collect(), dropped)
    }

    fn one(time: &[u8]) -> Option<EventTime> {
        times(&entry(time), &RULES).0.first().copied()
    }

    #[test]
    fn a_clean_stream_is_the_bytes_that_came() {
        let bytes =
            Bytes::from([entry(&[0xd7, 0, 1, 2, 3, 4, 0, 0, 0, 5]), entry(&[5]), entry(&[0xe0])].concat());
        let scan = scan_entries(&bytes, 0, None, &RULES);
        assert_eq!((scan.count, scan.rewritten.is_none()), (3, true));
        assert_eq!(scan.into_entries(&bytes, 0).as_ptr(), bytes.as_ptr());
    }

    #[test]
    fn every_form_of_time() {
        let ext = |seconds, nanoseconds| Some(EventTime::Ext { seconds, nanoseconds });
        assert_eq!(one(&[0xd7, 0, 0, 0, 0, 9, 0, 0, 0, 5]), ext(9, 5));
        assert_eq!(one(&[0xd7, 0, 0xff, 0, 0, 9, 0, 0, 0, 5]), ext(0xff00_0009, 5));
        assert_eq!(one(&[0xc7, 8, 0, 0, 0, 0, 9, 0, 0, 0, 5]), ext(9, 5));
        assert_eq!(one(&[0xc4, 10, 0xd7, 0, 0, 0, 0, 9, 0, 0, 0, 5]), ext(9, 5));
        assert_eq!(one(&[0xc4, 10, 0xd6, 0, 0, 0, 0, 9, 0, 0, 0, 5]), None);
        assert_eq!(one(&[0]), Some(RULES.now));
        assert_eq!(one(&[0xd7, 0, 0, 0, 0, 0, 0, 0, 0, 5]), Some(RULES.now));
        for (bytes, value) in [
            (vec![0xccu8, 200], 200),
            (vec![0xcd, 1, 0], 256),
            (vec![0xce, 0, 1, 0, 0], 65536),
            (vec![0xcf, 0, 0, 0, 1, 0, 0, 0, 0], 1 << 32),
            (vec![0xd0, 0x80], -128),
            (vec![0xd1, 0x80, 0], -32768),
            (vec![0xd2, 0x80, 0, 0, 0], -(1 << 31)),
            (vec![0xd3, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0], -(1 << 32)),
            (vec![0xff], -1),
        ] {
            assert_eq!(one(&bytes), Some(EventTime::Int(value)));
        }
        assert_eq!(one(&[0xcf, 0xff, 0, 0, 0, 0, 0, 0, 0]), None);
        let float = |value: f64| one(&[&[0xcb][..], &value.to_be_bytes()].concat());
        assert_eq!(float(1_700_000_000.25), ext(1_700_000_000, 250_000_000));
        assert_eq!(float(0.5), Some(RULES.now));
        assert_eq!(float(-1.5), Some(EventTime::Int(-2)));
        assert_eq!(float(1e12), Some(EventTime::Int(1_000_000_000_000)));
        assert_eq!((float(f64::NAN), float(f64::INFINITY), float(1e300)), (None, None, None));
        assert_eq!(one(&[&[0xca][..], &2.5f32.to_be_bytes()].concat()), ext(2, 500_000_000));
        assert_eq!((one(&[0xc0]), one(&[0xa1, b'5']), one(&[0x80]), one(&[0x90])), (None, None, None, None));
    }

    #[test]
    fn metadata_is_unwrapped_and_group_markers_go() {
        assert_eq!(one(&[0x92, 5, 0x80]), Some(EventTime::Int(5)));
        assert_eq!(one(&[0x92, 0, 0x80]), Some(RULES.now));
        assert_eq!(one(&[0x92, 0xc0, 0x80]), None);
        let markers = [
            entry(&[0x92, 0xff, 0x80]),
            entry(&[0x92, 0xd7, 0, 0xff, 0xff, 0xff, 0xfe, 0, 0, 0, 0, 0x80]),
            entry(&[0x92, 7, 0x80]),
        ];
        let (times, dropped) = times(&markers.concat(), &RULES);
        assert_eq!(times, [EventTime::Int(7)]);
        assert_eq!((dropped.group_markers, dropped.invalid), (2, 0));
    }

    #[test]
    fn nil_time_is_now_only_without_the_check() {
        let lax = EntryRules { skip_invalid_event: false, ..RULES };
        assert_eq!(times(&entry(&[0xc0]), &lax).0, [RULES.now]);
        assert_eq!(times(&entry(&[0xc0]), &RULES).0, []);
    }

    #[test]
    fn odd_ones_between_clean_ones_are_cut_out() {
        let parts = [
            entry(&[1]),
            vec![0x92, 5, 0xc0],
            entry(&[2]),
            entry(&[0]),
            [&[0xdc, 0, 3, 3][..], RECORD, &[0xc0]].concat(),
            vec![0x91, 5],
            vec![0xc0],
            entry(&[4]),
        ];
        let (times, dropped) = times(&parts.concat(), &RULES);
        assert_eq!(times, [1, 2, 77, 3, 4].map(EventTime::Int));
        assert_eq!(dropped.invalid, 3);
        assert_eq!(dropped.first, Some(InvalidEntry { time: "5".into(), record: "null".into() }));
    }

    #[test]
    fn a_cut_or_broken_tail_stops_the_scan_after_the_last_whole_entry() {
        let good = [entry(&[1]), entry(&[0])].concat();
        let torn = [&good[..], &entry(&[2])[..4]].concat();
        let scan = scan_entries(&torn, 0, None, &RULES);
        assert_eq!((scan.end, scan.count), (good.len(), 2));
        assert!(matches!(scan.stop, Some(Stop::Incomplete { .. })));
        let broken = [&good[..], &[0x92, 1, 0xc1]].concat();
        assert!(matches!(scan_entries(&broken, 0, None, &RULES).stop, Some(Stop::Malformed(_))));
        let scan = scan_entries(&torn, 0, Some(1), &RULES);
        assert_eq!((scan.count, scan.stop), (1, None));
    }
}
