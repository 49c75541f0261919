//! Acknowledgements: what a receiver writes, byte for byte, and what a sender reads.

use bytes::{Buf, Bytes, BytesMut};

use super::ChunkOption;
use crate::event::msgpack::{self, Head, Stop};

/// Most bytes of one answer. A chunk id is 25 bytes from Fluentd, and at most what we ourselves sent.
pub const ACK_SIZE_LIMIT_BYTES: usize = 64 * 1024;

/// Appends the answer to one message: `{"ack": chunk}` as msgpack.
pub fn write_ack(out: &mut Vec<u8>, chunk: &ChunkOption) {
    out.extend_from_slice(b"\x81\xa3ack");
    if chunk.binary {
        msgpack::write_bin(out, &chunk.bytes);
    } else {
        msgpack::write_str(out, &chunk.bytes);
    }
}

/// Why what a receiver sent is no acknowledgement. The connection is of no more use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AckError {
    /// Not msgpack, or cut by a malformed byte.
    #[error("malformed ack response: {0}")]
    Malformed(#[from] msgpack::Malformed),
    /// msgpack, but not a map with the key `ack` and a text.
    #[error("ack response is not a map with the key 'ack': {0}")]
    NotAnAck(String),
    /// More bytes than an answer can have.
    #[error("ack response is larger than {ACK_SIZE_LIMIT_BYTES} bytes")]
    TooLarge,
}

/// Reads acknowledgements out of what a receiver sends: several in one read, or one over many reads.
///
/// Bounded: at most [`ACK_SIZE_LIMIT_BYTES`] are kept of an unfinished answer.
#[derive(Debug, Default)]
pub struct AckReader {
    buffer: BytesMut,
}

impl AckReader {
    /// A reader for a fresh connection.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes in what was read; call [`AckReader::next_ack`] until it answers `None` after each read.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The chunk id of the next whole answer; `None` when more bytes are needed.
    pub fn next_ack(&mut self) -> Result<Option<Bytes>, AckError> {
        // A nil between answers is a heartbeat in the other direction: nothing to say about it.
        let nils = self.buffer.iter().take_while(|byte| **byte == 0xc0).count();
        self.buffer.advance(nils);
        if self.buffer.is_empty() {
            return Ok(None);
        }
        let end = match msgpack::skip(&self.buffer, 0) {
            Ok(end) => end,
            Err(Stop::Malformed(fault)) => return Err(fault.into()),
            Err(Stop::Incomplete { needed }) if needed.max(self.buffer.len()) > ACK_SIZE_LIMIT_BYTES => {
                return Err(AckError::TooLarge);
            }
            Err(Stop::Incomplete { .. }) => return Ok(None),
        };
        let answer = self.buffer.split_to(end).freeze();
        match find_ack(&answer) {
            Some(id) => Ok(Some(id)),
            None => Err(AckError::NotAnAck(crate::event::value::preview(&answer))),
        }
    }
}

fn find_ack(answer: &Bytes) -> Option<Bytes> {
    let raw = crate::event::value::lookup(answer, b"ack")?;
    match msgpack::head(raw, 0).ok()? {
        (Head::Str(_) | Head::Bin(_), at) => raw.get(at..).map(|id| answer.slice_ref(id)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_however_they_are_cut() {
        let mut wire = Vec::new();
        let ids = [&b"ZhgGNPDLJMeB16R6Azwxog==\n"[..], b"x", &[0xff; 300], b""];
        for (at, id) in ids.iter().enumerate() {
            write_ack(&mut wire, &ChunkOption { bytes: Bytes::copy_from_slice(id), binary: at == 2 });
        }
        for piece in 1..wire.len() {
            let mut reader = AckReader::new();
            let mut got = Vec::new();
            for bytes in wire.chunks(piece) {
                reader.push(bytes);
                while let Some(id) = reader.next_ack().unwrap() {
                    got.push(id);
                }
            }
            assert_eq!(got, ids, "pieces of {piece}");
        }
    }

    #[test]
    fn what_is_no_answer_is_an_error() {
        let read = |bytes: &[u8]| {
            let mut reader = AckReader::new();
            reader.push(bytes);
            reader.next_ack()
        };
        assert!(matches!(read(b"\x81\xa3nak\xa1x"), Err(AckError::NotAnAck(_))));
        assert!(matches!(read(b"\x81\xa3ack\xc0"), Err(AckError::NotAnAck(_))));
        assert!(matches!(read(b"\x05"), Err(AckError::NotAnAck(_))));
        assert!(matches!(read(b"\xc1"), Err(AckError::Malformed(_))));
        assert_eq!(read(b"\x81\xa3ack\xdb\x00\x10\x00\x00"), Err(AckError::TooLarge));
        assert_eq!(read(b"\xc0\xc0"), Ok(None));
    }
}
