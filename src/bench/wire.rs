//! The forward protocol as the judge reads it: a decoder of its own, small and strict.
//!
//! It shares nothing with `forward`, which it judges. Source: Forward Protocol Specification v1 and
//! `lib/fluent/plugin/in_forward.rb`; only what forwarders send is known here (no JSON connections, no zstd).

use std::io::Read;

use super::record::{Mark, RECORD_BYTES, Recogniser};

/// Largest message that the sink takes, compressed or not: a broken length must not fill the memory.
pub const MESSAGE_LIMIT_BYTES: usize = 1 << 30;

/// Why bytes could not be read.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// More bytes are needed.
    #[error("message is incomplete")]
    Short,
    /// Not the forward protocol.
    #[error("expected {expected}, got byte {got:#04x} at offset {at}")]
    Unexpected {
        /// What should stand there.
        expected: &'static str,
        /// The msgpack head found.
        got: u8,
        /// Offset in the message or the entries.
        at: usize,
    },
    /// Larger than [`MESSAGE_LIMIT_BYTES`].
    #[error("message is larger than {MESSAGE_LIMIT_BYTES} bytes")]
    TooLarge,
    /// Compressed entries that do not inflate.
    #[error("compressed entries do not inflate: {0}")]
    Inflate(String),
}

/// One msgpack item, containers as their head only.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Item<'a> {
    /// nil
    Nil,
    /// A number that is not negative.
    UInt(u64),
    /// Negative numbers, floats, booleans: nothing here looks at them.
    Scalar,
    /// str or bin
    Text(&'a [u8]),
    /// Array of that many items, which follow.
    Array(u32),
    /// Map of that many pairs, which follow.
    Map(u32),
    /// ext
    Ext(i8, &'a [u8]),
}

/// A place in msgpack bytes.
#[derive(Clone, Copy, Debug)]
pub struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    /// At the beginning.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Bytes read so far.
    pub fn position(&self) -> usize {
        self.at
    }

    /// True behind the last byte.
    pub fn is_at_end(&self) -> bool {
        self.at >= self.bytes.len()
    }

    fn rest(&self) -> &'a [u8] {
        self.bytes.get(self.at..).unwrap_or(&[])
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], WireError> {
        if count > MESSAGE_LIMIT_BYTES {
            return Err(WireError::TooLarge);
        }
        let taken = self.rest().get(..count).ok_or(WireError::Short)?;
        self.at += count;
        Ok(taken)
    }

    fn number(&mut self, width: usize) -> Result<u64, WireError> {
        Ok(self.take(width)?.iter().fold(0, |sum, byte| (sum << 8) | u64::from(*byte)))
    }

    fn text(&mut self, length_width: usize) -> Result<Item<'a>, WireError> {
        let length = self.number(length_width)? as usize;
        self.take(length).map(Item::Text)
    }

    fn ext(&mut self, length: usize) -> Result<Item<'a>, WireError> {
        let kind = self.number(1)? as u8 as i8;
        Ok(Item::Ext(kind, self.take(length)?))
    }

    /// Reads one item; of an array or a map only the head.
    pub fn item(&mut self) -> Result<Item<'a>, WireError> {
        let at = self.at;
        let head = self.take(1)?[0];
        Ok(match head {
            0x00..=0x7f => Item::UInt(u64::from(head)),
            0x80..=0x8f => Item::Map(u32::from(head & 0x0f)),
            0x90..=0x9f => Item::Array(u32::from(head & 0x0f)),
            0xa0..=0xbf => Item::Text(self.take(usize::from(head & 0x1f))?),
            0xc0 => Item::Nil,
            0xc1 => return Err(WireError::Unexpected { expected: "msgpack", got: head, at }),
            0xc2 | 0xc3 | 0xe0..=0xff => Item::Scalar,
            0xc4 | 0xd9 => self.text(1)?,
            0xc5 | 0xda => self.text(2)?,
            0xc6 | 0xdb => self.text(4)?,
            0xc7..=0xc9 => {
                let length = self.number(1 << (head - 0xc7))? as usize;
                self.ext(length)?
            }
            0xca | 0xcb => self.take(4 << (head - 0xca)).map(|_| Item::Scalar)?,
            0xcc..=0xcf => Item::UInt(self.number(1 << (head - 0xcc))?),
            0xd0..=0xd3 => match self.number(1 << (head - 0xd0))? {
                // A forwarder may write a positive number as a signed one.
                value if value >> ((8 << (head - 0xd0)) - 1) == 0 => Item::UInt(value),
                _ => Item::Scalar,
            },
            0xd4..=0xd8 => self.ext(1 << (head - 0xd4))?,
            0xdc => Item::Array(self.number(2)? as u32),
            0xdd => Item::Array(self.number(4)? as u32),
            0xde => Item::Map(self.number(2)? as u32),
            0xdf => Item::Map(self.number(4)? as u32),
        })
    }

    /// Passes over one whole value, containers included.
    pub fn skip(&mut self) -> Result<(), WireError> {
        let mut left = 1_u64;
        while left > 0 {
            left -= 1;
            left += match self.item()? {
                Item::Array(count) => u64::from(count),
                Item::Map(count) => 2 * u64::from(count),
                _ => 0,
            };
        }
        Ok(())
    }

    fn unexpected(&self, expected: &'static str, at: usize) -> WireError {
        WireError::Unexpected { expected, got: self.bytes.get(at).copied().unwrap_or(0), at }
    }
}

