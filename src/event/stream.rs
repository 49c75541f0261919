use bytes::Bytes;

use super::msgpack::{self, Head};
use super::{EventTime, Tag};

/// A run of events with one tag.
///
/// Invariant: `entries` is exactly `count` msgpack arrays `[time, record]`, `time` an integer or EventTime,
/// `record` a map. Whoever makes one has checked that (the shape scan of `forward`), so later stations do not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventStream {
    /// The tag of all events.
    pub tag: Tag,
    /// msgpack `[time, record]` pairs, back to back.
    pub entries: Bytes,
    /// How many pairs.
    pub count: usize,
}

impl EventStream {
    /// Time and raw record of each event, without decoding the record.
    pub fn iter(&self) -> Entries<'_> {
        Entries::new(&self.entries)
    }
}

impl<'a> IntoIterator for &'a EventStream {
    type Item = (EventTime, &'a [u8]);
    type IntoIter = Entries<'a>;

    fn into_iter(self) -> Entries<'a> {
        self.iter()
    }
}

/// Iterates over bytes of `[time, record]` pairs; also for a slice of a chunk's payload.
///
/// Ends at the first byte that is not such a pair (which the invariant rules out): [`Entries::rest`] tells.
#[derive(Clone, Debug)]
pub struct Entries<'a> {
    bytes: &'a [u8],
    pos: usize,
}

impl<'a> Entries<'a> {
    /// Iterates over these bytes.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, pos: 0 }
    }

    /// Bytes not iterated over yet.
    pub fn rest(&self) -> &'a [u8] {
        self.bytes.get(self.pos..).unwrap_or_default()
    }

    /// The next event with the bytes of its whole `[time, record]` pair: `(time, record, pair)`.
    pub fn next_with_pair(&mut self) -> Option<(EventTime, &'a [u8], &'a [u8])> {
        let start = self.pos;
        if *self.bytes.get(start)? != 0x92 {
            return None;
        }
        let (time, record_at) = read_time(self.bytes, start + 1)?;
        let end = skip_record(self.bytes, record_at)?;
        let (record, pair) = (self.bytes.get(record_at..end)?, self.bytes.get(start..end)?);
        self.pos = end;
        Some((time, record, pair))
    }
}

impl<'a> Iterator for Entries<'a> {
    type Item = (EventTime, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        self.next_with_pair().map(|(time, record, _)| (time, record))
    }
}

/// The end of the record at `pos`. Plain values in a map, which is what records hold, are passed without the walk that
/// keeps count of levels; the input has checked the nesting.
#[inline]
pub(super) fn skip_record(bytes: &[u8], pos: usize) -> Option<usize> {
    match *bytes.get(pos)? {
        first @ 0x80..=0x8f => msgpack::skip_values(bytes, pos + 1, u64::from(first & 0x0f) * 2, 1).ok(),
        _ => msgpack::skip(bytes, pos).ok(),
    }
}

/// Reads an integer or EventTime at `pos`; answers it and the offset after it.
#[inline]
pub(super) fn read_time(bytes: &[u8], pos: usize) -> Option<(EventTime, usize)> {
    // EventTime as every present sender writes it skips the table.
    if let Some(&[0xd7, 0, a, b, c, d, e, f, g, h]) = bytes.get(pos..)?.first_chunk::<10>() {
        let seconds = u32::from_be_bytes([a, b, c, d]);
        let nanoseconds = u32::from_be_bytes([e, f, g, h]);
        return Some((EventTime::Ext { seconds, nanoseconds }, pos + 10));
    }
    match msgpack::head(bytes, pos).ok()? {
        (Head::Int(seconds), at) => Some((EventTime::Int(seconds), at)),
        (Head::Ext(msgpack::EVENT_TIME_EXT, 8), at) => {
            let data = bytes.get(at..)?.first_chunk::<8>()?;
            let [a, b, c, d, e, f, g, h] = *data;
            Some((
                EventTime::Ext {
                    seconds: u32::from_be_bytes([a, b, c, d]),
                    nanoseconds: u32::from_be_bytes([e, f, g, h]),
                },
                at + 8,
            ))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn iterates_over_every_form_of_time() {
        let mut out = Vec::new();
        let times = [
            EventTime::Int(5),
            EventTime::Int(-7),
            EventTime::Ext { seconds: u32::MAX, nanoseconds: 999_999_999 },
        ];
        for time in times {
            msgpack::write_entry(&mut out, time, &[0x81, 0xa1, b'k', 0x91, 0x80]);
        }
        out.extend_from_slice(&[0x92, 0xc7, 8, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0x80]);
        let stream = EventStream { tag: "t".into(), entries: out.into(), count: 4 };
        let got: Vec<_> = stream.iter().collect();
        assert_eq!(got.len(), stream.count);
        assert_eq!(got[..3].iter().map(|(time, _)| *time).collect::<Vec<_>>(), times);
        assert_eq!(got[0].1, [0x81, 0xa1, b'k', 0x91, 0x80]);
        assert_eq!(got[3], (EventTime::Ext { seconds: 1, nanoseconds: 2 }, &[0x80][..]));
    }

    #[test]
    fn ends_at_what_is_no_pair() {
        let mut entries = Entries::new(&[0x92, 1, 0x80, 0x92, 0xc0, 0x80]);
        assert_eq!(entries.next(), Some((EventTime::Int(1), &[0x80][..])));
        assert_eq!(entries.next(), None);
        assert_eq!(entries.rest(), [0x92, 0xc0, 0x80]);
    }
}
