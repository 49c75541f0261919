//! Station 4. Comes from: filters (streams, already split by chunk keys). Goes to: flush tasks of outputs (chunks).
//!
//! A buffer must not know outputs, sockets or configuration text. All file-system calls stand in `storage.rs`.
//!
//! One thread owns each buffer; the handle talks to it over a bounded channel, so that one append and one sync serve
//! everything that arrived meanwhile.

mod handle;
mod metadata;

pub use handle::{Append, AppendError, BufferHandle, BufferStats, Chunk, ChunkId};
pub use metadata::{ChunkKeys, Metadata};
