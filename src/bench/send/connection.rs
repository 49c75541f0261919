//! One connection of the generator: a writing thread, a reading thread, and what is owed between them.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::super::chunk_id::{ChunkText, new_chunk_text};
use super::super::record::MessageMaker;
use super::super::wall_clock_ns;
use super::super::wire::{WireError, read_ack};
use super::Shared;

/// First wait before a broken connection is opened again; doubles up to [`BACK_OFF_MAX`]. Short, because the forwarder
/// under test is back within a second and its clients should be too.
const BACK_OFF_MIN: Duration = Duration::from_millis(20);
const BACK_OFF_MAX: Duration = Duration::from_millis(500);
/// Limit of one connect: a dead host must not hold a connection's share for long.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// How often a waiting thread looks whether the run was ended.
const LOOK_AROUND: Duration = Duration::from_millis(100);
/// Bytes of messages without an ack that one connection keeps in open loop; beyond it waits, and the lag is reported.
const OPEN_LOOP_BYTES: usize = 128 << 20;
/// Buffers kept for reuse.
const SPARE_BUFFERS: usize = 16;
/// Bytes of acks read at once.
const ACK_READ_BYTES: usize = 16 << 10;

/// A message that has no ack yet.
struct Pending {
    first: u64,
    count: u32,
    chunk: ChunkText,
    /// Empty while they are being written.
    bytes: Vec<u8>,
    length: usize,
    sent_ns: u64,
    sent_at: Instant,
    /// To tell a first sending from a repeated one.
    written: bool,
}

#[derive(Default)]
struct State {
    pending: VecDeque<Arc<Mutex<Pending>>>,
    pending_bytes: usize,
    spare: Vec<Vec<u8>>,
    broken: bool,
    /// An ack came since the last break: the peer is well and need not be spared.
    settled: bool,
}

/// What writer and reader of one connection share.
#[derive(Default)]
struct Link {
    state: Mutex<State>,
    changed: Condvar,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sends its share of the events; returns when all are taken and acknowledged, or the run is ended.
pub(super) fn run(shared: &Arc<Shared>, number: usize) {
    let targets = shared.options.targets();
    let link = Arc::new(Link::default());
    let mut maker = MessageMaker::new(shared.options.mode, &shared.options.tag, shared.run);
    let (mut turn, mut back_off) = (number, BACK_OFF_MIN);
    let mut taken = None;
    loop {
        let target = &targets[turn % targets.len()];
        let ended = match connect(shared, target) {
            Ok(stream) => converse(shared, &link, &mut maker, stream, &mut taken),
            Err(error) => Err(error),
        };
        let Err(error) = ended else { return };
        shared.failed(target, &error);
        if shared.abort.load(Ordering::SeqCst) {
            return;
        }
        if shared.stop.load(Ordering::SeqCst) && lock(&link.state).pending.is_empty() {
            return;
        }
        if std::mem::take(&mut lock(&link.state).settled) {
            back_off = BACK_OFF_MIN;
        }
        turn += usize::from(shared.options.failover);
        std::thread::sleep(back_off);
        back_off = (back_off * 2).min(BACK_OFF_MAX);
    }
}

fn connect(shared: &Shared, target: &str) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "name has no address");
    for address in target.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                let limit = Duration::from_secs_f64(shared.options.ack_timeout.max(0.1));
                stream.set_write_timeout(Some(limit))?;
                shared.account().connects += 1;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// One connection's life. `Ok`: nothing is left to do. `taken` is a range whose turn has come but that is not out yet.
fn converse(
    shared: &Arc<Shared>,
    link: &Arc<Link>,
    maker: &mut MessageMaker,
    stream: TcpStream,
    taken: &mut Option<(u64, u32)>,
) -> io::Result<()> {
    if !shared.options.wants_ack() {
        return converse_without_acks(shared, maker, stream, taken);
    }
    lock(&link.state).broken = false;
    let reader = {
        let (shared, link, stream) = (shared.clone(), link.clone(), stream.try_clone()?);
        std::thread::Builder::new().name("acks".into()).spawn(move || read_acks(&shared, &link, stream))?
    };
    let written = write_all_messages(shared, link, maker, &stream, taken);
    // Wakes the reader, whatever the reason.
    let _ = stream.shutdown(Shutdown::Both);
    let read = reader.join().unwrap_or_else(|_| Err(io::Error::other("the ack reader panicked")));
    // When both fail the reader knows better why.
    match written {
        Ok(()) => Ok(()),
        Err(error) => Err(read.err().unwrap_or(error)),
    }
}

