//! Station 1. Comes from: sockets, timers. Goes to: the router, as batches of arrivals.
//!
//! An input must not know outputs or buffers; it learns from the router's answer whether it may confirm.

mod http_server;
mod in_debug_agent;
mod in_forward;
mod in_monitor_agent;
mod in_prometheus;
mod in_sample;

use std::sync::Arc;

use futures_util::future::BoxFuture;

use crate::config::{BuildError, Diagnostics, Element, SectionSpec};
use crate::net::budget::MemoryBudget;
use crate::router::Entrance;
use crate::telemetry::{PluginMetrics, Reading, Sample};

/// Every input that is built.
pub const INPUTS: &[&InputPlugin] = &[
    &in_forward::PLUGIN,
    &in_sample::PLUGIN,
    &in_monitor_agent::PLUGIN,
    &in_prometheus::PLUGIN,
    &in_prometheus::MONITOR,
    &in_prometheus::OUTPUT_MONITOR,
    &in_prometheus::TAIL_MONITOR,
    &in_debug_agent::PLUGIN,
];

use in_monitor_agent::available_percent;

/// One line of the table of inputs.
pub struct InputPlugin {
    /// Names for `@type`; the first is the proper one.
    pub names: &'static [&'static str],
    /// The parameters: parser, help and docs come from here.
    pub spec: &'static SectionSpec,
    /// Section text -> typed configuration. Touches nothing; every fault goes to the diagnostics.
    pub configure: fn(&Element, &mut Diagnostics) -> Option<Box<dyn InputConfig>>,
}

/// A checked configuration of an input.
pub trait InputConfig: Send {
    /// Typed configuration -> running part; may resolve names and bind sockets. Nothing is read before `start`.
    fn build(self: Box<Self>, context: InputContext) -> Result<Box<dyn Input>, BuildError>;
}

/// What an input is given.
pub struct InputContext {
    /// `@id`, or a generated `object:<hex>`.
    pub plugin_id: String,
    /// Where its events go.
    pub entrance: Entrance,
    /// Its counters, shown by monitor_agent and prometheus.
    pub metrics: Arc<PluginMetrics>,
    /// Everything that is running, for the inputs that only report (monitor_agent, prometheus).
    pub overview: Arc<crate::telemetry::Overview>,
    /// `<system>` settings.
    pub system: Arc<crate::config::SystemConfig>,
    /// Bytes of events in transit (`<system> memory_limit`): one for the process, clones share it.
    pub memory: MemoryBudget,
}

/// A running input. `build` and `start` run inside the tokio runtime.
pub trait Input: Send {
    /// Spawns its tasks and begins to take events.
    fn start(&mut self);
    /// Stops accepting, stores what was read, sends the acks owed; resolves when nothing of it runs any more.
    /// The caller puts a deadline around it.
    fn stop(&mut self) -> BoxFuture<'_, ()>;
    /// Figures of its own for `/metrics` (open connections, acks).
    fn samples(&self) -> Option<Reading<Vec<Sample>>> {
        None
    }
}

#[cfg(test)]
mod tests;
