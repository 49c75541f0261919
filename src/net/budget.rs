//! Bytes of events in transit (`<system> memory_limit`): one bound for the process, shared by all connections.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes that one permit stands for: the semaphore counts in u32, and nobody needs a finer measure.
const UNIT_BYTES: usize = 1024;

/// A share of the memory for events in transit; cheap to clone, all clones draw on the same bytes.
#[derive(Clone, Debug)]
pub struct MemoryBudget {
    permits: Arc<Semaphore>,
    units: u32,
}

/// Bytes taken from a [`MemoryBudget`]; given back when dropped.
#[derive(Debug)]
pub struct Reserved(OwnedSemaphorePermit);

impl Reserved {
    /// How many bytes it stands for, rounded up to KiB.
    pub fn bytes(&self) -> usize {
        self.0.num_permits() * UNIT_BYTES
    }

    /// Takes in another reservation of the same budget.
    pub fn merge(&mut self, other: Reserved) {
        self.0.merge(other.0);
    }
}

impl MemoryBudget {
    /// A budget of so many bytes, rounded up to KiB; at least one KiB.
    pub fn new(limit_bytes: u64) -> Self {
        let units = limit_bytes.div_ceil(UNIT_BYTES as u64).clamp(1, u64::from(u32::MAX >> 3)) as u32;
        Self { permits: Arc::new(Semaphore::new(units as usize)), units }
    }

    /// Takes so many bytes, waiting up to `limit` for others to give theirs back; `None` when the wait was too long.
    ///
    /// More than the whole budget counts as the whole: one message that is larger goes through alone.
    pub async fn reserve(&self, bytes: usize, limit: Duration) -> Option<Reserved> {
        let units = u32::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX).min(self.units);
        match Arc::clone(&self.permits).try_acquire_many_owned(units) {
            Ok(permit) => Some(Reserved(permit)),
            Err(_) => {
                let wait = Arc::clone(&self.permits).acquire_many_owned(units);
                tokio::time::timeout(limit, wait).await.ok()?.ok().map(Reserved)
            }
        }
    }

    /// The whole budget in bytes.
    pub fn limit_bytes(&self) -> u64 {
        u64::from(self.units) * UNIT_BYTES as u64
    }

    /// Bytes in use now.
    pub fn used_bytes(&self) -> u64 {
        (self.units as usize).saturating_sub(self.permits.available_permits()) as u64 * UNIT_BYTES as u64
    }
}

impl Default for MemoryBudget {
    fn default() -> Self {
        Self::new(crate::config::DEFAULT_MEMORY_LIMIT_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn waits_for_what_others_hold_and_gives_up_in_time() {
        let budget = MemoryBudget::new(4096);
        let held = budget.reserve(3000, Duration::ZERO).await.unwrap();
        assert_eq!((budget.used_bytes(), budget.limit_bytes()), (3072, 4096));
        assert!(budget.reserve(2000, Duration::from_millis(1)).await.is_none());
        let waiter = tokio::spawn({
            let budget = budget.clone();
            async move { budget.reserve(1 << 40, Duration::from_secs(60)).await.is_some() }
        });
        drop(held);
        assert!(waiter.await.unwrap());
        assert_eq!(budget.used_bytes(), 0);
    }
}