fn write_all_messages(
    shared: &Shared,
    link: &Link,
    maker: &mut MessageMaker,
    stream: &TcpStream,
    taken: &mut Option<(u64, u32)>,
) -> io::Result<()> {
    let owed: Vec<_> = lock(&link.state).pending.iter().cloned().collect();
    for message in owed {
        write_message(shared, stream, &message)?;
    }
    loop {
        if taken.is_none() {
            wait_for_room(shared, link)?;
            *taken = shared.take();
        }
        let Some((first, count)) = *taken else { break };
        wait_until_due(shared, first);
        let message = make(maker, link, first, count);
        *taken = None;
        write_message(shared, stream, &message)?;
    }
    wait(shared, link, |state| state.pending.is_empty())
}

fn make(maker: &mut MessageMaker, link: &Link, first: u64, count: u32) -> Arc<Mutex<Pending>> {
    let mut bytes = lock(&link.state).spare.pop().unwrap_or_default();
    bytes.clear();
    let sent_ns = wall_clock_ns();
    let chunk = new_chunk_text(sent_ns);
    maker.write(&mut bytes, first, count, sent_ns, Some(&chunk));
    let length = bytes.len();
    let sent_at = Instant::now();
    let pending = Pending { first, count, chunk, bytes, length, sent_ns, sent_at, written: false };
    let message = Arc::new(Mutex::new(pending));
    let mut state = lock(&link.state);
    state.pending_bytes += length;
    state.pending.push_back(message.clone());
    message
}

/// Writes a message, the first time or again. The bytes are taken out meanwhile, so that no lock is held while the
/// peer does not read.
fn write_message(shared: &Shared, mut stream: &TcpStream, message: &Mutex<Pending>) -> io::Result<()> {
    let (bytes, again, count) = {
        let mut pending = lock(message);
        let again = std::mem::replace(&mut pending.written, true);
        pending.sent_at = Instant::now();
        (std::mem::take(&mut pending.bytes), again, u64::from(pending.count))
    };
    {
        let mut account = shared.account();
        if again {
            account.resent_messages += 1;
            account.resent_events += count;
        } else {
            account.sent += count;
        }
    }
    let result = stream.write_all(&bytes);
    lock(message).bytes = bytes;
    result
}

/// Waits until another message may be in flight.
fn wait_for_room(shared: &Shared, link: &Link) -> io::Result<()> {
    let most = shared.options.in_flight as usize;
    match shared.options.rate {
        None => wait(shared, link, |state| state.pending.len() < most),
        Some(_) => wait(shared, link, |state| state.pending_bytes < OPEN_LOOP_BYTES),
    }
}

fn wait(shared: &Shared, link: &Link, ready: impl Fn(&State) -> bool) -> io::Result<()> {
    let mut state = lock(&link.state);
    loop {
        if state.broken {
            return Err(io::Error::new(io::ErrorKind::ConnectionAborted, "connection broke"));
        }
        if ready(&state) {
            return Ok(());
        }
        if shared.abort.load(Ordering::SeqCst) {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "nothing moved any more"));
        }
        state = link.changed.wait_timeout(state, LOOK_AROUND).unwrap_or_else(PoisonError::into_inner).0;
    }
}

fn wait_until_due(shared: &Shared, first: u64) {
    let Some(due) = shared.due(first) else { return };
    loop {
        let now = Instant::now();
        if now >= due {
            let mut account = shared.account();
            account.schedule_lag_ns = account.schedule_lag_ns.max((now - due).as_nanos() as u64);
            return;
        }
        if shared.abort.load(Ordering::SeqCst) {
            return;
        }
        std::thread::sleep((due - now).min(LOOK_AROUND));
    }
}

/// Reads acks until the connection ends; marks the link broken then.
fn read_acks(shared: &Shared, link: &Link, stream: TcpStream) -> io::Result<()> {
    let result = read_acks_until_end(shared, link, &stream);
    let _ = stream.shutdown(Shutdown::Both);
    lock(&link.state).broken = true;
    link.changed.notify_all();
    result
}

