//! `tributary bench sink`: a receiver that counts, and on demand a bad one.
//!
//! An ack is sent only after the message's events are counted, so that what was acknowledged can be looked up.
//! With `--behaviour` it plays the peers that the lab needs: one that accepts and hangs, one that never acks,
//! one that closes after some messages, one that reads slowly.

use std::collections::{HashSet, VecDeque};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::json;

use super::tally::Tally;
use super::wall_clock_ns;
use super::wire::{EventReader, MESSAGE_LIMIT_BYTES, WireError, read_message, write_ack};

/// Connections served at once; more are closed at once, so that a mad peer cannot start threads without end.
const CONNECTION_LIMIT: u64 = 4_096;
/// Chunk ids remembered to recognise a message that comes again.
const CHUNKS_REMEMBERED: usize = 100_000;
/// How often the status file is rewritten and the end is looked for.
const STATUS_INTERVAL: Duration = Duration::from_millis(200);
/// First size of a connection's buffer; grows with its messages.
const BUFFER_BYTES: usize = 256 << 10;

/// How the sink treats its peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Behaviour {
    /// Counts and acks
    Normal,
    /// Accepts connections and never reads
    AcceptAndHang,
    /// Counts and never acks
    NoAck,
    /// Closes each connection after `--close-after` messages, the last of them counted and not acked
    CloseAfter,
    /// Reads at most `--read-rate` bytes a second per connection
    SlowRead,
}

/// `tributary bench sink`
#[derive(Clone, Debug, clap::Args)]
pub struct SinkOptions {
    /// Address to listen on; port 0 chooses one (see `listening` in the status)
    #[arg(long, default_value = "127.0.0.1:24225", value_name = "ADDRESS:PORT")]
    pub bind: SocketAddr,
    /// How many different events there should be, over all runs
    #[arg(long, value_name = "N")]
    pub expect: Option<u64>,
    /// End this many seconds after the last arrival; with `--expect` only when that many different events are there
    #[arg(long, value_name = "SECONDS")]
    pub idle: Option<f64>,
    /// Wait this long before each ack
    #[arg(long, default_value_t = 0, value_name = "MS")]
    pub ack_delay_ms: u64,
    /// How to treat peers
    #[arg(long, value_enum, default_value = "normal")]
    pub behaviour: Behaviour,
    /// Messages a connection lives, with behaviour close-after
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub close_after: u64,
    /// Bytes a second, with behaviour slow-read
    #[arg(long, default_value_t = 64 << 10, value_name = "BYTES")]
    pub read_rate: u64,
    /// Answer UDP heartbeats on the same port
    #[arg(long)]
    pub udp_heartbeat: bool,
    /// Rewrite this file with the figures so far, several times a second
    #[arg(long, value_name = "FILE")]
    pub status: Option<PathBuf>,
    /// Write the seen set here at the end, for `bench judge --seen`
    #[arg(long, value_name = "FILE")]
    pub seen: Option<PathBuf>,
}

/// What all connections share.
struct Shared {
    options: SinkOptions,
    address: SocketAddr,
    counted: Mutex<Counted>,
    open: AtomicU64,
    accepted: AtomicU64,
}

#[derive(Default)]
struct Counted {
    tally: Tally,
    messages: u64,
    acks: u64,
    /// Messages whose chunk id had come before: repeats that a receiver can recognise.
    messages_again: u64,
    broken_connections: u64,
    last_error: Option<String>,
    chunks: HashSet<Vec<u8>>,
    chunk_order: VecDeque<Vec<u8>>,
}

impl Counted {
    fn note_chunk(&mut self, chunk: &[u8]) {
        if !self.chunks.insert(chunk.to_vec()) {
            self.messages_again += 1;
            return;
        }
        self.chunk_order.push_back(chunk.to_vec());
        if self.chunk_order.len() > CHUNKS_REMEMBERED
            && let Some(oldest) = self.chunk_order.pop_front()
        {
            self.chunks.remove(&oldest);
        }
    }
}

/// A running sink. Its threads end with the process, or with their connections.
pub struct Sink {
    shared: Arc<Shared>,
}

