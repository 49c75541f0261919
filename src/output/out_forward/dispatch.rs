//! How a chunk finds an upstream: pick, connect (hedged), send, and on to the next one when that fails, all within
//! one attempt. Each upstream is tried at most once per attempt, so an attempt ends.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until};

use super::connection::{Connection, ConnectionError, Delivered, Slot};
use super::health::Evidence;
use super::message::Message;
use super::node::{Node, Roster};
use super::probe;
use super::settings::{RESOLVE_LOST_INTERVAL, Settings};
use super::upstream::{Choice, Fleet, Pick};
use crate::buffer::{Chunk, ChunkId};
use crate::net::dial::{self, DialError};
use crate::net::resolve;
use crate::output::WriteError;

/// Attempts that a chunk may end with nothing but closed connections, while others get through, until it counts as
/// refused (forward has no refusal of its own).
const CLOSED_ATTEMPTS_MAX: u32 = 3;
/// Chunks of which that is remembered; the oldest is forgotten.
const CLOSED_CHUNKS_MAX: usize = 64;

/// How soon a chunk that has to wait for its upstream asks again.
const PICK_AGAIN_AFTER: Duration = Duration::from_millis(50);

/// The running heart of the output.
#[derive(Debug)]
pub struct Dispatcher {
    /// The settings.
    pub settings: Arc<Settings>,
    /// The fleet.
    pub roster: Arc<Roster>,
    nodes: Mutex<HashMap<u64, Running>>,
    resolvers: Mutex<Vec<AbortHandle>>,
    closed_chunks: Mutex<VecDeque<ClosedChunk>>,
}

#[derive(Debug)]
struct Running {
    node: Arc<Node>,
    probe: Option<AbortHandle>,
}

#[derive(Debug)]
struct ClosedChunk {
    id: ChunkId,
    attempts: u32,
    confirmed_before: u64,
}

impl Dispatcher {
    /// A dispatcher whose servers have these addresses, in the order of the destinations. Nothing runs yet.
    pub fn new(settings: Settings, plugin_id: &str, addresses: &[Vec<SocketAddr>]) -> Self {
        let servers = settings.destinations.iter().map(|destination| destination.server.clone()).collect();
        let fleet = Fleet::new(settings.health, servers);
        let dispatcher = Self {
            settings: Arc::new(settings),
            roster: Arc::new(Roster::new(fleet, plugin_id.to_owned())),
            nodes: Mutex::new(HashMap::new()),
            resolvers: Mutex::new(Vec::new()),
            closed_chunks: Mutex::new(VecDeque::new()),
        };
        for (server, known) in addresses.iter().enumerate() {
            dispatcher.set_addresses(server, known);
        }
        dispatcher
    }

    /// Starts probes and the refreshing of names.
    pub fn start(self: &Arc<Self>) {
        for running in self.nodes().values_mut() {
            running.probe.get_or_insert_with(|| self.watch(&running.node));
        }
        let mut resolvers = self.resolvers.lock().unwrap_or_else(PoisonError::into_inner);
        for (server, destination) in self.settings.destinations.iter().enumerate() {
            if resolve::literal(&destination.host, destination.port).is_none() {
                let refresh = Arc::clone(self).refresh(server);
                resolvers.push(tokio::spawn(refresh).abort_handle());
            }
        }
    }

