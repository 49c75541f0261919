//! What does an event cost in the whole process? The cases a to d that the peers were measured with, each with its
//! load, counted at the end.
//!
//! `make perf`, or `cargo bench --bench cases`; prints a table: CPU seconds (user and system) per million events, events
//! per second end to end, peak resident memory (the highest of all runs). Settings: `PERF_CASES` (abcd), `PERF_EVENTS`
//! (2000000), `PERF_RUNS` (3, the median by CPU counts). Figures and conditions: docs/PERFORMANCE.md.
//!
//! | case | path | load |
//! |---|---|---|
//! | a | forward in -> null | packed, 1,000 events a message, 4 connections, acks |
//! | b | forward in -> file buffer -> forward out, ack | as a |
//! | c | as b | one event a message, 8 connections, no acks |
//! | d | forward in -> file, JSON lines | as a |

#[allow(dead_code, reason = "shared with the integration tests, which use the rest")]
#[path = "../integration/support/mod.rs"]
mod support;

use std::time::{Duration, Instant};

use support::{Process, Room, free_port, number, wait_at_most, wait_for_port};
use tributary::bench::count::count_files;
use tributary::bench::measure::Usage;

/// Buffers as the peers had them; `fsync ack` is ours alone.
const BUFFER: &str = "
    @type file
    path {room}/buffer
    flush_mode interval
    flush_interval 1s
    chunk_limit_size 8m
    total_limit_size 16g
    overflow_action block
    fsync ack
";

/// No case takes longer unless it hangs.
const CASE_LIMIT: Duration = Duration::from_secs(600);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Case {
    Null,
    Forward,
    ForwardMessages,
    File,
}

impl Case {
    fn from_letter(letter: char) -> Self {
        match letter {
            'a' => Self::Null,
            'b' => Self::Forward,
            'c' => Self::ForwardMessages,
            'd' => Self::File,
            other => panic!("PERF_CASES holds letters of abcd, got {other:?}"),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Null => "a  forward in -> null",
            Self::Forward => "b  forward in -> file buffer -> forward out",
            Self::ForwardMessages => "c  as b, message mode",
            Self::File => "d  forward in -> file, JSON lines",
        }
    }

    fn output(self, sink_port: u16) -> String {
        match self {
            Self::Null => "  @type null\n".into(),
            Self::Forward | Self::ForwardMessages => format!(
                "  @type forward\n  require_ack_response true\n  <server>\n    host 127.0.0.1\n    port {sink_port}\n  \
                 </server>\n  <buffer tag>{BUFFER}    flush_thread_count 2\n  </buffer>\n"
            ),
            Self::File => format!(
                "  @type file\n  path {{room}}/out/events\n  append true\n  <format>\n    @type json\n  </format>\n  \
                 <buffer time>{BUFFER}    timekey 1d\n    flush_thread_count 1\n  </buffer>\n"
            ),
        }
    }

    fn load(self) -> &'static [&'static str] {
        match self {
            Self::ForwardMessages => {
                &["--mode", "message", "--no-ack", "--connections", "8", "--batch", "100"]
            }
            _ => &["--mode", "packed", "--connections", "4", "--batch", "1000"],
        }
    }
}

/// One run's figures.
#[derive(Clone, Copy)]
struct Figures {
    cpu_seconds_per_million: f64,
    events_per_second: f64,
    peak_mib: f64,
}

fn main() {
    let text = |name: &str, default: &str| std::env::var(name).unwrap_or_else(|_| default.into());
    let number = |name: &str, default: &str| {
        let value = text(name, default);
        value.parse::<u64>().unwrap_or_else(|_| panic!("{name} must be a number, got {value:?}"))
    };
    let (events, runs) = (number("PERF_EVENTS", "2000000"), number("PERF_RUNS", "3").max(1));
    println!("{events} events a run, median of {runs}; every event counted at the end (case a: every ack)\n");
    println!("| case | CPU s / M events | events / s | peak MiB |\n|---|---|---|---|");
    for letter in text("PERF_CASES", "abcd").chars() {
        let case = Case::from_letter(letter);
        let mut figures: Vec<Figures> = (0..runs).map(|_| measure(case, events)).collect();
        figures.sort_by(|one, other| one.cpu_seconds_per_million.total_cmp(&other.cpu_seconds_per_million));
        let Figures { cpu_seconds_per_million, events_per_second, .. } = figures[figures.len() / 2];
        // A bound that only the median run keeps is none.
        let peak_mib = figures.iter().map(|figures| figures.peak_mib).fold(0.0, f64::max);
        println!(
            "| {} | {cpu_seconds_per_million:.2} | {events_per_second:.0} | {peak_mib:.0} |",
            case.name()
        );
    }
}

