//! One connection: read, take in, answer, until one side ends it.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, SystemTime};

use bytes::BytesMut;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::Instant;

use super::batch::{self, Batch};
use super::replies::{Replies, ReplyError};
use super::{Counters, Shared};
use crate::event::EventTime;
use crate::forward::{Compressed, FrameError, FrameReader, Item, Message, Options};
use crate::net::budget::Reserved;
use crate::net::listener;
use crate::telemetry::rate::LimitedBy;

/// First read of a connection, and the least later.
const READ_MIN_BYTES: usize = 16 * 1024;
/// Largest read under load: more would only leave the processor's cache. What a connection buffers beyond this is
/// drawn from the memory budget.
const READ_MAX_BYTES: usize = 256 * 1024;
/// Events in transit in the whole process beyond which a connection that has its share is not read. They only have to
/// cover one sync round of the buffers (4 MiB in 10 ms are more than a million events a second); what is more would
/// wait in our memory instead of the sender's.
const IN_FLIGHT_BYTES: u64 = 4 * 1024 * 1024;
/// Share of a connection: so many bytes handed over and not yet taken it may always have, whatever others hold.
const CONNECTION_SHARE_BYTES: usize = 256 * 1024;
/// Longest message for which room is made at once because the one before was as long. Beyond, the buffer grows with
/// what has come.
const FORESEEN_MAX_BYTES: usize = 1024 * 1024;
/// Slowest speed at which an unfinished message may grow and still be waited for.
const MESSAGE_MIN_BYTES_PER_SECOND: usize = 16 * 1024;
/// At shutdown: how long to store what still comes after our FIN and asks for no ack.
const LATE_BYTES_LIMIT: Duration = Duration::from_secs(1);
/// Part of the buffer to make room for when the message says it will be long: the peer's word alone buys no memory.
const TRUSTED_GROWTH: usize = 4;

/// Lines a minute and peer about connections that ended badly.
static READ_ERROR: LazyLock<LimitedBy<IpAddr>> = LazyLock::new(|| LimitedBy::per_minute(20));
static TIMED_OUT: LazyLock<LimitedBy<IpAddr>> = LazyLock::new(|| LimitedBy::per_minute(2));

