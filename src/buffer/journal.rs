//! The journal: a sync round with many dirty chunk files writes their frames a second time, to one file per directory,
//! and syncs that one (measured: 1,000 files cost 66 ms one by one, 3 ms as a journal). Start-up replays it.
//!
//! Records only ever fill what a chunk file lacks: a frame is put back if its place overlaps no good frame, the latest
//! record first. So a record of a round that failed and was undone can never push out a confirmed frame.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io::{self, IoSlice};

use bytes::Bytes;

use super::ChunkId;
use super::format::{self, FrameHeader};
use super::places::{Name, Places, State};
use super::storage::{Entry, Storage, StorageFile};

/// A round with more dirty files than this is journaled.
pub(super) const JOURNAL_ABOVE_FILES: usize = 8;
/// A journal of this size is retired: its chunk files are synced one by one and it is deleted.
pub(super) const JOURNAL_LIMIT_BYTES: u64 = 64 << 20;

/// A journal whose chunks are all done is deleted from this size on; below, it is used on.
const WORN_BYTES: u64 = 1 << 20;

/// First bytes of a journal.
const MAGIC: [u8; 8] = *b"\x89TRBJNL\n";
const PREFACE_BYTES: usize = 24;
/// First bytes of a record: non-zero.
const RECORD_MAGIC: [u8; 4] = *b"\xf5TJR";
const RECORD_HEADER_BYTES: usize = 48;

/// Bytes that belong into a chunk file at an offset.
const KIND_DATA: u8 = 1;
/// The chunk was delivered or undone: nothing of it is put back, its file goes.
const KIND_DONE: u8 = 2;

/// The journal being written.
pub(super) struct Journal {
    number: u64,
    file: Box<dyn StorageFile>,
    end: u64,
    /// Chunks with records in it.
    pub(super) chunks: HashSet<ChunkId>,
    /// Those whose own files failed to sync: the journal stays until they are delivered.
    pub(super) stuck: HashSet<ChunkId>,
}

/// A record of a journal, where its bytes stand in the journal file.
struct Record {
    chunk: ChunkId,
    offset: u64,
    bytes: std::ops::Range<usize>,
    done: bool,
}

impl Journal {
    /// Creates the journal with this number. Its directory entry is not synced yet.
    pub(super) fn create(storage: &dyn Storage, places: &Places, number: u64) -> io::Result<Self> {
        let path = places.journal(number);
        let mut file = storage.create_new(&path)?;
        let preface = preface(number);
        if let Err(error) = file.write_at(&mut [IoSlice::new(&preface)], 0) {
            // The next attempt takes another number; an empty journal is deleted at start-up.
            let _ = storage.unlink(&path);
            return Err(error);
        }
        Ok(Self { number, file, end: PREFACE_BYTES as u64, chunks: HashSet::new(), stuck: HashSet::new() })
    }

