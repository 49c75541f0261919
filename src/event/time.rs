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
