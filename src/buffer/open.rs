//! Opening a buffer: directory, lock, refusal of Fluentd's chunks, recovery, thread.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use super::engine::{Engine, Now};
use super::files::FileStore;
use super::format;
use super::handle::BufferHandle;
use super::limits::ChunkLimits;
use super::places::{Name, Places};
use super::queue::Queue;
use super::recovery::{self, Recovered};
use super::storage::{DiskStorage, Entry, LockError, PathKind, Storage, create_directories};
use super::{
    BufferConfig, BufferKind, EntryForm, FileConfig, Fsync, OpenError, RecoveryReport, journal, thread,
};

/// How many names of files an error lists.
const NAMES_SHOWN: usize = 3;

/// Opens a buffer and starts its thread. Blocks while start-up reads unsealed chunks.
pub fn open(config: BufferConfig) -> Result<(BufferHandle, RecoveryReport), OpenError> {
    let epoch = Instant::now();
    let storage: Arc<dyn Storage> = match &config.kind {
        BufferKind::File(file) => Arc::new(DiskStorage {
            file_permission: file.file_permission,
            dir_permission: file.dir_permission,
        }),
        BufferKind::Memory => Arc::new(DiskStorage { file_permission: 0o644, dir_permission: 0o755 }),
    };
    let now = Now { wall: SystemTime::now(), monotonic: Duration::ZERO };
    let (engine, report) = open_engine(config, storage, now)?;
    let link = thread::start(engine, epoch).map_err(|source| OpenError::Io {
        action: "start the thread of",
        path: "the buffer".into(),
        source,
    })?;
    Ok((BufferHandle { link: Arc::new(link) }, report))
}

/// Everything but the thread.
pub(super) fn open_engine(
    config: BufferConfig,
    storage: Arc<dyn Storage>,
    now: Now,
) -> Result<(Engine, RecoveryReport), OpenError> {
    check(&config)?;
    let queue = Arc::new(Queue::default());
    let BufferKind::File(file) = config.kind.clone() else {
        let engine = Engine::new(Arc::new(config), None, queue);
        return Ok((engine, RecoveryReport::default()));
    };
    let (mut files, mut entries) = open_directory(&file, storage)?;
    let replayed = journal::replay(files.storage.as_ref(), &files.places, &entries);
    files.next_journal = replayed.next_number;
    if replayed.next_number > 0 {
        let directory = &files.places.directory;
        entries = files.storage.list(directory).map_err(|error| io_error("list", directory, error))?;
    }
    refuse_other_form(&files, &entries, config.entry_form)?;
    let mut recovered = recovery::recover(&mut files, entries, &ChunkLimits::new(&config), now);
    recovered.report.replayed_frames = replayed.frames;
    recovered.report.damaged_files.extend(replayed.failed);
    if file.fsync != Fsync::Off {
        // A killed process may have left entries that were never synced; what is appended next must not depend on them.
        let directory = &files.places.directory;
        files.storage.sync_dir(directory).map_err(|error| io_error("sync directory", directory, error))?;
    }
    let mut engine = Engine::new(Arc::new(config), Some(files), queue);
    let report = engine.adopt(recovered);
    Ok((engine, report))
}

fn check(config: &BufferConfig) -> Result<(), OpenError> {
    let setting = |text: String| Err(OpenError::Setting(text));
    if config.chunk_limit_bytes == 0 {
        return setting("chunk_limit_size must be above 0".into());
    }
    if config.total_limit_bytes == 0 {
        return setting("total_limit_size must be above 0".into());
    }
    if !(config.chunk_full_threshold > 0.0 && config.chunk_full_threshold <= 1.0) {
        let got = config.chunk_full_threshold;
        return setting(format!("chunk_full_threshold must be above 0 and at most 1, got {got}"));
    }
    Ok(())
}

fn io_error(action: &'static str, path: &Path, source: io::Error) -> OpenError {
    OpenError::Io { action, path: path.display().to_string(), source }
}

