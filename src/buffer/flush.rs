//! When a staged chunk is queued: pure rules over facts of a chunk and the time.

use std::time::Duration;

/// Fluentd's `flush_interval`.
pub const FLUSH_INTERVAL: Duration = Duration::from_secs(60);
/// Fluentd's `timekey_wait` in seconds.
pub const TIMEKEY_WAIT_SECONDS: i64 = 600;
/// Fluentd looks at its chunks eleven times per interval, so that one is late by a tenth at most.
const LOOKS_PER_INTERVAL: u32 = 11;
/// Never looks more often: a look costs a walk over all staged chunks.
const SHORTEST_PERIOD: Duration = Duration::from_millis(50);
/// Looks at least so often where time keys decide: they follow the wall clock, which may step.
const LONGEST_PERIOD: Duration = Duration::from_secs(6);

/// `flush_mode` with `default` resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushMode {
    /// When full, or by its time key.
    Lazy,
    /// When full, by its time key, or when it is `interval` old.
    Interval,
    /// After each arrival.
    Immediate,
}

/// The time rule of chunks with a time key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimekeyFlush {
    /// `timekey` in seconds.
    pub unit_seconds: i64,
    /// `timekey_wait` in seconds: how long late events are waited for.
    pub wait_seconds: i64,
}

/// When staged chunks are queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlushRules {
    /// The mode.
    pub mode: FlushMode,
    /// `flush_interval`; counted precisely on the monotonic clock (Fluentd: whole seconds of the wall clock).
    pub interval: Duration,
    /// The time rule, when `time` is a chunk key. It runs in every mode.
    pub timekey: Option<TimekeyFlush>,
}

impl Default for FlushRules {
    fn default() -> Self {
        Self { mode: FlushMode::Interval, interval: FLUSH_INTERVAL, timekey: None }
    }
}

/// What the rules look at.
#[derive(Clone, Copy, Debug)]
pub struct ChunkFacts {
    /// Time since the chunk was made, restarts included.
    pub age: Duration,
    /// Its slot.
    pub timekey: Option<i64>,
}

impl FlushRules {
    /// Whether a chunk that is not full is queued now. `now_seconds` is the wall clock in Unix seconds.
    pub fn due(&self, facts: ChunkFacts, now_seconds: i64) -> bool {
        let by_mode = match self.mode {
            FlushMode::Immediate => true,
            FlushMode::Interval => facts.age >= self.interval,
            FlushMode::Lazy => false,
        };
        by_mode
            || self.timekey.zip(facts.timekey).is_some_and(|(rule, timekey)| rule.due(timekey, now_seconds))
    }

    /// How often to look; `None`: never, the mode needs no clock.
    pub fn period(&self) -> Option<Duration> {
        let by_interval = (self.mode == FlushMode::Interval).then_some(self.interval);
        let by_timekey = self.timekey.map(|rule| {
            let seconds = rule.unit_seconds.min(rule.wait_seconds).max(0);
            Duration::from_secs(seconds.unsigned_abs())
        });
        let interval = by_interval.into_iter().chain(by_timekey).min()?;
        Some((interval / LOOKS_PER_INTERVAL).clamp(SHORTEST_PERIOD, LONGEST_PERIOD))
    }
}

impl TimekeyFlush {
    fn due(&self, timekey: i64, now_seconds: i64) -> bool {
        let unit = self.unit_seconds.max(1);
        // Fluentd computes the current slot without the zone here.
        let current_slot = now_seconds.saturating_sub(now_seconds.rem_euclid(unit));
        timekey.saturating_add(unit).saturating_add(self.wait_seconds) <= now_seconds
            && timekey < current_slot
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn due(mode: FlushMode, timekey: Option<i64>, age: u64, now: i64) -> bool {
        let rules = FlushRules {
            mode,
            interval: Duration::from_secs(10),
            timekey: Some(TimekeyFlush { unit_seconds: 3600, wait_seconds: 600 }),
        };
        rules.due(ChunkFacts { age: Duration::from_secs(age), timekey }, now)
    }

    #[test]
    fn table_of_compat_buffer_3() {
        use FlushMode::{Immediate, Interval, Lazy};
        let rows = [
            // mode, timekey, age, now, due
            (Interval, None, 9, 0, false),
            (Interval, None, 10, 0, true),
            (Interval, Some(0), 9, 4199, false),
            (Interval, Some(0), 9, 4200, true),
            (Interval, Some(0), 10, 100, true),
            (Lazy, None, 1_000_000, i64::MAX, false),
            (Lazy, Some(0), 1_000_000, 3600, false),
            (Lazy, Some(0), 0, 4199, false),
            (Lazy, Some(0), 0, 4200, true),
            (Lazy, Some(3600), 0, 4200, false),
            // A slot of a zone that is no whole hour: over and waited for, but not before the current UTC slot.
            (Lazy, Some(5400), 0, 9599, false),
            (Lazy, Some(5400), 0, 9600, true),
            (Lazy, Some(-3600), 0, 600, true),
            (Lazy, Some(i64::MAX), 0, i64::MAX, false),
            (Immediate, None, 0, 0, true),
            (Immediate, Some(0), 0, 0, true),
        ];
        for (mode, timekey, age, now, expected) in rows {
            assert_eq!(due(mode, timekey, age, now), expected, "{mode:?} {timekey:?} age {age} now {now}");
        }
        // timekey_wait shorter than the distance to the current slot: "timekey < current slot" decides alone.
        let rule = TimekeyFlush { unit_seconds: 3600, wait_seconds: 0 };
        assert!(!rule.due(1800, 3599));
        assert!(rule.due(0, 3600));
    }

    #[test]
    fn looks_often_enough() {
        let rules = |mode, interval: u64, timekey: Option<(i64, i64)>| FlushRules {
            mode,
            interval: Duration::from_secs(interval),
            timekey: timekey.map(|(unit_seconds, wait_seconds)| TimekeyFlush { unit_seconds, wait_seconds }),
        };
        assert_eq!(rules(FlushMode::Lazy, 60, None).period(), None);
        assert_eq!(rules(FlushMode::Immediate, 60, None).period(), None);
        assert_eq!(rules(FlushMode::Interval, 11, None).period(), Some(Duration::from_secs(1)));
        assert_eq!(rules(FlushMode::Interval, 0, None).period(), Some(SHORTEST_PERIOD));
        assert_eq!(rules(FlushMode::Lazy, 60, Some((86_400, 600))).period(), Some(LONGEST_PERIOD));
        assert_eq!(rules(FlushMode::Interval, 600, Some((60, 11))).period(), Some(Duration::from_secs(1)));
    }
}
