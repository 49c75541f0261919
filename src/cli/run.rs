//! One run from the command line to the last log line: configuration, process, runtime, signals, stop.

use std::env;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use tracing::{error, info, warn};

use super::args::RunArgs;
use super::engine::{self, Additions, Loaded, Running};
use super::{EXIT_CONFIGURATION, EXIT_FAILURE};
use crate::config::Diagnostics;
use crate::process::signals::{self, Request, Signals};
use crate::process::{self, Identity, PidFile};
use crate::telemetry::ProcessInfo;
use crate::telemetry::log::{self, Level, Logger, SUPERVISOR, Target};

/// Where a configuration is looked for, first found wins: our own place, then those of the packages that we replace
/// (Fluentd's gem, fluent-package, td-agent), so that replacing the program in a service unit is enough.
pub(super) const CONFIG_PATHS: [&str; 4] = [
    "/etc/tributary/tributary.conf",
    "/etc/fluent/fluent.conf",
    "/etc/fluent/fluentd.conf",
    "/etc/td-agent/td-agent.conf",
];

/// Threads of the runtime at most. The event path is bounded by memory bandwidth and disks long before; more threads
/// only cost memory and wake-ups on large machines.
const WORKER_THREADS_MAX: usize = 8;

/// Threads of the runtime at least: signals must still be seen when one of them is stuck.
const WORKER_THREADS_MIN: usize = 2;

/// Threads for blocking work (files, name look-ups) at most; what does not fit waits.
const BLOCKING_THREADS_MAX: usize = 64;

/// How long the last log lines may take to be written.
const LOG_FLUSH_LIMIT: Duration = Duration::from_secs(2);

/// How long blocking threads may hold the end of the process (a read of standard input never ends by itself).
const RUNTIME_STOP_LIMIT: Duration = Duration::from_millis(500);

/// How long the pipeline may exceed its own deadline before the process ends without it.
const STOP_GRACE: Duration = Duration::from_secs(1);

/// Why a run ended before it was over. The text is for the log and for the terminal.
struct Failure {
    exit: u8,
    text: String,
}

impl Failure {
    fn setup(what: impl fmt::Display, error: impl fmt::Display) -> Self {
        Self { exit: EXIT_FAILURE, text: format!("{what}: {error}") }
    }
}

/// Runs until a signal ends it.
pub(super) fn run(args: &RunArgs) -> ExitCode {
    let options = log::Options {
        level: Level::Info.shifted(i32::from(args.quiet) - i32::from(args.verbose)),
        target: log_target(args),
        ..log::Options::default()
    };
    let logger = match log::install(&options) {
        Ok(logger) => logger,
        Err(error) => {
            eprintln!(
                "error: log file {} cannot be opened: {error} (option --log)",
                shown(args.log.as_deref())
            );
            return ExitCode::from(EXIT_FAILURE);
        }
    };
    log_panics();
    let code = match run_logged(args, &logger, options) {
        Ok(code) => code,
        Err(failure) => {
            error!(target: SUPERVISOR, "{}", failure.text);
            if options_hide_failures(args) {
                eprintln!("error: {}", failure.text);
            }
            failure.exit
        }
    };
    logger.flush(LOG_FLUSH_LIMIT);
    ExitCode::from(code)
}

/// With a log file the one who typed the command would see nothing.
fn options_hide_failures(args: &RunArgs) -> bool {
    log_target(args) != Target::Stdout
}

fn log_target(args: &RunArgs) -> Target {
    match &args.log {
        // Absolute, since a daemon changes its directory and the file is opened again.
        Some(path) if path.as_os_str() != "-" => {
            Target::File(std::path::absolute(path).unwrap_or_else(|_| path.clone()))
        }
        _ => Target::Stdout,
    }
}

fn shown(path: Option<&Path>) -> String {
    path.map_or_else(|| "-".to_owned(), |path| path.display().to_string())
}

/// A panic is a broken invariant of ours; the task that had it is gone, the log says where.
fn log_panics() {
    std::panic::set_hook(Box::new(|panic| {
        error!(fatal = true, error = %panic, "unexpected error");
    }));
}

