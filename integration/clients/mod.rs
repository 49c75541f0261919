//! The public clients in every mode that they have, through tributary to three receivers: lines of JSON in a file, a
//! second tributary, and the OpenTelemetry Collector. Each event arrives once, with the time that it was sent with.
//!
//! The programs in this folder are pinned; scripts/install.sh puts them into `.cache`. Event i of a program is
//! `{"seq": i}` at 1700000000 + i seconds and, where the mode keeps them, 1000003 x i nanoseconds.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use crate::support::{LIMIT, Process, Room, free_port, project, wait_for, wait_for_port};

/// Events of one mode: several messages in the packed modes, and still quick with an ack for each.
const EVENTS: u64 = 50;
const FIRST_SECOND: u64 = 1_700_000_000;
const NANOSECONDS_STEP: u64 = 1_000_003;

/// Where events go, by the first part of their tag.
const ROUTES: [&str; 3] = ["file", "second", "collector"];

/// Number of an event, time in nanoseconds.
type Event = (u64, u64);

/// A client in one of its modes.
struct Mode {
    /// As the program calls it.
    name: String,
    nanoseconds: bool,
}

#[test]
fn python_fluent_logger() {
    let modes = ["seconds", "nanoseconds", "seconds-async", "nanoseconds-async"];
    let modes = modes.map(|name| Mode { name: name.into(), nanoseconds: name.starts_with("nano") });
    every_mode_arrives_once(&modes, || {
        let mut command = Command::new(installed("python/bin/python"));
        command.arg(project().join("integration/clients/python/send.py"));
        command
    });
}

#[test]
fn go_fluent_logger() {
    // JSON on the forward port is not built yet: their MarshalAsJSON waits for it.
    let modes = ["seconds", "seconds-ack", "nanoseconds", "nanoseconds-ack"];
    let modes = modes.map(|name| Mode { name: name.into(), nanoseconds: name.starts_with("nano") });
    every_mode_arrives_once(&modes, || Command::new(installed("goclient")));
}

#[test]
fn node_fluent_logger() {
    let modes = node_modes("fluent-logger", &["Message", "PackedForward", "CompressedPackedForward"]);
    every_mode_arrives_once(&modes, node);
}

#[test]
fn node_fluent_org_logger() {
    let modes = ["Message", "Forward", "PackedForward", "CompressedPackedForward"];
    every_mode_arrives_once(&node_modes("fluent-org", &modes), node);
}

fn node() -> Command {
    let mut command = Command::new("node");
    command.env("NODE_PATH", installed("node/node_modules"));
    command.arg(project().join("integration/clients/node/send.js"));
    command
}

/// Each mode with both forms of time, with and without acks.
fn node_modes(client: &str, modes: &[&str]) -> Vec<Mode> {
    let mut all = Vec::new();
    for mode in modes {
        for (time, nanoseconds) in [("seconds", false), ("nanoseconds", true)] {
            for ack in ["", ":ack"] {
                all.push(Mode { name: format!("{client}:{mode}:{time}{ack}"), nanoseconds });
            }
        }
    }
    all
}

fn installed(name: &str) -> PathBuf {
    let path = project().join(".cache").join(name);
    assert!(path.exists(), "{} is missing: scripts/install.sh test", path.display());
    path
}

fn every_mode_arrives_once(modes: &[Mode], program: impl Fn() -> Command) {
    let room = Room::new();
    let mut receivers = Receivers::start(&room);
    let address = format!("127.0.0.1:{}", receivers.port);
    let mut expected = BTreeMap::new();
    for mode in modes {
        for route in ROUTES {
            let tag = format!("{route}.{}", mode.name.replace(':', "."));
            let mut command = program();
            command.args([&address, &mode.name, &tag, &EVENTS.to_string()]);
            Process::start(room.folder(), &tag, &mut command).succeed_within(LIMIT);
            expected.insert(tag, events_of(mode));
        }
    }
    let arrived = receivers.finish(&room, modes.len() * ROUTES.len());
    for (tag, events) in &expected {
        assert_eq!(arrived.get(tag), Some(events), "{tag}");
    }
    assert_eq!(arrived.len(), expected.len(), "tags that nobody sent: {:?}", arrived.keys());
}

fn events_of(mode: &Mode) -> Vec<Event> {
    let nanoseconds = |i: u64| if mode.nanoseconds { NANOSECONDS_STEP * i } else { 0 };
    (0..EVENTS).map(|i| (i, (FIRST_SECOND + i) * 1_000_000_000 + nanoseconds(i))).collect()
}

/// The tributary under test and those behind it.
struct Receivers {
    port: u16,
    first: Process,
    second: Process,
    collector: Process,
}

impl Receivers {
    fn start(room: &Room) -> Self {
        let (port, second_port, collector_port) = (free_port(), free_port(), free_port());
        let second = room.tributary("second", &(source(second_port) + &file_output(room, "**", "second")));
        let settings = room.path("collector.yaml");
        let collected = room.path("collected.jsonl");
        std::fs::write(&settings, collector_settings(collector_port, &collected)).expect("settings");
        let mut command = Command::new(installed("collector"));
        command.arg("--config").arg(settings);
        let collector = Process::start(room.folder(), "collector", &mut command);
        wait_for_port(second_port);
        wait_for_port(collector_port);
        let configuration = source(port)
            + &file_output(room, "file.**", "file")
            + &forward_output(room, "second", second_port)
            + &forward_output(room, "collector", collector_port);
        let first = room.tributary("first", &configuration);
        wait_for_port(port);
        Self { port, first, second, collector }
    }

