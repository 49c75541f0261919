//! Reading and skipping msgpack without allocation, and the few writers of the pass-through path.
//!
//! Everything here reads bytes from peers and disks: no function panics, recurses or allocates, whatever the bytes are.
//! Source: the msgpack specification; ext types as Fluentd's `lib/fluent/time.rb` knows them.

use bytes::BufMut;

/// Deepest nesting of arrays and maps that is accepted, counted from the outermost: the message on the
/// wire. Empty ones do not count. Decoders that recurse rely on it.
pub const MAX_DEPTH: usize = 128;

/// msgpack ext type of Fluentd's EventTime; any other type is an error to Fluentd, so it must not pass through us.
pub const EVENT_TIME_EXT: i8 = 0;

/// Bytes that can never become a value a Fluentd would read, however many follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The byte that msgpack never uses.
    #[error("byte 0xc1 is not msgpack")]
    ReservedByte,
    /// An ext type other than EventTime.
    #[error("unknown ext type {0}, only EventTime (0) is known")]
    UnknownExt(i8),
    /// Containers in containers beyond [`MAX_DEPTH`].
    #[error("arrays and maps nested deeper than {MAX_DEPTH}")]
    TooDeep,
}

/// Why a value could not be read to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Stop {
    /// More bytes are needed; the value cannot end before this offset.
    #[error("msgpack value is cut off, at least {needed} bytes are needed")]
    Incomplete {
        /// Offset, from the start of the slice, that the bytes must reach before another look is worthwhile.
        needed: usize,
    },
    /// No following byte can mend it.
    #[error(transparent)]
    Malformed(#[from] Malformed),
}

impl Stop {
    /// The byte at `offset` is missing.
    #[inline]
    fn missing(offset: usize) -> Self {
        Self::Incomplete { needed: offset.saturating_add(1) }
    }
}

/// The first part of a value: a scalar whole, of anything longer its kind and length.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Head {
    /// nil
    Nil,
    /// true, false
    Bool(bool),
    /// An integer that fits `i64`.
    Int(i64),
    /// An integer above `i64::MAX`.
    UInt(u64),
    /// float 32 or 64
    Float(f64),
    /// str of so many bytes, which follow.
    Str(usize),
    /// bin of so many bytes, which follow.
    Bin(usize),
    /// array of so many values, which follow.
    Array(u32),
    /// map of so many pairs, which follow.
    Map(u32),
    /// ext of this type with so many bytes, which follow. Only EventTime's type passes.
    Ext(i8, usize),
}

#[inline]
fn be<const N: usize>(bytes: &[u8], pos: usize) -> Result<[u8; N], Stop> {
    match bytes.get(pos..).and_then(|rest| rest.first_chunk::<N>()) {
        Some(chunk) => Ok(*chunk),
        None => Err(Stop::Incomplete { needed: pos.saturating_add(N) }),
    }
}

#[inline]
fn unsigned(value: u64) -> Head {
    i64::try_from(value).map_or(Head::UInt(value), Head::Int)
}

