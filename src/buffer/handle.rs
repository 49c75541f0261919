//! What the other stations see of a buffer.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use tokio::sync::oneshot;

use super::Metadata;
use super::queue::Taken;
use super::report::DiskFigures;
use super::thread::{Request, ThreadLink};

/// How long an append waits at the door of a buffer whose thread is behind (a disk that hangs) before it is refused: the
/// sender then goes elsewhere instead of waiting for ever.
const ENTRY_LIMIT: Duration = Duration::from_secs(10);

/// Waits between attempts to read a chunk back; after the last one its file is set aside.
const READ_AGAIN_AFTER: [Duration; 5] = [
    Duration::from_millis(100),
    Duration::from_secs(1),
    Duration::from_secs(5),
    Duration::from_secs(10),
    Duration::ZERO,
];

/// One arrival's share for one buffer: all parts are stored, or none is confirmed.
#[derive(Debug)]
pub struct Append {
    /// The arrival split by chunk keys; normally one part.
    pub parts: Vec<(Metadata, Bytes, usize)>,
    /// The sender's chunk id, stored in the frames.
    pub sender_chunk: Option<Bytes>,
}

/// Why events were not taken. Nothing of the arrival is confirmed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum AppendError {
    /// The buffer is at its limit and the overflow action did not make room.
    #[error("buffer space has too many data")]
    Overflow,
    /// One record is larger than a chunk may be.
    #[error("a {record_bytes} bytes record is larger than buffer chunk limit size ({limit_bytes})")]
    RecordTooLarge {
        /// Size of the record with its time.
        record_bytes: usize,
        /// `chunk_limit_size`.
        limit_bytes: u64,
    },
    /// The disk refused; the append was undone.
    #[error("buffer storage failed: {0}")]
    Storage(String),
    /// The process is going down.
    #[error("buffer is closed")]
    Closed,
}

/// 16 bytes, unique for life: microseconds and random bits, laid out as Fluentd's unique id.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChunkId(pub [u8; 16]);

impl fmt::Display for ChunkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ChunkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A chunk that a flush task has taken. Its bytes are a msgpack stream of `[time, record]` or `[tag, time, record]`
/// entries, as `BufferConfig::entry_form` says.
#[derive(Debug)]
pub struct Chunk {
    /// Its id, which travels as the forward option `chunk`.
    pub id: ChunkId,
    /// Chunk-key values.
    pub metadata: Metadata,
    /// Events in it.
    pub count: usize,
    /// Bytes of events in it.
    pub size_bytes: u64,
    /// When its first event was stored.
    pub created_at: SystemTime,
    /// The events, in order of arrival; slices of memory, checked against their CRCs when read back from disk.
    pub payload: Vec<Bytes>,
}

/// Figures of a buffer at one moment.
#[derive(Clone, Debug, Default)]
pub struct BufferStats {
    /// Staged chunks.
    pub stage_length: usize,
    /// Bytes in them.
    pub stage_bytes: u64,
    /// Queued and taken chunks.
    pub queue_length: usize,
    /// Bytes in them.
    pub queue_bytes: u64,
    /// `total_limit_size`.
    pub total_limit_bytes: u64,
    /// Time slots of the chunks, ascending, when `time` is a key.
    pub timekeys: Vec<i64>,
    /// Chunks dropped by `overflow_action drop_oldest_chunk`.
    pub dropped_chunks: u64,
    /// Creation time of the oldest chunk that is not delivered.
    pub oldest: Option<SystemTime>,
    /// What the disk did; all zero for a memory buffer.
    pub disk: DiskFigures,
}

/// The way into one buffer; cheap to clone. The buffer's thread ends when the last handle is dropped; that waits for a
/// round in progress.
#[derive(Clone)]
pub struct BufferHandle {
    pub(super) link: Arc<ThreadLink>,
}

impl BufferHandle {
    /// Stores the arrivals; resolves when each is as safe as the `fsync` setting asks. One answer per arrival.
    /// Waits (bounded) while the channel is full; `overflow_action block` also waits here.
    pub async fn append(&self, appends: Vec<Append>) -> Vec<Result<(), AppendError>> {
        let count = appends.len();
        let refuse = |error: AppendError| (0..count).map(|_| Err(error.clone())).collect::<Vec<_>>();
        if count == 0 {
            return Vec::new();
        }
        let bytes: usize = appends.iter().flat_map(|append| &append.parts).map(|part| part.1.len()).sum();
        let room = self.link.inbox.room_for(bytes);
        let permit = match tokio::time::timeout(ENTRY_LIMIT, room).await {
            Ok(Some(permit)) => permit,
            Ok(None) => return refuse(AppendError::Closed),
            Err(_) => return refuse(AppendError::Overflow),
        };
        let (reply, answer) = oneshot::channel();
        self.link.inbox.push(Request::Append { appends, reply, permit });
        answer.await.unwrap_or_else(|_| refuse(AppendError::Closed))
    }