    /// Adds bytes of a chunk file. After an error the journal must not be used again.
    pub(super) fn add(&mut self, chunk: ChunkId, offset: u64, slices: &[IoSlice<'_>]) -> io::Result<()> {
        self.chunks.insert(chunk);
        self.write(KIND_DATA, chunk, offset, slices)
    }

    /// Notes that a chunk is done. Not synced: after a power failure it may come once more.
    pub(super) fn done(&mut self, chunk: ChunkId) -> io::Result<()> {
        let known = self.chunks.remove(&chunk) | self.stuck.remove(&chunk);
        if known { self.write(KIND_DONE, chunk, 0, &[]) } else { Ok(()) }
    }

    fn write(&mut self, kind: u8, chunk: ChunkId, offset: u64, slices: &[IoSlice<'_>]) -> io::Result<()> {
        let len: usize = slices.iter().map(|slice| slice.len()).sum();
        let crc = slices.iter().fold(0, |crc, slice| crc32c::crc32c_append(crc, slice));
        let mut header = [0; RECORD_HEADER_BYTES];
        header[0..4].copy_from_slice(&RECORD_MAGIC);
        header[4] = kind;
        header[8..24].copy_from_slice(&chunk.0);
        header[24..32].copy_from_slice(&offset.to_le_bytes());
        header[32..40].copy_from_slice(&(len as u64).to_le_bytes());
        header[40..44].copy_from_slice(&crc.to_le_bytes());
        let own = record_crc(self.number, self.end, &header[..44]);
        header[44..48].copy_from_slice(&own.to_le_bytes());
        let mut all: Vec<IoSlice<'_>> = Vec::with_capacity(slices.len() + 1);
        all.push(IoSlice::new(&header));
        all.extend(slices.iter().map(|slice| IoSlice::new(slice)));
        self.file.write_at(&mut all, self.end)?;
        self.end += (RECORD_HEADER_BYTES + len) as u64;
        Ok(())
    }

    /// Brings it to stable storage.
    pub(super) fn sync(&mut self) -> io::Result<()> {
        self.file.sync_data()
    }

    /// Whether it has reached its size.
    pub(super) fn is_full(&self) -> bool {
        self.end >= JOURNAL_LIMIT_BYTES
    }

    /// Whether deleting it is worth two syncs of the directory once all its chunks are done.
    pub(super) fn is_worn(&self) -> bool {
        self.end >= WORN_BYTES
    }

    /// Its number.
    pub(super) fn number(&self) -> u64 {
        self.number
    }
}

fn preface(number: u64) -> [u8; PREFACE_BYTES] {
    let mut bytes = [0; PREFACE_BYTES];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..10].copy_from_slice(&format::VERSION.to_le_bytes());
    bytes[12..20].copy_from_slice(&number.to_le_bytes());
    let crc = crc32c::crc32c(&bytes[..20]);
    bytes[20..24].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// Keyed with number and offset, as frames are: events that carry journal bytes never pass for a record.
fn record_crc(number: u64, offset: u64, header: &[u8]) -> u32 {
    let key = [number.to_le_bytes(), offset.to_le_bytes()].concat();
    crc32c::crc32c_append(crc32c::crc32c(&key), header)
}

fn field<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
}

/// Good records of a journal file, in order; damage is searched over.
fn records(number: u64, file: &[u8]) -> Vec<Record> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(start) = find(file, at) {
        match record_at(number, file, start) {
            Some(record) => {
                at = record.bytes.end;
                found.push(record);
            }
            None => at = start + 1,
        }
    }
    found
}

fn find(file: &[u8], from: usize) -> Option<usize> {
    let rest = file.get(from..)?;
    rest.windows(RECORD_MAGIC.len()).position(|window| window == RECORD_MAGIC).map(|at| from + at)
}

fn record_at(number: u64, file: &[u8], start: usize) -> Option<Record> {
    let header = file.get(start..start + RECORD_HEADER_BYTES)?;
    if u32::from_le_bytes(field(header, 44)?) != record_crc(number, start as u64, &header[..44]) {
        return None;
    }
    let len = usize::try_from(u64::from_le_bytes(field(header, 32)?)).ok()?;
    let bytes = start + RECORD_HEADER_BYTES..(start + RECORD_HEADER_BYTES).checked_add(len)?;
    if u32::from_le_bytes(field(header, 40)?) != crc32c::crc32c(file.get(bytes.clone())?) {
        return None;
    }
    Some(Record {
        chunk: ChunkId(field(header, 8)?),
        offset: u64::from_le_bytes(field(header, 24)?),
        bytes,
        done: header[4] == KIND_DONE,
    })
}

/// What a replay did.
#[derive(Debug, Default)]
pub(super) struct Replayed {
    pub(super) frames: u64,
    /// Journals that could not be replayed or retired; they stay.
    pub(super) failed: Vec<String>,
    /// The next free number.
    pub(super) next_number: u64,
}

/// Puts back what chunk files lack, syncs them and the directory, then deletes the journals. A crash anywhere in it is
/// met by the next replay.
pub(super) fn replay(storage: &dyn Storage, places: &Places, entries: &[Entry]) -> Replayed {
    let mut replayed = Replayed::default();
    let mut numbers: Vec<(u64, u64)> = Vec::new();
    let mut chunks: HashMap<ChunkId, State> = HashMap::new();
    for entry in entries {
        match places.read_name(&entry.name) {
            Name::Journal(number) => numbers.push((number, entry.len)),
            Name::Chunk(state, id) => {
                let known = chunks.entry(id).or_insert(state);
                *known = state.max(*known);
            }
            _ => {}
        }
    }
    numbers.sort_unstable();
    replayed.next_number = numbers.last().map_or(0, |(number, _)| number.wrapping_add(1));
    for (number, _) in numbers {
        match replay_one(storage, places, number, &mut chunks) {
            Ok(frames) => replayed.frames += frames,
            Err(error) => {
                let path = places.journal(number);
                tracing::error!(path = %path.display(), error = %error, "cannot replay a buffer journal, it stays");
                replayed.failed.push(path.display().to_string());
            }
        }
    }
    replayed
}

