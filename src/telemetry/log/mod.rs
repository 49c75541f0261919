//! Our own log, in Fluentd's words: `TIME [LEVEL]: #0 [@id] MESSAGE key=value ...`, or JSON lines.
//!
//! Code logs with the macros of `tracing`; this layer writes the line. What to know when writing a log call:
//!
//! * The message is a constant, lower case, without a period, as close to Fluentd's words as it can be; values are
//!   fields. Text that a peer sent always goes into a field, where control characters are escaped.
//! * `plugin_id = %id` becomes the mark `[id]`, and the level of that plugin's `@log_level` applies. Ids that
//!   were generated (`object:...`) print no mark.
//! * `%value`, `?value` and strings print as Ruby strings, `"..."`; numbers and booleans print bare. [`raw`] prints
//!   anything else bare (`type = raw(":forward")`).
//! * `error = %error` prints `error="..."`. `fatal = true` on an error makes it `fatal`.
//! * `repeated = n` prints `(repeated n times)` at the end; see [`super::rate`].
//! * `target: SUPERVISOR` leaves out the worker mark, for lines that in Fluentd come from the supervisor.
//! * Passwords, keys and tokens are never logged, at no level.
//!
//! A log call costs a clock read, some formatting and one push to a bounded queue; a thread of its own writes, so
//! that a stuck terminal or disk never holds the event path. Lines that do not fit are dropped and counted.

mod level;
mod line;
mod sink;

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tracing::field::{Field, Visit};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};

use crate::event::EventTime;
use crate::time::{TimeFormat, Zone};

pub use level::Level;
pub use sink::Target;

use line::{Line, inspect, inspect_float, printable};
use sink::Sink;

/// `tracing` target of lines without the worker mark.
pub const SUPERVISOR: &str = "tributary::supervisor";

/// Fluentd's default `time_format`.
pub const TIME_FORMAT: &str = "%Y-%m-%d %H:%M:%S %z";

/// Distinct messages that `ignore_same_log_interval` remembers (Fluentd's number).
const SAME_MESSAGES_MAX: usize = 1_000;

/// Begins the text of a [`raw`] value on its way through `tracing`, which passes only text.
const RAW_MARK: char = '\u{1}';

/// The form of a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// Fluentd's text line.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// How the log is to be; `<system>` and `<log>` with the command line over them.
#[derive(Clone, Debug)]
pub struct Options {
    /// Lines below are not written.
    pub level: Level,
    /// Where lines go.
    pub target: Target,
    /// `<log> format`.
    pub format: Format,
    /// `<log> time_format`, in strftime terms; one that cannot be used falls back to the default.
    pub time_format: String,
    /// `ignore_repeated_log_interval`: a line equal to the last one within it is left out.
    pub ignore_repeated: Option<Duration>,
    /// `ignore_same_log_interval`: a line equal to any recent one within it is left out; goes before the other.
    pub ignore_same: Option<Duration>,
    /// Mode of a new log file; Fluentd's 0644 when silent.
    pub file_mode: Option<u32>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            level: Level::Info,
            target: Target::Stdout,
            format: Format::Text,
            time_format: TIME_FORMAT.to_owned(),
            ignore_repeated: None,
            ignore_same: None,
            file_mode: None,
        }
    }
}

/// A value that is printed as it is, without quotes: symbols, `nil`, lists, maps. Control characters are escaped.
pub fn raw(text: impl fmt::Display) -> tracing::field::DebugValue<impl fmt::Debug> {
    struct Raw<T>(T);
    impl<T: fmt::Display> fmt::Debug for Raw<T> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "{RAW_MARK}{}", self.0)
        }
    }
    tracing::field::debug(Raw(text))
}

/// The installed log; cheap to clone.
#[derive(Clone)]
pub struct Logger(Arc<Shared>);

