//! How the file store uses journals: when one is begun, synced, given up, retired.

use std::io;
use std::time::Instant;

use super::files::{FileStore, StoreError, SyncRound};
use super::journal::Journal;
use super::{ChunkId, Fsync};

impl FileStore {
    /// Begins a round that will write to at most so many files. Many are journaled: one sync instead of one for each.
    pub(super) fn begin_round(&mut self, files: usize) -> Result<(), StoreError> {
        self.journaling = self.fsync == Fsync::Ack && files > self.journal_above_files;
        if !self.journaling {
            return Ok(());
        }
        if let Some(full) = self.journal.take_if(|journal| journal.is_full()) {
            self.retired.push(full);
        }
        if self.journal.is_none() {
            let number = self.next_journal;
            self.next_journal = self.next_journal.wrapping_add(1);
            let created = Journal::create(self.storage.as_ref(), &self.places, number);
            self.journal =
                Some(created.map_err(|error| self.journal_error("create journal", number, error))?);
            self.directory_dirty = true;
        }
        Ok(())
    }

    fn journal_error(&self, action: &'static str, number: u64, source: io::Error) -> StoreError {
        StoreError { action, path: self.places.journal(number).display().to_string(), source, chunk: None }
    }

    /// After a failed write or sync a journal is not used again; what it holds safely stays until it is retired.
    pub(super) fn give_up_journal(&mut self, action: &'static str, source: io::Error) -> StoreError {
        let number = self.journal.as_ref().map_or(0, Journal::number);
        self.retired.extend(self.journal.take());
        self.journaling = false;
        self.journal_error(action, number, source)
    }

    pub(super) fn sync_journal(&mut self) -> Result<SyncRound, StoreError> {
        let started = Instant::now();
        self.journaling = false;
        if let Some(Err(error)) = self.journal.as_mut().map(Journal::sync) {
            return Err(self.give_up_journal("sync journal", error));
        }
        // The entry of a new journal; entries of new chunk files come along.
        self.sync_directory()?;
        // Their files are synced when the journal is retired.
        let files = self.dirty.len();
        self.dirty.clear();
        Ok(SyncRound { files, took: started.elapsed() })
    }

    /// Syncs the chunk files of retired journals one by one and deletes those journals. With `all`, the one in use is
    /// retired first. What fails is tried again at the next call.
    pub(super) fn retire_journals(&mut self, all: bool) -> Result<(), StoreError> {
        let empty =
            self.journal.as_ref().is_some_and(|journal| journal.is_worn() && journal.chunks.is_empty());
        if all || empty {
            self.retired.extend(self.journal.take());
        }
        let mut result = Ok(());
        for mut journal in std::mem::take(&mut self.retired) {
            let number = journal.number();
            match self.retire(&mut journal) {
                Ok(true) => {}
                Ok(false) => self.retired.push(journal),
                Err(error) => {
                    self.retired.push(journal);
                    result = Err(self.journal_error("retire journal", number, error));
                }
            }
        }
        result
    }

    /// Whether a journal waits for [`Self::retire_journals`].
    pub(super) fn has_retired_journals(&self) -> bool {
        !self.retired.is_empty()
            || self.journal.as_ref().is_some_and(|journal| journal.is_worn() && journal.chunks.is_empty())
    }

    /// `false`: it must stay for now.
    fn retire(&mut self, journal: &mut Journal) -> io::Result<bool> {
        let mut failed = None;
        let mut ids: Vec<ChunkId> = journal.chunks.iter().copied().collect();
        ids.sort_unstable();
        for id in ids {
            let synced = match self.open.get(id) {
                Some(file) => file.sync_data(),
                None => self.reopen(id).and_then(|mut file| file.sync_data()),
            };
            journal.chunks.remove(&id);
            if let Err(error) = synced {
                // A second sync might succeed without the lost pages: this journal is now their only safe place.
                self.open.remove(id);
                journal.stuck.insert(id);
                failed = Some(error);
            }
        }
        match failed {
            Some(error) => return Err(error),
            None if !journal.stuck.is_empty() => return Ok(false),
            None => {}
        }
        self.storage.sync_dir(&self.places.directory)?;
        self.directory_dirty = false;
        self.storage.unlink(&self.places.journal(journal.number()))?;
        // Gone for good before a chunk of it is deleted, or a power failure would bring the chunk back.
        self.storage.sync_dir(&self.places.directory)?;
        Ok(true)
    }

    /// A chunk is done: no journal may bring it back.
    pub(super) fn forget_in_journals(&mut self, id: ChunkId) {
        for journal in self.journal.iter_mut().chain(&mut self.retired) {
            // A note that cannot be written costs a repeat after a crash, nothing else.
            let _ = journal.done(id);
        }
    }

    /// A chunk's file is moved away: it is not synced any more. A replay may bring it back, and better so.
    pub(super) fn forget(&mut self, id: ChunkId) {
        self.open.remove(id);
        self.dirty.remove(&id);
        for journal in self.journal.iter_mut().chain(&mut self.retired) {
            journal.chunks.remove(&id);
            journal.stuck.remove(&id);
        }
    }
}