    /// Ends probes, look-ups and connections.
    pub fn stop(&self) {
        for resolver in self.resolvers.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            resolver.abort();
        }
        for (_, running) in self.nodes().drain() {
            retire(&running);
        }
    }

    /// Delivers a chunk.
    ///
    /// # Errors
    ///
    /// [`WriteError::Unwell`] when every usable upstream failed or there is none; [`WriteError::Refused`] when this
    /// chunk alone keeps ending connections.
    pub async fn deliver(self: &Arc<Self>, id: ChunkId, message: Message) -> Result<Delivered, WriteError> {
        let mut attempt = Attempt {
            dispatcher: self,
            message: Arc::new(message),
            tried: Vec::new(),
            refreshed: Vec::new(),
            pending: FuturesUnordered::new(),
            failure: None,
            only_closed: true,
        };
        match attempt.run().await {
            Some(delivered) => {
                self.closed_chunks().retain(|closed| closed.id != id);
                Ok(delivered)
            }
            None => {
                let reason = attempt.failure.take();
                let only_closed = attempt.only_closed && reason.is_some();
                drop(attempt);
                if only_closed && self.is_refused(id) {
                    return Err(WriteError::Refused(
                        "the connection was closed on this chunk in each attempt while other chunks got through"
                            .into(),
                    ));
                }
                let unwell = match reason {
                    Some(reason) => format!("no nodes are available: {reason}"),
                    None => "no nodes are available".into(),
                };
                Err(WriteError::Unwell(unwell))
            }
        }
    }

    /// The addresses of a server changed: new ones are probed, vanished ones get nothing new.
    pub(super) fn set_addresses(&self, server: usize, addresses: &[SocketAddr]) -> Vec<Arc<Node>> {
        // Locked first: who picks a new upstream from the fleet must find its node.
        let mut nodes = self.nodes();
        let (changes, name) = {
            let mut fleet = self.roster.fleet();
            let name = fleet.servers().get(server).map(|spec| spec.name.clone()).unwrap_or_default();
            (fleet.set_addresses(server, addresses), name)
        };
        for id in changes.removed {
            if let Some(running) = nodes.remove(&id) {
                retire(&running);
            }
        }
        let mut added = Vec::new();
        for (id, address) in changes.added {
            let (settings, roster) = (Arc::clone(&self.settings), Arc::clone(&self.roster));
            let node = Arc::new(Node::new(id, name.clone(), address, settings, roster));
            added.push(Arc::clone(&node));
            nodes.insert(id, Running { node, probe: None });
        }
        added
    }

    /// Looks a name up again and again. The last good answer stays in use while there is no other.
    async fn refresh(self: Arc<Self>, server: usize) {
        let Some(destination) = self.settings.destinations.get(server).cloned() else { return };
        let mut looked_up_at = Instant::now();
        loop {
            tokio::time::sleep(self.settings.resolve_interval.min(RESOLVE_LOST_INTERVAL)).await;
            let due = looked_up_at.elapsed() >= self.settings.resolve_interval;
            if !due && self.roster.fleet().has_rotation(server) {
                continue;
            }
            looked_up_at = Instant::now();
            match resolve::resolve(&destination.host, destination.port).await {
                Ok(addresses) => {
                    for node in self.set_addresses(server, &addresses) {
                        let handle = self.watch(&node);
                        if let Some(running) = self.nodes().get_mut(&node.id) {
                            running.probe = Some(handle);
                        }
                    }
                }
                Err(error) => {
                    if let Some(folded) = self.roster.admit(server as u64, "resolve") {
                        tracing::warn!(
                            repeated = folded, plugin_id = %self.roster.plugin_id(),
                            "{error}; the last known addresses stay in use"
                        );
                    }
                }
            }
        }
    }

    fn watch(&self, node: &Arc<Node>) -> AbortHandle {
        tokio::spawn(probe::watch(Arc::clone(node), Arc::clone(&self.roster))).abort_handle()
    }

    async fn pick(&self, exclude: &[u64]) -> Option<(Turn, Arc<Node>)> {
        let choice = loop {
            let finished = self.roster.chunk_finished.notified();
            match self.roster.pick(exclude) {
                Pick::Take(choice) => break choice,
                Pick::Nobody => return None,
                Pick::Later => {}
            }
            // Time alone changes the answer, too: an upstream becomes late.
            let _ = tokio::time::timeout(PICK_AGAIN_AFTER, finished).await;
        };
        let turn = Turn { roster: Arc::clone(&self.roster), choice };
        let node = self.nodes().get(&choice.upstream).map(|running| Arc::clone(&running.node))?;
        Some((turn, node))
    }

    /// Remembers that an attempt of this chunk met only closed connections. True when that is the chunk's own fault.
    fn is_refused(&self, id: ChunkId) -> bool {
        let confirmed = self.roster.confirmed.load(Ordering::Relaxed);
        let mut chunks = self.closed_chunks();
        if let Some(known) = chunks.iter_mut().find(|closed| closed.id == id) {
            // Nobody else got through since the last time: that says nothing about this chunk.
            if confirmed > known.confirmed_before {
                known.attempts += 1;
                known.confirmed_before = confirmed;
            }
            return known.attempts >= CLOSED_ATTEMPTS_MAX;
        }
        if chunks.len() >= CLOSED_CHUNKS_MAX {
            chunks.pop_front();
        }
        chunks.push_back(ClosedChunk { id, attempts: 1, confirmed_before: confirmed });
        false
    }

    fn nodes(&self) -> MutexGuard<'_, HashMap<u64, Running>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn closed_chunks(&self) -> MutexGuard<'_, VecDeque<ClosedChunk>> {
        self.closed_chunks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn retire(running: &Running) {
    if let Some(probe) = &running.probe {
        probe.abort();
    }
    running.node.close();
}

/// A chunk's place at an upstream; given back when dropped.
struct Turn {
    roster: Arc<Roster>,
    choice: Choice,
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.roster.fleet().release(self.choice);
        self.roster.chunk_finished.notify_waiters();
    }
}

type Dialled = (Turn, Arc<Node>, Result<Slot, DialError>);

