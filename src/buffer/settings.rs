//! What a buffer is told: limits, flush rules, where its files are, when they are synced.

use std::path::PathBuf;
use std::time::Duration;

use super::FlushRules;

/// `chunk_limit_size` of a memory buffer (Fluentd's default).
pub const MEMORY_CHUNK_LIMIT_BYTES: u64 = 8 << 20;
/// `total_limit_size` of a memory buffer (Fluentd's default).
pub const MEMORY_TOTAL_LIMIT_BYTES: u64 = 512 << 20;
/// `chunk_limit_size` of a file buffer (Fluentd's default).
pub const FILE_CHUNK_LIMIT_BYTES: u64 = 256 << 20;
/// `total_limit_size` of a file buffer (Fluentd's default).
pub const FILE_TOTAL_LIMIT_BYTES: u64 = 64 << 30;
/// `chunk_full_threshold` (Fluentd's default): a chunk this full is queued at once.
pub const CHUNK_FULL_THRESHOLD: f64 = 0.95;
/// Most bytes that the backup directory of one buffer may hold; the oldest backups give way.
pub const BACKUP_LIMIT_BYTES: u64 = 1 << 30;
/// How long `overflow_action block` holds an arrival back before it is refused: an old Fluentd's
/// flush thread would otherwise block for ever.
pub const BLOCK_LIMIT: Duration = Duration::from_secs(5);

/// Everything that one buffer needs to know. Limits count event bytes, not file bytes.
#[derive(Clone, Debug)]
pub struct BufferConfig {
    /// The output's `@id` (or generated id); stored in chunk files and named in log lines.
    pub plugin_id: String,
    /// Memory or files.
    pub kind: BufferKind,
    /// What an entry of its chunks holds; stored in chunk files. A path with chunks of the other form is refused.
    pub entry_form: EntryForm,
    /// `chunk_limit_size`: a chunk never holds more.
    pub chunk_limit_bytes: u64,
    /// `chunk_limit_records`: a chunk never holds more events.
    pub chunk_limit_records: Option<usize>,
    /// `chunk_full_threshold`: the share of either limit at which a chunk is queued.
    pub chunk_full_threshold: f64,
    /// `total_limit_size`: at or above this, arrivals are refused; so it is passed by one arrival at most.
    pub total_limit_bytes: u64,
    /// `queued_chunks_limit_size`: while so many are queued, chunks are not queued for their age.
    pub queued_chunks_limit: Option<usize>,
    /// What happens at `total_limit_bytes`.
    pub overflow_action: OverflowAction,
    /// How long `overflow_action block` waits for space.
    pub block_limit: Duration,
    /// When a staged chunk is queued.
    pub flush: FlushRules,
    /// Where chunks go that cannot be delivered.
    pub backup: BackupConfig,
}

impl BufferConfig {
    /// A memory buffer with Fluentd's defaults.
    pub fn memory(plugin_id: &str) -> Self {
        Self {
            plugin_id: plugin_id.to_owned(),
            kind: BufferKind::Memory,
            entry_form: EntryForm::default(),
            chunk_limit_bytes: MEMORY_CHUNK_LIMIT_BYTES,
            chunk_limit_records: None,
            chunk_full_threshold: CHUNK_FULL_THRESHOLD,
            total_limit_bytes: MEMORY_TOTAL_LIMIT_BYTES,
            queued_chunks_limit: Some(1),
            overflow_action: OverflowAction::ThrowException,
            block_limit: BLOCK_LIMIT,
            flush: FlushRules::default(),
            backup: BackupConfig::default(),
        }
    }

    /// A file buffer with Fluentd's defaults and `fsync ack`.
    pub fn file(plugin_id: &str, path: impl Into<PathBuf>) -> Self {
        Self {
            kind: BufferKind::File(FileConfig::new(path)),
            chunk_limit_bytes: FILE_CHUNK_LIMIT_BYTES,
            total_limit_bytes: FILE_TOTAL_LIMIT_BYTES,
            ..Self::memory(plugin_id)
        }
    }
}

/// What one entry of a chunk holds. Bytes of one form never pass for the other: a receiver of the forward protocol would
/// take the tag for a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EntryForm {
    /// `[time, record]`, as the forward protocol sends it.
    #[default]
    Events,
    /// `[tag, time, record]`, for outputs that show the tag without having it as a chunk key.
    TaggedEvents,
}

impl EntryForm {
    /// As error texts and backups name it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Events => "[time, record]",
            Self::TaggedEvents => "[tag, time, record]",
        }
    }
}

