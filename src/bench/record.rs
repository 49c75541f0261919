//! What the generator sends: an access record of 252 bytes of msgpack and the messages around it.
//!
//! The record is encoded once; per event only time, `seq` and `sent_ns` are written into their places.

use std::io::Write;

/// Bytes of one record's msgpack map (the load that the peers were measured with).
pub const RECORD_BYTES: usize = 252;
/// `92`, fixext8 EventTime.
const ENTRY_HEAD_BYTES: usize = 11;
/// Bytes of one `[time, record]` pair.
pub const ENTRY_BYTES: usize = ENTRY_HEAD_BYTES + RECORD_BYTES;

/// Where the three numbers stand in the record, always as u64 (`cf`), so that they can be patched.
const RUN_AT: usize = 214;
const SEQ_AT: usize = 227;
const SENT_NS_AT: usize = 244;
const BETWEEN_RUN_AND_SEQ: &[u8] = b"\xa3seq\xcf";
const BETWEEN_SEQ_AND_SENT_NS: &[u8] = b"\xa7sent_ns\xcf";

/// Level of gzip in mode `gzip`: the generator is not what is measured.
const GZIP_LEVEL: u32 = 1;

/// The three numbers of an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mark {
    /// Which start of the generator.
    pub run: u64,
    /// Which event of that run, from 0.
    pub seq: u64,
    /// Wall clock at sending, nanoseconds since 1970; 0 when the record no longer carries it.
    pub sent_ns: u64,
}

/// How events are put into messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Mode {
    /// `[tag, time, record]`, one event a message
    Message,
    /// `[tag, [[time, record], ...]]`
    Forward,
    /// `[tag, entries as str32]`, what out_forward sends
    Packed,
    /// as packed, the entries compressed
    Gzip,
}

/// The record with all three numbers 0.
fn template() -> Vec<u8> {
    let mut map = vec![0x8c];
    let text = |map: &mut Vec<u8>, value: &str| {
        match value.len() {
            short @ 0..32 => map.push(0xa0 | short as u8),
            long => map.extend([0xd9, long as u8]),
        }
        map.extend(value.as_bytes());
    };
    let fields = [
        ("remote", "198.51.100.217"),
        ("host", "-"),
        ("user", "-"),
        ("method", "GET"),
        ("path", "/shop/items/47?page=3"),
        ("code", "200"),
        ("size", "15324"),
        ("referer", "https://shop.example/items?page=2"),
        ("agent", "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 Chrome/126.0"),
    ];
    for (key, value) in fields {
        text(&mut map, key);
        text(&mut map, value);
    }
    for key in ["run", "seq", "sent_ns"] {
        text(&mut map, key);
        map.push(0xcf);
        map.extend([0; 8]);
    }
    map
}

/// The marks of a record that is byte for byte one of ours.
pub struct Recogniser {
    prefix: Vec<u8>,
}

impl Default for Recogniser {
    fn default() -> Self {
        Self { prefix: template()[..RUN_AT].to_vec() }
    }
}

impl Recogniser {
    /// The marks when the bytes begin with a record exactly as the generator makes it.
    pub fn recognise(&self, bytes: &[u8]) -> Option<Mark> {
        let record = bytes.get(..RECORD_BYTES)?;
        let same = record[..RUN_AT] == self.prefix[..]
            && &record[RUN_AT + 8..SEQ_AT] == BETWEEN_RUN_AND_SEQ
            && &record[SEQ_AT + 8..SENT_NS_AT] == BETWEEN_SEQ_AND_SENT_NS;
        same.then(|| Mark {
            run: number_at(record, RUN_AT),
            seq: number_at(record, SEQ_AT),
            sent_ns: number_at(record, SENT_NS_AT),
        })
    }
}

fn number_at(record: &[u8], at: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&record[at..at + 8]);
    u64::from_be_bytes(bytes)
}

/// Makes messages of one run, one tag and one mode.
#[derive(Clone)]
pub struct MessageMaker {
    mode: Mode,
    tag: Vec<u8>,
    /// Time and record of an event, without the `92` in front.
    event: Vec<u8>,
    entries: Vec<u8>,
}

