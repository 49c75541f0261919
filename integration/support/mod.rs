//! What the tests of this target share: the binary, processes that end with their test, waiting for conditions.
//!
//! Nothing here sleeps for a result: [`wait_for`] looks until a limit and then says what it waited for.

mod process;
mod room;

pub use process::Process;
pub use room::Room;

use std::ffi::OsStr;
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Waits for a condition; only a broken program gets near the limit.
pub const LIMIT: Duration = Duration::from_secs(60);

/// How often a condition is looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);

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
        std::thread::sleep(LOOK_INTERVAL);
    }
}

/// Waits until a local port takes connections.
pub fn wait_for_port(port: u16) {
    wait_for(&format!("a listener on port {port}"), || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok());
}

/// A port of 127.0.0.1 that nobody uses now, for TCP and for UDP.
pub fn free_port() -> u16 {
    let mut kept = Vec::new();
    for _ in 0..100 {
        let tcp = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free TCP port");
        let port = tcp.local_addr().expect("an address").port();
        if UdpSocket::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
        // Kept open, so that the next try gets another one.
        kept.push(tcp);
    }
    panic!("no port is free for both TCP and UDP");
}

/// Starts tributary with a configuration text, kept as `folder/name.conf`.
pub fn tributary(folder: &Path, name: &str, configuration: &str) -> Process {
    let file = folder.join(format!("{name}.conf"));
    std::fs::write(&file, configuration).expect("configuration file");
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

/// The content of a JSON file that is replaced by renames; None while it is not there.
pub fn read_json(path: &Path) -> Option<serde_json::Value> {
    serde_json::from_slice(&std::fs::read(path).ok()?).ok()
}

/// A number of a JSON object; fails by name when it is not there.
pub fn number(json: &serde_json::Value, key: &str) -> u64 {
    json[key].as_u64().unwrap_or_else(|| panic!("no number {key:?} in {json}"))
}
