//! Listening TCP sockets that go on answering when descriptors run out.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use tokio::net::{TcpListener, TcpStream};

use crate::telemetry::rate::Limited;

/// Waiting connections when the configuration is silent: the kernel's own ceiling (net.core.somaxconn) cuts it.
pub const DEFAULT_BACKLOG: i32 = 4096;

/// Pause after an accept that failed for want of memory or descriptors, so that the loop does not spin.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// How TCP finds peers whose host has vanished: after the silence of `keepalive_time` (60 s when not written) come 4
/// probes, 15 s apart, 2 minutes in all. The system's default of more than 2 hours would hold the descriptors of a lost
/// rack half a day of reboots long.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);
const KEEPALIVE_PROBES: u32 = 4;

/// Accept errors come in floods when they come.
static ACCEPT_ERROR: Limited = Limited::per_minute(2);
/// At the limit, each client that leaves ends an episode and the next one begins another.
static EXHAUSTED: Limited = Limited::per_minute(1);

/// Connections that all listeners of the process answered with a reset for want of a descriptor, since its start.
static REFUSED: AtomicU64 = AtomicU64::new(0);

/// Connections that all listeners of the process answered with a reset for want of a descriptor.
pub fn refused_connections() -> u64 {
    REFUSED.load(Ordering::Relaxed)
}

/// Opens a listening socket; inside the tokio runtime.
///
/// SO_REUSEADDR is set, so that a restart does not wait for old connections to time out.
pub fn listen(address: SocketAddr, backlog: Option<i32>) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    // Whether :: takes IPv4 too is left to the system (net.ipv6.bindv6only), as Ruby does.
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(backlog.unwrap_or(DEFAULT_BACKLOG).max(1))?;
    TcpListener::from_std(socket.into())
}

/// Sets what every accepted connection gets: no delay of small answers, and keepalive probes.
pub fn tune(stream: &TcpStream, keepalive_time: Duration) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let keepalive = TcpKeepalive::new()
        .with_time(keepalive_time)
        .with_interval(KEEPALIVE_INTERVAL.min(keepalive_time))
        .with_retries(KEEPALIVE_PROBES);
    SockRef::from(stream).set_tcp_keepalive(&keepalive)
}

/// Closes a connection with RST, so that the peer turns elsewhere at once instead of waiting for an answer.
pub fn reset(stream: TcpStream) {
    // On failure the close below is an ordinary one: nothing better can be done.
    let _ = stream.set_zero_linger();
    drop(stream);
}

/// Accepts connections; at the descriptor limit it answers with a reset instead of leaving peers in the queue.
#[derive(Debug)]
pub struct Acceptor {
    listener: TcpListener,
    /// A descriptor to give up when there is no other: then a waiting connection can be accepted and reset.
    reserve: Option<Socket>,
    /// An episode without free descriptors is going on.
    exhausted: bool,
    /// It was logged, so its end will be.
    announced: bool,
    refused: u64,
}

impl Acceptor {
    /// Wraps a listening socket.
    pub fn new(listener: TcpListener) -> Self {
        Self { listener, reserve: spare(), exhausted: false, announced: false, refused: 0 }
    }

    /// Where it listens.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Connections that this one answered with a reset for want of a descriptor.
    #[cfg(test)]
    fn refused(&self) -> u64 {
        self.refused
    }

    /// The next connection. Never fails and never spins: what goes wrong is logged and waited out.
    ///
    /// Cancel safe.
    pub async fn accept(&mut self) -> (TcpStream, SocketAddr) {
        loop {
            match self.listener.accept().await {
                Ok(accepted) => {
                    if self.reserve.is_none() {
                        self.reserve = spare();
                    }
                    if self.exhausted && self.reserve.is_some() {
                        self.exhausted = false;
                        if std::mem::take(&mut self.announced) {
                            tracing::info!(refused = self.refused, "file descriptors are available again");
                        }
                    }
                    return accepted;
                }
                Err(error) if is_out_of_descriptors(&error) => self.refuse(&error).await,
                // The peer gave up while it was in the queue: nothing is wrong here.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    if let Some(repeated) = ACCEPT_ERROR.admit() {
                        tracing::error!(%error, repeated, "accepting a connection failed");
                    }
                    tokio::time::sleep(RETRY_PAUSE).await;
                }
            }
        }
    }

    async fn refuse(&mut self, error: &io::Error) {
        if !self.exhausted {
            self.exhausted = true;
            if let Some(repeated) = EXHAUSTED.admit() {
                self.announced = true;
                tracing::error!(
                    %error,
                    limit = crate::process::descriptor_limit(),
                    repeated,
                    "no file descriptors left, new connections are reset; raise the limit (LimitNOFILE=, ulimit -n)"
                );
            }
        }
        drop(self.reserve.take());
        // The listener is known to be readable, so this answers at once or not at all.
        if let Some(Ok((stream, _))) = self.listener.accept().now_or_never() {
            self.refused += 1;
            REFUSED.fetch_add(1, Ordering::Relaxed);
            reset(stream);
        }
        self.reserve = spare();
        if self.reserve.is_none() {
            // Somebody else took the descriptor: leave the core to those who may free one.
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    }
}

/// Any descriptor does; an unbound datagram socket needs neither a file nor a port.
fn spare() -> Option<Socket> {
    Socket::new(Domain::IPV4, Type::DGRAM, None).ok()
}

fn is_out_of_descriptors(error: &io::Error) -> bool {
    use nix::errno::Errno;
    let codes = [Errno::EMFILE, Errno::ENFILE];
    error.raw_os_error().is_some_and(|code| codes.iter().any(|errno| *errno as i32 == code))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn accepts_tunes_and_resets() {
        let mut acceptor = Acceptor::new(listen("127.0.0.1:0".parse().unwrap(), None).unwrap());
        let client = TcpStream::connect(acceptor.local_addr().unwrap()).await.unwrap();
        let (stream, peer) = acceptor.accept().await;
        assert_eq!(peer, client.local_addr().unwrap());
        tune(&stream, Duration::from_secs(7)).unwrap();
        assert!(SockRef::from(&stream).keepalive().unwrap());
        assert_eq!(SockRef::from(&stream).tcp_keepalive_time().unwrap(), Duration::from_secs(7));
        reset(stream);
        client.readable().await.unwrap();
        let error = client.try_read(&mut [0; 1]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    }

    #[tokio::test]
    async fn without_descriptors_a_waiting_connection_is_reset_and_the_next_one_served() {
        let mut acceptor = Acceptor::new(listen("127.0.0.1:0".parse().unwrap(), None).unwrap());
        let address = acceptor.local_addr().unwrap();
        let refused = TcpStream::connect(address).await.unwrap();
        // The runtime learns of the waiting connection by and by.
        while acceptor.refused() == 0 {
            acceptor.refuse(&io::Error::from_raw_os_error(nix::errno::Errno::EMFILE as i32)).await;
            tokio::task::yield_now().await;
        }
        refused.readable().await.unwrap();
        assert_eq!(refused.try_read(&mut [0; 1]).unwrap_err().kind(), io::ErrorKind::ConnectionReset);
        assert_eq!((acceptor.refused(), acceptor.exhausted, acceptor.reserve.is_some()), (1, true, true));
        assert!(refused_connections() >= 1);
        let _next = TcpStream::connect(address).await.unwrap();
        acceptor.accept().await;
        assert!(!acceptor.exhausted);
    }
}
