use bytes::Bytes;

use super::Tag;

/// A run of events with one tag.
///
/// Invariant: `entries` is exactly `count` msgpack arrays `[time, record]`, `time` an integer or EventTime,
/// `record` a map. Whoever makes one has checked that (the shape scan of `forward`), so later stations do not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventStream {
    /// The tag of all events.
    pub tag: Tag,
    /// msgpack `[time, record]` pairs, back to back.
    pub entries: Bytes,
    /// How many pairs.
    pub count: usize,
}
