//! `monitor_agent`: figures of all plugins over HTTP, as JSON or LTSV.
//!
//! ```text
//! <source>
//!   @type monitor_agent
//!   bind 127.0.0.1
//!   port 24220
//! </source>
//! ```
//!
//! `GET /api/plugins.json`, `/api/plugins`, `/api/config.json`, `/api/config`; plugins are chosen by `?tag=`, `?@id=`,
//! `?@type=`. With `tag` each plugin's figures are also sent as an event every `emit_interval`.
//!
//! Source: Fluentd `in_monitor_agent.rb`.

mod fields;

use std::sync::Arc;
use std::time::SystemTime;

use axum::Router;
use axum::extract::{Query, State};
use axum::http::{Method, StatusCode, Uri, header};
use axum::response::{IntoResponse as _, Response};
use futures_util::future::BoxFuture;
use serde_json::{Map, Value as Json, json};
use tokio::task::JoinHandle;

use super::http_server::HttpServer;
use super::{Input, InputConfig, InputContext, InputPlugin};
use crate::config::{BuildError, Diagnostics, Element, Seconds};
use crate::event::{EventStream, EventTime, Tag, Value, msgpack};
use crate::router::{Arrival, Entrance};
use crate::telemetry::{Overview, PluginView};
pub(super) use fields::available_percent;
use fields::{Include, plugin_fields};

crate::params! {
    /// Figures of all plugins over HTTP.
    pub struct MonitorAgentParams {
        /// Address to listen on.
        bind: String = "0.0.0.0",
        /// Port; each further worker listens on the next one.
        port: u16 = "24220",
        /// Tag of events with the figures; none are sent when silent.
        tag: Option<String>,
        /// How often they are sent.
        emit_interval: Seconds = "60",
        /// Show each plugin's parameters (secrets masked).
        include_config: bool = "false",
        /// Show where retries stand.
        include_retry: bool = "false",
    }
    unbuilt { "<transport>" }
    inert { "include_debug_info" => "there are no Ruby instance variables to show" }
}

/// Line in the table of inputs.
pub const PLUGIN: InputPlugin =
    InputPlugin { names: &["monitor_agent"], spec: &MonitorAgentParams::SPEC, configure };

fn configure(element: &Element, diagnostics: &mut Diagnostics) -> Option<Box<dyn InputConfig>> {
    let params = MonitorAgentParams::from_element(element, diagnostics)?;
    if params.emit_interval.duration().is_zero() {
        diagnostics.fault(&params.span, "emit_interval should be longer than nothing");
        return None;
    }
    Some(Box::new(MonitorConfig { params }))
}

struct MonitorConfig {
    params: MonitorAgentParams,
}

impl InputConfig for MonitorConfig {
    fn build(self: Box<Self>, context: InputContext) -> Result<Box<dyn Input>, BuildError> {
        let server =
            HttpServer::bind("monitor_agent", &self.params.bind, self.params.port, context.system.workers)?;
        Ok(Box::new(MonitorAgent { params: self.params, context, server, emitter: None }))
    }
}

struct MonitorAgent {
    params: MonitorAgentParams,
    context: InputContext,
    server: HttpServer,
    emitter: Option<JoinHandle<()>>,
}

impl Input for MonitorAgent {
    fn start(&mut self) {
        let include = Include { config: self.params.include_config, retry: self.params.include_retry };
        let pages = Pages { overview: Arc::clone(&self.context.overview), include };
        self.server.start(&Router::new().fallback(answer).with_state(pages));
        if let Some(tag) = &self.params.tag {
            let (tag, interval) = (Tag::from(tag.as_str()), self.params.emit_interval.duration());
            let (overview, entrance) = (Arc::clone(&self.context.overview), self.context.entrance.clone());
            self.emitter = Some(tokio::spawn(async move {
                let mut ticks = tokio::time::interval(interval);
                // The first tick is at once; the first event is due after an interval.
                ticks.tick().await;
                loop {
                    ticks.tick().await;
                    emit_figures(&overview, &entrance, &tag).await;
                }
            }));
        }
    }

    fn stop(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            if let Some(emitter) = self.emitter.take() {
                emitter.abort();
            }
            self.server.stop().await;
        })
    }
}

/// One event per plugin; the figures are gone if they are refused, the next ones come soon.
async fn emit_figures(overview: &Overview, entrance: &Entrance, tag: &Tag) {
    let time = EventTime::of(SystemTime::now());
    let mut entries = Vec::new();
    let views = overview.plugins();
    for view in &views {
        let record = Value::from_json(&Json::Object(plugin_fields(view, Include::default())));
        msgpack::write_entry(&mut entries, time, &record.to_msgpack());
    }
    if views.is_empty() {
        return;
    }
    let stream = EventStream { tag: tag.clone(), entries: entries.into(), count: views.len() };
    for answer in entrance.emit(vec![Arrival::new(stream, None)]).await {
        if let Err(error) = answer {
            tracing::warn!(%error, "figures of plugins were refused");
        }
    }
}

