//! The small HTTP server of the inputs that only report: bounded connections, every wait with an end.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, Sleep};

use crate::config::BuildError;
use crate::net::listener::{self, Acceptor};
use crate::net::resolve;

/// Connections at a time on one port: monitors are few, and a flood must not take the descriptors of the event path.
const MAX_CONNECTIONS: usize = 64;

/// A connection that neither sends nor takes a byte for so long is closed: it is forgotten, or slow on purpose.
const IDLE_LIMIT: Duration = Duration::from_secs(60);

/// How long answers under way may take at shutdown.
const STOP_LIMIT: Duration = Duration::from_secs(2);

/// Bound sockets and, once started, the tasks that serve them.
pub(super) struct HttpServer {
    acceptors: Vec<Acceptor>,
    stop: watch::Sender<bool>,
    tasks: Vec<JoinHandle<()>>,
}

impl HttpServer {
    /// Inside the runtime, binds `workers` ports from `port` on: Fluentd's workers each have one, here they show the same.
    pub(super) fn bind(plugin: &str, bind: &str, port: u16, workers: u32) -> Result<Self, BuildError> {
        let mut acceptors = Vec::new();
        for offset in 0..workers.max(1) {
            let port = match u16::try_from(offset).ok().and_then(|offset| port.checked_add(offset)) {
                // Port 0 asks for any free one, each time.
                Some(_) if port == 0 => 0,
                Some(port) => port,
                None => return Err(BuildError(format!("{plugin}: port {port} + {offset} is beyond 65535"))),
            };
            let acceptor = listen(bind, port).map_err(|error| {
                BuildError(format!(
                    "{plugin}: cannot listen on {bind}:{port}: {error}; is another process there?"
                ))
            })?;
            acceptors.push(acceptor);
        }
        Ok(Self { acceptors, stop: watch::channel(false).0, tasks: Vec::new() })
    }

    /// Where it listens.
    #[cfg(test)]
    pub(super) fn addresses(&self) -> Vec<SocketAddr> {
        self.acceptors.iter().filter_map(|acceptor| acceptor.local_addr().ok()).collect()
    }

    /// Serves; inside the runtime.
    pub(super) fn start(&mut self, router: &Router) {
        for acceptor in self.acceptors.drain(..) {
            let bounded = Bounded { acceptor, permits: Arc::new(Semaphore::new(MAX_CONNECTIONS)) };
            let mut stopped = self.stop.subscribe();
            let router = router.clone();
            self.tasks.push(tokio::spawn(async move {
                let stop = async move {
                    let _ = stopped.wait_for(|stopped| *stopped).await;
                };
                let _ = axum::serve(bounded, router).with_graceful_shutdown(stop).await;
            }));
        }
    }

    /// Stops accepting and lets answers under way finish, for a short while.
    pub(super) async fn stop(&mut self) {
        self.stop.send_replace(true);
        for mut task in self.tasks.drain(..) {
            if tokio::time::timeout(STOP_LIMIT, &mut task).await.is_err() {
                task.abort();
            }
        }
    }
}

/// Listens on the first address of the name that can be bound.
fn listen(bind: &str, port: u16) -> io::Result<Acceptor> {
    let mut failed = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in resolve::resolve_blocking(bind, port).map_err(io::Error::other)? {
        match listener::listen(address, None) {
            Ok(listener) => return Ok(Acceptor::new(listener)),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

/// A listener that holds a bounded number of connections open.
struct Bounded {
    acceptor: Acceptor,
    permits: Arc<Semaphore>,
}

impl Listener for Bounded {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        loop {
            // The semaphore is never closed.
            let Ok(permit) = Arc::clone(&self.permits).acquire_owned().await else { continue };
            let (stream, address) = self.acceptor.accept().await;
            let idle = Box::pin(tokio::time::sleep(IDLE_LIMIT));
            return (Connection { stream, idle, _permit: permit }, address);
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.acceptor.local_addr()
    }
}

/// A connection that ends when nothing moves.
struct Connection {
    stream: TcpStream,
    idle: Pin<Box<Sleep>>,
    _permit: OwnedSemaphorePermit,
}

impl Connection {
    /// The result of a read or write: progress pushes the end further away, waiting meets it.
    fn watch<T>(&mut self, context: &mut Context<'_>, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            self.idle.as_mut().reset(Instant::now() + IDLE_LIMIT);
            return polled;
        }
        match self.idle.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.watch(context, polled)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(context, data);
        self.watch(context, polled)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// A client for tests: one GET, the status line and the body.
#[cfg(test)]
pub(super) async fn get(address: SocketAddr, target: &str) -> (String, String) {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let mut stream = TcpStream::connect(address).await.expect("connected");
    let request = format!("GET {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut text = String::new();
    stream.read_to_string(&mut text).await.expect("read");
    let (head, body) = text.split_once("\r\n\r\n").expect("a head");
    (head.to_owned(), body.to_owned())
}
