//! Bytes of a connection become messages.
//!
//! A connection carries msgpack values without framing. A message that is all there is read in one pass; one that is
//! not leaves a [`Walker`] behind, which goes on where the bytes ended, so that a large message is never scanned from
//! its start again. Small Message-mode messages of one read are joined into one stream.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::inflate::{self, InflateError};
use super::mode::{self, Dropped, EntryRules, InvalidEntry, Scan, TimeReading};
use super::options::{Compression, Options};
use super::wire::{Body, Kind, PlainMessage, Wire};
use crate::event::msgpack::{self, Head, Malformed, Stop, Walker};
use crate::event::{EventStream, EventTime, Tag, value};

/// Largest message that is read (64 MiB): it lies in memory until it is stored. Fluentd has no limit of its own;
/// senders cut at their chunk size, 8 MiB by default. Spooling larger ones to disk is not built yet (docs/COMPAT.md).
pub const MESSAGE_SIZE_LIMIT_BYTES: usize = 64 * 1024 * 1024;

/// Fluentd's default of `decompression_size_limit`, which in_forward's parameter has too.
const DECOMPRESSION_SIZE_LIMIT_BYTES: u64 = 256 * 1024 * 1024;

/// Limits and rules of a reader.
#[derive(Clone, Copy, Debug)]
pub struct ReaderSettings {
    /// Largest message in bytes; a larger one ends the connection.
    pub message_size_limit: usize,
    /// Most bytes that one message may inflate to.
    pub decompression_size_limit: u64,
    /// Fluentd's `skip_invalid_event`; see [`EntryRules`].
    pub skip_invalid_event: bool,
    /// Fluentd's `chunk_size_limit` in bytes: a larger message is dropped, the connection goes on.
    pub chunk_size_limit: Option<usize>,
}

impl Default for ReaderSettings {
    fn default() -> Self {
        Self {
            message_size_limit: MESSAGE_SIZE_LIMIT_BYTES,
            decompression_size_limit: DECOMPRESSION_SIZE_LIMIT_BYTES,
            skip_invalid_event: true,
            chunk_size_limit: None,
        }
    }
}

/// Why a connection cannot go on: nothing of the message is taken or acked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Bytes that are not msgpack a Fluentd would read.
    #[error("malformed message: {0}")]
    Malformed(#[from] Malformed),
    /// The message is, or says it will be, larger than the limit.
    #[error("message of at least {needed_bytes} bytes is larger than the limit of {limit_bytes} bytes")]
    TooLarge {
        /// What it needs, as far as is known.
        needed_bytes: usize,
        /// [`ReaderSettings::message_size_limit`].
        limit_bytes: usize,
    },
    /// The connection's first byte begins a JSON text.
    #[error("json on the forward port is not built yet, send msgpack")]
    Json,
    /// `compressed: zstd`.
    #[error("compressed format zstd is not built yet, send gzip or text")]
    Zstd,
    /// `compressed` of any other word.
    #[error("unknown compressed format {0}, expected text, gzip or zstd")]
    UnknownCompression(String),
    /// Compressed entries that do not inflate.
    #[error(transparent)]
    Inflate(#[from] InflateError),
}

/// How the events of a message were sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// `[tag, time, record]`
    Message,
    /// `[tag, [[time, record], ...]]`
    Forward,
    /// `[tag, str or bin]`
    Packed,
    /// The same, compressed.
    CompressedPacked,
}

/// One message, or several Message-mode ones with one tag and no chunk that came together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Its valid events; may be empty.
    pub stream: EventStream,
    /// How they came.
    pub mode: Mode,
    /// The option map.
    pub options: Options,
    /// Messages on the wire that this stands for.
    pub messages: usize,
    /// Their bytes on the wire.
    pub wire_bytes: usize,
    /// Entries left out.
    pub dropped: Dropped,
    /// Bytes of a record cut off at the end of packed entries; left out.
    pub torn_bytes: usize,
}

/// A message whose entries are still compressed. Inflating takes its time: do it where that hurts nobody.
#[derive(Clone, Debug)]
pub struct Compressed {
    tag: Result<Tag, String>,
    body: Bytes,
    options: Options,
    wire_bytes: usize,
    rules: EntryRules,
    limit_bytes: u64,
}

impl Compressed {
    /// Bytes on the wire.
    pub fn wire_bytes(&self) -> usize {
        self.wire_bytes
    }

    /// The option map.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Inflates and scans the entries.
    pub fn inflate(self) -> Result<Message, FrameError> {
        let body = Bytes::from(inflate::gunzip(&self.body, self.limit_bytes)?);
        let message = Message {
            stream: no_events(),
            mode: Mode::CompressedPacked,
            options: self.options,
            messages: 1,
            wire_bytes: self.wire_bytes,
            dropped: Dropped::default(),
            torn_bytes: 0,
        };
        packed(message, self.tag, &body, &self.rules)
    }
}

