//! Takes events over the forward protocol: from Fluentd, Fluent Bit, client libraries and other tributaries.
//!
//! ```text
//! <source>
//!   @type forward
//!   port 24224
//!   bind 0.0.0.0
//! </source>
//! <match **>
//!   @type stdout
//! </match>
//! ```
//!
//! A message with a `chunk` option is acknowledged after every buffer behind the input has taken its events. When one
//! of them refuses, acks already owed are sent and that connection is reset, so that the sender turns to another
//! aggregator at once; while all of them are full, new connections are reset and UDP heartbeats stay unanswered.
//! Clients that have spoken may be silent for ever; vanished hosts are found by TCP keepalive.
//!
//! Parameters are those of Fluentd's `in_forward.rb`, and three of our own.

mod batch;
mod connection;
mod replies;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use super::{Input, InputConfig, InputContext, InputPlugin};
use crate::config::{BuildError, Diagnostics, Element, Seconds, SizeBytes};
use crate::event::Tag;
use crate::forward::{MESSAGE_SIZE_LIMIT_BYTES, ReaderSettings};
use crate::net::budget::MemoryBudget;
use crate::net::heartbeat::HeartbeatSocket;
use crate::net::listener::{self, Acceptor};
use crate::net::resolve;
use crate::router::Entrance;
use crate::telemetry::{PluginMetrics, Reading, Sample, SampleKind};

crate::params! {
    /// Takes events over the forward protocol (TCP, with UDP heartbeats on the same port).
    pub struct ForwardInputParams {
        /// Port for TCP and UDP.
        port: u16 = "24224",
        /// Address or host name to bind.
        bind: String = "0.0.0.0",
        /// Connections that may wait to be accepted; the system's ceiling cuts it.
        backlog: Option<i64>,
        /// Close each connection after its first message (after the ack, if one is wanted).
        deny_keepalive: bool = "false",
        /// Send TCP keepalive probes. Always on here; only the conflict with deny_keepalive is checked.
        send_keepalive_packet: bool = "false",
        /// Warn about messages larger than this.
        chunk_size_warn_limit: Option<SizeBytes>,
        /// Drop messages larger than this, with a warning and without ack.
        chunk_size_limit: Option<SizeBytes>,
        /// Most bytes that one compressed message may inflate to; more ends the connection.
        decompression_size_limit: SizeBytes = "256m",
        /// False turns a nil time into now instead of dropping the event.
        skip_invalid_event: bool = "true",
        /// Replaces the incoming tag.
        tag: Option<String>,
        /// Goes before the tag, with a dot between.
        add_tag_prefix: Option<String>,
        /// Ours: a client that has not sent anything this long after connecting is closed.
        first_message_timeout: Seconds = "5m",
        /// Ours: how long a message may stay unfinished, beyond one second for each 16 KiB of it.
        message_timeout: Seconds = "60s",
        /// Ours: silence after which TCP probes whether the peer's host is still there.
        keepalive_time: Seconds = "60s",
    }
    unbuilt {
        "source_address_key", "source_hostname_key", "resolve_hostname" unless "false" | "no", "<security>",
        "<user>", "<client>"
    }
    inert {
        "linger_timeout" => "connections are closed with FIN, and with a reset where the peer has to know at once",
        "blocking_timeout" => "reading never blocks"
    }
    foreign { "transport" }
}

/// The line in the table of inputs.
pub const PLUGIN: InputPlugin =
    InputPlugin { names: &["forward"], spec: &ForwardInputParams::SPEC, configure };

