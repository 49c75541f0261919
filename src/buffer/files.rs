//! The file side of a buffer: frames are written, synced in groups, undone, renamed, unlinked. Decides nothing about
//! events; the engine does.

use std::any::Any;
use std::collections::{HashMap, HashSet};
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::format::{self, FRAME_HEADER_BYTES, FrameHeader, FrameKind, Head, SEAL_BYTES, Totals};
use super::journal::{JOURNAL_ABOVE_FILES, Journal};
use super::mutation::{Mutation, active};
use super::places::{Places, State};
use super::storage::{Storage, StorageFile};
use super::{ChunkId, Fsync};

/// Most open chunk files of a buffer: their number must not grow with the number of chunks. Others are reopened.
const OPEN_FILES_LIMIT: usize = 64;
/// Parts without a sender chunk id that follow each other share a frame up to this size: single messages would
/// otherwise carry a header each.
const SHARED_FRAME_LIMIT_BYTES: usize = 256 << 10;

/// One share of an arrival, as it is written.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) sender_chunk: Option<Bytes>,
    pub(super) payload: Bytes,
    pub(super) events: usize,
}

/// What one round writes to one chunk file, with a single call.
pub(super) struct WriteJob<'a> {
    pub(super) id: ChunkId,
    /// The head, for a file that does not exist yet.
    pub(super) head: Option<Head>,
    /// Where the file ends.
    pub(super) end: u64,
    pub(super) parts: &'a [Part],
    /// Totals of the chunk before `parts`; with `seal`, a seal follows the parts.
    pub(super) totals: Totals,
    pub(super) seal: bool,
    pub(super) now_ms: u64,
}

/// What [`FileStore::write`] did.
#[derive(Clone, Copy, Debug)]
pub(super) struct Written {
    /// Where the file ends now.
    pub(super) end: u64,
    /// Events frames written.
    pub(super) frames: u64,
}

/// A step on the disk failed.
#[derive(Debug)]
pub(super) struct StoreError {
    pub(super) action: &'static str,
    pub(super) path: String,
    pub(super) source: io::Error,
    /// The chunk whose file it was, if one.
    pub(super) chunk: Option<ChunkId>,
}

impl std::fmt::Display for StoreError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "cannot {} {}: {}", self.action, self.path, self.source)
    }
}

impl StoreError {
    /// The disk has no room, rather than a fault of one file.
    pub(super) fn is_full(&self) -> bool {
        matches!(self.source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
    }
}

/// How a sync round went.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SyncRound {
    pub(super) files: usize,
    pub(super) took: Duration,
}

/// The chunk files of one buffer.
pub(super) struct FileStore {
    pub(super) storage: Arc<dyn Storage>,
    pub(super) places: Places,
    pub(super) fsync: Fsync,
    pub(super) open: OpenFiles,
    /// Written since their last sync.
    pub(super) dirty: HashSet<ChunkId>,
    /// Files were created since the last sync of the directory.
    pub(super) directory_dirty: bool,
    /// The journal in use.
    pub(super) journal: Option<Journal>,
    /// This round writes to the journal.
    pub(super) journaling: bool,
    /// Journals that take nothing more; they go when the files of their chunks are synced.
    pub(super) retired: Vec<Journal>,
    failed: Vec<StoreError>,
    /// Number of the next journal.
    pub(super) next_journal: u64,
    /// See [`JOURNAL_ABOVE_FILES`]; a field so that tests reach the journal with few files.
    pub(super) journal_above_files: usize,
    /// Held while the buffer lives.
    _lock: Box<dyn Any + Send>,
}

impl FileStore {
    pub(super) fn new(
        storage: Arc<dyn Storage>,
        places: Places,
        fsync: Fsync,
        lock: Box<dyn Any + Send>,
    ) -> Self {
        Self {
            storage,
            places,
            fsync,
            open: OpenFiles::default(),
            dirty: HashSet::new(),
            directory_dirty: false,
            journal: None,
            journaling: false,
            retired: Vec::new(),
            failed: Vec::new(),
            next_journal: 0,
            journal_above_files: JOURNAL_ABOVE_FILES,
            _lock: lock,
        }
    }

