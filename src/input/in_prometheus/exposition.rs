//! Figures as Prometheus' text format. Pure but for the readings of the overview.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use crate::buffer::BufferStats;
use crate::input::available_percent;
use crate::telemetry::{Category, MetricFamily, Overview, PluginView, Sample, SampleKind};

/// The whole page; `process` are figures of the process.
pub(super) fn text(overview: &Overview, process: Vec<Sample>) -> String {
    let views: Vec<Read> = overview.plugins().into_iter().map(Read::new).collect();
    let mut page = Page::default();
    status(&mut page, &views, &overview.metric_labels(MetricFamily::Status));
    output_status(&mut page, &views, &overview.metric_labels(MetricFamily::OutputStatus));
    own(&mut page, &views, SystemTime::now());
    for read in &views {
        for mut sample in read.view.samples.as_ref().map(|reading| reading()).unwrap_or_default() {
            sample.labels.insert(0, ("plugin_id", read.view.plugin_id.clone()));
            page.sample(sample);
        }
    }
    overview.samples().into_iter().chain(process).for_each(|sample| page.sample(sample));
    page.finish()
}

/// A plugin with the figures of its buffer, read once for all metrics.
struct Read {
    view: PluginView,
    buffer: Option<BufferStats>,
}

impl Read {
    fn new(view: PluginView) -> Self {
        let buffer = view.buffer.as_ref().map(|reading| reading());
        Self { view, buffer }
    }

    fn is_ordinary_output(&self) -> bool {
        self.view.category == Category::Output && self.view.is_output
    }
}

/// Metrics in the order of their first mention, the lines of each together.
#[derive(Default)]
struct Page {
    families: Vec<Family>,
}

struct Family {
    name: String,
    head: String,
    lines: String,
}

impl Page {
    fn add(&mut self, name: &str, help: &str, kind: SampleKind, labels: &[(&str, &str)], value: f64) {
        let at = self.families.iter().position(|family| family.name == name).unwrap_or_else(|| {
            let kind = if kind == SampleKind::Counter { "counter" } else { "gauge" };
            let head = format!("# HELP {name} {}\n# TYPE {name} {kind}\n", help.replace('\n', " "));
            self.families.push(Family { name: name.to_owned(), head, lines: String::new() });
            self.families.len() - 1
        });
        let Some(family) = self.families.get_mut(at) else { return };
        family.lines.push_str(name);
        for (index, (label, text)) in labels.iter().enumerate() {
            family.lines.push(if index == 0 { '{' } else { ',' });
            let text = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            // Writing to a String cannot fail.
            let _ = write!(family.lines, "{label}=\"{text}\"");
        }
        if !labels.is_empty() {
            family.lines.push('}');
        }
        let _ = writeln!(family.lines, " {value}");
    }

    fn sample(&mut self, sample: Sample) {
        let labels: Vec<(&str, &str)> =
            sample.labels.iter().map(|(name, text)| (*name, text.as_str())).collect();
        self.add(sample.name, sample.help, sample.kind, &labels, sample.value);
    }

    fn finish(self) -> String {
        self.families.into_iter().map(|family| family.head + &family.lines).collect()
    }
}

/// Labels of `<labels>` behind our own. Prometheus refuses the whole page when a line names a label twice, so ours stay
/// and a second of the same name is left out.
fn with_extra<'a>(own: &[(&'a str, &'a str)], extra: &'a [(String, String)]) -> Vec<(&'a str, &'a str)> {
    let mut labels = own.to_vec();
    for (name, text) in extra {
        if labels.iter().all(|(known, _)| known != name) {
            labels.push((name, text));
        }
    }
    labels
}

/// What `prometheus_monitor` shows.
fn status(page: &mut Page, views: &[Read], extra: &[(String, String)]) {
    for read in views {
        let own = [
            ("plugin_id", read.view.plugin_id.as_str()),
            ("plugin_category", read.view.category.as_str()),
            ("type", read.view.type_name.as_str()),
        ];
        let labels = with_extra(&own, extra);
        let mut gauge =
            |name: &str, help: &str, value: f64| page.add(name, help, SampleKind::Gauge, &labels, value);
        if let Some(stats) = &read.buffer {
            gauge(
                "fluentd_status_buffer_queue_length",
                "Current buffer queue length.",
                stats.queue_length as f64,
            );
            let bytes = stats.stage_bytes.saturating_add(stats.queue_bytes);
            gauge("fluentd_status_buffer_total_bytes", "Current total size of queued buffers.", bytes as f64);
            timekeys(stats, "fluentd_status", &mut gauge);
        }
        if read.view.category == Category::Output {
            let errors = read.view.metrics.errors.load(Ordering::Relaxed);
            gauge("fluentd_status_retry_count", "Current retry counts.", errors as f64);
        }
    }
}

fn timekeys(stats: &BufferStats, prefix: &str, gauge: &mut impl FnMut(&str, &str, f64)) {
    if let (Some(oldest), Some(newest)) = (stats.timekeys.first(), stats.timekeys.last()) {
        gauge(&format!("{prefix}_buffer_newest_timekey"), "Newest timekey in buffer.", *newest as f64);
        gauge(&format!("{prefix}_buffer_oldest_timekey"), "Oldest timekey in buffer.", *oldest as f64);
    }
}

