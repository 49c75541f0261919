//! Where log lines go: standard output or a file, with one `write(2)` a line, behind a bounded queue.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender, TrySendError};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// Lines that may wait for the writer thread. With the byte limit this bounds what a stuck terminal, pipe or disk
/// costs; a day's normal log is a few hundred lines.
const QUEUED_LINES_MAX: usize = 4_096;

/// Bytes that may wait for the writer thread.
const QUEUED_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Mode of a new log file when `file_permission` is silent (Fluentd's default).
const FILE_MODE: u32 = 0o644;

/// Destination of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Standard output (the default, and `-o -`).
    Stdout,
    /// A file, opened for append; made when missing.
    File(PathBuf),
}

/// The open destination.
#[derive(Debug)]
struct Destination {
    target: Target,
    file: File,
    colours: bool,
}

impl Destination {
    fn open(target: &Target, mode: Option<u32>) -> io::Result<Self> {
        let file = match target {
            // A descriptor of its own: no buffer of the standard library between us and the write.
            Target::Stdout => File::from(io::stdout().as_fd().try_clone_to_owned()?),
            Target::File(path) => open_append(path, mode.unwrap_or(FILE_MODE))?,
        };
        let colours = *target == Target::Stdout && file.is_terminal();
        Ok(Self { target: target.clone(), file, colours })
    }
}

fn open_append(path: &Path, mode: u32) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(mode).open(path)
}

enum Command {
    Line(String),
    Flush(SyncSender<()>),
}

/// The queue in front of a [`Destination`]. Until [`Sink::start_writer`] every line is written by its caller, which
/// is right while the process still starts (and may still fork).
#[derive(Debug)]
pub(super) struct Sink {
    destination: Mutex<Destination>,
    /// Whether it is a terminal; here, so that no line takes the destination's lock to know.
    colours: AtomicBool,
    mode: Mutex<Option<u32>>,
    queue: OnceLock<SyncSender<Command>>,
    queued_bytes: AtomicUsize,
    dropped_lines: AtomicU64,
}

impl Sink {
    pub(super) fn open(target: &Target, mode: Option<u32>) -> io::Result<Self> {
        let destination = Destination::open(target, mode)?;
        Ok(Self {
            colours: AtomicBool::new(destination.colours),
            destination: Mutex::new(destination),
            mode: Mutex::new(mode),
            queue: OnceLock::new(),
            queued_bytes: AtomicUsize::new(0),
            dropped_lines: AtomicU64::new(0),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Destination> {
        self.destination.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn colours(&self) -> bool {
        self.colours.load(Ordering::Relaxed)
    }

    pub(super) fn target(&self) -> Target {
        self.lock().target.clone()
    }

    /// Changes the destination; on failure the old one stays.
    pub(super) fn switch(&self, target: &Target, mode: Option<u32>) -> io::Result<()> {
        let opened = Destination::open(target, mode)?;
        self.replace(opened);
        *self.mode.lock().unwrap_or_else(PoisonError::into_inner) = mode;
        Ok(())
    }

    /// Opens the file again (log rotation by rename, SIGUSR1). Lines queued before go to either file, none is lost.
    pub(super) fn reopen(&self) -> io::Result<()> {
        let mode = *self.mode.lock().unwrap_or_else(PoisonError::into_inner);
        let target = self.target();
        let opened = Destination::open(&target, mode)?;
        self.replace(opened);
        Ok(())
    }

    fn replace(&self, opened: Destination) {
        self.colours.store(opened.colours, Ordering::Relaxed);
        *self.lock() = opened;
    }

    pub(super) fn with_file<T>(&self, act: impl FnOnce(&File) -> T) -> T {
        act(&self.lock().file)
    }

    /// Writes or queues one line. Never waits for the destination once the writer runs: a line that does not fit
    /// is dropped and counted, and the count is written when there is room again.
    pub(super) fn line(&self, line: String) {
        let Some(queue) = self.queue.get() else {
            // Nothing can be done about a log that cannot be written; the process goes on.
            let _ = self.lock().file.write_all(line.as_bytes());
            return;
        };
        let length = line.len();
        let before = self.queued_bytes.fetch_add(length, Ordering::Relaxed);
        if before + length > QUEUED_BYTES_MAX || !send(queue, line) {
            self.queued_bytes.fetch_sub(length, Ordering::Relaxed);
            self.dropped_lines.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Writes bytes that are not a log line (out_stdout, which in Fluentd shares the log's destination). Waits for
    /// the destination: events are not dropped.
    pub(super) fn raw(&self, bytes: &[u8]) -> io::Result<()> {
        self.lock().file.write_all(bytes)
    }

    /// Starts the thread that writes; to be called once, after the last fork. Standard output is taken anew, since
    /// becoming a daemon replaces it.
    pub(super) fn start_writer(self: &Arc<Self>) -> io::Result<()> {
        if self.queue.get().is_some() {
            return Ok(());
        }
        if self.target() == Target::Stdout {
            self.reopen()?;
        }
        let (sender, receiver) = mpsc::sync_channel(QUEUED_LINES_MAX);
        let sink = Arc::clone(self);
        std::thread::Builder::new().name("log".into()).spawn(move || sink.write_queued(&receiver))?;
        let _ = self.queue.set(sender);
        Ok(())
    }

    fn write_queued(&self, queue: &Receiver<Command>) {
        while let Ok(command) = queue.recv() {
            match command {
                Command::Line(line) => {
                    let _ = self.lock().file.write_all(line.as_bytes());
                    self.queued_bytes.fetch_sub(line.len(), Ordering::Relaxed);
                }
                Command::Flush(done) => {
                    let _ = done.send(());
                }
            }
        }
    }

    /// Lines dropped since the last call.
    pub(super) fn take_dropped(&self) -> u64 {
        if self.dropped_lines.load(Ordering::Relaxed) == 0
            || self.queued_bytes.load(Ordering::Relaxed) > QUEUED_BYTES_MAX / 2
        {
            return 0;
        }
        self.dropped_lines.swap(0, Ordering::Relaxed)
    }

    /// Waits until all lines queued so far are written, at most `limit`; false when time ran out.
    pub(super) fn flush(&self, limit: Duration) -> bool {
        let Some(queue) = self.queue.get() else { return true };
        let (done, wait) = mpsc::sync_channel(1);
        // A full queue means a stuck destination; waiting for it is what `limit` is for, but `send` has no limit.
        queue.try_send(Command::Flush(done)).is_ok() && wait.recv_timeout(limit).is_ok()
    }
}

fn send(queue: &SyncSender<Command>, line: String) -> bool {
    match queue.try_send(Command::Line(line)) {
        Ok(()) => true,
        Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => false,
    }
}
