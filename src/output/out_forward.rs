//! `forward`: sends chunks to other forwarders (Fluentd, tributary, Fluent Bit, the OpenTelemetry Collector).
//!
//! ```text
//! <match app.**>
//!   @type forward
//!   <server>
//!     host aggregator1.example.com
//!   </server>
//!   <server>
//!     host aggregator2.example.com
//!     port 24224
//!   </server>
//!   <buffer>
//!     @type file
//!     path /var/log/tributary/buffer/forward
//!     flush_interval 1s
//!   </buffer>
//! </match>
//! ```
//!
//! Every address behind a host name is an upstream of its own, judged by what it answers: acks first, connects last.
//! A chunk that fails on one upstream goes to the next at once, with the same id; only when all failed does the
//! retry of `<buffer>` act. Several chunks travel on one connection before the first is acknowledged.
//!
//! `require_ack_response` unset means: a server that can acknowledge must. `true`: each must. `false`: a chunk counts
//! as delivered when the kernel took it.

use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;

use self::connection::Delivered;
use self::dispatch::Dispatcher;
use self::exchange::{AckMode, ExchangePolicy};
use self::health::{HealthPolicy, HeartbeatKind};
use self::message::Message;
use self::settings::{Destination, Settings};
use self::upstream::Server;
use crate::buffer::Chunk;
use crate::config::{BuildError, Diagnostics, Element, Seconds};
use crate::net::resolve;
use crate::output::buffer_section::Chunking;
use crate::output::{Buffering, Output, OutputConfig, OutputContext, OutputPlugin, WriteError};
use crate::params;

mod balancer;
mod connection;
mod dispatch;
mod exchange;
mod health;
mod message;
mod node;
mod probe;
mod settings;
mod upstream;

crate::config_enum! {
    /// `heartbeat_type`.
    pub enum HeartbeatType {
        /// Connect and close.
        Transport = "transport",
        /// The old name of `transport`.
        Tcp = "tcp",
        /// One datagram there, one back.
        Udp = "udp",
        /// No probes: deliveries tell.
        None = "none",
    }
}

params! {
    /// A server to forward to.
    pub struct ServerParams {
        /// Host name or address. Every address of a name is used.
        host: String,
        /// What the log calls it; `host:port` when not written.
        name: Option<String>,
        /// TCP port, and UDP port of `heartbeat_type udp`.
        port: u16 = "24224",
        /// Used only while weight of the other servers is lost.
        standby: bool = "false",
        /// Share of the chunks in relation to the other servers; 0 is never used.
        weight: u32 = "60",
    }
    unbuilt { "shared_key", "username", "password" }
}

params! {
    /// Sends chunks to other forwarders.
    pub struct ForwardParams {
        /// Where to send, at least one.
        #[section] server: Vec<ServerParams>,
        /// Whether servers must acknowledge chunks. Not written: those that can must.
        require_ack_response: Option<bool>,
        /// How long a chunk waits for its ack; 30 s when not written.
        ack_response_timeout: Option<Seconds>,
        /// How long a server may take none of the bytes sent to it; 5 s when not written.
        send_timeout: Option<Seconds>,
        /// Limit of a connect; 3.5 s when not written.
        connect_timeout: Option<Seconds>,
        /// How servers are probed in the background.
        heartbeat_type: HeartbeatType = "transport",
        /// How often.
        heartbeat_interval: Seconds = "1",
        /// How long probes must succeed before a lost server is used again. One that is needed is used at once.
        recover_wait: Seconds = "10",
        /// How often names are looked up; every 30 s when not written. The last good answer is kept.
        expire_dns_cache: Option<Seconds>,
        /// A server whose name has no address does not keep the output from starting.
        ignore_network_errors_at_startup: bool = "false",
        /// Each server must take a connection at the start.
        verify_connection_at_startup: bool = "false",
        /// Whether connections are kept for the next chunk. Not written: yes, up to 60 s. `false`: one per chunk.
        keepalive: Option<bool>,
        /// How long a connection is kept without a chunk.
        keepalive_timeout: Option<Seconds>,
    }
    unbuilt {
        "transport" unless "tcp",
        "compress" unless "text",
        "time_as_integer" unless "false",
        "<security>", "<service_discovery>",
        "tls_version", "tls_ciphers", "tls_insecure_mode", "tls_allow_self_signed_cert", "tls_verify_hostname",
        "tls_ca_cert_path", "tls_cert_path", "tls_client_cert_path", "tls_client_private_key_path",
        "tls_client_private_key_passphrase", "tls_cert_thumbprint", "tls_cert_logical_store_name",
        "tls_cert_use_enterprise_store"
    }
    inert {
        "hard_timeout" => "every step has a deadline of its own, and a failed one takes the server out at once",
        "phi_failure_detector" => "servers are judged by acks, send progress and probes, not by heartbeat gaps",
        "phi_threshold" => "servers are judged by acks, send progress and probes, not by heartbeat gaps",
        "dns_round_robin" => "all addresses of a name are used anyway",
        "send_keepalive_packet" => "TCP keepalive is always on",
        "read_interval_msec" => "reads wait for the socket, they do not poll",
        "read_length" => "reads take what is there"
    }
    removed {
        "host" => "write it into a <server> section",
        "port" => "write it into a <server> section"
    }
    foreign { "buffer", "secondary" }
}

