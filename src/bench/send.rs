//! `tributary bench send`: the generator.
//!
//! Each connection has a thread that writes and one that reads acks. *Closed loop* (no `--rate`): at most `--in-flight`
//! unacknowledged messages per connection. *Open loop* (`--rate`): messages go out on schedule whatever the answers,
//! so that a pause of the forwarder shows as a pause and not as fewer events. On a broken connection everything that
//! has no ack is sent again with the same chunk id. Each acknowledged range is journalled for the oracle.

mod connection;

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::json;

use super::histogram::{Histogram, ns_to_ms};
use super::journal::JournalWriter;
use super::record::{ENTRY_BYTES, Mode};

/// How often the status file is rewritten and the stop flag is looked at.
const STATUS_INTERVAL: Duration = Duration::from_millis(200);

/// `tributary bench send`
#[derive(Clone, Debug, clap::Args)]
pub struct SendOptions {
    /// Where to send: `host` or `host:port`, several with commas; connections are dealt out in turn
    #[arg(long, default_value = "127.0.0.1", value_delimiter = ',')]
    pub host: Vec<String>,
    /// Port of hosts that name none
    #[arg(long, default_value_t = 24224)]
    pub port: u16,
    /// Go to the next host when a connection breaks (otherwise the same one is tried again)
    #[arg(long)]
    pub failover: bool,
    /// Connections
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub connections: u16,
    /// How events are put into messages
    #[arg(long, value_enum, default_value = "packed")]
    pub mode: Mode,
    /// Events in all
    #[arg(long, default_value_t = 1_000_000)]
    pub events: u64,
    /// Stop taking new events after this many seconds
    #[arg(long, value_name = "SECONDS")]
    pub seconds: Option<f64>,
    /// Events a message; in mode message without ack: messages a write
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub batch: u32,
    /// Events a second, sent on schedule whatever the answers (open loop)
    #[arg(long, value_name = "EVENTS")]
    pub rate: Option<f64>,
    /// Unacknowledged messages per connection when no rate is given (closed loop)
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub in_flight: u32,
    /// Ask for acks (the default)
    #[arg(long, overrides_with = "no_ack")]
    pub ack: bool,
    /// Do not ask for acks; what a broken connection held is not sent again
    #[arg(long)]
    pub no_ack: bool,
    /// An ack that takes longer than this breaks the connection
    #[arg(long, default_value_t = 30.0, value_name = "SECONDS")]
    pub ack_timeout: f64,
    /// Give up when nothing could be sent or was acknowledged for this long
    #[arg(long, default_value_t = 120.0, value_name = "SECONDS")]
    pub give_up: f64,
    /// Number of this run, written into each event [default: chosen at random]
    #[arg(long)]
    pub run: Option<u64>,
    /// Tag
    #[arg(long, default_value = "bench.access")]
    pub tag: String,
    /// Write each acknowledged range here, for `bench judge`
    #[arg(long, value_name = "FILE")]
    pub journal: Option<PathBuf>,
    /// Rewrite this file with the figures so far, several times a second
    #[arg(long, value_name = "FILE")]
    pub status: Option<PathBuf>,
}

impl SendOptions {
    fn wants_ack(&self) -> bool {
        !self.no_ack
    }

    /// Events that one message holds, the unit of acks and resends.
    fn unit(&self) -> u32 {
        if self.mode == Mode::Message && self.wants_ack() { 1 } else { self.batch }
    }

    /// `host:port` of each target.
    fn targets(&self) -> Vec<String> {
        let with_port = |host: &String| {
            let bare_v6 = host.matches(':').count() > 1 && !host.starts_with('[');
            match host.rsplit_once(':') {
                _ if bare_v6 => format!("[{host}]:{}", self.port),
                Some((_, port)) if port.parse::<u16>().is_ok() => host.clone(),
                _ => format!("{host}:{}", self.port),
            }
        };
        self.host.iter().map(with_port).collect()
    }
}

/// What all connections share.
struct Shared {
    options: SendOptions,
    run: u64,
    started: Instant,
    /// The next event to send.
    next: AtomicU64,
    /// No new events; what is owed is still finished.
    stop: Arc<AtomicBool>,
    /// Nothing moved for too long, or the journal could not be written: end now.
    abort: AtomicBool,
    account: Mutex<Account>,
}