/// Reads the head of the value at `pos`; answers it and the offset of what follows it.
///
/// Payload bytes of strings are not looked at: the caller adds the length.
pub fn head(bytes: &[u8], pos: usize) -> Result<(Head, usize), Stop> {
    let Some(&first) = bytes.get(pos) else { return Err(Stop::missing(pos)) };
    let at = pos + 1;
    let u8_at = || be::<1>(bytes, at).map(|b| usize::from(b[0]));
    let u16_at = || be::<2>(bytes, at).map(u16::from_be_bytes);
    let u32_at = || be::<4>(bytes, at).map(u32::from_be_bytes);
    let ext = |length: usize, type_at: usize| -> Result<(Head, usize), Stop> {
        let [kind] = be::<1>(bytes, type_at)?.map(|b| b as i8);
        if kind == EVENT_TIME_EXT {
            Ok((Head::Ext(kind, length), type_at + 1))
        } else {
            Err(Malformed::UnknownExt(kind).into())
        }
    };
    Ok(match first {
        0x00..=0x7f => (Head::Int(i64::from(first)), at),
        0x80..=0x8f => (Head::Map(u32::from(first & 0x0f)), at),
        0x90..=0x9f => (Head::Array(u32::from(first & 0x0f)), at),
        0xa0..=0xbf => (Head::Str(usize::from(first & 0x1f)), at),
        0xc0 => (Head::Nil, at),
        0xc1 => return Err(Malformed::ReservedByte.into()),
        0xc2 => (Head::Bool(false), at),
        0xc3 => (Head::Bool(true), at),
        0xc4 => (Head::Bin(u8_at()?), at + 1),
        0xc5 => (Head::Bin(usize::from(u16_at()?)), at + 2),
        0xc6 => (Head::Bin(u32_at()? as usize), at + 4),
        0xc7 => return ext(u8_at()?, at + 1),
        0xc8 => return ext(usize::from(u16_at()?), at + 2),
        0xc9 => return ext(u32_at()? as usize, at + 4),
        0xca => (Head::Float(f64::from(f32::from_be_bytes(be::<4>(bytes, at)?))), at + 4),
        0xcb => (Head::Float(f64::from_be_bytes(be::<8>(bytes, at)?)), at + 8),
        0xcc => (Head::Int(u8_at()? as i64), at + 1),
        0xcd => (Head::Int(i64::from(u16_at()?)), at + 2),
        0xce => (Head::Int(i64::from(u32_at()?)), at + 4),
        0xcf => (unsigned(u64::from_be_bytes(be::<8>(bytes, at)?)), at + 8),
        0xd0 => (Head::Int(i64::from(be::<1>(bytes, at)?[0] as i8)), at + 1),
        0xd1 => (Head::Int(i64::from(i16::from_be_bytes(be::<2>(bytes, at)?))), at + 2),
        0xd2 => (Head::Int(i64::from(i32::from_be_bytes(be::<4>(bytes, at)?))), at + 4),
        0xd3 => (Head::Int(i64::from_be_bytes(be::<8>(bytes, at)?)), at + 8),
        0xd4 => return ext(1, at),
        0xd5 => return ext(2, at),
        0xd6 => return ext(4, at),
        0xd7 => return ext(8, at),
        0xd8 => return ext(16, at),
        0xd9 => (Head::Str(u8_at()?), at + 1),
        0xda => (Head::Str(usize::from(u16_at()?)), at + 2),
        0xdb => (Head::Str(u32_at()? as usize), at + 4),
        0xdc => (Head::Array(u32::from(u16_at()?)), at + 2),
        0xdd => (Head::Array(u32_at()?), at + 4),
        0xde => (Head::Map(u32::from(u16_at()?)), at + 2),
        0xdf => (Head::Map(u32_at()?), at + 4),
        0xe0..=0xff => (Head::Int(i64::from(first as i8)), at),
    })
}

/// The end of the value at `start`: an offset into `bytes`, at most their length.
#[inline]
pub fn skip(bytes: &[u8], start: usize) -> Result<usize, Stop> {
    skip_values(bytes, start, 1, 0)
}

/// The end of the value at `start`, which lies within `depth` arrays and maps.
#[inline]
pub fn skip_within(bytes: &[u8], start: usize, depth: usize) -> Result<usize, Stop> {
    skip_values(bytes, start, 1, depth)
}

/// The end of `left` values that begin at `pos` and lie within `depth` arrays and maps; they may hold more of them.
///
/// The loop is branchy on purpose: sizes that do not depend on loaded bytes let the processor run ahead of the
/// chain "load length, add, load next", and records of one sender repeat, so the branches are predicted.
#[inline]
pub fn skip_values(bytes: &[u8], mut pos: usize, mut left: u64, depth: usize) -> Result<usize, Stop> {
    while left > 0 {
        let Some(&first) = bytes.get(pos) else { return Err(Stop::missing(pos)) };
        if first & 0xe0 == 0xa0 {
            pos += 1 + usize::from(first & 0x1f);
        } else {
            match first {
                0x00..=0x7f | 0xe0..=0xff | 0xc0 | 0xc2 | 0xc3 => pos += 1,
                0xcc | 0xd0 => pos += 2,
                0xcd | 0xd1 => pos += 3,
                0xca | 0xce | 0xd2 => pos += 5,
                0xcb | 0xcf | 0xd3 => pos += 9,
                0xc4 | 0xd9 => {
                    let Some(&length) = bytes.get(pos + 1) else { return Err(Stop::missing(pos + 1)) };
                    pos += 2 + usize::from(length);
                }
                _ => pos = skip_rare(bytes, pos, depth)?,
            }
        }
        left -= 1;
    }
    // Fixed sizes and string lengths were added unchecked: the last one may reach beyond the bytes.
    if pos <= bytes.len() { Ok(pos) } else { Err(Stop::Incomplete { needed: pos }) }
}