/// The events of a message.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Entries<'a> {
    /// A nil: heartbeat over TCP.
    None,
    /// Time and record of one event, back to back.
    One(&'a [u8]),
    /// `[time, record]` pairs back to back, of mode Forward or PackedForward.
    Many(&'a [u8]),
    /// The same, compressed with gzip.
    Compressed(&'a [u8]),
}

/// One message of the forward protocol.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Message<'a> {
    /// Its events.
    pub entries: Entries<'a>,
    /// Option `chunk`: an ack is wanted.
    pub chunk: Option<&'a [u8]>,
    /// Bytes of the message.
    pub used: usize,
}

/// Reads one message from the front of the bytes.
pub fn read_message(bytes: &[u8]) -> Result<Message<'_>, WireError> {
    let mut cursor = Cursor::new(bytes);
    let parts = match cursor.item()? {
        Item::Nil => return Ok(Message { entries: Entries::None, chunk: None, used: 1 }),
        Item::Array(parts @ 2..=4) => parts,
        _ => return Err(cursor.unexpected("an array of 2 to 4 items", 0)),
    };
    let tag_at = cursor.position();
    let Item::Text(_) = cursor.item()? else {
        return Err(cursor.unexpected("a tag", tag_at));
    };
    let start = cursor.position();
    let mut left = parts - 2;
    let mut entries = match cursor.item()? {
        Item::Text(packed) => Entries::Many(packed),
        Item::Array(count) => {
            let body = cursor.position();
            for _ in 0..count {
                cursor.skip()?;
            }
            Entries::Many(&bytes[body..cursor.position()])
        }
        _ if parts >= 3 => {
            cursor.skip()?;
            left -= 1;
            Entries::One(&bytes[start..cursor.position()])
        }
        _ => return Err(cursor.unexpected("entries", start)),
    };
    let mut chunk = None;
    if left > 0 {
        let compressed;
        (chunk, compressed) = read_option(&mut cursor)?;
        if let (true, Entries::Many(packed)) = (compressed, entries) {
            entries = Entries::Compressed(packed);
        }
        for _ in 1..left {
            cursor.skip()?;
        }
    }
    Ok(Message { entries, chunk, used: cursor.position() })
}

/// Options `chunk` and `compressed` (gzip: true).
fn read_option<'a>(cursor: &mut Cursor<'a>) -> Result<(Option<&'a [u8]>, bool), WireError> {
    let at = cursor.position();
    let pairs = match cursor.item()? {
        Item::Nil => 0,
        Item::Map(pairs) => pairs,
        _ => return Err(cursor.unexpected("an option map", at)),
    };
    let (mut chunk, mut compressed) = (None, false);
    for _ in 0..pairs {
        let key = cursor.item()?;
        let value_at = cursor.position();
        match key {
            Item::Text(b"chunk") => match cursor.item()? {
                Item::Text(id) => chunk = Some(id),
                _ => return Err(cursor.unexpected("a chunk id", value_at)),
            },
            Item::Text(b"compressed") => match cursor.item()? {
                Item::Text(b"text") => {}
                Item::Text(b"gzip") => compressed = true,
                _ => return Err(cursor.unexpected("compressed text or gzip", value_at)),
            },
            _ => cursor.skip()?,
        }
    }
    Ok((chunk, compressed))
}

