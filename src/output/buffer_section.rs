//! `<buffer>`: one section shared by all buffered outputs. Text -> the settings of the buffer and of its runner.
//!
//! ```text
//! <buffer tag,time>
//!   @type file
//!   path /var/log/tributary/buffer/app
//!   timekey 1h
//!   flush_mode interval
//!   flush_interval 1s
//!   fsync ack
//! </buffer>
//! ```

mod flat;
mod keys;

use std::path::PathBuf;
use std::time::Duration;

pub use flat::refuse_flat;

use super::Buffering;
use super::retry::{RetryKind, RetryPolicy};
use super::runner::RunnerConfig;
use crate::buffer::{
    BufferConfig, BufferKind, ChunkKeys, FLUSH_INTERVAL, FileConfig, FlushMode, FlushRules, Fsync,
    OverflowAction, Splitter, Timekey, TimekeyFlush,
};
use crate::config::{Diagnostics, Element, FsyncPolicy, OctalMode, Seconds, SizeBytes, Span, SystemConfig};
use crate::time::Zone;
use crate::{config_enum, params};

config_enum! {
    /// `overflow_action`.
    pub enum OverflowChoice {
        /// Refuse the message.
        ThrowException = "throw_exception",
        /// Hold the input back for a while, then refuse.
        Block = "block",
        /// Make room.
        DropOldestChunk = "drop_oldest_chunk",
    }
}

config_enum! {
    /// `flush_mode`.
    pub enum FlushModeChoice {
        /// Lazy with a time key, else interval.
        Default = "default",
        /// When full, or when the time slot is over.
        Lazy = "lazy",
        /// `flush_interval` after creation.
        Interval = "interval",
        /// After each append.
        Immediate = "immediate",
    }
}

config_enum! {
    /// `retry_type`.
    pub enum RetryType {
        /// Pauses double.
        ExponentialBackoff = "exponential_backoff",
        /// Pauses stay.
        Periodic = "periodic",
    }
}

params! {
    /// How an output keeps events until they are delivered.
    pub struct BufferParams {
        /// Where chunks are kept: memory (lost with the process) or file.
        #[key("@type")] buffer_type: Option<String>,
        /// Directory of a file buffer, or `DIRECTORY/PREFIX.*.SUFFIX` as Fluentd allows.
        path: Option<String>,
        /// Largest chunk: 8m in memory, 256m in files when not written.
        chunk_limit_size: Option<SizeBytes>,
        /// Most events in a chunk.
        chunk_limit_records: Option<usize>,
        /// Share of the limit at which a chunk is queued at once.
        chunk_full_threshold: f64 = "0.95",
        /// At this many staged and queued bytes new data is refused: 512m in memory, 64g in files when not written.
        total_limit_size: Option<SizeBytes>,
        /// If written, total_limit_size is chunk_limit_size times this.
        queue_limit_length: Option<u64>,
        /// While so many chunks are queued, none is queued for its age. flush_thread_count when not written.
        queued_chunks_limit_size: Option<usize>,
        /// Undeliverable chunks are dropped instead of kept in the backup directory.
        disable_chunk_backup: bool = "false",
        /// When appended events are brought to stable storage: `ack` (before the sender is answered), `interval N`
        /// (at least so often), `off` (what Fluentd does). `<system> fsync` when not written.
        fsync: Option<FsyncPolicy>,
        /// Mode of new files. `<system> file_permission`, else 0644 when not written.
        file_permission: Option<OctalMode>,
        /// Mode of new directories. `<system> dir_permission`, else 0755 when not written.
        dir_permission: Option<OctalMode>,
        /// Length of a time slot; needed when `time` is a chunk key.
        timekey: Option<Seconds>,
        /// How long after its end a slot is kept open for late events.
        timekey_wait: Seconds = "600",
        /// Slots are cut in UTC.
        timekey_use_utc: bool = "false",
        /// Zone in which slots are cut: `+09:00` or `Region/City`. Local when not written.
        timekey_zone: Option<String>,
        /// Deliver everything at shutdown: true in memory, false in files when not written.
        flush_at_shutdown: Option<bool>,
        /// When a staged chunk is queued.
        flush_mode: FlushModeChoice = "default",
        /// Age at which a chunk is queued in interval mode.
        flush_interval: Option<Seconds>,
        /// Concurrent flushes. More than 1 gives up order.
        flush_thread_count: usize = "1",
            /// What happens when total_limit_size is reached.
        overflow_action: OverflowChoice = "throw_exception",
        /// Never give up.
        retry_forever: bool = "false",
        /// Give up so long after the first failure.
        retry_timeout: Seconds = "72h",
        /// Give up after so many tries.
        retry_max_times: Option<u32>,
        /// How pauses grow.
        retry_type: RetryType = "exponential_backoff",
        /// First pause.
        retry_wait: Seconds = "1",
        /// Factor between two pauses.
        retry_exponential_backoff_base: f64 = "2",
        /// Longest pause.
        retry_max_interval: Option<Seconds>,
        /// Pauses vary by an eighth, so that many senders do not return together.
        retry_randomize: bool = "true",
    }
    argument keys: String = "";
    alias { "type" => buffer_type }
    inert {
        "flush_thread_interval" => "the stage is looked at as often as flush_interval needs",
        "flush_thread_burst_interval" => "queued chunks are taken as soon as a flush is free",
        "delayed_commit_timeout" => "outputs have deadlines of their own for every step",
        "retry_secondary_threshold" => "there is no secondary output yet",
        "decompression_size_limit" => "chunks are not compressed",
        "path_suffix" => "chunk files always end in .tchunk",
        "calc_num_records" => "chunks know their number of records",
        "chunk_format" => "chunks know their format"
    }
    unbuilt { "compress" unless "text" }
}

