//! Reading a chunk back from its file, for takers and for the backup directory. What cannot be read goes to a side file.

use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::ChunkId;
use super::format::{self, Totals};
use super::places::{Places, State};
use super::storage::{Storage, create_directories};

/// Chunks of one buffer that are read back and not yet delivered hold at most so many bytes; a larger one goes alone.
/// With a backlog, every flush task would otherwise hold a chunk of full size.
const READ_BACK_KIB: usize = 8 << 10;
/// Address space set aside for a large chunk: glibc maps what is above 32 MiB by itself and unmaps it when it is freed.
/// From a thread's heap a few MiB would stay behind in the heap of each thread that ever read a chunk (measured: 8 MiB
/// in each of three). Pages that are not written take no memory.
const OWN_MAPPING_BYTES: usize = 33 << 20;
/// From this size on a chunk is large.
const LARGE_BYTES: u64 = 1 << 20;
/// How long a flush waits for others to give theirs back. Then it goes on without: chunks that hang on a lost upstream
/// must not hold up those for the others. Memory is then bounded by the number of flush tasks.
const READ_BACK_WAIT: Duration = Duration::from_millis(500);

/// Reads chunk files; cheap to clone, usable from any thread that may block.
#[derive(Clone)]
pub(super) struct Reader {
    pub(super) storage: Arc<dyn Storage>,
    pub(super) places: Places,
    room: Arc<Semaphore>,
    spare: Arc<Spare>,
}

/// Memory of the last large chunk read back, for the next one while there is a backlog: new memory would be faulted in
/// page by page.
type Spare = Mutex<Vec<u8>>;

/// Locked access; a spare cannot be left half made.
fn lock(spare: &Spare) -> MutexGuard<'_, Vec<u8>> {
    spare.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A file in memory with its share of [`READ_BACK_KIB`], which is given back with the last slice of it.
struct Held {
    bytes: Vec<u8>,
    spare: Arc<Spare>,
    room: Option<OwnedSemaphorePermit>,
}

impl Drop for Held {
    fn drop(&mut self) {
        // One that has no room of its own is beyond the bound.
        if self.room.is_some() && self.bytes.capacity() == OWN_MAPPING_BYTES {
            *lock(&self.spare) = std::mem::take(&mut self.bytes);
        }
    }
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// The content of a chunk file.
#[derive(Debug)]
pub(super) struct Content {
    /// Events, in order.
    pub(super) payload: Vec<Bytes>,
    pub(super) totals: Totals,
    /// Bytes that could not be read.
    pub(super) damaged_bytes: u64,
}

impl Reader {
    /// A reader of a buffer's directory.
    pub(super) fn new(storage: Arc<dyn Storage>, places: Places) -> Self {
        Self { storage, places, room: Arc::new(Semaphore::new(READ_BACK_KIB)), spare: Arc::default() }
    }

    /// Nothing waits any more: memory for the next chunk is not held.
    pub(super) fn rest(&self) {
        *lock(&self.spare) = Vec::new();
    }

    /// Waits until a chunk of so many bytes may be read back; `None` when that took too long.
    pub(super) async fn room_for(&self, bytes: u64) -> Option<OwnedSemaphorePermit> {
        let kib = usize::try_from(bytes / 1024).map_or(READ_BACK_KIB, |kib| (kib + 1).min(READ_BACK_KIB));
        let wait = Arc::clone(&self.room).acquire_many_owned(u32::try_from(kib).ok()?);
        tokio::time::timeout(READ_BACK_WAIT, wait).await.ok()?.ok()
    }

