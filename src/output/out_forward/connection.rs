//! One connection: messages out, several un-acked ones at once, acks in, every wait with a deadline.
//!
//! A task drives the socket; [`Connection`] is the handle that pools keep. What to wait for and when to give up is
//! decided by [`Exchange`]; this file only moves bytes.

use std::collections::{HashMap, VecDeque};
use std::io::{self, IoSlice};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::{Buf, Bytes};
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::exchange::{AckMeaning, AckMode, Exchange, PeerAcks, Verdict};
use super::message::Message;
use super::node::Node;
use crate::forward::ack::{AckError, AckReader};
use crate::net::dial;

/// Chunks on one connection at once. Enough to hide the round trip and the peer's sync; each of them is sent again
/// when the connection is lost.
const PIPELINE_CHUNKS_MAX: usize = 8;
/// Bytes on one connection at once; a larger chunk goes alone.
const PIPELINE_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// Slices given to one write call.
const SLICES_MAX: usize = 64;
/// Send progress is reported to the fleet at most this often.
const PROGRESS_REPORT_INTERVAL: Duration = Duration::from_millis(100);
/// Bytes read at once; acks are short.
const READ_BYTES: usize = 4 * 1024;

/// How a chunk was delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivered {
    /// The peer acknowledged it.
    Confirmed,
    /// The peer, which never acknowledges, read it to the end and closed.
    Unconfirmed,
    /// The kernel took it; nobody asked for more.
    Sent,
}

/// Why a chunk was not delivered over this connection.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ConnectionError {
    /// The peer ended it. `reused`: it had carried chunks before, so a new connection is worth a try.
    #[error("destination node closed the connection")]
    Closed {
        /// It had carried chunks before.
        reused: bool,
    },
    /// The system ended it: the route is gone.
    #[error("connection lost: {0}")]
    Lost(String),
    /// Nobody acknowledged sent bytes in time, or the peer's window stayed closed.
    #[error("no send progress within the deadline")]
    Stalled,
    /// No ack in time.
    #[error("no response from node")]
    Unanswered,
    /// An ack for something else.
    #[error("ack in response and chunk id in sent data are different")]
    ForeignAck,
    /// Something that is no ack.
    #[error("{0}")]
    NotAnAck(AckError),
    /// The first step of the handshake instead of an ack.
    #[error("the peer asks for a handshake (HELO), but no <security> is configured here")]
    Handshake,
}

#[derive(Debug)]
struct Order {
    message: Arc<Message>,
    reply: oneshot::Sender<Result<Delivered, ConnectionError>>,
}

/// What the pool must know of a connection.
#[derive(Debug)]
struct Load {
    open: bool,
    chunks: usize,
    bytes: u64,
    served: u64,
}

/// The handle of a connection.
#[derive(Debug)]
pub struct Connection {
    orders: mpsc::Sender<Order>,
    load: Mutex<Load>,
    opened_at: Instant,
}

/// The right to send one message over a connection.
#[derive(Debug)]
pub struct Slot {
    connection: Arc<Connection>,
    bytes: u64,
    sent: bool,
}

impl Connection {
    /// Takes over a connected stream. The task ends when the peer closes, a deadline passes, or the connection is
    /// too old or idle.
    pub fn open(stream: TcpStream, node: Arc<Node>) -> Arc<Self> {
        let (sender, orders) = mpsc::channel(PIPELINE_CHUNKS_MAX);
        let now = Instant::now();
        let connection = Arc::new(Self {
            orders: sender,
            load: Mutex::new(Load { open: true, chunks: 0, bytes: 0, served: 0 }),
            opened_at: now,
        });
        let exchange = Exchange::new(node.settings.exchange, now);
        let driver = Driver {
            stream,
            node,
            connection: Arc::downgrade(&connection),
            orders,
            accepts: true,
            exchange,
            outgoing: VecDeque::new(),
            waiting: HashMap::new(),
            acks: AckReader::default(),
            next_key: 0,
            idle_since: now,
            opened_at: now,
            reported_at: now,
        };
        tokio::spawn(driver.run());
        connection
    }

    /// Room for a message of so many bytes, if there is any.
    pub fn reserve(self: &Arc<Self>, bytes: u64, node: &Node) -> Option<Slot> {
        let mut load = self.load();
        let fresh = load.chunks == 0;
        let room = fresh || (load.chunks < PIPELINE_CHUNKS_MAX && load.bytes + bytes <= PIPELINE_BYTES_MAX);
        let alone = fresh || node.may_pipeline();
        let again = load.served == 0 || !node.is_single_use();
        let young = load.served == 0 || self.opened_at.elapsed() < node.settings.connection_age_max;
        if !(load.open && room && alone && again && young) {
            return None;
        }
        load.chunks += 1;
        load.bytes += bytes;
        load.served += 1;
        Some(Slot { connection: Arc::clone(self), bytes, sent: false })
    }

    /// Whether it still takes chunks at some time.
    pub fn is_open(&self) -> bool {
        self.load().open
    }

