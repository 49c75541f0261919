//! The queue that the buffer's thread and the takers share. Short locks only; no file-system call but the one rename
//! that must not race with a taker.

use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;

use tokio::sync::Notify;

use super::chunk::Queued;
use super::format::Totals;
use super::{BufferStats, ChunkId};

/// Queue, taken chunks and figures of one buffer.
#[derive(Default)]
pub(super) struct Queue {
    state: Mutex<QueueState>,
    changed: Notify,
}

/// What the lock protects.
#[derive(Default)]
pub(super) struct QueueState {
    /// Waiting, by their place.
    pub(super) waiting: BTreeMap<u64, Queued>,
    /// Handed out.
    pub(super) taken: HashMap<ChunkId, Queued>,
    next_order: u64,
    /// Bytes in both.
    pub(super) bytes: u64,
    /// Closing: `Some(true)` until drained, `Some(false)` at once.
    pub(super) closing: Option<bool>,
    /// Bytes that takers could not read.
    pub(super) damaged_bytes: u64,
    /// Figures that the thread publishes.
    pub(super) figures: BufferStats,
}

/// What a taker finds.
pub(super) enum Taken {
    /// A chunk, now marked as taken.
    Chunk(ChunkId),
    /// Nothing yet.
    Wait,
    /// Nothing any more.
    Ended,
}

impl Queue {
    /// Locked access. A panic under this lock is impossible short of a failed allocation, so a poisoned one is used.
    pub(super) fn lock(&self) -> std::sync::MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Resolves at the next [`Self::announce`] after this call.
    pub(super) fn changed(&self) -> tokio::sync::futures::Notified<'_> {
        self.changed.notified()
    }

    /// Wakes the takers.
    pub(super) fn announce(&self) {
        self.changed.notify_waiters();
    }

    /// Takes the oldest waiting chunk.
    pub(super) fn take(&self) -> Taken {
        let mut state = self.lock();
        if state.closing == Some(false) {
            return Taken::Ended;
        }
        if let Some((_, chunk)) = state.waiting.pop_first() {
            let id = chunk.id;
            state.taken.insert(id, chunk);
            return Taken::Chunk(id);
        }
        if state.closing == Some(true) && state.taken.is_empty() { Taken::Ended } else { Taken::Wait }
    }

    /// Puts a taken chunk back to its place, which is the head.
    pub(super) fn put_back(&self, id: ChunkId) -> bool {
        let mut state = self.lock();
        let Some(chunk) = state.taken.remove(&id) else { return false };
        state.waiting.insert(chunk.order, chunk);
        drop(state);
        self.announce();
        true
    }
}

impl QueueState {
    /// Adds a chunk at the end.
    pub(super) fn push(&mut self, mut chunk: Queued) {
        chunk.order = self.next_order;
        self.next_order += 1;
        self.bytes += chunk.totals.bytes;
        self.waiting.insert(chunk.order, chunk);
    }

    /// Removes a taken chunk for good.
    pub(super) fn remove_taken(&mut self, id: ChunkId) -> Option<Queued> {
        let chunk = self.taken.remove(&id)?;
        self.bytes = self.bytes.saturating_sub(chunk.totals.bytes);
        Some(chunk)
    }

    /// Removes the oldest waiting chunk for good.
    pub(super) fn drop_oldest(&mut self) -> Option<Queued> {
        let (_, chunk) = self.waiting.pop_first()?;
        self.bytes = self.bytes.saturating_sub(chunk.totals.bytes);
        Some(chunk)
    }

    /// Corrects the size of a taken chunk after its file has been read.
    pub(super) fn correct(&mut self, id: ChunkId, totals: Totals, damaged_bytes: u64) {
        self.damaged_bytes += damaged_bytes;
        if let Some(chunk) = self.taken.get_mut(&id) {
            self.bytes = self.bytes.saturating_sub(chunk.totals.bytes) + totals.bytes;
            chunk.totals = totals;
        }
    }
}
