//! The checked settings of one output, in the units that the code works with.

use std::time::Duration;

use super::exchange::ExchangePolicy;
use super::health::HealthPolicy;
use super::upstream::Server;

/// Limit of a connect when the configuration is silent: one lost SYN is sent again after 1.02 s, the next after
/// 3.1 s, so a shorter limit would fail healthy hosts on a lossy line.
pub const CONNECT_DEADLINE: Duration = Duration::from_millis(3500);
/// After this long without a connection the chunk is offered to the next upstream as well.
pub const HEDGE_AFTER: Duration = Duration::from_secs(1);
/// A server that has not finished a chunk after this long gets nothing new while another is well. Well above what a
/// receiver needs to store and sync a chunk.
pub const SUSPECT_AFTER: Duration = Duration::from_secs(1);
/// `ack_response_timeout` when the configuration is silent. Fluentd waits 190 s, far beyond any receiver that will
/// still answer; a chunk that waits is a chunk that nobody else delivers.
pub const ACK_DEADLINE: Duration = Duration::from_secs(30);
/// Longest time without any TCP acknowledgement of sent bytes.
pub const PROGRESS_DEADLINE: Duration = Duration::from_secs(5);
/// Connections are replaced at this age, between two chunks, so that balancers and new aggregators get their share.
pub const CONNECTION_AGE_MAX: Duration = Duration::from_secs(60);
/// Names are looked up again this often when `expire_dns_cache` does not say otherwise.
pub const RESOLVE_INTERVAL: Duration = Duration::from_secs(30);
/// Names are looked up this often while none of their addresses is in the rotation: they may have moved.
pub const RESOLVE_LOST_INTERVAL: Duration = Duration::from_secs(3);
/// Names are never looked up more often than this, whatever `expire_dns_cache` says (0 means each time in Fluentd).
pub const RESOLVE_INTERVAL_MIN: Duration = Duration::from_secs(1);

/// A `<server>` with what is needed to reach it.
#[derive(Clone, Debug)]
pub struct Destination {
    /// What the log calls it, its weight, standby.
    pub server: Server,
    /// Host name or address.
    pub host: String,
    /// TCP port, and UDP port of heartbeats.
    pub port: u16,
}

/// The settings of one output.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where to.
    pub destinations: Vec<Destination>,
    /// When upstreams are used.
    pub health: HealthPolicy,
    /// When a chunk counts as delivered.
    pub exchange: ExchangePolicy,
    /// Limit of a connect.
    pub connect_deadline: Duration,
    /// When a slow connect makes the chunk go elsewhere as well.
    pub hedge_after: Duration,
    /// Oldest age of a connection.
    pub connection_age_max: Duration,
    /// Longest time that a connection stays open without a chunk.
    pub connection_idle_max: Duration,
    /// How often names are looked up.
    pub resolve_interval: Duration,
    /// Names without an address do not keep the output from starting.
    pub ignore_network_errors_at_startup: bool,
    /// Each server must be reachable at the start.
    pub verify_connection_at_startup: bool,
}