/// What the judge sees of one event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sighting {
    /// One of the generator's.
    Ours {
        /// Its numbers.
        mark: Mark,
        /// False when the record is not byte for byte as it was made (a filter or another forwarder re-encoded it).
        untouched: bool,
        /// False when the event's time is not the one that was sent (whole seconds are fine for an integer time).
        time_kept: bool,
    },
    /// A record without run and seq.
    Foreign,
}

/// Reads messages' events.
#[derive(Default)]
pub struct EventReader {
    recogniser: Recogniser,
    inflated: Vec<u8>,
}

impl EventReader {
    /// Appends what the message holds to `seen`.
    pub fn read(&mut self, entries: Entries<'_>, seen: &mut Vec<Sighting>) -> Result<(), WireError> {
        match entries {
            Entries::None => Ok(()),
            Entries::One(event) => {
                seen.push(self.event(&mut Cursor::new(event)).map_err(torn)?);
                Ok(())
            }
            Entries::Many(packed) => self.pairs(packed, seen),
            Entries::Compressed(packed) => {
                let mut inflated = std::mem::take(&mut self.inflated);
                inflated.clear();
                let limit = MESSAGE_LIMIT_BYTES as u64 + 1;
                let read = flate2::read::MultiGzDecoder::new(packed).take(limit).read_to_end(&mut inflated);
                let result = match read {
                    Err(error) => Err(WireError::Inflate(error.to_string())),
                    Ok(length) if length > MESSAGE_LIMIT_BYTES => Err(WireError::TooLarge),
                    Ok(_) => self.pairs(&inflated, seen),
                };
                self.inflated = inflated;
                result
            }
        }
    }

    fn pairs(&self, packed: &[u8], seen: &mut Vec<Sighting>) -> Result<(), WireError> {
        let mut cursor = Cursor::new(packed);
        while !cursor.is_at_end() {
            let at = cursor.position();
            match cursor.item().map_err(torn)? {
                Item::Array(2) => seen.push(self.event(&mut cursor).map_err(torn)?),
                _ => return Err(cursor.unexpected("an entry [time, record]", at)),
            }
        }
        Ok(())
    }

    fn event(&self, cursor: &mut Cursor<'_>) -> Result<Sighting, WireError> {
        let time = read_time(cursor)?;
        let (mark, untouched) = match self.recogniser.recognise(cursor.rest()) {
            Some(mark) => {
                cursor.take(RECORD_BYTES)?;
                (Some(mark), true)
            }
            None => (read_record(cursor)?, false),
        };
        Ok(match mark {
            None => Sighting::Foreign,
            Some(mark) => Sighting::Ours { mark, untouched, time_kept: time.is_sent_at(mark.sent_ns) },
        })
    }
}

/// Inside a whole message nothing may be missing: a short entry is a torn one.
fn torn(error: WireError) -> WireError {
    match error {
        WireError::Short => {
            WireError::Unexpected { expected: "whole entries, the last one is torn", got: 0, at: 0 }
        }
        other => other,
    }
}

enum Time {
    Exact(u64),
    Seconds(u64),
    Other,
}

impl Time {
    fn is_sent_at(&self, sent_ns: u64) -> bool {
        match self {
            Self::Exact(ns) => *ns == sent_ns,
            Self::Seconds(seconds) => *seconds == sent_ns / 1_000_000_000,
            Self::Other => false,
        }
    }
}

