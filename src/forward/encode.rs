//! What out_forward writes: `[tag, entries, options]` with the entries as one str 32, exactly as Fluentd's does.
//!
//! Head and tail are small buffers of their own, so that the payload is written vectored from where it lies.

use bytes::BufMut;

use crate::event::msgpack;

/// `compressed` as written into the option map; always present, as out_forward does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PayloadCompression {
    /// Plain msgpack entries.
    #[default]
    Text,
    /// gzip members.
    Gzip,
}

/// Appends what stands before the payload: array of 3, tag as str, str 32 header of `payload_bytes`.
///
/// Answers false, with nothing written, when the payload does not fit a str 32 (4 GiB).
pub fn write_head(out: &mut impl BufMut, tag: &[u8], payload_bytes: u64) -> bool {
    let Ok(length) = u32::try_from(payload_bytes) else { return false };
    out.put_u8(0x93);
    msgpack::write_str(out, tag);
    out.put_u8(0xdb);
    out.put_u32(length);
    true
}

/// Appends what stands after the payload: the option map `size`, `compressed` and, when an ack is wanted, `chunk`.
pub fn write_tail(out: &mut impl BufMut, count: usize, compressed: PayloadCompression, chunk: Option<&str>) {
    msgpack::write_map_header(out, if chunk.is_some() { 3 } else { 2 });
    msgpack::write_str(out, b"size");
    msgpack::write_uint(out, count as u64);
    msgpack::write_str(out, b"compressed");
    msgpack::write_str(
        out,
        match compressed {
            PayloadCompression::Text => b"text",
            PayloadCompression::Gzip => b"gzip",
        },
    );
    if let Some(chunk) = chunk {
        msgpack::write_str(out, b"chunk");
        msgpack::write_str(out, chunk.as_bytes());
    }
}

/// A chunk id as out_forward sends it: base64 of the 16 bytes **with a line end**. Receivers answer these very bytes.
pub fn chunk_id_text(id: &[u8; 16]) -> String {
    let mut text = base64(id);
    text.push('\n');
    text
}

/// base64 (RFC 4648, padded) of a few bytes; small enough not to bring in a crate.
pub fn base64(data: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(data.len().div_ceil(3) * 4);
    for group in data.chunks(3) {
        let byte = |at: usize| u32::from(group.get(at).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for at in 0..4 {
            if at <= group.len() {
                text.push(char::from(ALPHABET[(bits >> (18 - 6 * at) & 0x3f) as usize]));
            } else {
                text.push('=');
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_of_rfc_4648() {
        for (data, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(base64(data.as_bytes()), text);
        }
        assert_eq!(base64(&[0xfb, 0xff, 0xfe]), "+//+");
        let id = 0x66180634f0cb24c781d7a47a033c31a2u128.to_be_bytes();
        assert_eq!(chunk_id_text(&id), "ZhgGNPDLJMeB16R6Azwxog==\n");
    }

    /// What the real out_forward sent for two events, with and without ack.
    #[test]
    fn writes_what_fluentd_writes() {
        let folder = crate::forward::tests::fixtures_dir();
        let entry = |seconds, nanoseconds, text: &[u8]| {
            let mut record = vec![0x81];
            msgpack::write_str(&mut record, b"msg");
            msgpack::write_str(&mut record, text);
            let mut out = Vec::new();
            msgpack::write_entry(&mut out, crate::event::EventTime::Ext { seconds, nanoseconds }, &record);
            out
        };
        let payload = [entry(1_700_000_001, 123_456_789, b"one"), entry(1_700_000_002, 0, b"two")].concat();
        // The id was made when the recording was: it is the last 25 bytes.
        let recorded = std::fs::read(folder.join("recorded-out_forward-ack.bin")).unwrap();
        let text = String::from_utf8(recorded[recorded.len() - 25..].to_vec()).unwrap();
        for (name, chunk) in
            [("plain", None), ("none", None), ("keepalive", None), ("ack", Some(text.as_str()))]
        {
            let mut wire = Vec::new();
            assert!(write_head(&mut wire, b"app.web", payload.len() as u64));
            wire.extend_from_slice(&payload);
            write_tail(&mut wire, 2, PayloadCompression::Text, chunk);
            let recorded = std::fs::read(folder.join(format!("recorded-out_forward-{name}.bin"))).unwrap();
            assert_eq!(wire, recorded, "{name}");
        }
        assert!(!write_head(&mut Vec::new(), b"t", 1 << 32));
    }
}
