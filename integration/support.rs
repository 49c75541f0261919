//! What the tests of this target share: the binary, processes that end with their test, waiting for conditions.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Waits for a condition; only a broken program gets near the limit.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Lines of a process's output that a failed test shows.
const TAIL_LINES: usize = 30;

/// The binary under test: `TRIBUTARY_BIN` (the release build, in `make test`), else the one that cargo built.
pub fn binary() -> PathBuf {
    std::env::var_os("TRIBUTARY_BIN").map_or_else(|| env!("CARGO_BIN_EXE_tributary").into(), PathBuf::from)
}

/// The project's folder.
pub fn project() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Looks again and again until something is found.
pub fn wait_for<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    wait_at_most(LIMIT, what, look)
}

/// As [`wait_for`], with a limit of one's own.
pub fn wait_at_most<T>(limit: Duration, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < limit, "waited {limit:?} for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Waits until a local port takes connections.
pub fn wait_for_port(port: u16) {
    wait_for(&format!("a listener on port {port}"), || TcpStream::connect(("127.0.0.1", port)).ok());
}

/// A port of 127.0.0.1 that nobody uses now.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("its address").port()
}

/// A process with its output in a file. Dropped, it is killed; in a failing test the end of its output is shown.
pub struct Process {
    name: String,
    output: PathBuf,
    child: Child,
    ended: Option<ExitStatus>,
}

impl Process {
    /// Starts a command; standard output and error go to `folder/name.log`.
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

    /// What it has written so far.
    pub fn output(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.output).unwrap_or_default()).into_owned()
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.id()).expect("a process id"));
        kill(pid, signal).unwrap_or_else(|error| panic!("{signal} to {}: {error}", self.name));
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

/// Starts tributary with a configuration text, kept as `folder/name.conf`.
pub fn tributary(folder: &Path, name: &str, configuration: &str) -> Process {
    let file = folder.join(format!("{name}.conf"));
    fs::write(&file, configuration).expect("configuration file");
    Process::start(folder, name, Command::new(binary()).arg("-c").arg(file))
}

/// Runs a command to its end; its standard output. Anything but success fails the test with the reason.
pub fn run<S: AsRef<OsStr>>(program: &str, args: &[S]) -> String {
    let output = Command::new(program).args(args).stdin(Stdio::null()).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
    let args: Vec<_> = args.iter().map(|arg| arg.as_ref().to_string_lossy()).collect();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {}: {}: {said}", args.join(" "), output.status);
    String::from_utf8_lossy(&output.stdout).into_owned()
}
