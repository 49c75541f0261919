//! What happened when: a reading of all figures five times a second, printed when a scenario ends.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;
use tributary::bench::measure;

use super::network::Host;

/// The judges rewrite their status this often.
const INTERVAL: Duration = Duration::from_millis(200);

/// All figures at one moment.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    /// Since the timeline began.
    pub at: Duration,
    /// Events sent by the generator.
    pub sent: u64,
    /// Events acknowledged to it.
    pub acknowledged: u64,
    /// Different events at each sink.
    pub delivered: Vec<u64>,
    /// Repeats at all sinks.
    pub repeated: u64,
    /// Resident memory of the forwarder.
    pub resident_bytes: u64,
    /// Its open descriptors.
    pub open_files: u64,
}

impl Reading {
    /// Events that were acknowledged and have not been delivered.
    pub fn backlog(&self) -> u64 {
        self.acknowledged.saturating_sub(self.delivered.iter().sum())
    }
}

/// A running record of a scenario.
pub struct Timeline {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    started: Instant,
    stop: AtomicBool,
    generator: PathBuf,
    sinks: Vec<PathBuf>,
    forwarder: u32,
    names: Vec<String>,
    readings: Mutex<Vec<Reading>>,
    marks: Mutex<Vec<(Duration, String)>>,
}

impl Timeline {
    /// Begins to read: the generator's host, the sinks' hosts, the forwarder's process id.
    pub fn start(generator: &Host, sinks: &[&Host], forwarder: u32) -> Self {
        let shared = Arc::new(Shared {
            started: Instant::now(),
            stop: AtomicBool::new(false),
            generator: generator.file("status"),
            sinks: sinks.iter().map(|host| host.file("status")).collect(),
            names: sinks.iter().map(|host| host.name().to_owned()).collect(),
            forwarder,
            readings: Mutex::default(),
            marks: Mutex::default(),
        });
        let reading = shared.clone();
        let thread = std::thread::spawn(move || {
            while !reading.stop.load(Ordering::Relaxed) {
                let now = reading.read();
                reading.readings.lock().expect("readings").push(now);
                std::thread::sleep(INTERVAL);
            }
        });
        Self { shared, thread: Some(thread) }
    }

    /// Notes what the scenario does now; the moment.
    pub fn mark(&self, what: &str) -> Duration {
        let at = self.shared.started.elapsed();
        self.shared.marks.lock().expect("marks").push((at, what.to_owned()));
        at
    }

    /// The readings so far.
    pub fn readings(&self) -> Vec<Reading> {
        self.shared.readings.lock().expect("readings").clone()
    }
}

impl Drop for Timeline {
    /// Prints itself, above all when the scenario fails.
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        print!("{}", self.shared.table());
    }
}

impl Shared {
    fn read(&self) -> Reading {
        let file = |path: &PathBuf| -> Value {
            std::fs::read(path).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default()
        };
        let number = |value: &Value, key: &str| value[key].as_u64().unwrap_or(0);
        let generator = file(&self.generator);
        let sinks: Vec<_> = self.sinks.iter().map(file).collect();
        // A forwarder that has ended is a scenario's business, not ours.
        let usage = measure::usage(self.forwarder).unwrap_or_default();
        Reading {
            at: self.started.elapsed(),
            sent: number(&generator, "sent"),
            acknowledged: number(&generator, "acknowledged"),
            delivered: sinks.iter().map(|sink| number(sink, "distinct")).collect(),
            repeated: sinks.iter().map(|sink| number(sink, "repeated")).sum(),
            resident_bytes: usage.resident_bytes,
            open_files: usage.open_files,
        }
    }

    /// One line a second, with the marks between them.
    fn table(&self) -> String {
        let readings = self.readings.lock().map(|readings| readings.clone()).unwrap_or_default();
        let mut marks =
            self.marks.lock().map(|marks| marks.clone()).unwrap_or_default().into_iter().peekable();
        let mut text = format!("{:>6} {:>9} {:>9}", "s", "sent", "acked");
        self.names.iter().for_each(|name| _ = write!(text, " {name:>9}"));
        let _ = writeln!(text, " {:>9} {:>8} {:>6} {:>5}", "backlog", "repeats", "MiB", "files");
        let mut next_second = Duration::ZERO;
        for reading in readings {
            while let Some((at, what)) = marks.next_if(|(at, _)| *at <= reading.at) {
                let _ = writeln!(text, "{:>6.1} --- {what}", at.as_secs_f64());
            }
            if reading.at < next_second {
                continue;
            }
            next_second = reading.at + Duration::from_millis(900);
            let _ = write!(
                text,
                "{:>6.1} {:>9} {:>9}",
                reading.at.as_secs_f64(),
                reading.sent,
                reading.acknowledged
            );
            reading.delivered.iter().for_each(|count| _ = write!(text, " {count:>9}"));
            let mebibytes = reading.resident_bytes >> 20;
            let (backlog, repeats, files) = (reading.backlog(), reading.repeated, reading.open_files);
            let _ = writeln!(text, " {backlog:>9} {repeats:>8} {mebibytes:>6} {files:>5}");
        }
        marks.for_each(|(at, what)| _ = writeln!(text, "{:>6.1} --- {what}", at.as_secs_f64()));
        text
    }
}