fn run_logged(args: &RunArgs, logger: &Logger, options: log::Options) -> Result<u8, Failure> {
    for (option, why) in args.fluentd.without_effect() {
        warn!(target: SUPERVISOR, option, why, "option is without effect");
    }
    let identity = Identity::resolve(args.user.as_deref(), args.group.as_deref())
        .map_err(|error| Failure::setup("cannot change the user", error))?;
    let loaded = load(args)?;
    let options = log_options(args, options, &loaded);
    logger.reconfigure(&options).map_err(|error| Failure::setup("log file cannot be opened", error))?;
    info!(target: SUPERVISOR, path = %loaded.path.display(), "parsing config file is succeeded");
    if args.dry_run {
        info!(target: SUPERVISOR, "starting tributary-{} as dry run mode", env!("CARGO_PKG_VERSION"));
        dump_configuration(args, &loaded);
        info!(target: SUPERVISOR, "finished dry run mode");
        return Ok(0);
    }
    let pid_file = set_up_process(args, logger, &identity)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(worker_threads())
        .max_blocking_threads(BLOCKING_THREADS_MAX)
        .thread_name("worker")
        .enable_all()
        .build()
        .map_err(|error| Failure::setup("runtime cannot start", error))?;
    let exit = HardExit { pid_file: pid_file.map(Arc::new), logger: logger.clone() };
    let code = runtime.block_on(serve(args, loaded, logger, &exit));
    runtime.shutdown_timeout(RUNTIME_STOP_LIMIT);
    // The thread that watches over the stop holds the file, too, so dropping would not remove it.
    if let Some(pid_file) = &exit.pid_file {
        pid_file.remove();
    }
    code
}

/// The way out that waits for nothing: no destructor runs, since one may wait for a disk that never answers.
#[derive(Clone)]
struct HardExit {
    pid_file: Option<Arc<PidFile>>,
    logger: Logger,
}

impl HardExit {
    fn now(&self, code: u8) -> ! {
        self.logger.flush(LOG_FLUSH_LIMIT);
        if let Some(pid_file) = &self.pid_file {
            pid_file.remove();
        }
        std::process::exit(i32::from(code))
    }

    /// Ends the process after `limit` whatever the runtime does; a thread, since the runtime itself may be stuck.
    fn after(&self, limit: Duration) {
        let exit = self.clone();
        let watch = move || {
            std::thread::sleep(limit);
            error!(
                target: SUPERVISOR,
                limit_seconds = limit.as_secs(),
                "stop did not finish within shutdown_timeout; file buffers keep what was not flushed"
            );
            exit.now(EXIT_FAILURE);
        };
        if let Err(error) = std::thread::Builder::new().name("stop-limit".into()).spawn(watch) {
            warn!(target: SUPERVISOR, error = %error, "stop has no limit, no thread can be started");
        }
    }
}

fn worker_threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).clamp(WORKER_THREADS_MIN, WORKER_THREADS_MAX)
}

/// `-c`, else `$FLUENT_CONF`, else the first of [`CONFIG_PATHS`] that exists.
pub(super) fn configuration_path(args: &RunArgs) -> PathBuf {
    if let Some(path) = args.config.clone().or_else(|| env::var_os("FLUENT_CONF").map(PathBuf::from)) {
        return path;
    }
    let found = CONFIG_PATHS.iter().find(|path| Path::new(path).exists());
    PathBuf::from(found.unwrap_or(&CONFIG_PATHS[1]))
}

