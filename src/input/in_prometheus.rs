//! `prometheus`: figures of all plugins and of the process for Prometheus, under the names of fluent-plugin-prometheus
//! and our own (`tributary_...`).
//!
//! ```text
//! <source>
//!   @type prometheus
//!   bind 127.0.0.1
//! </source>
//! <source>
//!   @type prometheus_output_monitor
//!   <labels>
//!     hostname ${hostname}
//!   </labels>
//! </source>
//! ```
//!
//! The metrics of `prometheus_monitor` and `prometheus_output_monitor` are there without those sources; with them their
//! `<labels>` are added. Figures are read when they are asked for, so `interval` has no effect.
//!
//! Source: fluent-plugin-prometheus README.

mod exposition;
mod monitors;
mod process;

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse as _, Response};
use axum::routing::get as on_get;
use futures_util::future::BoxFuture;

use super::http_server::HttpServer;
use super::{Input, InputConfig, InputContext, InputPlugin};
use crate::config::{BuildError, Diagnostics, Element};
use crate::telemetry::Overview;
pub use monitors::{MONITOR, OUTPUT_MONITOR, TAIL_MONITOR};

/// Prometheus' text format.
const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

crate::params! {
    /// Figures for Prometheus.
    pub struct PrometheusParams {
        /// Address to listen on.
        bind: String = "0.0.0.0",
        /// Port; each further worker listens on the next one.
        port: u16 = "24231",
        /// Where the figures are.
        metrics_path: String = "/metrics",
        /// The figures of all workers: the same here, since one process plays all workers.
        aggregated_metrics_path: String = "/aggregated_metrics",
    }
    unbuilt { "content_encoding" unless "identity", "<transport>", "<ssl>" }
}

/// Line in the table of inputs.
pub const PLUGIN: InputPlugin =
    InputPlugin { names: &["prometheus"], spec: &PrometheusParams::SPEC, configure };

fn configure(element: &Element, diagnostics: &mut Diagnostics) -> Option<Box<dyn InputConfig>> {
    let params = PrometheusParams::from_element(element, diagnostics)?;
    let mut sound = true;
    for path in [&params.metrics_path, &params.aggregated_metrics_path] {
        // Braces and stars have a meaning of their own in the router.
        if !path.starts_with('/') || path.contains(['{', '}', '*', '?']) {
            diagnostics.fault(&params.span, format!("'{path}' is no path: expected one such as /metrics"));
            sound = false;
        }
    }
    sound.then(|| Box::new(PrometheusConfig { params }) as Box<dyn InputConfig>)
}

struct PrometheusConfig {
    params: PrometheusParams,
}

impl InputConfig for PrometheusConfig {
    fn build(self: Box<Self>, context: InputContext) -> Result<Box<dyn Input>, BuildError> {
        let server =
            HttpServer::bind("prometheus", &self.params.bind, self.params.port, context.system.workers)?;
        Ok(Box::new(Prometheus { params: self.params, overview: context.overview, server }))
    }
}

struct Prometheus {
    params: PrometheusParams,
    overview: Arc<Overview>,
    server: HttpServer,
}

impl Input for Prometheus {
    fn start(&mut self) {
        let mut router = Router::new().route(&self.params.metrics_path, on_get(page));
        if self.params.aggregated_metrics_path != self.params.metrics_path {
            router = router.route(&self.params.aggregated_metrics_path, on_get(page));
        }
        self.server.start(&router.with_state(Arc::clone(&self.overview)));
    }

    fn stop(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(self.server.stop())
    }
}