/// What the bytes hold next.
#[derive(Clone, Debug)]
pub enum Item {
    /// nil: a heartbeat over TCP, not answered.
    Heartbeat,
    /// A message.
    Message(Message),
    /// A message that has to be inflated first.
    Compressed(Compressed),
    /// A message over `chunk_size_limit`: dropped, not acked.
    Oversize {
        /// Its tag.
        tag: Tag,
        /// Its bytes on the wire.
        size_bytes: usize,
    },
    /// Something that is no message, as text for Fluentd's warning "incoming chunk is broken: host=... msg=...".
    Odd(String),
    /// More bytes are needed.
    Incomplete,
    /// The connection has to be closed.
    Fatal(FrameError),
}

/// Reads the messages of one connection.
#[derive(Debug)]
pub struct FrameReader {
    settings: ReaderSettings,
    /// The first byte of the connection was seen.
    started: bool,
    /// Where the scan of an unfinished message stands.
    walker: Option<Box<Walker>>,
    /// The unfinished message cannot end before it has so many bytes.
    needed: usize,
}

impl FrameReader {
    /// A reader for a fresh connection.
    pub fn new(settings: ReaderSettings) -> Self {
        Self { settings, started: false, walker: None, needed: 0 }
    }

    /// After [`Item::Incomplete`]: bytes that the buffer must hold at least before another look is worthwhile.
    /// Bounded by the message limit, but on the word of the peer: set no memory aside on it alone.
    pub fn needed_bytes(&self) -> usize {
        self.needed
    }

    /// Takes the next item off the front of `buffer`. `now` stands in for time 0.
    ///
    /// Call until [`Item::Incomplete`], then append more bytes. After [`Item::Fatal`] the connection is of no use.
    pub fn next(&mut self, buffer: &mut BytesMut, now: EventTime) -> Item {
        if buffer.is_empty() || buffer.len() < self.needed {
            return Item::Incomplete;
        }
        if !self.started {
            self.started = true;
            if matches!(buffer.first(), Some(b'{' | b'[')) {
                return Item::Fatal(FrameError::Json);
            }
        }
        if let Some(walker) = &mut self.walker {
            if let Err(stop) = walker.advance(buffer) {
                return self.pause(stop, buffer.len());
            }
            self.walker = None;
        }
        self.needed = 0;
        let rules = EntryRules { now, skip_invalid_event: self.settings.skip_invalid_event };
        if let Some(message) = self.take_run(buffer) {
            return Item::Message(message);
        }
        match Wire::parse(buffer, &rules) {
            Ok(wire) => self.take(wire, buffer, rules),
            Err(Stop::Malformed(fault)) => Item::Fatal(fault.into()),
            Err(Stop::Incomplete { .. }) => {
                let mut walker = Box::new(Walker::at(0));
                match walker.advance(buffer) {
                    Err(stop) => {
                        self.walker = Some(walker);
                        self.pause(stop, buffer.len())
                    }
                    // Both readings follow the same heads, so this cannot be; waiting for a byte is harmless.
                    Ok(_) => Item::Incomplete,
                }
            }
        }
    }

    fn pause(&mut self, stop: Stop, have: usize) -> Item {
        match stop {
            Stop::Malformed(fault) => Item::Fatal(fault.into()),
            Stop::Incomplete { needed } => {
                let (needed_bytes, limit_bytes) = (needed.max(have + 1), self.settings.message_size_limit);
                if needed_bytes > limit_bytes {
                    return Item::Fatal(FrameError::TooLarge { needed_bytes, limit_bytes });
                }
                self.needed = needed_bytes;
                Item::Incomplete
            }
        }
    }

    /// Joins the plain Message-mode messages at the front of the buffer as long as the tag stays the same.
    /// `None` when the first one is anything else, or not all there.
    fn take_run(&self, buffer: &mut BytesMut) -> Option<Message> {
        let limit =
            self.settings.chunk_size_limit.unwrap_or(usize::MAX).min(self.settings.message_size_limit);
        let bytes: &[u8] = buffer;
        let first = PlainMessage::read(bytes, 0, limit)?;
        let tag = bytes.get(first.tag.clone())?;
        // Never grows: each entry is shorter than its message by at least the tag, which is stored once.
        let mut out = BytesMut::with_capacity(bytes.len());
        out.put_slice(tag);
        let (mut count, mut end) = (0, 0);
        let mut next = Some(first);
        while let Some(message) = next.filter(|message| bytes.get(message.tag.clone()) == Some(tag)) {
            out.put_u8(0x92);
            out.put_slice(bytes.get(message.pair)?);
            end = message.end;
            count += 1;
            next = PlainMessage::read(bytes, end, limit);
        }
        let tag_length = tag.len();
        buffer.advance(end);
        let mut entries = out.freeze();
        let tag = Tag::new(entries.split_to(tag_length));
        Some(Message {
            stream: EventStream { tag, entries, count },
            mode: Mode::Message,
            options: Options::default(),
            messages: count,
            wire_bytes: end,
            dropped: Dropped::default(),
            torn_bytes: 0,
        })
    }

