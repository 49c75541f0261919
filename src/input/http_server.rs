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

/// A request must be complete so long after the connection was made, or after its first byte on a kept connection:
/// our clients send a few hundred bytes at once, and who sends half of them must not hold a place.
const REQUEST_LIMIT: Duration = Duration::from_secs(5);

/// An answered connection that neither sends nor takes a byte for so long is closed: it is forgotten, or slow on
/// purpose. While all places are taken, [`REQUEST_LIMIT`] holds instead.
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
            return (Connection::new(stream, permit, Arc::clone(&self.permits)), address);
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.acceptor.local_addr()
    }
}

/// What a connection is at. The parser above tells nothing, but bytes do: requests are read, answers written.
#[derive(Clone, Copy)]
enum Phase {
    /// A request is awaited or comes in; its time does not grow with its bytes.
    Request,
    /// An answer goes out or has gone out; when its last byte moved.
    Answered(Instant),
}

/// A connection that ends when a request takes too long or nothing moves.
struct Connection {
    stream: TcpStream,
    phase: Phase,
    /// Rings when the phase has to be looked at.
    timer: Pin<Box<Sleep>>,
    /// Places on this port.
    permits: Arc<Semaphore>,
    _permit: OwnedSemaphorePermit,
}

impl Connection {
    fn new(stream: TcpStream, permit: OwnedSemaphorePermit, permits: Arc<Semaphore>) -> Self {
        let timer = Box::pin(tokio::time::sleep(REQUEST_LIMIT));
        Self { stream, phase: Phase::Request, timer, permits, _permit: permit }
    }

    fn enter(&mut self, phase: Phase) {
        self.phase = phase;
        self.timer.as_mut().reset(Instant::now() + REQUEST_LIMIT);
    }

    /// Nothing can be read or written now: pending, or an error when that has lasted too long.
    fn wait<T>(&mut self, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        while self.timer.as_mut().poll(context).is_ready() {
            // The listener itself holds a place while it waits for a connection, so this begins one early.
            let crowded = self.permits.available_permits() == 0;
            match self.phase {
                Phase::Answered(moved) if !crowded && moved.elapsed() < IDLE_LIMIT => {
                    self.timer.as_mut().reset(Instant::now() + REQUEST_LIMIT);
                }
                _ => return Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            }
        }
        Poll::Pending
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        if Pin::new(&mut self.stream).poll_read(context, buffer)?.is_pending() {
            return self.wait(context);
        }
        if buffer.filled().len() > before {
            match self.phase {
                Phase::Answered(_) => self.enter(Phase::Request),
                // One byte at a time is always ready in the end, so the time is looked at here too.
                Phase::Request if self.timer.is_elapsed() => {
                    return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
                }
                Phase::Request => {}
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        let Poll::Ready(written) = Pin::new(&mut self.stream).poll_write(context, data)? else {
            return self.wait(context);
        };
        self.enter(Phase::Answered(Instant::now()));
        Poll::Ready(Ok(written))
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

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    /// What waits for a place gets one when those before it had their time.
    const PLACE_LIMIT: Duration = Duration::from_secs(10);

    fn serve() -> (HttpServer, SocketAddr) {
        let mut server = HttpServer::bind("test", "127.0.0.1", 0, 1).expect("bound");
        let address = server.addresses()[0];
        server.start(&Router::new().route("/", axum::routing::get(|| async { "page" })));
        (server, address)
    }

    /// One request on a connection that stays open, and its whole answer.
    async fn ask(stream: &mut TcpStream) {
        stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.expect("sent");
        let mut answer = Vec::new();
        while !answer.ends_with(b"page") {
            assert_ne!(stream.read_buf(&mut answer).await.expect("read"), 0, "{answer:?}");
        }
    }

    #[tokio::test]
    async fn half_requests_give_their_places_back() {
        let (mut server, address) = serve();
        let mut half = Vec::new();
        for at in 0..MAX_CONNECTIONS + 6 {
            let mut stream = TcpStream::connect(address).await.expect("connected");
            let text: &[u8] = [&b"GET / HT"[..], b"GET / HTTP/1.1\r\nHost: x\r\n", b""][at % 3];
            stream.write_all(text).await.expect("sent");
            half.push(stream);
        }
        // One more that never stops sending its headers.
        let mut trickle = TcpStream::connect(address).await.expect("connected");
        trickle.write_all(b"GET / HTTP/1.1\r\n").await.expect("sent");
        let trickle = tokio::spawn(async move {
            while trickle.write_all(b"A: b\r\n").await.is_ok() {
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
        });
        let answer = tokio::time::timeout(PLACE_LIMIT, get(address, "/")).await.expect("in time");
        assert_eq!(answer.1, "page");
        tokio::time::timeout(PLACE_LIMIT, trickle).await.expect("is ended").expect("no panic");
        drop(half);
        server.stop().await;
    }

    #[tokio::test]
    async fn idle_connections_make_room_when_all_places_are_taken() {
        let (mut server, address) = serve();
        let mut kept = Vec::new();
        for _ in 0..MAX_CONNECTIONS {
            let mut stream = TcpStream::connect(address).await.expect("connected");
            ask(&mut stream).await;
            kept.push(stream);
        }
        let answer = tokio::time::timeout(PLACE_LIMIT, get(address, "/")).await.expect("in time");
        assert_eq!(answer.1, "page");
        drop(kept);
        server.stop().await;
    }

    /// A scraper keeps its connection from one scrape to the next.
    #[tokio::test]
    async fn a_kept_connection_outlives_the_limit_of_a_request() {
        let (mut server, address) = serve();
        let mut stream = TcpStream::connect(address).await.expect("connected");
        ask(&mut stream).await;
        tokio::time::sleep(REQUEST_LIMIT + Duration::from_secs(1)).await;
        ask(&mut stream).await;
        drop(stream);
        server.stop().await;
    }
}