fn read_acks_until_end(shared: &Shared, link: &Link, mut stream: &TcpStream) -> io::Result<()> {
    let patience = Duration::from_secs_f64(shared.options.ack_timeout.max(0.1));
    stream.set_read_timeout(Some(LOOK_AROUND.max(patience / 10)))?;
    let (mut bytes, mut filled) = (vec![0_u8; ACK_READ_BYTES], 0);
    loop {
        match stream.read(&mut bytes[filled..]) {
            Ok(0) => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "peer closed the connection")),
            Ok(count) => filled += count,
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        let used = settle(shared, link, &bytes[..filled])?;
        bytes.copy_within(used..filled, 0);
        filled -= used;
        if filled == bytes.len() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "an ack is longer than 16 KiB"));
        }
        let oldest = lock(&link.state).pending.front().cloned();
        if oldest.is_some_and(|message| is_overdue(&lock(&message), patience)) {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "no ack in time"));
        }
    }
}

fn is_overdue(pending: &Pending, patience: Duration) -> bool {
    pending.written && pending.sent_at.elapsed() > patience
}

/// Books every whole ack in the bytes; returns how many bytes were used.
fn settle(shared: &Shared, link: &Link, bytes: &[u8]) -> io::Result<usize> {
    let mut used = 0;
    let mut paid = Vec::new();
    let mut unexpected = 0;
    while used < bytes.len() {
        let (chunk, length) = match read_ack(&bytes[used..]) {
            Ok(ack) => ack,
            Err(WireError::Short) => break,
            Err(error) => {
                return Err(io::Error::new(io::ErrorKind::InvalidData, format!("bad ack: {error}")));
            }
        };
        used += length;
        match take_pending(link, chunk) {
            Some(message) => paid.push(message),
            None => unexpected += 1,
        }
    }
    if paid.is_empty() && unexpected == 0 {
        return Ok(used);
    }
    book(shared, &paid, unexpected)?;
    let mut state = lock(&link.state);
    state.settled |= !paid.is_empty();
    for message in paid {
        if let (true, Ok(message)) = (state.spare.len() < SPARE_BUFFERS, Arc::try_unwrap(message)) {
            state.spare.push(message.into_inner().unwrap_or_else(PoisonError::into_inner).bytes);
        }
    }
    drop(state);
    link.changed.notify_all();
    Ok(used)
}

fn take_pending(link: &Link, chunk: &[u8]) -> Option<Arc<Mutex<Pending>>> {
    let mut state = lock(&link.state);
    let place = state.pending.iter().position(|message| lock(message).chunk == chunk)?;
    let message = state.pending.remove(place)?;
    let length = lock(&message).length;
    state.pending_bytes = state.pending_bytes.saturating_sub(length);
    Some(message)
}

/// Writes acknowledged ranges into account and journal.
fn book(shared: &Shared, paid: &[Arc<Mutex<Pending>>], unexpected: u64) -> io::Result<()> {
    let (now, now_ns) = (Instant::now(), wall_clock_ns());
    let mut guard = shared.account();
    let account = &mut *guard;
    account.unexpected_acks += unexpected;
    for message in paid {
        let pending = lock(message);
        account.acknowledged += u64::from(pending.count);
        account.latency.add(now_ns.saturating_sub(pending.sent_ns), 1);
        if let Some(journal) = &mut account.journal {
            journal.acknowledged(pending.first, pending.count, pending.sent_ns, now_ns)?;
        }
    }
    if !paid.is_empty() {
        account.progress();
        account.note_ack_gap(shared.started, now);
    }
    if let Some(journal) = &mut account.journal {
        journal.flush()?;
    }
    Ok(())
}

/// Fire and forget: what a broken connection held is lost, as for any sender that does not ask.
fn converse_without_acks(
    shared: &Shared,
    maker: &mut MessageMaker,
    stream: TcpStream,
    taken: &mut Option<(u64, u32)>,
) -> io::Result<()> {
    let mut bytes = Vec::new();
    loop {
        if taken.is_none() {
            *taken = shared.take();
        }
        let Some((first, count)) = *taken else { break };
        wait_until_due(shared, first);
        bytes.clear();
        maker.write(&mut bytes, first, count, wall_clock_ns(), None);
        (&stream).write_all(&bytes)?;
        *taken = None;
        let mut account = shared.account();
        account.sent += u64::from(count);
        account.progress();
    }
    // Closing with unread bytes on either side would reset the connection and lose what is on the way.
    stream.shutdown(Shutdown::Write)?;
    stream.set_read_timeout(Some(Duration::from_secs_f64(shared.options.ack_timeout.max(0.1))))?;
    let mut rest = [0; 512];
    while (&stream).read(&mut rest)? > 0 {}
    Ok(())
}
