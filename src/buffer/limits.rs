//! Where an arriving part goes: into the staged chunk, into a new one, or cut over several. Pure.

use std::ops::Range;

use bytes::Bytes;

use super::{AppendError, BufferConfig, format};
use crate::event::msgpack;

/// What one chunk may hold.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChunkLimits {
    pub(super) bytes: u64,
    pub(super) events: u64,
    pub(super) full_threshold: f64,
}

/// Size of something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) bytes: u64,
    pub(super) events: u64,
}

/// Where a part goes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Placement {
    /// Into the staged chunk (or a new one, if none is staged).
    Fits,
    /// The staged chunk is queued, the part goes into a new one.
    NewChunk,
    /// The staged chunk is queued, each piece gets a chunk of its own; the last one stays staged.
    Cut(Vec<(Bytes, usize)>),
}

impl ChunkLimits {
    pub(super) fn new(config: &BufferConfig) -> Self {
        Self {
            bytes: config.chunk_limit_bytes,
            events: config.chunk_limit_records.map_or(u64::MAX, |records| records.max(1) as u64),
            full_threshold: config.chunk_full_threshold,
        }
    }

    fn hold(&self, size: Size) -> bool {
        size.bytes <= self.bytes && size.events <= self.events
    }

    /// Whether a chunk of this size is queued at once.
    pub(super) fn full(&self, size: Size) -> bool {
        let reached = |value: u64, limit: u64| value as f64 >= limit as f64 * self.full_threshold;
        reached(size.bytes, self.bytes) || (self.events != u64::MAX && reached(size.events, self.events))
    }

    /// Whether each record of a part may be stored at all. To be asked for all parts of an arrival before any is
    /// staged. Fluentd stores the others and then fails; its sender repeats them for ever.
    pub(super) fn check(&self, part: &Bytes) -> Result<(), AppendError> {
        if part.len() as u64 <= self.bytes {
            return Ok(());
        }
        match events(part).find(|range| range.len() as u64 > self.bytes) {
            Some(range) => {
                Err(AppendError::RecordTooLarge { record_bytes: range.len(), limit_bytes: self.bytes })
            }
            None => Ok(()),
        }
    }

    /// Where a part goes that [`Self::check`] has passed. `staged`: size of the chunk that collects now.
    pub(super) fn place(&self, part: &Bytes, events: usize, staged: Size) -> Placement {
        let size = Size { bytes: part.len() as u64, events: events as u64 };
        let frame_fits = size.bytes <= format::FRAME_PAYLOAD_LIMIT_BYTES;
        if frame_fits
            && self.hold(Size { bytes: staged.bytes + size.bytes, events: staged.events + size.events })
        {
            Placement::Fits
        } else if frame_fits && self.hold(size) {
            Placement::NewChunk
        } else {
            Placement::Cut(self.cut(part))
        }
    }

    /// Pieces at event borders, each as large as the limits allow.
    fn cut(&self, part: &Bytes) -> Vec<(Bytes, usize)> {
        let limit = self.bytes.min(format::FRAME_PAYLOAD_LIMIT_BYTES);
        let mut pieces = Vec::new();
        let (mut start, mut end, mut count) = (0, 0, 0_usize);
        for event in events(part) {
            let over = (event.end - start) as u64 > limit || count as u64 + 1 > self.events;
            if over && count > 0 {
                pieces.push((part.slice(start..end), count));
                (start, count) = (end, 0);
            }
            end = event.end;
            count += 1;
        }
        if count > 0 {
            pieces.push((part.slice(start..end), count));
        }
        pieces
    }
}

/// The events of a part, whatever form an entry has. Bytes that are no msgpack (the shape scan rules them out) count as
/// one event: nothing is lost.
fn events(part: &[u8]) -> impl Iterator<Item = Range<usize>> + '_ {
    let mut at = 0;
    std::iter::from_fn(move || {
        let start = at;
        (start < part.len()).then(|| {
            at = msgpack::skip(part, start).unwrap_or(part.len());
            start..at
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{EventTime, msgpack};

    fn part(sizes: &[usize]) -> Bytes {
        let mut out = Vec::new();
        for size in sizes {
            // [time, {"k": bin}] with a total of `size` bytes: 1 + 1 + 1 + 2 + 2 + n.
            let mut record = vec![0x81, 0xa1, b'k'];
            msgpack::write_bin(&mut record, &vec![7; size - 7]);
            msgpack::write_entry(&mut out, EventTime::Int(1), &record);
        }
        out.into()
    }

    fn limits(bytes: u64, events: u64) -> ChunkLimits {
        ChunkLimits { bytes, events, full_threshold: 0.95 }
    }

    #[test]
    fn places_parts() {
        let limits = limits(100, 10);
        let one = part(&[50]);
        assert_eq!(one.len(), 50);
        let staged = |bytes, events| Size { bytes, events };
        assert_eq!(limits.place(&one, 1, staged(0, 0)), Placement::Fits);
        assert_eq!(limits.place(&one, 1, staged(50, 1)), Placement::Fits);
        assert_eq!(limits.place(&one, 1, staged(51, 1)), Placement::NewChunk);
        assert_eq!(limits.place(&one, 1, staged(10, 10)), Placement::NewChunk);
        let three = part(&[50, 30, 40, 100, 20]);
        let Placement::Cut(pieces) = limits.place(&three, 5, staged(0, 0)) else { panic!("not cut") };
        let sizes: Vec<_> = pieces.iter().map(|(bytes, events)| (bytes.len(), *events)).collect();
        assert_eq!(sizes, [(80, 2), (40, 1), (100, 1), (20, 1)]);
        assert_eq!(pieces.iter().flat_map(|piece| piece.0.to_vec()).collect::<Vec<_>>(), three);
    }

    #[test]
    fn cuts_by_events() {
        let Placement::Cut(pieces) = limits(1000, 2).place(&part(&[20; 5]), 5, Size::default()) else {
            panic!("not cut")
        };
        assert_eq!(pieces.iter().map(|piece| piece.1).collect::<Vec<_>>(), [2, 2, 1]);
    }

    #[test]
    fn a_record_over_the_limit_is_named() {
        let limits = limits(60, u64::MAX);
        assert!(limits.check(&part(&[60, 60])).is_ok());
        let refused = limits.check(&part(&[60, 61]));
        assert!(matches!(refused, Err(AppendError::RecordTooLarge { record_bytes: 61, limit_bytes: 60 })));
    }

    #[test]
    fn full_by_threshold() {
        let limits = limits(100, 10);
        assert!(!limits.full(Size { bytes: 94, events: 9 }));
        assert!(limits.full(Size { bytes: 95, events: 1 }));
        assert!(limits.full(Size { bytes: 1, events: 10 }));
    }
}