struct Shared {
    /// Global level.
    level: AtomicU8,
    /// The most talkative of the global and all plugin levels: what callsites are filtered by.
    most_talkative: AtomicU8,
    settings: RwLock<Settings>,
    repeats: Mutex<Repeats>,
    sink: Arc<Sink>,
}

struct Settings {
    format: Format,
    time_format: TimeFormat,
    ignore_repeated: Option<Duration>,
    ignore_same: Option<Duration>,
    plugin_levels: HashMap<String, Level>,
}

#[derive(Default)]
struct Repeats {
    last: Option<(String, Instant)>,
    recent: HashMap<String, Instant>,
}

/// The log of this process, for the free functions below.
static INSTALLED: OnceLock<Logger> = OnceLock::new();

/// Opens the destination and becomes the log of this process. To be called once, at the start of `main`.
///
/// # Errors
/// The destination cannot be opened.
pub fn install(options: &Options) -> io::Result<Logger> {
    let logger = Logger::new(options)?;
    let subscriber = tracing_subscriber::registry().with(FluentdLayer(Arc::clone(&logger.0)));
    // A second call (tests in one process) keeps the first subscriber.
    if tracing::subscriber::set_global_default(subscriber).is_ok() {
        let _ = INSTALLED.set(logger.clone());
    }
    Ok(logger)
}

/// Sets the level of one plugin (`@log_level`); may be more talkative than the global one.
pub fn set_plugin_level(plugin_id: &str, level: Level) {
    if let Some(logger) = INSTALLED.get() {
        logger.set_plugin_level(plugin_id, level);
    }
}

/// Writes bytes of events to the log's destination, as Fluentd's out_stdout does (with `-o` they go to the log
/// file). Waits for the destination, so it belongs on a blocking thread. Without an installed log: standard output.
///
/// # Errors
/// The write failed; part of the bytes may have been written.
pub fn write_events(bytes: &[u8]) -> io::Result<()> {
    match INSTALLED.get() {
        Some(logger) => logger.0.sink.raw(bytes),
        None => io::Write::write_all(&mut io::stdout().lock(), bytes),
    }
}

impl Logger {
    fn new(options: &Options) -> io::Result<Self> {
        let sink = Arc::new(Sink::open(&options.target, options.file_mode)?);
        Ok(Self(Arc::new(Shared {
            level: AtomicU8::new(options.level as u8),
            most_talkative: AtomicU8::new(options.level as u8),
            settings: RwLock::new(Settings {
                format: options.format,
                time_format: usable(&options.time_format),
                ignore_repeated: options.ignore_repeated,
                ignore_same: options.ignore_same,
                plugin_levels: HashMap::new(),
            }),
            repeats: Mutex::default(),
            sink,
        })))
    }

    /// Applies new options (the configuration was read). On failure to open the destination the old one stays.
    ///
    /// # Errors
    /// The new destination cannot be opened.
    pub fn reconfigure(&self, options: &Options) -> io::Result<()> {
        {
            let mut settings = self.0.settings.write().unwrap_or_else(PoisonError::into_inner);
            settings.format = options.format;
            settings.time_format = usable(&options.time_format);
            settings.ignore_repeated = options.ignore_repeated;
            settings.ignore_same = options.ignore_same;
        }
        self.0.level.store(options.level as u8, Ordering::Relaxed);
        self.0.filter_callsites();
        if self.0.sink.target() == options.target {
            return Ok(());
        }
        self.0.sink.switch(&options.target, options.file_mode)
    }

    /// See the free function.
    pub fn set_plugin_level(&self, plugin_id: &str, level: Level) {
        let mut settings = self.0.settings.write().unwrap_or_else(PoisonError::into_inner);
        settings.plugin_levels.insert(plugin_id.to_owned(), level);
        drop(settings);
        self.0.filter_callsites();
    }