fn read_time(cursor: &mut Cursor<'_>) -> Result<Time, WireError> {
    Ok(match cursor.item()? {
        Item::UInt(seconds) => Time::Seconds(seconds),
        Item::Ext(0, data) if data.len() == 8 => {
            let half = |bytes: &[u8]| bytes.iter().fold(0_u64, |sum, byte| (sum << 8) | u64::from(*byte));
            Time::Exact(half(&data[..4]) * 1_000_000_000 + half(&data[4..]))
        }
        // Fluent Bit's [time, metadata].
        Item::Array(count @ 1..) => {
            let time = read_time_inner(cursor)?;
            for _ in 1..count {
                cursor.skip()?;
            }
            time
        }
        Item::Map(pairs) => {
            for _ in 0..u64::from(pairs) * 2 {
                cursor.skip()?;
            }
            Time::Other
        }
        _ => Time::Other,
    })
}

/// The time inside `[time, metadata]`: nesting goes no deeper, so that bytes cannot make us recurse.
fn read_time_inner(cursor: &mut Cursor<'_>) -> Result<Time, WireError> {
    let mut ahead = *cursor;
    if let Item::Array(_) = ahead.item()? {
        cursor.skip()?;
        return Ok(Time::Other);
    }
    read_time(cursor)
}

fn read_record(cursor: &mut Cursor<'_>) -> Result<Option<Mark>, WireError> {
    let at = cursor.position();
    let Item::Map(pairs) = cursor.item()? else {
        return Err(cursor.unexpected("a record (map)", at));
    };
    let (mut run, mut seq, mut sent_ns) = (None, None, 0);
    for _ in 0..pairs {
        let mut ahead = *cursor;
        let number = match (ahead.item()?, ahead.item()?) {
            (Item::Text(b"run"), Item::UInt(value)) => run.replace(value).is_none(),
            (Item::Text(b"seq"), Item::UInt(value)) => seq.replace(value).is_none(),
            (Item::Text(b"sent_ns"), Item::UInt(value)) => {
                sent_ns = value;
                true
            }
            _ => false,
        };
        if number {
            *cursor = ahead;
        } else {
            cursor.skip()?;
            cursor.skip()?;
        }
    }
    Ok(run.zip(seq).map(|(run, seq)| Mark { run, seq, sent_ns }))
}

/// The bytes of `{"ack": chunk}` as Fluentd writes them.
pub fn write_ack(out: &mut Vec<u8>, chunk: &[u8]) {
    out.extend_from_slice(b"\x81\xa3ack");
    super::record::push_text_head(out, chunk.len());
    out.extend_from_slice(chunk);
}