fn open_directory(
    file: &FileConfig,
    storage: Arc<dyn Storage>,
) -> Result<(FileStore, Vec<Entry>), OpenError> {
    let kind = storage.kind(&file.path).map_err(|error| io_error("look at", &file.path, error))?;
    let places = Places::new(&file.path, kind == PathKind::File);
    let directory = places.directory.clone();
    create_directories(storage.as_ref(), &directory)
        .map_err(|error| io_error("create buffer directory", &directory, error))?;
    let lock = storage.lock(&places.lock()).map_err(|error| match error {
        LockError::Held(pid) => OpenError::InUse { path: places.shown(), pid },
        LockError::Io(source) => io_error("lock", &places.lock(), source),
    })?;
    let entries = storage.list(&directory).map_err(|error| io_error("list", &directory, error))?;
    refuse_fluentd(storage.as_ref(), &places, &entries)?;
    Ok((FileStore::new(storage, places, file.fsync, lock), entries))
}

/// Until takeover is built, chunks of a Fluentd must not be passed over in silence.
fn refuse_fluentd(storage: &dyn Storage, places: &Places, entries: &[Entry]) -> Result<(), OpenError> {
    let mut names: Vec<String> = Vec::new();
    for entry in entries {
        if places.read_name(&entry.name) == Name::Fluentd && !entry.is_dir {
            names.push(entry.name.clone());
        }
        // With several workers Fluentd has a directory for each.
        if entry.is_dir && entry.name.starts_with("worker") {
            let directory = places.directory.join(&entry.name);
            let inside = storage.list(&directory).map_err(|error| io_error("list", &directory, error))?;
            let chunks = inside.iter().filter(|inner| places.read_name(&inner.name) == Name::Fluentd);
            names.extend(chunks.map(|inner| format!("{}/{}", entry.name, inner.name)));
        }
    }
    if names.is_empty() {
        return Ok(());
    }
    Err(OpenError::FluentdChunks { path: places.shown(), files: list_names(names) })
}

/// Chunks of an output of another kind must not be delivered as what they are not. Runs before recovery changes anything.
fn refuse_other_form(files: &FileStore, entries: &[Entry], wanted: EntryForm) -> Result<(), OpenError> {
    let mut names = Vec::new();
    let mut found = wanted;
    for entry in entries {
        let Name::Chunk(state, id) = files.places.read_name(&entry.name) else { continue };
        // What cannot be read, or is of a newer version, is named by recovery.
        let head = recovery::read_head(files.storage.as_ref(), &files.places, state, id).unwrap_or_default();
        if let Some(head) = head.filter(|head| head.form != wanted) {
            found = head.form;
            names.push(entry.name.clone());
        }
    }
    if names.is_empty() {
        return Ok(());
    }
    let (path, files) = (files.places.shown(), list_names(names));
    Err(OpenError::OtherForm { path, files, found: found.as_str(), wanted: wanted.as_str() })
}

/// The first names, and how many more.
fn list_names(mut names: Vec<String>) -> String {
    names.sort();
    let more = names.len().saturating_sub(NAMES_SHOWN);
    names.truncate(NAMES_SHOWN);
    let mut text = names.join(", ");
    if more > 0 {
        text.push_str(&format!(" and {more} more"));
    }
    text
}

impl Engine {
    /// Takes over what start-up found.
    fn adopt(&mut self, recovered: Recovered) -> RecoveryReport {
        for staged in recovered.staged {
            self.stage_bytes += staged.stored.bytes;
            self.stage.insert(staged.key.clone(), staged);
        }
        let mut state = self.queue.lock();
        for queued in recovered.queued {
            state.push(queued);
        }
        drop(state);
        self.reporter.figures.damaged_bytes += recovered.report.damaged_bytes;
        self.publish_figures(true);
        for (what, names) in
            [("unknown", &recovered.report.unknown_files), ("newer", &recovered.report.newer_files)]
        {
            if !names.is_empty() {
                let shown = names.iter().take(NAMES_SHOWN).cloned().collect::<Vec<_>>().join(", ");
                tracing::warn!(
                    plugin_id = %self.config.plugin_id,
                    files = names.len(),
                    format_version = format::VERSION,
                    "{what} files in the buffer directory are left alone: {shown}"
                );
            }
        }
        recovered.report
    }
}
