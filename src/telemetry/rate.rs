//! Folding of repeated log lines: at most so many a minute per cause, the rest counted and told with the next one.
//!
//! ```
//! use tributary::telemetry::rate::Limited;
//!
//! /// Broken messages come in floods when one client is broken.
//! static BROKEN_MESSAGE: Limited = Limited::per_minute(6);
//!
//! if let Some(repeated) = BROKEN_MESSAGE.admit() {
//!     tracing::warn!(peer = "192.0.2.1", repeated, "broken message, connection closed");
//! }
//! ```
//!
//! The log prints the field `repeated` as `(repeated 37 times)` at the end of the line, and nothing when it is 0.
//! What was folded after the last line of a cause is told only with its next line; counters of the plugin count all.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The window in which lines are counted.
const WINDOW: Duration = Duration::from_secs(60);

/// Causes that [`LimitedBy`] tells apart; a flood of distinct peers must not grow memory. The oldest is forgotten.
const KEYS_MAX: usize = 1_000;

#[derive(Clone, Copy, Debug, Default)]
struct Window {
    started_at: Option<Instant>,
    admitted: u32,
    folded: u64,
}

impl Window {
    fn admit(&mut self, now: Instant, lines_per_minute: u32) -> Option<u64> {
        let fresh = self.started_at.is_none_or(|start| now.saturating_duration_since(start) >= WINDOW);
        if fresh {
            self.started_at = Some(now);
            self.admitted = 0;
        }
        if self.admitted >= lines_per_minute {
            self.folded += 1;
            return None;
        }
        self.admitted += 1;
        Some(std::mem::take(&mut self.folded))
    }
}

/// One cause of log lines. `const`, so that it can be a `static` beside the line that it limits.
#[derive(Debug)]
pub struct Limited {
    lines_per_minute: u32,
    window: Mutex<Window>,
}

impl Limited {
    /// At most `lines` lines in each minute.
    pub const fn per_minute(lines: u32) -> Self {
        Self {
            lines_per_minute: lines,
            window: Mutex::new(Window { started_at: None, admitted: 0, folded: 0 }),
        }
    }

    /// `Some(folded)`: write the line, `folded` lines of this cause were left out since the last one.
    /// `None`: leave it out.
    pub fn admit(&self) -> Option<u64> {
        self.admit_at(Instant::now())
    }

    /// [`Self::admit`] at a given time.
    pub fn admit_at(&self, now: Instant) -> Option<u64> {
        let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        window.admit(now, self.lines_per_minute)
    }
}

/// Like [`Limited`] with one window per key (peer address, tag), so that one noisy peer does not hide another.
#[derive(Debug)]
pub struct LimitedBy<K> {
    lines_per_minute: u32,
    windows: Mutex<HashMap<K, Window>>,
}

impl<K: Eq + Hash + Clone> LimitedBy<K> {
    /// At most `lines` lines in each minute per key.
    pub fn per_minute(lines: u32) -> Self {
        Self { lines_per_minute: lines, windows: Mutex::new(HashMap::new()) }
    }

    /// See [`Limited::admit`].
    pub fn admit(&self, key: &K) -> Option<u64> {
        self.admit_at(key, Instant::now())
    }

    /// [`Self::admit`] at a given time.
    pub fn admit_at(&self, key: &K, now: Instant) -> Option<u64> {
        let mut windows = self.windows.lock().unwrap_or_else(PoisonError::into_inner);
        if windows.len() >= KEYS_MAX && !windows.contains_key(key) {
            let oldest =
                windows.iter().min_by_key(|(_, window)| window.started_at).map(|(key, _)| key.clone());
            if let Some(oldest) = oldest {
                windows.remove(&oldest);
            }
        }
        windows.entry(key.clone()).or_default().admit(now, self.lines_per_minute)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folds_within_a_minute_and_tells_how_many() {
        let limited = Limited::per_minute(2);
        let start = Instant::now();
        assert_eq!(limited.admit_at(start), Some(0));
        assert_eq!(limited.admit_at(start), Some(0));
        for _ in 0..37 {
            assert_eq!(limited.admit_at(start + Duration::from_secs(59)), None);
        }
        assert_eq!(limited.admit_at(start + WINDOW), Some(37));
        assert_eq!(limited.admit_at(start + WINDOW), Some(0));
        assert_eq!(limited.admit_at(start + WINDOW), None);
    }

    #[test]
    fn keys_are_separate_and_bounded() {
        let limited = LimitedBy::per_minute(1);
        let start = Instant::now();
        assert_eq!(limited.admit_at(&0, start), Some(0));
        assert_eq!(limited.admit_at(&0, start), None);
        for key in 1..=5_000 {
            assert_eq!(limited.admit_at(&key, start + Duration::from_millis(key)), Some(0));
        }
        assert!(limited.windows.lock().unwrap().len() <= KEYS_MAX);
    }
}
