//! The warning for events that no `<match>` takes, with Fluentd's spacing.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::event::Tag;

/// Counts streams without a match and warns at the 1st, 2nd, 4th ... 256th, then at every 512th (Fluentd's
/// `NoMatchMatch`).
#[derive(Debug, Default)]
pub(super) struct Unmatched {
    streams: AtomicU64,
}

impl Unmatched {
    pub(super) fn record(&self, tag: &Tag) {
        let nth = self.streams.fetch_add(1, Ordering::Relaxed) + 1;
        if should_warn(nth) {
            tracing::warn!(tag = %tag, "no patterns matched");
        }
    }
}

fn should_warn(nth: u64) -> bool {
    if nth <= 256 { nth.is_power_of_two() } else { nth.is_multiple_of(512) }
}

#[cfg(test)]
mod tests {
    #[test]
    fn warns_at_powers_of_two_then_every_512() {
        let warned: Vec<u64> = (1..=1600).filter(|&nth| super::should_warn(nth)).collect();
        assert_eq!(warned, vec![1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 1536]);
    }
}
