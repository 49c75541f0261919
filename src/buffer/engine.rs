//! The buffer's decisions: admission, staging, rounds, queueing, purging. Synchronous and without a clock of its own, so
//! that the crash test drives the same code as the thread.
//!
//! A round: arrivals are admitted and placed (nothing written yet), due chunks are closed, then everything is written with
//! one call per chunk, synced as a group, and only then confirmed and published. A failed round is undone as a whole.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::chunk::{Kept, Queued, QueuedFile};
use super::files::{FileStore, Part, StoreError, WriteJob};
use super::flush::ChunkFacts;
use super::format::{self, Head, Totals};
use super::limits::{ChunkLimits, Placement, Size};
use super::metadata::StageKey;
use super::places::State;
use super::queue::Queue;
use super::report::Reporter;
use super::{Append, AppendError, BufferConfig, ChunkId, FlushMode, Metadata, OverflowAction};

/// Up to so many staged chunks, ages are told after every round rather than at every look.
const FEW_CHUNKS: usize = 64;

/// The time, handed in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Now {
    /// Wall clock: creation times, time keys.
    pub(super) wall: SystemTime,
    /// Monotonic, since any fixed moment: ages.
    pub(super) monotonic: Duration,
}

/// Which staged chunks a round queues beside the full ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Enqueue {
    /// None (in immediate mode: those that got something).
    Touched,
    /// Those that the flush rules call due.
    Due,
    /// All.
    All,
}

/// What became of one arrival.
#[derive(Debug)]
pub(super) enum Outcome {
    /// Stored, as safe as the `fsync` setting asks.
    Stored,
    /// Not stored.
    Refused(AppendError),
    /// The buffer is full; here it is back.
    NoSpace(Append),
}

/// A chunk that collects.
pub(super) struct Staged {
    pub(super) id: ChunkId,
    pub(super) key: StageKey,
    pub(super) metadata: Arc<Metadata>,
    pub(super) created_at: SystemTime,
    /// `created_at` on the monotonic clock; before its zero for chunks of an earlier run: `age` is added then.
    pub(super) created_monotonic: Duration,
    /// Age at `created_monotonic`.
    pub(super) age: Duration,
    /// What is confirmed.
    pub(super) stored: Totals,
    /// Where the confirmed part of the file ends; 0: no file yet.
    pub(super) end: u64,
    pub(super) kept: Option<Kept>,
    /// This round's parts and their size.
    pub(super) pending: Vec<Part>,
    pub(super) pending_size: Size,
    /// Frames and file end after this round's write.
    pub(super) written: Option<(u64, u64)>,
}

impl Staged {
    fn size(&self) -> Size {
        Size {
            bytes: self.stored.bytes + self.pending_size.bytes,
            events: self.stored.events + self.pending_size.events,
        }
    }

    fn age(&self, now: Now) -> Duration {
        self.age + now.monotonic.saturating_sub(self.created_monotonic)
    }
}

/// See the module's head.
pub(super) struct Engine {
    pub(super) config: Arc<BufferConfig>,
    pub(super) limits: ChunkLimits,
    pub(super) files: Option<FileStore>,
    pub(super) queue: Arc<Queue>,
    pub(super) stage: HashMap<StageKey, Staged>,
    /// Keys of staged chunks with pending parts.
    pub(super) touched: Vec<StageKey>,
    /// Chunks that this round queues.
    pub(super) closing: Vec<Staged>,
    /// Chunks that are queued without a seal: their files take no more writes.
    pub(super) orphans: Vec<Staged>,
    /// Confirmed and pending bytes in the stage.
    pub(super) stage_bytes: u64,
    pub(super) reporter: Reporter,
    /// Chunks were queued since the thread looked last: they may need their queued name.
    pub(super) published: bool,
}

impl Engine {
    pub(super) fn new(config: Arc<BufferConfig>, files: Option<FileStore>, queue: Arc<Queue>) -> Self {
        Self {
            limits: ChunkLimits::new(&config),
            reporter: Reporter::new(&config.plugin_id),
            config,
            files,
            queue,
            stage: HashMap::new(),
            touched: Vec::new(),
            closing: Vec::new(),
            orphans: Vec::new(),
            stage_bytes: 0,
            published: false,
        }
    }