/// Reads the configuration. Every fault is logged with its place, and nothing is started then.
fn load(args: &RunArgs) -> Result<Loaded, Failure> {
    let path = configuration_path(args);
    // A daemon changes its directory.
    let path = std::path::absolute(&path).unwrap_or(path);
    let additions = Additions {
        inline: args.inline_config.as_deref(),
        strict: args.strict_config_value,
        workers: args.workers,
        without_source: args.without_source,
    };
    let mut diagnostics = Diagnostics::new();
    let loaded = engine::load(&path, additions, &mut diagnostics);
    for warning in diagnostics.warnings() {
        warn!(target: SUPERVISOR, "{}", warning.one_line());
    }
    let mut faults = 0;
    for fault in diagnostics.faults() {
        faults += 1;
        let text = fault.to_string();
        match text.strip_prefix("error: ") {
            Some(nowhere) => error!(target: SUPERVISOR, "config error: {nowhere}"),
            None => error!(target: SUPERVISOR, "config error in {text}"),
        }
        if options_hide_failures(args) {
            eprintln!("{text}");
        }
    }
    match loaded {
        Some(loaded) if !diagnostics.has_faults() => Ok(loaded),
        _ => Err(Failure {
            // A dry run ends with 1, as Fluentd's.
            exit: if args.dry_run { EXIT_FAILURE } else { EXIT_CONFIGURATION },
            text: format!(
                "config error file={:?}: {faults} fault(s), nothing was started",
                path.display().to_string()
            ),
        }),
    }
}

/// `<system>` and `<log>` under the command line's options.
fn log_options(args: &RunArgs, from_command_line: log::Options, loaded: &Loaded) -> log::Options {
    let mut options = engine::log_options(&loaded.document.system, from_command_line.clone());
    if args.verbose > 0 || args.quiet > 0 {
        options.level = from_command_line.level;
    }
    if args.log.is_some() {
        options.target = from_command_line.target;
    }
    options
}

/// Everything that changes the process, in the order that each step needs: mask, signals held back, daemon, pid file,
/// log and user. The threads come after.
fn set_up_process(args: &RunArgs, logger: &Logger, identity: &Identity) -> Result<Option<PidFile>, Failure> {
    if let Some(mask) = args.umask {
        process::set_umask(mask);
    }
    signals::hold_back().map_err(|error| Failure::setup("signals cannot be held back", error))?;
    let mut pid_file = None;
    if let Some(path) = &args.daemon {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
        process::become_daemon().map_err(|error| Failure::setup("cannot become a daemon", error))?;
        let written = PidFile::write(&path);
        let failed = |error| Failure::setup(format!("pid file {} cannot be written", path.display()), error);
        pid_file = Some(written.map_err(failed)?);
    }
    match process::raise_descriptor_limit() {
        Ok((before, now)) if before < now => {
            info!(target: SUPERVISOR, before, now, "limit of open descriptors raised");
        }
        Ok(_) => {}
        Err(error) => warn!(
            target: SUPERVISOR,
            error = %error,
            "limit of open descriptors cannot be raised"
        ),
    }
    if let Err(error) = logger.change_owner(identity.uid(), identity.gid()) {
        warn!(target: SUPERVISOR, error = %error, "log file cannot be given to the user, it may not be opened again later");
    }
    identity.assume().map_err(|error| Failure::setup("cannot change the user", error))?;
    logger.start_writer().map_err(|error| Failure::setup("log cannot be written", error))?;
    Ok(pid_file)
}

fn dump_configuration(args: &RunArgs, loaded: &Loaded) {
    if !args.suppress_config_dump && loaded.document.system.suppress_config_dump != Some(true) {
        info!(target: SUPERVISOR, "using configuration file: {}", loaded.dump().trim_end());
    }
}

