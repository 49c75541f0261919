//! Signals as Fluentd understands them. None of those named here ever kills the process by itself.

use std::io;

use nix::sys::signal::{SigSet, Signal};
use tokio::signal::unix::{self, SignalKind};

/// What a signal asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// TERM, INT: graceful stop.
    Stop,
    /// QUIT: stop at once.
    StopAtOnce,
    /// USR1: flush all buffers, reopen the log file.
    Flush,
    /// HUP: restart with the configuration read again.
    Restart,
    /// USR2: reload the configuration.
    Reload,
    /// CONT: write a dump.
    Dump,
    /// WINCH: end of "source only".
    EndSourceOnly,
}

/// Signals that are handled.
const HANDLED: [(Signal, Request); 8] = [
    (Signal::SIGTERM, Request::Stop),
    (Signal::SIGINT, Request::Stop),
    (Signal::SIGQUIT, Request::StopAtOnce),
    (Signal::SIGUSR1, Request::Flush),
    (Signal::SIGHUP, Request::Restart),
    (Signal::SIGUSR2, Request::Reload),
    (Signal::SIGCONT, Request::Dump),
    (Signal::SIGWINCH, Request::EndSourceOnly),
];

/// Holds the handled signals back in this thread and all threads made from it, from before the pid file exists until
/// handlers stand: whoever has read the pid file may send a signal, and its default action would kill us.
///
/// # Errors
/// The system refused.
pub fn hold_back() -> io::Result<()> {
    handled().thread_block().map_err(io::Error::from)
}

fn handled() -> SigSet {
    HANDLED.iter().map(|(signal, _)| *signal).collect()
}

/// The installed handlers.
#[derive(Debug)]
pub struct Signals(Vec<(unix::Signal, Request)>);

impl Signals {
    /// Installs the handlers and lets through, in this thread, what was held back. Inside the runtime, on the thread
    /// that called [`hold_back`].
    ///
    /// # Errors
    /// The system refused.
    pub fn install() -> io::Result<Self> {
        let handlers = HANDLED
            .iter()
            .map(|&(signal, request)| Ok((unix::signal(SignalKind::from_raw(signal as i32))?, request)))
            .collect::<io::Result<Vec<_>>>()?;
        handled().thread_unblock()?;
        Ok(Self(handlers))
    }

    /// The next request. Equal signals that arrive before the first is seen count once.
    pub async fn next(&mut self) -> Request {
        std::future::poll_fn(|context| {
            for (handler, request) in &mut self.0 {
                if handler.poll_recv(context).is_ready() {
                    return std::task::Poll::Ready(*request);
                }
            }
            std::task::Poll::Pending
        })
        .await
    }
}
