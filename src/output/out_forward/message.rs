//! A chunk as it goes over the wire, and the acks that come back.
//!
//! `93`, tag as str, `db` and the length, the chunk's bytes as they lie in the buffer, then the options `size`,
//! `compressed`, `chunk` in this order: what Fluentd's out_forward writes. The payload is never copied.

use bytes::{Buf, Bytes, BytesMut};

use crate::buffer::{Chunk, ChunkId};
use crate::event::Tag;
use crate::event::msgpack::{self, Head, Stop};

/// An ack is about 32 bytes; a peer that sends more than this without one complete ack talks something else.
const ACK_BYTES_MAX: usize = 64 * 1024;

/// A message ready to be written, once or several times.
#[derive(Debug)]
pub struct Message {
    /// What the peer must acknowledge.
    pub ack: Bytes,
    /// The bytes, in order.
    pub pieces: Vec<Bytes>,
    /// Their sum.
    pub length: u64,
    /// The tag, for the empty message that asks a mute peer.
    pub tag: Tag,
}

impl Message {
    /// The message that carries this chunk; `None` when the chunk is longer than the wire allows (4 GiB).
    pub fn of_chunk(chunk: &Chunk, tag: &Tag) -> Option<Self> {
        let payload: u64 = chunk.payload.iter().map(|piece| piece.len() as u64).sum();
        let payload_length = u32::try_from(payload).ok()?;
        let ack = chunk_text(chunk.id);
        let mut head = BytesMut::with_capacity(tag.as_bytes().len() + 16);
        msgpack::write_array_header(&mut head, 3);
        msgpack::write_str(&mut head, tag.as_bytes());
        head.extend_from_slice(&[0xdb]);
        head.extend_from_slice(&payload_length.to_be_bytes());
        let mut tail = BytesMut::with_capacity(64);
        msgpack::write_map_header(&mut tail, 3);
        msgpack::write_str(&mut tail, b"size");
        msgpack::write_uint(&mut tail, chunk.count as u64);
        msgpack::write_str(&mut tail, b"compressed");
        msgpack::write_str(&mut tail, b"text");
        msgpack::write_str(&mut tail, b"chunk");
        msgpack::write_str(&mut tail, &ack);
        let length = (head.len() + tail.len()) as u64 + payload;
        let mut pieces = Vec::with_capacity(chunk.payload.len() + 2);
        pieces.push(head.freeze());
        pieces.extend(chunk.payload.iter().filter(|piece| !piece.is_empty()).cloned());
        pieces.push(tail.freeze());
        Some(Self { ack, pieces, length, tag: tag.clone() })
    }

    /// A message without events that must be acknowledged all the same (Fluentd does): asks a peer whether it still
    /// answers, without risking that an event arrives twice. The tag is one that the peer has seen.
    pub fn empty(tag: &Tag) -> Self {
        let ack = chunk_text(ChunkId(fastrand::u128(..).to_be_bytes()));
        let mut bytes = BytesMut::with_capacity(tag.as_bytes().len() + 48);
        msgpack::write_array_header(&mut bytes, 3);
        msgpack::write_str(&mut bytes, tag.as_bytes());
        msgpack::write_array_header(&mut bytes, 0);
        msgpack::write_map_header(&mut bytes, 1);
        msgpack::write_str(&mut bytes, b"chunk");
        msgpack::write_str(&mut bytes, &ack);
        let length = bytes.len() as u64;
        Self { ack, pieces: vec![bytes.freeze()], length, tag: tag.clone() }
    }
}

/// base64 of the id with a line end, as Fluentd's `Base64.encode64` writes it.
fn chunk_text(id: ChunkId) -> Bytes {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = Vec::with_capacity(25);
    for group in id.0.chunks(3) {
        let bits =
            group.iter().fold(0u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - group.len()));
        for index in 0..4 {
            let sextet = (bits >> (18 - 6 * index)) & 63;
            text.push(if index <= group.len() { ALPHABET[sextet as usize] } else { b'=' });
        }
    }
    text.push(b'\n');
    Bytes::from(text)
}

/// Why the bytes from a peer are no acks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AckError {
    /// It speaks the handshake.
    #[error("the peer asks for a handshake (HELO), but no <security> is configured here")]
    Handshake,
    /// It speaks something else.
    #[error("expected an ack {{\"ack\": id}}, got {0}")]
    Other(String),
}

/// Cuts the bytes from a peer into acks, wherever the network split them.
#[derive(Debug, Default)]
pub struct AckReader {
    buffer: BytesMut,
}