/// Long strings, ext and containers. May answer an offset beyond the bytes.
#[inline(never)]
fn skip_rare(bytes: &[u8], pos: usize, depth: usize) -> Result<usize, Stop> {
    match head(bytes, pos)? {
        (Head::Str(length) | Head::Bin(length) | Head::Ext(_, length), at) => Ok(at.saturating_add(length)),
        (Head::Array(_) | Head::Map(_), _) => Walker::within(pos, depth).advance(bytes),
        (_, at) => Ok(at),
    }
}

/// A walk over one value that can pause where the bytes end and go on when more have come, without starting again.
#[derive(Debug)]
pub struct Walker {
    pos: usize,
    depth: usize,
    started: bool,
    /// Arrays and maps around the value.
    outside: usize,
    /// Values still to come on each level. A count above `u32::MAX` is cut to it: such a value would need more bytes
    /// than any limit allows, so its end is never reached either way.
    left: [u32; MAX_DEPTH],
}

impl Walker {
    /// A walk that begins at this offset.
    pub fn at(pos: usize) -> Self {
        Self::within(pos, 0)
    }

    /// A walk over a value that lies within `depth` arrays and maps.
    fn within(pos: usize, depth: usize) -> Self {
        Self { pos, depth: 0, started: false, outside: depth, left: [0; MAX_DEPTH] }
    }

    /// Walks as far as the bytes reach; the end of the value once it is there.
    ///
    /// `bytes` must begin with those of the last call.
    pub fn advance(&mut self, bytes: &[u8]) -> Result<usize, Stop> {
        while !self.started || self.depth > 0 {
            let (value, at) = head(bytes, self.pos)?;
            self.started = true;
            if let Some(left) = self.depth.checked_sub(1).and_then(|level| self.left.get_mut(level)) {
                *left -= 1;
            }
            let children = match value {
                Head::Str(length) | Head::Bin(length) | Head::Ext(_, length) => {
                    self.pos = at.saturating_add(length);
                    0
                }
                Head::Array(count) => {
                    self.pos = at;
                    count
                }
                Head::Map(count) => {
                    self.pos = at;
                    count.saturating_mul(2)
                }
                _ => {
                    self.pos = at;
                    0
                }
            };
            if children > 0 {
                let level = self.left.get_mut(self.depth).filter(|_| self.depth + self.outside < MAX_DEPTH);
                let Some(level) = level else { return Err(Malformed::TooDeep.into()) };
                *level = children;
                self.depth += 1;
            }
            while self.depth > 0 && self.left.get(self.depth - 1) == Some(&0) {
                self.depth -= 1;
            }
        }
        if self.pos <= bytes.len() { Ok(self.pos) } else { Err(Stop::Incomplete { needed: self.pos }) }
    }
}

/// Writes an array header in its shortest form.
pub fn write_array_header(out: &mut impl BufMut, count: u32) {
    match count {
        0..=0x0f => out.put_u8(0x90 | count as u8),
        0x10..=0xffff => {
            out.put_u8(0xdc);
            out.put_u16(count as u16);
        }
        _ => {
            out.put_u8(0xdd);
            out.put_u32(count);
        }
    }
}

/// Writes a map header in its shortest form.
pub fn write_map_header(out: &mut impl BufMut, count: u32) {
    match count {
        0..=0x0f => out.put_u8(0x80 | count as u8),
        0x10..=0xffff => {
            out.put_u8(0xde);
            out.put_u16(count as u16);
        }
        _ => {
            out.put_u8(0xdf);
            out.put_u32(count);
        }
    }
}

/// Writes a str in its shortest form; bytes beyond 4 GiB are cut off.
pub fn write_str(out: &mut impl BufMut, text: &[u8]) {
    let length = u32::try_from(text.len()).unwrap_or(u32::MAX);
    match length {
        0..=0x1f => out.put_u8(0xa0 | length as u8),
        0x20..=0xff => {
            out.put_u8(0xd9);
            out.put_u8(length as u8);
        }
        0x100..=0xffff => {
            out.put_u8(0xda);
            out.put_u16(length as u16);
        }
        _ => {
            out.put_u8(0xdb);
            out.put_u32(length);
        }
    }
    out.put_slice(text.get(..length as usize).unwrap_or(text));
}