    fn close(&self) {
        self.load().open = false;
    }

    /// Closes it unless somebody holds a slot.
    fn retire(&self) -> bool {
        let mut load = self.load();
        if load.chunks == 0 {
            load.open = false;
        }
        load.chunks == 0
    }

    fn release(&self, bytes: u64) {
        let mut load = self.load();
        load.chunks = load.chunks.saturating_sub(1);
        load.bytes = load.bytes.saturating_sub(bytes);
    }

    fn load(&self) -> MutexGuard<'_, Load> {
        self.load.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slot {
    /// Sends the message and waits until it is delivered or lost.
    ///
    /// # Errors
    ///
    /// [`ConnectionError`]: the message may or may not have arrived.
    pub async fn send(mut self, message: Arc<Message>) -> Result<Delivered, ConnectionError> {
        let (reply, answer) = oneshot::channel();
        // The task gives the room back once it has taken the order.
        self.sent = true;
        // The channel has room for every slot, so this fails only when the task is gone.
        if self.connection.orders.try_send(Order { message, reply }).is_err() {
            return Err(ConnectionError::Closed { reused: true });
        }
        answer.await.unwrap_or(Err(ConnectionError::Closed { reused: true }))
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if !self.sent {
            self.connection.release(self.bytes);
        }
    }
}

/// How a connection ended.
enum End {
    /// Too old, idle, or nobody holds it any more; nothing was on it.
    Retired,
    /// The peer read to the end and closed, as asked.
    AllRead,
    /// The peer closed.
    Closed,
    /// It failed.
    Failed(ConnectionError),
}

struct Waiting {
    reply: oneshot::Sender<Result<Delivered, ConnectionError>>,
    bytes: u64,
}

struct Driver {
    stream: TcpStream,
    node: Arc<Node>,
    connection: std::sync::Weak<Connection>,
    orders: mpsc::Receiver<Order>,
    accepts: bool,
    exchange: Exchange,
    outgoing: VecDeque<Bytes>,
    waiting: HashMap<u64, Waiting>,
    acks: AckReader,
    next_key: u64,
    idle_since: Instant,
    opened_at: Instant,
    reported_at: Instant,
}

impl Driver {
    async fn run(mut self) {
        let end = self.drive().await;
        self.finish(end);
    }

    async fn drive(&mut self) -> End {
        loop {
            let now = Instant::now();
            let verdict = self.exchange.verdict(now, self.node.peer_acks());
            let mut wake = match verdict {
                Verdict::Wait(until) => until,
                Verdict::Ask => {
                    self.ask(now);
                    continue;
                }
                Verdict::Stalled => return End::Failed(ConnectionError::Stalled),
                Verdict::Unanswered => return End::Failed(ConnectionError::Unanswered),
            };
            if self.exchange.is_idle() {
                let expires = self.expires_at();
                if now >= expires && self.retire() {
                    return End::Retired;
                }
                if now < expires {
                    wake = Some(expires);
                }
            }
            let interest = if self.outgoing.is_empty() {
                Interest::READABLE
            } else {
                Interest::READABLE | Interest::WRITABLE
            };
            tokio::select! {
                order = self.orders.recv(), if self.accepts => match order {
                    Some(order) => self.enqueue(order),
                    None => self.accepts = false,
                },
                ready = self.stream.ready(interest) => {
                    let step = match ready {
                        Ok(ready) => self.step(ready),
                        Err(error) => Err(failure(&error)),
                    };
                    if let Err(end) = step {
                        return end;
                    }
                }
                () = sleep_until(wake), if wake.is_some() => {}
            }
        }
    }

    fn step(&mut self, ready: tokio::io::Ready) -> Result<(), End> {
        // Writing first: a peer that closed may still have taken the bytes, and its acks are read either way.
        if ready.is_readable() || ready.is_read_closed() || ready.is_error() {
            self.read()?;
        }
        if ready.is_writable() || ready.is_write_closed() {
            self.write()?;
        }
        Ok(())
    }

    fn enqueue(&mut self, order: Order) {
        self.push(order);
        while let Ok(order) = self.orders.try_recv() {
            self.push(order);
        }
    }

    fn push(&mut self, order: Order) {
        let Order { message, reply } = order;
        let key = self.next_key;
        self.next_key += 1;
        self.exchange.enqueue(key, message.ack.clone(), message.length, Instant::now());
        self.outgoing.extend(message.pieces.iter().filter(|piece| !piece.is_empty()).cloned());
        self.waiting.insert(key, Waiting { reply, bytes: message.length });
    }

    fn write(&mut self) -> Result<(), End> {
        while !self.outgoing.is_empty() {
            let slices: Vec<IoSlice<'_>> =
                self.outgoing.iter().take(SLICES_MAX).map(|piece| IoSlice::new(piece)).collect();
            match self.stream.try_write_vectored(&slices) {
                Ok(length) => self.wrote(length),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(failure(&error)),
            }
        }
        Ok(())
    }

