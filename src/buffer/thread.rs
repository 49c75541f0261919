//! The thread that owns a buffer. It takes everything that waits in its inbox, runs one round of the engine, answers,
//! and meanwhile the inbox fills again: that is the group commit.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::engine::{Engine, Enqueue, Now, Outcome};
use super::queue::Queue;
use super::reader::Reader;
use super::{Append, AppendError, ChunkId, Fsync, OverflowAction};

/// Most bytes of arrivals that wait for or are in a round; more wait at the handle.
const INBOX_LIMIT_KIB: usize = 16 << 10;
/// How long a queued chunk keeps its staged name: one that is delivered within this time is unlinked without rename.
const RENAME_AFTER: Duration = Duration::from_millis(250);

/// How often to look for journals that can go.
const RETIRE_EVERY: Duration = Duration::from_secs(1);

/// What the handle asks of the thread.
pub(super) enum Request {
    /// Store arrivals.
    Append {
        appends: Vec<Append>,
        reply: oneshot::Sender<Vec<Result<(), AppendError>>>,
        permit: OwnedSemaphorePermit,
    },
    /// A taken chunk was delivered.
    Commit(ChunkId),
    /// A taken chunk cannot be read.
    Unreadable(ChunkId),
    /// A taken chunk goes to the backup directory.
    SetAside(ChunkId, String),
    /// Queue everything staged.
    EnqueueAll,
    /// A taken chunk waits again.
    PutBack,
    /// Refuse appends from now on.
    Close { flush: bool, reply: oneshot::Sender<()> },
}

/// Requests that wait for the thread.
pub(super) struct Inbox {
    state: Mutex<InboxState>,
    arrived: Condvar,
    room: Arc<Semaphore>,
}

#[derive(Default)]
struct InboxState {
    requests: VecDeque<Request>,
    ended: bool,
}

impl Inbox {
    fn new() -> Self {
        Self {
            state: Mutex::default(),
            arrived: Condvar::new(),
            room: Arc::new(Semaphore::new(INBOX_LIMIT_KIB)),
        }
    }

    fn lock(&self) -> MutexGuard<'_, InboxState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for room for an arrival of so many bytes; one above the whole limit waits until it is alone.
    pub(super) async fn room_for(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let kib = (bytes / 1024 + 1).min(INBOX_LIMIT_KIB);
        Arc::clone(&self.room).acquire_many_owned(u32::try_from(kib).ok()?).await.ok()
    }

    /// Hands a request over. Bounded: appends by [`Self::room_for`], the others by the number of chunks.
    pub(super) fn push(&self, request: Request) {
        let mut state = self.lock();
        // After the end nobody answers: dropping the request tells its sender.
        if !state.ended {
            state.requests.push_back(request);
            drop(state);
            self.arrived.notify_one();
        }
    }

    fn end(&self) {
        self.lock().ended = true;
        self.arrived.notify_one();
    }

