//! The output against fake peers on loopback. Deadlines are short here; what is compared are orders of magnitude.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::*;
use crate::buffer::{ChunkId, Metadata};
use crate::event::Tag;
use crate::event::msgpack;

const ACK_DEADLINE: Duration = Duration::from_millis(600);
const CONNECT_DEADLINE: Duration = Duration::from_millis(1500);
const HEDGE_AFTER: Duration = Duration::from_millis(200);
const SUSPECT_AFTER: Duration = Duration::from_millis(150);
/// What the scheduler of a busy machine may add.
const SLACK: Duration = Duration::from_millis(900);

/// What a fake peer does with a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manner {
    /// Acknowledges each message.
    Acks,
    /// Acknowledges each message after this many milliseconds.
    AcksLate(u64),
    /// Acknowledges two messages with one write, in reverse order, then one byte at a time.
    AcksOddly,
    /// Reads to the end, never acknowledges, closes when we do.
    NeverAcks,
    /// Accepts and does nothing.
    Hangs,
    /// Reads a little and closes.
    ClosesMidway,
    /// Acknowledges something else.
    WrongId,
    /// Acknowledges one message and closes, whatever else is there.
    OnePerConnection,
    /// Acknowledges the first message of a connection and closes when the second comes.
    ClosesOnSecond,
    /// Reads so slowly that the sender has to wait, but never stops.
    ReadsSlowly,
    /// Begins with a handshake.
    Hello,
}

/// A fake peer and what it got.
#[derive(Debug)]
struct Peer {
    address: SocketAddr,
    state: Arc<PeerState>,
    task: AbortHandle,
}

#[derive(Debug)]
struct PeerState {
    manner: Mutex<Manner>,
    /// Chunk texts of whole messages with events, in order.
    chunks: Mutex<Vec<Vec<u8>>>,
    connections: AtomicUsize,
    tasks: Mutex<Vec<AbortHandle>>,
}

