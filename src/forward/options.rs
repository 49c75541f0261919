//! The option map of a message. Source: Fluentd `in_forward.rb`.

use std::ops::Range;

use bytes::Bytes;

use crate::event::msgpack::{self, Head, Stop};

/// The sender's chunk id, answered byte for byte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkOption {
    /// Its bytes, never trimmed or decoded.
    pub bytes: Bytes,
    /// It came as bin, so the answer is bin too (as a Ruby receiver does).
    pub binary: bool,
}

/// Option `compressed` of a packed message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Compression {
    /// Absent, nil or `text`.
    #[default]
    Text,
    /// `gzip`: any number of members.
    Gzip,
    /// `zstd`: frames.
    Zstd,
    /// Anything else, as short text.
    Unknown(String),
}

/// The options that mean something to a receiver; all others are ignored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// An ack is wanted for this id.
    pub chunk: Option<ChunkOption>,
    /// What the sender calls the number of records. Some send bytes: a hint at most, never trusted.
    pub size: Option<u64>,
    /// How the packed entries are compressed.
    pub compressed: Compression,
    /// 0 for logs; Fluent Bit sends metrics, traces and profiles with other values.
    pub fluent_signal: i64,
    /// The map came as map 32, as only Fluent Bit writes it: its chunk ids are content hashes.
    pub map32: bool,
}

/// The options as offsets into the bytes scanned, so that reading them allocates nothing.
#[derive(Debug, Default)]
pub(super) struct OptionRanges {
    chunk: Option<(Range<usize>, bool)>,
    size: Option<u64>,
    compressed: Compression,
    fluent_signal: i64,
    map32: bool,
}

impl OptionRanges {
    /// Reads the value at `pos` as an option map; anything but a map counts as no options.
    pub(super) fn read(bytes: &[u8], pos: usize) -> Result<(Self, usize), Stop> {
        let mut options = Self::default();
        let (Head::Map(count), mut at) = msgpack::head(bytes, pos)? else {
            return Ok((options, msgpack::skip_within(bytes, pos, 1)?));
        };
        options.map32 = bytes.get(pos) == Some(&0xdf);
        for _ in 0..count {
            let value_at = msgpack::skip_within(bytes, at, 2)?;
            let end = msgpack::skip_within(bytes, value_at, 2)?;
            options.note(bytes, text_range(bytes, at).map(|(range, _)| range), value_at, end)?;
            at = end;
        }
        Ok((options, at))
    }

    fn note(&mut self, bytes: &[u8], key: Option<Range<usize>>, at: usize, end: usize) -> Result<(), Stop> {
        match key.and_then(|range| bytes.get(range)) {
            Some(b"chunk") => self.chunk = text_range(bytes, at),
            Some(b"size") => {
                self.size = match msgpack::head(bytes, at)?.0 {
                    Head::Int(size) => u64::try_from(size).ok(),
                    Head::UInt(size) => Some(size),
                    _ => None,
                }
            }
            Some(b"compressed") => {
                let text = text_range(bytes, at).and_then(|(range, _)| bytes.get(range));
                self.compressed = match text {
                    Some(b"text") => Compression::Text,
                    Some(b"gzip") => Compression::Gzip,
                    Some(b"zstd") => Compression::Zstd,
                    None if bytes.get(at) == Some(&0xc0) => Compression::Text,
                    _ => Compression::Unknown(crate::event::value::preview(
                        bytes.get(at..end).unwrap_or_default(),
                    )),
                }
            }
            Some(b"fluent_signal") => {
                self.fluent_signal = match msgpack::head(bytes, at)?.0 {
                    Head::Int(signal) => signal,
                    _ => 0,
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// The options as values; `bytes` are those that were scanned.
    pub(super) fn resolve(self, bytes: &Bytes) -> Options {
        Options {
            chunk: self.chunk.map(|(range, binary)| ChunkOption { bytes: bytes.slice(range), binary }),
            size: self.size,
            compressed: self.compressed,
            fluent_signal: self.fluent_signal,
            map32: self.map32,
        }
    }
}

/// Where the payload of the str or bin at `pos` lies, and whether it is bin. `None` for other kinds and cut ones.
pub(super) fn text_range(bytes: &[u8], pos: usize) -> Option<(Range<usize>, bool)> {
    let (length, at, binary) = match msgpack::head(bytes, pos).ok()? {
        (Head::Str(length), at) => (length, at, false),
        (Head::Bin(length), at) => (length, at, true),
        _ => return None,
    };
    let end = at.checked_add(length)?;
    (end <= bytes.len()).then_some((at..end, binary))
}