/// Starts the pipeline, answers signals, stops. Returns the exit code.
async fn serve(args: &RunArgs, loaded: Loaded, logger: &Logger, exit: &HardExit) -> Result<u8, Failure> {
    let mut signals =
        Signals::install().map_err(|error| Failure::setup("signals cannot be handled", error))?;
    dump_configuration(args, &loaded);
    let (path, shutdown_timeout) = (loaded.path.clone(), loaded.shutdown_timeout());
    info!(target: SUPERVISOR, pid = std::process::id(), "starting tributary-{}", env!("CARGO_PKG_VERSION"));
    info!(
        pid = std::process::id(),
        ppid = std::os::unix::process::parent_id(),
        worker = 0,
        "starting fluentd worker"
    );
    let mut starting = std::pin::pin!(engine::start(
        loaded,
        ProcessInfo {
            config_path: Some(path.display().to_string()),
            pid_file: args.daemon.as_ref().map(|path| path.display().to_string()),
            log_path: args.log.as_ref().map(|path| path.display().to_string()),
            root_dir: None,
        }
    ));
    let running = loop {
        tokio::select! {
            started = &mut starting => break started.map_err(|faults| build_failure(args, &faults))?,
            request = signals.next() => match request {
                // Nothing has been taken in yet.
                Request::Stop | Request::StopAtOnce => exit.now(0),
                other => answer(other, None, logger, &path),
            },
        }
    };
    info!(worker = 0, "fluentd worker is now running");
    loop {
        match signals.next().await {
            Request::Stop => break,
            Request::StopAtOnce => {
                warn!(target: SUPERVISOR, "stopping at once; what is in memory buffers is lost");
                exit.now(EXIT_FAILURE);
            }
            other => answer(other, Some(&running), logger, &path),
        }
    }
    Ok(stop(running, &mut signals, shutdown_timeout, exit).await)
}

fn build_failure(args: &RunArgs, faults: &[String]) -> Failure {
    for fault in faults {
        error!("{fault}");
        if options_hide_failures(args) {
            eprintln!("{fault}");
        }
    }
    Failure {
        exit: EXIT_FAILURE,
        text: format!("{} part(s) cannot start, nothing was started", faults.len()),
    }
}

/// The signals that do not end the process.
fn answer(request: Request, running: Option<&Running>, logger: &Logger, configuration: &Path) {
    match request {
        Request::Flush => {
            if let Err(error) = logger.reopen() {
                error!(target: SUPERVISOR, error = %error, "log file cannot be opened again, the old one stays in use");
            }
            info!("force flushing buffered events");
            if let Some(running) = running {
                running.flush();
            }
        }
        Request::Restart => warn!(
            target: SUPERVISOR,
            "SIGHUP: reading the configuration again is not built, the old one stays; restart the service to apply changes"
        ),
        Request::Reload => warn!(
            target: SUPERVISOR,
            "SIGUSR2: reloading the configuration is not built, the old one stays; restart the service to apply changes"
        ),
        Request::EndSourceOnly => {
            info!(target: SUPERVISOR, "SIGWINCH: there is no source-only mode to end");
        }
        Request::Dump => {
            match process::write_dump(&format!("  configuration: {}\n", configuration.display())) {
                Ok(path) => info!(target: SUPERVISOR, path = %path.display(), "SIGCONT: dump written"),
                Err(error) => warn!(target: SUPERVISOR, error = %error, "SIGCONT: dump cannot be written"),
            }
        }
        Request::Stop | Request::StopAtOnce => {}
    }
}

/// Graceful stop within the limit; a second signal ends it at once.
async fn stop(running: Running, signals: &mut Signals, limit: Duration, exit: &HardExit) -> u8 {
    info!(target: SUPERVISOR, "Received graceful stop");
    info!(worker = 0, "fluentd worker is now stopping");
    info!(worker = 0, "shutting down fluentd worker");
    exit.after(limit.saturating_add(STOP_GRACE));
    // A task of its own: whatever it does, signals are seen here.
    let mut stopping = tokio::spawn(running.stop(limit));
    loop {
        tokio::select! {
            stopped = &mut stopping => {
                return match stopped {
                    Ok(left) => {
                        info!(target: SUPERVISOR, "Worker 0 finished with status 0; {left}");
                        0
                    }
                    Err(_) => {
                        error!(target: SUPERVISOR, "Worker 0 finished with status 1; the stop broke off");
                        EXIT_FAILURE
                    }
                };
            }
            request = signals.next() => if matches!(request, Request::Stop | Request::StopAtOnce) {
                warn!(target: SUPERVISOR, "second signal, stopping at once; what is in memory buffers is lost");
                exit.now(EXIT_FAILURE);
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_explicit_configuration_goes_first() {
        let args = RunArgs { config: Some("/x".into()), ..RunArgs::default() };
        assert_eq!(configuration_path(&args), Path::new("/x"));
    }
}
