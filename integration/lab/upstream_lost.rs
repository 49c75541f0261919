//! Three upstreams, one lost under 20,000 events/s: the other two take everything and never pause (docs/RELIABILITY.md F1).

use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use super::network::{Cut, Host, Lab};
use super::scenario::{Generator, PORT, Sink, forwarder, verdict};
use super::timeline::{Reading, Timeline};
use crate::support::{LIMIT, wait_for};

const RATE: u64 = 20_000;
const EVENTS: u64 = 400_000;
/// Events acknowledged when the upstream is lost: load and pools are in full swing.
const BEFORE_LOSS: u64 = 80_000;
const FLUSH_INTERVAL: Duration = Duration::from_millis(500);
const GRACE: Duration = Duration::from_secs(1);
/// Without any TCP acknowledgement. The ack deadline is left at its 30 s there.
const SEND_DEADLINE: Duration = Duration::from_secs(5);
/// Set in the configuration, so that the scenario need not last 30 s.
const ACK_DEADLINE: Duration = Duration::from_secs(4);

/// How the third upstream is lost.
enum Loss {
    /// Its packets vanish.
    Dropped,
    /// The kernel goes on accepting, the process does nothing (SIGSTOP).
    Frozen,
    /// It accepted and never read, from the beginning.
    Hanging,
}

#[test]
fn packets_dropped() {
    lose_one_of_three(Loss::Dropped, SEND_DEADLINE);
}

#[test]
fn accepts_and_hangs_after_working() {
    lose_one_of_three(Loss::Frozen, ACK_DEADLINE);
}

#[test]
fn accepts_and_hangs_from_the_beginning() {
    lose_one_of_three(Loss::Hanging, ACK_DEADLINE);
}

fn lose_one_of_three(loss: Loss, deadline: Duration) {
    let mut lab = Lab::new();
    let (sender, middle) = (lab.host("sender"), lab.host("middle"));
    let hosts = ["one", "two", "lost"].map(|name| lab.host(name));
    let mut healthy = [Sink::start(&hosts[0], &[]), Sink::start(&hosts[1], &[])];
    let mut lost = match loss {
        Loss::Hanging => Sink::start(&hosts[2], &["--behaviour", "accept-and-hang"]),
        Loss::Dropped | Loss::Frozen => Sink::start(&hosts[2], &[]),
    };
    let acks = match loss {
        Loss::Dropped => String::new(),
        Loss::Frozen | Loss::Hanging => format!("ack_response_timeout {}s", ACK_DEADLINE.as_secs()),
    };
    let forwarder = forwarder(&middle, &configuration(&middle.file("buffer"), &hosts, &acks));
    let timeline = Timeline::start(&sender, &hosts.each_ref(), forwarder.id());
    let (events, rate) = (EVENTS.to_string(), RATE.to_string());
    let load = ["--events", &events, "--rate", &rate, "--batch", "200"];
    let mut generator = Generator::start(&sender, &middle, &load);

    wait_for("the load", || (generator.acknowledged() >= BEFORE_LOSS).then_some(()));
    let cut_off = matches!(loss, Loss::Dropped).then(|| hosts[2].cut(Cut::Drop));
    let frozen = matches!(loss, Loss::Frozen).then(|| lost.process.freeze());
    let lost_at = timeline.mark("one upstream is lost");
    let sent = generator.finish();
    timeline.mark("everything is sent and acknowledged");
    let before: u64 = lost.status()["distinct"].as_u64().unwrap_or(0);
    wait_for("everything at the healthy two", || {
        let there = healthy.iter().map(|sink| sink.status()["distinct"].as_u64().unwrap_or(0)).sum::<u64>();
        (there + before >= EVENTS).then_some(())
    });
    timeline.mark("everything is delivered");

    for sink in &healthy {
        assert_never_paused(sink.host.name(), &sink.status());
        assert_latency(sink.host.name(), &sink.status(), deadline);
    }
    assert_nothing_else_waited(&timeline.readings(), lost_at + deadline + GRACE);
    assert_eq!(sent["resends"], 0, "the generator never had to send again");
    drop((cut_off, frozen));
    let lost_seen = lost.finish();
    let seen = healthy.each_mut().map(Sink::finish);
    // What was in flight when it was lost may have been read there too, or be read when it comes back.
    let verdict = verdict(&generator, &[&seen[0], &seen[1], &lost_seen], EVENTS / 10);
    println!("{verdict}");
    assert!(verdict.violations.is_empty(), "{verdict}");
    drop(forwarder);
}

fn configuration(buffer: &Path, upstreams: &[Host], acks: &str) -> String {
    let servers: String = upstreams
        .iter()
        .map(|host| format!("  <server>\n    host {}\n    port {PORT}\n  </server>\n", host.address))
        .collect();
    format!(
        "<source>\n  @type forward\n  port {PORT}\n</source>\n\
         <match **>\n  @type forward\n  require_ack_response true\n  {acks}\n{servers}  \
         <buffer tag>\n    @type file\n    path {}\n    flush_interval {}\n    flush_thread_count 4\n    \
         chunk_limit_size 512k\n  </buffer>\n</match>\n",
        buffer.display(),
        FLUSH_INTERVAL.as_secs_f64(),
    )
}

/// The healthy sinks get events all the time.
fn assert_never_paused(name: &str, status: &Value) {
    let gap = milliseconds(&status["longest_gap_ms"]);
    println!("{name}: longest pause {gap:?}");
    assert!(gap <= FLUSH_INTERVAL + GRACE, "{name} got nothing for {gap:?}: {}", status["gaps"]);
}

/// What was in flight on the lost upstream arrives within its deadline and a second.
fn assert_latency(name: &str, status: &Value, deadline: Duration) {
    let longest = milliseconds(&status["latency_ms"]["max"]);
    println!("{name}: latency {}", status["latency_ms"]);
    // The stage is looked at eleven times per interval: so much later may a chunk be on its way.
    let staged = FLUSH_INTERVAL + FLUSH_INTERVAL / 11;
    assert!(longest <= staged + deadline + GRACE, "{name}: an event took {longest:?}");
}

/// Once the deadline has passed, what waits is no more than the flush interval and a second of load.
fn assert_nothing_else_waited(readings: &[Reading], after: Duration) {
    let allowed = RATE * (FLUSH_INTERVAL + GRACE).as_millis() as u64 / 1_000;
    let worst = readings.iter().filter(|reading| reading.at > after).max_by_key(|reading| reading.backlog());
    let worst = worst.expect("readings after the deadline: the load must last longer");
    println!("largest backlog after the deadline: {} at {:?}", worst.backlog(), worst.at);
    assert!(worst.backlog() <= allowed, "{worst:?}, allowed {allowed}");
}

fn milliseconds(value: &Value) -> Duration {
    Duration::from_secs_f64(value.as_f64().expect("milliseconds") / 1_000.0)
}

// The scenario must outlast the longest deadline.
const _: () = assert!(EVENTS / RATE > BEFORE_LOSS / RATE + SEND_DEADLINE.as_secs() + 3);
const _: () = assert!(LIMIT.as_secs() > EVENTS / RATE);
