//! A chunk as it goes over the wire: head, the chunk's bytes as they lie in the buffer, tail. The payload is never
//! copied.

use bytes::{Bytes, BytesMut};

use crate::buffer::Chunk;
use crate::event::Tag;
use crate::event::msgpack;
use crate::forward::encode::{self, PayloadCompression};

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
        let ack = encode::chunk_id_text(&chunk.id.0);
        let mut head = BytesMut::with_capacity(tag.as_bytes().len() + 16);
        if !encode::write_head(&mut head, tag.as_bytes(), payload) {
            return None;
        }
        let mut tail = BytesMut::with_capacity(64);
        encode::write_tail(&mut tail, chunk.count, PayloadCompression::Text, Some(&ack));
        let length = (head.len() + tail.len()) as u64 + payload;
        let mut pieces = Vec::with_capacity(chunk.payload.len() + 2);
        pieces.push(head.freeze());
        pieces.extend(chunk.payload.iter().filter(|piece| !piece.is_empty()).cloned());
        pieces.push(tail.freeze());
        Some(Self { ack: Bytes::from(ack), pieces, length, tag: tag.clone() })
    }

    /// A message without events that must be acknowledged all the same (Fluentd does): asks a peer whether it still
    /// answers, without risking that an event arrives twice. The tag is one that the peer has seen.
    pub fn empty(tag: &Tag) -> Self {
        let ack = encode::chunk_id_text(&fastrand::u128(..).to_be_bytes());
        let mut bytes = BytesMut::with_capacity(tag.as_bytes().len() + 48);
        msgpack::write_array_header(&mut bytes, 3);
        msgpack::write_str(&mut bytes, tag.as_bytes());
        msgpack::write_array_header(&mut bytes, 0);
        msgpack::write_map_header(&mut bytes, 1);
        msgpack::write_str(&mut bytes, b"chunk");
        msgpack::write_str(&mut bytes, ack.as_bytes());
        let length = bytes.len() as u64;
        Self { ack: Bytes::from(ack), pieces: vec![bytes.freeze()], length, tag: tag.clone() }
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::buffer::{ChunkId, Metadata};

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
}
