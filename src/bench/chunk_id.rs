//! Chunk ids as Fluentd makes and sends them.

/// Length of a chunk id on the wire: base64 of 16 bytes and a line end.
pub const CHUNK_TEXT_BYTES: usize = 25;

/// A chunk id as out_forward puts it into option `chunk`.
pub type ChunkText = [u8; CHUNK_TEXT_BYTES];

/// A new id: 8 bytes of microseconds since 1970 shifted by 12 bits of chance, then 8 bytes of chance
/// (Fluentd: `lib/fluent/unique_id.rb`), base64 with a trailing newline.
pub fn new_chunk_text(now_ns: u64) -> ChunkText {
    let time = ((now_ns / 1_000) << 12) | fastrand::u64(0..0x1000);
    let mut raw = [0_u8; 16];
    raw[..8].copy_from_slice(&time.to_be_bytes());
    raw[8..].copy_from_slice(&fastrand::u64(..).to_be_bytes());
    encode(&raw)
}

fn encode(raw: &[u8; 16]) -> ChunkText {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = [b'='; CHUNK_TEXT_BYTES];
    for (group, three) in raw.chunks(3).enumerate() {
        let byte = |i: usize| u32::from(three.get(i).copied().unwrap_or(0));
        let bits = (byte(0) << 16) | (byte(1) << 8) | byte(2);
        // n bytes give n + 1 characters; the rest of the group stays '='.
        for place in 0..=three.len() {
            text[group * 4 + place] = ALPHABET[(bits >> (18 - 6 * place)) as usize & 63];
        }
    }
    text[CHUNK_TEXT_BYTES - 1] = b'\n';
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encodes_like_fluentd() {
        // An id as Fluentd's out_forward sent it.
        let raw =
            [0x66, 0x18, 0x06, 0x34, 0xf0, 0xcb, 0x24, 0xc7, 0x81, 0xd7, 0xa4, 0x7a, 0x03, 0x3c, 0x31, 0xa2];
        assert_eq!(&encode(&raw), b"ZhgGNPDLJMeB16R6Azwxog==\n");
    }

    #[test]
    fn begins_with_the_time_and_differs_each_time() {
        let now = 1_700_000_000_000_000_000;
        let (a, b) = (new_chunk_text(now), new_chunk_text(now));
        assert_ne!(a, b);
        assert_eq!(a[..8], b[..8], "the first 48 bits are the clock's");
    }
}