    /// Stores arrivals and queues chunks; one outcome per arrival, in order.
    pub(super) fn round(&mut self, appends: Vec<Append>, enqueue: Enqueue, now: Now) -> Vec<Outcome> {
        let mut outcomes: Vec<Outcome> = appends.into_iter().map(|append| self.admit(append, now)).collect();
        self.close_due(enqueue, now);
        match self.store(now) {
            Ok(()) => {
                self.publish_orphans();
                self.confirm();
                self.publish();
            }
            Err(error) => {
                self.reporter.storage_failed(&error);
                self.undo(&error);
                let refused = AppendError::Storage(error.to_string());
                for outcome in outcomes.iter_mut().filter(|outcome| matches!(outcome, Outcome::Stored)) {
                    *outcome = Outcome::Refused(refused.clone());
                }
            }
        }
        self.publish_figures(enqueue != Enqueue::Touched || self.stage.len() <= FEW_CHUNKS);
        outcomes
    }

    fn admit(&mut self, append: Append, now: Now) -> Outcome {
        if let Some(error) = append.parts.iter().find_map(|(_, bytes, _)| self.limits.check(bytes).err()) {
            return Outcome::Refused(error);
        }
        if self.is_full()
            && !(self.config.overflow_action == OverflowAction::DropOldestChunk && self.drop_oldest())
        {
            return Outcome::NoSpace(append);
        }
        let sender_chunk = append.sender_chunk;
        for (metadata, payload, events) in append.parts {
            if events > 0 {
                let part = Part { sender_chunk: sender_chunk.clone(), payload, events };
                self.place(&metadata, part, now);
            }
        }
        Outcome::Stored
    }

    /// At `total_limit_size` or above: one arrival may pass the limit, the next is refused.
    fn is_full(&self) -> bool {
        self.stage_bytes + self.queue.lock().bytes >= self.config.total_limit_bytes
    }

    /// Drops queued chunks until there is room; `false` if the staged and taken ones alone fill the buffer.
    fn drop_oldest(&mut self) -> bool {
        loop {
            let dropped = {
                let mut state = self.queue.lock();
                // Few are taken, many may wait: the sum goes over the few.
                let taken: u64 = state.taken.values().map(|chunk| chunk.totals.bytes).sum();
                let total = self.stage_bytes + state.bytes;
                if total < self.config.total_limit_bytes {
                    return true;
                }
                if self.stage_bytes + taken >= self.config.total_limit_bytes {
                    return false;
                }
                state.figures.dropped_chunks += 1;
                state.drop_oldest()
            };
            let Some(chunk) = dropped else { return false };
            self.reporter.dropped_oldest(&chunk);
            self.purge(&chunk);
        }
    }

    fn place(&mut self, metadata: &Metadata, part: Part, now: Now) {
        let key = StageKey::new(metadata);
        let staged = self.stage.get(&key).map(Staged::size).unwrap_or_default();
        match self.limits.place(&part.payload, part.events, staged) {
            Placement::Fits => self.push(key, metadata, part, now),
            Placement::NewChunk => {
                self.close(&key);
                self.push(key, metadata, part, now);
            }
            Placement::Cut(pieces) => {
                for (payload, events) in pieces {
                    self.close(&key);
                    let part = Part { payload, events, sender_chunk: part.sender_chunk.clone() };
                    self.push(key.clone(), metadata, part, now);
                }
            }
        }
    }

    fn push(&mut self, key: StageKey, metadata: &Metadata, part: Part, now: Now) {
        self.stage_bytes += part.payload.len() as u64;
        let file = self.files.is_some();
        let staged = match self.stage.get_mut(&key) {
            Some(staged) => staged,
            None => {
                let metadata = metadata.detached();
                let key = StageKey::new(&metadata);
                self.stage.entry(key.clone()).or_insert_with(|| new_chunk(key, metadata, file, now))
            }
        };
        if staged.pending.is_empty() {
            self.touched.push(staged.key.clone());
        }
        staged.pending_size.bytes += part.payload.len() as u64;
        staged.pending_size.events += part.events as u64;
        staged.pending.push(part);
        if self.limits.full(staged.size()) {
            self.close(&key);
        }
    }

