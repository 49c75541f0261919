//! What monitor_agent, prometheus and the last line may see of everything that runs: plain data and closures that
//! read figures, so that the readers need not know outputs, buffers or routers.

use std::sync::{Arc, RwLock};
use std::time::SystemTime;

use super::PluginMetrics;
use crate::buffer::BufferStats;

/// Reads one thing about a running plugin at the moment of the call; cheap, takes no lock that an event path holds.
pub type Reading<T> = Arc<dyn Fn() -> T + Send + Sync>;

/// Answers whether the match pattern of a top-level output matches a tag.
pub type TagTest = Arc<dyn Fn(&[u8]) -> bool + Send + Sync>;

/// The category of a plugin, Fluentd's `plugin_category`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Category {
    /// `<source>`
    Input,
    /// `<match>`, `<store>`, `<secondary>`
    Output,
    /// `<filter>`
    Filter,
}

impl Category {
    /// The text that monitor_agent and the Prometheus label `plugin_category` show.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Input => "input",
            Self::Output => "output",
            Self::Filter => "filter",
        }
    }
}

/// Where an output's retries stand; monitor_agent's `retry` and the gauge `fluentd_output_status_retry_wait`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryStatus {
    /// When the first failure of this run of failures happened.
    pub start: SystemTime,
    /// Failed attempts in this run of failures.
    pub steps: u64,
    /// When the next attempt is due.
    pub next_time: SystemTime,
}

/// How a [`Sample`] moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SampleKind {
    /// Only grows; the name ends in `_total`.
    Counter,
    /// Goes both ways.
    Gauge,
}

/// One figure for `/metrics` beyond the common ones (health of an upstream, open connections).
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Full name, beginning with `tributary_`.
    pub name: &'static str,
    /// One line of help.
    pub help: &'static str,
    /// Counter or gauge.
    pub kind: SampleKind,
    /// Labels in order, without `plugin_id`: the page puts it before them.
    pub labels: Vec<(&'static str, String)>,
    /// The figure.
    pub value: f64,
}

/// One running plugin as monitors see it.
#[derive(Clone)]
pub struct PluginView {
    /// `@id`, or a generated `object:<hex>`.
    pub plugin_id: String,
    /// Input, output or filter.
    pub category: Category,
    /// `@type` as written.
    pub type_name: String,
    /// True for ordinary outputs; false for copy and other multi outputs, inputs and filters.
    pub is_output: bool,
    /// The label that holds it; `None` at the top level and for inputs.
    pub label: Option<String>,
    /// Parameters as written, in order, secrets already replaced by `xxxxxx`; sub-sections are not shown.
    pub config: Vec<(String, String)>,
    /// Its counters.
    pub metrics: Arc<PluginMetrics>,
    /// Figures of its buffer; `None` when it has none.
    pub buffer: Option<Reading<BufferStats>>,
    /// Where its retries stand; outputs only. The reading is `None` while nothing fails.
    pub retry: Option<Reading<Option<RetryStatus>>>,
    /// Fields of its own, in order, for monitor_agent (`Output::monitor_fields`).
    pub fields: Option<Reading<Vec<(&'static str, serde_json::Value)>>>,
    /// Figures of its own for `/metrics`.
    pub samples: Option<Reading<Vec<Sample>>>,
    /// For top-level outputs with a `<match>` pattern of their own: does it match this tag.
    pub matches: Option<TagTest>,
}

impl PluginView {
    /// A view with nothing but the common properties; the builder sets the rest.
    pub fn new(plugin_id: impl Into<String>, category: Category, type_name: impl Into<String>) -> Self {
        Self {
            plugin_id: plugin_id.into(),
            category,
            type_name: type_name.into(),
            is_output: category == Category::Output,
            label: None,
            config: Vec::new(),
            metrics: Arc::default(),
            buffer: None,
            retry: None,
            fields: None,
            samples: None,
            matches: None,
        }
    }
}

/// What `/api/config.json` tells of the process.
#[derive(Clone, Debug, Default)]
pub struct ProcessInfo {
    /// The configuration file.
    pub config_path: Option<String>,
    /// `--daemon PIDFILE`.
    pub pid_file: Option<String>,
    /// `--log`; `None` is the standard output.
    pub log_path: Option<String>,
    /// `<system> root_dir`.
    pub root_dir: Option<String>,
}

/// Names and values of labels, in order.
pub type MetricLabels = Vec<(String, String)>;

/// The families of metrics that fluent-plugin-prometheus lets users label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricFamily {
    /// `fluentd_status_*`
    Status,
    /// `fluentd_output_status_*`
    OutputStatus,
    /// `fluentd_tail_*`
    Tail,
}