fn configure(element: &Element, diagnostics: &mut Diagnostics) -> Option<Box<dyn InputConfig>> {
    let mut sound = check_transport(element, diagnostics);
    let params = ForwardInputParams::from_element(element, diagnostics)?;
    let mut fault = |key: &str, text: &str| {
        let span =
            element.params.iter().find(|param| param.key == key).map_or(&element.span, |param| &param.span);
        diagnostics.fault(span, text);
        sound = false;
    };
    if params.tag.as_deref() == Some("") {
        fault("tag", "'tag' parameter must not be empty");
    }
    if params.add_tag_prefix.as_deref() == Some("") {
        fault("add_tag_prefix", "'add_tag_prefix' parameter must not be empty");
    }
    if params.deny_keepalive && params.send_keepalive_packet {
        fault(
            "send_keepalive_packet",
            "both 'send_keepalive_packet' and 'deny_keepalive' cannot be set to true",
        );
    }
    sound.then(|| Box::new(Config { params }) as Box<dyn InputConfig>)
}

/// `<transport tcp>` says what is so anyway; TLS that is not built must not open a plain port instead.
fn check_transport(element: &Element, diagnostics: &mut Diagnostics) -> bool {
    let mut sound = true;
    for transport in element.children_named("transport") {
        transport.mark_all_used();
        if !matches!(transport.argument.as_str(), "" | "tcp") {
            diagnostics
                .fault(
                    &transport.span,
                    format!("section {} is known to Fluentd but not built yet", transport.tag()),
                )
                .expected("<transport tcp>, or no <transport> section");
            sound = false;
        }
    }
    sound
}

struct Config {
    params: ForwardInputParams,
}

/// Ports to try when port 0 lets the system choose one for TCP that is taken for UDP.
const PORT_ATTEMPTS: usize = 16;

impl InputConfig for Config {
    fn build(self: Box<Self>, context: InputContext) -> Result<Box<dyn Input>, BuildError> {
        ForwardInput::bind(&self.params, context).map(|input| Box::new(input) as Box<dyn Input>)
    }
}

/// What the connections need to know.
#[derive(Debug)]
struct Settings {
    reader: ReaderSettings,
    tag: Option<Tag>,
    tag_prefix: Option<Vec<u8>>,
    deny_keepalive: bool,
    chunk_size_warn_limit: Option<usize>,
    first_message_timeout: Duration,
    message_timeout: Duration,
    keepalive_time: Duration,
    /// [`MEMORY_WAIT_LIMIT`]; shorter in tests.
    memory_wait_limit: Duration,
}

/// Longest wait for room in the memory budget before the connection is reset. A receiver that just stops reading
/// freezes an old Fluentd for good.
const MEMORY_WAIT_LIMIT: Duration = Duration::from_secs(5);

impl Settings {
    fn new(params: &ForwardInputParams) -> Self {
        let size = |size: SizeBytes| usize::try_from(size.0).unwrap_or(usize::MAX);
        Self {
            reader: ReaderSettings {
                message_size_limit: MESSAGE_SIZE_LIMIT_BYTES,
                decompression_size_limit: params.decompression_size_limit.0,
                skip_invalid_event: params.skip_invalid_event,
                chunk_size_limit: params.chunk_size_limit.map(size),
            },
            tag: params.tag.as_deref().map(Tag::from),
            tag_prefix: params.add_tag_prefix.as_ref().map(|prefix| format!("{prefix}.").into_bytes()),
            deny_keepalive: params.deny_keepalive,
            chunk_size_warn_limit: params.chunk_size_warn_limit.map(size),
            first_message_timeout: params.first_message_timeout.duration(),
            message_timeout: params.message_timeout.duration(),
            keepalive_time: params.keepalive_time.duration().max(Duration::from_secs(1)),
            memory_wait_limit: MEMORY_WAIT_LIMIT,
        }
    }
}

/// Figures beyond those of every plugin.
#[derive(Debug, Default)]
struct Counters {
    open: AtomicU64,
    accepted: AtomicU64,
    refused: AtomicU64,
    resets: AtomicU64,
    received_bytes: AtomicU64,
    messages: AtomicU64,
    acks: AtomicU64,
    torn_bytes: AtomicU64,
    signals: AtomicU64,
    late: AtomicU64,
}

impl Counters {
    fn add(counter: &AtomicU64, value: usize) {
        counter.fetch_add(value as u64, Ordering::Relaxed);
    }

