//! Connecting with a deadline of our own and the socket options that every sender of ours wants.
//!
//! The kernel gives up on a host that drops packets after about two minutes; nothing here ever waits for that (F1).

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use socket2::SockRef;
use tokio::net::TcpStream;

/// How a connection is made.
#[derive(Clone, Copy, Debug)]
pub struct DialOptions {
    /// Limit of the connect.
    pub connect_deadline: Duration,
    /// TCP_USER_TIMEOUT: sent bytes that nobody acknowledges for this long, and a window that stays closed for this
    /// long, end the connection. `None` leaves the kernel's retransmission limit (about 15 minutes).
    pub user_timeout: Option<Duration>,
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// No answer in time.
    #[error("connecting to {address} took longer than {} s", deadline.as_secs_f64())]
    Deadline {
        /// Who.
        address: SocketAddr,
        /// The limit.
        deadline: Duration,
    },
    /// The system said no.
    #[error("cannot connect to {address}: {source}")]
    Io {
        /// Who.
        address: SocketAddr,
        /// What it said.
        source: io::Error,
    },
}

/// Unsent bytes that the kernel keeps beyond what is on its way. Small, so that "writable" means progress at the
/// peer: with the default a socket with megabytes of buffer becomes writable only when a third of them is gone, which
/// on a slow line looks like a stall.
const UNSENT_BYTES_MAX: u32 = 128 * 1024;

/// Connects. The stream has TCP_NODELAY (messages are written whole) and TCP keepalive as the system sets it.
///
/// # Errors
///
/// [`DialError`] when the connect fails or takes longer than the deadline.
pub async fn dial(address: SocketAddr, options: &DialOptions) -> Result<TcpStream, DialError> {
    let deadline = options.connect_deadline;
    let stream = match tokio::time::timeout(deadline, TcpStream::connect(address)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(source)) => return Err(DialError::Io { address, source }),
        Err(_) => return Err(DialError::Deadline { address, deadline }),
    };
    set_options(&stream, options).map_err(|source| DialError::Io { address, source })?;
    Ok(stream)
}

fn set_options(stream: &TcpStream, options: &DialOptions) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    socket.set_keepalive(true)?;
    #[cfg(target_os = "linux")]
    {
        socket.set_tcp_user_timeout(options.user_timeout)?;
        socket.set_tcp_notsent_lowat(UNSENT_BYTES_MAX)?;
    }
    Ok(())
}

/// Makes the close of this stream a reset that drops what is unsent: the peer is given up, and what the kernel still
/// holds would only be repeated elsewhere. A failure changes nothing but that.
pub fn reset_on_close(stream: &TcpStream) {
    let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPTIONS: DialOptions = DialOptions {
        connect_deadline: Duration::from_millis(300),
        user_timeout: Some(Duration::from_secs(5)),
    };

    #[tokio::test]
    async fn connects_with_the_options_set() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let address = listener.local_addr().expect("address");
        let stream = dial(address, &OPTIONS).await.expect("connect");
        let socket = SockRef::from(&stream);
        assert!(stream.nodelay().expect("nodelay"));
        assert_eq!(socket.tcp_user_timeout().expect("option"), OPTIONS.user_timeout);
    }

    #[tokio::test]
    async fn a_closed_port_fails_at_once() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let address = listener.local_addr().expect("address");
        drop(listener);
        assert!(matches!(dial(address, &OPTIONS).await, Err(DialError::Io { .. })));
    }

    /// A full accept queue drops SYNs, which is what a dead host looks like.
    #[tokio::test]
    async fn a_silent_host_costs_the_deadline() {
        let listener = full_listener().await;
        let started = std::time::Instant::now();
        let result = dial(listener.address, &OPTIONS).await;
        assert!(matches!(result, Err(DialError::Deadline { .. })), "{result:?}");
        assert!(started.elapsed() < Duration::from_secs(3), "took {:?}", started.elapsed());
    }

    struct FullListener {
        address: SocketAddr,
        _socket: socket2::Socket,
        _waiting: Vec<TcpStream>,
    }

    async fn full_listener() -> FullListener {
        let socket =
            socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("socket");
        socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).expect("bind");
        socket.listen(0).expect("listen");
        let address = socket.local_addr().expect("address").as_socket().expect("an IP address");
        let mut waiting = Vec::new();
        while let Ok(stream) = dial(address, &OPTIONS).await {
            waiting.push(stream);
        }
        FullListener { address, _socket: socket, _waiting: waiting }
    }
}
