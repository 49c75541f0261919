use std::io;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::*;
use crate::buffer::AppendError;
use crate::config::Severity;
use crate::event::{Value, msgpack};
use crate::router::Arrival;
use crate::router::{EmitError, Sink};
use crate::telemetry::Overview;

/// A test waits this long for what must happen; then it fails.
const PATIENCE: Duration = Duration::from_secs(20);

/// Keeps what it is given; takes it at once, or when released, or not at all.
#[derive(Default)]
struct Recorder {
    arrivals: Mutex<Vec<Arrival>>,
    /// Wakes who waits for arrivals.
    arrived: Notify,
    /// Receipts wait while this is set.
    holding: watch::Sender<bool>,
    full: AtomicBool,
    /// Tag whose events are refused.
    refused_tag: Option<&'static str>,
}

impl Sink for Recorder {
    fn emit(&self, batch: Vec<Arrival>) -> BoxFuture<'static, Vec<Result<(), EmitError>>> {
        let refused =
            |arrival: &Arrival| Some(arrival.stream.tag.to_string()) == self.refused_tag.map(String::from);
        let results = batch
            .iter()
            .map(|arrival| if refused(arrival) { Err(AppendError::Overflow.into()) } else { Ok(()) })
            .collect();
        self.arrivals.lock().unwrap().extend(batch);
        self.arrived.notify_waiters();
        let mut holding = self.holding.subscribe();
        Box::pin(async move {
            // A closed channel means that the test is over.
            let _ = holding.wait_for(|holding| !holding).await;
            results
        })
    }

    fn is_full(&self) -> bool {
        self.full.load(Ordering::Relaxed)
    }
}

impl Recorder {
    /// Waits until so many events have arrived; answers (tag, count) of each stream.
    async fn events(&self, count: usize) -> Vec<(String, usize)> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let arrived = self.arrived.notified();
            let got: Vec<(String, usize)> = self
                .arrivals
                .lock()
                .unwrap()
                .iter()
                .map(|arrival| (arrival.stream.tag.to_string(), arrival.stream.count))
                .collect();
            if got.iter().map(|(_, count)| count).sum::<usize>() >= count {
                return got;
            }
            if tokio::time::timeout_at(deadline, arrived).await.is_err() {
                panic!("{count} events expected, got {got:?}");
            }
        }
    }
}

struct Lab {
    input: ForwardInput,
    address: SocketAddr,
    sink: Arc<Recorder>,
}

impl Lab {
    fn start(sink: Recorder, params: &[(&str, &str)]) -> Self {
        Self::start_with(sink, params, MemoryBudget::default(), |_| {})
    }

