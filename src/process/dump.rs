//! SIGCONT: a short text about the process for the one who looks, where Fluentd puts its thread dump.

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::PathBuf;

use nix::fcntl::OFlag;

/// Appends the dump to `$SIGDUMP_PATH`, or `/tmp/sigdump-PID.log`, and returns the path. `details` is added at the
/// end. The temporary directory is everybody's: a link or a file of somebody else is refused.
///
/// # Errors
/// The file cannot be opened or written, or belongs to somebody else.
pub fn write_dump(details: &str) -> io::Result<PathBuf> {
    let path = env::var_os("SIGDUMP_PATH")
        .map_or_else(|| env::temp_dir().join(format!("sigdump-{}.log", std::process::id())), PathBuf::from);
    let mut file = fs::OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .custom_flags((OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits())
        .open(&path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() || metadata.uid() != nix::unistd::geteuid().as_raw() {
        return Err(io::Error::other("the dump file is not a plain file of our own"));
    }
    file.write_all(text(details).as_bytes())?;
    Ok(path)
}

fn text(details: &str) -> String {
    let mut text = format!("Sigdump at {} process {}\n", jiff::ZonedDateTime::now(), std::process::id());
    let _ = writeln!(text, "  version: {}", env!("CARGO_PKG_VERSION"));
    let shown =
        |figure: Option<u64>| figure.map_or_else(|| "unknown".to_owned(), |figure| figure.to_string());
    let _ = writeln!(text, "  resident memory: {} bytes", shown(super::resident_bytes()));
    let _ = writeln!(
        text,
        "  open descriptors: {} of {}",
        shown(super::open_descriptors()),
        shown(super::descriptor_limit())
    );
    let _ = writeln!(text, "  threads:");
    for task in fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
        let name = fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        let _ = writeln!(text, "    {} {}", task.file_name().to_string_lossy(), name.trim_end());
    }
    text.push_str(details);
    text
}
