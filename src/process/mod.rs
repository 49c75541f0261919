//! The process as the operating system sees it: daemon, pid file, user and group, limits, figures about itself.
//!
//! Everything that changes the process happens before the runtime starts its threads.

mod dump;
mod identity;
mod pid_file;
pub mod signals;

pub use dump::write_dump;
pub use identity::{Identity, IdentityError};
pub use pid_file::PidFile;

use std::fs;
use std::io;

use nix::sys::resource::{Resource, UsageWho, getrlimit, getrusage, setrlimit};
use nix::sys::stat::{Mode, umask};

/// Raises the limit of open descriptors to the hard limit (docs/RELIABILITY.md F11) and returns `(before, now)`.
///
/// # Errors
/// The system refused; the limit is as it was.
pub fn raise_descriptor_limit() -> io::Result<(u64, u64)> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if soft < hard {
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    }
    Ok((soft, hard))
}

/// The limit of open descriptors in force.
pub fn descriptor_limit() -> Option<u64> {
    getrlimit(Resource::RLIMIT_NOFILE).ok().map(|(soft, _)| soft)
}

/// Descriptors open now. Lists a directory, so for monitors, not for the event path.
pub fn open_descriptors() -> Option<u64> {
    let entries = fs::read_dir("/proc/self/fd").ok()?.count();
    // The listing itself holds one.
    u64::try_from(entries.saturating_sub(1)).ok()
}

/// Resident memory in bytes.
pub fn resident_bytes() -> Option<u64> {
    status_bytes("VmRSS:")
}

/// Highest resident memory so far, in bytes.
pub fn peak_resident_bytes() -> Option<u64> {
    status_bytes("VmHWM:")
}

/// A line such as `VmRSS:     1234 kB`.
fn status_bytes(key: &str) -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(key))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Processor time used so far, user and system, in seconds.
pub fn processor_seconds() -> Option<f64> {
    let usage = getrusage(UsageWho::RUSAGE_SELF).ok()?;
    let seconds = |time: nix::sys::time::TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
    Some(seconds(usage.user_time()) + seconds(usage.system_time()))
}

/// Sets the file mode creation mask (`--umask`).
pub fn set_umask(mask: u32) {
    umask(Mode::from_bits_truncate(mask));
}

/// Becomes a daemon: a child in a session of its own, working directory `/`, standard streams on `/dev/null`. The
/// parent ends with 0 inside this call. Only while the process has one thread.
///
/// # Errors
/// The system refused to fork.
pub fn become_daemon() -> io::Result<()> {
    nix::unistd::daemon(false, false).map_err(io::Error::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_about_itself_are_plausible() {
        let before = open_descriptors().unwrap();
        let _held: Vec<fs::File> = (0..50).map(|_| fs::File::open("/dev/null").unwrap()).collect();
        // Other tests open and close files meanwhile; 50 of our own are certain.
        assert!(open_descriptors().unwrap() >= 50, "before {before}");
        let resident = resident_bytes().unwrap();
        assert!(resident > 1024 * 1024 && peak_resident_bytes().unwrap() >= resident / 2);
        assert!(processor_seconds().unwrap() > 0.0);
        let (_, now) = raise_descriptor_limit().unwrap();
        assert_eq!(descriptor_limit(), Some(now));
    }
}
