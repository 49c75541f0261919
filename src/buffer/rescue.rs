//! After a failed sync. The kernel may have dropped the pages and marked them clean, so a second sync of the same file may
//! succeed without them. What was not synced is still in memory: it goes to a new chunk file. The old file keeps what was
//! synced before, is cut back to it, takes nothing more and is queued.

use super::engine::{Engine, Now, Staged, new_chunk, write};
use super::files::StoreError;

impl Engine {
    /// Moves this round's parts of chunks whose sync failed to new files and syncs those. An error fails the round.
    pub(super) fn rescue(&mut self, failed: Vec<StoreError>, now: Now) -> Result<(), StoreError> {
        for error in failed {
            self.reporter.sync_failed(&error);
            self.rescue_one(error, now)?;
        }
        Ok(())
    }

    fn rescue_one(&mut self, error: StoreError, now: Now) -> Result<(), StoreError> {
        let Some(id) = error.chunk else { return Err(error) };
        let closing = self.closing.iter().position(|staged| staged.id == id);
        let staged =
            self.touched.iter().find(|key| self.stage.get(key).is_some_and(|staged| staged.id == id));
        let (old, seal) = match (closing, staged.cloned()) {
            (Some(at), _) => (self.closing.get_mut(at), true),
            (None, Some(key)) => (self.stage.get_mut(&key), false),
            (None, None) => return Err(error),
        };
        let (Some(old), Some(files)) = (old, self.files.as_mut()) else { return Err(error) };
        if old.pending.is_empty() {
            // Only its seal did not reach the disk: the name will say it.
            return Err(error);
        }
        let mut fresh = new_chunk(old.key.clone(), (*old.metadata).clone(), true, now);
        fresh.pending = std::mem::take(&mut old.pending);
        fresh.pending_size = std::mem::take(&mut old.pending_size);
        let stored = write(files, &mut fresh, seal, &self.config, now).and_then(|()| files.end_round());
        let failed = files.take_failed();
        if stored.is_err() || !failed.is_empty() {
            files.undo(fresh.id, 0);
            old.pending = fresh.pending;
            old.pending_size = fresh.pending_size;
            return Err(stored.err().unwrap_or(error));
        }
        let mut old: Staged = std::mem::replace(old, fresh);
        // A reader must not find the moved frames in the old file, too.
        files.undo(old.id, old.end);
        old.written = None;
        if old.stored.events > 0 {
            self.orphans.push(old);
        }
        Ok(())
    }

    /// After a failed sync of bytes that were confirmed before (`fsync interval`): the chunk takes nothing more and
    /// leaves as soon as it can, from memory or from what the kernel still shows.
    pub(super) fn abandon(&mut self, failed: Vec<StoreError>) {
        for error in failed {
            self.reporter.sync_failed(&error);
            let staged = self.stage.iter().find(|(_, staged)| Some(staged.id) == error.chunk);
            if let Some(staged) = staged.map(|(key, _)| key.clone()).and_then(|key| self.stage.remove(&key)) {
                self.orphans.push(staged);
            }
        }
        self.publish_orphans();
    }
}