    /// Takes a staged chunk out of the stage, to be queued by this round.
    fn close(&mut self, key: &StageKey) {
        if let Some(staged) = self.stage.remove(key) {
            self.closing.push(staged);
        }
    }

    fn close_due(&mut self, enqueue: Enqueue, now: Now) {
        let due: Vec<StageKey> = match enqueue {
            Enqueue::All => self.stage.keys().cloned().collect(),
            Enqueue::Touched if self.config.flush.mode == FlushMode::Immediate => self.touched.clone(),
            Enqueue::Touched => Vec::new(),
            Enqueue::Due => {
                let waiting = self.queue.lock().waiting.len();
                if self.config.queued_chunks_limit.is_some_and(|limit| waiting >= limit) {
                    return;
                }
                let seconds = (format::unix_ms(now.wall) / 1000) as i64;
                let facts =
                    |staged: &Staged| ChunkFacts { age: staged.age(now), timekey: staged.metadata.timekey };
                let due = |staged: &&Staged| self.config.flush.due(facts(staged), seconds);
                self.stage.values().filter(due).map(|staged| staged.key.clone()).collect()
            }
        };
        for key in due {
            self.close(&key);
        }
    }

    /// Writes and syncs what this round has placed.
    fn store(&mut self, now: Now) -> Result<(), StoreError> {
        let Some(files) = &mut self.files else { return Ok(()) };
        if self.touched.is_empty() && self.closing.is_empty() {
            return Ok(());
        }
        files.begin_round(self.touched.len() + self.closing.len())?;
        for key in &self.touched {
            if let Some(staged) = self.stage.get_mut(key) {
                write(files, staged, false, &self.config, now)?;
            }
        }
        for staged in &mut self.closing {
            write(files, staged, true, &self.config, now)?;
        }
        let round = files.end_round()?;
        self.reporter.synced(round, &files.places);
        let failed = files.take_failed();
        self.rescue(failed, now)
    }

    /// This round's parts are stored.
    fn confirm(&mut self) {
        for key in self.touched.drain(..) {
            if let Some(staged) = self.stage.get_mut(&key) {
                confirm(staged);
            }
        }
        self.closing.iter_mut().for_each(confirm);
    }

    /// Hands the closed chunks to the takers.
    fn publish(&mut self) {
        if self.closing.is_empty() {
            return;
        }
        let mut state = self.queue.lock();
        for staged in self.closing.drain(..) {
            self.stage_bytes = self.stage_bytes.saturating_sub(staged.stored.bytes);
            if let Some(files) = &mut self.files {
                files.close(staged.id);
            }
            state.push(queued(staged, self.files.is_some()));
        }
        drop(state);
        self.published = true;
        self.queue.announce();
    }

    /// Takes a failed round back. Chunks that were to be queued are queued with what was confirmed before.
    fn undo(&mut self, error: &StoreError) {
        for key in std::mem::take(&mut self.touched) {
            let Some(mut staged) = self.stage.remove(&key) else { continue };
            let intact = self.undo_chunk(&mut staged);
            // A file that could not be cut, or that fails by itself, is not written to again.
            let broken = error.chunk == Some(staged.id) && !error.is_full();
            if staged.stored.events == 0 {
                continue;
            }
            if intact && !broken {
                self.stage.insert(key, staged);
            } else {
                self.orphans.push(staged);
            }
        }
        for mut staged in std::mem::take(&mut self.closing) {
            self.undo_chunk(&mut staged);
            if staged.stored.events > 0 {
                self.orphans.push(staged);
            }
        }
        if let Some(files) = &mut self.files {
            for error in files.take_failed() {
                self.reporter.sync_failed(&error);
            }
        }
        self.publish_orphans();
    }

    fn undo_chunk(&mut self, staged: &mut Staged) -> bool {
        self.stage_bytes = self.stage_bytes.saturating_sub(staged.pending_size.bytes);
        staged.pending.clear();
        staged.pending_size = Size::default();
        staged.written = None;
        self.files.as_mut().is_none_or(|files| files.undo(staged.id, staged.end))
    }

