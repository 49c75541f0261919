//! Chunks that cannot be delivered: copied to the backup directory as plain msgpack events, oldest backups giving way at
//! the size cap; and chunk files that cannot be read, moved to the side directory.

use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};

use bytes::Bytes;

use super::engine::Engine;
use super::files::FileStore;
use super::places::State;
use super::reader::Reader;
use super::storage::{DiskStorage, Storage, create_directories};
use super::{ChunkId, EntryForm, Metadata};

/// Permission bits of the backups of a memory buffer, which has no file settings of its own.
const BACKUP_STORAGE: DiskStorage = DiskStorage { file_permission: 0o644, dir_permission: 0o755 };
/// Suffix of a backup that is being written.
const UNFINISHED: &str = ".unfinished";

impl Engine {
    /// The reader of this buffer's files.
    pub(super) fn reader(&self) -> Option<Reader> {
        let files = self.files.as_ref()?;
        Some(Reader::new(files.storage.clone(), files.places.clone()))
    }

    /// Moves the file of a taken chunk, of which nothing can be read, to the side directory.
    pub(super) fn set_unreadable_aside(&mut self, id: ChunkId) {
        let Some(chunk) = self.queue.lock().remove_taken(id) else { return };
        self.queue.announce();
        let (Some(reader), Some(file)) = (self.reader(), chunk.file) else { return };
        let state = if file.renamed { State::Queued } else { State::Staged };
        let path = reader.places.chunk(state, id);
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        if let Some(files) = &mut self.files {
            files.forget(id);
        }
        match reader.set_file_aside(&name) {
            Ok(to) => tracing::error!(
                plugin_id = %self.config.plugin_id,
                chunk_id = %id,
                events = chunk.totals.events,
                "unreadable chunk file is moved to {}", to.display()
            ),
            Err(error) => tracing::error!(
                plugin_id = %self.config.plugin_id,
                path = %path.display(),
                error = %error,
                "cannot move an unreadable chunk file aside, it stays where it is"
            ),
        }
    }

    /// Copies a taken chunk to the backup directory and deletes it; a failed copy puts it back into the queue.
    pub(super) fn set_aside(&mut self, id: ChunkId, reason: &str) {
        let plugin_id = self.config.plugin_id.clone();
        let Some(directory) = self.backup_directory().filter(|_| !self.config.backup.disabled) else {
            self.reporter.figures.chunks_discarded += 1;
            let events = self.queue.lock().taken.get(&id).map_or(0, |chunk| chunk.totals.events);
            tracing::warn!(%plugin_id, chunk_id = %id, events, reason, "bad chunk is dropped, no backup is configured");
            self.commit(id);
            return;
        };
        match self.copy_to_backup(id, &directory, reason) {
            Ok(Some(path)) => {
                self.reporter.figures.chunks_set_aside += 1;
                tracing::error!(%plugin_id, chunk_id = %id, reason, "bad chunk is moved to {}", path.display());
                self.commit(id);
            }
            Ok(None) => {}
            Err(error) => {
                tracing::error!(
                    %plugin_id, chunk_id = %id, error = %error,
                    "cannot copy a bad chunk to {}, it stays queued", directory.display()
                );
                self.queue.put_back(id);
            }
        }
    }

    fn backup_directory(&self) -> Option<PathBuf> {
        let beside = || self.files.as_ref().map(|files: &FileStore| files.places.backup());
        self.config.backup.directory.clone().or_else(beside)
    }

    /// `None`: no such chunk is taken.
    fn copy_to_backup(&mut self, id: ChunkId, directory: &Path, reason: &str) -> io::Result<Option<PathBuf>> {
        let (kept, metadata, file) = {
            let mut state = self.queue.lock();
            let Some(chunk) = state.taken.get_mut(&id) else { return Ok(None) };
            (chunk.kept.as_mut().map(super::chunk::Kept::parts), chunk.metadata.clone(), chunk.file)
        };
        let payload = match (kept, file, self.reader()) {
            (Some(payload), _, _) => payload,
            (None, Some(file), Some(reader)) => reader.read(id, file.renamed, 0, None)?.payload,
            _ => Vec::new(),
        };
        let storage: &dyn Storage = match &self.files {
            Some(files) => files.storage.as_ref(),
            None => &BACKUP_STORAGE,
        };
        let bytes = payload.iter().map(|part| part.len() as u64).sum();
        create_directories(storage, directory)?;
        make_room(storage, directory, bytes, self.config.backup.limit_bytes)?;
        let about = directory.join(format!("{id}.txt"));
        write_whole(storage, &about, &[Bytes::from(describe(&metadata, self.config.entry_form, reason))])?;
        let path = directory.join(format!("{id}.log"));
        write_whole(storage, &path, &payload)?;
        storage.sync_dir(directory)?;
        Ok(Some(path))
    }
}

/// What the events themselves do not say, for whoever looks at the backup.
fn describe(metadata: &Metadata, form: EntryForm, reason: &str) -> String {
    let tag = metadata.tag.as_ref().map_or("none".to_owned(), ToString::to_string);
    let timekey = metadata.timekey.map_or("none".to_owned(), |seconds| seconds.to_string());
    let variables: Vec<String> =
        metadata.variables.iter().map(|(name, value)| format!("{name}={}", value.to_json())).collect();
    let (variables, form) = (variables.join(" "), form.as_str());
    format!("reason: {reason}\ntag: {tag}\ntimekey: {timekey}\nvariables: {variables}\nentries: {form}\n")
}

/// Writes a file under another name first, so that a backup is whole or absent.
fn write_whole(storage: &dyn Storage, path: &Path, parts: &[Bytes]) -> io::Result<()> {
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(UNFINISHED);
    let unfinished = PathBuf::from(unfinished);
    match storage.unlink(&unfinished) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = storage.create_new(&unfinished)?;
    let mut slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
    file.write_at(&mut slices, 0)?;
    file.sync_data()?;
    storage.rename(&unfinished, path)
}

/// Deletes the oldest backups (their names begin with their time) until `bytes` more fit below the cap.
fn make_room(storage: &dyn Storage, directory: &Path, bytes: u64, limit_bytes: u64) -> io::Result<()> {
    let mut entries = storage.list(directory)?;
    entries.retain(|entry| !entry.is_dir);
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    let mut total: u64 = entries.iter().map(|entry| entry.len).sum();
    for entry in entries {
        if total + bytes <= limit_bytes {
            break;
        }
        storage.unlink(&directory.join(&entry.name))?;
        total -= entry.len;
        tracing::warn!(
            path = %directory.join(&entry.name).display(),
            limit_bytes,
            "backup directory is at its limit, its oldest file is deleted"
        );
    }
    Ok(())
}