fn measure(case: Case, events: u64) -> Figures {
    let (room, port, count) = (Room::new(), free_port(), events.to_string());
    let (mut sink, sink_port) = room.bench_sink("sink", &["--expect", &count]);
    let head = format!("<source>\n  @type forward\n  bind 127.0.0.1\n  port {port}\n</source>\n");
    let configuration = format!("{head}<match **>\n{}</match>\n", case.output(sink_port));
    let mut forwarder = room.tributary("tributary", &configuration);
    wait_for_port(port);
    let (port, start) = (port.to_string(), Instant::now());
    let arguments = [&["--port", &port, "--events", &count], case.load()].concat();
    let mut send = room.bench_send("send", &arguments);
    send.succeed_within(CASE_LIMIT);
    let seconds = match case {
        Case::Null => {
            number(&room.status("send"), "acknowledged") as f64 / events as f64 * seconds_of_send(&room)
        }
        Case::Forward | Case::ForwardMessages => wait_for_sink(&room, events, start),
        Case::File => wait_for_lines(&room, events, start),
    };
    let usage = settled_usage(&forwarder);
    assert!(forwarder.stop().success(), "tributary ends in order");
    sink.stop();
    Figures {
        cpu_seconds_per_million: usage.cpu_seconds / (events as f64 / 1e6),
        events_per_second: events as f64 / seconds,
        peak_mib: usage.peak_resident_bytes as f64 / f64::from(1 << 20),
    }
}

/// With null an acknowledged event has arrived.
fn seconds_of_send(room: &Room) -> f64 {
    room.status("send")["seconds"].as_f64().expect("seconds in the generator's figures")
}

/// Until every event is counted at the sink; none lost, none twice.
fn wait_for_sink(room: &Room, events: u64, start: Instant) -> f64 {
    let what = format!("{events} events at the sink");
    let (seconds, status) = wait_at_most(CASE_LIMIT, &what, || {
        let status = room.status("sink");
        (number(&status, "distinct") >= events).then(|| (start.elapsed().as_secs_f64(), status))
    });
    assert_eq!((number(&status, "repeated"), number(&status, "foreign")), (0, 0), "{status}");
    seconds
}

/// Until the output has stopped growing for two flush intervals; then every line is counted. The time is that of the
/// last growth.
fn wait_for_lines(room: &Room, events: u64, start: Instant) -> f64 {
    const QUIET: Duration = Duration::from_secs(3);
    let (mut bytes, mut grown) = (0, Instant::now());
    wait_at_most(CASE_LIMIT, "the output file to be complete", || {
        let files = room.files("out", ".log");
        let now = files.iter().filter_map(|file| Some(file.metadata().ok()?.len())).sum::<u64>();
        if now != bytes {
            (bytes, grown) = (now, Instant::now());
        }
        (bytes > 0 && grown.elapsed() > QUIET).then_some(())
    });
    let tally = count_files(&room.files("out", ".log")).expect("the output files");
    let summary = tally.summary(Some(events));
    assert_eq!((tally.lost(Some(events)), tally.repeated(), tally.unreadable), (0, 0, 0), "{summary}");
    (grown - start).as_secs_f64()
}

/// Usage when the last chunk's clean-up is done: nothing was used for a moment.
fn settled_usage(forwarder: &Process) -> Usage {
    let mut before = forwarder.usage();
    wait_at_most(CASE_LIMIT, "tributary to come to rest", || {
        std::thread::sleep(Duration::from_millis(300));
        let now = forwarder.usage();
        let rested = now.cpu_seconds - before.cpu_seconds < 0.02;
        before = now;
        rested.then_some(now)
    })
}