/// Figures of the whole run.
#[derive(Default)]
struct Account {
    /// Events of messages whose last byte was given to the kernel, each counted once.
    sent: u64,
    acknowledged: u64,
    resent_messages: u64,
    resent_events: u64,
    connects: u64,
    connection_errors: u64,
    last_error: Option<String>,
    unexpected_acks: u64,
    latency: Histogram,
    schedule_lag_ns: u64,
    last_progress: Option<Instant>,
    /// When the last connection was done.
    finished: Option<Instant>,
    last_ack: Option<Instant>,
    longest_ack_gap: Duration,
    longest_ack_gap_at: Duration,
    journal: Option<JournalWriter>,
}

impl Shared {
    fn account(&self) -> MutexGuard<'_, Account> {
        self.account.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next `(first, count)` to send; None when all are taken or the run is over.
    fn take(&self) -> Option<(u64, u32)> {
        let over =
            self.options.seconds.is_some_and(|seconds| self.started.elapsed().as_secs_f64() >= seconds);
        if over || self.stop.load(Ordering::SeqCst) || self.abort.load(Ordering::SeqCst) {
            return None;
        }
        let unit = u64::from(self.options.unit());
        let take = |next: u64| (next < self.options.events).then(|| (next + unit).min(self.options.events));
        let first = self.next.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).ok()?;
        Some((first, unit.min(self.options.events - first) as u32))
    }

    /// When the event is due, in open loop.
    fn due(&self, first: u64) -> Option<Instant> {
        let rate = self.options.rate?;
        Some(self.started + Duration::from_secs_f64(first as f64 / rate))
    }

    fn failed(&self, target: &str, error: &io::Error) {
        let mut account = self.account();
        account.connection_errors += 1;
        account.last_error = Some(format!("{target}: {error}"));
    }
}

impl Account {
    fn progress(&mut self) {
        self.last_progress = Some(Instant::now());
    }

    fn note_ack_gap(&mut self, started: Instant, now: Instant) {
        let gap = now - self.last_ack.replace(now).unwrap_or(started);
        if gap > self.longest_ack_gap {
            self.longest_ack_gap = gap;
            self.longest_ack_gap_at = now - started;
        }
    }
}

/// The figures of a run.
#[derive(Clone, Debug)]
pub struct SendReport {
    /// The run's number.
    pub run: u64,
    /// Events sent, each counted once.
    pub sent: u64,
    /// Events acknowledged.
    pub acknowledged: u64,
    /// Events that went out again after a broken connection.
    pub resent_events: u64,
    /// False when acks are still owed, events were not sent, or the journal could not be written.
    pub complete: bool,
    /// Everything, as printed.
    pub json: serde_json::Value,
}