/// The line in the table of outputs.
pub const PLUGIN: OutputPlugin = OutputPlugin {
    names: &["forward"],
    spec: &ForwardParams::SPEC,
    buffering: Buffering::Always {
        default_keys: &["tag"],
        default_type: "memory",
        default_timekey_seconds: None,
    },
    configure,
};

/// Servers of one output; each has a probe task.
const SERVERS_MAX: usize = 1000;
/// Durations are bounded by this, so that adding one to a clock never overflows.
const DURATION_MAX: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
/// Probes are never closer than this, whatever `heartbeat_interval` says.
const HEARTBEAT_INTERVAL_MIN: Duration = Duration::from_millis(100);

fn configure(
    element: &Element,
    chunking: Option<&Chunking>,
    diagnostics: &mut Diagnostics,
) -> Option<Box<dyn OutputConfig>> {
    if chunking.is_some_and(|chunking| !chunking.keys.tag) {
        let span = element.child("buffer").map_or(&element.span, |section| &section.span);
        diagnostics
            .fault(span, "buffer chunk key must include 'tag' to use forward")
            .expected("<buffer tag>, with further keys after a comma");
    }
    let params = ForwardParams::from_element(element, diagnostics)?;
    if params.server.is_empty() {
        diagnostics
            .fault(&params.span, "forward output plugin requires at least one node")
            .expected("a <server> section with the host to forward to");
        return None;
    }
    if params.server.len() > SERVERS_MAX {
        diagnostics.fault(
            &params.span,
            format!("forward output plugin takes at most {SERVERS_MAX} <server> sections"),
        );
        return None;
    }
    if params.ack_response_timeout.is_some_and(|seconds| seconds.0 < 1.0) {
        diagnostics.fault(&params.span, "ack_response_timeout must be at least 1 second");
        return None;
    }
    Some(Box::new(ForwardConfig { settings: settings_of(&params) }))
}

fn bounded(seconds: Seconds) -> Duration {
    seconds.duration().min(DURATION_MAX)
}

fn settings_of(params: &ForwardParams) -> Settings {
    let or = |written: Option<Seconds>, silent: Duration| written.map_or(silent, bounded);
    let destinations = params
        .server
        .iter()
        .map(|server| Destination {
            server: Server {
                name: server.name.clone().unwrap_or_else(|| format!("{}:{}", server.host, server.port)),
                weight: u64::from(server.weight),
                standby: server.standby,
            },
            host: server.host.clone(),
            port: server.port,
        })
        .collect();
    Settings {
        destinations,
        health: HealthPolicy {
            heartbeat: match params.heartbeat_type {
                HeartbeatType::Transport | HeartbeatType::Tcp => HeartbeatKind::Transport,
                HeartbeatType::Udp => HeartbeatKind::Udp,
                HeartbeatType::None => HeartbeatKind::None,
            },
            heartbeat_interval: bounded(params.heartbeat_interval).max(HEARTBEAT_INTERVAL_MIN),
            recover_wait: bounded(params.recover_wait),
            suspect_after: settings::SUSPECT_AFTER,
        },
        exchange: ExchangePolicy {
            mode: match params.require_ack_response {
                None => AckMode::Auto,
                Some(true) => AckMode::Required,
                Some(false) => AckMode::Off,
            },
            ack_deadline: or(params.ack_response_timeout, settings::ACK_DEADLINE),
            progress_deadline: or(params.send_timeout, settings::PROGRESS_DEADLINE)
                .max(Duration::from_millis(1)),
        },
        connect_deadline: or(params.connect_timeout, settings::CONNECT_DEADLINE)
            .max(Duration::from_millis(1)),
        hedge_after: settings::HEDGE_AFTER,
        connection_age_max: match params.keepalive {
            Some(false) => Duration::ZERO,
            Some(true) | None => settings::CONNECTION_AGE_MAX,
        },
        connection_idle_max: or(params.keepalive_timeout, settings::CONNECTION_AGE_MAX),
        resolve_interval: or(params.expire_dns_cache, settings::RESOLVE_INTERVAL)
            .max(settings::RESOLVE_INTERVAL_MIN),
        ignore_network_errors_at_startup: params.ignore_network_errors_at_startup
            || params.heartbeat_type == HeartbeatType::None,
        verify_connection_at_startup: params.verify_connection_at_startup,
    }
}

/// A checked configuration.
#[derive(Debug)]
struct ForwardConfig {
    settings: Settings,
}

impl OutputConfig for ForwardConfig {
    fn build(self: Box<Self>, context: OutputContext) -> Result<Arc<dyn Output>, BuildError> {
        let addresses = first_addresses(&self.settings, &context.plugin_id)?;
        if self.settings.verify_connection_at_startup {
            verify_connections(&self.settings, &addresses)?;
        }
        let dispatcher = Arc::new(Dispatcher::new(self.settings, &context.plugin_id, &addresses));
        Ok(Arc::new(OutForward { dispatcher }))
    }
}