impl MessageMaker {
    /// A maker; `tag` is sent as str.
    pub fn new(mode: Mode, tag: &str, run: u64) -> Self {
        let mut event = vec![0xd7, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        event.extend(template());
        let run_at = ENTRY_HEAD_BYTES - 1 + RUN_AT;
        event[run_at..run_at + 8].copy_from_slice(&run.to_be_bytes());
        let mut tag_bytes = Vec::new();
        push_text_head(&mut tag_bytes, tag.len());
        tag_bytes.extend(tag.as_bytes());
        Self { mode, tag: tag_bytes, event, entries: Vec::new() }
    }

    /// Appends the events `first .. first + count` to `out`: one message, or in mode `message` one per event
    /// (then `chunk` goes into each, so use it with `count` 1 only).
    pub fn write(&mut self, out: &mut Vec<u8>, first: u64, count: u32, now_ns: u64, chunk: Option<&[u8]>) {
        self.stamp(now_ns);
        match self.mode {
            Mode::Message => self.write_messages(out, first, count, chunk),
            Mode::Forward => {
                out.push(0x93);
                out.extend_from_slice(&self.tag);
                out.push(0xdd);
                out.extend_from_slice(&count.to_be_bytes());
                self.write_entries(out, first, count);
                write_option(out, Some(count), None, chunk);
            }
            Mode::Packed => {
                out.push(0x93);
                out.extend_from_slice(&self.tag);
                out.push(0xdb);
                out.extend_from_slice(&(count * ENTRY_BYTES as u32).to_be_bytes());
                self.write_entries(out, first, count);
                write_option(out, Some(count), Some("text"), chunk);
            }
            Mode::Gzip => self.write_compressed(out, first, count, chunk),
        }
    }

    fn stamp(&mut self, now_ns: u64) {
        let seconds = (now_ns / 1_000_000_000) as u32;
        let nanoseconds = (now_ns % 1_000_000_000) as u32;
        self.event[2..6].copy_from_slice(&seconds.to_be_bytes());
        self.event[6..10].copy_from_slice(&nanoseconds.to_be_bytes());
        let sent_at = ENTRY_HEAD_BYTES - 1 + SENT_NS_AT;
        self.event[sent_at..sent_at + 8].copy_from_slice(&now_ns.to_be_bytes());
    }

    fn write_event(&self, out: &mut Vec<u8>, seq: u64) {
        let start = out.len();
        out.extend_from_slice(&self.event);
        let seq_at = start + ENTRY_HEAD_BYTES - 1 + SEQ_AT;
        out[seq_at..seq_at + 8].copy_from_slice(&seq.to_be_bytes());
    }

    fn write_entries(&self, out: &mut Vec<u8>, first: u64, count: u32) {
        out.reserve(count as usize * ENTRY_BYTES + 64);
        for seq in first..first + u64::from(count) {
            out.push(0x92);
            self.write_event(out, seq);
        }
    }

    fn write_messages(&self, out: &mut Vec<u8>, first: u64, count: u32, chunk: Option<&[u8]>) {
        for seq in first..first + u64::from(count) {
            out.push(if chunk.is_some() { 0x94 } else { 0x93 });
            out.extend_from_slice(&self.tag);
            self.write_event(out, seq);
            if chunk.is_some() {
                write_option(out, None, None, chunk);
            }
        }
    }

    fn write_compressed(&mut self, out: &mut Vec<u8>, first: u64, count: u32, chunk: Option<&[u8]>) {
        let mut entries = std::mem::take(&mut self.entries);
        entries.clear();
        self.write_entries(&mut entries, first, count);
        out.push(0x93);
        out.extend_from_slice(&self.tag);
        out.push(0xdb);
        let length_at = out.len();
        out.extend_from_slice(&[0; 4]);
        let level = flate2::Compression::new(GZIP_LEVEL);
        let mut encoder = flate2::write::GzEncoder::new(&mut *out, level);
        let written = encoder.write_all(&entries).and_then(|()| encoder.finish().map(|_| ()));
        assert!(written.is_ok(), "writing to memory does not fail");
        let length = (out.len() - length_at - 4) as u32;
        out[length_at..length_at + 4].copy_from_slice(&length.to_be_bytes());
        write_option(out, Some(count), Some("gzip"), chunk);
        self.entries = entries;
    }
}

/// The option map in out_forward's order: size, compressed, chunk.
fn write_option(out: &mut Vec<u8>, size: Option<u32>, compressed: Option<&str>, chunk: Option<&[u8]>) {
    let keys = u8::from(size.is_some()) + u8::from(compressed.is_some()) + u8::from(chunk.is_some());
    out.push(0x80 | keys);
    if let Some(size) = size {
        out.extend_from_slice(b"\xa4size\xce");
        out.extend_from_slice(&size.to_be_bytes());
    }
    if let Some(compressed) = compressed {
        out.extend_from_slice(b"\xaacompressed");
        push_text_head(out, compressed.len());
        out.extend_from_slice(compressed.as_bytes());
    }
    if let Some(chunk) = chunk {
        out.extend_from_slice(b"\xa5chunk");
        push_text_head(out, chunk.len());
        out.extend_from_slice(chunk);
    }
}

/// msgpack head of a str of up to 65,535 bytes.
pub(super) fn push_text_head(out: &mut Vec<u8>, length: usize) {
    match length {
        0..32 => out.push(0xa0 | length as u8),
        32..256 => out.extend([0xd9, length as u8]),
        _ => {
            out.push(0xda);
            out.extend_from_slice(&u16::try_from(length).unwrap_or(u16::MAX).to_be_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_record_is_the_peers_load_and_the_numbers_stand_where_we_patch() {
        let record = template();
        assert_eq!(record.len(), RECORD_BYTES);
        assert!(record[..RUN_AT].ends_with(b"\xa3run\xcf"));
        assert!(record[..SEQ_AT].ends_with(BETWEEN_RUN_AND_SEQ));
        assert!(record[..SENT_NS_AT].ends_with(BETWEEN_SEQ_AND_SENT_NS));
        assert_eq!(SENT_NS_AT + 8, RECORD_BYTES);
    }

    #[test]
    fn a_changed_byte_is_not_recognised() {
        let recogniser = Recogniser::default();
        let mut record = template();
        record[SEQ_AT + 7] = 9;
        assert_eq!(recogniser.recognise(&record), Some(Mark { run: 0, seq: 9, sent_ns: 0 }));
        let numbers = [RUN_AT..RUN_AT + 8, SEQ_AT..SEQ_AT + 8, SENT_NS_AT..SENT_NS_AT + 8];
        for at in (0..RECORD_BYTES).filter(|at| !numbers.iter().any(|range| range.contains(at))) {
            record[at] ^= 1;
            assert_eq!(recogniser.recognise(&record), None, "byte {at}");
            record[at] ^= 1;
        }
    }
}
