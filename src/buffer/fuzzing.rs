//! What the fuzz target `chunk_recovery` attacks: everything that reads bytes of a chunk file or a journal.

use super::{ChunkId, format, journal};

/// Reads any bytes as a chunk file and as a journal; panics if what is found contradicts itself.
#[doc(hidden)]
pub fn read_anything(bytes: &[u8]) {
    let id = match format::read_preface(bytes) {
        format::Preface::Good(id) => id,
        format::Preface::Newer(_) | format::Preface::Damaged => ChunkId([0; 16]),
    };
    let scan = format::scan(id, bytes);
    let mut covered = 0;
    let mut ranges: Vec<_> = scan.good.iter().chain(&scan.damaged).cloned().collect();
    ranges.sort_by_key(|range| range.start);
    for range in ranges {
        assert_eq!(range.start, covered, "each byte is either good or damaged");
        covered = range.end;
    }
    assert_eq!(covered, bytes.len());
    let mut events = 0;
    for frame in &scan.frames {
        let place = frame.offset as usize;
        assert!(scan.good.iter().any(|good| good.start == place && good.end == frame.payload.end));
        assert!(frame.sender.end == frame.payload.start && frame.payload.end <= bytes.len());
        events += u64::from(frame.header.events);
    }
    assert_eq!(scan.totals().events, events);
    // Must not panic; whether it agrees with the scan is the writer's affair.
    let tail = &bytes[bytes.len().saturating_sub(format::SEAL_BYTES)..];
    let _ = format::decode_seal_at_end(tail, id, bytes.len() as u64);
    journal::read_anything(bytes);
}
