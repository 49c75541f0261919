//! bench send -> first tributary (file buffer, fsync ack) -> forward -> second tributary -> JSON lines.
//!
//! The first is killed (`kill -9`) three times under 60,000 events a second. Every acknowledged event must be in the file,
//! none that was not sent, and at most kills x events in flight more than once: in flight are the chunks that out_forward
//! may have on the way, and the messages that the generator had no ack for.
//!
//! The long form kills both in turn: `make soak-crash`, which sets
//! `CRASH_EVENTS` (1,000,000), `CRASH_KILLS` (3) and `CRASH_VICTIMS` (`first`, or `both`).

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use tributary::bench::record::ENTRY_BYTES;

use crate::support::{
    LIMIT, Process, Room, binary, free_port, number, wait_at_most, wait_for, wait_for_port,
};

/// Load in events a second: what the peers' kills were measured with, times three.
const RATE: u64 = 60_000;

/// Small chunks, so that every kill meets some in each state: staged, queued, on the way.
const CHUNK_BYTES: u64 = 1 << 20;
const EVENTS_PER_CHUNK: u64 = CHUNK_BYTES / ENTRY_BYTES as u64;
const FORWARD_FLUSH_THREADS: u64 = 2;
/// Chunks that out_forward keeps in flight per flush thread.
const FORWARD_CHUNKS_PER_THREAD: u64 = 4;
const FILE_FLUSH_THREADS: u64 = 1;

/// After the last ack everything must be in the file within this time: two flush intervals and some retries.
const DELIVERY_LIMIT: Duration = Duration::from_secs(120);

const FIRST: &str = "
<source>
  @type forward
  bind 127.0.0.1
  port {port}
</source>
<match **>
  @type forward
  <server>
    host 127.0.0.1
    port {next_port}
  </server>
  <buffer tag>
    @type file
    path {room}/first-buffer
    fsync ack
    chunk_limit_size {chunk_bytes}
    total_limit_size 16g
    flush_mode interval
    flush_interval 1s
    flush_thread_count {threads}
    retry_wait 1s
    retry_max_interval 2s
    overflow_action block
  </buffer>
</match>
";

const SECOND: &str = "
<source>
  @type forward
  bind 127.0.0.1
  port {port}
</source>
<match **>
  @type file
  path {room}/out/events
  append true
  <format>
    @type json
  </format>
  <buffer time>
    @type file
    path {room}/second-buffer
    fsync ack
    timekey 1d
    timekey_wait 0s
    chunk_limit_size {chunk_bytes}
    total_limit_size 16g
    flush_mode interval
    flush_interval 1s
    flush_thread_count {threads}
    retry_wait 1s
    retry_max_interval 2s
    overflow_action block
  </buffer>
</match>
";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    First,
    /// As `First`, while chunks are on their way out of it without an ack.
    FirstWithChunksOnTheWay,
    Second,
}

/// How often to kill whom.
#[derive(Debug)]
struct Plan {
    events: u64,
    victims: Vec<Victim>,
}

impl Plan {
    fn from_environment() -> Self {
        let number = |name: &str, default: u64| match std::env::var(name) {
            Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name} must be a number, got {text:?}")),
            Err(_) => default,
        };
        let in_turn = match std::env::var("CRASH_VICTIMS").as_deref() {
            Ok("both") => {
                &[Victim::First, Victim::Second, Victim::FirstWithChunksOnTheWay, Victim::Second][..]
            }
            Ok("first") | Err(_) => &[Victim::First, Victim::FirstWithChunksOnTheWay],
            Ok(other) => panic!("CRASH_VICTIMS must be first or both, got {other:?}"),
        };
        let kills = number("CRASH_KILLS", 3) as usize;
        let victims = in_turn.iter().copied().cycle().take(kills).collect();
        Self { events: number("CRASH_EVENTS", 1_000_000), victims }
    }

    /// Acknowledged events at which the kill with that number, from 0, happens: evenly spread.
    fn kill_at(&self, number: usize) -> u64 {
        self.events * (number as u64 + 1) / (self.victims.len() as u64 + 1)
    }

    /// What may arrive more than once: for each kill what was on its way out of the victim, and what the generator
    /// sent again because its ack had not come (it may have been stored).
    fn repeats_allowed(&self, resent_events: u64) -> u64 {
        let of = |victim: &Victim| match victim {
            Victim::First | Victim::FirstWithChunksOnTheWay => {
                FORWARD_FLUSH_THREADS * FORWARD_CHUNKS_PER_THREAD * EVENTS_PER_CHUNK
            }
            Victim::Second => FILE_FLUSH_THREADS * EVENTS_PER_CHUNK,
        };
        resent_events + self.victims.iter().map(of).sum::<u64>()
    }
}

/// The two forwarders, each with its configuration, so that they can be started again.
struct Chain {
    first_port: u16,
    first: Process,
    second: Process,
    first_configuration: String,
    second_configuration: String,
    second_port: u16,
    /// Last, so that the processes can still show their logs when they are dropped.
    room: Room,
}

