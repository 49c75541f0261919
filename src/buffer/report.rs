//! What the buffer says: log lines, folded where a sick disk would repeat them, and the figures behind them.

use std::path::Path;
use std::time::Duration;

use super::chunk::Queued;
use super::files::{StoreError, SyncRound};
use super::places::Places;
use crate::telemetry::rate::Limited;

/// A sync round above this is a warning that names the disk.
pub const SLOW_SYNC: Duration = Duration::from_millis(200);
/// Most lines of one kind per minute.
const LINES_PER_MINUTE: u32 = 3;

/// Counters that only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskFigures {
    /// Sync rounds.
    pub sync_rounds: u64,
    /// Files synced in them.
    pub synced_files: u64,
    /// Sync rounds above 200 ms.
    pub slow_sync_rounds: u64,
    /// Milliseconds in sync rounds.
    pub sync_ms: u64,
    /// Rounds that a disk error undid.
    pub storage_errors: u64,
    /// Chunk files whose sync failed.
    pub failed_syncs: u64,
    /// Chunks that went to the backup directory.
    pub chunks_set_aside: u64,
    /// Chunks that were dropped because no backup was possible or wanted.
    pub chunks_discarded: u64,
    /// Bytes of chunk files that could not be read and went to side files.
    pub damaged_bytes: u64,
}

/// The voice of one buffer.
#[derive(Debug)]
pub(super) struct Reporter {
    plugin_id: String,
    pub(super) figures: DiskFigures,
    slow: Limited,
    failed: Limited,
    dropped: Limited,
    others: Limited,
}

impl Reporter {
    pub(super) fn new(plugin_id: &str) -> Self {
        Self {
            plugin_id: plugin_id.to_owned(),
            figures: DiskFigures::default(),
            slow: Limited::per_minute(LINES_PER_MINUTE),
            failed: Limited::per_minute(LINES_PER_MINUTE),
            dropped: Limited::per_minute(LINES_PER_MINUTE),
            others: Limited::per_minute(LINES_PER_MINUTE),
        }
    }

    pub(super) fn synced(&mut self, round: SyncRound, places: &Places) {
        if round.files == 0 {
            return;
        }
        self.figures.sync_rounds += 1;
        self.figures.synced_files += round.files as u64;
        self.figures.sync_ms += u64::try_from(round.took.as_millis()).unwrap_or(u64::MAX);
        if round.took < SLOW_SYNC {
            return;
        }
        self.figures.slow_sync_rounds += 1;
        if let Some(repeated) = self.slow.admit() {
            tracing::warn!(
                plugin_id = %self.plugin_id,
                path = %places.shown(),
                files = round.files,
                took_ms = round.took.as_millis() as u64,
                repeated,
                "disk is slow to sync buffer chunks"
            );
        }
    }

    pub(super) fn storage_failed(&mut self, error: &StoreError) {
        self.figures.storage_errors += 1;
        if let Some(repeated) = self.failed.admit() {
            tracing::error!(
                plugin_id = %self.plugin_id,
                error = %error,
                repeated,
                "failed to write data into buffer, senders are refused until the disk takes data again"
            );
        }
    }

    pub(super) fn sync_failed(&mut self, error: &StoreError) {
        self.figures.failed_syncs += 1;
        if let Some(repeated) = self.failed.admit() {
            tracing::error!(
                plugin_id = %self.plugin_id,
                error = %error,
                repeated,
                "disk failed to sync a buffer chunk, its file takes nothing more"
            );
        }
    }

    pub(super) fn dropped_oldest(&mut self, chunk: &Queued) {
        if let Some(repeated) = self.dropped.admit() {
            tracing::warn!(
                plugin_id = %self.plugin_id,
                chunk_id = %chunk.id,
                events = chunk.totals.events,
                repeated,
                "dropping oldest chunk to make space after buffer overflow"
            );
        }
    }

    pub(super) fn unlink_failed(&mut self, path: &Path, error: &std::io::Error) {
        if let Some(repeated) = self.others.admit() {
            tracing::error!(
                plugin_id = %self.plugin_id,
                path = %path.display(),
                error = %error,
                repeated,
                "cannot delete a chunk that is done, it will be sent again after a restart"
            );
        }
    }

    pub(super) fn rename_failed(&mut self, places: &Places, error: &std::io::Error) {
        if let Some(repeated) = self.others.admit() {
            tracing::warn!(
                plugin_id = %self.plugin_id,
                path = %places.shown(),
                error = %error,
                repeated,
                "cannot rename a chunk to its queued name, trying again"
            );
        }
    }
}