    /// Writes a job. After an error the file must be undone to `job.end`.
    pub(super) fn write(&mut self, job: &WriteJob<'_>) -> Result<Written, StoreError> {
        let beginning =
            job.head.as_ref().map(|head| format::encode_beginning(job.id, head)).unwrap_or_default();
        let frames = frames(job.id, job.end + beginning.len() as u64, job.parts, job.now_ms);
        let end = frames.end;
        let seal = (job.seal && !active(Mutation::NoSeal)).then(|| {
            let mut totals = job.totals;
            totals.frames += frames.headers.len() as u64;
            for part in job.parts {
                totals.events += part.events as u64;
                totals.bytes += part.payload.len() as u64;
            }
            format::encode_seal(job.id, end, totals, job.now_ms)
        });
        let mut slices = Vec::with_capacity(2 + frames.headers.len() + job.parts.len());
        slices.push(IoSlice::new(&beginning));
        for (header, members) in frames.headers.iter().zip(&frames.members) {
            slices.push(IoSlice::new(header));
            for part in &job.parts[members.clone()] {
                if let Some(sender) = stored_sender(part) {
                    slices.push(IoSlice::new(sender));
                }
                slices.push(IoSlice::new(&part.payload));
            }
        }
        if let Some(seal) = &seal {
            slices.push(IoSlice::new(seal));
        }
        if self.journaling
            && let Some(journal) = &mut self.journal
            && let Err(error) = journal.add(job.id, job.end, &slices)
        {
            return Err(self.give_up_journal("write to journal", error));
        }
        self.write_slices(job, &mut slices)?;
        let seal_bytes = seal.map_or(0, |_| SEAL_BYTES as u64);
        Ok(Written { end: end + seal_bytes, frames: frames.headers.len() as u64 })
    }

    fn write_slices(&mut self, job: &WriteJob<'_>, slices: &mut [IoSlice<'_>]) -> Result<(), StoreError> {
        let path = self.places.chunk(State::Staged, job.id);
        let failed = |action, source| StoreError {
            action,
            path: path.display().to_string(),
            source,
            chunk: Some(job.id),
        };
        if job.head.is_some() {
            let file = self.storage.create_new(&path).map_err(|error| failed("create", error))?;
            self.directory_dirty = true;
            self.open.insert(job.id, file);
        }
        self.dirty.insert(job.id);
        let file = match self.open.get(job.id) {
            Some(file) => file,
            None => {
                let file = self.storage.open(&path).map_err(|error| failed("open", error))?;
                self.open.insert(job.id, file)
            }
        };
        file.write_at(slices, job.end).map_err(|error| failed("write to", error))
    }

    /// Takes back what a failed round wrote: cuts the file to `end`, or removes it when it did not exist before.
    /// `false`: the file keeps bytes behind its end and must not be written to again.
    pub(super) fn undo(&mut self, id: ChunkId, end: u64) -> bool {
        let path = self.places.chunk(State::Staged, id);
        if end == 0 {
            self.open.remove(id);
            self.dirty.remove(&id);
            self.forget_in_journals(id);
            // What cannot be removed is an unconfirmed chunk: start-up delivers it, at worst once too often.
            let _ = self.storage.unlink(&path);
            return true;
        }
        let cut = match self.open.get(id) {
            Some(file) => file.truncate(end),
            None => self.storage.open(&path).and_then(|mut file| file.truncate(end)),
        };
        cut.is_ok()
    }

    /// Ends a round: with `fsync ack`, everything written so far is on stable storage afterwards.
    pub(super) fn end_round(&mut self) -> Result<SyncRound, StoreError> {
        match self.fsync {
            Fsync::Ack if self.journaling => self.sync_journal(),
            Fsync::Ack if !self.dirty.is_empty() => self.sync(),
            _ => Ok(SyncRound::default()),
        }
    }

    /// Syncs every dirty file and, if files were created, the directory. Files whose sync failed: [`Self::take_failed`].
    pub(super) fn sync(&mut self) -> Result<SyncRound, StoreError> {
        let started = Instant::now();
        let mut ids: Vec<ChunkId> = self.dirty.iter().copied().collect();
        // A set order, so that the crash test sees the same calls for the same seed.
        ids.sort_unstable();
        for id in &ids {
            let path = self.places.chunk(State::Staged, *id);
            let failed = |source| StoreError {
                action: "sync",
                path: path.display().to_string(),
                source,
                chunk: Some(*id),
            };
            let synced = match self.open.get(*id) {
                Some(file) => file.sync_data(),
                None => self.reopen(*id).and_then(|mut file| file.sync_data()),
            };
            self.dirty.remove(id);
            if let Err(error) = synced {
                // Never again on this descriptor: it would succeed without the pages that were dropped.
                self.open.remove(*id);
                self.failed.push(failed(error));
            }
        }
        self.sync_directory()?;
        Ok(SyncRound { files: ids.len(), took: started.elapsed() })
    }

    /// Files whose sync failed since the last call.
    pub(super) fn take_failed(&mut self) -> Vec<StoreError> {
        std::mem::take(&mut self.failed)
    }

    /// Opens a chunk's file under whichever name it has.
    pub(super) fn reopen(&self, id: ChunkId) -> io::Result<Box<dyn StorageFile>> {
        match self.storage.open(&self.places.chunk(State::Staged, id)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.storage.open(&self.places.chunk(State::Queued, id))
            }
            opened => opened,
        }
    }

    pub(super) fn sync_directory(&mut self) -> Result<(), StoreError> {
        if self.directory_dirty && !active(Mutation::NoDirectorySync) {
            self.storage.sync_dir(&self.places.directory).map_err(|source| StoreError {
                action: "sync directory",
                path: self.places.directory.display().to_string(),
                source,
                chunk: None,
            })?;
        }
        self.directory_dirty = false;
        Ok(())
    }

    /// Whether something waits for a sync.
    pub(super) fn is_dirty(&self) -> bool {
        !self.dirty.is_empty() || self.directory_dirty
    }

    /// The chunk takes no more frames: its file needs no descriptor any more.
    pub(super) fn close(&mut self, id: ChunkId) {
        if !self.dirty.contains(&id) {
            self.open.remove(id);
        }
    }

    /// Staged -> queued: the one rename.
    pub(super) fn rename_to_queued(&mut self, id: ChunkId) -> io::Result<()> {
        self.storage.rename(&self.places.chunk(State::Staged, id), &self.places.chunk(State::Queued, id))
    }

    /// With `fsync ack`, brings renames to stable storage that stand for a seal.
    pub(super) fn sync_names(&mut self) -> Result<(), StoreError> {
        self.directory_dirty = true;
        if self.fsync == Fsync::Ack { self.sync_directory() } else { Ok(()) }
    }

    /// Removes a chunk's file. Its absence is no error.
    pub(super) fn unlink(&mut self, id: ChunkId, state: State) -> io::Result<()> {
        self.open.remove(id);
        self.dirty.remove(&id);
        self.forget_in_journals(id);
        match self.storage.unlink(&self.places.chunk(state, id)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            done => done,
        }
    }
}

