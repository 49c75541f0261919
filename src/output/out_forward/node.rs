//! One upstream at run time: its connections, what is known of its acks, and its voice in the log.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio::time::Instant;

use super::connection::{Connection, ConnectionError, Slot};
use super::exchange::{AckMode, PeerAcks};
use super::health::{Change, Evidence};
use super::settings::Settings;
use super::upstream::{Fleet, Pick};
use crate::event::Tag;
use crate::telemetry::rate::LimitedBy;

/// Lines per minute and cause.
const LINES_PER_MINUTE: u32 = 3;
/// Connections that ended right after their first ack, with more chunks on them, until the peer counts as one that
/// takes one chunk per connection (`deny_keepalive`; without HELO it cannot say so).
const SINGLE_USE_HINTS: u32 = 2;

/// The fleet, shared by everything that learns about upstreams, and the log lines that follow from it.
#[derive(Debug)]
pub struct Roster {
    fleet: Mutex<Fleet>,
    plugin_id: String,
    lines: LimitedBy<(u64, &'static str)>,
    /// Rung when a chunk is finished, in whatever way.
    pub chunk_finished: Notify,
    /// Rung when an upstream is back in the rotation: chunks that wait for their retry need not wait any longer.
    pub recovered: Notify,
    /// Chunks confirmed since the start.
    pub confirmed: AtomicU64,
    /// Chunks delivered to peers that never acknowledge.
    pub unconfirmed: AtomicU64,
}

impl Roster {
    /// A roster around a fleet.
    pub fn new(fleet: Fleet, plugin_id: String) -> Self {
        Self {
            fleet: Mutex::new(fleet),
            plugin_id,
            lines: LimitedBy::per_minute(LINES_PER_MINUTE),
            chunk_finished: Notify::new(),
            recovered: Notify::new(),
            confirmed: AtomicU64::new(0),
            unconfirmed: AtomicU64::new(0),
        }
    }

    /// The fleet. Held for one decision, never across an await.
    pub fn fleet(&self) -> MutexGuard<'_, Fleet> {
        self.fleet.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// See [`Fleet::pick`].
    pub fn pick(&self, exclude: &[u64]) -> Pick {
        self.fleet().pick(Instant::now(), exclude)
    }

    /// `@id` of the output.
    pub fn plugin_id(&self) -> &str {
        &self.plugin_id
    }

    /// Whether a line of this cause may be written; how many were left out since the last one.
    pub fn admit(&self, upstream: u64, cause: &'static str) -> Option<u64> {
        self.lines.admit(&(upstream, cause))
    }

    fn announce(&self, node: &Node, change: Option<Change>, why: &str) {
        let Some(change) = change else { return };
        let (address, plugin_id) = (node.address, &self.plugin_id);
        match change {
            Change::Detached => {
                if let Some(folded) = self.admit(node.id, "detached") {
                    tracing::warn!(%address, reason = why, repeated = folded, %plugin_id, "detached forwarding server '{}'", node.name);
                }
            }
            Change::Recovered => {
                // Kept when nobody listens at the moment.
                self.recovered.notify_one();
                if let Some(folded) = self.admit(node.id, "recovered") {
                    tracing::warn!(%address, repeated = folded, %plugin_id, "recovered forwarding server '{}'", node.name);
                }
            }
        }
    }
}

/// One upstream.
#[derive(Debug)]
pub struct Node {
    /// Its id in the fleet.
    pub id: u64,
    /// The configured server's name.
    pub name: String,
    /// Its address.
    pub address: SocketAddr,
    /// The output's settings.
    pub settings: Arc<Settings>,
    roster: Arc<Roster>,
    pool: Mutex<Vec<Arc<Connection>>>,
    acks: AtomicU8,
    single_use: AtomicBool,
    single_use_hints: AtomicU32,
    last_tag: Mutex<Option<Tag>>,
}

const ACKS: u8 = 1;
const NEVER: u8 = 2;

impl Node {
    /// An upstream without connections.
    pub fn new(
        id: u64,
        name: String,
        address: SocketAddr,
        settings: Arc<Settings>,
        roster: Arc<Roster>,
    ) -> Self {
        Self {
            id,
            name,
            address,
            settings,
            roster,
            pool: Mutex::new(Vec::new()),
            acks: AtomicU8::new(0),
            single_use: AtomicBool::new(false),
            single_use_hints: AtomicU32::new(0),
            last_tag: Mutex::new(None),
        }
    }

    /// What is known of its acks.
    pub fn peer_acks(&self) -> PeerAcks {
        match self.acks.load(Ordering::Relaxed) {
            ACKS => PeerAcks::Acks,
            NEVER => PeerAcks::Never,
            _ => PeerAcks::Unknown,
        }
    }

    /// Whether several chunks may be on a connection: not before the peer has shown that it acknowledges, because
    /// one that hangs should hold as little as possible, and one that never acknowledges is asked chunk by chunk.
    pub fn may_pipeline(&self) -> bool {
        let proven = self.settings.exchange.mode == AckMode::Off || self.peer_acks() == PeerAcks::Acks;
        proven && !self.is_single_use()
    }

