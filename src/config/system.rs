//! `<system>`: settings of the whole process.
//!
//! Source: Fluentd `lib/fluent/system_config.rb`; `memory_limit`, `fsync` and `shutdown_timeout` are our own.

use super::element::Element;
use super::error::Diagnostics;
use super::reserved::LogLevel;
use super::types::{FromConfig, OctalMode, Seconds, SizeBytes, TypeError};

/// How many bytes of events may be in transit when `memory_limit` is not written (bounded memory by default).
pub const DEFAULT_MEMORY_LIMIT_BYTES: u64 = 256 * 1024 * 1024;
/// More workers than this are a typing error: one process plays all of them.
const MAX_WORKERS: u32 = 1_024;

/// When a file buffer syncs: `ack`, `interval 1s`, `off`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FsyncPolicy {
    /// Before anything is acknowledged.
    Ack,
    /// At least this often, in the background.
    Interval(Seconds),
    /// Never: what Fluentd does.
    Off,
}

impl FromConfig for FsyncPolicy {
    const TYPE_NAME: &'static str = "fsync policy";

    fn from_config(text: &str, strict: bool) -> Result<Self, TypeError> {
        let wrong = || TypeError::Invalid {
            expected: "ack, off, or interval and a time such as interval 1s".into(),
            got: text.to_owned(),
        };
        let (word, rest) = text.trim().split_once([' ', '\t']).unwrap_or((text.trim(), ""));
        match (word, rest.trim()) {
            ("ack", "") => Ok(Self::Ack),
            ("off", "") => Ok(Self::Off),
            ("interval", time) if time.starts_with(|c: char| c.is_ascii_digit()) => {
                let time = Seconds::from_config(time, strict)?;
                if time.0 > 0.0 { Ok(Self::Interval(time)) } else { Err(wrong()) }
            }
            _ => Err(wrong()),
        }
    }
}

crate::config_enum! {
    /// The form of our own log.
    pub enum LogFormat {
        /// Fluentd's lines.
        Text = "text",
        /// One JSON object a line.
        Json = "json",
    }
}

crate::params! {
    /// Our own log.
    pub struct LogParams {
        /// The file; standard output when not written. `-o` wins.
        path: Option<String>,
        /// Lines as Fluentd writes them, or JSON.
        format: LogFormat = "text",
        /// The time at the start of a line, as for strftime.
        time_format: String = "%Y-%m-%d %H:%M:%S %z",
    }
    unbuilt { "rotate_age", "rotate_size" }
    inert { "forced_stacktrace_level" => "there are no stack traces in the log" }
}

crate::params! {
    /// Settings of the whole process.
    pub struct SystemConfig {
        /// How many workers this process plays.
        workers: u32 = "1",
        /// Folder for the storage and buffers of plugins that have an `@id`.
        root_dir: Option<String>,
        /// Lowest level that is logged; `-v` and `-q` win.
        log_level: Option<LogLevel>,
        /// Whether the configuration is kept out of the log at start.
        suppress_config_dump: Option<bool>,
        /// Whether values that Ruby would read half of are refused.
        strict_config_value: Option<bool>,
        /// Permission of files that are made (octal).
        file_permission: Option<OctalMode>,
        /// Permission of folders that are made (octal).
        dir_permission: Option<OctalMode>,
        /// Folder whose `.conf` files are read after the main file; empty for none.
        config_include_dir: Option<String>,
        /// Bytes of events that may be in transit, default 256 MiB. Where it is written, the total_limit_size of each
        /// memory buffer is at most this, too.
        memory_limit: Option<SizeBytes>,
        /// When file buffers sync: `ack` (before acknowledging), `interval 1s`, `off`.
        fsync: FsyncPolicy = "ack",
        /// How long a shutdown may take before the process ends all the same.
        shutdown_timeout: Seconds = "30s",
        /// Within this time a log line equal to the one before it is left out.
        ignore_repeated_log_interval: Option<Seconds>,
        /// Within this time a log line equal to any one before it is left out.
        ignore_same_log_interval: Option<Seconds>,
        /// Our own log.
        #[section(init)] log: LogParams,
    }
    unbuilt {
        "rpc_endpoint", "umask",
        "enable_get_dump" unless "false" | "no",
        "without_source" unless "false" | "no",
        "with_source_only" unless "false" | "no",
        "enable_msgpack_time_support" unless "false" | "no",
        "<source_only_buffer>", "<counter_server>", "<counter_client>"
    }
    inert {
        "restart_worker_interval" => "one process plays all workers, none is restarted",
        "suppress_repeated_stacktrace" => "there are no stack traces in the log",
        "emit_error_log_interval" => "repeated lines are always folded with a count",
        "log_event_verbose" => "our own log is not an event source",
        "process_name" => "the process keeps its name",
        "disable_shared_socket" => "one process plays all workers, no socket is shared",
        "enable_input_metrics" => "inputs always count",
        "enable_size_metrics" => "sizes are always counted",
        "enable_jit" => "there is no Ruby here",
        "<metrics>" => "metrics live in memory; <source> @type prometheus shows them"
    }
}

impl SystemConfig {
    /// The bytes of events that may be in transit.
    pub fn memory_limit_bytes(&self) -> u64 {
        self.memory_limit.map_or(DEFAULT_MEMORY_LIMIT_BYTES, |limit| limit.0)
    }

    /// Reads the section and checks what goes beyond types.
    pub(crate) fn read(element: &Element, diagnostics: &mut Diagnostics) -> Option<Self> {
        let config = Self::from_element(element, diagnostics)?;
        let span = |key| element.params.iter().find(|p| p.key == key).map_or(&element.span, |p| &p.span);
        if config.workers < 1 || config.workers > MAX_WORKERS {
            let message = format!("invalid number of workers (must be > 0): {}", config.workers);
            diagnostics.fault(span("workers"), message).expected(format!("1 to {MAX_WORKERS}"));
            return None;
        }
        if config.memory_limit == Some(SizeBytes(0)) {
            diagnostics
                .fault(span("memory_limit"), "'memory_limit' parameter: 0 leaves no room for any event");
            return None;
        }
        Some(config)
    }
}

impl Default for SystemConfig {
    /// What holds when no `<system>` is written.
    fn default() -> Self {
        let mut diagnostics = Diagnostics::new();
        match Self::from_element(&Element::new("system", ""), &mut diagnostics) {
            Some(config) => config,
            None => unreachable!("the defaults of <system> are valid: {}", diagnostics.render()),
        }
    }
}