fn replay_one(
    storage: &dyn Storage,
    places: &Places,
    number: u64,
    chunks: &mut HashMap<ChunkId, State>,
) -> io::Result<u64> {
    let path = places.journal(number);
    let file = Bytes::from(storage.read(&path, 0, u64::MAX)?);
    if file
        .get(..10)
        .is_some_and(|start| start[..8] == MAGIC && start[8..10] != format::VERSION.to_le_bytes())
        && file
            .get(..PREFACE_BYTES)
            .is_some_and(|start| start[20..] == crc32c::crc32c(&start[..20]).to_le_bytes())
    {
        return Err(io::Error::new(io::ErrorKind::Unsupported, "it has a newer version"));
    }
    let records = records(number, &file);
    let done: BTreeSet<ChunkId> =
        records.iter().filter(|record| record.done).map(|record| record.chunk).collect();
    // Its file may still be there, without the seal that stood in this journal: it would collect again.
    for id in &done {
        if let Some(state) = chunks.remove(id) {
            storage.unlink(&places.chunk(state, *id))?;
        }
    }
    // Sorted by chunk; within a chunk in the order of the journal.
    let mut by_chunk: BTreeMap<ChunkId, Vec<&Record>> = BTreeMap::new();
    for record in records.iter().filter(|record| !record.done && !done.contains(&record.chunk)) {
        by_chunk.entry(record.chunk).or_default().push(record);
    }
    let mut frames = 0;
    for (chunk, records) in by_chunk {
        frames += replay_chunk(storage, places, chunk, &records, &file, chunks)?;
    }
    // Only now, that all of it stands in the chunk files, the journal may go; and it must be gone for good before
    // chunks are delivered, or a power failure would bring them back.
    storage.sync_dir(&places.directory)?;
    storage.unlink(&path)?;
    storage.sync_dir(&places.directory)?;
    Ok(frames)
}

fn replay_chunk(
    storage: &dyn Storage,
    places: &Places,
    id: ChunkId,
    records: &[&Record],
    journal: &Bytes,
    chunks: &mut HashMap<ChunkId, State>,
) -> io::Result<u64> {
    let beginning = records.iter().find(|record| record.offset == 0);
    let (content, mut file) = match (chunks.get(&id), beginning) {
        (Some(state), _) => {
            let path = places.chunk(*state, id);
            (storage.read(&path, 0, u64::MAX)?, storage.open(&path)?)
        }
        // The chunk was made in this journal's time: its directory entry was lost.
        (None, Some(_)) => {
            chunks.insert(id, State::Staged);
            (Vec::new(), storage.create_new(&places.chunk(State::Staged, id))?)
        }
        // The chunk was older than the journal and is gone: delivered.
        (None, None) => return Ok(0),
    };
    let mut good: Vec<std::ops::Range<u64>> =
        format::scan(id, &content).good.iter().map(|range| range.start as u64..range.end as u64).collect();
    let mut written = 0;
    for record in records.iter().rev() {
        let bytes = journal.slice(record.bytes.clone());
        for piece in pieces(id, record.offset, &bytes) {
            let at = |position: usize| record.offset.saturating_add(position as u64);
            let place = at(piece.start)..at(piece.end);
            if good.iter().any(|good| good.start < place.end && place.start < good.end) {
                continue;
            }
            file.write_at(&mut [IoSlice::new(&bytes[piece])], place.start)?;
            good.push(place);
            written += 1;
        }
    }
    // Also when nothing was missing: what was read may be in memory only.
    file.sync_data()?;
    Ok(written)
}

/// Preface and frames within the bytes of a record.
fn pieces(id: ChunkId, offset: u64, bytes: &[u8]) -> Vec<std::ops::Range<usize>> {
    let mut pieces = Vec::new();
    let mut at = 0;
    if offset == 0 && matches!(format::read_preface(bytes), format::Preface::Good(own) if own == id) {
        pieces.push(0..format::PREFACE_BYTES);
        at = format::PREFACE_BYTES;
    }
    while let Some(header) =
        bytes.get(at..).and_then(|rest| FrameHeader::decode(rest, id, offset.saturating_add(at as u64)))
    {
        let Some(end) = usize::try_from(header.frame_bytes()).ok().and_then(|len| at.checked_add(len)) else {
            break;
        };
        if end > bytes.len() {
            break;
        }
        pieces.push(at..end);
        at = end;
    }
    pieces
}

/// For the fuzz target: any bytes as a journal.
pub(super) fn read_anything(bytes: &[u8]) {
    for record in records(0, bytes) {
        let content = Bytes::copy_from_slice(bytes.get(record.bytes.clone()).unwrap_or_default());
        let pieces = pieces(record.chunk, record.offset, &content);
        assert!(pieces.windows(2).all(|pair| pair[0].end == pair[1].start));
    }
}