/// Encoded frames of a job: each header serves the parts of one range.
pub(super) struct Frames {
    pub(super) headers: Vec<[u8; FRAME_HEADER_BYTES]>,
    members: Vec<std::ops::Range<usize>>,
    end: u64,
}

/// The sender chunk id as far as it is stored.
fn stored_sender(part: &Part) -> Option<&Bytes> {
    part.sender_chunk.as_ref().filter(|sender| sender.len() <= format::SENDER_CHUNK_LIMIT_BYTES)
}

pub(super) fn frames(id: ChunkId, offset: u64, parts: &[Part], now_ms: u64) -> Frames {
    let mut out = Frames { headers: Vec::with_capacity(parts.len()), members: Vec::new(), end: offset };
    let mut at = 0;
    while let Some(first) = parts.get(at) {
        let mut next = at + 1;
        let mut payload_bytes = first.payload.len();
        let mut events = first.events;
        let sender = stored_sender(first);
        let mut crc = sender.map_or(0, |sender| crc32c::crc32c(sender));
        crc = crc32c::crc32c_append(crc, &first.payload);
        while let Some(part) = parts.get(next).filter(|part| {
            sender.is_none()
                && stored_sender(part).is_none()
                && payload_bytes + part.payload.len() <= SHARED_FRAME_LIMIT_BYTES
        }) {
            payload_bytes += part.payload.len();
            events += part.events;
            crc = crc32c::crc32c_append(crc, &part.payload);
            next += 1;
        }
        let header = FrameHeader {
            kind: FrameKind::Events,
            sender_bytes: sender.map_or(0, |sender| sender.len() as u16),
            payload_bytes: u32::try_from(payload_bytes).unwrap_or(u32::MAX),
            events: u32::try_from(events).unwrap_or(u32::MAX),
            written_ms: now_ms,
            payload_crc: crc,
        };
        out.headers.push(header.encode(id, out.end));
        out.members.push(at..next);
        out.end += header.frame_bytes();
        at = next;
    }
    out
}

/// Open chunk files, the least recently used one gives way.
#[derive(Default)]
pub(super) struct OpenFiles {
    files: HashMap<ChunkId, (u64, Box<dyn StorageFile>)>,
    clock: u64,
}

impl OpenFiles {
    pub(super) fn get(&mut self, id: ChunkId) -> Option<&mut dyn StorageFile> {
        self.clock += 1;
        let (used, file) = self.files.get_mut(&id)?;
        *used = self.clock;
        Some(file.as_mut())
    }

    fn insert(&mut self, id: ChunkId, file: Box<dyn StorageFile>) -> &mut dyn StorageFile {
        if self.files.len() >= OPEN_FILES_LIMIT
            && !self.files.contains_key(&id)
            && let Some(oldest) = self.files.iter().min_by_key(|(_, (used, _))| *used).map(|(id, _)| *id)
        {
            self.files.remove(&oldest);
        }
        self.clock += 1;
        let slot = self.files.entry(id).insert_entry((self.clock, file)).into_mut();
        slot.1.as_mut()
    }

    pub(super) fn remove(&mut self, id: ChunkId) {
        self.files.remove(&id);
    }
}