impl Peer {
    async fn start(manner: Manner) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        Self::listen(listener, manner)
    }

    fn listen(listener: TcpListener, manner: Manner) -> Self {
        let address = listener.local_addr().expect("address");
        let state = Arc::new(PeerState {
            manner: Mutex::new(manner),
            chunks: Mutex::default(),
            connections: AtomicUsize::new(0),
            tasks: Mutex::default(),
        });
        let shared = Arc::clone(&state);
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                shared.connections.fetch_add(1, Ordering::Relaxed);
                let task = tokio::spawn(serve(stream, Arc::clone(&shared))).abort_handle();
                shared.tasks.lock().expect("lock").push(task);
            }
        })
        .abort_handle();
        Self { address, state, task }
    }

    /// Stops listening and closes every connection.
    fn stop(&self) {
        self.task.abort();
        self.state.tasks.lock().expect("lock").drain(..).for_each(|task| task.abort());
    }

    fn set(&self, manner: Manner) {
        *self.state.manner.lock().expect("lock") = manner;
    }

    fn got(&self) -> Vec<Vec<u8>> {
        self.state.chunks.lock().expect("lock").clone()
    }

    fn connections(&self) -> usize {
        self.state.connections.load(Ordering::Relaxed)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A whole message at the start of the buffer: its length, its chunk text, whether it has events.
fn message(buffer: &[u8]) -> Option<(usize, Vec<u8>, bool)> {
    let end = msgpack::skip(buffer, 0).ok()?;
    let (_, tag_at) = msgpack::head(buffer, 0).ok()?;
    let payload_at = msgpack::skip(buffer, tag_at).ok()?;
    let has_events = matches!(msgpack::head(buffer, payload_at).ok()?.0, msgpack::Head::Str(_));
    let option_at = msgpack::skip(buffer, payload_at).ok()?;
    let (msgpack::Head::Map(count), mut at) = msgpack::head(buffer, option_at).ok()? else { return None };
    for _ in 0..count {
        let value_at = msgpack::skip(buffer, at).ok()?;
        let value_end = msgpack::skip(buffer, value_at).ok()?;
        if &buffer[at..value_at] == b"\xa5chunk" {
            return Some((end, buffer[value_at + 1..value_end].to_vec(), has_events));
        }
        at = value_end;
    }
    None
}

fn ack(chunk: &[u8]) -> Vec<u8> {
    let mut bytes = b"\x81\xa3ack".to_vec();
    msgpack::write_str(&mut bytes, chunk);
    bytes
}

async fn serve(mut stream: TcpStream, state: Arc<PeerState>) {
    let mut manner = *state.manner.lock().expect("lock");
    let mut buffer = Vec::new();
    let mut owed: Vec<Vec<u8>> = Vec::new();
    let mut served = 0;
    if manner == Manner::Hello {
        let _ = stream.write_all(b"\x92\xa4HELO\x80").await;
    }
    loop {
        if manner == Manner::Hangs {
            std::future::pending::<()>().await;
        }
        if manner == Manner::ReadsSlowly {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let mut chunk = vec![0; 256 * 1024];
        let length = match stream.read(&mut chunk).await {
            Ok(0) | Err(_) => return,
            Ok(length) => length,
        };
        // A peer may change its manner in the middle of a connection.
        manner = *state.manner.lock().expect("lock");
        if manner == Manner::Hangs {
            std::future::pending::<()>().await;
        }
        if manner == Manner::ClosesMidway {
            return;
        }
        buffer.extend_from_slice(&chunk[..length]);
        while let Some((end, text, has_events)) = message(&buffer) {
            buffer.drain(..end);
            if manner == Manner::ClosesOnSecond && served > 0 {
                return;
            }
            served += 1;
            if has_events {
                state.chunks.lock().expect("lock").push(text.clone());
            }
            let answer = match manner {
                Manner::NeverAcks | Manner::Hello => continue,
                Manner::WrongId => ack(b"something else"),
                Manner::AcksLate(ms) => {
                    tokio::time::sleep(Duration::from_millis(ms)).await;
                    ack(&text)
                }
                Manner::AcksOddly => {
                    owed.push(ack(&text));
                    if owed.len() == 2 {
                        owed.reverse();
                        let _ = stream.write_all(&owed.concat()).await;
                    } else if owed.len() > 2 || state.chunks.lock().expect("lock").len() == 1 {
                        for byte in owed.last().expect("just pushed") {
                            let _ = stream.write_all(&[*byte]).await;
                            tokio::task::yield_now().await;
                        }
                        owed.truncate(if owed.len() > 2 { 2 } else { 0 });
                    }
                    continue;
                }
                _ => ack(&text),
            };
            let _ = stream.write_all(&answer).await;
            if manner == Manner::OnePerConnection {
                return;
            }
        }
    }
}

fn settings_for(addresses: &[SocketAddr]) -> Settings {
    let destination = |address: &SocketAddr| Destination {
        server: Server { name: address.to_string(), weight: 60, standby: false },
        host: address.ip().to_string(),
        port: address.port(),
    };
    Settings {
        destinations: addresses.iter().map(destination).collect(),
        health: HealthPolicy {
            heartbeat: HeartbeatKind::Transport,
            heartbeat_interval: Duration::from_millis(100),
            recover_wait: Duration::from_millis(500),
            suspect_after: SUSPECT_AFTER,
        },
        exchange: ExchangePolicy {
            mode: AckMode::Auto,
            ack_deadline: ACK_DEADLINE,
            progress_deadline: Duration::from_millis(700),
        },
        connect_deadline: CONNECT_DEADLINE,
        hedge_after: HEDGE_AFTER,
        connection_age_max: Duration::from_secs(60),
        connection_idle_max: Duration::from_secs(60),
        resolve_interval: Duration::from_secs(60),
        ignore_network_errors_at_startup: false,
        verify_connection_at_startup: false,
    }
}

fn start(settings: Settings) -> Arc<OutForward> {
    let addresses = first_addresses(&settings, "test").expect("literal addresses");
    let output = Arc::new(OutForward { dispatcher: Arc::new(Dispatcher::new(settings, "test", &addresses)) });
    Arc::clone(&output).start();
    output
}

fn output_to(peers: &[&Peer]) -> Arc<OutForward> {
    let addresses: Vec<SocketAddr> = peers.iter().map(|peer| peer.address).collect();
    start(settings_for(&addresses))
}

fn chunk(number: u32) -> Arc<Chunk> {
    chunk_of(number, Bytes::from_static(b"\x92\x01\x80\x92\x02\x80"))
}

fn chunk_of(number: u32, payload: Bytes) -> Arc<Chunk> {
    let mut id = [0; 16];
    id[..4].copy_from_slice(&number.to_be_bytes());
    Arc::new(Chunk {
        id: ChunkId(id),
        metadata: Metadata { tag: Some(Tag::from("app.test")), ..Metadata::default() },
        count: 2,
        size_bytes: payload.len() as u64,
        created_at: SystemTime::UNIX_EPOCH,
        payload: vec![payload],
    })
}

/// Waits for a condition, however long a busy machine takes (but not for ever).
async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < deadline, "never happened: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn healthy(output: &OutForward) -> u64 {
    let fields = output.monitor_fields();
    fields
        .iter()
        .find(|(name, _)| *name == "healthy_nodes_count")
        .and_then(|(_, v)| v.as_u64())
        .expect("field")
}

fn unconfirmed(output: &OutForward) -> u64 {
    output.dispatcher.roster.unconfirmed.load(Ordering::Relaxed)
}

/// `count` writers send chunks one after the other; answers how long the slowest chunk took.
async fn flow(output: &Arc<OutForward>, numbers: std::ops::Range<u32>, writers: usize) -> Vec<Duration> {
    let next = Arc::new(Mutex::new(numbers));
    let took = Arc::new(Mutex::new(Vec::new()));
    let tasks: Vec<_> = (0..writers)
        .map(|_| {
            let (output, next, took) = (Arc::clone(output), Arc::clone(&next), Arc::clone(&took));
            tokio::spawn(async move {
                loop {
                    let Some(number) = next.lock().expect("lock").next() else { return };
                    let started = Instant::now();
                    output.write(chunk(number)).await.expect("delivered");
                    took.lock().expect("lock").push(started.elapsed());
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("writer");
    }
    Arc::try_unwrap(took).expect("writers ended").into_inner().expect("lock")
}

/// Every chunk arrived at one of the peers. Answers how many arrived more than once.
fn repeats(peers: &[&Peer], count: usize) -> usize {
    let all: Vec<Vec<u8>> = peers.iter().flat_map(|peer| peer.got()).collect();
    let distinct: BTreeSet<&Vec<u8>> = all.iter().collect();
    assert_eq!(distinct.len(), count, "every chunk arrives");
    all.len() - distinct.len()
}

#[tokio::test]
async fn chunks_are_acknowledged_and_share_a_connection() {
    let peer = Peer::start(Manner::Acks).await;
    let output = output_to(&[&peer]);
    flow(&output, 0..50, 4).await;
    assert_eq!(repeats(&[&peer], 50), 0);
    // Up to one connection per writer before the first ack, plus heartbeats while nothing was confirmed.
    assert!(peer.connections() <= 10, "{} connections", peer.connections());
}

#[tokio::test]
async fn shares_are_even_and_follow_weights() {
    let (a, b) = (Peer::start(Manner::Acks).await, Peer::start(Manner::Acks).await);
    let mut settings = settings_for(&[a.address, b.address]);
    settings.destinations[0].server.weight = 180;
    let output = start(settings);
    flow(&output, 0..80, 1).await;
    assert_eq!((a.got().len(), b.got().len()), (60, 20));
}

#[tokio::test]
async fn acks_may_be_split_joined_and_out_of_order() {
    let peer = Peer::start(Manner::AcksOddly).await;
    let output = output_to(&[&peer]);
    output.write(chunk(0)).await.expect("its ack comes byte by byte");
    let (first, second) = tokio::join!(output.write(chunk(1)), output.write(chunk(2)));
    first.expect("its ack comes second in one packet");
    second.expect("its ack comes first");
    assert_eq!(repeats(&[&peer], 3), 0);
}

#[tokio::test]
async fn a_refusing_upstream_costs_no_time_and_leaves_the_rotation() {
    let (gone, peer) = (Peer::start(Manner::Acks).await, Peer::start(Manner::Acks).await);
    gone.stop();
    let output = output_to(&[&gone, &peer]);
    let took = flow(&output, 0..20, 1).await;
    assert!(took.iter().all(|duration| *duration < SLACK), "{took:?}");
    assert_eq!(repeats(&[&peer], 20), 0);
    assert_eq!(healthy(&output), 1);
}

#[tokio::test]
async fn no_upstream_is_unwell_and_the_first_probe_brings_it_back() {
    let gone = Peer::start(Manner::Acks).await;
    gone.stop();
    let output = output_to(&[&gone]);
    until("port is closed", || std::net::TcpStream::connect(gone.address).is_err()).await;
    let error = output.write(chunk(0)).await.expect_err("nobody listens");
    assert!(
        matches!(&error, WriteError::Unwell(text) if text.starts_with("no nodes are available")),
        "{error:?}"
    );
    let error = output.write(chunk(0)).await.expect_err("still nobody");
    assert_eq!(error.to_string(), "no nodes are available");

    let listener = TcpListener::bind(gone.address).await.expect("the port is free again");
    let back = Peer::listen(listener, Manner::Acks);
    until("a probe finds it", || healthy(&output) == 1).await;
    output.write(chunk(0)).await.expect("delivered");
    assert_eq!(back.got().len(), 1);
}

/// A lost host drops packets: the chunk goes to the next upstream after the hedge delay, later ones do not wait.
#[tokio::test]
async fn a_black_hole_delays_one_round_of_chunks_by_the_hedge() {
    let hole = BlackHole::open().await;
    let peer = Peer::start(Manner::Acks).await;
    let mut settings = settings_for(&[hole.address, peer.address]);
    settings.health.heartbeat_interval = Duration::from_secs(60);
    let output = start(settings);
    let took = flow(&output, 0..30, 1).await;
    let slow = took.iter().filter(|duration| **duration >= HEDGE_AFTER).count();
    assert_eq!(slow, 1, "{took:?}");
    assert!(took.iter().all(|duration| *duration < HEDGE_AFTER + SLACK), "{took:?}");
    until("the slow connect ends as a failed probe", || healthy(&output) == 1).await;
    assert_eq!(repeats(&[&peer], 30), 0);
}

#[tokio::test]
async fn a_black_hole_alone_fails_at_the_connect_deadline() {
    let hole = BlackHole::open().await;
    let output = start(settings_for(&[hole.address]));
    let started = Instant::now();
    let error = output.write(chunk(0)).await.expect_err("nobody answers");
    assert!(error.to_string().contains("took longer than"), "{error}");
    assert!(started.elapsed() < CONNECT_DEADLINE + SLACK);
}

/// F9: one of three accepts and never answers. The others never pause, what was stuck arrives after the ack deadline
/// plus the question, and connect probes do not bring the hung one back.
#[tokio::test]
async fn a_hanging_upstream_holds_up_nobody() {
    let hung = Peer::start(Manner::Hangs).await;
    let (a, b) = (Peer::start(Manner::Acks).await, Peer::start(Manner::Acks).await);
    let output = output_to(&[&hung, &a, &b]);
    let took = flow(&output, 0..1000, 4).await;
    let stuck: Vec<&Duration> = took.iter().filter(|duration| **duration > SLACK).collect();
    assert!(stuck.len() <= 2, "at most half of the four writers may be held: {stuck:?}");
    let limit = ACK_DEADLINE + exchange::ASK_DEADLINE + SLACK;
    assert!(took.iter().all(|duration| *duration < limit), "{stuck:?}");
    assert_eq!(repeats(&[&a, &b], 1000), 0);
    assert_eq!(healthy(&output), 2);
}

/// A server that acknowledged and then hangs: no question, the chunks move when the ack deadline passes. Connect
/// probes succeed all the time; only an acknowledged empty message brings it back.
#[tokio::test]
async fn a_server_that_stops_answering_returns_only_when_it_answers() {
    let (a, b) = (Peer::start(Manner::Acks).await, Peer::start(Manner::Acks).await);
    let mut settings = settings_for(&[a.address, b.address]);
    settings.connection_age_max = Duration::ZERO; // a new connection per chunk, so that the manner changes at once
    let output = start(settings);
    flow(&output, 0..10, 2).await;
    assert!(!a.got().is_empty());
    a.set(Manner::Hangs);
    let took = flow(&output, 10..200, 4).await;
    assert!(took.iter().all(|duration| *duration < ACK_DEADLINE + SLACK), "{took:?}");
    until("it is out", || healthy(&output) == 1).await;
    let before = a.got().len();
    flow(&output, 200..600, 4).await;
    assert_eq!(healthy(&output), 1, "connect probes must not bring it back");
    assert_eq!(a.got().len(), before);
    a.set(Manner::Acks);
    until("the empty message is acknowledged", || healthy(&output) == 2).await;
    flow(&output, 600..700, 4).await;
    assert!(a.got().len() > before, "it takes its share again");
    assert_eq!(repeats(&[&a, &b], 700), 0);
}

#[tokio::test]
async fn a_peer_that_never_acknowledges_is_asked_once_and_then_confirmed_by_its_close() {
    let peer = Peer::start(Manner::NeverAcks).await;
    let output = output_to(&[&peer]);
    let started = Instant::now();
    output.write(chunk(0)).await.expect("it reads to the end and closes");
    assert!(started.elapsed() >= ACK_DEADLINE, "it gets its time to acknowledge");
    let started = Instant::now();
    for number in 1..20 {
        output.write(chunk(number)).await.expect("now it is known");
    }
    assert!(started.elapsed() < ACK_DEADLINE + SLACK, "took {:?}", started.elapsed());
    assert_eq!(unconfirmed(&output), 20);
    assert_eq!(repeats(&[&peer], 20), 0);
    assert_eq!(healthy(&output), 1);
}

#[tokio::test]
async fn required_does_not_accept_a_close_for_an_ack() {
    let (silent, peer) = (Peer::start(Manner::NeverAcks).await, Peer::start(Manner::Acks).await);
    let mut settings = settings_for(&[silent.address, peer.address]);
    settings.exchange.mode = AckMode::Required;
    let output = start(settings);
    for number in 0..4 {
        output.write(chunk(number)).await.expect("the other acknowledges");
    }
    assert_eq!(peer.got().len(), 4);
    assert_eq!(unconfirmed(&output), 0);
}

#[tokio::test]
async fn off_does_not_wait_for_anything() {
    let peer = Peer::start(Manner::NeverAcks).await;
    let mut settings = settings_for(&[peer.address]);
    settings.exchange.mode = AckMode::Off;
    let output = start(settings);
    let took = flow(&output, 0..50, 2).await;
    assert!(took.iter().all(|duration| *duration < ACK_DEADLINE), "{took:?}");
    until("all arrive", || peer.got().len() == 50).await;
}

#[tokio::test]
async fn a_peer_that_closes_midway_or_answers_nonsense_is_passed_over() {
    for manner in [Manner::ClosesMidway, Manner::WrongId, Manner::Hello] {
        let (bad, good) = (Peer::start(manner).await, Peer::start(Manner::Acks).await);
        let output = output_to(&[&bad, &good]);
        let took = flow(&output, 0..30, 2).await;
        assert!(took.iter().all(|duration| *duration < ACK_DEADLINE), "{manner:?}: {took:?}");
        let got: BTreeSet<Vec<u8>> = good.got().into_iter().collect();
        assert_eq!(got.len(), 30, "{manner:?}: each chunk is acknowledged by the good one");
        if manner != Manner::ClosesMidway {
            until("the bad one is out", || healthy(&output) == 1).await;
        }
    }
}

#[tokio::test]
async fn a_peer_that_takes_one_chunk_per_connection_is_learned() {
    let peer = Peer::start(Manner::OnePerConnection).await;
    let output = output_to(&[&peer]);
    flow(&output, 0..60, 4).await;
    repeats(&[&peer], 60);
    let before = peer.got().len();
    flow(&output, 60..100, 4).await;
    assert_eq!(peer.got().len() - before, 40, "nothing is sent twice once it is known");
    assert_eq!(healthy(&output), 1);
}

/// A connection that ends under its second chunk: the chunk takes a new one to the same peer, in the same attempt, and
/// after two such ends every chunk gets a connection of its own.
#[tokio::test]
async fn a_chunk_on_a_used_connection_gets_a_second_chance() {
    let peer = Peer::start(Manner::ClosesOnSecond).await;
    let mut settings = settings_for(&[peer.address]);
    settings.health.heartbeat = HeartbeatKind::None;
    let output = start(settings);
    for number in 0..10 {
        output.write(chunk(number)).await.expect("the only peer acknowledges over a new connection");
    }
    assert_eq!(repeats(&[&peer], 10), 0);
    assert_eq!(peer.connections(), 10);
}

/// More bytes than the socket buffers hold.
fn large_chunk(number: u32) -> Arc<Chunk> {
    chunk_of(number, Bytes::from(vec![0x00; 12 * 1024 * 1024]))
}

#[tokio::test]
async fn a_slow_reader_is_waited_for_as_long_as_it_reads() {
    let peer = Peer::start(Manner::ReadsSlowly).await;
    let mut settings = settings_for(&[peer.address]);
    settings.exchange.ack_deadline = Duration::from_secs(20);
    let output = start(settings);
    let started = Instant::now();
    output.write(large_chunk(1)).await.expect("it reads all the time");
    let progress_deadline = output.dispatcher.settings.exchange.progress_deadline;
    assert!(started.elapsed() > progress_deadline, "the peer was not slow: {:?}", started.elapsed());
}

#[tokio::test]
async fn a_peer_that_takes_no_bytes_is_given_up_at_the_progress_deadline() {
    let (hung, peer) = (Peer::start(Manner::Hangs).await, Peer::start(Manner::Acks).await);
    let mut settings = settings_for(&[hung.address, peer.address]);
    settings.exchange.ack_deadline = Duration::from_secs(20);
    let progress_deadline = settings.exchange.progress_deadline;
    let output = start(settings);
    let started = Instant::now();
    output.write(large_chunk(1)).await.expect("the other takes it");
    assert!(started.elapsed() >= progress_deadline);
    assert!(started.elapsed() < progress_deadline + 2 * SLACK, "took {:?}", started.elapsed());
    assert_eq!(peer.got().len(), 1);
}

#[tokio::test]
async fn a_restarted_peer_gets_the_chunk_over_a_new_connection_at_once() {
    let peer = Peer::start(Manner::Acks).await;
    let address = peer.address;
    let mut settings = settings_for(&[address]);
    settings.health.heartbeat_interval = Duration::from_secs(60);
    let output = start(settings);
    output.write(chunk(0)).await.expect("first life");
    peer.stop();
    let mut listener = TcpListener::bind(address).await;
    for _ in 0..100 {
        if listener.is_ok() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
        listener = TcpListener::bind(address).await;
    }
    let again = Peer::listen(listener.expect("the port is free again"), Manner::Acks);
    output.write(chunk(1)).await.expect("second life");
    assert_eq!(again.got().len(), 1);
}

#[tokio::test]
async fn connections_are_replaced_at_their_age() {
    let peer = Peer::start(Manner::Acks).await;
    let mut settings = settings_for(&[peer.address]);
    settings.health.heartbeat = HeartbeatKind::None;
    settings.connection_age_max = Duration::ZERO;
    let output = start(settings);
    for number in 0..5 {
        output.write(chunk(number)).await.expect("delivered");
    }
    assert_eq!(peer.connections(), 5);
    assert_eq!(repeats(&[&peer], 5), 0);
}

#[tokio::test]
async fn a_late_ack_after_the_chunk_moved_on_does_no_harm() {
    let late = Peer::start(Manner::AcksLate(ACK_DEADLINE.as_millis() as u64 + 300)).await;
    let good = Peer::start(Manner::Acks).await;
    let mut settings = settings_for(&[late.address, good.address]);
    settings.exchange.mode = AckMode::Required;
    let output = start(settings);
    for number in 0..10 {
        output.write(chunk(number)).await.expect("delivered");
    }
    assert_eq!(good.got().iter().collect::<BTreeSet<_>>().len(), 10);
}

/// An address that vanishes from its name is drained: what is in flight there may finish, nothing new goes there.
#[tokio::test]
async fn a_vanished_address_finishes_what_it_has() {
    let (old, new) = (Peer::start(Manner::AcksLate(200)).await, Peer::start(Manner::Acks).await);
    let output = output_to(&[&old]);
    let first = output.write(chunk(0));
    let moved = async {
        until("the chunk is there", || old.got().len() == 1).await;
        output.dispatcher.set_addresses(0, &[new.address]);
        output.write(chunk(1)).await.expect("the new address takes it");
    };
    let (first, ()) = tokio::join!(first, moved);
    first.expect("acknowledged by the old address");
    assert_eq!((old.got().len(), new.got().len()), (1, 1));
}

/// A chunk on which every connection ends, while others get through, is refused in the end.
#[tokio::test]
async fn a_chunk_that_ends_connections_again_and_again_is_refused() {
    let peer = Peer::start(Manner::Acks).await;
    let mut settings = settings_for(&[peer.address]);
    settings.connection_age_max = Duration::ZERO;
    let output = start(settings);
    let mut refused = None;
    for round in 0..4 {
        output.write(chunk(round)).await.expect("others get through");
        peer.set(Manner::ClosesMidway);
        let error = output.write(chunk(1000)).await.expect_err("the peer closes");
        peer.set(Manner::Acks);
        if matches!(error, WriteError::Refused(_)) {
            refused = Some(round);
            break;
        }
    }
    assert_eq!(refused, Some(2), "at the third attempt");
}

/// Heartbeats over UDP: answered, it is reachable; unanswered, it is out.
#[tokio::test]
async fn udp_heartbeats_are_evidence() {
    let peer = Peer::start(Manner::Acks).await;
    let socket = Arc::new(tokio::net::UdpSocket::bind(peer.address).await.expect("the same port for UDP"));
    let answers = Arc::clone(&socket);
    let responder = tokio::spawn(async move {
        let mut datagram = [0; 128];
        while let Ok((_, from)) = answers.recv_from(&mut datagram).await {
            let _ = answers.send_to(&[0], from).await;
        }
    });
    let mut settings = settings_for(&[peer.address]);
    settings.health.heartbeat = HeartbeatKind::Udp;
    let output = start(settings);
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(healthy(&output), 1);
    responder.abort();
    drop(socket);
    until("unanswered heartbeats take it out", || healthy(&output) == 0).await;
}

/// A listener whose accept queue is full: SYNs are dropped, as a dead host drops them.
struct BlackHole {
    address: SocketAddr,
    _socket: socket2::Socket,
    _waiting: Vec<TcpStream>,
}

impl BlackHole {
    async fn open() -> Self {
        let socket =
            socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("socket");
        socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).expect("bind");
        socket.listen(0).expect("listen");
        let address = socket.local_addr().expect("address").as_socket().expect("an IP address");
        let mut waiting = Vec::new();
        let limit = Duration::from_millis(300);
        while let Ok(Ok(stream)) = tokio::time::timeout(limit, TcpStream::connect(address)).await {
            waiting.push(stream);
        }
        Self { address, _socket: socket, _waiting: waiting }
    }
}

fn configured(element: &Element) -> Result<Settings, String> {
    let mut diagnostics = Diagnostics::new();
    let params = ForwardParams::from_element(element, &mut diagnostics);
    match (configure(element, None, &mut Diagnostics::new()), params) {
        (Some(_), Some(params)) if !diagnostics.has_faults() => Ok(settings_of(&params)),
        _ => {
            let mut all = Diagnostics::new();
            configure(element, None, &mut all);
            Err(all.render())
        }
    }
}

fn match_section() -> Element {
    Element::new("match", "**").with_param("@type", "forward")
}

#[test]
fn a_silent_configuration_gets_our_deadlines() {
    let server = Element::new("server", "").with_param("host", "192.0.2.1");
    let settings = configured(&match_section().with_child(server)).expect("valid");
    assert_eq!(settings.exchange.mode, AckMode::Auto);
    assert_eq!(settings.exchange.ack_deadline, Duration::from_secs(30));
    assert_eq!(settings.exchange.progress_deadline, Duration::from_secs(5));
    assert_eq!(settings.connect_deadline, Duration::from_millis(3500));
    assert_eq!(settings.health.heartbeat_interval, Duration::from_secs(1));
    assert_eq!(settings.destinations[0].server.name, "192.0.2.1:24224");
}

#[test]
fn written_values_are_honoured() {
    let server = Element::new("server", "")
        .with_param("host", "aggregator.example")
        .with_param("name", "one")
        .with_param("port", "4000")
        .with_param("weight", "5")
        .with_param("standby", "true");
    let element = match_section()
        .with_param("require_ack_response", "true")
        .with_param("ack_response_timeout", "190")
        .with_param("connect_timeout", "2")
        .with_param("send_timeout", "60s")
        .with_param("heartbeat_type", "udp")
        .with_param("keepalive", "true")
        .with_param("keepalive_timeout", "20s")
        .with_param("transport", "tcp")
        .with_param("compress", "text")
        .with_child(server);
    let settings = configured(&element).expect("valid");
    assert_eq!(settings.exchange.mode, AckMode::Required);
    assert_eq!(settings.exchange.ack_deadline, Duration::from_secs(190));
    assert_eq!(settings.exchange.progress_deadline, Duration::from_secs(60));
    assert_eq!(settings.health.heartbeat, HeartbeatKind::Udp);
    assert_eq!(settings.connection_idle_max, Duration::from_secs(20));
    let one = &settings.destinations[0];
    assert_eq!((one.server.name.as_str(), one.port, one.server.weight), ("one", 4000, 5));
    assert!(one.server.standby);
    assert_eq!(settings.connection_age_max, settings::CONNECTION_AGE_MAX);
    let single = element.with_param("keepalive", "false");
    assert_eq!(configured(&single).expect("valid").connection_age_max, Duration::ZERO);
}

#[test]
fn faults_are_said() {
    let server = || Element::new("server", "").with_param("host", "a");
    let none = configured(&match_section()).expect_err("no server");
    assert!(none.contains("at least one node"), "{none}");
    let unbuilt = configured(&match_section().with_param("compress", "gzip").with_child(server()));
    assert!(unbuilt.expect_err("not built").contains("compress"));
    let security = match_section().with_child(server()).with_child(Element::new("security", ""));
    assert!(configured(&security).expect_err("not built").contains("security"));
    let obsolete = configured(&match_section().with_param("host", "a").with_child(server()));
    assert!(obsolete.expect_err("removed").contains("<server>"));
    let short = match_section().with_param("ack_response_timeout", "0").with_child(server());
    assert!(configured(&short).is_err());
    let mut diagnostics = Diagnostics::new();
    configure(&match_section().with_child(server()), Some(&Chunking::default()), &mut diagnostics);
    assert!(diagnostics.render().contains("<buffer tag>"), "{}", diagnostics.render());
}

fn build(settings: Settings) -> Result<Arc<dyn Output>, BuildError> {
    let context = OutputContext { plugin_id: "out".into(), metrics: Arc::default(), system: Arc::default() };
    Box::new(ForwardConfig { settings }).build(context)
}

#[tokio::test(flavor = "multi_thread")]
async fn building_checks_names_and_connections() {
    let peer = Peer::start(Manner::Acks).await;
    let mut settings = settings_for(&[peer.address]);
    settings.verify_connection_at_startup = true;
    assert!(build(settings.clone()).is_ok());

    peer.stop();
    until("port is closed", || std::net::TcpStream::connect(peer.address).is_err()).await;
    assert!(build(settings.clone()).is_err(), "nobody listens");

    settings.verify_connection_at_startup = false;
    settings.destinations[0].host = "does-not-exist.invalid".into();
    let error = build(settings.clone()).err().expect("no such name");
    assert!(error.to_string().contains("does-not-exist.invalid"), "{error}");
    settings.ignore_network_errors_at_startup = true;
    assert!(build(settings).is_ok());
}
