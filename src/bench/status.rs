//! What the long-running judges share: a status file for tests that poll, and an orderly end on signals.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Replaces the file by one rename, so that a reader never sees half of it.
pub(super) fn replace_file(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    std::fs::write(&beside, content)?;
    std::fs::rename(&beside, path)
}

/// A flag that turns true at the first SIGTERM or SIGINT; the second one ends the process at once.
pub(super) fn stop_flag() -> io::Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    let (seen, runtime) = (flag.clone(), tokio::runtime::Builder::new_current_thread().enable_all().build()?);
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        runtime.block_on(async move {
            use tokio::signal::unix::{SignalKind, signal};
            let streams = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()));
            let (Ok(mut terminate), Ok(mut interrupt)) = streams else { return };
            loop {
                tokio::select! {
                    _ = terminate.recv() => {}
                    _ = interrupt.recv() => {}
                }
                if seen.swap(true, Ordering::SeqCst) {
                    std::process::exit(1);
                }
            }
        });
    })?;
    Ok(flag)
}
