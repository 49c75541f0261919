//! The bytes of a chunk file, explicit little-endian. docs/BUFFER_FORMAT.md draws them.
//!
//! A file is a preface (magic, version, chunk id), then frames. A frame's header carries a CRC-32C over the chunk id, the
//! frame's offset and the header: bytes of a chunk file that travel inside an event stand at another offset, so they
//! never pass for a frame. Frames: the head (twice, so that one damaged sector does not take tag and keys away), events,
//! the seal. After the seal nothing is ever appended: a chunk that was handed out under its id never grows.

use std::ops::Range;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::mutation::{Mutation, active};
use super::{ChunkId, EntryForm, Metadata, metadata};

/// Version of the format; 0 until it has survived real power cuts.
pub const VERSION: u16 = 0;
/// Suffix of chunk files: neither a Fluentd nor its glob takes one for its own.
pub const SUFFIX: &str = "tchunk";
/// Bytes of the preface.
pub const PREFACE_BYTES: usize = 32;
/// Bytes of a frame's header.
pub const FRAME_HEADER_BYTES: usize = 32;
/// Bytes of the seal frame, which ends a sealed file.
pub const SEAL_BYTES: usize = FRAME_HEADER_BYTES + SEAL_PAYLOAD_BYTES;
/// Most bytes of events in one frame: lengths are 32-bit, and a reader holds a frame in memory.
pub const FRAME_PAYLOAD_LIMIT_BYTES: u64 = 1 << 30;
/// Sender chunk ids above this length are not stored (real ones have 24 to 44 bytes).
pub const SENDER_CHUNK_LIMIT_BYTES: usize = 1024;

/// First bytes of every chunk file. The first is no ASCII and no msgpack map, so no text and no Fluentd chunk begins so.
const MAGIC: [u8; 8] = *b"\x89TRBCHK\n";
/// First bytes of every frame: non-zero, so that a hole never looks like one.
const FRAME_MAGIC: [u8; 4] = *b"\xf5TFR";
const SEAL_PAYLOAD_BYTES: usize = 24;
/// Payload kind: a msgpack stream of `[time, record]`.
const PAYLOAD_EVENTS: u8 = 0;
/// Payload kind: a msgpack stream of `[tag, time, record]`.
const PAYLOAD_TAGGED_EVENTS: u8 = 1;
/// Codec: bytes as they came.
const CODEC_NONE: u8 = 0;
/// Fixed part of the head's payload.
const HEAD_FIXED_BYTES: usize = 16;

/// Kinds of frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// What the chunk is: plugin, creation time, metadata.
    Head,
    /// Events.
    Events,
    /// The end; totals.
    Seal,
}

impl FrameKind {
    fn code(self) -> u8 {
        match self {
            Self::Head => 1,
            Self::Events => 2,
            Self::Seal => 3,
        }
    }

    fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::Head),
            2 => Some(Self::Events),
            3 => Some(Self::Seal),
            _ => None,
        }
    }
}

/// What the head frame says.
#[derive(Clone, Debug, PartialEq)]
pub struct Head {
    /// The output's id when the chunk was made.
    pub plugin_id: String,
    /// When the chunk was made.
    pub created_at: SystemTime,
    /// What an entry of the payload holds.
    pub form: EntryForm,
    /// Chunk keys.
    pub metadata: Metadata,
}

/// What the seal says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Events frames before it.
    pub frames: u64,
    /// Events in them.
    pub events: u64,
    /// Bytes of events in them.
    pub bytes: u64,
}

/// A decoded frame header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// Kind.
    pub kind: FrameKind,
    /// Bytes of the sender chunk id that stands before the payload.
    pub sender_bytes: u16,
    /// Bytes of the payload.
    pub payload_bytes: u32,
    /// Events in it.
    pub events: u32,
    /// When it was written, Unix milliseconds.
    pub written_ms: u64,
    /// CRC-32C of sender chunk id and payload.
    pub payload_crc: u32,
}