/// What the pages are made of.
#[derive(Clone)]
struct Pages {
    overview: Arc<Overview>,
    include: Include,
}

async fn answer(
    State(pages): State<Pages>,
    method: Method,
    uri: Uri,
    Query(query): Query<Vec<(String, String)>>,
) -> Response {
    let path = uri.path().strip_suffix('/').unwrap_or(uri.path());
    if method != Method::GET {
        return not_found();
    }
    match path {
        "/api/plugins.json" => json_page(&json!({ "plugins": pages.plugins(&query) })),
        "/api/plugins" => text_page(pages.plugins(&query).iter().map(ltsv).collect()),
        "/api/config.json" => json_page(&Json::Object(pages.process())),
        "/api/config" => text_page(ltsv(&pages.process())),
        _ => not_found(),
    }
}

fn not_found() -> Response {
    let body = json!({ "message": "Not found" }).to_string();
    (StatusCode::NOT_FOUND, [(header::CONTENT_TYPE, "application/json")], body).into_response()
}

fn json_page(body: &Json) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}

fn text_page(body: String) -> Response {
    ([(header::CONTENT_TYPE, "text/plain")], body).into_response()
}

impl Pages {
    fn plugins(&self, query: &[(String, String)]) -> Vec<Map<String, Json>> {
        chosen(self.overview.plugins(), query).iter().map(|view| plugin_fields(view, self.include)).collect()
    }

    fn process(&self) -> Map<String, Json> {
        let info = self.overview.process();
        let fields = [
            ("pid", json!(std::process::id())),
            ("ppid", json!(nix::unistd::getppid().as_raw())),
            ("version", json!(env!("CARGO_PKG_VERSION"))),
            ("config_path", json!(info.config_path)),
            ("pid_file", json!(info.pid_file)),
            ("plugin_dirs", json!([])),
            ("log_path", json!(info.log_path)),
            ("root_dir", json!(info.root_dir)),
        ];
        fields.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
    }
}

/// The first query that is present decides.
fn chosen(views: Vec<PluginView>, query: &[(String, String)]) -> Vec<PluginView> {
    let asked = |names: &[&str]| {
        query.iter().find(|(key, _)| names.contains(&key.as_str())).map(|(_, value)| value.clone())
    };
    if let Some(tag) = asked(&["tag"]) {
        let matches = |view: &PluginView| {
            view.is_output
                && view.label.is_none()
                && view.matches.as_ref().is_some_and(|test| test(tag.as_bytes()))
        };
        return views.into_iter().find(matches).into_iter().collect();
    }
    if let Some(id) = asked(&["@id", "id"]) {
        return views.into_iter().find(|view| view.plugin_id == id).into_iter().collect();
    }
    match asked(&["@type", "type"]) {
        Some(name) => views.into_iter().filter(|view| view.type_name == name).collect(),
        None => views,
    }
}

