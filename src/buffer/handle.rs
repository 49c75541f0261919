//! What the other stations see of a buffer.

use std::fmt;
use std::time::SystemTime;

use bytes::Bytes;

use super::Metadata;

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

/// A chunk that a flush task has taken. Its bytes are a msgpack stream of `[time, record]` pairs.
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
}

/// The way into one buffer; cheap to clone.
#[derive(Clone)]
pub struct BufferHandle {}

impl BufferHandle {
    /// Stores the arrivals; resolves when each is as safe as the `fsync` setting asks. One answer per arrival.
    /// Waits (bounded) while the channel is full; `overflow_action block` also waits here.
    pub async fn append(&self, _appends: Vec<Append>) -> Vec<Result<(), AppendError>> {
        unreachable!("replaced by the buffer's builder")
    }

    /// The next queued chunk, oldest first; waits for one. `None` once the buffer is closed and drained or stopped.
    /// A chunk that cannot be read is set aside by the buffer and never returned.
    pub async fn take(&self) -> Option<std::sync::Arc<Chunk>> {
        unreachable!("replaced by the buffer's builder")
    }

    /// The chunk was delivered: it is deleted.
    pub fn commit(&self, _id: ChunkId) {}

    /// The chunk was not delivered: it goes back to the head of the queue.
    pub fn rollback(&self, _id: ChunkId) {}

    /// The chunk goes aside (unrecoverable, retries at their limit): copied to the backup directory as one file of
    /// plain msgpack events, then deleted; a failed copy keeps it queued.
    pub fn set_aside(&self, _id: ChunkId, _reason: String) {}

    /// Every staged chunk becomes queued (SIGUSR1, flush at shutdown).
    pub fn enqueue_all(&self) {}

    /// Figures for monitor_agent, prometheus and the last line.
    pub fn stats(&self) -> BufferStats {
        BufferStats::default()
    }

    /// Refuses appends from now on; stored chunks stay. `take` goes on while `flush` is set, then ends.
    pub async fn close(&self, _flush: bool) {}
}