/// Writes a bin in its shortest form; bytes beyond 4 GiB are cut off.
pub fn write_bin(out: &mut impl BufMut, data: &[u8]) {
    let length = u32::try_from(data.len()).unwrap_or(u32::MAX);
    match length {
        0..=0xff => {
            out.put_u8(0xc4);
            out.put_u8(length as u8);
        }
        0x100..=0xffff => {
            out.put_u8(0xc5);
            out.put_u16(length as u16);
        }
        _ => {
            out.put_u8(0xc6);
            out.put_u32(length);
        }
    }
    out.put_slice(data.get(..length as usize).unwrap_or(data));
}

/// Writes an integer in its shortest form, as msgpack-ruby does.
pub fn write_int(out: &mut impl BufMut, value: i64) {
    match value {
        0.. => write_uint(out, value as u64),
        -0x20..=-1 => out.put_i8(value as i8),
        -0x80..=-0x21 => {
            out.put_u8(0xd0);
            out.put_i8(value as i8);
        }
        -0x8000..=-0x81 => {
            out.put_u8(0xd1);
            out.put_i16(value as i16);
        }
        -0x8000_0000..=-0x8001 => {
            out.put_u8(0xd2);
            out.put_i32(value as i32);
        }
        _ => {
            out.put_u8(0xd3);
            out.put_i64(value);
        }
    }
}

/// Writes an unsigned integer in its shortest form.
pub fn write_uint(out: &mut impl BufMut, value: u64) {
    match value {
        0..=0x7f => out.put_u8(value as u8),
        0x80..=0xff => {
            out.put_u8(0xcc);
            out.put_u8(value as u8);
        }
        0x100..=0xffff => {
            out.put_u8(0xcd);
            out.put_u16(value as u16);
        }
        0x1_0000..=0xffff_ffff => {
            out.put_u8(0xce);
            out.put_u32(value as u32);
        }
        _ => {
            out.put_u8(0xcf);
            out.put_u64(value);
        }
    }
}

/// Writes an event time in the form it has: an integer, or EventTime as fixext 8.
pub fn write_time(out: &mut impl BufMut, time: super::EventTime) {
    match time {
        super::EventTime::Int(seconds) => write_int(out, seconds),
        super::EventTime::Ext { seconds, nanoseconds } => {
            out.put_u8(0xd7);
            out.put_i8(EVENT_TIME_EXT);
            out.put_u32(seconds);
            out.put_u32(nanoseconds);
        }
    }
}