    /// Opens the log file again (SIGUSR1); the old one stays in use when that fails.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn reopen(&self) -> io::Result<()> {
        self.0.sink.reopen()
    }

    /// Starts the writer thread. After the last fork, before the event path.
    ///
    /// # Errors
    /// The thread cannot be started or standard output is closed.
    pub fn start_writer(&self) -> io::Result<()> {
        self.0.sink.start_writer()
    }

    /// Waits at most `limit` until everything logged so far is written; false when time ran out.
    pub fn flush(&self, limit: Duration) -> bool {
        self.0.sink.flush(limit)
    }

    /// Gives the log file to a user and group (`--user`, `--group`), so that it can be opened again later.
    ///
    /// # Errors
    /// The change was refused. Standard output is left alone.
    pub fn change_owner(
        &self,
        user: Option<nix::unistd::Uid>,
        group: Option<nix::unistd::Gid>,
    ) -> io::Result<()> {
        if self.0.sink.target() == Target::Stdout {
            return Ok(());
        }
        self.0.sink.with_file(|file| nix::unistd::fchown(file, user, group)).map_err(io::Error::from)
    }
}

impl Shared {
    fn level(&self) -> Level {
        Level::from_number(self.level.load(Ordering::Relaxed))
    }

    fn filter_callsites(&self) {
        let settings = self.settings.read().unwrap_or_else(PoisonError::into_inner);
        let level = settings.plugin_levels.values().copied().fold(self.level(), Level::min);
        drop(settings);
        self.most_talkative.store(level as u8, Ordering::Relaxed);
        tracing::callsite::rebuild_interest_cache();
    }

    /// Lines of dependencies tell of mechanisms, not of the operator's flows; they show only in a full trace.
    fn wants(&self, metadata: &tracing::Metadata<'_>) -> bool {
        let level = Level::from_number(self.most_talkative.load(Ordering::Relaxed));
        Level::of(metadata).max(Level::Trace) >= level
            && (is_ours(metadata.target()) || self.level() == Level::Trace)
    }

    fn write(&self, line: &Line) {
        let settings = self.settings.read().unwrap_or_else(PoisonError::into_inner);
        let threshold = line
            .plugin_id
            .as_ref()
            .and_then(|id| settings.plugin_levels.get(id))
            .copied()
            .unwrap_or_else(|| self.level());
        if line.level < threshold {
            return;
        }
        let body = line.body();
        if self.is_repeat(&settings, &body) {
            return;
        }
        let dropped = self.sink.take_dropped();
        if dropped > 0 {
            let notice = Line {
                level: Level::Warn,
                worker: line.worker,
                plugin_id: None,
                location: None,
                message: "log lines were dropped because the log could not be written fast enough".to_owned(),
                fields: format!(" lines={dropped}"),
                repeated: 0,
            };
            self.sink.line(self.form(&settings, &notice, &notice.body()));
        }
        self.sink.line(self.form(&settings, line, &body));
    }

    fn form(&self, settings: &Settings, line: &Line, body: &str) -> String {
        let time = settings.time_format.text(now(), &Zone::local());
        match settings.format {
            Format::Text => line.to_text(&time, body, self.sink.colours()),
            Format::Json => line.to_json(&time, body),
        }
    }

    fn is_repeat(&self, settings: &Settings, body: &str) -> bool {
        if settings.ignore_same.is_none() && settings.ignore_repeated.is_none() {
            return false;
        }
        let mut repeats = self.repeats.lock().unwrap_or_else(PoisonError::into_inner);
        repeats.is_repeat(body, Instant::now(), settings.ignore_repeated, settings.ignore_same)
    }
}

impl Repeats {
    fn is_repeat(
        &mut self,
        body: &str,
        now: Instant,
        ignore_repeated: Option<Duration>,
        ignore_same: Option<Duration>,
    ) -> bool {
        if let Some(interval) = ignore_same {
            if self.recent.get(body).is_some_and(|&seen| now.duration_since(seen) < interval) {
                return true;
            }
            if self.recent.len() >= SAME_MESSAGES_MAX {
                self.recent.retain(|_, &mut seen| now.duration_since(seen) < interval);
            }
            if self.recent.len() < SAME_MESSAGES_MAX {
                self.recent.insert(body.to_owned(), now);
            }
            return false;
        }
        let Some(interval) = ignore_repeated else { return false };
        if let Some((last, seen)) = &self.last
            && last == body
            && now.duration_since(*seen) < interval
        {
            return true;
        }
        self.last = Some((body.to_owned(), now));
        false
    }
}

