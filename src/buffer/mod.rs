//! Station 4. Comes from: filters (streams, already split by chunk keys). Goes to: flush tasks of outputs (chunks).
//!
//! A buffer must not know outputs, sockets or configuration text. All file-system calls stand in `storage.rs`.
//!
//! One thread owns each buffer; the handle talks to it over a bounded channel, so that one append and one sync serve
//! everything that arrived meanwhile. From the outside in:
//!
//! * `handle.rs`, `thread.rs`, `queue.rs`: the async door, the thread and its rounds, what takers share with it;
//! * `engine.rs` with `limits.rs` and `flush.rs`: what is admitted, where it goes, when it is queued; no clock, no threads;
//! * `files.rs`, `journal.rs`, `reader.rs`, `aside.rs`: chunk files written, synced, read, set aside;
//! * `format.rs`, `places.rs`: the bytes and the names; `recovery.rs`: what start-up makes of them;
//! * `split.rs`, `metadata.rs`: chunk keys;
//! * `storage.rs`: the disk; `sim.rs`: the disk of the crash test.

mod aside;
mod chunk;
mod engine;
mod files;
mod flush;
mod format;
mod fuzzing;
mod handle;
mod journal;
mod journaling;
mod limits;
mod metadata;
mod mutation;
mod open;
mod places;
mod queue;
mod reader;
mod recovery;
mod report;
mod rescue;
mod settings;
mod split;
mod storage;
mod thread;
mod upkeep;

#[cfg(test)]
mod crash_tests;
#[cfg(test)]
mod damage_tests;
#[cfg(test)]
mod fault_tests;
#[cfg(test)]
mod sim;
#[cfg(test)]
mod tests;

pub use flush::{FLUSH_INTERVAL, FlushMode, FlushRules, TIMEKEY_WAIT_SECONDS, TimekeyFlush};
pub use fuzzing::read_anything;
pub use handle::{Append, AppendError, BufferHandle, BufferStats, Chunk, ChunkId};
pub use metadata::{ChunkKeyError, ChunkKeys, Metadata};
pub use open::open;
pub use report::DiskFigures;
pub use settings::{
    BACKUP_LIMIT_BYTES, BLOCK_LIMIT, BackupConfig, BufferConfig, BufferKind, CHUNK_FULL_THRESHOLD, EntryForm,
    FILE_CHUNK_LIMIT_BYTES, FILE_TOTAL_LIMIT_BYTES, FileConfig, Fsync, MEMORY_CHUNK_LIMIT_BYTES,
    MEMORY_TOTAL_LIMIT_BYTES, OpenError, OverflowAction, RecoveryReport,
};
pub use split::{Splitter, Timekey};
