use std::fmt;

use bytes::Bytes;

/// An event's tag: bytes, usually a slice of what was read from the socket, so that cloning allocates nothing.
///
/// Not necessarily UTF-8: the wire allows `str` and `bin` of any content.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tag(Bytes);

impl Tag {
    /// A tag that shares the given bytes.
    pub fn new(bytes: Bytes) -> Self {
        Self(bytes)
    }

    /// A tag whose bytes are copied into an allocation of their own, for keys that outlive the read buffer.
    pub fn detached(&self) -> Self {
        Self(Bytes::copy_from_slice(&self.0))
    }

    /// The raw bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl From<&str> for Tag {
    fn from(text: &str) -> Self {
        Self(Bytes::copy_from_slice(text.as_bytes()))
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.0))
    }
}

impl fmt::Debug for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&String::from_utf8_lossy(&self.0), f)
    }
}