    /// The next queued chunk, oldest first; waits for one. `None` once the buffer is closed and drained or stopped.
    /// A chunk that cannot be read is set aside by the buffer and never returned. Dropping the future puts the chunk
    /// back.
    pub async fn take(&self) -> Option<Arc<Chunk>> {
        loop {
            let changed = self.link.queue.changed();
            tokio::pin!(changed);
            // From here on no announcement is missed.
            changed.as_mut().enable();
            match self.link.queue.take() {
                Taken::Ended => return None,
                Taken::Wait => {
                    self.link.reader.as_ref().inspect(|reader| reader.rest());
                    changed.await;
                }
                Taken::Chunk(id) => {
                    let guard = PutBack { link: &self.link, id: Some(id) };
                    if let Some(chunk) = self.load(id).await {
                        guard.disarm();
                        return Some(Arc::new(chunk));
                    }
                    guard.disarm();
                    self.link.inbox.push(Request::Unreadable(id));
                }
            }
        }
    }

    /// Makes the chunk that takers see; `None` if nothing of its file can be read.
    async fn load(&self, id: ChunkId) -> Option<Chunk> {
        let (mut chunk, renamed) = {
            let mut state = self.link.queue.lock();
            let taken = state.taken.get_mut(&id)?;
            let chunk = Chunk {
                id,
                metadata: (*taken.metadata).clone(),
                count: taken.totals.events as usize,
                size_bytes: taken.totals.bytes,
                created_at: taken.created_at,
                payload: taken.kept.as_mut().map(super::chunk::Kept::parts).unwrap_or_default(),
            };
            if taken.kept.is_some() {
                return Some(chunk);
            }
            (chunk, taken.file?.renamed)
        };
        let content = self.read_back(id, renamed, chunk.size_bytes).await?;
        if content.totals.events == 0 {
            return None;
        }
        let mut state = self.link.queue.lock();
        state.correct(id, content.totals, content.damaged_bytes);
        chunk.count = content.totals.events as usize;
        chunk.size_bytes = content.totals.bytes;
        chunk.payload = content.payload;
        Some(chunk)
    }

    /// Reads a chunk's file; a failure that may pass (no descriptor left, a disk that stumbles) is not its end.
    async fn read_back(&self, id: ChunkId, renamed: bool, size_bytes: u64) -> Option<super::reader::Content> {
        for wait in READ_AGAIN_AFTER {
            let reader = self.link.reader.clone()?;
            let room = reader.room_for(size_bytes).await;
            match tokio::task::spawn_blocking(move || reader.read(id, renamed, size_bytes, room)).await {
                Ok(Ok(content)) => return Some(content),
                Ok(Err(error)) => {
                    tracing::error!(chunk_id = %id, error = %error, "cannot read a chunk back from its file");
                    if error.kind() == std::io::ErrorKind::NotFound {
                        return None;
                    }
                }
                Err(_) => return None,
            }
            tokio::time::sleep(wait).await;
        }
        None
    }

    /// The chunk was delivered: it is deleted.
    pub fn commit(&self, id: ChunkId) {
        self.link.inbox.push(Request::Commit(id));
    }

    /// The chunk was not delivered: it goes back to the head of the queue.
    pub fn rollback(&self, id: ChunkId) {
        if self.link.queue.put_back(id) {
            self.link.inbox.push(Request::PutBack);
        }
    }

    /// The chunk goes aside (unrecoverable, retries at their limit): copied to the backup directory as one file of
    /// plain msgpack events, then deleted; a failed copy keeps it queued.
    pub fn set_aside(&self, id: ChunkId, reason: String) {
        self.link.inbox.push(Request::SetAside(id, reason));
    }

    /// Every staged chunk becomes queued (SIGUSR1, flush at shutdown).
    pub fn enqueue_all(&self) {
        self.link.inbox.push(Request::EnqueueAll);
    }

    /// True while arrivals would be refused: staged and queued bytes are at `total_limit_size`. Asked for every new
    /// connection and heartbeat, so it compares two numbers.
    pub fn is_full(&self) -> bool {
        let state = self.link.queue.lock();
        state.figures.stage_bytes.saturating_add(state.bytes) >= state.figures.total_limit_bytes
    }

    /// Every chunk that waits in the queue goes aside (retries at their limit).
    pub fn set_aside_queued(&self, reason: &str) {
        while let Taken::Chunk(id) = self.link.queue.take() {
            self.set_aside(id, reason.to_owned());
        }
    }

    /// Figures for monitor_agent, prometheus and the last line.
    pub fn stats(&self) -> BufferStats {
        let state = self.link.queue.lock();
        let mut stats = state.figures.clone();
        let chunks = || state.waiting.values().chain(state.taken.values());
        stats.queue_length = state.waiting.len() + state.taken.len();
        stats.queue_bytes = state.bytes;
        stats.timekeys.extend(chunks().filter_map(|chunk| chunk.metadata.timekey));
        stats.timekeys.sort_unstable();
        stats.timekeys.dedup();
        stats.oldest = chunks().map(|chunk| chunk.created_at).chain(stats.oldest).min();
        stats
    }

    /// Refuses appends from now on; stored chunks stay. `take` goes on while `flush` is set, then ends. Resolves when
    /// everything asked for before (appends, commits) is done. To be called again with `false` after the last commit.
    pub async fn close(&self, flush: bool) {
        let (reply, done) = oneshot::channel();
        self.link.inbox.push(Request::Close { flush, reply });
        // An error means that the thread is gone, which is closed enough.
        let _ = done.await;
    }
}

/// Puts a taken chunk back when `take` is dropped before it could hand it out.
struct PutBack<'a> {
    link: &'a ThreadLink,
    id: Option<ChunkId>,
}

impl PutBack<'_> {
    fn disarm(mut self) {
        self.id = None;
    }
}

impl Drop for PutBack<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.link.queue.put_back(id);
        }
    }
}