    /// On a disk that takes no seal, the name alone must say that a chunk is complete: chunks must leave, or a full
    /// disk would stay full.
    pub(super) fn publish_orphans(&mut self) {
        if self.orphans.is_empty() {
            return;
        }
        let mut renamed = false;
        let mut ready = Vec::with_capacity(self.orphans.len());
        for staged in self.orphans.drain(..) {
            self.stage_bytes = self.stage_bytes.saturating_sub(staged.stored.bytes);
            let mut chunk = queued(staged, self.files.is_some());
            if let Some(files) = &mut self.files {
                files.close(chunk.id);
                let done = files.rename_to_queued(chunk.id).is_ok();
                chunk.file = Some(QueuedFile { renamed: done });
                renamed |= done;
            }
            ready.push(chunk);
        }
        if let Some(files) = self.files.as_mut().filter(|_| renamed)
            && let Err(error) = files.sync_names()
        {
            self.reporter.storage_failed(&error);
        }
        let mut state = self.queue.lock();
        ready.into_iter().for_each(|chunk| state.push(chunk));
        drop(state);
        self.queue.announce();
    }

    /// Deletes a chunk that is out of the queue for good.
    pub(super) fn purge(&mut self, chunk: &Queued) {
        let (Some(files), Some(file)) = (&mut self.files, chunk.file) else { return };
        let state = if file.renamed { State::Queued } else { State::Staged };
        if let Err(error) = files.unlink(chunk.id, state) {
            self.reporter.unlink_failed(&files.places.chunk(state, chunk.id), &error);
        }
    }

    /// A taken chunk was delivered.
    pub(super) fn commit(&mut self, id: ChunkId) {
        let chunk = self.queue.lock().remove_taken(id);
        if let Some(chunk) = chunk {
            self.purge(&chunk);
            // Takers that wait for the end of a drained buffer look again.
            self.queue.announce();
        }
    }
}

pub(super) fn new_chunk(key: StageKey, metadata: Metadata, file: bool, now: Now) -> Staged {
    Staged {
        id: ChunkId::generate(now.wall),
        key,
        metadata: Arc::new(metadata),
        created_at: now.wall,
        created_monotonic: now.monotonic,
        age: Duration::ZERO,
        stored: Totals::default(),
        end: 0,
        kept: Some(if file { Kept::budgeted() } else { Kept::unlimited() }),
        pending: Vec::new(),
        pending_size: Size::default(),
        written: None,
    }
}

pub(super) fn write(
    files: &mut FileStore,
    staged: &mut Staged,
    seal: bool,
    config: &BufferConfig,
    now: Now,
) -> Result<(), StoreError> {
    // A key that was closed and staged again within the round is listed twice.
    if staged.written.is_some() || (staged.pending.is_empty() && !seal) {
        return Ok(());
    }
    let head = (staged.end == 0).then(|| Head {
        plugin_id: config.plugin_id.clone(),
        created_at: staged.created_at,
        form: config.entry_form,
        metadata: (*staged.metadata).clone(),
    });
    let job = WriteJob {
        id: staged.id,
        head,
        end: staged.end,
        parts: &staged.pending,
        totals: staged.stored,
        seal,
        now_ms: format::unix_ms(now.wall),
    };
    let written = files.write(&job)?;
    staged.written = Some((written.frames, written.end));
    Ok(())
}

fn confirm(staged: &mut Staged) {
    if let Some((frames, end)) = staged.written.take() {
        staged.stored.frames += frames;
        staged.end = end;
    }
    staged.stored.bytes += staged.pending_size.bytes;
    staged.stored.events += staged.pending_size.events;
    staged.pending_size = Size::default();
    for part in staged.pending.drain(..) {
        if staged.kept.as_mut().is_some_and(|kept| !kept.push(&part.payload)) {
            staged.kept = None;
        }
    }
}

pub(super) fn queued(staged: Staged, file: bool) -> Queued {
    Queued {
        id: staged.id,
        metadata: staged.metadata,
        created_at: staged.created_at,
        totals: staged.stored,
        kept: staged.kept,
        file: file.then_some(QueuedFile { renamed: false }),
        order: 0,
    }
}