impl Sink {
    /// Binds and begins to accept.
    pub fn start(options: SinkOptions) -> io::Result<Self> {
        let listener = TcpListener::bind(options.bind)?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            options,
            address,
            counted: Mutex::default(),
            open: AtomicU64::new(0),
            accepted: AtomicU64::new(0),
        });
        if shared.options.udp_heartbeat {
            let socket = UdpSocket::bind(address)?;
            std::thread::Builder::new().name("heartbeat".into()).spawn(move || answer_heartbeats(&socket))?;
        }
        let accepting = shared.clone();
        std::thread::Builder::new().name("accept".into()).spawn(move || accept(&accepting, &listener))?;
        Ok(Self { shared })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.shared.address
    }

    /// What arrived so far.
    pub fn tally(&self) -> Tally {
        self.shared.counted().tally.clone()
    }

    /// The figures so far.
    pub fn status(&self) -> serde_json::Value {
        let counted = self.shared.counted();
        let since =
            counted.tally.last_arrival_ns().map(|last| wall_clock_ns().saturating_sub(last) / 1_000_000);
        let mut status = json!({
            "listening": self.shared.address.to_string(),
            "accepted": self.shared.accepted.load(Ordering::SeqCst),
            "connections": self.shared.open.load(Ordering::SeqCst),
            "broken_connections": counted.broken_connections,
            "last_error": counted.last_error,
            "messages": counted.messages,
            "messages_again": counted.messages_again,
            "acks": counted.acks,
            "since_last_arrival_ms": since,
        });
        if let (Some(status), serde_json::Value::Object(summary)) =
            (status.as_object_mut(), counted.tally.summary(self.shared.options.expect))
        {
            status.extend(summary);
        }
        status
    }

    /// True when the expected events are there and nothing has come for the time of `--idle`.
    fn is_done(&self) -> bool {
        let Some(idle) = self.shared.options.idle else { return false };
        let counted = self.shared.counted();
        let Some(last) = counted.tally.last_arrival_ns() else { return false };
        let complete = self.shared.options.expect.is_none_or(|expect| counted.tally.distinct() >= expect);
        complete && wall_clock_ns().saturating_sub(last) as f64 / 1e9 >= idle
    }
}

impl Shared {
    fn counted(&self) -> MutexGuard<'_, Counted> {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs `bench sink` until SIGTERM, SIGINT or `--idle`: prints the figures; 1 when expected events are missing.
pub fn run(options: SinkOptions) -> ExitCode {
    match serve(options) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("bench sink: {error}");
            ExitCode::from(2)
        }
    }
}

fn serve(options: SinkOptions) -> io::Result<ExitCode> {
    let stop = super::status::stop_flag()?;
    let sink = Sink::start(options)?;
    eprintln!("bench sink: listening on {}", sink.address());
    let options = &sink.shared.options;
    while !stop.load(Ordering::SeqCst) && !sink.is_done() {
        if let Some(path) = &options.status {
            super::status::replace_file(path, sink.status().to_string().as_bytes())?;
        }
        std::thread::sleep(STATUS_INTERVAL);
    }
    let (tally, status) = (sink.tally(), sink.status());
    if let Some(path) = &options.seen {
        let mut text = Vec::new();
        tally.save(&mut text)?;
        super::status::replace_file(path, &text)?;
    }
    if let Some(path) = &options.status {
        super::status::replace_file(path, status.to_string().as_bytes())?;
    }
    println!("{status}");
    let missing = options.expect.is_some() && tally.lost(options.expect) > 0;
    Ok(ExitCode::from(u8::from(missing)))
}

fn answer_heartbeats(socket: &UdpSocket) {
    let mut datagram = [0; 128];
    while let Ok((_, from)) = socket.recv_from(&mut datagram) {
        let _ = socket.send_to(&[0], from);
    }
}

