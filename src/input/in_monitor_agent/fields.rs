//! The fields of one plugin in the order of Fluentd's `in_monitor_agent.rb`. Pure.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use serde_json::{Map, Value as Json, json};

use crate::buffer::BufferStats;
use crate::event::EventTime;
use crate::telemetry::{Category, PluginView, RetryStatus};
use crate::time::{TimeFormat, Zone};

/// Fields that are shown only when asked for.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Include {
    /// `include_config`
    pub(super) config: bool,
    /// `include_retry`
    pub(super) retry: bool,
}

/// All fields of a plugin.
pub(super) fn plugin_fields(view: &PluginView, include: Include) -> Map<String, Json> {
    let mut fields = Map::new();
    let mut put = |name: &str, value: Json| drop(fields.insert(name.to_owned(), value));
    let metrics = &view.metrics;
    let read = |counter: &AtomicU64| json!(counter.load(Ordering::Relaxed));
    let buffer = view.buffer.as_ref().map(|reading| reading());
    put("plugin_id", json!(view.plugin_id));
    put("plugin_category", json!(view.category.as_str()));
    put("type", json!(view.type_name));
    if include.config {
        put("config", view.config.iter().map(|(key, value)| (key.clone(), json!(value))).collect());
    }
    put("output_plugin", json!(view.is_output));
    if let Some(stats) = &buffer {
        put("buffer_queue_length", json!(stats.queue_length));
        put("buffer_timekeys", json!(stats.timekeys));
        put("buffer_total_queued_size", json!(stats.stage_bytes.saturating_add(stats.queue_bytes)));
    }
    let is_any_output = view.category == Category::Output;
    put("retry_count", if is_any_output { read(&metrics.errors) } else { Json::Null });
    if is_any_output && !view.is_output {
        return fields;
    }
    put("emit_records", read(&metrics.emit_records));
    put("emit_size", read(&metrics.emit_bytes));
    if is_any_output {
        put("emit_count", read(&metrics.emit_count));
        put("write_count", read(&metrics.write_count));
        put("write_secondary_count", read(&metrics.write_secondary_count));
        put("rollback_count", read(&metrics.rollback_count));
        put("slow_flush_count", read(&metrics.slow_flush_count));
        put("flush_time_count", read(&metrics.flush_time_ms));
        put("drop_oldest_chunk_count", json!(buffer.as_ref().map_or(0, |stats| stats.dropped_chunks)));
    }
    if let Some(stats) = &buffer {
        put("buffer_stage_length", json!(stats.stage_length));
        put("buffer_stage_byte_size", json!(stats.stage_bytes));
        put("buffer_queue_byte_size", json!(stats.queue_bytes));
        put("buffer_available_buffer_space_ratios", json!(available_percent(stats)));
        if let (Some(oldest), Some(newest)) = (stats.timekeys.first(), stats.timekeys.last()) {
            put("buffer_oldest_timekey", json!(oldest));
            put("buffer_newest_timekey", json!(newest));
        }
    }
    for (name, value) in view.fields.as_ref().map(|reading| reading()).unwrap_or_default() {
        put(name, value);
    }
    if include.retry && is_any_output {
        put("retry", view.retry.as_ref().and_then(|reading| reading()).map_or_else(|| json!({}), retry));
    }
    fields
}

/// Free space of a buffer in percent, one decimal, as Fluentd rounds it.
pub(in crate::input) fn available_percent(stats: &BufferStats) -> f64 {
    let used = stats.stage_bytes.saturating_add(stats.queue_bytes) as f64;
    let share = if stats.total_limit_bytes == 0 { 0.0 } else { used / stats.total_limit_bytes as f64 };
    ((1.0 - share) * 1000.0).round() / 10.0
}

fn retry(status: RetryStatus) -> Json {
    json!({
        "start": time_text(status.start),
        "steps": status.steps,
        "next_time": time_text(status.next_time),
    })
}

fn time_text(time: SystemTime) -> String {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let time = EventTime::Int(i64::try_from(since.as_secs()).unwrap_or(i64::MAX));
    TimeFormat::parse("%Y-%m-%d %H:%M:%S %z").text(time, &Zone::local())
}