/// Writes one entry `[time, record]`; `record` is the raw bytes of a map.
pub fn write_entry(out: &mut impl BufMut, time: super::EventTime, record: &[u8]) {
    out.put_u8(0x92);
    write_time(out, time);
    out.put_slice(record);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nested(levels: usize) -> Vec<u8> {
        let mut bytes = vec![0x91; levels];
        bytes.push(0xc0);
        bytes
    }

    #[test]
    fn skip_ends_where_the_value_ends() {
        let cases: &[&[u8]] = &[
            &[0xc0],
            &[0x7f],
            &[0xe0],
            &[0xcc, 1],
            &[0xcd, 1, 2],
            &[0xce, 1, 2, 3, 4],
            &[0xcf, 1, 2, 3, 4, 5, 6, 7, 8],
            &[0xd0, 1],
            &[0xd1, 1, 2],
            &[0xd2, 1, 2, 3, 4],
            &[0xd3, 1, 2, 3, 4, 5, 6, 7, 8],
            &[0xca, 1, 2, 3, 4],
            &[0xcb, 1, 2, 3, 4, 5, 6, 7, 8],
            &[0xa2, b'a', b'b'],
            &[0xd9, 1, b'a'],
            &[0xda, 0, 1, b'a'],
            &[0xdb, 0, 0, 0, 1, b'a'],
            &[0xc4, 1, b'a'],
            &[0xc5, 0, 1, b'a'],
            &[0xc6, 0, 0, 0, 1, b'a'],
            &[0xd7, 0, 1, 2, 3, 4, 5, 6, 7, 8],
            &[0xc7, 8, 0, 1, 2, 3, 4, 5, 6, 7, 8],
            &[0xd4, 0, 1],
            &[0x80],
            &[0x90],
            &[0xdc, 0, 0],
            &[0xdf, 0, 0, 0, 0],
            &[0x82, 0xa1, b'a', 0x92, 1, 0x81, 0xc0, 0xc0, 0xa1, b'b', 0x90],
            &[0xdd, 0, 0, 0, 1, 0xde, 0, 1, 1, 2],
        ];
        for case in cases {
            let mut padded = vec![0xc1];
            padded.extend_from_slice(case);
            padded.push(0xc1);
            assert_eq!(skip(&padded, 1), Ok(1 + case.len()), "{case:02x?}");
            for cut in 0..case.len() {
                let Err(Stop::Incomplete { needed }) = skip(&case[..cut], 0) else {
                    panic!("{case:02x?} cut at {cut}: {:?}", skip(&case[..cut], 0));
                };
                assert!(needed > cut && needed <= case.len(), "{case:02x?} cut at {cut} needs {needed}");
            }
            let mut walker = Walker::at(0);
            for cut in 0..case.len() {
                assert!(matches!(walker.advance(&case[..cut]), Err(Stop::Incomplete { .. })));
            }
            assert_eq!(walker.advance(case), Ok(case.len()), "{case:02x?}");
        }
    }

    #[test]
    fn what_no_fluentd_reads_is_malformed() {
        assert_eq!(skip(&[0xc1], 0), Err(Malformed::ReservedByte.into()));
        assert_eq!(skip(&[0x91, 0xc1], 0), Err(Malformed::ReservedByte.into()));
        assert_eq!(skip(&[0xd6, 0xff, 0, 0, 0, 0], 0), Err(Malformed::UnknownExt(-1).into()));
        assert_eq!(skip(&[0x92, 0xc7, 0, 5, 0], 0), Err(Malformed::UnknownExt(5).into()));
        assert_eq!(skip(&nested(MAX_DEPTH), 0), Ok(MAX_DEPTH + 1));
        assert_eq!(skip(&nested(MAX_DEPTH + 1), 0), Err(Malformed::TooDeep.into()));
        assert_eq!(skip(&nested(1_000_000), 0), Err(Malformed::TooDeep.into()));
        assert_eq!(skip_within(&nested(MAX_DEPTH - 3), 0, 3), Ok(MAX_DEPTH - 2));
        assert_eq!(skip_within(&nested(MAX_DEPTH - 2), 0, 3), Err(Malformed::TooDeep.into()));
    }

    #[test]
    fn huge_counts_end_at_the_end_of_the_bytes() {
        assert!(matches!(skip(&[0xdf, 0xff, 0xff, 0xff, 0xff, 1, 2], 0), Err(Stop::Incomplete { .. })));
        assert!(matches!(skip(&[0xdd, 0xff, 0xff, 0xff, 0xff, 1, 2], 0), Err(Stop::Incomplete { .. })));
        assert_eq!(
            skip(&[0xdb, 0xff, 0xff, 0xff, 0xff, 1], 0),
            Err(Stop::Incomplete { needed: 5 + 0xffff_ffff })
        );
    }

    #[test]
    fn integers_come_back_in_their_shortest_form() {
        for value in [
            0,
            1,
            127,
            128,
            255,
            256,
            65535,
            65536,
            0xffff_ffff,
            0x1_0000_0000,
            i64::MAX,
            -1,
            -32,
            -33,
            -128,
            -129,
            -32768,
            -32769,
            -0x8000_0000,
            -0x8000_0001,
            i64::MIN,
        ] {
            let mut out = Vec::new();
            write_int(&mut out, value);
            assert_eq!(head(&out, 0), Ok((Head::Int(value), out.len())));
            let mut reference = Vec::new();
            rmp::encode::write_sint(&mut reference, value).unwrap();
            assert_eq!(out, reference, "{value}");
        }
        let mut out = Vec::new();
        write_uint(&mut out, u64::MAX);
        assert_eq!(head(&out, 0), Ok((Head::UInt(u64::MAX), 9)));
    }

    #[test]
    fn headers_are_those_of_rmp() {
        for length in [0usize, 15, 16, 31, 32, 255, 256, 65535, 65536] {
            let data = vec![b'x'; length];
            let (mut ours, mut reference) = (Vec::new(), Vec::new());
            write_str(&mut ours, &data);
            write_bin(&mut ours, &data);
            write_array_header(&mut ours, length as u32);
            write_map_header(&mut ours, length as u32);
            rmp::encode::write_str(&mut reference, std::str::from_utf8(&data).unwrap()).unwrap();
            rmp::encode::write_bin(&mut reference, &data).unwrap();
            rmp::encode::write_array_len(&mut reference, length as u32).unwrap();
            rmp::encode::write_map_len(&mut reference, length as u32).unwrap();
            assert!(ours == reference, "length {length}");
        }
    }
}