    fn wrote(&mut self, length: usize) {
        let mut left = length;
        while let Some(piece) = self.outgoing.front_mut() {
            if left < piece.len() {
                piece.advance(left);
                break;
            }
            left -= piece.len();
            self.outgoing.pop_front();
        }
        let now = Instant::now();
        if now >= self.reported_at + PROGRESS_REPORT_INTERVAL {
            self.reported_at = now;
            self.node.progressed(now);
        }
        for key in self.exchange.wrote(length as u64, now) {
            self.settle(key, Ok(Delivered::Sent));
        }
    }

    fn read(&mut self) -> Result<(), End> {
        let mut buffer = [0; READ_BYTES];
        loop {
            match self.stream.try_read(&mut buffer) {
                Ok(0) if self.exchange.end_confirms() && self.node.peer_acks() != PeerAcks::Acks => {
                    return Err(End::AllRead);
                }
                Ok(0) => return Err(End::Closed),
                Ok(length) => self.acks.push(buffer.get(..length).unwrap_or_default()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(failure(&error)),
            }
            self.take_acks()?;
        }
    }

    fn take_acks(&mut self) -> Result<(), End> {
        loop {
            let text = match self.acks.next_ack() {
                Ok(Some(text)) => text,
                Ok(None) => return Ok(()),
                Err(error) => return Err(End::Failed(not_an_ack(error))),
            };
            match self.exchange.acknowledged(&text) {
                AckMeaning::Confirms(key) => {
                    self.node.acknowledged();
                    self.settle(key, Ok(Delivered::Confirmed));
                }
                AckMeaning::Ignored => self.node.acknowledged(),
                AckMeaning::Foreign => return Err(End::Failed(ConnectionError::ForeignAck)),
            }
        }
    }

    /// Ends the writing side: a peer that is alive reads to the end and closes.
    fn ask(&mut self, now: Instant) {
        if let Some(connection) = self.connection.upgrade() {
            connection.close();
        }
        // A failure shows up at the next read.
        let _ = socket2::SockRef::from(&self.stream).shutdown(std::net::Shutdown::Write);
        // Orders that are already in the channel get their answer at the end: not over this connection.
        self.accepts = false;
        self.exchange.asked(now);
    }

    fn settle(&mut self, key: u64, result: Result<Delivered, ConnectionError>) {
        let Some(waiting) = self.waiting.remove(&key) else { return };
        if let Some(connection) = self.connection.upgrade() {
            connection.release(waiting.bytes);
        }
        self.idle_since = Instant::now();
        // Nobody listens when the flush was dropped at shutdown.
        let _ = waiting.reply.send(result);
    }

    fn expires_at(&self) -> Instant {
        if !self.accepts || (self.node.is_single_use() && self.next_key > 0) {
            return self.idle_since;
        }
        let settings = &self.node.settings;
        (self.opened_at + settings.connection_age_max).min(self.idle_since + settings.connection_idle_max)
    }

    fn retire(&self) -> bool {
        self.connection.upgrade().is_none_or(|connection| connection.retire())
    }

    fn finish(mut self, end: End) {
        if let Some(connection) = self.connection.upgrade() {
            connection.close();
        }
        let keys = self.exchange.drain();
        let acks = self.exchange.acks();
        let reused = acks > 0 || (self.node.settings.exchange.mode == AckMode::Off && self.next_key > 1);
        let result = match end {
            End::Retired => Err(ConnectionError::Closed { reused: true }),
            End::AllRead => {
                self.node.read_to_end();
                Ok(Delivered::Unconfirmed)
            }
            End::Closed => {
                self.node.closed(keys.len(), acks);
                Err(ConnectionError::Closed { reused })
            }
            End::Failed(error) => {
                dial::reset_on_close(&self.stream);
                self.node.failed(&error, keys.len());
                Err(error)
            }
        };
        for key in keys {
            self.settle(key, result.clone());
        }
        // Orders that came too late were never written.
        self.orders.close();
        while let Ok(order) = self.orders.try_recv() {
            let _ = order.reply.send(Err(ConnectionError::Closed { reused: true }));
        }
    }
}

/// A peer that begins with HELO is worth a hint: its `<security>` is missing here.
fn not_an_ack(error: AckError) -> ConnectionError {
    match error {
        AckError::NotAnAck(shown) if shown.contains("HELO") => ConnectionError::Handshake,
        error => ConnectionError::NotAnAck(error),
    }
}

/// A reset is the peer's close, a time-out (TCP_USER_TIMEOUT) a peer that takes nothing, anything else the network.
fn failure(error: &io::Error) -> End {
    match error.kind() {
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionAborted => {
            End::Closed
        }
        io::ErrorKind::TimedOut => End::Failed(ConnectionError::Stalled),
        _ => End::Failed(ConnectionError::Lost(error.to_string())),
    }
}

async fn sleep_until(wake: Option<Instant>) {
    match wake {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