    /// Reads the file of a chunk that holds about so many bytes. Damage is set aside and told; the readable rest is the
    /// content, which holds `room`.
    pub(super) fn read(
        &self,
        id: ChunkId,
        renamed: bool,
        size_bytes: u64,
        room: Option<OwnedSemaphorePermit>,
    ) -> io::Result<Content> {
        let path = self.places.chunk(if renamed { State::Queued } else { State::Staged }, id);
        let mut bytes = Vec::new();
        if size_bytes >= LARGE_BYTES {
            bytes = std::mem::take(&mut *lock(&self.spare));
            bytes.clear();
            bytes.reserve_exact(OWN_MAPPING_BYTES);
        }
        self.storage.read_into(&path, 0, u64::MAX, &mut bytes)?;
        let file = Bytes::from_owner(Held { bytes, spare: Arc::clone(&self.spare), room });
        let scan = format::scan(id, &file);
        let damaged_bytes = scan.damaged.iter().map(|range| range.len() as u64).sum();
        if damaged_bytes > 0 {
            tracing::error!(
                path = %path.display(),
                damaged_bytes,
                readable_events = scan.totals().events,
                side_files = %self.places.damaged().display(),
                "found broken chunk file, its readable part is delivered, the rest is set aside"
            );
            if let Err(error) = self.set_damage_aside(id, &file, &scan.damaged) {
                tracing::error!(path = %path.display(), error = %error, "cannot set damaged bytes aside");
            }
        }
        let payload = scan.frames.iter().map(|frame| file.slice(frame.payload.clone())).collect();
        Ok(Content { payload, totals: scan.totals(), damaged_bytes })
    }

    /// Copies damaged ranges of a chunk file into its side file, each after a line that says where it stood. Ranges of
    /// zeros (a hole that a power failure left) hold nothing and are left out. An existing side file is kept: the
    /// damage was copied before.
    pub(super) fn set_damage_aside(
        &self,
        id: ChunkId,
        file: &[u8],
        ranges: &[Range<usize>],
    ) -> io::Result<()> {
        let mut aside = Vec::new();
        for range in ranges {
            let bytes = file.get(range.clone()).unwrap_or_default();
            if bytes.iter().any(|byte| *byte != 0) {
                aside.extend_from_slice(format!("offset={} bytes={}\n", range.start, bytes.len()).as_bytes());
                aside.extend_from_slice(bytes);
                aside.push(b'\n');
            }
        }
        if aside.is_empty() {
            return Ok(());
        }
        let path = self.side_file(&format!("{id}.damage"))?;
        match self.storage.create_new(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(error) => Err(error),
            Ok(mut file) => {
                file.write_at(&mut [io::IoSlice::new(&aside)], 0)?;
                file.sync_data()?;
                self.storage.sync_dir(&self.places.damaged())
            }
        }
    }

    /// Moves a whole file to the side directory.
    pub(super) fn set_file_aside(&self, name: &str) -> io::Result<PathBuf> {
        let to = self.side_file(name)?;
        self.storage.rename(&self.places.directory.join(name), &to)?;
        Ok(to)
    }

    fn side_file(&self, name: &str) -> io::Result<PathBuf> {
        let directory = self.places.damaged();
        create_directories(self.storage.as_ref(), &directory)?;
        Ok(directory.join(name))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use futures_util::FutureExt as _;

    use super::*;
    use crate::buffer::storage::DiskStorage;

    fn reader(directory: &Path) -> Reader {
        let storage = DiskStorage { file_permission: 0o644, dir_permission: 0o755 };
        Reader::new(Arc::new(storage), Places::new(directory, false))
    }

    #[tokio::test]
    async fn room_is_bounded_and_waited_for_only_a_while() {
        let reader = reader(Path::new("/nowhere"));
        let first = reader.room_for(5 << 20).await.unwrap();
        assert!(reader.room_for(5 << 20).now_or_never().is_none(), "two large chunks at once");
        assert!(reader.room_for(1 << 20).now_or_never().flatten().is_some());
        assert!(reader.room_for(5 << 20).await.is_none(), "a held chunk holds up others for ever");
        drop(first);
        let alone = reader.room_for(1 << 40).now_or_never().flatten();
        assert!(alone.is_some(), "a chunk above the whole bound goes alone");
    }

    #[tokio::test]
    async fn a_large_chunk_leaves_its_memory_to_the_next_until_nothing_waits() {
        let directory = tempfile::tempdir().unwrap();
        let (reader, id) = (reader(directory.path()), ChunkId([7; 16]));
        std::fs::write(reader.places.chunk(State::Queued, id), [0; 4096]).unwrap();
        let spare = || lock(&reader.spare).capacity();
        let room = reader.room_for(1).await;
        drop(reader.read(id, true, 4096, room).unwrap());
        assert_eq!(spare(), 0, "a small one has none");
        for _ in 0..2 {
            let room = reader.room_for(LARGE_BYTES).await;
            drop(reader.read(id, true, LARGE_BYTES, room).unwrap());
            assert_eq!(spare(), OWN_MAPPING_BYTES);
        }
        reader.rest();
        assert_eq!(spare(), 0);
    }
}
