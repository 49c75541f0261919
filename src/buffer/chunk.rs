//! A chunk's life in memory: its id, the bytes that are kept, what the queue knows about it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::{Bytes, BytesMut};

use super::format::Totals;
use super::{ChunkId, Metadata};

/// Most bytes that file buffers of the whole process keep in memory, so that a chunk normally goes out without being
/// read back.
pub const KEPT_LIMIT_BYTES: u64 = 12 << 20;
/// Parts below this are copied into blocks of the chunk: a small slice would hold a whole read buffer of its socket.
const COPY_BELOW_BYTES: usize = 16 << 10;
/// Largest block for such copies; blocks start small, so that 100,000 tags with a few events each stay cheap.
const BLOCK_LIMIT_BYTES: usize = 64 << 10;
const BLOCK_START_BYTES: usize = 512;

static KEPT_BYTES: AtomicU64 = AtomicU64::new(0);

impl ChunkId {
    /// A new id: microseconds and 76 random bits, laid out as Fluentd's unique id.
    pub fn generate(now: SystemTime) -> Self {
        let micros = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64);
        let mut id = [0; 16];
        id[..8].copy_from_slice(&((micros << 12) | fastrand::u64(0..4096)).to_be_bytes());
        id[8..].copy_from_slice(&fastrand::u64(..).to_be_bytes());
        Self(id)
    }

    /// Reads 32 lower-case hexadecimal digits.
    pub fn parse(text: &str) -> Option<Self> {
        if text.len() != 32
            || !text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
        {
            return None;
        }
        u128::from_str_radix(text, 16).ok().map(|number| Self(number.to_be_bytes()))
    }
}

/// Event bytes of one chunk in memory.
#[derive(Debug, Default)]
pub(super) struct Kept {
    parts: Vec<Bytes>,
    tail: BytesMut,
    bytes: u64,
    /// Whether the bytes count against [`KEPT_LIMIT_BYTES`] (file buffers; memory buffers have their own limit).
    budgeted: bool,
}

impl Kept {
    /// For a memory buffer: everything is kept.
    pub(super) fn unlimited() -> Self {
        Self::default()
    }

    /// For a file buffer: kept while the process's budget lasts.
    pub(super) fn budgeted() -> Self {
        let mut kept = Self::default();
        kept.budgeted = true;
        kept
    }

    /// Adds bytes; `false` when the budget is used up: this chunk must be dropped from memory then, as a part of it
    /// is of no use.
    #[must_use]
    pub(super) fn push(&mut self, bytes: &Bytes) -> bool {
        let len = bytes.len() as u64;
        if self.budgeted && KEPT_BYTES.fetch_add(len, Ordering::Relaxed) + len > KEPT_LIMIT_BYTES {
            KEPT_BYTES.fetch_sub(len, Ordering::Relaxed);
            return false;
        }
        self.bytes += len;
        if bytes.len() >= COPY_BELOW_BYTES {
            self.seal_tail();
            self.parts.push(bytes.clone());
            return true;
        }
        if self.tail.capacity() - self.tail.len() < bytes.len() {
            self.seal_tail();
            let block = usize::try_from(self.bytes).unwrap_or(usize::MAX);
            let block = block.clamp(BLOCK_START_BYTES, BLOCK_LIMIT_BYTES).max(bytes.len());
            self.tail = BytesMut::with_capacity(block);
        }
        self.tail.extend_from_slice(bytes);
        true
    }

    fn seal_tail(&mut self) {
        if !self.tail.is_empty() {
            self.parts.push(self.tail.split().freeze());
        }
    }

    /// All bytes, in order.
    pub(super) fn parts(&mut self) -> Vec<Bytes> {
        self.seal_tail();
        self.parts.clone()
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if self.budgeted {
            KEPT_BYTES.fetch_sub(self.bytes, Ordering::Relaxed);
        }
    }
}

/// A chunk that takes no more events.
#[derive(Debug)]
pub(super) struct Queued {
    pub(super) id: ChunkId,
    pub(super) metadata: Arc<Metadata>,
    pub(super) created_at: SystemTime,
    pub(super) totals: Totals,
    /// `None`: read back from its file.
    pub(super) kept: Option<Kept>,
    /// Whether it is a file, and whether the name says "queued" already.
    pub(super) file: Option<QueuedFile>,
    /// Place in the queue; kept when it is put back, so that it returns to the head.
    pub(super) order: u64,
}

/// The file of a queued chunk.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueuedFile {
    /// The name carries `q`. A chunk that is delivered straight from the stage never gets there.
    pub(super) renamed: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_read_back_and_begin_with_the_time() {
        let now = UNIX_EPOCH + std::time::Duration::from_secs(1_700_000_000);
        let id = ChunkId::generate(now);
        assert_eq!(ChunkId::parse(&id.to_string()), Some(id));
        assert_ne!(ChunkId::generate(now), id);
        let first = u64::from_be_bytes(id.0[..8].try_into().unwrap());
        assert_eq!(first >> 12, 1_700_000_000_000_000);
        for bad in ["", "00", "G0000000000000000000000000000000", "A0000000000000000000000000000000"] {
            assert_eq!(ChunkId::parse(bad), None);
        }
    }

    #[test]
    fn kept_bytes_come_back_in_order() {
        let mut kept = Kept::unlimited();
        let mut expected = Vec::new();
        for size in [1, 700, COPY_BELOW_BYTES, 3, 40_000, COPY_BELOW_BYTES - 1, 100_000] {
            let bytes = Bytes::from(vec![expected.len() as u8; size]);
            expected.extend_from_slice(&bytes);
            assert!(kept.push(&bytes));
        }
        assert_eq!(kept.parts().concat(), expected);
        assert_eq!(kept.parts().concat(), expected);
    }
}