fn accept(shared: &Arc<Shared>, listener: &TcpListener) {
    for stream in listener.incoming() {
        let Ok(stream) = stream else {
            // Out of descriptors: the next try comes when a connection has ended.
            std::thread::sleep(STATUS_INTERVAL);
            continue;
        };
        shared.accepted.fetch_add(1, Ordering::SeqCst);
        if shared.open.fetch_add(1, Ordering::SeqCst) >= CONNECTION_LIMIT {
            shared.open.fetch_sub(1, Ordering::SeqCst);
            continue;
        }
        let serving = shared.clone();
        let thread = std::thread::Builder::new().name("sink".into()).spawn(move || {
            if let Err(error) = converse(&serving, &stream) {
                let mut counted = serving.counted();
                counted.broken_connections += 1;
                counted.last_error = Some(error.to_string());
            }
            serving.open.fetch_sub(1, Ordering::SeqCst);
        });
        if thread.is_err() {
            shared.open.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// Serves one connection to its end.
fn converse(shared: &Shared, mut stream: &TcpStream) -> io::Result<()> {
    if shared.options.behaviour == Behaviour::AcceptAndHang {
        loop {
            std::thread::park();
        }
    }
    stream.set_nodelay(true)?;
    let (mut buffer, mut filled) = (vec![0_u8; BUFFER_BYTES], 0);
    let mut peer = Peer { reader: EventReader::default(), seen: Vec::new(), acks: Vec::new(), messages: 0 };
    loop {
        if filled == buffer.len() {
            if filled >= MESSAGE_LIMIT_BYTES {
                return Err(io::Error::other(WireError::TooLarge));
            }
            buffer.resize(filled * 2, 0);
        }
        let limit = read_limit(shared, buffer.len() - filled);
        let count = match stream.read(&mut buffer[filled..filled + limit]) {
            Ok(0) if filled > 0 => return Err(io::Error::other("connection ended inside a message")),
            Ok(0) => return Ok(()),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        filled += count;
        let mut used = 0;
        while used < filled {
            match read_message(&buffer[used..filled]) {
                Ok(message) => {
                    peer.take(shared, &message).map_err(io::Error::other)?;
                    used += message.used;
                }
                Err(WireError::Short) => break,
                Err(error) => return Err(io::Error::other(error)),
            }
            if shared.options.behaviour == Behaviour::CloseAfter
                && peer.messages >= shared.options.close_after
            {
                // The last one stays without answer: to the sender the connection broke under it.
                return peer.send_acks(shared, stream);
            }
        }
        buffer.copy_within(used..filled, 0);
        filled -= used;
        peer.send_acks(shared, stream)?;
    }
}

/// Bytes to read now; with slow-read a tenth of the rate, after a tenth of a second.
fn read_limit(shared: &Shared, room: usize) -> usize {
    if shared.options.behaviour != Behaviour::SlowRead {
        return room;
    }
    std::thread::sleep(Duration::from_millis(100));
    room.min((shared.options.read_rate / 10).max(1) as usize)
}

/// What is kept per connection.
struct Peer {
    reader: EventReader,
    seen: Vec<super::wire::Sighting>,
    acks: Vec<u8>,
    messages: u64,
}

impl Peer {
    /// Counts a message and notes its ack.
    fn take(&mut self, shared: &Shared, message: &super::wire::Message<'_>) -> Result<(), WireError> {
        self.seen.clear();
        self.reader.read(message.entries, &mut self.seen)?;
        self.messages += 1;
        let close =
            shared.options.behaviour == Behaviour::CloseAfter && self.messages >= shared.options.close_after;
        let ack = message.chunk.filter(|_| shared.options.behaviour != Behaviour::NoAck && !close);
        let mut counted = shared.counted();
        counted.tally.arrive(&self.seen, wall_clock_ns());
        counted.messages += 1;
        if let Some(chunk) = message.chunk {
            counted.note_chunk(chunk);
        }
        if let Some(chunk) = ack {
            counted.acks += 1;
            write_ack(&mut self.acks, chunk);
        }
        Ok(())
    }

    fn send_acks(&mut self, shared: &Shared, mut stream: &TcpStream) -> io::Result<()> {
        if self.acks.is_empty() {
            return Ok(());
        }
        if shared.options.ack_delay_ms > 0 {
            std::thread::sleep(Duration::from_millis(shared.options.ack_delay_ms));
        }
        let result = stream.write_all(&self.acks);
        self.acks.clear();
        result
    }
}

#[cfg(test)]
mod tests;