/// The running output.
#[derive(Debug)]
struct OutForward {
    dispatcher: Arc<Dispatcher>,
}

impl Output for OutForward {
    fn start(self: Arc<Self>) {
        self.dispatcher.start();
    }

    fn write(&self, chunk: Arc<Chunk>) -> BoxFuture<'_, Result<(), WriteError>> {
        Box::pin(async move {
            let tag = dispatch::tag_of(&chunk)?;
            let message = Message::of_chunk(&chunk, &tag).ok_or_else(|| {
                WriteError::Unrecoverable(format!(
                    "a chunk of {} bytes is longer than a forward message can be (4 GiB)",
                    chunk.size_bytes
                ))
            })?;
            let delivered = self.dispatcher.deliver(chunk.id, message).await?;
            if delivered == Delivered::Unconfirmed {
                tracing::debug!(chunk_id = %chunk.id, "delivered, unconfirmed");
            }
            Ok(())
        })
    }

    /// Hides the round trip and the receiver's sync. With one flush thread and several servers, a server that
    /// accepts and never answers holds at most half of these (see `balancer`), the rest goes on.
    fn chunks_in_flight_per_thread(&self) -> usize {
        4
    }

    fn recovered(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.dispatcher.roster.recovered.notified())
    }

    fn stop(&self) -> BoxFuture<'_, ()> {
        Box::pin(async { self.dispatcher.stop() })
    }

    fn monitor_fields(&self) -> Vec<(&'static str, serde_json::Value)> {
        let roster = &self.dispatcher.roster;
        let (healthy, registered) = {
            let fleet = roster.fleet();
            (fleet.healthy_servers(), fleet.servers().len())
        };
        vec![
            ("healthy_nodes_count", healthy.into()),
            ("registered_nodes_count", registered.into()),
            ("unconfirmed_chunks_count", roster.unconfirmed.load(Ordering::Relaxed).into()),
        ]
    }
}

/// The addresses of each server at the start. All names are looked up at once and each within the deadline, so that
/// a slow name server delays the start by one deadline, not by one per server.
fn first_addresses(settings: &Settings, plugin_id: &str) -> Result<Vec<Vec<SocketAddr>>, BuildError> {
    let lookups: Vec<_> = settings
        .destinations
        .iter()
        .map(|destination| look_up(destination.host.clone(), destination.port))
        .collect();
    let deadline = Instant::now() + resolve::RESOLVE_DEADLINE;
    let (mut addresses, mut faults) = (Vec::new(), Vec::new());
    for (destination, lookup) in settings.destinations.iter().zip(lookups) {
        match lookup.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(Ok(found)) => addresses.push(found),
            failed => {
                let reason = match failed {
                    Ok(Err(error)) => error,
                    _ => format!("no answer within {} s", resolve::RESOLVE_DEADLINE.as_secs()),
                };
                faults
                    .push(format!("failed to resolve node name. hostname={:?}: {reason}", destination.host));
                addresses.push(Vec::new());
            }
        }
    }
    if faults.is_empty() {
        return Ok(addresses);
    }
    if settings.ignore_network_errors_at_startup {
        for fault in faults {
            tracing::warn!(plugin_id, "{fault}; it is used when it has an address");
        }
        return Ok(addresses);
    }
    Err(BuildError(format!(
        "{plugin_id}: {}; mend the name, or write ignore_network_errors_at_startup true",
        faults.join("; ")
    )))
}

/// Looks a name up in a thread of its own, because the system's resolver cannot be interrupted.
fn look_up(host: String, port: u16) -> mpsc::Receiver<Result<Vec<SocketAddr>, String>> {
    let (sender, receiver) = mpsc::sync_channel(1);
    let send = move || {
        let result = match resolve::literal(&host, port) {
            Some(address) => Ok(vec![address]),
            None => match (host.as_str(), port).to_socket_addrs() {
                Ok(found) => Ok(found.collect()),
                Err(error) => Err(error.to_string()),
            },
        };
        let _ = sender.send(result);
    };
    if let Err(error) = std::thread::Builder::new().name("resolve".into()).spawn(send) {
        tracing::warn!("cannot start a thread to look a name up: {error}");
    }
    receiver
}

/// Each server must take a connection on one of its addresses.
fn verify_connections(settings: &Settings, addresses: &[Vec<SocketAddr>]) -> Result<(), BuildError> {
    for (destination, known) in settings.destinations.iter().zip(addresses) {
        let mut failure = String::from("no address");
        let reached = known.iter().any(|address| {
            match std::net::TcpStream::connect_timeout(address, settings.connect_deadline) {
                Ok(_) => true,
                Err(error) => {
                    failure = format!("{address}: {error}");
                    false
                }
            }
        });
        if !reached {
            return Err(BuildError(format!(
                "failed to connect to '{}' at the start (verify_connection_at_startup): {failure}",
                destination.server.name
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
