//! Our own log (Fluentd's format) and metrics, and what monitors see of all that runs (`overview.rs`).

pub mod log;
mod overview;
pub mod rate;

use std::sync::atomic::AtomicU64;

pub use overview::{
    Category, MetricFamily, Overview, PluginView, ProcessInfo, Reading, RetryStatus, Sample, SampleKind,
    TagTest,
};

/// Counters of one plugin. Fluentd's monitor_agent names; all only grow.
#[derive(Debug, Default)]
pub struct PluginMetrics {
    /// Events taken in.
    pub emit_records: AtomicU64,
    /// Streams taken in.
    pub emit_count: AtomicU64,
    /// Bytes of entries taken in.
    pub emit_bytes: AtomicU64,
    /// Errors since start, emit and flush together (`retry_count`, `num_errors`).
    pub errors: AtomicU64,
    /// Chunks delivered.
    pub write_count: AtomicU64,
    /// Chunks given to `<secondary>`.
    pub write_secondary_count: AtomicU64,
    /// Chunks put back.
    pub rollback_count: AtomicU64,
    /// Writes over `slow_flush_log_threshold`.
    pub slow_flush_count: AtomicU64,
    /// Milliseconds spent in writes.
    pub flush_time_ms: AtomicU64,
    /// Values replaced because the text to be written cannot hold them (bytes that are not UTF-8, NaN).
    pub replaced_values: AtomicU64,
    /// Events dropped by this plugin (invalid entries, no match, overflow), reason in the log.
    pub dropped_records: AtomicU64,
}