    /// Whether each connection carries one chunk only.
    pub fn is_single_use(&self) -> bool {
        self.single_use.load(Ordering::Relaxed)
    }

    /// Room for a message on a connection that is there. Prefers the first, so that spare ones fall idle.
    pub fn pooled_slot(&self, bytes: u64) -> Option<Slot> {
        let mut pool = self.pool();
        pool.retain(|connection| connection.is_open());
        pool.iter().find_map(|connection| connection.reserve(bytes, self))
    }

    /// A new connection joins the pool; the slot is for whoever wanted it.
    pub fn admit(&self, connection: Arc<Connection>, bytes: u64) -> Option<Slot> {
        let slot = connection.reserve(bytes, self);
        self.pool().push(connection);
        slot
    }

    /// Lets go of all connections; they end when nothing is on them.
    pub fn close(&self) {
        self.pool().clear();
    }

    /// Remembers a tag that went there.
    pub fn saw_tag(&self, tag: &Tag) {
        *self.last_tag.lock().unwrap_or_else(PoisonError::into_inner) = Some(tag.clone());
    }

    /// A tag that went there.
    pub fn last_tag(&self) -> Option<Tag> {
        self.last_tag.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Evidence that needs no words.
    pub fn observe(&self, evidence: Evidence, why: &str) {
        let change = self.roster.fleet().observe(self.id, evidence, Instant::now());
        self.roster.announce(self, change, why);
    }

    /// A probe that began then failed.
    pub fn probe_failed(&self, started: Instant, why: &str) {
        let change = self.roster.fleet().probe_failed(self.id, started, Instant::now());
        self.roster.announce(self, change, why);
    }

    /// The peer acknowledged a chunk.
    pub fn acknowledged(&self) {
        self.acks.store(ACKS, Ordering::Relaxed);
        self.roster.confirmed.fetch_add(1, Ordering::Relaxed);
        self.observe(Evidence::Confirmed, "ack");
    }

    /// The peer, asked, read to the end and closed without an ack.
    pub fn read_to_end(&self) {
        self.roster.confirmed.fetch_add(1, Ordering::Relaxed);
        self.roster.unconfirmed.fetch_add(1, Ordering::Relaxed);
        let first = self.acks.compare_exchange(0, NEVER, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if first {
            tracing::warn!(
                address = %self.address,
                plugin_id = %self.roster.plugin_id,
                "forwarding server '{}' does not acknowledge chunks: each counts as delivered, unconfirmed, when the \
                 server has read it to the end and closed",
                self.name
            );
        }
        self.observe(Evidence::Confirmed, "read to the end");
    }

    /// The peer ended a connection with so many chunks on it, after so many acks.
    pub fn closed(&self, chunks: usize, acks: u64) {
        if chunks == 0 {
            return;
        }
        if acks == 1 && self.single_use_hints.fetch_add(1, Ordering::Relaxed) + 1 >= SINGLE_USE_HINTS {
            self.single_use.store(true, Ordering::Relaxed);
        }
        if acks == 0 {
            self.observe(Evidence::Closed, "connection closed by the peer");
            if let Some(folded) = self.roster.admit(self.id, "closed") {
                tracing::warn!(
                    address = %self.address, chunks, repeated = folded, plugin_id = %self.roster.plugin_id,
                    "destination node closed the connection before it acknowledged anything: '{}'", self.name
                );
            }
        }
    }

    /// A connection failed with so many chunks on it.
    pub fn failed(&self, error: &ConnectionError, chunks: usize) {
        let (evidence, cause) = match error {
            ConnectionError::Closed { .. } => (Evidence::Closed, "closed"),
            ConnectionError::Lost(_) => (Evidence::Unreachable, "lost"),
            ConnectionError::Stalled => (Evidence::Mute, "stalled"),
            ConnectionError::Unanswered => (Evidence::Mute, "unanswered"),
            ConnectionError::ForeignAck => (Evidence::Mute, "foreign ack"),
            ConnectionError::NotAnAck(_) => (Evidence::Mute, "no ack"),
            ConnectionError::Handshake => (Evidence::Mute, "handshake"),
        };
        if let Some(folded) = self.roster.admit(self.id, cause) {
            let (address, plugin_id) = (self.address, &self.roster.plugin_id);
            match error {
                // Fluentd's own words, which operators search for.
                ConnectionError::Unanswered => tracing::warn!(
                    %address, host = %self.name, chunks, repeated = folded, %plugin_id,
                    "no response from node. regard it as unavailable."
                ),
                other => tracing::warn!(
                    %address, host = %self.name, chunks, repeated = folded, %plugin_id, "{other}. regard it as unavailable."
                ),
            }
        }
        // A trial later must not meet another connection of the same kind.
        self.close();
        self.observe(evidence, &error.to_string());
    }

    /// The peer took bytes.
    pub fn progressed(&self, now: Instant) {
        self.roster.fleet().progressed(self.id, now);
    }

    fn pool(&self) -> MutexGuard<'_, Vec<Arc<Connection>>> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