async fn page(State(overview): State<Arc<Overview>>) -> Response {
    // /proc is read: not on the threads that serve sockets.
    let samples = tokio::task::spawn_blocking(process::samples).await.unwrap_or_default();
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], exposition::text(&overview, samples)).into_response()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;
    use std::time::{Duration, SystemTime};

    use super::super::http_server::get;
    use super::super::tests::{RefusingSink, context};
    use super::*;
    use crate::buffer::{BufferStats, DiskFigures};
    use crate::telemetry::{Category, PluginView, Sample, SampleKind};

    fn overview() -> Arc<Overview> {
        let overview = Overview::default();
        let mut file = PluginView::new("out \"1\"", Category::Output, "file");
        file.metrics.errors.store(2, Ordering::Relaxed);
        file.buffer = Some(Arc::new(|| BufferStats {
            stage_bytes: 30,
            queue_bytes: 20,
            oldest: Some(SystemTime::now() - Duration::from_secs(7)),
            disk: DiskFigures { failed_syncs: 3, chunks_set_aside: 4, ..DiskFigures::default() },
            ..BufferStats::default()
        }));
        file.samples = Some(Arc::new(|| {
            vec![Sample {
                name: "tributary_upstream_healthy",
                help: "1 while healthy",
                kind: SampleKind::Gauge,
                labels: vec![("address", "192.0.2.1:24224".into())],
                value: 1.0,
            }]
        }));
        overview.register(file);
        let mut forward = PluginView::new("in", Category::Input, "forward");
        forward.samples = forward_input().samples();
        overview.register(forward);
        overview.register_samples(Arc::new(|| {
            vec![Sample {
                name: "tributary_memory_used_bytes",
                help: "in transit",
                kind: SampleKind::Gauge,
                labels: Vec::new(),
                value: 5.0,
            }]
        }));
        Arc::new(overview)
    }

    /// A real one: its samples are part of what the page is checked for.
    fn forward_input() -> Box<dyn Input> {
        let element = Element::new("source", "").with_param("port", "0").with_param("bind", "127.0.0.1");
        let config = (super::super::in_forward::PLUGIN.configure)(&element, &mut Diagnostics::new());
        let context = context(Arc::new(RefusingSink::refusing(0)));
        config.expect("configured").build(context).unwrap_or_else(|error| panic!("{error}"))
    }

    #[tokio::test]
    async fn metrics_have_the_known_names_and_labels() {
        let overview = overview();
        let monitor = Element::new("source", "").with_param("@type", "prometheus_output_monitor").with_child(
            Element::new("labels", "").with_param("worker", "w${worker_id}").with_param("type", "x"),
        );
        let mut diagnostics = Diagnostics::new();
        let config = (OUTPUT_MONITOR.configure)(&monitor, &mut diagnostics).expect("configured");
        let mut monitor_context = context(Arc::new(RefusingSink::refusing(0)));
        monitor_context.overview = Arc::clone(&overview);
        config.build(monitor_context).unwrap_or_else(|error| panic!("{error}")).start();

        let element = Element::new("source", "");
        let params = PrometheusParams::from_element(&element, &mut Diagnostics::new()).expect("valid");
        let server =
            HttpServer::bind("prometheus", "127.0.0.1", 0, 1).unwrap_or_else(|error| panic!("{error}"));
        let address = server.addresses()[0];
        let mut input = Prometheus { params, overview, server };
        input.start();
        let (head, body) = get(address, "/metrics").await;
        assert!(head.starts_with("HTTP/1.1 200") && head.contains(CONTENT_TYPE), "{head}");
        for line in [
            r#"fluentd_status_buffer_total_bytes{plugin_id="out \"1\"",plugin_category="output",type="file"} 50"#,
            r#"fluentd_status_retry_count{plugin_id="out \"1\"",plugin_category="output",type="file"} 2"#,
            r#"fluentd_output_status_num_errors{plugin_id="out \"1\"",type="file",worker="w0"} 2"#,
            r#"fluentd_output_status_retry_wait{plugin_id="out \"1\"",type="file",worker="w0"} 0"#,
            r#"tributary_upstream_healthy{plugin_id="out \"1\"",address="192.0.2.1:24224"} 1"#,
            r#"tributary_input_records_total{plugin_id="in",type="forward"} 0"#,
            r#"tributary_forward_connections{plugin_id="in"} 0"#,
            r#"tributary_buffer_failed_syncs_total{plugin_id="out \"1\"",type="file"} 3"#,
            r#"tributary_buffer_chunks_set_aside_total{plugin_id="out \"1\"",type="file"} 4"#,
            "tributary_memory_used_bytes 5",
        ] {
            assert!(body.lines().any(|found| found == line), "{line} is missing in\n{body}");
        }
        let memory = body.lines().find(|line| line.starts_with("tributary_process_resident_memory_bytes "));
        let bytes: f64 =
            memory.and_then(|line| line.split(' ').nth(1)).expect("memory").parse().expect("a number");
        assert!(bytes > 1e5, "{bytes}");
        let age = body.lines().find(|line| line.starts_with("tributary_buffer_oldest_chunk_age_seconds"));
        let age: f64 =
            age.and_then(|line| line.rsplit(' ').next()).expect("an age").parse().expect("a number");
        assert!(age >= 7.0, "{age}");
        assert_every_family_stands_once(&body);
        assert_no_label_stands_twice(&body);
        let (head, _) = get(address, "/other").await;
        assert!(head.starts_with("HTTP/1.1 404"), "{head}");
        input.stop().await;
    }

    /// Prometheus refuses a page where the lines of one metric do not stand together.
    fn assert_every_family_stands_once(body: &str) {
        let mut seen: Vec<&str> = Vec::new();
        for line in body.lines().filter(|line| !line.starts_with('#')) {
            let name = line.split(['{', ' ']).next().expect("a name");
            assert!(seen.last() == Some(&name) || !seen.contains(&name), "{name} stands twice");
            seen.push(name);
        }
    }

    /// Prometheus refuses a page where one line names a label twice.
    fn assert_no_label_stands_twice(body: &str) {
        for line in body.lines().filter(|line| !line.starts_with('#')) {
            // Every label but the last ends in `",`; the values here hold no comma.
            let labels = line.split_once('{').map_or("", |(_, labels)| labels);
            let mut names: Vec<&str> =
                labels.split(',').map(|label| label.split('=').next().expect("a name")).collect();
            let count = names.len();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), count, "a label stands twice in {line}");
        }
    }

    #[test]
    fn paths_that_are_none_are_faults() {
        for path in ["metrics", "/a/{b}", "/*"] {
            let element = Element::new("source", "").with_param("metrics_path", path);
            assert!(configure(&element, &mut Diagnostics::new()).is_none(), "{path}");
        }
    }
}
