//! One value of the wire as offsets into the bytes read: which mode, where tag, entries and options lie.

use std::ops::Range;

use super::mode::{self, EntryRules, Scan, TimeReading};
use super::options::{OptionRanges, text_range};
use crate::event::msgpack::{self, Head, Stop};

/// A message in Message mode that needs no second look: valid, without options that mean anything.
pub(super) struct PlainMessage {
    pub(super) tag: Range<usize>,
    /// time and record, back to back
    pub(super) pair: Range<usize>,
    pub(super) end: usize,
}

impl PlainMessage {
    #[inline]
    pub(super) fn read(bytes: &[u8], start: usize, limit_bytes: usize) -> Option<Self> {
        let with_option = match bytes.get(start)? {
            0x93 => false,
            0x94 => true,
            _ => return None,
        };
        let (tag, _) = text_range(bytes, start + 1)?;
        let record_at = mode::clean_time(bytes, tag.end)?;
        let record_end = mode::clean_record(bytes, record_at, 1)?;
        let end = match with_option {
            false => record_end,
            true if matches!(bytes.get(record_end), Some(0x80 | 0xc0)) => record_end + 1,
            true => return None,
        };
        (end - start <= limit_bytes).then_some(Self { pair: tag.end..record_end, tag, end })
    }
}

/// One value of the wire, as offsets.
pub(super) struct Wire {
    pub(super) kind: Kind,
    pub(super) end: usize,
}

#[allow(clippy::large_enum_variant, reason = "lives for one call; a box would allocate for each message")]
pub(super) enum Kind {
    Nil,
    Odd,
    Message(Parts),
}

pub(super) struct Parts {
    /// The payload of a str or bin, or else the whole of what stands there.
    pub(super) tag: Result<Range<usize>, Range<usize>>,
    pub(super) options: OptionRanges,
    pub(super) body: Body,
}

pub(super) enum Body {
    Single { time: TimeReading, raw_time: Range<usize>, record: Range<usize> },
    Entries { start: usize, scan: Scan },
    Packed(Range<usize>),
}

impl Wire {
    pub(super) fn parse(bytes: &[u8], rules: &EntryRules) -> Result<Self, Stop> {
        let (elements, tag_at) = match msgpack::head(bytes, 0)? {
            (Head::Nil, end) => return Ok(Self { kind: Kind::Nil, end }),
            (Head::Array(elements @ 2..), tag_at) => (elements, tag_at),
            _ => return Ok(Self { kind: Kind::Odd, end: msgpack::skip(bytes, 0)? }),
        };
        let body_at = msgpack::skip_within(bytes, tag_at, 1)?;
        let tag = text_range(bytes, tag_at).map(|(range, _)| range).ok_or(tag_at..body_at);
        let (body, used, body_end) = Body::parse(bytes, body_at, elements, rules)?;
        let (options, options_end) = if elements > used {
            OptionRanges::read(bytes, body_end)?
        } else {
            (OptionRanges::default(), body_end)
        };
        // Elements after the options are ignored.
        let end = msgpack::skip_values(bytes, options_end, u64::from(elements.saturating_sub(used + 1)), 1)?;
        Ok(Self { kind: Kind::Message(Parts { tag, options, body }), end })
    }
}

impl Body {
    /// Reads from the second element on; answers the body, how many elements are used up with the tag, and its end.
    fn parse(bytes: &[u8], at: usize, elements: u32, rules: &EntryRules) -> Result<(Self, u32, usize), Stop> {
        match msgpack::head(bytes, at)? {
            (Head::Array(count), start) => {
                let scan = mode::scan_entries(bytes, start, Some(count), rules);
                if let Some(stop) = scan.stop {
                    return Err(stop);
                }
                let end = scan.end;
                Ok((Self::Entries { start, scan }, 2, end))
            }
            (Head::Str(_) | Head::Bin(_), _) if !is_binary_time(bytes, at, elements) => {
                let end = msgpack::skip_within(bytes, at, 1)?;
                let range = text_range(bytes, at).map_or(end..end, |(range, _)| range);
                Ok((Self::Packed(range), 2, end))
            }
            _ => {
                let record_at = msgpack::skip_within(bytes, at, 1)?;
                let time = mode::read_time(bytes, at, rules)?;
                let record_end =
                    if elements > 2 { msgpack::skip_within(bytes, record_at, 1)? } else { record_at };
                let body = Self::Single { time, raw_time: at..record_at, record: record_at..record_end };
                Ok((body, elements.min(3), record_end))
            }
        }
    }
}

/// The client fruently sends Message mode with the ten bytes of an EventTime as bin. Entries of just such ten bytes
/// do not exist, so with a map as third element it can be told from packed entries.
fn is_binary_time(bytes: &[u8], at: usize, elements: u32) -> bool {
    elements >= 3
        && matches!(msgpack::head(bytes, at), Ok((Head::Bin(10), data)) if mode::is_wrapped_ext(bytes, data))
        && matches!(msgpack::head(bytes, at + 12), Ok((Head::Map(_), _)))
}