    fn start_with(
        sink: Recorder,
        params: &[(&str, &str)],
        memory: MemoryBudget,
        change: impl FnOnce(&mut Settings),
    ) -> Self {
        let mut element = Element::new("source", "").with_param("@type", "forward");
        for (key, value) in [("port", "0"), ("bind", "127.0.0.1")].iter().chain(params) {
            element = element.with_param(key, value);
        }
        let mut diagnostics = Diagnostics::new();
        let params = ForwardInputParams::from_element(&element, &mut diagnostics).expect("parameters");
        assert!(!diagnostics.has_faults(), "{}", diagnostics.render());
        let sink = Arc::new(sink);
        let context = InputContext {
            plugin_id: "object:test".into(),
            entrance: Entrance::new(Arc::clone(&sink) as Arc<dyn Sink>),
            metrics: Arc::default(),
            overview: Arc::new(Overview::default()),
            system: Arc::default(),
            memory,
        };
        let mut input = ForwardInput::bind(&params, context).unwrap();
        change(&mut Arc::get_mut(&mut input.shared).unwrap().settings);
        let address = input.sockets.as_ref().unwrap().0.local_addr().unwrap();
        input.start();
        Self { input, address, sink }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    fn figure(&self, name: &str) -> f64 {
        let samples = self.input.samples().unwrap()();
        samples.iter().find(|sample| sample.name == name).unwrap().value
    }

    async fn until_figure(&self, name: &str, value: f64) {
        let deadline = Instant::now() + PATIENCE;
        while self.figure(name) != value {
            assert!(Instant::now() < deadline, "{name} is {}, not {value}", self.figure(name));
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

const RECORD: &[u8] = b"\x81\xa1k\x01";

/// A Message-mode message, with an option map when there is a chunk id.
fn message(tag: &str, chunk: Option<&str>) -> Vec<u8> {
    let mut out = vec![if chunk.is_some() { 0x94 } else { 0x93 }];
    msgpack::write_str(&mut out, tag.as_bytes());
    out.push(5);
    out.extend_from_slice(RECORD);
    if let Some(chunk) = chunk {
        out.extend_from_slice(&Value::Map(vec![("chunk".into(), chunk.into())]).to_msgpack());
    }
    out
}

fn ack(chunk: &str) -> Vec<u8> {
    Value::Map(vec![("ack".into(), chunk.into())]).to_msgpack()
}

async fn read_exactly(client: &mut TcpStream, expected: &[u8]) {
    let mut got = vec![0; expected.len()];
    let read = tokio::time::timeout(PATIENCE, client.read_exact(&mut got)).await.expect("in time");
    read.unwrap();
    assert_eq!(got, expected);
}

/// How the server ended the connection: bytes before the end, and FIN or the error.
async fn read_to_end(client: &mut TcpStream) -> (Vec<u8>, io::Result<()>) {
    let mut got = Vec::new();
    let read = tokio::time::timeout(PATIENCE, client.read_to_end(&mut got)).await.expect("in time");
    (got, read.map(drop))
}

fn is_reset(result: &io::Result<()>) -> bool {
    matches!(result, Err(error) if error.kind() == io::ErrorKind::ConnectionReset)
}

/// Every fixture stream over a real socket: events arrive, the answer is that of the real in_forward, byte for byte.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fixture_streams_over_a_socket() {
    let folder = crate::forward::tests::fixtures_dir();
    let index = std::fs::read_to_string(folder.join("index.json")).unwrap();
    let index: Vec<serde_json::Value> = serde_json::from_str(&index).unwrap();
    let lab = Lab::start(Recorder::default(), &[]);
    let mut events = 0;
    for row in &index {
        let name = row["name"].as_str().unwrap();
        if name.contains("zstd") || name.contains("json-stream") {
            println!("not built: {name}");
            continue;
        }
        events += row["events"].as_u64().unwrap() as usize;
        let response = std::fs::read(folder.join(format!("{name}.response.bin"))).unwrap_or_default();
        let mut client = lab.connect().await;
        client.write_all(&std::fs::read(folder.join(format!("{name}.bin"))).unwrap()).await.unwrap();
        client.shutdown().await.unwrap();
        let (answer, end) = read_to_end(&mut client).await;
        end.unwrap();
        assert_eq!(answer, response, "{name}");
        assert_eq!(
            lab.sink.events(events).await.iter().map(|(_, count)| count).sum::<usize>(),
            events,
            "{name}"
        );
    }
    lab.until_figure("tributary_forward_connections", 0.0).await;
}

#[tokio::test]
async fn acks_wait_for_their_receipts_and_keep_their_order() {
    let lab = Lab::start(Recorder::default(), &[]);
    lab.sink.holding.send_replace(true);
    let mut client = lab.connect().await;
    client.write_all(&message("a", Some("1"))).await.unwrap();
    lab.sink.events(1).await;
    client
        .write_all(&[message("a", Some("2")), message("b", None), message("a", Some("3"))].concat())
        .await
        .unwrap();
    lab.sink.events(4).await;
    assert_eq!(client.try_read(&mut [0; 1]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    lab.sink.holding.send_replace(false);
    read_exactly(&mut client, &[ack("1"), ack("2"), ack("3")].concat()).await;
    let chunks: Vec<_> =
        lab.sink.arrivals.lock().unwrap().iter().map(|arrival| arrival.sender_chunk.clone()).collect();
    assert_eq!(chunks, [Some(Bytes::from_static(b"1")), Some("2".into()), None, Some("3".into())]);
}

#[tokio::test]
async fn a_refusal_sends_the_acks_owed_and_resets() {
    let lab = Lab::start(Recorder { refused_tag: Some("full"), ..Recorder::default() }, &[]);
    let mut bystander = lab.connect().await;
    let mut client = lab.connect().await;
    client.write_all(&[message("a", Some("1")), message("full", Some("2"))].concat()).await.unwrap();
    // The ack is on the wire before the reset; whether this client's system still shows it is the system's choice.
    let (answer, end) = read_to_end(&mut client).await;
    assert!(is_reset(&end), "{end:?}");
    assert!(answer.is_empty() || answer == ack("1"), "{answer:?}");
    assert_eq!(lab.figure("tributary_forward_acks_total"), 1.0);
    bystander.write_all(&message("a", Some("3"))).await.unwrap();
    read_exactly(&mut bystander, &ack("3")).await;
}

#[tokio::test]
async fn while_full_new_connections_are_reset_and_heartbeats_unanswered() {
    let lab = Lab::start(Recorder::default(), &[]);
    let udp = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    udp.connect(lab.address).await.unwrap();
    lab.sink.full.store(true, Ordering::Relaxed);
    let mut client = lab.connect().await;
    assert!(is_reset(&read_to_end(&mut client).await.1));
    udp.send(&[0]).await.unwrap();
    lab.until_figure("tributary_forward_refused_total", 1.0).await;
    // The socket is served in order: the answer to the second datagram is the first answer at all.
    let mut client = lab.connect().await;
    assert!(is_reset(&read_to_end(&mut client).await.1));
    assert_eq!(udp.try_recv(&mut [0; 4]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    lab.sink.full.store(false, Ordering::Relaxed);
    udp.send(&[1, 2, 3]).await.unwrap();
    let mut answer = [9; 4];
    assert_eq!(tokio::time::timeout(PATIENCE, udp.recv(&mut answer)).await.unwrap().unwrap(), 1);
    assert_eq!(answer[0], 0);
    let mut client = lab.connect().await;
    client.write_all(&message("a", Some("1"))).await.unwrap();
    read_exactly(&mut client, &ack("1")).await;
}

#[tokio::test]
async fn silent_and_slow_clients_are_closed_and_those_that_have_spoken_are_not() {
    let lab =
        Lab::start(Recorder::default(), &[("first_message_timeout", "0.05"), ("message_timeout", "0.05")]);
    let mut spoken = lab.connect().await;
    spoken.write_all(&message("a", Some("1"))).await.unwrap();
    read_exactly(&mut spoken, &ack("1")).await;
    let mut silent = lab.connect().await;
    let mut slow = lab.connect().await;
    slow.write_all(&[&message("a", None)[..], &[0x93, 0xa1]].concat()).await.unwrap();
    let mut probe = lab.connect().await;
    probe.shutdown().await.unwrap();
    assert!(is_reset(&read_to_end(&mut silent).await.1));
    assert!(is_reset(&read_to_end(&mut slow).await.1));
    // a health check is no error
    assert!(read_to_end(&mut probe).await.1.is_ok());
    lab.until_figure("tributary_forward_connections", 1.0).await;
    assert_eq!(lab.figure("tributary_forward_resets_total"), 2.0);
    // Idle for longer than both limits by now: its next message may begin late and is still taken.
    spoken.write_all(&message("a", Some("2"))).await.unwrap();
    read_exactly(&mut spoken, &ack("2")).await;
}

#[tokio::test]
async fn a_broken_message_ends_its_connection_after_what_came_before() {
    let lab = Lab::start(Recorder::default(), &[]);
    let mut client = lab.connect().await;
    client.write_all(&[&message("a", Some("1"))[..], &[0xc1]].concat()).await.unwrap();
    let (answer, end) = read_to_end(&mut client).await;
    assert!(is_reset(&end) && (answer.is_empty() || answer == ack("1")), "{answer:?} {end:?}");
    assert_eq!(lab.figure("tributary_forward_acks_total"), 1.0);
    let mut json = lab.connect().await;
    json.write_all(b"[\"a\",5,{}]").await.unwrap();
    assert!(is_reset(&read_to_end(&mut json).await.1));
    assert_eq!(lab.sink.events(1).await, [("a".into(), 1)]);
}

#[tokio::test]
async fn a_client_that_closes_its_side_still_gets_its_ack() {
    let lab = Lab::start(Recorder::default(), &[]);
    lab.sink.holding.send_replace(true);
    let mut client = lab.connect().await;
    client.write_all(&message("a", Some("1"))).await.unwrap();
    client.shutdown().await.unwrap();
    lab.sink.events(1).await;
    lab.sink.holding.send_replace(false);
    let (answer, end) = read_to_end(&mut client).await;
    assert_eq!((answer, end.is_ok()), (ack("1"), true));
}

#[tokio::test]
async fn stopping_sends_acks_owed_then_fin_and_stores_what_still_comes() {
    let mut lab = Lab::start(Recorder::default(), &[]);
    lab.sink.holding.send_replace(true);
    let mut idle = lab.connect().await;
    let mut client = lab.connect().await;
    client.write_all(&message("a", Some("1"))).await.unwrap();
    lab.sink.events(1).await;
    lab.until_figure("tributary_forward_connections", 2.0).await;
    let address = lab.address;
    let sink = Arc::clone(&lab.sink);
    let stopped = tokio::spawn(async move { lab.input.stop().await });
    assert_eq!(read_to_end(&mut idle).await.0, b"");
    sink.holding.send_replace(false);
    let (answer, end) = read_to_end(&mut client).await;
    assert_eq!((answer, end.is_ok()), (ack("1"), true));
    // What asks for an ack comes again elsewhere, what does not would be lost.
    client.write_all(&[message("late", Some("2")), message("later", None)].concat()).await.unwrap();
    assert_eq!(sink.events(2).await, [("a".into(), 1), ("later".into(), 1)]);
    drop((client, idle));
    tokio::time::timeout(PATIENCE, stopped).await.expect("in time").unwrap();
    assert!(TcpStream::connect(address).await.is_err());
}

/// A sender that takes no notice of our FIN: no message that it will send again is stored.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn at_a_stop_every_stored_message_that_asked_for_an_ack_got_it() {
    use std::io::Write;
    let mut lab = Lab::start(Recorder::default(), &[]);
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(&[&[0x92, 5][..], RECORD].concat()).unwrap();
    let gzip = gzip.finish().unwrap();
    let compressed = move |chunk: &str| {
        let mut out = b"\x93\xa1z".to_vec();
        msgpack::write_bin(&mut out, &gzip);
        let options = vec![("chunk".into(), chunk.into()), ("compressed".into(), "gzip".into())];
        out.extend_from_slice(&Value::Map(options).to_msgpack());
        out
    };
    let round = move |at: usize| {
        [message("a", Some(&format!("a{at:06}"))), compressed(&format!("z{at:06}")), message("plain", None)]
            .concat()
    };
    let client = lab.connect().await;
    let (mut reading, mut writing) = client.into_split();
    let writer = tokio::spawn(async move {
        let mut at = 0;
        while writing.write_all(&round(at)).await.is_ok() {
            at += 1;
            tokio::task::yield_now().await;
        }
    });
    lab.sink.events(30).await;
    let sink = Arc::clone(&lab.sink);
    let stopped = tokio::spawn(async move {
        lab.input.stop().await;
        lab
    });
    let mut answers = Vec::new();
    let end = tokio::time::timeout(PATIENCE, reading.read_to_end(&mut answers)).await.expect("a FIN in time");
    assert!(end.is_ok(), "{end:?}");
    let lab = tokio::time::timeout(PATIENCE, stopped).await.expect("in time").unwrap();
    tokio::time::timeout(PATIENCE, writer).await.expect("is ended").unwrap();
    let arrivals = sink.arrivals.lock().unwrap();
    let asked = arrivals.iter().filter_map(|arrival| arrival.sender_chunk.as_ref());
    let acks: Vec<u8> = asked.flat_map(|chunk| ack(std::str::from_utf8(chunk).unwrap())).collect();
    assert!(answers == acks, "{} bytes of acks for what would be {}", answers.len(), acks.len());
    // One follows the last stored message that asked in any case; more came after the FIN.
    let plain = arrivals.iter().rev().take_while(|arrival| arrival.sender_chunk.is_none()).count();
    assert!(plain > 1, "what asks for no ack is stored after the FIN");
    drop(arrivals);
    assert!(lab.figure("tributary_forward_late_total") > 0.0);
}

#[tokio::test]
async fn deny_keepalive_closes_after_the_first_message() {
    let lab = Lab::start(Recorder::default(), &[("deny_keepalive", "true")]);
    let mut client = lab.connect().await;
    client.write_all(&message("a", Some("1"))).await.unwrap();
    let (answer, end) = read_to_end(&mut client).await;
    assert_eq!((answer, end.is_ok()), (ack("1"), true));
}

#[tokio::test]
async fn tag_and_prefix_and_size_limit() {
    let params = [
        ("tag", "new"),
        ("add_tag_prefix", "pre"),
        ("chunk_size_limit", "40"),
        ("chunk_size_warn_limit", "1"),
    ];
    let lab = Lab::start(Recorder::default(), &params);
    let mut client = lab.connect().await;
    let long = message(&"x".repeat(60), Some("dropped"));
    client.write_all(&[message("a", None), long, message("b", Some("1"))].concat()).await.unwrap();
    read_exactly(&mut client, &ack("1")).await;
    assert_eq!(lab.sink.events(2).await, [("pre.new".into(), 1), ("pre.new".into(), 1)]);
}

#[tokio::test]
async fn memory_is_bounded_and_a_sender_that_finds_no_room_is_reset() {
    let memory = MemoryBudget::new(64 * 1024);
    let lab = Lab::start_with(Recorder::default(), &[], memory.clone(), |settings| {
        settings.memory_wait_limit = Duration::from_millis(50);
    });
    lab.sink.holding.send_replace(true);
    let mut packed = b"\x93\xa1t".to_vec();
    let entries = [&[0x92, 5][..], RECORD].concat().repeat(10_000);
    msgpack::write_bin(&mut packed, &entries);
    packed.push(0x80);
    let mut first = lab.connect().await;
    first.write_all(&packed).await.unwrap();
    lab.sink.events(10_000).await;
    assert_eq!(memory.used_bytes(), entries.len().div_ceil(1024) as u64 * 1024);
    let mut second = lab.connect().await;
    second.write_all(&packed).await.unwrap();
    assert!(is_reset(&read_to_end(&mut second).await.1));
    lab.sink.holding.send_replace(false);
    first.write_all(&message("a", Some("1"))).await.unwrap();
    read_exactly(&mut first, &ack("1")).await;
    lab.sink.events(10_001).await;
    drop((first, second));
    lab.until_figure("tributary_forward_connections", 0.0).await;
    assert_eq!(memory.used_bytes(), 0);
}

/// Large messages in many reads, compressed ones and small ones from several clients at once: all acked, all there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_and_compressed_messages_under_load() {
    use std::io::Write;
    let memory = MemoryBudget::new(16 << 20);
    let lab = Lab::start_with(Recorder::default(), &[], memory.clone(), |_| {});
    let entries = [&[0x92, 5][..], RECORD].concat().repeat(500_000);
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(&entries).unwrap();
    let gzip = gzip.finish().unwrap();
    let packed = |body: &[u8], compressed: &str, chunk: &str| {
        let mut out = b"\x93\xa1t".to_vec();
        msgpack::write_bin(&mut out, body);
        let options = vec![("chunk".into(), chunk.into()), ("compressed".into(), compressed.into())];
        out.extend_from_slice(&Value::Map(options).to_msgpack());
        out
    };
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..3 {
        let wire =
            [packed(&entries, "text", "1"), packed(&gzip, "gzip", "2"), message("s", Some("3"))].concat();
        let mut client = lab.connect().await;
        clients.spawn(async move {
            client.write_all(&wire).await.unwrap();
            read_exactly(&mut client, &[ack("1"), ack("2"), ack("3")].concat()).await;
        });
    }
    while let Some(done) = clients.join_next().await {
        done.unwrap();
    }
    lab.sink.events(3 * 1_000_001).await;
    lab.until_figure("tributary_forward_connections", 0.0).await;
    assert_eq!(memory.used_bytes(), 0);
}

/// Patience with an unfinished message counts from its first byte, however long the connection was idle before.
#[tokio::test]
async fn a_late_message_has_its_time() {
    let lab = Lab::start(Recorder::default(), &[]);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (stream, peer) = listener.accept().await.unwrap();
    let stop = lab.input.stop.subscribe();
    let mut connection = connection::Connection::new(stream, peer.ip(), Arc::clone(&lab.input.shared), stop);
    let start = Instant::now();
    assert!(connection.patience_for_test().unwrap() <= start + Duration::from_secs(300));
    connection.pretend(true, start);
    assert_eq!(connection.patience_for_test(), None);
    let long_ago = start.checked_sub(Duration::from_secs(100)).unwrap_or(start);
    connection.pretend(true, long_ago);
    client.write_all(b"\x93\xa1").await.unwrap();
    assert!(connection.read_for_test().await.unwrap() >= start + Duration::from_secs(60));
}

/// A slice of a long message pins its whole buffer: there must be little else in it, and a slow start of the next message
/// must not make it grow.
#[tokio::test]
async fn long_messages_of_one_sender_pin_little_more_than_themselves() {
    let lab = Lab::start(Recorder::default(), &[]);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (stream, peer) = listener.accept().await.unwrap();
    let stop = lab.input.stop.subscribe();
    let mut connection = connection::Connection::new(stream, peer.ip(), Arc::clone(&lab.input.shared), stop);
    let mut message = vec![0x93, 0xa1, b't', 5, 0x81, 0xa1, b'k'];
    msgpack::write_bin(&mut message, &vec![b'x'; 270_000]);
    let length = message.len();
    let sent = [&message[..], &message[..], &message[..1000]].concat();
    let sender = tokio::spawn(async move {
        client.write_all(&sent).await.unwrap();
        client
    });
    let capacity = connection.read_messages_for_test(2).await;
    assert!(capacity >= length && capacity < length + length / 8, "{capacity} bytes for one of {length}");
    drop(sender.await.unwrap());
}

#[test]
fn a_connection_has_its_share_and_more_while_there_is_room() {
    use connection::may_read;
    assert!(may_read(0, u64::MAX));
    assert!(may_read(1 << 20, 1 << 20), "alone, one may have all that a sync round needs");
    assert!(!may_read(1 << 20, 64 << 20));
}

/// What an idle connection costs beside the kernel's socket (F10, issue: below 4 KB).
#[tokio::test]
async fn an_idle_connection_is_small() {
    let lab = Lab::start(Recorder::default(), &[]);
    let client = lab.connect().await;
    let peer = client.local_addr().unwrap();
    let future = connection::serve(client, peer, Arc::clone(&lab.input.shared), lab.input.stop.subscribe());
    let size = std::mem::size_of_val(&future);
    println!("state of a connection: {size} bytes");
    assert!(size < 3072, "{size} bytes");
}

#[test]
fn configuration() {
    let read = |element: Element| {
        let mut diagnostics = Diagnostics::new();
        let config = configure(&element, &mut diagnostics);
        assert!(config.is_some() || diagnostics.has_faults());
        let faults: Vec<String> = diagnostics
            .iter()
            .filter(|item| item.severity == Severity::Fault)
            .map(|item| item.message.clone())
            .collect();
        faults.join("; ")
    };
    let source = || Element::new("source", "").with_param("@type", "forward");
    assert_eq!(read(source()), "");
    assert_eq!(
        read(source().with_child(Element::new("transport", "tcp").with_param("linger_timeout", "1"))),
        ""
    );
    assert_eq!(read(source().with_param("linger_timeout", "1").with_param("resolve_hostname", "false")), "");
    assert!(read(source().with_child(Element::new("transport", "tls"))).contains("<transport tls>"));
    assert!(read(source().with_child(Element::new("security", ""))).contains("<security>"));
    assert!(read(source().with_param("source_address_key", "x")).contains("source_address_key"));
    assert!(read(source().with_param("tag", "")).contains("'tag'"));
    let both = source().with_param("deny_keepalive", "true").with_param("send_keepalive_packet", "true");
    assert!(read(both).contains("deny_keepalive"));
}

#[tokio::test]
async fn a_taken_port_is_named() {
    let lab = Lab::start(Recorder::default(), &[]);
    let error = bind_both("127.0.0.1", lab.address.port(), None).unwrap_err();
    assert!(error.0.contains(&format!("127.0.0.1:{}", lab.address.port())), "{error}");
}

#[test]
fn limits_that_are_not_written_are_those_of_the_wire() {
    let mut diagnostics = Diagnostics::new();
    let params = ForwardInputParams::from_element(&Element::new("source", ""), &mut diagnostics);
    let reader = Settings::new(&params.expect("parameters")).reader;
    assert_eq!(reader.decompression_size_limit, ReaderSettings::default().decompression_size_limit);
    assert_eq!(reader.message_size_limit, ReaderSettings::default().message_size_limit);
}