    /// The page adds the label `plugin_id`.
    fn samples(&self) -> Vec<Sample> {
        use SampleKind::{Counter, Gauge};
        let figures: [(&'static str, &'static str, SampleKind, &AtomicU64); 10] = [
            ("tributary_forward_connections", "Open connections.", Gauge, &self.open),
            ("tributary_forward_accepted_total", "Connections accepted.", Counter, &self.accepted),
            (
                "tributary_forward_refused_total",
                "Connections reset at once because every buffer was full.",
                Counter,
                &self.refused,
            ),
            ("tributary_forward_resets_total", "Connections ended with a reset.", Counter, &self.resets),
            (
                "tributary_forward_received_bytes_total",
                "Bytes of messages read.",
                Counter,
                &self.received_bytes,
            ),
            ("tributary_forward_messages_total", "Messages read.", Counter, &self.messages),
            (
                "tributary_forward_late_total",
                "Messages that asked for an ack after our FIN at a stop, left to their senders to send again.",
                Counter,
                &self.late,
            ),
            ("tributary_forward_acks_total", "Acknowledgements sent.", Counter, &self.acks),
            (
                "tributary_forward_torn_bytes_total",
                "Bytes of cut records at the end of packed entries, left out.",
                Counter,
                &self.torn_bytes,
            ),
            (
                "tributary_forward_signals_total",
                "Messages of Fluent Bit that carry metrics, traces or profiles, left out.",
                Counter,
                &self.signals,
            ),
        ];
        figures
            .into_iter()
            .map(|(name, help, kind, value)| Sample {
                name,
                help,
                kind,
                labels: Vec::new(),
                value: value.load(Ordering::Relaxed) as f64,
            })
            .collect()
    }
}

/// What all connections of one input share.
struct Shared {
    plugin_id: String,
    settings: Settings,
    entrance: Entrance,
    memory: MemoryBudget,
    metrics: Arc<PluginMetrics>,
    counters: Arc<Counters>,
    /// Bounds the threads that inflate: one per core, so that a flood of gzip cannot take more.
    inflaters: tokio::sync::Semaphore,
}

/// The running input.
pub struct ForwardInput {
    shared: Arc<Shared>,
    /// Taken by `start`.
    sockets: Option<(Acceptor, HeartbeatSocket)>,
    tasks: Vec<JoinHandle<()>>,
    stop: watch::Sender<bool>,
}

impl ForwardInput {
    fn bind(params: &ForwardInputParams, context: InputContext) -> Result<Self, BuildError> {
        let InputContext { plugin_id, entrance, metrics, memory, .. } = context;
        let backlog = params.backlog.map(|backlog| i32::try_from(backlog).unwrap_or(i32::MAX));
        let (acceptor, heartbeats) = bind_both(&params.bind, params.port, backlog)?;
        let shared = Shared {
            plugin_id,
            settings: Settings::new(params),
            entrance,
            memory,
            metrics,
            counters: Arc::default(),
            inflaters: tokio::sync::Semaphore::new(
                std::thread::available_parallelism().map_or(1, usize::from),
            ),
        };
        Ok(Self {
            shared: Arc::new(shared),
            sockets: Some((acceptor, heartbeats)),
            tasks: Vec::new(),
            stop: watch::channel(false).0,
        })
    }
}

/// Binds TCP and UDP to the same port, on the first address of the name that can be bound.
fn bind_both(bind: &str, port: u16, backlog: Option<i32>) -> Result<(Acceptor, HeartbeatSocket), BuildError> {
    let addresses = resolve::resolve_blocking(bind, port)
        .map_err(|error| BuildError(format!("cannot resolve bind address {bind}: {error}")))?;
    let mut failed = String::from("no address");
    for address in addresses {
        match bind_address(address, backlog) {
            Ok(sockets) => return Ok(sockets),
            Err((what, error)) => failed = format!("({what}): {error}"),
        }
    }
    Err(BuildError(format!("cannot listen on {bind}:{port} {failed}; is another process using the port?")))
}

