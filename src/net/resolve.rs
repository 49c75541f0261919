//! Names to addresses, with a deadline: a slow name server delays a background task, never a flush (F2).

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::sync::mpsc;
use std::time::Duration;

/// Limit of one look-up.
pub const RESOLVE_DEADLINE: Duration = Duration::from_secs(5);

/// Why a name has no address.
#[derive(Debug, thiserror::Error)]
pub enum ResolveError {
    /// The name server did not answer in time.
    #[error("resolving {host} took longer than {} s", RESOLVE_DEADLINE.as_secs())]
    Deadline {
        /// The name.
        host: String,
    },
    /// The resolver said no.
    #[error("cannot resolve {host}: {source}")]
    Io {
        /// The name.
        host: String,
        /// What it said.
        source: io::Error,
    },
    /// An answer without addresses.
    #[error("{host} has no address")]
    Empty {
        /// The name.
        host: String,
    },
}

/// The address when the host is written as one (IPv6 also in brackets): there is nothing to resolve then.
pub fn literal(host: &str, port: u16) -> Option<SocketAddr> {
    let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
    bare.parse::<IpAddr>().ok().map(|ip| SocketAddr::new(ip, port))
}

/// All addresses of a host, A and AAAA, each once, sorted so that equal answers compare equal.
///
/// # Errors
///
/// [`ResolveError`] when there is no answer within [`RESOLVE_DEADLINE`], or none with an address.
pub async fn resolve(host: &str, port: u16) -> Result<Vec<SocketAddr>, ResolveError> {
    if let Some(address) = literal(host, port) {
        return Ok(vec![address]);
    }
    let looked_up = tokio::time::timeout(RESOLVE_DEADLINE, tokio::net::lookup_host((host, port))).await;
    let mut addresses: Vec<SocketAddr> = match looked_up {
        Ok(Ok(found)) => found.collect(),
        Ok(Err(source)) => return Err(ResolveError::Io { host: host.into(), source }),
        Err(_) => return Err(ResolveError::Deadline { host: host.into() }),
    };
    addresses.sort_unstable();
    addresses.dedup();
    if addresses.is_empty() { Err(ResolveError::Empty { host: host.into() }) } else { Ok(addresses) }
}

/// All addresses of a host in the resolver's order, for building what listens: blocks, [`RESOLVE_DEADLINE`] at most.
/// A thread of its own asks, because the system's resolver cannot be interrupted.
///
/// # Errors
///
/// As [`resolve`].
pub fn resolve_blocking(host: &str, port: u16) -> Result<Vec<SocketAddr>, ResolveError> {
    if let Some(address) = literal(host, port) {
        return Ok(vec![address]);
    }
    let host = host.to_owned();
    let (sender, receiver) = mpsc::sync_channel(1);
    let asked = host.clone();
    let ask = move || {
        let found = (asked.as_str(), port).to_socket_addrs().map(Iterator::collect::<Vec<_>>);
        // Nobody waits any more after the deadline.
        let _ = sender.send(found);
    };
    if let Err(source) = std::thread::Builder::new().name("resolve".into()).spawn(ask) {
        return Err(ResolveError::Io { host, source });
    }
    match receiver.recv_timeout(RESOLVE_DEADLINE) {
        Ok(Ok(addresses)) if addresses.is_empty() => Err(ResolveError::Empty { host }),
        Ok(Ok(addresses)) => Ok(addresses),
        Ok(Err(source)) => Err(ResolveError::Io { host, source }),
        Err(_) => Err(ResolveError::Deadline { host }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_need_no_name_server() {
        assert_eq!(literal("192.0.2.1", 1), Some(SocketAddr::from(([192, 0, 2, 1], 1))));
        assert_eq!(literal("::1", 2), literal("[::1]", 2));
        assert!(literal("::1", 2).is_some());
        assert_eq!(literal("localhost", 1), None);
    }

    #[tokio::test]
    async fn localhost_resolves_to_loopback() {
        let addresses = resolve("localhost", 24224).await.expect("/etc/hosts has localhost");
        assert!(addresses.iter().all(|address| address.ip().is_loopback() && address.port() == 24224));
        let mut blocking = resolve_blocking("localhost", 24224).expect("/etc/hosts has localhost");
        blocking.sort_unstable();
        blocking.dedup();
        assert_eq!(blocking, addresses);
    }

    #[tokio::test]
    async fn an_unknown_name_is_an_error_that_names_it() {
        let error = resolve("does-not-exist.invalid", 1).await.expect_err("reserved name");
        assert!(error.to_string().contains("does-not-exist.invalid"), "{error}");
        let error = resolve_blocking("does-not-exist.invalid", 1).expect_err("reserved name");
        assert!(error.to_string().contains("does-not-exist.invalid"), "{error}");
    }
}
