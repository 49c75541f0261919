//! Station 5. Comes from: a buffer (chunks) or, for plugins without one, straight from the filters (streams).
//! Goes to: the world. `runner.rs` takes chunks and applies retry; `flush.rs` (in buffer) and `retry.rs` only decide.
//!
//! An output must not know inputs, and never touches a chunk's files.

pub mod buffer_section;
pub mod buffered;
pub mod direct;
pub mod out_copy;
mod out_file;
mod out_forward;
mod out_null;
pub mod out_relabel;
mod out_stdout;
pub mod placeholder;
pub mod retry;
pub mod runner;

use std::sync::Arc;

use futures_util::future::BoxFuture;

use crate::buffer::Chunk;
use crate::config::{BuildError, Diagnostics, Element, SectionSpec};
use crate::event::EventStream;
use crate::telemetry::PluginMetrics;
use buffer_section::Chunking;

/// Every output that is built. (copy and relabel are the router's: they have other outputs or labels behind them.)
pub const OUTPUTS: &[&OutputPlugin] =
    &[&out_file::PLUGIN, &out_forward::PLUGIN, &out_null::PLUGIN, &out_stdout::PLUGIN];

/// One line of the table of outputs.
pub struct OutputPlugin {
    /// Names for `@type`; the first is the proper one.
    pub names: &'static [&'static str],
    /// The parameters without `<buffer>`, which all buffered outputs share.
    pub spec: &'static SectionSpec,
    /// Whether it buffers.
    pub buffering: Buffering,
    /// Section text -> typed configuration.
    pub configure: Configure,
}

/// Section text -> typed configuration. Touches nothing; every fault goes to the diagnostics. The second argument is
/// what `<buffer>` says about chunk keys and time slots, already checked; `None` when there were faults.
pub type Configure = fn(&Element, Option<&Chunking>, &mut Diagnostics) -> Option<Box<dyn OutputConfig>>;

/// How a plugin stands to buffers.
#[derive(Clone, Copy, Debug)]
pub enum Buffering {
    /// Never: a `<buffer>` section is a fault (copy, relabel).
    Never,
    /// Only when `<buffer>` is written (stdout, null).
    Optional {
        /// Chunk keys when `<buffer>` has no argument.
        default_keys: &'static [&'static str],
    },
    /// Always (forward, file).
    Always {
        /// Chunk keys when `<buffer>` has no argument.
        default_keys: &'static [&'static str],
        /// `@type` of the buffer when not written: "memory" or "file".
        default_type: &'static str,
        /// Timekey in seconds when `time` is a key and none is written.
        default_timekey_seconds: Option<i64>,
    },
}

/// A checked configuration of an output.
pub trait OutputConfig: Send {
    /// Typed configuration -> running part; may resolve names and open things.
    fn build(self: Box<Self>, context: OutputContext) -> Result<Arc<dyn Output>, BuildError>;
    /// The path that a file buffer takes when `<buffer>` names none (out_file: the plugin's own path).
    fn default_buffer_path(&self) -> Option<String> {
        None
    }
}

/// What an output is given.
pub struct OutputContext {
    /// `@id`, or a generated `object:<hex>`.
    pub plugin_id: String,
    /// Its counters.
    pub metrics: Arc<PluginMetrics>,
    /// `<system>` settings.
    pub system: Arc<crate::config::SystemConfig>,
}

/// A running output.
pub trait Output: Send + Sync {
    /// Starts background tasks (probes, pools); inside the tokio runtime, before any input starts.
    fn start(self: Arc<Self>) {}

    /// Delivers one chunk. `Ok` means that the destination confirmed it and the chunk may be deleted.
    fn write(&self, chunk: Arc<Chunk>) -> BoxFuture<'_, Result<(), WriteError>>;

    /// Delivers streams without a buffer (only called when none is configured).
    fn process(&self, _streams: Vec<EventStream>) -> BoxFuture<'_, Result<(), WriteError>> {
        Box::pin(async { Err(WriteError::Unrecoverable("this output needs a buffer".into())) })
    }

    /// True when `write` needs the tag of each event although `tag` is no chunk key (out_file's lines show it). The
    /// sink then stores entries as `[tag, time, record]` ([`crate::event::with_tag`]) instead of `[time, record]`.
    fn wants_tag_in_entries(&self) -> bool {
        false
    }

    /// How many chunks may be in `write` at once per flush thread; above 1 means pipelining.
    fn chunks_in_flight_per_thread(&self) -> usize {
        1
    }

    /// Resolves when the destination is seen to be well again, for outputs that watch it: a retry that waits for its
    /// time is then made at once.
    fn recovered(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::pending())
    }

    /// Ends background tasks and closes connections; no `write` is running any more.
    fn stop(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }

    /// Additional fields for monitor_agent, in order (out_forward: healthy_nodes_count, registered_nodes_count).
    fn monitor_fields(&self) -> Vec<(&'static str, serde_json::Value)> {
        Vec::new()
    }

    /// Figures of its own for `/metrics` (out_forward: health of each upstream).
    fn samples(&self) -> Vec<crate::telemetry::Sample> {
        Vec::new()
    }
}

/// Why a chunk was not delivered. The one question it answers: what to do with the chunk.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The destination is unwell: back off, the chunk's own counter stays.
    #[error("{0}")]
    Unwell(String),
    /// The destination answered and refused this chunk: back off, count against the chunk.
    #[error("{0}")]
    Refused(String),
    /// No retry can help: to secondary or backup.
    #[error("{0}")]
    Unrecoverable(String),
}