impl AckReader {
    /// Bytes arrived.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The text of the next complete ack.
    ///
    /// # Errors
    ///
    /// [`AckError`] when what came is no ack; the connection is of no use then.
    pub fn next_ack(&mut self) -> Result<Option<Vec<u8>>, AckError> {
        loop {
            if self.buffer.is_empty() {
                return Ok(None);
            }
            let end = match msgpack::skip(&self.buffer, 0) {
                Ok(end) => end,
                Err(Stop::Incomplete { .. }) if self.buffer.len() < ACK_BYTES_MAX => return Ok(None),
                Err(_) => return Err(AckError::Other(shown(&self.buffer))),
            };
            let message = self.buffer.split_to(end);
            match ack_text(&message) {
                Ok(Some(text)) => return Ok(Some(text)),
                // A map without ack says nothing (a later protocol may add to it).
                Ok(None) => {}
                Err(()) if is_hello(&message) => return Err(AckError::Handshake),
                Err(()) => return Err(AckError::Other(shown(&message))),
            }
        }
    }
}

/// The value of `ack` in a map; `Err` when it is no map.
fn ack_text(message: &[u8]) -> Result<Option<Vec<u8>>, ()> {
    let (Head::Map(count), mut at) = msgpack::head(message, 0).map_err(drop)? else { return Err(()) };
    for _ in 0..count {
        let key = text_at(message, at);
        let value_at = msgpack::skip(message, at).map_err(drop)?;
        if key == Some(b"ack") {
            return Ok(text_at(message, value_at).map(<[u8]>::to_vec));
        }
        at = msgpack::skip(message, value_at).map_err(drop)?;
    }
    Ok(None)
}

fn is_hello(message: &[u8]) -> bool {
    matches!(msgpack::head(message, 0), Ok((Head::Array(_), at)) if text_at(message, at) == Some(b"HELO"))
}

fn text_at(message: &[u8], at: usize) -> Option<&[u8]> {
    match msgpack::head(message, at).ok()? {
        (Head::Str(length) | Head::Bin(length), start) => message.get(start..start.checked_add(length)?),
        _ => None,
    }
}

/// The first bytes, for a log line.
fn shown(bytes: &[u8]) -> String {
    let mut start = [0; 16];
    let length = bytes.len().min(start.len());
    bytes.take(length).copy_to_slice(&mut start[..length]);
    let hex: Vec<String> = start[..length].iter().map(|byte| format!("{byte:02x}")).collect();
    hex.join(" ")
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::buffer::Metadata;

    #[test]
    fn the_bytes_are_those_of_fluentd() {
        let chunk = Chunk {
            id: ChunkId([0; 16]),
            metadata: Metadata::default(),
            count: 2,
            size_bytes: 6,
            created_at: SystemTime::UNIX_EPOCH,
            payload: vec![Bytes::from_static(b"\x92\x01\x80"), Bytes::from_static(b"\x92\x02\x80")],
        };
        let message = Message::of_chunk(&chunk, &Tag::from("a.b")).expect("short");
        let mut expected = b"\x93\xa3a.b\xdb\x00\x00\x00\x06\x92\x01\x80\x92\x02\x80".to_vec();
        expected.extend_from_slice(b"\x83\xa4size\x02\xaacompressed\xa4text\xa5chunk\xb9");
        expected.extend_from_slice(b"AAAAAAAAAAAAAAAAAAAAAA==\n");
        assert_eq!(message.pieces.concat(), expected);
        assert_eq!(message.length, expected.len() as u64);
        assert_eq!(message.pieces[1].as_ptr(), chunk.payload[0].as_ptr(), "the payload is not copied");
    }

    #[test]
    fn ids_are_base64_with_a_line_end() {
        let id = ChunkId(*b"\x66\x18\x06\x34\xf3\xcb\x24\xc7\x81\xd7\xa4\x7a\x03\x3c\x31\xa2");
        assert_eq!(&chunk_text(id)[..], b"ZhgGNPPLJMeB16R6Azwxog==\n");
    }

    #[test]
    fn acks_are_found_wherever_the_network_splits_them() {
        let bytes = b"\x81\xa3ack\xa2a\n\xc0\x82\xa1x\x01\xa3ack\xc4\x01b";
        // nil is no ack and no map.
        let mut reader = AckReader::default();
        reader.push(bytes);
        assert_eq!(reader.next_ack(), Ok(Some(b"a\n".to_vec())));
        assert!(matches!(reader.next_ack(), Err(AckError::Other(_))));

        let mut reader = AckReader::default();
        let mut found = Vec::new();
        for byte in b"\x81\xa3ack\xa2a\n\x82\xa1x\x01\xa3ack\xc4\x01b\x80" {
            reader.push(&[*byte]);
            while let Some(text) = reader.next_ack().expect("acks") {
                found.push(text);
            }
        }
        assert_eq!(found, [b"a\n".to_vec(), b"b".to_vec()]);
    }

    #[test]
    fn a_handshake_is_named() {
        let mut reader = AckReader::default();
        reader.push(b"\x92\xa4HELO\x80");
        assert_eq!(reader.next_ack(), Err(AckError::Handshake));
    }

    #[test]
    fn endless_nonsense_is_cut_off() {
        let mut reader = AckReader::default();
        reader.push(b"\xdb\xff\xff\xff\xff");
        assert_eq!(reader.next_ack(), Ok(None));
        reader.push(&vec![0; ACK_BYTES_MAX]);
        assert!(reader.next_ack().is_err());
    }
}