impl FrameHeader {
    /// Bytes of the whole frame.
    pub fn frame_bytes(&self) -> u64 {
        FRAME_HEADER_BYTES as u64 + u64::from(self.sender_bytes) + u64::from(self.payload_bytes)
    }

    /// Encodes for one chunk and one offset in its file.
    pub fn encode(&self, id: ChunkId, offset: u64) -> [u8; FRAME_HEADER_BYTES] {
        let mut bytes = [0; FRAME_HEADER_BYTES];
        bytes[0..4].copy_from_slice(&FRAME_MAGIC);
        bytes[4] = self.kind.code();
        bytes[6..8].copy_from_slice(&self.sender_bytes.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.payload_bytes.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.events.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.written_ms.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.payload_crc.to_le_bytes());
        let crc = keyed_crc(id, offset, &bytes[..28]);
        bytes[28..32].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Decodes and checks a header that should stand at `offset` of chunk `id`; `None` if it does not.
    pub fn decode(bytes: &[u8], id: ChunkId, offset: u64) -> Option<Self> {
        let bytes: &[u8; FRAME_HEADER_BYTES] = bytes.get(..FRAME_HEADER_BYTES)?.try_into().ok()?;
        if bytes[0..4] != FRAME_MAGIC || u32_at(bytes, 28)? != keyed_crc(id, offset, &bytes[..28]) {
            return None;
        }
        Some(Self {
            kind: FrameKind::from_code(bytes[4])?,
            sender_bytes: u16_at(bytes, 6)?,
            payload_bytes: u32_at(bytes, 8)?,
            events: u32_at(bytes, 12)?,
            written_ms: u64_at(bytes, 16)?,
            payload_crc: u32_at(bytes, 24)?,
        })
    }
}

/// CRC-32C over chunk id, offset and header.
fn keyed_crc(id: ChunkId, offset: u64, header: &[u8]) -> u32 {
    let mut key = [0; 24];
    key[..16].copy_from_slice(&id.0);
    key[16..].copy_from_slice(&offset.to_le_bytes());
    crc32c::crc32c_append(crc32c::crc32c(&key), header)
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

/// Unix milliseconds, 0 before 1970.
pub fn unix_ms(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// The beginning of a chunk file: preface and two head frames.
pub fn encode_beginning(id: ChunkId, head: &Head) -> Vec<u8> {
    let mut file = Vec::with_capacity(256);
    file.extend_from_slice(&MAGIC);
    file.extend_from_slice(&VERSION.to_le_bytes());
    file.extend_from_slice(&[0, 0]);
    file.extend_from_slice(&id.0);
    let crc = crc32c::crc32c(&file);
    file.extend_from_slice(&crc.to_le_bytes());
    let payload = encode_head(head);
    for _ in 0..2 {
        let header = FrameHeader {
            kind: FrameKind::Head,
            sender_bytes: 0,
            payload_bytes: u32::try_from(payload.len()).unwrap_or(u32::MAX),
            events: 0,
            written_ms: unix_ms(head.created_at),
            payload_crc: crc32c::crc32c(&payload),
        };
        let offset = file.len() as u64;
        file.extend_from_slice(&header.encode(id, offset));
        file.extend_from_slice(&payload);
    }
    file
}

fn encode_head(head: &Head) -> Vec<u8> {
    let since = head.created_at.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let plugin_id = &head.plugin_id.as_bytes()[..head.plugin_id.len().min(usize::from(u16::MAX))];
    let mut payload = Vec::with_capacity(128);
    payload.push(match head.form {
        EntryForm::Events => PAYLOAD_EVENTS,
        EntryForm::TaggedEvents => PAYLOAD_TAGGED_EVENTS,
    });
    payload.push(CODEC_NONE);
    payload.extend_from_slice(&u16::try_from(plugin_id.len()).unwrap_or(u16::MAX).to_le_bytes());
    payload.extend_from_slice(&since.as_secs().to_le_bytes());
    payload.extend_from_slice(&since.subsec_nanos().to_le_bytes());
    payload.extend_from_slice(plugin_id);
    metadata::encode(&head.metadata, &mut payload);
    payload
}

fn decode_head(payload: &[u8]) -> Option<Head> {
    let form = match *payload.first()? {
        PAYLOAD_EVENTS => EntryForm::Events,
        PAYLOAD_TAGGED_EVENTS => EntryForm::TaggedEvents,
        _ => return None,
    };
    if *payload.get(1)? != CODEC_NONE {
        return None;
    }
    let plugin_end = HEAD_FIXED_BYTES + usize::from(u16_at(payload, 2)?);
    // Nanoseconds of a second only, or the sum below could leave the range of the clock.
    let nanoseconds = u32_at(payload, 12).filter(|nanoseconds| *nanoseconds < 1_000_000_000)?;
    Some(Head {
        created_at: UNIX_EPOCH.checked_add(Duration::new(u64_at(payload, 4)?, nanoseconds))?,
        plugin_id: String::from_utf8_lossy(payload.get(HEAD_FIXED_BYTES..plugin_end)?).into_owned(),
        form,
        metadata: metadata::decode(payload.get(plugin_end..)?)?,
    })
}

/// The seal frame.
pub fn encode_seal(id: ChunkId, offset: u64, totals: Totals, written_ms: u64) -> [u8; SEAL_BYTES] {
    let mut frame = [0; SEAL_BYTES];
    let (header, payload) = frame.split_at_mut(FRAME_HEADER_BYTES);
    payload[0..8].copy_from_slice(&totals.frames.to_le_bytes());
    payload[8..16].copy_from_slice(&totals.events.to_le_bytes());
    payload[16..24].copy_from_slice(&totals.bytes.to_le_bytes());
    let fields = FrameHeader {
        kind: FrameKind::Seal,
        sender_bytes: 0,
        payload_bytes: SEAL_PAYLOAD_BYTES as u32,
        events: 0,
        written_ms,
        payload_crc: crc32c::crc32c(payload),
    };
    header.copy_from_slice(&fields.encode(id, offset));
    frame
}

/// The seal at the end of a file of `file_bytes`, given its last bytes.
pub fn decode_seal_at_end(tail: &[u8], id: ChunkId, file_bytes: u64) -> Option<Totals> {
    let at = tail.len().checked_sub(SEAL_BYTES)?;
    let frame = &tail[at..];
    let header = FrameHeader::decode(frame, id, file_bytes.checked_sub(SEAL_BYTES as u64)?)?;
    let payload = &frame[FRAME_HEADER_BYTES..];
    (header.kind == FrameKind::Seal && payload_is_good(&header, payload)).then(|| decode_totals(payload))?
}

fn decode_totals(payload: &[u8]) -> Option<Totals> {
    Some(Totals { frames: u64_at(payload, 0)?, events: u64_at(payload, 8)?, bytes: u64_at(payload, 16)? })
}

/// Whether sender chunk id and payload are what was written.
fn payload_is_good(header: &FrameHeader, content: &[u8]) -> bool {
    active(Mutation::NoCrc) || crc32c::crc32c(content) == header.payload_crc
}

/// How a file begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preface {
    /// As ours, of this version, for this id.
    Good(ChunkId),
    /// As ours, of a version that this program does not know.
    Newer(u16),
    /// Not readable: frames decide.
    Damaged,
}

/// Reads the first bytes of a file.
pub fn read_preface(bytes: &[u8]) -> Preface {
    let Some(preface) = bytes.get(..PREFACE_BYTES) else { return Preface::Damaged };
    if preface[..8] != MAGIC || u32_at(preface, 28) != Some(crc32c::crc32c(&preface[..28])) {
        return Preface::Damaged;
    }
    let mut id = [0; 16];
    id.copy_from_slice(&preface[12..28]);
    match u16_at(preface, 8) {
        Some(VERSION) => Preface::Good(ChunkId(id)),
        Some(other) => Preface::Newer(other),
        None => Preface::Damaged,
    }
}

/// A good events frame in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventsFrame {
    /// Where the frame stands.
    pub offset: u64,
    /// Its header.
    pub header: FrameHeader,
    /// Where the sender chunk id stands.
    pub sender: Range<usize>,
    /// Where the events stand.
    pub payload: Range<usize>,
}

/// What can be read of a chunk file.
#[derive(Clone, Debug, Default)]
pub struct Scan {
    /// Head, if one of the two copies is good.
    pub head: Option<Head>,
    /// Events frames whose CRCs hold, in order.
    pub frames: Vec<EventsFrame>,
    /// Every good range: preface, heads, frames, seal.
    pub good: Vec<Range<usize>>,
    /// Totals, if there is a good seal.
    pub seal: Option<Totals>,
    /// What is none of the above, in order.
    pub damaged: Vec<Range<usize>>,
    /// End of the last good range.
    pub end: usize,
}

impl Scan {
    /// Sums of the good events frames.
    pub fn totals(&self) -> Totals {
        let mut totals = Totals { frames: self.frames.len() as u64, ..Totals::default() };
        for frame in &self.frames {
            totals.events += u64::from(frame.header.events);
            totals.bytes += u64::from(frame.header.payload_bytes);
        }
        totals
    }

