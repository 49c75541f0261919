//! The judges on hosts of a lab: a generator, counting sinks, and the verdict over both.

use std::fs;
use std::path::Path;

use serde_json::Value;
use tributary::bench::journal::Debts;
use tributary::bench::oracle::{Bounds, Verdict, judge};
use tributary::bench::tally::Tally;

use super::network::Host;
use crate::support::{LIMIT, Process, read_json, wait_for};

/// Port of every sink and forwarder: each has an address of its own.
pub const PORT: u16 = 24224;

/// A `bench sink` on a host.
pub struct Sink {
    /// Where it runs.
    pub host: Host,
    /// The process, to be frozen or killed.
    pub process: Process,
}

impl Sink {
    /// Starts a sink and waits until it listens.
    pub fn start(host: &Host, args: &[&str]) -> Self {
        let bind = format!("{}:{PORT}", host.address);
        let (status, seen) = (text(&host.file("status")), text(&host.file("seen")));
        let fixed = ["bench", "sink", "--bind", &bind, "--status", &status, "--seen", &seen];
        let process = host.tributary("sink", &[&fixed, args].concat());
        wait_for("a sink's first status", || fs::metadata(&status).ok());
        Self { host: host.clone(), process }
    }

    /// Its figures, at most a fifth of a second old while it runs.
    pub fn status(&self) -> Value {
        read_json(&self.host.file("status")).unwrap_or_default()
    }

    /// Ends it; everything it saw.
    pub fn finish(&mut self) -> Tally {
        self.process.stop();
        let seen = fs::read(self.host.file("seen")).expect("the sink's seen set");
        Tally::load(seen.as_slice()).expect("a whole seen set")
    }
}

/// A `bench send` on a host.
pub struct Generator {
    host: Host,
    process: Process,
}

impl Generator {
    /// Starts a generator that sends to another host's port 24224.
    pub fn start(host: &Host, to: &Host, args: &[&str]) -> Self {
        let (target, port) = (to.address.to_string(), PORT.to_string());
        let (status, journal) = (text(&host.file("status")), text(&host.file("journal")));
        let fixed =
            ["bench", "send", "--host", &target, "--port", &port, "--status", &status, "--journal", &journal];
        let process = host.tributary("send", &[&fixed, args].concat());
        Self { host: host.clone(), process }
    }

    /// Its figures, at most a fifth of a second old while it runs; null before the first.
    pub fn status(&self) -> Value {
        read_json(&self.host.file("status")).unwrap_or_default()
    }

    /// Events acknowledged so far.
    pub fn acknowledged(&self) -> u64 {
        self.status()["acknowledged"].as_u64().unwrap_or(0)
    }

    /// Waits until everything is sent and acknowledged; its figures.
    pub fn finish(&mut self) -> Value {
        let status = self.process.wait_at_most(3 * LIMIT);
        assert!(status.success(), "the generator ended with {status}");
        self.status()
    }

    /// What the forwarder owes.
    pub fn debts(&self) -> Debts {
        Debts::load(&self.host.file("journal")).expect("the generator's journal")
    }
}

/// The oracle over what several sinks saw together; an event that two of them saw is a repeat.
pub fn verdict(generator: &Generator, seen: &[&Tally], max_repeats: u64) -> Verdict {
    let mut together = Tally::default();
    seen.iter().for_each(|tally| together.merge(tally));
    judge(&[generator.debts()], &together, Bounds { max_repeats, max_unreadable: 0 })
}

/// A tributary on a host, with the configuration as text; waits until it listens on [`PORT`].
pub fn forwarder(host: &Host, configuration: &str) -> Process {
    let file = host.file("tributary.conf");
    fs::write(&file, configuration).expect("configuration file");
    let mut process = host.tributary("tributary", &["-c", &text(&file)]);
    wait_for("the forwarder's listener", || {
        assert!(process.try_wait().is_none(), "tributary ended while starting");
        listens(process.id()).then_some(())
    });
    process
}

/// Whether a process's network namespace has a listener on [`PORT`].
fn listens(pid: u32) -> bool {
    let table = fs::read_to_string(format!("/proc/{pid}/net/tcp")).unwrap_or_default();
    let port = format!(":{PORT:04X}");
    // Local address is the second field, state the fourth; 0A is LISTEN (proc(5)).
    table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()).any(|fields| {
        fields.get(1).is_some_and(|local| local.ends_with(&port)) && fields.get(3) == Some(&"0A")
    })
}

fn text(path: &Path) -> String {
    path.to_str().expect("a path in UTF-8").into()
}