/// Why a connection ends.
#[derive(Debug, thiserror::Error)]
enum End {
    /// The client closed its side, or the connection did its one message.
    #[error("done")]
    Done,
    /// Bytes that are no messages.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// What happened behind us.
    #[error(transparent)]
    Reply(#[from] ReplyError),
    /// Other connections hold all memory.
    #[error("memory_limit is reached and stays so: no room for {bytes} bytes")]
    Memory {
        /// What was to be taken in.
        bytes: usize,
    },
    /// The process goes down, or the time for late bytes is over.
    #[error("shutdown")]
    Stopping,
    /// Nothing, or too little, came.
    #[error("{0}")]
    TimedOut(&'static str),
    /// The peer is gone.
    #[error(transparent)]
    Lost(io::Error),
}

/// Serves one connection to its end.
pub(super) async fn serve(
    stream: TcpStream,
    peer: SocketAddr,
    shared: Arc<Shared>,
    stop: watch::Receiver<bool>,
) {
    shared.counters.open.fetch_add(1, Ordering::Relaxed);
    // A socket that cannot be tuned works all the same, only its vanished peers stay longer.
    let _ = listener::tune(&stream, shared.settings.keepalive_time);
    let mut connection = Connection::new(stream, peer.ip().to_canonical(), Arc::clone(&shared), stop);
    let end = match connection.run().await {
        End::Stopping => connection.drain().await,
        end => end,
    };
    connection.close(end);
    shared.counters.open.fetch_sub(1, Ordering::Relaxed);
}

pub(super) struct Connection {
    stream: TcpStream,
    peer: IpAddr,
    shared: Arc<Shared>,
    /// Empty and without memory while the connection is idle.
    buffer: BytesMut,
    /// Size of the next read; follows the load.
    read_bytes: usize,
    /// Size of the last message if it was longer than a read, else 0; at most [`FORESEEN_MAX_BYTES`].
    usual_bytes: usize,
    /// Memory budget drawn for a large unfinished message.
    held: Option<Reserved>,
    reader: FrameReader,
    replies: Replies,
    /// A whole item has come: from now on silence is no reason to close.
    spoke: bool,
    /// When the connection was made; later, when the unfinished message in the buffer began.
    since: Instant,
    stop: watch::Receiver<bool>,
    /// Set at shutdown: when to stop reading what still comes.
    read_until: Option<Instant>,
}

impl Connection {
    pub(super) fn new(
        stream: TcpStream,
        peer: IpAddr,
        shared: Arc<Shared>,
        stop: watch::Receiver<bool>,
    ) -> Self {
        Self {
            reader: FrameReader::new(shared.settings.reader),
            stream,
            peer,
            shared,
            buffer: BytesMut::new(),
            read_bytes: READ_MIN_BYTES,
            usual_bytes: 0,
            held: None,
            replies: Replies::new(),
            spoke: false,
            since: Instant::now(),
            stop,
            read_until: None,
        }
    }

    /// Reads and takes in until something ends it.
    async fn run(&mut self) -> End {
        loop {
            if let Err(end) = self.serve_one_read().await {
                return end;
            }
        }
    }

    async fn serve_one_read(&mut self) -> Result<(), End> {
        self.readable().await?;
        self.make_room().await?;
        match self.read() {
            Ok(0) => {
                self.replies.finish(&self.stream, &self.shared).await?;
                Err(End::Done)
            }
            Ok(_) => self.take_in().await,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.rest();
                Ok(())
            }
            Err(error) => Err(End::Lost(error)),
        }
    }

    /// Waits for bytes while receipts and acks make progress.
    async fn readable(&mut self) -> Result<(), End> {
        loop {
            // Looked at again whenever something of this connection was taken.
            let may_read = may_read(self.replies.in_flight_bytes(), self.shared.memory.used_bytes());
            let draining = self.read_until.is_some();
            let (deadline, reason) = self.patience();
            tokio::select! {
                biased;
                progress = self.replies.progress(&self.stream, &self.shared) => progress?,
                _ = self.stop.wait_for(|stop| *stop), if !draining => return Err(End::Stopping),
                () = sleep_until(self.read_until), if draining => return Err(End::Stopping),
                ready = self.stream.readable(), if may_read => return ready.map_err(End::Lost),
                () = sleep_until(deadline), if may_read && deadline.is_some() => return Err(End::TimedOut(reason)),
            }
        }
    }

    /// When patience with the peer ends, if ever, and the reason to give then.
    fn patience(&self) -> (Option<Instant>, &'static str) {
        let settings = &self.shared.settings;
        if !self.buffer.is_empty() {
            let earned = Duration::from_secs((self.buffer.len() / MESSAGE_MIN_BYTES_PER_SECOND) as u64);
            let patience = settings.message_timeout.saturating_add(earned);
            return (self.since.checked_add(patience), "a message stayed unfinished too long");
        }
        if self.spoke {
            return (None, "");
        }
        (
            self.since.checked_add(settings.first_message_timeout),
            "nothing was sent since the connection was made",
        )
    }

    /// How many bytes the next read asks for.
    fn wanted_bytes(&self) -> usize {
        let have = self.buffer.len();
        let foreseen = self.reader.needed_bytes().saturating_sub(have).min(have * TRUSTED_GROWTH);
        if have + foreseen > READ_MAX_BYTES {
            // A long message is read to about its end: its slice pins the whole buffer for as long as it is kept, and
            // what was read of the next one has to be moved.
            return foreseen.max(READ_MIN_BYTES);
        }
        match self.usual_bytes {
            0 => self.read_bytes.max(foreseen),
            usual => (usual + READ_MIN_BYTES).saturating_sub(have),
        }
    }

    /// How large the buffer must be for the next read.
    fn wanted_capacity(&self) -> usize {
        let (have, wanted) = (self.buffer.len(), self.wanted_bytes());
        if self.buffer.capacity() - have >= wanted {
            return self.buffer.capacity();
        }
        // By a factor once it is large, or a message without known length would be copied for each read.
        let growth = if have > READ_MAX_BYTES { have / 4 } else { 0 };
        have + wanted.max(growth)
    }

    /// Draws on the memory budget before a large message grows further.
    async fn make_room(&mut self) -> Result<(), End> {
        let bytes = self.wanted_capacity();
        if self.buffer.len() <= READ_MAX_BYTES || bytes <= self.held.as_ref().map_or(0, Reserved::bytes) {
            return Ok(());
        }
        self.hold(bytes).await
    }

    /// Makes what is held of the memory budget at least so many bytes.
    async fn hold(&mut self, bytes: usize) -> Result<(), End> {
        let missing = bytes.saturating_sub(self.held.as_ref().map_or(0, Reserved::bytes));
        let wait = self.shared.memory.reserve(missing, self.shared.settings.memory_wait_limit);
        let more = self.replies.meanwhile(&self.stream, &self.shared, wait).await?;
        let Some(more) = more else { return Err(End::Memory { bytes }) };
        match &mut self.held {
            Some(held) => held.merge(more),
            None => self.held = Some(more),
        }
        Ok(())
    }

    fn read(&mut self) -> io::Result<usize> {
        let have = self.buffer.len();
        let capacity = self.wanted_capacity();
        if capacity > self.buffer.capacity() && !self.buffer.try_reclaim(capacity - have) {
            // Not `reserve`, which doubles: the slices of a message would pin twice its bytes.
            let mut larger = BytesMut::with_capacity(capacity);
            larger.extend_from_slice(&self.buffer);
            self.buffer = larger;
        }
        let room = self.buffer.capacity() - have;
        let read = self.stream.try_read_buf(&mut self.buffer)?;
        if have == 0 {
            self.since = Instant::now();
        }
        if read == room {
            self.read_bytes = (self.read_bytes * 2).min(READ_MAX_BYTES);
        } else if read < self.read_bytes / 4 {
            self.read_bytes = (self.read_bytes / 2).max(READ_MIN_BYTES);
        }
        Ok(read)
    }

    /// Nothing more to read for now: an idle connection holds no memory.
    fn rest(&mut self) {
        if self.buffer.is_empty() {
            self.buffer = BytesMut::new();
            self.held = None;
        }
    }

    /// Takes every whole message out of the buffer and hands them over together.
    async fn take_in(&mut self) -> Result<(), End> {
        let now = now();
        let mut batch = Batch::default();
        let mut stays_open = true;
        let fatal = loop {
            match self.reader.next(&mut self.buffer, now) {
                Item::Incomplete => break None,
                Item::Fatal(error) => break Some(error),
                Item::Heartbeat => {}
                Item::Message(message) if self.is_too_late(&message.options) => {
                    Counters::add(&self.shared.counters.late, message.messages);
                }
                Item::Compressed(compressed) if self.is_too_late(compressed.options()) => {
                    Counters::add(&self.shared.counters.late, 1);
                }
                Item::Message(message) => {
                    let long = message.messages == 1 && message.wire_bytes > READ_MAX_BYTES / 2;
                    self.usual_bytes = if long { message.wire_bytes.min(FORESEEN_MAX_BYTES) } else { 0 };
                    batch.add(message, self.peer, &self.shared);
                }
                Item::Compressed(compressed) => match self.inflate(compressed).await? {
                    Ok(message) => {
                        batch.add(message, self.peer, &self.shared);
                        stays_open = !self.shared.settings.deny_keepalive;
                        // One at a time: each may be as large as decompression_size_limit.
                        self.hand_over(std::mem::take(&mut batch)).await?;
                    }
                    Err(error) => break Some(error),
                },
                Item::Oversize { tag, size_bytes } => {
                    batch::note_oversize(&tag, size_bytes, self.peer, &self.shared);
                }
                Item::Odd(text) => batch::note_odd(&text, self.peer, &self.shared),
            }
            self.spoke = true;
            self.since = Instant::now();
            stays_open &= batch.messages == 0 || !self.shared.settings.deny_keepalive;
            if !stays_open {
                break None;
            }
        };
        self.hand_over(batch).await?;
        // What came before the broken message, or is the only one, is stored and acked first.
        if let Some(error) = fatal {
            self.replies.finish(&self.stream, &self.shared).await?;
            return Err(error.into());
        }
        if !stays_open {
            self.replies.finish(&self.stream, &self.shared).await?;
            return Err(End::Done);
        }
        Ok(())
    }

    /// After our FIN, a message that asks for an ack gets none, so its sender sends it again elsewhere: stored here
    /// too it would come twice. One that asks for none is lost if it is not stored.
    fn is_too_late(&self, options: &Options) -> bool {
        self.read_until.is_some() && options.chunk.is_some()
    }

    async fn inflate(&mut self, compressed: Compressed) -> Result<Result<Message, FrameError>, End> {
        let shared = Arc::clone(&self.shared);
        let work = async {
            // The semaphore is never closed, and without a permit the work would only be less bounded.
            let permit = shared.inflaters.acquire().await;
            let done = tokio::task::spawn_blocking(move || compressed.inflate()).await;
            drop(permit);
            done
        };
        let done = self.replies.meanwhile(&self.stream, &self.shared, work).await?;
        done.map_err(|error| End::Lost(io::Error::other(error)))
    }

    async fn hand_over(&mut self, batch: Batch) -> Result<(), End> {
        if batch.is_empty() {
            return Ok(());
        }
        self.hold(batch.bytes).await?;
        self.replies.hand_over(batch, self.held.take(), &self.shared);
        Ok(())
    }

    /// Shutdown: acks owed go out, then FIN, then what still comes and asks for no ack is stored for a moment.
    async fn drain(&mut self) -> End {
        if let Err(error) = self.replies.finish(&self.stream, &self.shared).await {
            return error.into();
        }
        if let Err(error) = self.stream.shutdown().await {
            return End::Lost(error);
        }
        self.read_until = Some(Instant::now() + LATE_BYTES_LIMIT);
        match self.run().await {
            End::Stopping => {}
            end => return end,
        }
        match self.replies.finish(&self.stream, &self.shared).await {
            Ok(()) => End::Done,
            Err(error) => error.into(),
        }
    }

    fn close(self, end: End) {
        let (id, host) = (&self.shared.plugin_id, self.peer);
        match &end {
            End::Done | End::Stopping => return,
            End::Lost(error) => {
                tracing::debug!(plugin_id = %id, %host, %error, "connection lost");
                return;
            }
            End::TimedOut(reason) => {
                if let Some(repeated) = TIMED_OUT.admit(&host) {
                    tracing::info!(plugin_id = %id, %host, reason, repeated, "connection closed");
                }
            }
            End::Frame(_) | End::Reply(_) | End::Memory { .. } => {
                if let Some(repeated) = READ_ERROR.admit(&host) {
                    tracing::error!(plugin_id = %id, %host, error = %end, repeated, "unexpected error on reading data");
                }
            }
        }
        Counters::add(&self.shared.counters.resets, 1);
        listener::reset(self.stream);
    }
}

/// Whether a connection with so many bytes in flight is read while the process holds so many. With nothing in flight it
/// always is, so what others hold never stops it for good.
pub(super) fn may_read(own_bytes: usize, process_bytes: u64) -> bool {
    own_bytes < CONNECTION_SHARE_BYTES || process_bytes < IN_FLIGHT_BYTES
}

async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// The time of reception, which stands in for time 0.
fn now() -> EventTime {
    EventTime::of(SystemTime::now())
}

#[cfg(test)]
impl Connection {
    /// As if it had been silent since `since`, after it had spoken or not.
    pub(super) fn pretend(&mut self, spoke: bool, since: Instant) {
        (self.spoke, self.since) = (spoke, since);
    }

    /// Reads once; answers when patience with the peer ends now.
    pub(super) async fn read_for_test(&mut self) -> Option<Instant> {
        self.buffer.clear();
        while self.buffer.is_empty() {
            self.serve_one_read().await.unwrap();
        }
        self.patience().0
    }

    pub(super) fn patience_for_test(&self) -> Option<Instant> {
        self.patience().0
    }

    /// Reads until so many messages have been handed over; the memory behind the unfinished rest.
    pub(super) async fn read_messages_for_test(&mut self, messages: u64) -> usize {
        while self.shared.counters.messages.load(Ordering::Relaxed) < messages {
            self.serve_one_read().await.unwrap();
        }
        self.wanted_capacity()
    }
}