/// Where a buffer keeps its chunks.
#[derive(Clone, Debug)]
pub enum BufferKind {
    /// In memory; lost with the process.
    Memory,
    /// In files.
    File(FileConfig),
}

/// The files of a buffer.
#[derive(Clone, Debug)]
pub struct FileConfig {
    /// `path`, in any of Fluentd's forms: a directory, or `DIRECTORY/PREFIX.*.SUFFIX`, of which the directory and the
    /// prefix are used.
    pub path: PathBuf,
    /// When appended bytes are brought to stable storage.
    pub fsync: Fsync,
    /// Permission bits of new files (before the umask); 0644 when silent.
    pub file_permission: u32,
    /// Permission bits of new directories (before the umask); 0755 when silent.
    pub dir_permission: u32,
}

impl FileConfig {
    /// Files under `path` with Fluentd's permissions and `fsync ack`.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), fsync: Fsync::Ack, file_permission: 0o644, dir_permission: 0o755 }
    }
}

/// When appended bytes are brought to stable storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fsync {
    /// Before the arrival is confirmed; grouped.
    Ack,
    /// Confirmed after the write; synced at least so often.
    Interval(Duration),
    /// Confirmed after the write; never synced (what Fluentd does).
    Off,
}

/// What happens to an arrival when the buffer is at `total_limit_size`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OverflowAction {
    /// It is refused.
    ThrowException,
    /// It waits for space, `block_limit` at most, then it is refused.
    Block,
    /// The oldest queued chunks are dropped, counted and logged.
    DropOldestChunk,
}

/// Where chunks go that cannot be delivered.
#[derive(Clone, Debug)]
pub struct BackupConfig {
    /// The directory; `None`: beside the file buffer (`PATH/PREFIX.backup`), nowhere for a memory buffer.
    pub directory: Option<PathBuf>,
    /// Most bytes in it; the oldest backups are deleted (logged, counted) to stay below.
    pub limit_bytes: u64,
    /// `disable_chunk_backup`: such chunks are dropped with a warning.
    pub disabled: bool,
}

impl Default for BackupConfig {
    fn default() -> Self {
        Self { directory: None, limit_bytes: BACKUP_LIMIT_BYTES, disabled: false }
    }
}

/// A buffer could not be opened. Text says what, where, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another live buffer uses the path.
    #[error(
        "buffer path {path} is in use by process {pid}: give each output a path of its own, or stop that process"
    )]
    InUse {
        /// The lock file's directory and prefix.
        path: String,
        /// Process that holds the lock, "unknown" if it did not write its number.
        pid: String,
    },
    /// The path holds chunks of a Fluentd.
    #[error(
        "buffer path {path} holds chunks written by Fluentd ({files}): takeover is not built yet; let Fluentd deliver \
         them, move them away, or choose another path"
    )]
    FluentdChunks {
        /// The directory.
        path: String,
        /// The first names, and how many more.
        files: String,
    },
    /// The path holds chunks whose entries have another form, written by an output of another kind.
    #[error(
        "buffer path {path} holds chunks of {found} entries ({files}), this output stores {wanted}: start the output \
         that wrote them on this path until they are delivered, move them away, or choose another path"
    )]
    OtherForm {
        /// The directory and prefix.
        path: String,
        /// The first names, and how many more.
        files: String,
        /// What the chunks hold.
        found: &'static str,
        /// What this buffer stores.
        wanted: &'static str,
    },
    /// The path cannot be used.
    #[error("cannot {action} {path}: {source}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// On which path.
        path: String,
        /// Why not.
        source: std::io::Error,
    },
    /// A setting makes no sense.
    #[error("{0}")]
    Setting(String),
}

/// What start-up found on disk.
#[derive(Clone, Debug, Default)]
pub struct RecoveryReport {
    /// Chunks that go on collecting.
    pub staged: usize,
    /// Chunks that wait for delivery.
    pub queued: usize,
    /// Events in both, as far as known without reading sealed chunks.
    pub events: u64,
    /// Event bytes in both.
    pub bytes: u64,
    /// Files with damage: the readable part is delivered, the rest was moved to a side file.
    pub damaged_files: Vec<String>,
    /// Bytes that were moved to side files.
    pub damaged_bytes: u64,
    /// Files of a newer version of the format, left alone.
    pub newer_files: Vec<String>,
    /// Files that are not ours, left alone.
    pub unknown_files: Vec<String>,
    /// Frames that were put back from a journal.
    pub replayed_frames: u64,
}
