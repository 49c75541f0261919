//! A process that a test started, and what can be done to it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tributary::bench::measure::{Usage, usage};

use super::{LIMIT, wait_at_most};

/// Lines of a process's output that a failed test shows.
const TAIL_LINES: usize = 40;

/// A process with its output in a file. Dropped, it is killed; in a failing test the end of its output is shown.
pub struct Process {
    name: String,
    output: PathBuf,
    child: Child,
    ended: Option<ExitStatus>,
}

impl Process {
    /// Starts a command; standard output and error are appended to `folder/name.log`.
    pub fn start(folder: &Path, name: &str, command: &mut Command) -> Self {
        let output = folder.join(format!("{name}.log"));
        let log = File::options().create(true).append(true).open(&output).expect("log file");
        let child = command
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("log file"))
            .stderr(log)
            .spawn()
            .unwrap_or_else(|error| panic!("{name}: {command:?}: {error}"));
        Self { name: name.into(), output, child, ended: None }
    }

    /// The process id. With `ip netns exec` it is that of the program itself, which replaces `ip`.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.id()).expect("a process id"))
    }

    /// What it has written so far.
    pub fn output(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.output).unwrap_or_default()).into_owned()
    }

    /// CPU seconds, memory and open files, those of its children included.
    pub fn usage(&self) -> Usage {
        usage(self.id()).unwrap_or_else(|error| panic!("{} cannot be measured: {error}", self.name))
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).unwrap_or_else(|error| panic!("{signal} to {}: {error}", self.name));
    }

    /// SIGSTOP: its connections stay open and nobody answers. It goes on when the guard is dropped.
    pub fn freeze(&self) -> Frozen {
        self.signal(Signal::SIGSTOP);
        Frozen(self.pid())
    }

    /// SIGKILL: it has no chance to do anything. Returns when it is gone.
    pub fn kill_hard(&mut self) {
        self.signal(Signal::SIGKILL);
        self.wait_at_most(LIMIT);
    }

    /// Whether it has ended, and how.
    pub fn try_wait(&mut self) -> Option<ExitStatus> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().expect("waiting for a child");
        }
        self.ended
    }

    /// Waits for its end.
    pub fn wait_at_most(&mut self, limit: Duration) -> ExitStatus {
        let what = format!("the end of {}", self.name);
        wait_at_most(limit, &what, || self.try_wait())
    }

    /// Waits for its end, which must be a success.
    pub fn succeed_within(&mut self, limit: Duration) {
        let status = self.wait_at_most(limit);
        assert!(status.success(), "{} ended with {status}", self.name);
    }

    /// Asks it to end (TERM), as a service manager does, and waits.
    pub fn stop(&mut self) -> ExitStatus {
        self.signal(Signal::SIGTERM);
        self.wait_at_most(LIMIT)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.try_wait().is_none() {
            // Ends a stopped process, too.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        if std::thread::panicking() {
            let output = self.output();
            let lines: Vec<_> = output.lines().collect();
            eprintln!("--- {} ({:?}), last lines:", self.name, self.ended);
            lines[lines.len().saturating_sub(TAIL_LINES)..].iter().for_each(|line| eprintln!("{line}"));
        }
    }
}

/// A stopped process; dropping this lets it go on.
pub struct Frozen(Pid);

impl Drop for Frozen {
    fn drop(&mut self) {
        // Gone meanwhile: nothing to let go on.
        let _ = kill(self.0, Signal::SIGCONT);
    }
}
