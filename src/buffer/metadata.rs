//! Chunk keys and the metadata that a chunk carries for life.

use bytes::Bytes;

use crate::event::{Tag, Value};

/// Which properties of an event decide its chunk (`<buffer KEYS>`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChunkKeys {
    /// `tag` is a key.
    pub tag: bool,
    /// `time` is a key.
    pub time: bool,
    /// Record fields as configured: `name` or `$.a.b[0]`.
    pub fields: Vec<String>,
}

/// Chunk keys that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid chunk key '{key}': {expected}")]
pub struct ChunkKeyError {
    /// The key as configured.
    pub key: String,
    /// What was expected.
    pub expected: String,
}

impl ChunkKeys {
    /// No key at all: one chunk for everything.
    pub fn is_empty(&self) -> bool {
        !self.tag && !self.time && self.fields.is_empty()
    }
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

impl Metadata {
    /// A copy that shares no bytes with what was read from a socket, for chunks that outlive the read buffer.
    pub fn detached(&self) -> Self {
        Self {
            timekey: self.timekey,
            tag: self.tag.as_ref().map(Tag::detached),
            variables: self.variables.clone(),
        }
    }
}

/// Appends metadata as msgpack: `[timekey or nil, tag as bin or nil, {name: value}]`.
pub(super) fn encode(metadata: &Metadata, out: &mut Vec<u8>) {
    let variables =
        metadata.variables.iter().map(|(name, value)| (Value::from(name.as_str()), value.clone())).collect();
    Value::Array(vec![
        metadata.timekey.map_or(Value::Nil, Value::Int),
        metadata.tag.as_ref().map_or(Value::Nil, |tag| Value::Bin(tag.as_bytes().to_vec())),
        Value::Map(variables),
    ])
    .encode(out);
}

/// The reverse; `None` if the bytes are none.
pub(super) fn decode(bytes: &[u8]) -> Option<Metadata> {
    let (Value::Array(parts), used) = Value::decode(bytes).ok()? else { return None };
    let [timekey, tag, Value::Map(variables)] = <[Value; 3]>::try_from(parts).ok()? else { return None };
    if used != bytes.len() {
        return None;
    }
    Some(Metadata {
        timekey: match timekey {
            Value::Nil => None,
            Value::Int(seconds) => Some(seconds),
            _ => return None,
        },
        tag: match tag {
            Value::Nil => None,
            Value::Bin(bytes) => Some(Tag::new(Bytes::from(bytes))),
            _ => return None,
        },
        variables: variables
            .into_iter()
            .map(|(name, value)| match name {
                Value::Str(name) => Some((String::from_utf8_lossy(&name).into_owned(), value)),
                _ => None,
            })
            .collect::<Option<_>>()?,
    })
}

/// Metadata in a form that can be looked up: equal exactly when the encoded bytes are (so NaN equals itself).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct StageKey {
    timekey: Option<i64>,
    tag: Option<Tag>,
    /// Encoded; empty without field keys, so the usual case allocates nothing.
    variables: Vec<u8>,
}

impl StageKey {
    /// The key of this metadata; shares the tag's bytes.
    pub(super) fn new(metadata: &Metadata) -> Self {
        let mut variables = Vec::new();
        for (name, value) in &metadata.variables {
            Value::from(name.as_str()).encode(&mut variables);
            value.encode(&mut variables);
        }
        Self { timekey: metadata.timekey, tag: metadata.tag.clone(), variables }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_survives_its_encoding() {
        for metadata in [
            Metadata::default(),
            Metadata {
                timekey: Some(-3600),
                tag: Some(Tag::new(Bytes::from_static(b"a.\xff"))),
                variables: vec![
                    ("host".into(), Value::Nil),
                    ("$.k".into(), Value::Array(vec![Value::Bool(true), Value::UInt(u64::MAX)])),
                ],
            },
        ] {
            let mut bytes = Vec::new();
            encode(&metadata, &mut bytes);
            assert_eq!(decode(&bytes), Some(metadata));
            for cut in 0..bytes.len() {
                assert_eq!(decode(&bytes[..cut]), None);
            }
        }
    }
}