impl Chain {
    fn start() -> Self {
        let (room, first_port, second_port) = (Room::new(), free_port(), free_port());
        let fill = |text: &str, port: u16, threads: u64| {
            text.replace("{port}", &port.to_string())
                .replace("{next_port}", &second_port.to_string())
                .replace("{chunk_bytes}", &CHUNK_BYTES.to_string())
                .replace("{threads}", &threads.to_string())
        };
        let first_configuration = fill(FIRST, first_port, FORWARD_FLUSH_THREADS);
        let second_configuration = fill(SECOND, second_port, FILE_FLUSH_THREADS);
        let second = room.tributary("second", &second_configuration);
        wait_for_port(second_port);
        let first = room.tributary("first", &first_configuration);
        wait_for_port(first_port);
        Self { first_port, first, second, first_configuration, second_configuration, second_port, room }
    }

    /// SIGKILL and a new start at once; returns how long nobody listened.
    fn kill(&mut self, victim: Victim) -> Duration {
        let start = Instant::now();
        match victim {
            Victim::First => {
                self.first.kill_hard();
                self.first = self.room.tributary("first", &self.first_configuration);
                wait_for_port(self.first_port);
            }
            Victim::FirstWithChunksOnTheWay => {
                // The second is frozen while the first stores half a second of load and sends what it may: chunks
                // lie in the second's sockets, read after the first has died, and nobody hears their acks.
                let frozen = self.second.freeze();
                let stored = self.acknowledged() + RATE / 2;
                wait_for("the first to go on storing", || (self.acknowledged() >= stored).then_some(()));
                self.first.kill_hard();
                drop(frozen);
                self.first = self.room.tributary("first", &self.first_configuration);
                wait_for_port(self.first_port);
            }
            Victim::Second => {
                self.second.kill_hard();
                self.second = self.room.tributary("second", &self.second_configuration);
                wait_for_port(self.second_port);
            }
        }
        start.elapsed()
    }

    fn acknowledged(&self) -> u64 {
        number(&self.room.status("send"), "acknowledged")
    }

    fn files(&self) -> Vec<PathBuf> {
        self.room.files("out", ".log")
    }

    fn repeats_allowed(&self, plan: &Plan) -> u64 {
        plan.repeats_allowed(number(&self.room.status("send"), "resent_events"))
    }

    /// The oracle's word. As a command, because the test binary is built without optimisation.
    fn verdict(&self, plan: &Plan) -> Verdict {
        // A line that was cut by the kill of its writer is the only one that may be unreadable.
        let cut = plan.victims.iter().filter(|victim| **victim == Victim::Second).count();
        let mut command = Command::new(binary());
        command.args(["bench", "judge", "--journal"]).arg(self.room.path("send.journal"));
        command.arg("--files").args(self.files());
        command.arg("--max-repeats").arg(self.repeats_allowed(plan).to_string());
        command.arg("--max-unreadable").arg(cut.to_string());
        let output = command.output().expect("bench judge runs");
        let said = [output.stdout, output.stderr].concat();
        Verdict { is_good: output.status.success(), text: String::from_utf8_lossy(&said).into_owned() }
    }

    /// Waits until nothing acknowledged is missing in the file, or the limit has passed; the oracle's last word.
    fn wait_for_debts(&self, plan: &Plan) -> Verdict {
        let (start, mut looked_at) = (Instant::now(), 0);
        let bytes = || self.files().iter().filter_map(|file| Some(file.metadata().ok()?.len())).sum::<u64>();
        loop {
            let (now, is_last) = (bytes(), start.elapsed() > DELIVERY_LIMIT);
            if now != looked_at || is_last {
                looked_at = now;
                let verdict = self.verdict(plan);
                if is_last || !verdict.text.contains("lost: ") {
                    return verdict;
                }
            }
            std::thread::sleep(Duration::from_millis(500));
        }
    }
}

struct Verdict {
    is_good: bool,
    text: String,
}

#[test]
fn every_acknowledged_event_survives_kills() {
    let plan = Plan::from_environment();
    let mut chain = Chain::start();
    let (port, events, rate) = (chain.first_port.to_string(), plan.events.to_string(), RATE.to_string());
    let arguments =
        ["--port", &port, "--events", &events, "--rate", &rate, "--batch", "500", "--ack-timeout", "20"];
    let mut send = chain.room.bench_send("send", &arguments);
    for (place, victim) in plan.victims.iter().enumerate() {
        let wanted = plan.kill_at(place);
        let status = wait_at_most(LIMIT * 5, &format!("{wanted} acknowledged events"), || {
            assert_eq!(send.try_wait(), None, "the generator ended early: {}", send.output());
            let status = chain.room.status("send");
            (number(&status, "acknowledged") >= wanted).then_some(status)
        });
        let away = chain.kill(*victim);
        println!(
            "kill {} of {victim:?} at {} acknowledged, {} without ack; back after {away:?}",
            place + 1,
            number(&status, "acknowledged"),
            number(&status, "unacknowledged"),
        );
    }
    let limit = LIMIT + Duration::from_secs(3 * plan.events / RATE);
    send.succeed_within(limit);
    println!("generator: {}", chain.room.status("send"));
    let verdict = chain.wait_for_debts(&plan);
    println!("{}repeats allowed: {}", verdict.text, chain.repeats_allowed(&plan));
    assert!(verdict.is_good, "{}", verdict.text);
    let all = format!("{} events acknowledged", plan.events);
    assert!(verdict.text.starts_with(&all), "expected {all}, got: {}", verdict.text);
    assert!(chain.first.stop().success() && chain.second.stop().success(), "both end in order");
}