/// A line of `key:value`: arrays joined, maps left out, null empty.
fn ltsv(fields: &Map<String, Json>) -> String {
    let text = |value: &Json| match value {
        Json::Null => String::new(),
        Json::String(text) => text.clone(),
        other => other.to_string(),
    };
    let pairs: Vec<String> = fields
        .iter()
        .filter(|(_, value)| !value.is_object())
        .map(|(key, value)| match value {
            Json::Array(items) => format!("{key}:{}", items.iter().map(text).collect::<Vec<_>>().join(",")),
            value => format!("{key}:{}", text(value)),
        })
        .collect();
    pairs.join("\t") + "\n"
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::super::http_server::get;
    use super::super::tests::{RefusingSink, context};
    use super::*;
    use crate::buffer::BufferStats;
    use crate::telemetry::{Category, RetryStatus};

    fn overview() -> Arc<Overview> {
        let overview = Overview::default();
        let mut forward = PluginView::new("in", Category::Input, "forward");
        forward.config = vec![("@type".into(), "forward".into()), ("shared_key".into(), "xxxxxx".into())];
        forward.metrics.emit_records.store(7, Ordering::Relaxed);
        overview.register(forward);
        let mut file = PluginView::new("out", Category::Output, "file");
        file.metrics.errors.store(2, Ordering::Relaxed);
        file.matches = Some(Arc::new(|tag| tag.starts_with(b"app.")));
        file.buffer = Some(Arc::new(|| BufferStats {
            stage_length: 1,
            stage_bytes: 30,
            queue_length: 2,
            queue_bytes: 20,
            total_limit_bytes: 400,
            timekeys: vec![60, 120],
            ..BufferStats::default()
        }));
        let status = RetryStatus {
            start: SystemTime::UNIX_EPOCH,
            steps: 3,
            next_time: SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(90),
        };
        file.retry = Some(Arc::new(move || Some(status)));
        overview.register(file);
        let mut copy = PluginView::new("all", Category::Output, "copy");
        copy.is_output = false;
        overview.register(copy);
        Arc::new(overview)
    }

    fn pages() -> Pages {
        Pages { overview: overview(), include: Include::default() }
    }

    fn query(text: &str) -> Vec<(String, String)> {
        text.split('&').filter_map(|pair| pair.split_once('=')).map(|(k, v)| (k.into(), v.into())).collect()
    }

    fn ids(text: &str) -> Vec<String> {
        let fields = pages().plugins(&query(text));
        fields.iter().map(|fields| fields["plugin_id"].as_str().expect("text").to_owned()).collect()
    }

    #[test]
    fn fields_come_in_fluentds_order() {
        let fields = pages().plugins(&query("@id=out"));
        let names: Vec<&str> = fields[0].keys().map(String::as_str).collect();
        assert_eq!(
            names,
            [
                "plugin_id",
                "plugin_category",
                "type",
                "output_plugin",
                "buffer_queue_length",
                "buffer_timekeys",
                "buffer_total_queued_size",
                "retry_count",
                "emit_records",
                "emit_size",
                "emit_count",
                "write_count",
                "write_secondary_count",
                "rollback_count",
                "slow_flush_count",
                "flush_time_count",
                "drop_oldest_chunk_count",
                "buffer_stage_length",
                "buffer_stage_byte_size",
                "buffer_queue_byte_size",
                "buffer_available_buffer_space_ratios",
                "buffer_oldest_timekey",
                "buffer_newest_timekey"
            ]
        );
        assert_eq!(fields[0]["buffer_total_queued_size"], 50);
        assert_eq!(fields[0]["buffer_available_buffer_space_ratios"], 87.5);
        assert_eq!(
            (&fields[0]["retry_count"], &fields[0]["buffer_newest_timekey"]),
            (&json!(2), &json!(120))
        );
        let copy = pages().plugins(&query("id=all"));
        let expected = json!({"plugin_id": "all", "plugin_category": "output", "type": "copy",
            "output_plugin": false, "retry_count": 0});
        assert_eq!(Json::Object(copy[0].clone()), expected);
    }

    #[test]
    fn retry_and_config_are_shown_when_asked_for() {
        let pages = Pages { overview: overview(), include: Include { config: true, retry: true } };
        let fields = crate::time::with_local_zone("Etc/UTC", || pages.plugins(&[]));
        assert_eq!(fields[0]["config"], json!({"@type": "forward", "shared_key": "xxxxxx"}));
        assert_eq!(fields[0]["retry_count"], Json::Null);
        assert!(!fields[0].contains_key("retry"));
        let retry = json!({"start": "1970-01-01 00:00:00 +0000", "steps": 3, "next_time": "1970-01-01 00:01:30 +0000"});
        assert_eq!(fields[1]["retry"], retry);
    }

    #[test]
    fn queries_choose_and_the_first_present_wins() {
        assert_eq!(ids("tag=app.x&@id=in"), ["out"]);
        assert_eq!(ids("tag=other"), [""; 0]);
        assert_eq!(ids("@type=copy"), ["all"]);
        assert_eq!(ids("debug=1"), ["in", "out", "all"]);
    }

    #[test]
    fn ltsv_leaves_maps_out_and_joins_arrays() {
        let fields = json!({"a": null, "b": [1, 2], "c": {}, "d": "x", "e": 1.5});
        assert_eq!(ltsv(fields.as_object().expect("a map")), "a:\tb:1,2\td:x\te:1.5\n");
    }

    #[tokio::test]
    async fn pages_are_served_and_the_rest_is_not_found() {
        let element = Element::new("source", "").with_param("bind", "127.0.0.1").with_param("port", "0");
        let params = MonitorAgentParams::from_element(&element, &mut Diagnostics::new()).expect("valid");
        let mut context = context(Arc::new(RefusingSink::refusing(0)));
        context.overview = overview();
        let server =
            HttpServer::bind("monitor_agent", "127.0.0.1", 0, 2).unwrap_or_else(|error| panic!("{error}"));
        let addresses = server.addresses();
        assert_eq!(addresses.len(), 2, "a port per worker");
        let mut agent = MonitorAgent { params, context, server, emitter: None };
        agent.start();
        for address in addresses {
            let (head, body) = get(address, "/api/plugins.json?%40id=in").await;
            assert!(head.starts_with("HTTP/1.1 200") && head.contains("application/json"), "{head}");
            let body: Json = serde_json::from_str(&body).expect("JSON");
            assert_eq!(body["plugins"][0]["emit_records"], 7);
            let (_, body) = get(address, "/api/config.json/").await;
            let body: Json = serde_json::from_str(&body).expect("JSON");
            assert_eq!(body["pid"], std::process::id());
            let (head, body) = get(address, "/nothing").await;
            assert!(head.starts_with("HTTP/1.1 404"), "{head}");
            assert_eq!(body, r#"{"message":"Not found"}"#);
        }
        agent.stop().await;
    }
}
