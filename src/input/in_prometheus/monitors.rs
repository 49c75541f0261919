//! `prometheus_monitor`, `prometheus_output_monitor`, `prometheus_tail_monitor`: sources that carry no port. Their
//! metrics are always there; what they bring is `<labels>`.

use std::sync::Arc;

use crate::config::{BuildError, Diagnostics, Element, FreeForm};
use crate::input::in_debug_agent::Nothing;
use crate::input::{Input, InputConfig, InputContext, InputPlugin};
use crate::telemetry::{MetricFamily, Overview};

crate::params! {
    /// Adds labels to the metrics of plugins.
    pub struct MonitorParams {
        /// Labels for every metric of this family; `${hostname}` and `${worker_id}` are replaced.
        #[section] labels: Vec<FreeForm>,
    }
    foreign_parameters { "interval", "gauge_all" }
}

/// `prometheus_monitor`: metrics `fluentd_status_*`.
pub const MONITOR: InputPlugin = InputPlugin {
    names: &["prometheus_monitor"],
    spec: &MonitorParams::SPEC,
    configure: |element, diagnostics| configure(element, diagnostics, MetricFamily::Status),
};

/// `prometheus_output_monitor`: metrics `fluentd_output_status_*`.
pub const OUTPUT_MONITOR: InputPlugin = InputPlugin {
    names: &["prometheus_output_monitor"],
    spec: &MonitorParams::SPEC,
    configure: |element, diagnostics| configure(element, diagnostics, MetricFamily::OutputStatus),
};

/// `prometheus_tail_monitor`: accepted; there is nothing to show before in_tail is built.
pub const TAIL_MONITOR: InputPlugin = InputPlugin {
    names: &["prometheus_tail_monitor"],
    spec: &MonitorParams::SPEC,
    configure: |element, diagnostics| configure(element, diagnostics, MetricFamily::Tail),
};

fn configure(
    element: &Element,
    diagnostics: &mut Diagnostics,
    family: MetricFamily,
) -> Option<Box<dyn InputConfig>> {
    let params = MonitorParams::from_element(element, diagnostics)?;
    // Figures are read when asked for, and all are gauges.
    element.params.iter().for_each(|param| param.mark_used());
    let mut labels = Vec::new();
    for (name, text) in params.labels.into_iter().flat_map(|section| section.entries) {
        let valid = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
            && !name.starts_with(|c: char| c.is_ascii_digit());
        if !valid || name.is_empty() {
            diagnostics.fault(&params.span, format!("'{name}' is no name of a label"));
            return None;
        }
        labels.push((name, text));
    }
    Some(Box::new(MonitorConfig { family, labels }))
}

struct MonitorConfig {
    family: MetricFamily,
    labels: Vec<(String, String)>,
}

impl InputConfig for MonitorConfig {
    fn build(self: Box<Self>, context: InputContext) -> Result<Box<dyn Input>, BuildError> {
        let hostname = nix::unistd::gethostname().unwrap_or_else(|_| "localhost".into());
        let expand = |text: &str| {
            text.replace("${hostname}", &hostname.to_string_lossy()).replace("${worker_id}", "0")
        };
        let labels = self.labels.iter().map(|(name, text)| (name.clone(), expand(text))).collect();
        let overview: Arc<Overview> = context.overview;
        overview.set_metric_labels(self.family, labels);
        Ok(Box::new(Nothing))
    }
}