    fn take(&self, wire: Wire, buffer: &mut BytesMut, rules: EntryRules) -> Item {
        let wire_bytes = wire.end;
        let limit_bytes = self.settings.message_size_limit;
        if wire_bytes > limit_bytes {
            return Item::Fatal(FrameError::TooLarge { needed_bytes: wire_bytes, limit_bytes });
        }
        let bytes = buffer.split_to(wire_bytes).freeze();
        let parts = match wire.kind {
            Kind::Nil => return Item::Heartbeat,
            Kind::Odd => return Item::Odd(value::preview(&bytes)),
            Kind::Message(parts) => parts,
        };
        let tag = match parts.tag {
            Ok(range) => Ok(Tag::new(bytes.slice(range))),
            Err(range) => Err(value::preview(bytes.get(range).unwrap_or_default())),
        };
        if self.settings.chunk_size_limit.is_some_and(|limit| wire_bytes > limit) {
            let tag = tag.unwrap_or_else(|text| Tag::from(text.as_str()));
            return Item::Oversize { tag, size_bytes: wire_bytes };
        }
        let message = Message {
            stream: no_events(),
            mode: Mode::Message,
            options: parts.options.resolve(&bytes),
            messages: 1,
            wire_bytes,
            dropped: Dropped::default(),
            torn_bytes: 0,
        };
        let result = match parts.body {
            Body::Single { time, raw_time, record } => {
                Ok(single(message, tag, time, bytes.get(raw_time), bytes.get(record)))
            }
            Body::Entries { start, scan } => Ok(entries(message, Mode::Forward, tag, &bytes, start, scan)),
            Body::Packed(range) => {
                let body = bytes.slice(range);
                match message.options.compressed.clone() {
                    _ if message.options.fluent_signal != 0 => Ok(with_tag(message, Mode::Packed, tag)),
                    Compression::Text => {
                        packed(Message { mode: Mode::Packed, ..message }, tag, &body, &rules)
                    }
                    Compression::Gzip => {
                        let limit_bytes = self.settings.decompression_size_limit;
                        let options = message.options;
                        return Item::Compressed(Compressed {
                            tag,
                            body,
                            options,
                            wire_bytes,
                            rules,
                            limit_bytes,
                        });
                    }
                    Compression::Zstd => Err(FrameError::Zstd),
                    Compression::Unknown(name) => Err(FrameError::UnknownCompression(name)),
                }
            }
        };
        result.map_or_else(Item::Fatal, Item::Message)
    }
}

fn no_events() -> EventStream {
    EventStream { tag: Tag::new(Bytes::new()), entries: Bytes::new(), count: 0 }
}

/// A tag that is no text leaves the message without events; its text then only serves the log.
fn with_tag(mut message: Message, mode: Mode, tag: Result<Tag, String>) -> Message {
    message.mode = mode;
    message.stream.tag = tag.unwrap_or_else(|text| Tag::from(text.as_str()));
    message
}

fn single(
    message: Message,
    tag: Result<Tag, String>,
    time: TimeReading,
    raw_time: Option<&[u8]>,
    record: Option<&[u8]>,
) -> Message {
    let record = record.unwrap_or_default();
    let is_map = matches!(msgpack::head(record, 0), Ok((Head::Map(_), _)));
    let valid = tag.is_ok();
    let mut message = with_tag(message, Mode::Message, tag);
    match time {
        _ if message.options.fluent_signal != 0 => {}
        TimeReading::Time(time) if is_map && valid => {
            let mut out = BytesMut::with_capacity(record.len() + 11);
            msgpack::write_entry(&mut out, time, record);
            message.stream.entries = out.freeze();
            message.stream.count = 1;
        }
        TimeReading::GroupMarker => message.dropped.group_markers = 1,
        _ => {
            message.dropped.invalid = 1;
            message.dropped.first = Some(InvalidEntry {
                time: value::preview(raw_time.unwrap_or_default()),
                record: value::preview(record),
            });
        }
    }
    message
}

fn entries(
    message: Message,
    mode: Mode,
    tag: Result<Tag, String>,
    bytes: &Bytes,
    start: usize,
    scan: Scan,
) -> Message {
    let valid = tag.is_ok();
    let mut message = with_tag(message, mode, tag);
    message.dropped = scan.dropped.clone();
    if message.options.fluent_signal != 0 {
        message.dropped = Dropped::default();
    } else if valid {
        message.stream.count = scan.count;
        message.stream.entries = scan.into_entries(bytes, start);
    } else {
        message.dropped.invalid += scan.count;
        if message.dropped.first.is_none() && scan.count > 0 {
            let text = || String::from("(tag is not a string)");
            message.dropped.first = Some(InvalidEntry { time: text(), record: text() });
        }
    }
    message
}

/// Packed entries: what is whole is kept, a cut tail is counted, malformed bytes refuse the message.
fn packed(
    message: Message,
    tag: Result<Tag, String>,
    body: &Bytes,
    rules: &EntryRules,
) -> Result<Message, FrameError> {
    let scan = mode::scan_entries(body, 0, None, rules);
    if let Some(Stop::Malformed(fault)) = scan.stop {
        return Err(fault.into());
    }
    let torn_bytes = body.len() - scan.end;
    let mode = message.mode;
    Ok(Message { torn_bytes, ..entries(message, mode, tag, body, 0, scan) })
}
