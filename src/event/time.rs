use std::time::{SystemTime, UNIX_EPOCH};

/// When an event happened. Never a float; keeps the form in which it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EventTime {
    /// Whole seconds since 1970, as old clients send it.
    Int(i64),
    /// msgpack ext type 0: unsigned 32-bit seconds and nanoseconds (Fluentd's EventTime).
    Ext {
        /// Seconds since 1970.
        seconds: u32,
        /// Nanoseconds, 0..=999_999_999 from a well-behaved sender; not checked.
        nanoseconds: u32,
    },
}

impl EventTime {
    /// A moment of the clock, to the nanosecond. Before 1970 it is 1970, beyond 32 bits of seconds the last of them.
    pub fn of(time: SystemTime) -> Self {
        let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        let seconds = u32::try_from(since.as_secs()).unwrap_or(u32::MAX);
        Self::Ext { seconds, nanoseconds: since.subsec_nanos() }
    }

    /// Whole seconds since 1970.
    pub fn seconds(self) -> i64 {
        match self {
            Self::Int(seconds) => seconds,
            Self::Ext { seconds, .. } => i64::from(seconds),
        }
    }

    /// The nanosecond part, 0 for an integer time.
    pub fn nanoseconds(self) -> u32 {
        match self {
            Self::Int(_) => 0,
            Self::Ext { nanoseconds, .. } => nanoseconds,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn moments_keep_their_nanoseconds_and_stay_in_range() {
        let time = EventTime::of(UNIX_EPOCH + Duration::new(1_700_000_000, 5));
        assert_eq!(time, EventTime::Ext { seconds: 1_700_000_000, nanoseconds: 5 });
        assert_eq!(EventTime::of(UNIX_EPOCH - Duration::from_secs(1)).seconds(), 0);
        assert_eq!(EventTime::of(UNIX_EPOCH + Duration::from_secs(1 << 33)).seconds(), i64::from(u32::MAX));
    }
}