/// What an output's `<buffer>` says, resolved.
#[derive(Clone, Debug)]
pub struct BufferSettings {
    /// For the buffer.
    pub buffer: BufferConfig,
    /// For the flush tasks.
    pub runner: RunnerConfig,
    /// Chunk keys in force, and how times map to slots.
    pub splitter: Splitter,
    /// Whether a stop waits for delivery.
    pub flush_at_shutdown: bool,
}

/// What the section is read for.
pub struct BufferContext<'a> {
    /// The output's id.
    pub plugin_id: &'a str,
    /// True if the id was written: `root_dir` paths need that.
    pub has_id: bool,
    /// The path a file buffer takes when none is written.
    pub default_path: Option<String>,
    /// `<system>`.
    pub system: &'a SystemConfig,
    /// `slow_flush_log_threshold`.
    pub slow_flush_threshold: Duration,
}

/// The fault for a plugin that never buffers, in Fluentd's words.
pub fn refuse(section: &Element, plugin: &str, diagnostics: &mut Diagnostics) {
    diagnostics.fault(
        &section.span,
        format!("<buffer> section is configured, but plugin '{plugin}' doesn't support buffering"),
    );
}

/// How an output's events are spread over chunks.
#[derive(Clone, Debug, Default)]
pub struct Chunking {
    /// The chunk keys in force; none without a buffer.
    pub keys: ChunkKeys,
    /// The time slots, when `time` is a key.
    pub timekey: Option<Timekey>,
}

impl Chunking {
    /// The zone of the time slots; that of the machine without them.
    pub fn zone(&self) -> Zone {
        self.timekey.as_ref().map_or_else(Zone::local, |timekey| timekey.zone.clone())
    }
}

/// A `<buffer>` section of which the output may already know how its events are spread.
pub struct BufferSection {
    span: Span,
    params: BufferParams,
    default_type: &'static str,
    chunking: Option<Chunking>,
}