/// What `prometheus_output_monitor` shows.
fn output_status(page: &mut Page, views: &[Read], extra: &[(String, String)]) {
    for read in views.iter().filter(|read| read.is_ordinary_output()) {
        let own = [("plugin_id", read.view.plugin_id.as_str()), ("type", read.view.type_name.as_str())];
        let labels = with_extra(&own, extra);
        let mut gauge = |name: &str, help: &str, value: f64| {
            page.add(&format!("fluentd_output_status_{name}"), help, SampleKind::Gauge, &labels, value);
        };
        if let Some(stats) = &read.buffer {
            let bytes = stats.stage_bytes.saturating_add(stats.queue_bytes);
            gauge("buffer_total_bytes", "Current total size of stage and queue buffers.", bytes as f64);
            gauge("buffer_stage_length", "Current length of stage buffers.", stats.stage_length as f64);
            gauge("buffer_stage_byte_size", "Current total size of stage buffers.", stats.stage_bytes as f64);
            gauge("buffer_queue_length", "Current length of queue buffers.", stats.queue_length as f64);
            gauge("buffer_queue_byte_size", "Current total size of queue buffers.", stats.queue_bytes as f64);
            let help = "Ratio of available space in buffer.";
            gauge("buffer_available_space_ratio", help, available_percent(stats));
            timekeys(stats, "", &mut |name, help, value| gauge(name.trim_start_matches('_'), help, value));
        }
        let metrics = &read.view.metrics;
        for (name, help, counter) in [
            ("retry_count", "Current retry counts.", &metrics.errors),
            ("num_errors", "Current number of errors.", &metrics.errors),
            ("emit_count", "Current emit counts.", &metrics.emit_count),
            ("emit_records", "Current emit records.", &metrics.emit_records),
            ("write_count", "Current write counts.", &metrics.write_count),
            ("rollback_count", "Current rollback counts.", &metrics.rollback_count),
            ("flush_time_count", "Total flush time in milliseconds.", &metrics.flush_time_ms),
            ("slow_flush_count", "Current slow flush counts.", &metrics.slow_flush_count),
        ] {
            gauge(name, help, counter.load(Ordering::Relaxed) as f64);
        }
        let wait = read.view.retry.as_ref().and_then(|reading| reading()).map_or(0.0, |status| {
            status.next_time.duration_since(status.start).unwrap_or_default().as_secs_f64()
        });
        gauge("retry_wait", "Current retry wait in seconds.", wait);
    }
}

/// Counters that Fluentd does not have.
fn own(page: &mut Page, views: &[Read], now: SystemTime) {
    let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed) as f64;
    for read in views {
        let labels = [("plugin_id", read.view.plugin_id.as_str()), ("type", read.view.type_name.as_str())];
        let metrics = &read.view.metrics;
        let mut counter =
            |name: &str, help: &str, value: f64| page.add(name, help, SampleKind::Counter, &labels, value);
        if read.view.category == Category::Input {
            counter("tributary_input_records_total", "Events taken in.", load(&metrics.emit_records));
            counter("tributary_input_bytes_total", "Bytes of events taken in.", load(&metrics.emit_bytes));
        }
        let help = "Events dropped, reasons in the log.";
        counter("tributary_dropped_records_total", help, load(&metrics.dropped_records));
        if read.is_ordinary_output() {
            let help = "Values replaced because text cannot hold them.";
            counter("tributary_replaced_values_total", help, load(&metrics.replaced_values));
            let help = "Chunks given to the secondary output.";
            counter("tributary_write_secondary_total", help, load(&metrics.write_secondary_count));
        }
        if let Some(stats) = &read.buffer {
            let help = "Chunks dropped by drop_oldest_chunk.";
            counter("tributary_dropped_chunks_total", help, stats.dropped_chunks as f64);
            let disk = &stats.disk;
            for (name, help, value) in [
                ("sync_rounds_total", "Rounds that synced chunk files.", disk.sync_rounds),
                ("synced_files_total", "Files synced.", disk.synced_files),
                ("slow_sync_rounds_total", "Sync rounds above 200 ms.", disk.slow_sync_rounds),
                ("sync_milliseconds_total", "Milliseconds in sync rounds.", disk.sync_ms),
                ("storage_errors_total", "Rounds that a disk error undid.", disk.storage_errors),
                ("failed_syncs_total", "Chunk files whose sync failed.", disk.failed_syncs),
                ("chunks_set_aside_total", "Chunks moved to the backup directory.", disk.chunks_set_aside),
                ("chunks_discarded_total", "Bad chunks dropped for want of a backup.", disk.chunks_discarded),
                ("damaged_bytes_total", "Bytes of chunk files that were unreadable.", disk.damaged_bytes),
            ] {
                counter(&format!("tributary_buffer_{name}"), help, value as f64);
            }
            // An empty buffer is as fresh as can be.
            let age = stats.oldest.and_then(|oldest| now.duration_since(oldest).ok()).unwrap_or_default();
            let help = "Age of the oldest chunk that is not delivered, in seconds.";
            let name = "tributary_buffer_oldest_chunk_age_seconds";
            page.add(name, help, SampleKind::Gauge, &labels, age.as_secs_f64());
        }
    }
}
