//! A process that a scenario started, and what can be done to it.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tributary::bench::measure::{Usage, usage};

use super::wait_for;

/// Lines of a process's output that a failed scenario shows.
const LINES_SHOWN: usize = 60;

/// A process that ends with its scenario. When the scenario fails, the end of its output is printed.
pub struct Running {
    name: String,
    child: Child,
    ended: Option<ExitStatus>,
    output: PathBuf,
}

impl Running {
    /// Starts a command; standard output and error go, appended, to one file.
    pub fn start(name: &str, command: &mut Command, output: &Path) -> Self {
        let file = File::options().create(true).append(true).open(output);
        let file = file.unwrap_or_else(|error| panic!("{}: {error}", output.display()));
        let also = file.try_clone().expect("a second handle of the output file");
        let child = command.stdin(Stdio::null()).stdout(file).stderr(also).spawn();
        let child = child.unwrap_or_else(|error| panic!("{name} does not start: {error}"));
        Self { name: name.to_owned(), child, ended: None, output: output.to_owned() }
    }

    /// Its number.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Everything it wrote.
    pub fn output(&self) -> String {
        std::fs::read(&self.output)
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .unwrap_or_default()
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().expect("the state of a child");
        }
        self.ended
    }

    /// CPU seconds, memory, open files, of its children too.
    pub fn usage(&self) -> Usage {
        usage(self.pid()).unwrap_or_else(|error| panic!("{} cannot be measured: {error}", self.name))
    }

    /// Waits until it ends by itself.
    pub fn wait(&mut self, limit: Duration) -> ExitStatus {
        let what = format!("the end of {}", self.name);
        wait_for(&what, limit, || self.ended())
    }

    /// SIGTERM, then waits for the end.
    pub fn terminate(&mut self, limit: Duration) -> ExitStatus {
        self.signal(Signal::SIGTERM);
        self.wait(limit)
    }

    /// SIGKILL: the process has no chance to do anything. Returns when it is gone.
    pub fn kill_hard(&mut self) {
        self.signal(Signal::SIGKILL);
        self.wait(super::PATIENCE);
    }

    /// SIGSTOP: connections stay open and nobody answers. It goes on when the guard is dropped.
    pub fn freeze(&self) -> Frozen {
        self.signal(Signal::SIGSTOP);
        Frozen { pid: Pid::from_raw(self.pid() as i32) }
    }

    /// Sends a signal; fails when the process has ended.
    pub fn signal(&self, signal: Signal) {
        let sent = kill(Pid::from_raw(self.pid() as i32), signal);
        sent.unwrap_or_else(|error| panic!("{signal} to {}: {error}", self.name));
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.ended.is_none() {
            // SIGKILL ends a stopped process, too.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        if std::thread::panicking() {
            let output = self.output();
            let lines: Vec<&str> = output.lines().collect();
            let shown = &lines[lines.len().saturating_sub(LINES_SHOWN)..];
            eprintln!("--- the end of what {} wrote:\n{}", self.name, shown.join("\n"));
        }
    }
}

/// A stopped process; dropping this lets it go on.
pub struct Frozen {
    pid: Pid,
}

impl Drop for Frozen {
    fn drop(&mut self) {
        // Gone meanwhile: nothing to let go on.
        let _ = kill(self.pid, Signal::SIGCONT);
    }
}