/// Reads `<buffer>` of an output section. `Some(None)`: the output has no buffer. `None`: faults were found.
pub fn open(
    output: &Element,
    buffering: Buffering,
    diagnostics: &mut Diagnostics,
) -> Option<Option<BufferSection>> {
    let sections: Vec<&Element> = output.children_named("buffer").collect();
    if let Some(second) = sections.get(1) {
        diagnostics.fault(&second.span, "'<buffer>' section cannot be written twice or more");
        return None;
    }
    let (default_keys, default_type, default_timekey) = match (buffering, sections.first()) {
        (Buffering::Never, None) | (Buffering::Optional { .. }, None) => return Some(None),
        (Buffering::Never, Some(section)) => {
            refuse(section, output.type_name().unwrap_or_default(), diagnostics);
            return None;
        }
        (Buffering::Optional { default_keys }, Some(_)) => (default_keys, "memory", None),
        (Buffering::Always { default_keys, default_type, default_timekey_seconds }, _) => {
            (default_keys, default_type, default_timekey_seconds)
        }
    };
    let flat;
    let section = match sections.first() {
        Some(section) => *section,
        None => {
            flat = flat::section(output, buffering, diagnostics)?;
            &flat
        }
    };
    let params = BufferParams::from_element(section, diagnostics)?;
    let mut section = BufferSection { span: section.span.clone(), params, default_type, chunking: None };
    section.chunking = section.read_chunking(default_keys, default_timekey, diagnostics);
    Some(Some(section))
}

impl BufferSection {
    /// How events are spread; `None` when faults were found there.
    pub fn chunking(&self) -> Option<&Chunking> {
        self.chunking.as_ref()
    }

    /// The rest of the section. `None`: faults were found.
    pub fn settings(
        &self,
        context: &BufferContext<'_>,
        diagnostics: &mut Diagnostics,
    ) -> Option<BufferSettings> {
        Reader { section: self, params: &self.params, context }.settings(diagnostics)
    }

    fn fault<T>(
        &self,
        diagnostics: &mut Diagnostics,
        message: impl Into<String>,
        expected: &str,
    ) -> Option<T> {
        diagnostics.fault(&self.span, message).expected(expected);
        None
    }

    fn read_chunking(
        &self,
        default_keys: &[&str],
        default_timekey: Option<i64>,
        diagnostics: &mut Diagnostics,
    ) -> Option<Chunking> {
        let written = self.params.keys.trim();
        // An empty argument means the plugin's own keys; `[]` means none.
        let argument = if written.is_empty() { default_keys.join(",") } else { written.to_owned() };
        let keys = match keys::parse(&argument) {
            Ok(keys) => keys,
            Err(error) => return self.fault(diagnostics, error.to_string(), CHUNK_KEYS),
        };
        let timekey = self.timekey(&keys, default_timekey, diagnostics)?;
        Some(Chunking { keys, timekey })
    }

    fn timekey(
        &self,
        keys: &ChunkKeys,
        default_timekey: Option<i64>,
        diagnostics: &mut Diagnostics,
    ) -> Option<Option<Timekey>> {
        if !keys.time {
            return Some(None);
        }
        let written = self.params.timekey.map(|seconds| seconds.0 as i64);
        let Some(unit) = written.or(default_timekey) else {
            return self.fault(
                diagnostics,
                "<buffer ...> argument includes 'time', but timekey is not configured",
                "timekey, for example timekey 1h",
            );
        };
        if unit <= 0 {
            return self.fault(
                diagnostics,
                format!("timekey should be greater than 0, got {unit}"),
                "1s or more",
            );
        }
        let zone = match self.params.timekey_zone.as_deref() {
            _ if self.params.timekey_use_utc => Zone::Fixed(0),
            None => Zone::local(),
            Some(text) => match Zone::parse(text) {
                Ok(zone) => zone,
                Err(error) => {
                    return self.fault(diagnostics, format!("timekey_zone: {error}"), ZONES);
                }
            },
        };
        Some(Some(Timekey { unit_seconds: unit, zone }))
    }
}

struct Reader<'a> {
    section: &'a BufferSection,
    params: &'a BufferParams,
    context: &'a BufferContext<'a>,
}

