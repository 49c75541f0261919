//! What the engine does beside rounds: renames, interval syncs, journals, figures.

use super::Fsync;
use super::chunk::{Queued, QueuedFile};
use super::engine::Engine;
use super::files::FileStore;

impl Engine {
    /// Gives chunks that still wait their queued name. Not at once: one that is taken right away needs none.
    pub(super) fn rename_waiting(&mut self) {
        let Some(files) = &mut self.files else { return };
        let pending: Vec<u64> = {
            let state = self.queue.lock();
            let staged_name = |chunk: &&Queued| chunk.file.is_some_and(|file| !file.renamed);
            state.waiting.values().filter(staged_name).map(|chunk| chunk.order).collect()
        };
        for order in pending {
            // Under the lock, so that nobody takes the chunk while its name changes; taken again for each, so that
            // takers wait for one rename at most.
            let mut state = self.queue.lock();
            let Some(chunk) = state.waiting.get_mut(&order) else { continue };
            match files.rename_to_queued(chunk.id) {
                Ok(()) => chunk.file = Some(QueuedFile { renamed: true }),
                Err(error) => {
                    drop(state);
                    self.reporter.rename_failed(&files.places, &error);
                    return;
                }
            }
        }
    }

    /// Syncs what `fsync interval` has let wait.
    pub(super) fn sync(&mut self) {
        let Some(files) = self.files.as_mut().filter(|files| files.is_dirty()) else { return };
        match files.sync() {
            Ok(round) => self.reporter.synced(round, &files.places),
            Err(error) => self.reporter.storage_failed(&error),
        }
        let failed = files.take_failed();
        self.abandon(failed);
    }

    /// The sync policy; `None` for a memory buffer.
    pub(super) fn fsync(&self) -> Option<Fsync> {
        self.files.as_ref().map(|files| files.fsync)
    }

    /// Whether something written waits for a sync.
    pub(super) fn is_dirty(&self) -> bool {
        self.files.as_ref().is_some_and(FileStore::is_dirty)
    }

    /// The last steps before the thread ends.
    pub(super) fn finish(&mut self) {
        if self.fsync() != Some(Fsync::Off) {
            self.sync();
        }
        self.retire_journals(true);
    }

    /// Deletes journals that are full or no longer needed.
    pub(super) fn retire_journals(&mut self, all: bool) {
        let Some(files) = self.files.as_mut().filter(|files| all || files.has_retired_journals()) else {
            return;
        };
        if let Err(error) = files.retire_journals(all) {
            self.reporter.storage_failed(&error);
        }
    }

    /// Copies the figures to where `stats` finds them; with `ages`, those that cost a walk over the stage.
    pub(super) fn publish_figures(&mut self, ages: bool) {
        let oldest = || self.stage.values().map(|staged| staged.created_at).min();
        let aged = ages.then(|| {
            let timekeys: Vec<i64> =
                self.stage.values().filter_map(|staged| staged.metadata.timekey).collect();
            (oldest(), timekeys)
        });
        let mut state = self.queue.lock();
        let damaged_bytes = state.damaged_bytes;
        let figures = &mut state.figures;
        figures.stage_length = self.stage.len();
        figures.stage_bytes = self.stage_bytes;
        figures.total_limit_bytes = self.config.total_limit_bytes;
        figures.disk = self.reporter.figures;
        figures.disk.damaged_bytes += damaged_bytes;
        if let Some((oldest, timekeys)) = aged {
            figures.oldest = oldest;
            figures.timekeys = timekeys;
        }
    }
}
