//! Chunk keys and the metadata that a chunk carries for life.

use crate::event::{Tag, Value};

/// Which properties of an event decide its chunk (argument of `<buffer ...>`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChunkKeys {
    /// `tag` is a key.
    pub tag: bool,
    /// `time` is a key.
    pub time: bool,
    /// Record fields as configured: `name` or `$.a.b[0]`.
    pub fields: Vec<String>,
}

/// The values of the chunk keys for one chunk. Written once, never changed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metadata {
    /// Start of the time slot in Unix seconds, when `time` is a key.
    pub timekey: Option<i64>,
    /// The tag, when `tag` is a key.
    pub tag: Option<Tag>,
    /// Chunk-key text as configured -> value (nil when the record has no such field), in the order of the keys.
    pub variables: Vec<(String, Value)>,
}