impl Reader<'_> {
    fn settings(&self, diagnostics: &mut Diagnostics) -> Option<BufferSettings> {
        let kind = self.params.buffer_type.as_deref().unwrap_or(self.section.default_type);
        let buffer = match kind {
            "memory" => Some(BufferConfig::memory(self.context.plugin_id)),
            "file" => self.file(diagnostics),
            "file_single" => {
                self.section.fault(diagnostics, "buffer type 'file_single' is not built yet", "memory, file")
            }
            other => {
                self.section.fault(diagnostics, format!("Unknown buffer plugin '{other}'"), "memory, file")
            }
        };
        let (Chunking { keys, timekey }, mut buffer) = (self.section.chunking.clone()?, buffer?);
        buffer.flush = self.flush_rules(timekey.as_ref(), diagnostics)?;
        let splitter = match Splitter::new(keys, timekey) {
            Ok(splitter) => splitter,
            Err(error) => return self.section.fault(diagnostics, error.to_string(), CHUNK_KEYS),
        };
        self.limits(&mut buffer);
        for (name, zero) in [
            ("chunk_limit_size", buffer.chunk_limit_bytes == 0),
            ("total_limit_size", buffer.total_limit_bytes == 0),
            ("chunk_limit_records", buffer.chunk_limit_records == Some(0)),
        ] {
            if zero {
                return self.section.fault(
                    diagnostics,
                    format!("'{name}' parameter: 0 leaves no room for any event"),
                    "1 or more",
                );
            }
        }
        let persistent = matches!(buffer.kind, BufferKind::File(_));
        Some(BufferSettings {
            buffer,
            runner: RunnerConfig {
                flush_thread_count: self.params.flush_thread_count,
                retry: self.retry(),
                slow_flush_threshold: self.context.slow_flush_threshold,
            },
            splitter,
            flush_at_shutdown: self.params.flush_at_shutdown.unwrap_or(!persistent),
        })
    }

    fn file(&self, diagnostics: &mut Diagnostics) -> Option<BufferConfig> {
        let system = self.context.system;
        let from_root = || {
            let root = system.root_dir.as_ref().filter(|_| self.context.has_id)?;
            Some(PathBuf::from(root).join("worker0").join(self.context.plugin_id).join("buffer"))
        };
        let path = self.params.path.clone().map(PathBuf::from).or_else(from_root);
        let Some(path) = path.or_else(|| self.context.default_path.clone().map(PathBuf::from)) else {
            return self.section.fault(
                diagnostics,
                "'path' parameter is required",
                "a path in <buffer>, or <system> root_dir together with @id",
            );
        };
        let mut file = FileConfig::new(path);
        file.fsync = self.fsync();
        if let Some(mode) = self.params.file_permission.as_ref().or(system.file_permission.as_ref()) {
            file.file_permission = mode.0;
        }
        if let Some(mode) = self.params.dir_permission.as_ref().or(system.dir_permission.as_ref()) {
            file.dir_permission = mode.0;
        }
        let mut config = BufferConfig::file(self.context.plugin_id, "");
        config.kind = BufferKind::File(file);
        Some(config)
    }

    fn fsync(&self) -> Fsync {
        match self.params.fsync.unwrap_or(self.context.system.fsync) {
            FsyncPolicy::Ack => Fsync::Ack,
            FsyncPolicy::Interval(seconds) => Fsync::Interval(seconds.duration()),
            FsyncPolicy::Off => Fsync::Off,
        }
    }

    fn flush_rules(&self, timekey: Option<&Timekey>, diagnostics: &mut Diagnostics) -> Option<FlushRules> {
        let params = self.params;
        let mode = match params.flush_mode {
            FlushModeChoice::Default if timekey.is_some() => FlushMode::Lazy,
            FlushModeChoice::Default | FlushModeChoice::Interval => FlushMode::Interval,
            FlushModeChoice::Lazy => FlushMode::Lazy,
            FlushModeChoice::Immediate => FlushMode::Immediate,
        };
        if params.flush_interval.is_some() && mode != FlushMode::Interval {
            let message =
                "'flush_interval' can't be specified when 'flush_mode' is not 'interval' explicitly: ";
            if params.flush_mode == FlushModeChoice::Default {
                diagnostics.warning(&self.section.span, format!("{message}'flush_interval' is ignored"));
            } else {
                let mode = params.flush_mode.as_str();
                return self.section.fault(diagnostics, format!("{message}'{mode}'"), "flush_mode interval");
            }
        }
        Some(FlushRules {
            mode,
            interval: params.flush_interval.map_or(FLUSH_INTERVAL, Seconds::duration),
            timekey: timekey.map(|timekey| TimekeyFlush {
                unit_seconds: timekey.unit_seconds,
                wait_seconds: params.timekey_wait.0 as i64,
            }),
        })
    }

    fn limits(&self, buffer: &mut BufferConfig) {
        let params = self.params;
        if let Some(limit) = params.chunk_limit_size {
            buffer.chunk_limit_bytes = limit.0;
        }
        buffer.chunk_limit_records = params.chunk_limit_records;
        buffer.chunk_full_threshold = params.chunk_full_threshold;
        if let Some(limit) = params.total_limit_size {
            buffer.total_limit_bytes = limit.0;
        }
        if let Some(length) = params.queue_limit_length {
            buffer.total_limit_bytes = buffer.chunk_limit_bytes.saturating_mul(length);
        }
        if let (BufferKind::Memory, Some(limit)) = (&buffer.kind, self.context.system.memory_limit) {
            buffer.total_limit_bytes = buffer.total_limit_bytes.min(limit.0);
        }
        buffer.queued_chunks_limit =
            Some(params.queued_chunks_limit_size.unwrap_or(params.flush_thread_count.max(1)));
        buffer.overflow_action = match params.overflow_action {
            OverflowChoice::ThrowException => OverflowAction::ThrowException,
            OverflowChoice::Block => OverflowAction::Block,
            OverflowChoice::DropOldestChunk => OverflowAction::DropOldestChunk,
        };
        buffer.backup.disabled = params.disable_chunk_backup;
    }

    fn retry(&self) -> RetryPolicy {
        let params = self.params;
        RetryPolicy {
            forever: params.retry_forever,
            timeout: params.retry_timeout.duration(),
            max_times: params.retry_max_times,
            kind: match params.retry_type {
                RetryType::ExponentialBackoff => {
                    RetryKind::ExponentialBackoff { base: params.retry_exponential_backoff_base }
                }
                RetryType::Periodic => RetryKind::Periodic,
            },
            wait: params.retry_wait.duration(),
            max_interval: params.retry_max_interval.map(Seconds::duration),
            randomize: params.retry_randomize,
        }
    }
}