/// Runs `bench send`: prints the figures; 0 when everything was sent (and acknowledged), else 1.
pub fn run(options: SendOptions) -> ExitCode {
    let stop = match super::status::stop_flag() {
        Ok(stop) => stop,
        Err(error) => {
            eprintln!("bench send: {error}");
            return ExitCode::FAILURE;
        }
    };
    match send(options, stop) {
        Ok(report) => {
            println!("{}", report.json);
            ExitCode::from(u8::from(!report.complete))
        }
        Err(error) => {
            eprintln!("bench send: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Sends until all events are out (and acknowledged), `stop` turns true, or nothing moves any more.
pub fn send(options: SendOptions, stop: Arc<AtomicBool>) -> io::Result<SendReport> {
    let run = options.run.unwrap_or_else(|| fastrand::u64(1..1 << 53));
    let journal = match &options.journal {
        Some(path) => Some(JournalWriter::create(path, run)?),
        None => None,
    };
    let shared = Arc::new(Shared {
        run,
        started: Instant::now(),
        next: AtomicU64::new(0),
        stop,
        abort: AtomicBool::new(false),
        account: Mutex::new(Account { journal, ..Account::default() }),
        options,
    });
    let mut writers = Vec::new();
    for number in 0..shared.options.connections {
        let shared = shared.clone();
        let writer = std::thread::Builder::new().name(format!("send {number}"));
        writers.push(writer.spawn(move || {
            connection::run(&shared, usize::from(number));
            shared.account().finished = Some(Instant::now());
        })?);
    }
    watch(&shared, &writers)?;
    for writer in writers {
        writer.join().map_err(|_| io::Error::other("a sending thread panicked"))?;
    }
    let finished =
        shared.account().journal.as_mut().map(|journal| journal.finish(shared.next.load(Ordering::SeqCst)));
    finished.unwrap_or(Ok(()))?;
    let report = report(&shared, true);
    if let Some(path) = &shared.options.status {
        super::status::replace_file(path, report.json.to_string().as_bytes())?;
    }
    Ok(report)
}

/// Writes the status file and ends a run in which nothing moves, until every writer is done.
fn watch(shared: &Shared, writers: &[std::thread::JoinHandle<()>]) -> io::Result<()> {
    let patience = Duration::from_secs_f64(shared.options.give_up);
    while !writers.iter().all(std::thread::JoinHandle::is_finished) {
        std::thread::sleep(STATUS_INTERVAL.min(patience / 4));
        let last = shared.account().last_progress.unwrap_or(shared.started);
        if last.elapsed() > patience {
            shared.abort.store(true, Ordering::SeqCst);
        }
        if let Some(path) = &shared.options.status {
            super::status::replace_file(path, report(shared, false).json.to_string().as_bytes())?;
        }
    }
    Ok(())
}

/// The figures so far, or, when every connection is done, those of the run.
fn report(shared: &Shared, is_over: bool) -> SendReport {
    let (options, account) = (&shared.options, shared.account());
    let over = account.finished.filter(|_| is_over).unwrap_or_else(Instant::now);
    let seconds = (over - shared.started).as_secs_f64();
    let counted = if options.wants_ack() { account.acknowledged } else { account.sent };
    let stopped = options.seconds.is_some() || shared.stop.load(Ordering::SeqCst);
    let wanted = if stopped { shared.next.load(Ordering::SeqCst) } else { options.events };
    let gave_up = shared.abort.load(Ordering::SeqCst);
    let json = json!({
        "run": shared.run,
        "mode": format!("{:?}", options.mode).to_lowercase(),
        "tag": options.tag,
        "connections": options.connections,
        "batch": options.unit(),
        "sent": account.sent,
        "acknowledged": account.acknowledged,
        "unacknowledged": if options.wants_ack() { account.sent.saturating_sub(account.acknowledged) } else { 0 },
        "resends": account.resent_messages,
        "resent_events": account.resent_events,
        "seconds": (seconds * 1_000.0).round() / 1_000.0,
        "events_per_second": (counted as f64 / seconds).round(),
        "bytes_per_event": ENTRY_BYTES,
        "ack_latency_ms": account.latency.summary_ms(),
        "longest_ack_gap_ms": account.longest_ack_gap.as_secs_f64() * 1_000.0,
        "longest_ack_gap_ended_after_seconds": account.longest_ack_gap_at.as_secs_f64(),
        "schedule_lag_max_ms": ns_to_ms(account.schedule_lag_ns),
        "connects": account.connects,
        "connection_errors": account.connection_errors,
        "last_error": account.last_error,
        "unexpected_acks": account.unexpected_acks,
        "gave_up": gave_up,
    });
    SendReport {
        run: shared.run,
        sent: account.sent,
        acknowledged: account.acknowledged,
        resent_events: account.resent_events,
        complete: counted >= wanted && !gave_up,
        json,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: SendOptions,
    }

    #[test]
    fn targets_take_the_port_of_the_option() {
        let line = Line::parse_from(["send", "--host", "a,b:1,::1,[::2]:3", "--port", "9"]);
        assert_eq!(line.options.targets(), ["a:9", "b:1", "[::1]:9", "[::2]:3"]);
    }

    #[test]
    fn an_ack_in_mode_message_is_for_one_event() {
        let unit = |arguments: &[&str]| Line::parse_from([&["send"], arguments].concat()).options.unit();
        assert_eq!(unit(&["--mode", "message"]), 1);
        assert_eq!(unit(&["--mode", "message", "--no-ack", "--batch", "50"]), 50);
        assert_eq!(unit(&[]), 1_000);
    }
}