/// Binds one address; the error says which protocol failed.
fn bind_address(
    address: SocketAddr,
    backlog: Option<i32>,
) -> Result<(Acceptor, HeartbeatSocket), (&'static str, std::io::Error)> {
    let mut attempts = if address.port() == 0 { PORT_ATTEMPTS } else { 1 };
    loop {
        attempts -= 1;
        let listener = listener::listen(address, backlog).map_err(|error| ("tcp", error))?;
        let local = listener.local_addr().map_err(|error| ("tcp", error))?;
        match HeartbeatSocket::bind(local) {
            Ok(heartbeats) => return Ok((Acceptor::new(listener), heartbeats)),
            Err(error) if attempts == 0 => return Err(("udp", error)),
            Err(_) => {}
        }
    }
}

impl Input for ForwardInput {
    fn start(&mut self) {
        let Some((acceptor, heartbeats)) = self.sockets.take() else { return };
        if let Ok(address) = acceptor.local_addr() {
            tracing::info!(
                plugin_id = %self.shared.plugin_id,
                port = address.port(),
                bind = %address.ip(),
                "listening port"
            );
        }
        let stop = self.stop.subscribe();
        self.tasks.push(tokio::spawn(accept_connections(acceptor, Arc::clone(&self.shared), stop.clone())));
        self.tasks.push(tokio::spawn(answer_heartbeats(heartbeats, Arc::clone(&self.shared), stop)));
    }

    fn stop(&mut self) -> BoxFuture<'_, ()> {
        self.stop.send_replace(true);
        self.sockets = None;
        Box::pin(async {
            for task in self.tasks.drain(..) {
                if let Err(error) = task.await {
                    tracing::error!(plugin_id = %self.shared.plugin_id, %error, "a task of the input ended badly");
                }
            }
        })
    }

    fn samples(&self) -> Option<Reading<Vec<Sample>>> {
        let shared = Arc::clone(&self.shared);
        Some(Arc::new(move || shared.counters.samples()))
    }
}

/// Accepts until told to stop, then waits for every connection to end.
async fn accept_connections(mut acceptor: Acceptor, shared: Arc<Shared>, mut stop: watch::Receiver<bool>) {
    let mut connections = JoinSet::new();
    let connection_stop = stop.clone();
    loop {
        tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => break,
            Some(ended) = connections.join_next(), if !connections.is_empty() => {
                log_panic(&shared, ended);
            }
            (stream, peer) = acceptor.accept() => {
                Counters::add(&shared.counters.accepted, 1);
                if shared.entrance.is_full() {
                    Counters::add(&shared.counters.refused, 1);
                    listener::reset(stream);
                    continue;
                }
                connections.spawn(connection::serve(stream, peer, Arc::clone(&shared), connection_stop.clone()));
            }
        }
    }
    drop(acceptor);
    while let Some(ended) = connections.join_next().await {
        log_panic(&shared, ended);
    }
}

fn log_panic(shared: &Shared, ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended {
        tracing::error!(plugin_id = %shared.plugin_id, %error, "a connection's task ended badly");
    }
}

/// Pause after a failed receive, so that a broken socket cannot spin.
const HEARTBEAT_RETRY_PAUSE: Duration = Duration::from_millis(100);

/// Answers each datagram with one zero byte while there is room for events.
async fn answer_heartbeats(socket: HeartbeatSocket, shared: Arc<Shared>, mut stop: watch::Receiver<bool>) {
    loop {
        let ask = tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => return,
            ask = socket.receive() => ask,
        };
        match ask {
            Ok(ask) if !shared.entrance.is_full() => {
                // A lost answer is like a lost datagram: the sender asks again.
                let _ = socket.answer(&ask, &[0]);
            }
            Ok(_) => {}
            Err(_) => tokio::time::sleep(HEARTBEAT_RETRY_PAUSE).await,
        }
    }
}