/// What the argument of `<buffer>` may hold.
const CHUNK_KEYS: &str = "chunk keys such as tag, time, a field name or $.a.b";

/// What `timekey_zone` may hold.
const ZONES: &str = "+09:00, +0900, +09 or Region/City";

#[cfg(test)]
mod tests {
    use super::*;

    fn total_limit(kind: &str, written: Option<&str>, memory_limit: Option<u64>) -> u64 {
        let mut section = Element::new("buffer", "").with_param("@type", kind).with_param("path", "/nowhere");
        if let Some(limit) = written {
            section = section.with_param("total_limit_size", limit);
        }
        let output = Element::new("match", "**").with_child(section);
        let system = SystemConfig { memory_limit: memory_limit.map(SizeBytes), ..SystemConfig::default() };
        let context = BufferContext {
            plugin_id: "out",
            has_id: true,
            default_path: None,
            system: &system,
            slow_flush_threshold: Duration::from_secs(20),
        };
        let mut diagnostics = Diagnostics::new();
        let buffering = Buffering::Optional { default_keys: &[] };
        let section = open(&output, buffering, &mut diagnostics).flatten().expect("section");
        section.settings(&context, &mut diagnostics).expect("settings").buffer.total_limit_bytes
    }

    #[test]
    fn a_written_memory_limit_bounds_memory_buffers() {
        assert_eq!(total_limit("memory", None, None), 512 << 20);
        assert_eq!(total_limit("memory", None, Some(64 << 20)), 64 << 20);
        assert_eq!(total_limit("memory", Some("1m"), Some(64 << 20)), 1 << 20);
        assert_eq!(total_limit("memory", Some("1g"), Some(64 << 20)), 64 << 20);
        assert_eq!(total_limit("file", Some("1g"), Some(64 << 20)), 1 << 30);
    }
}