/// One attempt to deliver one chunk.
struct Attempt<'a> {
    dispatcher: &'a Arc<Dispatcher>,
    message: Arc<Message>,
    /// Upstreams that failed in this attempt.
    tried: Vec<u64>,
    /// Upstreams that got a second connection because the first had been closed while it lay idle.
    refreshed: Vec<u64>,
    /// Connects that go on.
    pending: FuturesUnordered<BoxFuture<'static, Dialled>>,
    failure: Option<String>,
    only_closed: bool,
}

impl Attempt<'_> {
    async fn run(&mut self) -> Option<Delivered> {
        loop {
            let (turn, node, slot) = self.obtain().await?;
            node.saw_tag(&self.message.tag);
            let error = match slot.send(Arc::clone(&self.message)).await {
                Ok(delivered) => return Some(delivered),
                Err(error) => error,
            };
            let again = matches!(error, ConnectionError::Closed { reused: true });
            if again && !self.refreshed.contains(&node.id) {
                self.refreshed.push(node.id);
                self.pending.push(connect(turn, node, self.message.length));
                continue;
            }
            self.only_closed &= matches!(error, ConnectionError::Closed { .. });
            self.failed(&node, error.to_string());
        }
    }

    /// A place on a connection: a pooled one at once, else the first connect that succeeds. A connect that takes
    /// longer than the hedge delay goes on while the next upstream is tried.
    async fn obtain(&mut self) -> Option<(Turn, Arc<Node>, Slot)> {
        let mut pick_next = self.pending.is_empty();
        loop {
            if pick_next {
                match self.next().await {
                    Some((turn, node)) => {
                        if let Some(slot) = node.pooled_slot(self.message.length) {
                            self.pending.clear();
                            return Some((turn, node, slot));
                        }
                        self.pending.push(connect(turn, node, self.message.length));
                    }
                    None if self.pending.is_empty() => return None,
                    None => {}
                }
            }
            let hedge_at = Instant::now() + self.dispatcher.settings.hedge_after;
            tokio::select! {
                Some((turn, node, result)) = self.pending.next() => match result {
                    Ok(slot) => {
                        self.pending.clear();
                        return Some((turn, node, slot));
                    }
                    Err(error) => {
                        self.only_closed = false;
                        self.failed(&node, error.to_string());
                        pick_next = true;
                    }
                },
                () = sleep_until(hedge_at) => pick_next = true,
            }
        }
    }

    async fn next(&mut self) -> Option<(Turn, Arc<Node>)> {
        let found = self.dispatcher.pick(&self.tried).await;
        // Excluded from now on: either it is dialled or it is used.
        if let Some((_, node)) = &found {
            self.tried.push(node.id);
        }
        found
    }

    fn failed(&mut self, node: &Node, reason: String) {
        self.failure = Some(format!("{}: {reason}", node.name));
        if !self.tried.contains(&node.id) {
            self.tried.push(node.id);
        }
    }
}

/// Connects in a task of its own, so that a connect that nobody waits for any more still tells about its upstream
/// and leaves its connection in the pool.
fn connect(turn: Turn, node: Arc<Node>, bytes: u64) -> BoxFuture<'static, Dialled> {
    let (sender, receiver) = oneshot::channel();
    let dialled = Arc::clone(&node);
    tokio::spawn(async move {
        let _ = sender.send(dial_and_pool(&dialled, bytes).await);
    });
    Box::pin(async move {
        let lost =
            || Err(DialError::Io { address: node.address, source: std::io::ErrorKind::Interrupted.into() });
        let result = receiver.await.unwrap_or_else(|_| lost());
        (turn, node, result)
    })
}

async fn dial_and_pool(node: &Arc<Node>, bytes: u64) -> Result<Slot, DialError> {
    let options = probe::dial_options(node);
    let dialing = dial::dial(node.address, &options);
    tokio::pin!(dialing);
    let result = match tokio::time::timeout(node.settings.hedge_after, &mut dialing).await {
        Ok(result) => result,
        Err(_) => {
            node.observe(Evidence::Slow, "slow connect");
            dialing.await
        }
    };
    match result {
        Ok(stream) => {
            let connection = Connection::open(stream, Arc::clone(node));
            node.observe(Evidence::Reachable, "connect");
            node.admit(connection, bytes).ok_or_else(|| DialError::Io {
                address: node.address,
                source: std::io::ErrorKind::ConnectionReset.into(),
            })
        }
        Err(error) => {
            node.observe(Evidence::Unreachable, &error.to_string());
            Err(error)
        }
    }
}

/// The tag that a chunk travels with; chunks without one cannot (`<buffer tag>` is checked at the start).
pub fn tag_of(chunk: &Chunk) -> Result<crate::event::Tag, WriteError> {
    let tag = chunk.metadata.tag.clone();
    tag.ok_or_else(|| WriteError::Unrecoverable("the chunk has no tag, and forward needs one".into()))
}