    /// Waits until every tag has all its events somewhere, then ends all in the order of the path, so that nothing can
    /// follow; every event that arrived, by tag.
    fn finish(&mut self, room: &Room, tags: usize) -> BTreeMap<String, Vec<Event>> {
        wait_for("all events at all receivers", || {
            let arrived = arrived(room);
            let complete = arrived.values().filter(|events| events.len() as u64 >= EVENTS).count();
            (complete >= tags).then_some(())
        });
        for process in [&mut self.first, &mut self.second, &mut self.collector] {
            assert!(process.stop().success(), "a clean end: {}", process.output());
        }
        let mut arrived = arrived(room);
        arrived.values_mut().for_each(|events| events.sort_unstable());
        arrived
    }
}

fn source(port: u16) -> String {
    format!("<source>\n  @type forward\n  bind 127.0.0.1\n  port {port}\n</source>\n")
}

/// Lines of time, tag and JSON: one file for each tag.
fn file_output(room: &Room, pattern: &str, name: &str) -> String {
    format!(
        "<match {pattern}>\n  @type file\n  path {folder}/{name}/${{tag}}\n  append true\n  \
         <format>\n    @type out_file\n    time_format %s%N\n  </format>\n  \
         <buffer tag>\n    @type file\n    path {folder}/{name}-buffer\n    flush_interval 0.2\n  </buffer>\n</match>\n",
        folder = room.folder().display()
    )
}

fn forward_output(room: &Room, route: &str, port: u16) -> String {
    format!(
        "<match {route}.**>\n  @type forward\n  <server>\n    host 127.0.0.1\n    port {port}\n  </server>\n  \
         <buffer tag>\n    @type file\n    path {}/{route}-out\n    flush_interval 0.2\n  </buffer>\n</match>\n",
        room.folder().display()
    )
}

fn collector_settings(port: u16, file: &std::path::Path) -> String {
    format!(
        "receivers:\n  fluent_forward:\n    endpoint: 127.0.0.1:{port}\n\
         exporters:\n  file:\n    path: {}\n    flush_interval: 100ms\n\
         service:\n  telemetry:\n    metrics: {{level: none}}\n  \
         pipelines:\n    logs:\n      receivers: [fluent_forward]\n      exporters: [file]\n",
        file.display()
    )
}

/// Everything in the files of all receivers.
fn arrived(room: &Room) -> BTreeMap<String, Vec<Event>> {
    let mut events = BTreeMap::<String, Vec<Event>>::new();
    for path in room.files("file", ".log").iter().chain(&room.files("second", ".log")) {
        let text = std::fs::read_to_string(path).expect("an output file");
        // A last line without its end is still being written.
        for line in text.split_inclusive('\n').filter(|line| line.ends_with('\n')) {
            let mut parts = line.trim_end().splitn(3, '\t');
            let mut part = || parts.next().unwrap_or_else(|| panic!("{}: {line}", path.display()));
            let (time, tag, record) = (part(), part(), part());
            let record: Value = serde_json::from_str(record).expect("a record in JSON");
            events.entry(tag.into()).or_default().push((seq(&record["seq"]), time.parse().expect("a time")));
        }
    }
    let collected = std::fs::read_to_string(room.path("collected.jsonl")).unwrap_or_default();
    for line in collected.split_inclusive('\n').filter(|line| line.ends_with('\n')) {
        collect(&serde_json::from_str(line).expect("a line of JSON"), &mut events);
    }
    events
}

/// The events of one line of the collector's file exporter (OTLP in JSON; tag and fields are attributes).
fn collect(line: &Value, events: &mut BTreeMap<String, Vec<Event>>) {
    let list = |value: &Value, key: &str| value[key].as_array().cloned().unwrap_or_default();
    let scopes = list(line, "resourceLogs").into_iter().flat_map(|resource| list(&resource, "scopeLogs"));
    for record in scopes.flat_map(|scope| list(&scope, "logRecords")) {
        let attributes = list(&record, "attributes");
        let attribute = |key: &str| attributes.iter().find(|attribute| attribute["key"] == key);
        let tag = attribute("fluent.tag").and_then(|tag| tag["value"]["stringValue"].as_str());
        let number = attribute("seq").map(|attribute| seq(&attribute["value"]["intValue"]));
        let (Some(tag), Some(number)) = (tag, number) else { panic!("no tag or seq: {record}") };
        let time = record["timeUnixNano"].as_str().and_then(|time| time.parse().ok()).expect("a time");
        events.entry(tag.into()).or_default().push((number, time));
    }
}

/// A sequence number; OTLP's JSON has 64-bit integers as text.
fn seq(value: &Value) -> u64 {
    let number = value.as_u64().or_else(|| value.as_str()?.parse().ok());
    number.unwrap_or_else(|| panic!("no sequence number: {value}"))
}