/// Reads one `{"ack": chunk}` from the front of the bytes: the chunk and the bytes used.
pub fn read_ack(bytes: &[u8]) -> Result<(&[u8], usize), WireError> {
    let mut cursor = Cursor::new(bytes);
    let pairs = match cursor.item()? {
        Item::Map(pairs) => pairs,
        _ => return Err(cursor.unexpected("an ack (map)", 0)),
    };
    let mut chunk = None;
    for _ in 0..pairs {
        let key = cursor.item()?;
        match (key, cursor.item()?) {
            (Item::Text(b"ack"), Item::Text(id)) => chunk = Some(id),
            _ => return Err(cursor.unexpected("an ack (text)", 0)),
        }
    }
    match chunk {
        Some(id) => Ok((id, cursor.position())),
        None => Err(cursor.unexpected("key ack", 0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::record::{MessageMaker, Mode};

    const NOW: u64 = 1_700_000_000_123_456_789;

    fn sightings(bytes: &[u8]) -> Result<Vec<Sighting>, WireError> {
        let (mut reader, mut seen, mut at) = (EventReader::default(), Vec::new(), 0);
        while at < bytes.len() {
            let message = read_message(&bytes[at..])?;
            reader.read(message.entries, &mut seen)?;
            at += message.used;
        }
        Ok(seen)
    }

    #[test]
    fn reads_what_the_generator_makes_in_every_mode() {
        for mode in [Mode::Message, Mode::Forward, Mode::Packed, Mode::Gzip] {
            let mut bytes = Vec::new();
            MessageMaker::new(mode, "app.web", 7).write(&mut bytes, 40, 3, NOW, None);
            let expected: Vec<_> = (40..43)
                .map(|seq| Sighting::Ours {
                    mark: Mark { run: 7, seq, sent_ns: NOW },
                    untouched: true,
                    time_kept: true,
                })
                .collect();
            assert_eq!(sightings(&bytes), Ok(expected), "{mode:?}");
        }
    }

    #[test]
    fn every_cut_is_incomplete_and_none_panics() {
        for mode in [Mode::Message, Mode::Forward, Mode::Packed, Mode::Gzip] {
            let mut bytes = Vec::new();
            MessageMaker::new(mode, "app.web", 7).write(&mut bytes, 0, 1, NOW, Some(b"id"));
            for cut in 0..bytes.len() {
                assert_eq!(read_message(&bytes[..cut]), Err(WireError::Short), "{mode:?} cut at {cut}");
            }
            assert_eq!(read_message(&bytes).map(|message| message.chunk), Ok(Some(&b"id"[..])));
        }
    }

    #[test]
    fn a_torn_last_entry_is_an_error() {
        let mut packed = Vec::new();
        MessageMaker::new(Mode::Packed, "t", 7).write(&mut packed, 0, 2, NOW, None);
        // 93 a1 t db and 4 bytes of length: make the entries one byte shorter and drop the option.
        let torn_length = 2 * crate::bench::record::ENTRY_BYTES - 1;
        let mut bytes = b"\x92\xa1t\xdb".to_vec();
        bytes.extend((torn_length as u32).to_be_bytes());
        bytes.extend(&packed[8..8 + torn_length]);
        assert!(sightings(&bytes).is_err());
    }

    #[test]
    fn reads_the_committed_streams_of_the_protocol() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/fixtures/forward");
        for (name, events) in [
            ("01-message-eventtime", 1),
            ("02-message-integer-time", 1),
            ("03-message-with-option-ack", 1),
            ("05-forward", 2),
            ("07-packed-bin", 2),
            ("08-packed-str32-as-out_forward", 2),
            ("09-packed-no-option", 2),
            ("10-packed-gzip", 2),
            ("14-nil-heartbeat-then-message", 1),
            ("17-metadata-time", 1),
            ("18-pipelined-messages", 3),
            ("recorded-out_forward-gzip", 2),
            ("recorded-out_forward-ack", 2),
        ] {
            let bytes = std::fs::read(folder.join(format!("{name}.bin"))).expect(name);
            assert_eq!(sightings(&bytes), Ok(vec![Sighting::Foreign; events]), "{name}");
        }
    }

    #[test]
    fn a_record_in_other_clothes_is_still_found() {
        let mut record = rmp_map();
        let mut bytes = b"\x93\xa1t\xce\x65\x53\xf1\x00".to_vec();
        bytes.append(&mut record);
        assert_eq!(
            sightings(&bytes),
            Ok(vec![Sighting::Ours {
                mark: Mark { run: 1, seq: 2, sent_ns: NOW },
                untouched: false,
                time_kept: true
            }])
        );
    }

    fn rmp_map() -> Vec<u8> {
        let mut record = b"\x84\xa1x\x93\x01\x02\x80\xa3seq\x02\xa3run\xd1\x00\x01\xa7sent_ns\xcf".to_vec();
        record.extend(NOW.to_be_bytes());
        record
    }

    #[test]
    fn acks_are_read_as_they_are_written() {
        let mut bytes = Vec::new();
        write_ack(&mut bytes, b"ZhgGNPDLJMeB16R6Azwxog==\n");
        write_ack(&mut bytes, b"next");
        assert_eq!(read_ack(&bytes), Ok((&b"ZhgGNPDLJMeB16R6Azwxog==\n"[..], 31)));
        assert_eq!(read_ack(&bytes[31..]), Ok((&b"next"[..], 10)));
        for cut in 0..31 {
            assert_eq!(read_ack(&bytes[..cut]), Err(WireError::Short));
        }
    }

    #[test]
    fn foreign_bytes_never_panic() {
        let seed = fastrand::u64(..);
        let mut random = fastrand::Rng::with_seed(seed);
        for _ in 0..20_000 {
            let bytes: Vec<u8> = (0..random.usize(0..60)).map(|_| random.u8(..)).collect();
            let _ = (sightings(&bytes), read_ack(&bytes));
        }
        println!("seed {seed}");
    }
}