fn is_ours(target: &str) -> bool {
    target == env!("CARGO_PKG_NAME") || target.starts_with("tributary::")
}

fn now() -> EventTime {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    match u32::try_from(since.as_secs()) {
        Ok(seconds) => EventTime::Ext { seconds, nanoseconds: since.subsec_nanos() },
        Err(_) => EventTime::Int(i64::try_from(since.as_secs()).unwrap_or(i64::MAX)),
    }
}

/// The format as written, or the default when it holds something that is no code: a log without times is worth less.
fn usable(format: &str) -> TimeFormat {
    let written = TimeFormat::parse(format);
    if written.has_unknown_codes() { TimeFormat::parse(TIME_FORMAT) } else { written }
}

/// The `tracing` layer that writes lines.
struct FluentdLayer(Arc<Shared>);

impl<S: tracing::Subscriber> Layer<S> for FluentdLayer {
    fn register_callsite(
        &self,
        metadata: &'static tracing::Metadata<'static>,
    ) -> tracing::subscriber::Interest {
        if self.0.wants(metadata) {
            tracing::subscriber::Interest::always()
        } else {
            tracing::subscriber::Interest::never()
        }
    }

    fn enabled(&self, metadata: &tracing::Metadata<'_>, _: Context<'_, S>) -> bool {
        self.0.wants(metadata)
    }

    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        let metadata = event.metadata();
        let mut fields = Fields::default();
        event.record(&mut fields);
        let level = if fields.fatal { Level::Fatal } else { Level::of(metadata) };
        let location =
            (self.0.level() <= Level::Debug).then(|| metadata.file().zip(metadata.line())).flatten();
        self.0.write(&Line {
            level,
            worker: (metadata.target() != SUPERVISOR).then_some(0),
            plugin_id: fields.plugin_id,
            location,
            message: fields.message,
            fields: fields.text,
            repeated: fields.repeated,
        });
    }
}

/// Collects the fields of an event.
#[derive(Default)]
struct Fields {
    message: String,
    text: String,
    plugin_id: Option<String>,
    fatal: bool,
    repeated: u64,
}

impl Fields {
    fn push(&mut self, field: &Field, value: &str) {
        self.text.push(' ');
        self.text.push_str(field.name());
        self.text.push('=');
        self.text.push_str(value);
    }

    fn string(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => self.message = value.to_owned(),
            "plugin_id" => self.plugin_id = (!value.starts_with("object:")).then(|| value.to_owned()),
            _ => match value.strip_prefix(RAW_MARK) {
                Some(raw) => self.push(field, &printable(raw).replace('\n', "\\n")),
                None => self.push(field, &inspect(value)),
            },
        }
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.string(field, &format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.string(field, value);
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        let mut text = value.to_string();
        let mut source = value.source();
        while let Some(cause) = source {
            text.push_str(": ");
            text.push_str(&cause.to_string());
            source = cause.source();
        }
        self.string(field, &text);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        match field.name() {
            "repeated" => self.repeated = value,
            _ => self.push(field, &value.to_string()),
        }
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        match field.name() {
            "fatal" => self.fatal = value,
            _ => self.push(field, if value { "true" } else { "false" }),
        }
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.push(field, &value.to_string());
    }

    fn record_u128(&mut self, field: &Field, value: u128) {
        self.push(field, &value.to_string());
    }

    fn record_i128(&mut self, field: &Field, value: i128) {
        self.push(field, &value.to_string());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.push(field, &inspect_float(value));
    }
}

#[cfg(test)]
mod tests;