    /// Everything that waits, at the latest at `deadline`; and whether the last handle is gone.
    fn wait(&self, deadline: Option<Instant>) -> (VecDeque<Request>, bool) {
        let mut state = self.lock();
        loop {
            if !state.requests.is_empty() || state.ended {
                return (std::mem::take(&mut state.requests), state.ended);
            }
            state = match deadline.map(|at| at.saturating_duration_since(Instant::now())) {
                None => self.arrived.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(Duration::ZERO) => return (VecDeque::new(), false),
                Some(left) => {
                    self.arrived.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }
}

/// What all handles of a buffer share.
pub(super) struct ThreadLink {
    pub(super) inbox: Arc<Inbox>,
    pub(super) queue: Arc<Queue>,
    pub(super) reader: Option<Reader>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for ThreadLink {
    fn drop(&mut self) {
        self.inbox.end();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed by its hook.
            let _ = thread.join();
        }
    }
}

/// Starts the thread of an engine.
pub(super) fn start(engine: Engine, epoch: Instant) -> std::io::Result<ThreadLink> {
    let inbox = Arc::new(Inbox::new());
    let queue = Arc::clone(&engine.queue);
    let reader = engine.reader();
    let owner = Owner {
        period: engine.config.flush.period(),
        next_look: engine.config.flush.period().map(|period| epoch + period),
        engine,
        inbox: Arc::clone(&inbox),
        epoch,
        arrivals: VecDeque::new(),
        closed: false,
        next_rename: None,
        next_sync: None,
        next_retire: None,
    };
    let thread = std::thread::Builder::new().name("buffer".into()).spawn(move || owner.run())?;
    Ok(ThreadLink { inbox, queue, reader, thread: Some(thread) })
}

/// An append request until all its arrivals have an answer.
struct Arrival {
    results: Vec<Option<Result<(), AppendError>>>,
    /// Not yet answered, with their place in `results`.
    open: Vec<(usize, Append)>,
    reply: oneshot::Sender<Vec<Result<(), AppendError>>>,
    /// Until when it may wait for space.
    deadline: Instant,
    _permit: OwnedSemaphorePermit,
}

/// The thread's state.
struct Owner {
    engine: Engine,
    inbox: Arc<Inbox>,
    epoch: Instant,
    /// New ones and those that wait for space, oldest first.
    arrivals: VecDeque<Arrival>,
    closed: bool,
    period: Option<Duration>,
    next_look: Option<Instant>,
    next_rename: Option<Instant>,
    next_sync: Option<Instant>,
    /// Not a reason to wake: only looked at when there is other work.
    next_retire: Option<Instant>,
}

impl Owner {
    fn run(mut self) {
        loop {
            let (requests, ended) = self.inbox.wait(self.next_wake());
            self.serve(requests);
            if ended {
                break;
            }
        }
        self.engine.rename_waiting();
        self.engine.finish();
    }

    fn next_wake(&self) -> Option<Instant> {
        let space = self.arrivals.front().map(|arrival| arrival.deadline);
        [self.next_look, self.next_rename, self.next_sync, space].into_iter().flatten().min()
    }

    fn serve(&mut self, requests: VecDeque<Request>) {
        let mut enqueue = Enqueue::Touched;
        let mut done: Vec<oneshot::Sender<()>> = Vec::new();
        let mut closing = None;
        for request in requests {
            match request {
                Request::Append { appends, reply, permit } => self.arrive(appends, reply, permit),
                Request::Commit(id) => self.engine.commit(id),
                Request::Unreadable(id) => self.engine.set_unreadable_aside(id),
                Request::SetAside(id, reason) => self.engine.set_aside(id, &reason),
                Request::EnqueueAll => enqueue = Enqueue::All,
                Request::PutBack => self.engine.published = true,
                Request::Close { flush, reply } => {
                    closing = Some(flush);
                    self.closed = true;
                    done.push(reply);
                }
            }
        }
        if closing == Some(true) {
            enqueue = Enqueue::All;
        }
        let now = Instant::now();
        if self.next_look.is_some_and(|at| at <= now) {
            self.next_look = self.period.map(|period| now + period);
            if enqueue == Enqueue::Touched {
                enqueue = Enqueue::Due;
            }
        }
        self.round(enqueue, now);
        if let Some(flush) = closing {
            self.close(flush);
        }
        self.keep_house(now);
        for reply in done {
            let _ = reply.send(());
        }
    }

    fn arrive(
        &mut self,
        appends: Vec<Append>,
        reply: oneshot::Sender<Vec<Result<(), AppendError>>>,
        permit: OwnedSemaphorePermit,
    ) {
        if self.closed {
            let _ = reply.send(appends.iter().map(|_| Err(AppendError::Closed)).collect());
            return;
        }
        self.arrivals.push_back(Arrival {
            results: appends.iter().map(|_| None).collect(),
            open: appends.into_iter().enumerate().collect(),
            reply,
            deadline: Instant::now() + self.engine.config.block_limit,
            _permit: permit,
        });
    }

    /// One round with all arrivals that have no answer yet.
    fn round(&mut self, enqueue: Enqueue, now: Instant) {
        let mut appends = Vec::new();
        let mut places = Vec::new();
        for (at, arrival) in self.arrivals.iter_mut().enumerate() {
            for (place, append) in arrival.open.drain(..) {
                appends.push(append);
                places.push((at, place));
            }
        }
        if appends.is_empty() && enqueue == Enqueue::Touched {
            return;
        }
        let time = Now { wall: SystemTime::now(), monotonic: now.saturating_duration_since(self.epoch) };
        let outcomes = self.engine.round(appends, enqueue, time);
        let waits = self.engine.config.overflow_action == OverflowAction::Block && !self.closed;
        for ((at, place), outcome) in places.into_iter().zip(outcomes) {
            let Some(arrival) = self.arrivals.get_mut(at) else { continue };
            let result = match outcome {
                Outcome::Stored => Ok(()),
                Outcome::Refused(error) => Err(error),
                Outcome::NoSpace(append) if waits && arrival.deadline > now => {
                    arrival.open.push((place, append));
                    continue;
                }
                Outcome::NoSpace(_) => Err(AppendError::Overflow),
            };
            if let Some(slot) = arrival.results.get_mut(place) {
                *slot = Some(result);
            }
        }
        for arrival in std::mem::take(&mut self.arrivals) {
            if arrival.open.is_empty() {
                let missing = || Err(AppendError::Closed);
                let results = arrival.results.into_iter().map(|result| result.unwrap_or_else(missing));
                // A sender that has gone does not want to know.
                let _ = arrival.reply.send(results.collect());
            } else {
                self.arrivals.push_back(arrival);
            }
        }
    }

    fn close(&mut self, flush: bool) {
        self.engine.sync();
        self.engine.queue.lock().closing = Some(flush);
        self.engine.queue.announce();
    }

    /// What can wait until the answers are out.
    fn keep_house(&mut self, now: Instant) {
        if self.next_rename.is_some_and(|at| at <= now) {
            self.engine.rename_waiting();
            self.next_rename = None;
        }
        if std::mem::take(&mut self.engine.published) {
            self.next_rename = self.next_rename.or(Some(now + RENAME_AFTER));
        }
        if self.next_retire.is_none_or(|at| at <= now) {
            self.next_retire = Some(now + RETIRE_EVERY);
            self.engine.retire_journals(false);
        }
        if let Some(Fsync::Interval(interval)) = self.engine.fsync() {
            if self.next_sync.is_some_and(|at| at <= now) {
                self.engine.sync();
                self.next_sync = None;
            }
            if self.next_sync.is_none() && self.engine.is_dirty() {
                self.next_sync = Some(now + interval);
            }
        }
    }
}
