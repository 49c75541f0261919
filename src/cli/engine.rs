//! The seam to configuration and pipeline, in one place.

use std::env;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::config::{self, Diagnostics, Document, SystemConfig};
use crate::pipeline::{self, Plan};
use crate::telemetry::{Overview, ProcessInfo, log};

/// Folder whose files are appended to the configuration when neither `$FLUENT_CONF_INCLUDE_DIR` nor `<system>` names
/// one; Fluentd's.
const INCLUDE_DIRECTORY: &str = "/etc/fluent/conf.d";

/// A configuration without faults.
pub(super) struct Loaded {
    pub(super) path: PathBuf,
    pub(super) document: Document,
    plan: Plan,
}

/// What the command line adds to the file.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Additions<'a> {
    /// `-i`
    pub(super) inline: Option<&'a str>,
    /// `--strict-config-value`
    pub(super) strict: bool,
    /// `--workers`
    pub(super) workers: Option<u32>,
    /// `--without-source`
    pub(super) without_source: bool,
}

/// Reads and checks the configuration; faults and warnings go to the diagnostics. `None` when there are faults.
pub(super) fn load(path: &Path, additions: Additions<'_>, diagnostics: &mut Diagnostics) -> Option<Loaded> {
    let loaded = read(path, additions, diagnostics);
    diagnostics.sort_by_place();
    loaded
}

fn read(path: &Path, additions: Additions<'_>, diagnostics: &mut Diagnostics) -> Option<Loaded> {
    let include_dir = env::var_os("FLUENT_CONF_INCLUDE_DIR").unwrap_or_else(|| INCLUDE_DIRECTORY.into());
    let options = config::LoadOptions {
        inline: additions.inline.map(str::to_owned),
        strict: additions.strict,
        workers: additions.workers,
        include_dir: (!include_dir.is_empty()).then(|| PathBuf::from(include_dir)),
        // The only worker that exists, as in a Fluentd with one worker.
        worker_id: Some(0),
        ..config::LoadOptions::default()
    };
    let mut document = config::load(path, &options, diagnostics)?;
    if additions.without_source {
        document.sources.clear();
    }
    let plan = pipeline::check(&document, diagnostics)?;
    (!diagnostics.has_faults()).then(|| Loaded { path: path.to_owned(), document, plan })
}

impl Loaded {
    /// `<system> shutdown_timeout`.
    pub(super) fn shutdown_timeout(&self) -> Duration {
        self.document.system.shutdown_timeout.duration()
    }

    /// The configuration as text for the log, secrets masked.
    pub(super) fn dump(&self) -> String {
        self.document.dump(&pipeline::spec_of)
    }
}

/// What `<system>` and `<log>` say about the log, over the given options. The command line's own come after.
pub(super) fn log_options(system: &SystemConfig, mut options: log::Options) -> log::Options {
    if let Some(level) = system.log_level {
        options.level = level.into();
    }
    if let Some(path) = &system.log.path {
        // Absolute, since a daemon changes its directory and the file is opened again.
        options.target = log::Target::File(std::path::absolute(path).unwrap_or_else(|_| path.into()));
    }
    options.format = match system.log.format {
        config::LogFormat::Text => log::Format::Text,
        config::LogFormat::Json => log::Format::Json,
    };
    options.time_format.clone_from(&system.log.time_format);
    options.ignore_repeated = system.ignore_repeated_log_interval.map(|interval| interval.duration());
    options.ignore_same = system.ignore_same_log_interval.map(|interval| interval.duration());
    options.file_mode = system.file_permission.map(|mode| mode.0);
    options
}

/// What runs.
pub(super) struct Running(pipeline::Running);

/// Builds and starts everything.
pub(super) async fn start(loaded: Loaded, process: ProcessInfo) -> Result<Running, Vec<String>> {
    let overview = Arc::new(Overview::default());
    overview.set_process(ProcessInfo { root_dir: loaded.document.system.root_dir.clone(), ..process });
    let started = loaded.plan.start(overview).await;
    started.map(Running).map_err(|faults| faults.into_iter().map(|fault| fault.0).collect())
}

impl Running {
    /// Every staged chunk becomes queued.
    pub(super) fn flush(&self) {
        self.0.flush();
    }

    /// Stops within the limit and says what is left.
    pub(super) async fn stop(self, limit: Duration) -> String {
        let left = self.0.stop(limit).await.left;
        if left.is_empty() {
            return "no chunk is left in buffers".to_owned();
        }
        let shown: Vec<String> = left
            .iter()
            .map(|buffer| format!("{} chunks ({} bytes) in {}", buffer.chunks, buffer.bytes, buffer.id))
            .collect();
        format!("left in buffers: {}", shown.join(", "))
    }
}
