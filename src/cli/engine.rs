//! The seam to configuration and pipeline, in one place.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::config::{Diagnostics, LoadOptions, SystemConfig};
use crate::pipeline::{self, Overview, Plan, ProcessInfo};

/// A configuration that may run.
pub(super) struct Loaded {
    pub(super) path: PathBuf,
    pub(super) system: SystemConfig,
    pub(super) dump: String,
    /// Taken when it is started.
    pub(super) plan: Option<Plan>,
}

/// Reads and checks the configuration; faults and warnings go to the diagnostics. Opens nothing.
pub(super) fn load(path: &Path, inline: Option<&str>, diagnostics: &mut Diagnostics) -> Option<Loaded> {
    let options =
        LoadOptions { inline: inline.map(str::to_owned), strict: diagnostics.strict_values(), ..Default::default() };
    let document = crate::config::load(path, &options, diagnostics)?;
    let plan = pipeline::check(&document, diagnostics)?;
    Some(Loaded {
        path: path.to_owned(),
        dump: document.dump(&pipeline::spec_of),
        system: document.system,
        plan: Some(plan),
    })
}

/// What runs.
pub(super) struct Running(pipeline::Running);

/// Builds and starts everything.
pub(super) async fn start(loaded: &mut Loaded, process: ProcessInfo) -> Result<Running, Vec<String>> {
    let Some(plan) = loaded.plan.take() else { return Err(vec!["it is running already".into()]) };
    let overview = Arc::new(Overview::default());
    overview.set_process(process);
    let started = plan.start(overview).await;
    started.map(Running).map_err(|faults| faults.into_iter().map(|fault| fault.0).collect())
}

impl Running {
    /// Every staged chunk becomes queued.
    pub(super) fn flush(&self) {
        self.0.flush();
    }

    /// Stops within the limit and says what is left.
    pub(super) async fn stop(self, limit: Duration) -> String {
        let summary = self.0.stop(limit).await;
        if summary.left.is_empty() {
            return "no chunk is left in buffers".to_owned();
        }
        let left = summary.left.iter();
        let list: Vec<String> =
            left.map(|buffer| format!("{} chunks ({} bytes) in {}", buffer.chunks, buffer.bytes, buffer.id)).collect();
        format!("left in buffers: {}", list.join(", "))
    }
}