    fn accept(&mut self, range: Range<usize>) {
        if self.end < range.start {
            self.damaged.push(self.end..range.start);
        }
        self.end = range.end;
        self.good.push(range);
    }
}

/// Reads all that is good in the file of chunk `id`: a bad payload skips one frame, a bad header searches for the next
/// magic. Never panics, whatever the bytes are.
pub fn scan(id: ChunkId, file: &[u8]) -> Scan {
    let mut scan = Scan::default();
    if read_preface(file) == Preface::Good(id) {
        scan.accept(0..PREFACE_BYTES);
    }
    let mut at = scan.end;
    while let Some(start) = find_magic(file, at) {
        let header = FrameHeader::decode(&file[start..], id, start as u64);
        let content = header.and_then(|header| {
            let len = usize::try_from(header.frame_bytes()).ok()?;
            Some((header, start + FRAME_HEADER_BYTES..start.checked_add(len)?))
        });
        let Some((header, range)) = content else {
            at = start + 1;
            continue;
        };
        match file.get(range.clone()).filter(|content| payload_is_good(&header, content)) {
            Some(content) => {
                scan.accept(start..range.end);
                keep(&mut scan, &header, start, range.clone(), content);
                at = range.end;
            }
            // Torn or damaged: go on behind the header rather than behind the frame, nothing good is passed over.
            None => at = start + FRAME_HEADER_BYTES,
        }
    }
    if scan.end < file.len() {
        let end = scan.end;
        scan.damaged.push(end..file.len());
    }
    scan
}

fn keep(scan: &mut Scan, header: &FrameHeader, start: usize, range: Range<usize>, content: &[u8]) {
    match header.kind {
        FrameKind::Head => scan.head = scan.head.take().or_else(|| decode_head(content)),
        FrameKind::Seal => scan.seal = decode_totals(content),
        FrameKind::Events => {
            let split = (range.start + usize::from(header.sender_bytes)).min(range.end);
            scan.frames.push(EventsFrame {
                offset: start as u64,
                header: *header,
                sender: range.start..split,
                payload: split..range.end,
            });
        }
    }
}

fn find_magic(file: &[u8], from: usize) -> Option<usize> {
    let rest = file.get(from..)?;
    rest.windows(FRAME_MAGIC.len()).position(|window| window == FRAME_MAGIC).map(|at| from + at)
}