/// Everything that runs. Filled by the pipeline's builder in the order of the configuration file, read by monitors;
/// inputs hold it before it is complete, because they are built last.
#[derive(Default)]
pub struct Overview {
    plugins: RwLock<Vec<PluginView>>,
    process: RwLock<ProcessInfo>,
    samples: RwLock<Vec<Reading<Vec<Sample>>>>,
    metric_labels: RwLock<Vec<(MetricFamily, MetricLabels)>>,
}

impl Overview {
    /// Adds a plugin.
    pub fn register(&self, view: PluginView) {
        self.plugins.write().unwrap_or_else(|poisoned| poisoned.into_inner()).push(view);
    }

    /// All plugins in Fluentd's order: inputs, top-level outputs, top-level filters, then the outputs and filters of
    /// each label; within each group as registered.
    pub fn plugins(&self) -> Vec<PluginView> {
        let mut views = self.plugins.read().unwrap_or_else(|poisoned| poisoned.into_inner()).clone();
        let mut labels: Vec<Option<String>> = vec![None];
        for view in &views {
            if view.category != Category::Input && !labels.contains(&view.label) {
                labels.push(view.label.clone());
            }
        }
        views.sort_by_key(|view| {
            let place = labels.iter().position(|label| *label == view.label).unwrap_or(0);
            (view.category != Category::Input, place, view.category)
        });
        views
    }

    /// Sets what `/api/config.json` shows.
    pub fn set_process(&self, info: ProcessInfo) {
        *self.process.write().unwrap_or_else(|poisoned| poisoned.into_inner()) = info;
    }

    /// What `/api/config.json` shows.
    pub fn process(&self) -> ProcessInfo {
        self.process.read().unwrap_or_else(|poisoned| poisoned.into_inner()).clone()
    }

    /// Adds figures that belong to no plugin (memory in transit, connections at the descriptor limit).
    pub fn register_samples(&self, reading: Reading<Vec<Sample>>) {
        self.samples.write().unwrap_or_else(|poisoned| poisoned.into_inner()).push(reading);
    }

    /// Labels that a `prometheus_*_monitor` source adds to the metrics of its family; the last source wins.
    pub fn set_metric_labels(&self, family: MetricFamily, labels: MetricLabels) {
        let mut known = self.metric_labels.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        known.retain(|(of, _)| *of != family);
        known.push((family, labels));
    }

    /// The labels set for a family.
    pub fn metric_labels(&self, family: MetricFamily) -> MetricLabels {
        let known = self.metric_labels.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        known.iter().find(|(of, _)| *of == family).map(|(_, labels)| labels.clone()).unwrap_or_default()
    }

    /// The figures that belong to no plugin.
    pub fn samples(&self) -> Vec<Sample> {
        let readings = self.samples.read().unwrap_or_else(|poisoned| poisoned.into_inner()).clone();
        readings.iter().flat_map(|reading| reading()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plugins_come_in_fluentds_order() {
        let overview = Overview::default();
        let add = |id: &str, category, label: Option<&str>| {
            let mut view = PluginView::new(id, category, "x");
            view.label = label.map(str::to_owned);
            overview.register(view);
        };
        add("label_a_filter", Category::Filter, Some("@A"));
        add("label_a_output", Category::Output, Some("@A"));
        add("top_filter", Category::Filter, None);
        add("top_output", Category::Output, None);
        add("label_b_output", Category::Output, Some("@B"));
        add("input", Category::Input, Some("@B"));
        let ids: Vec<String> = overview.plugins().into_iter().map(|view| view.plugin_id).collect();
        assert_eq!(
            ids,
            ["input", "top_output", "top_filter", "label_a_output", "label_a_filter", "label_b_output"]
        );
    }
}
