//! Entries that carry their tag: `[tag, time, record]`, for chunks whose keys do not include the tag although the
//! output shows it (out_file keyed by time). Fluentd formats such events before it buffers them; here they stay
//! msgpack, so that a chunk can be cut, set aside and read back like any other.

use bytes::{Bytes, BytesMut};

use super::msgpack;
use super::{Entries, EventTime, Tag};

/// First byte of an array of three.
const TRIPLE: u8 = 0x93;

/// Rewrites `[time, record]` pairs of one tag as `[tag, time, record]`. Bytes that are no pair end the run.
pub fn with_tag(tag: &Tag, entries: &[u8], count: usize) -> Bytes {
    // A str header takes at most 5 bytes.
    let tag_bytes = tag.as_bytes().len().saturating_add(5).saturating_mul(count);
    let mut out = BytesMut::with_capacity(entries.len().saturating_add(tag_bytes));
    let mut iterator = Entries::new(entries);
    while let Some((_, _, pair)) = iterator.next_with_pair() {
        out.extend_from_slice(&[TRIPLE]);
        msgpack::write_str(&mut out, tag.as_bytes());
        out.extend_from_slice(pair.get(1..).unwrap_or_default());
    }
    out.freeze()
}

/// Iterates over entries of either form; gives the tag where the entry carries one.
#[derive(Clone, Debug)]
pub struct ChunkEntries<'a> {
    bytes: &'a [u8],
}

impl<'a> ChunkEntries<'a> {
    /// Iterates over these bytes.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    /// Bytes not iterated over yet: empty at the end, else the first that are no entry.
    pub fn rest(&self) -> &'a [u8] {
        self.bytes
    }
}

impl<'a> Iterator for ChunkEntries<'a> {
    type Item = (Option<&'a [u8]>, EventTime, &'a [u8]);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let mut tag = None;
        let mut pair_at = 1;
        if *self.bytes.first()? == TRIPLE {
            let (length, at) = match msgpack::head(self.bytes, 1).ok()? {
                (msgpack::Head::Str(length) | msgpack::Head::Bin(length), at) => (length, at),
                _ => return None,
            };
            pair_at = at.checked_add(length)?;
            tag = Some(self.bytes.get(at..pair_at)?);
        } else if *self.bytes.first()? != 0x92 {
            return None;
        }
        let (time, record_at) = super::stream::read_time(self.bytes, pair_at)?;
        let end = super::stream::skip_record(self.bytes, record_at)?;
        let record = self.bytes.get(record_at..end)?;
        self.bytes = self.bytes.get(end..)?;
        Some((tag, time, record))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_are_read_and_cut_ones_end_the_run() {
        let mut pairs = Vec::new();
        msgpack::write_entry(&mut pairs, EventTime::Int(1), &[0x80]);
        msgpack::write_entry(
            &mut pairs,
            EventTime::Ext { seconds: 2, nanoseconds: 3 },
            &[0x81, 0xa1, b'a', 7],
        );
        let tagged = with_tag(&Tag::from("a.b"), &pairs, 2);
        let mut both = pairs.clone();
        both.extend_from_slice(&tagged);
        let mut entries = ChunkEntries::new(&both);
        let seen: Vec<_> = entries.by_ref().collect();
        let time = EventTime::Ext { seconds: 2, nanoseconds: 3 };
        assert_eq!(
            seen,
            [
                (None, EventTime::Int(1), &[0x80][..]),
                (None, time, &[0x81, 0xa1, b'a', 7][..]),
                (Some(&b"a.b"[..]), EventTime::Int(1), &[0x80][..]),
                (Some(&b"a.b"[..]), time, &[0x81, 0xa1, b'a', 7][..]),
            ]
        );
        assert!(entries.rest().is_empty());
        for cut in 1..tagged.len() {
            let mut entries = ChunkEntries::new(&tagged[..cut]);
            assert!(entries.by_ref().count() < 2, "{cut}");
        }
    }
}
