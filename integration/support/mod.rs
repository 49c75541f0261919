//! What scenarios share: processes with a configuration in a directory of their own, ports, waiting for conditions.
//!
//! Nothing here sleeps for a result: [`wait_for`] looks until a deadline and then says what it waited for.

mod process;
mod room;

pub use process::Running;
pub use room::Room;

use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::time::{Duration, Instant};

/// The binary under test.
pub const BINARY: &str = env!("CARGO_BIN_EXE_tributary");

/// For conditions that only a broken program does not meet; long, because CI shares two cores.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// How often a condition is looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// Looks until the condition gives something; fails with what was waited for when the limit has passed.
pub fn wait_for<T>(what: &str, limit: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < limit, "waited {limit:?} for {what}");
        std::thread::sleep(LOOK_INTERVAL);
    }
}

/// A port of 127.0.0.1 that was free for TCP and UDP a moment ago.
pub fn free_port() -> u16 {
    let (mut kept, any) = (Vec::new(), (Ipv4Addr::LOCALHOST, 0));
    for _ in 0..100 {
        let tcp = TcpListener::bind(any).expect("a free TCP port");
        let port = tcp.local_addr().expect("an address").port();
        if UdpSocket::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
        // Kept open, so that the next try gets another one.
        kept.push(tcp);
    }
    panic!("no port is free for both TCP and UDP");
}

/// Waits until somebody accepts connections on the port of 127.0.0.1.
pub fn wait_for_port(port: u16) {
    wait_for(&format!("a listener on port {port}"), PATIENCE, || {
        TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok().map(drop)
    });
}

/// The content of a JSON file that is replaced by renames; None while it is not there.
pub fn read_json(path: &Path) -> Option<serde_json::Value> {
    serde_json::from_slice(&std::fs::read(path).ok()?).ok()
}

/// A number of a JSON object; fails by name when it is not there.
pub fn number(json: &serde_json::Value, key: &str) -> u64 {
    json[key].as_u64().unwrap_or_else(|| panic!("no number {key:?} in {json}"))
}
