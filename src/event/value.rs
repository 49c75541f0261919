//! A decoded record, for the few stations that look inside, and lookups that do not decode.

use std::borrow::Cow;

use bytes::BufMut;

use super::EventTime;
use super::msgpack::{self, Head, MAX_DEPTH, Malformed, Stop};

/// One msgpack value, owned. Strings are bytes.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// nil
    Nil,
    /// true, false
    Bool(bool),
    /// A negative integer, or any integer that fits.
    Int(i64),
    /// An integer above `i64::MAX`.
    UInt(u64),
    /// A float of 32 or 64 bits.
    Float(f64),
    /// str; not necessarily UTF-8.
    Str(Vec<u8>),
    /// bin
    Bin(Vec<u8>),
    /// array
    Array(Vec<Value>),
    /// map, in the order of the wire, keys of any kind.
    Map(Vec<(Value, Value)>),
    /// ext: type and data; type 0 with 8 bytes is an EventTime.
    Ext(i8, Vec<u8>),
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Str(text.as_bytes().to_vec())
    }
}

/// Most elements for which room is set aside on the word of a header alone; real ones grow the list as they come.
const TRUSTED_CAPACITY: usize = 64;

impl Value {
    /// Decodes the value at the start of `bytes`; answers it and its length.
    ///
    /// Fails on cut or malformed bytes and on nesting beyond [`MAX_DEPTH`].
    pub fn decode(bytes: &[u8]) -> Result<(Self, usize), Stop> {
        decode_at(bytes, 0, 0)
    }

    /// Appends the value as msgpack, each part in its shortest form (floats always as 64 bits, as Ruby does).
    pub fn encode(&self, out: &mut impl BufMut) {
        match self {
            Self::Nil => out.put_u8(0xc0),
            Self::Bool(flag) => out.put_u8(if *flag { 0xc3 } else { 0xc2 }),
            Self::Int(value) => msgpack::write_int(out, *value),
            Self::UInt(value) => msgpack::write_uint(out, *value),
            Self::Float(value) => {
                out.put_u8(0xcb);
                out.put_f64(*value);
            }
            Self::Str(text) => msgpack::write_str(out, text),
            Self::Bin(data) => msgpack::write_bin(out, data),
            Self::Array(items) => {
                msgpack::write_array_header(out, items.len() as u32);
                items.iter().for_each(|item| item.encode(out));
            }
            Self::Map(pairs) => {
                msgpack::write_map_header(out, pairs.len() as u32);
                for (key, value) in pairs {
                    key.encode(out);
                    value.encode(out);
                }
            }
            Self::Ext(kind, data) => encode_ext(out, *kind, data),
        }
    }

    /// The value as msgpack bytes of its own.
    pub fn to_msgpack(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.encode(&mut out);
        out
    }

    /// The bytes of a str or bin.
    pub fn as_bytes(&self) -> Option<&[u8]> {
        match self {
            Self::Str(bytes) | Self::Bin(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// The event time in an ext value of Fluentd's type.
    pub fn as_event_time(&self) -> Option<EventTime> {
        match self {
            Self::Ext(msgpack::EVENT_TIME_EXT, data) => event_time(data),
            _ => None,
        }
    }

    /// The value of a key of a map; the last one if the key is repeated, as a Ruby hash would have it.
    pub fn get(&self, key: &[u8]) -> Option<&Value> {
        let Self::Map(pairs) = self else { return None };
        pairs.iter().rev().find(|(candidate, _)| candidate.as_bytes() == Some(key)).map(|(_, value)| value)
    }

    /// A value from JSON. Integers beyond 64 bits become floats.
    pub fn from_json(json: &serde_json::Value) -> Self {
        match json {
            serde_json::Value::Null => Self::Nil,
            serde_json::Value::Bool(flag) => Self::Bool(*flag),
            serde_json::Value::Number(number) => number
                .as_i64()
                .map(Self::Int)
                .or_else(|| number.as_u64().map(Self::UInt))
                .unwrap_or_else(|| Self::Float(number.as_f64().unwrap_or(f64::NAN))),
            serde_json::Value::String(text) => Self::Str(text.as_bytes().to_vec()),
            serde_json::Value::Array(items) => Self::Array(items.iter().map(Self::from_json).collect()),
            serde_json::Value::Object(pairs) => Self::Map(
                pairs.iter().map(|(key, value)| (Self::from(key.as_str()), Self::from_json(value))).collect(),
            ),
        }
    }

    /// The value as JSON: bytes that are not UTF-8 are replaced by U+FFFD, an EventTime is its seconds (as in
    /// Fluentd), NaN and infinities are null, other keys than text become their JSON text.
    pub fn to_json(&self) -> serde_json::Value {
        match self {
            Self::Nil => serde_json::Value::Null,
            Self::Bool(flag) => (*flag).into(),
            Self::Int(value) => (*value).into(),
            Self::UInt(value) => (*value).into(),
            Self::Float(value) => (*value).into(),
            Self::Str(bytes) | Self::Bin(bytes) => String::from_utf8_lossy(bytes).into_owned().into(),
            Self::Array(items) => items.iter().map(Self::to_json).collect::<Vec<_>>().into(),
            Self::Map(pairs) => serde_json::Value::Object(
                pairs.iter().map(|(key, value)| (key_text(key).into_owned(), value.to_json())).collect(),
            ),
            Self::Ext(_, data) => match self.as_event_time() {
                Some(time) => time.seconds().into(),
                None => String::from_utf8_lossy(data).into_owned().into(),
            },
        }
    }
}

impl Value {
    /// A copy in which maps and arrays that are keys of maps are nil. A key's text is escaped once more at each level
    /// above it, so that a peer's 40 bytes of keys within keys would become gigabytes of backslashes.
    fn without_odd_keys(&self) -> Self {
        let plain = |key: &Self| match key {
            Self::Map(_) | Self::Array(_) => Self::Nil,
            _ => key.clone(),
        };
        match self {
            Self::Array(items) => Self::Array(items.iter().map(Self::without_odd_keys).collect()),
            Self::Map(pairs) => {
                Self::Map(pairs.iter().map(|(key, value)| (plain(key), value.without_odd_keys())).collect())
            }
            _ => self.clone(),
        }
    }
}

fn key_text(key: &Value) -> Cow<'_, str> {
    match key.as_bytes() {
        Some(bytes) => String::from_utf8_lossy(bytes),
        None => Cow::Owned(key.without_odd_keys().to_json().to_string()),
    }
}

fn event_time(data: &[u8]) -> Option<EventTime> {
    let (seconds, rest) = data.split_first_chunk::<4>()?;
    let nanoseconds: &[u8; 4] = rest.try_into().ok()?;
    Some(EventTime::Ext {
        seconds: u32::from_be_bytes(*seconds),
        nanoseconds: u32::from_be_bytes(*nanoseconds),
    })
}

fn encode_ext(out: &mut impl BufMut, kind: i8, data: &[u8]) {
    match data.len() {
        1 => out.put_u8(0xd4),
        2 => out.put_u8(0xd5),
        4 => out.put_u8(0xd6),
        8 => out.put_u8(0xd7),
        16 => out.put_u8(0xd8),
        length @ 0..=0xff => {
            out.put_u8(0xc7);
            out.put_u8(length as u8);
        }
        length @ 0x100..=0xffff => {
            out.put_u8(0xc8);
            out.put_u16(length as u16);
        }
        length => {
            out.put_u8(0xc9);
            out.put_u32(length as u32);
        }
    }
    out.put_i8(kind);
    out.put_slice(data);
}

fn payload(bytes: &[u8], at: usize, length: usize) -> Result<(&[u8], usize), Stop> {
    let end = at.saturating_add(length);
    bytes.get(at..end).map(|data| (data, end)).ok_or(Stop::Incomplete { needed: end })
}

fn decode_at(bytes: &[u8], pos: usize, depth: usize) -> Result<(Value, usize), Stop> {
    let (head, at) = msgpack::head(bytes, pos)?;
    Ok(match head {
        Head::Nil => (Value::Nil, at),
        Head::Bool(flag) => (Value::Bool(flag), at),
        Head::Int(value) => (Value::Int(value), at),
        Head::UInt(value) => (Value::UInt(value), at),
        Head::Float(value) => (Value::Float(value), at),
        Head::Str(length) => {
            payload(bytes, at, length).map(|(data, end)| (Value::Str(data.to_vec()), end))?
        }
        Head::Bin(length) => {
            payload(bytes, at, length).map(|(data, end)| (Value::Bin(data.to_vec()), end))?
        }
        Head::Ext(kind, length) => {
            payload(bytes, at, length).map(|(data, end)| (Value::Ext(kind, data.to_vec()), end))?
        }
        Head::Array(1..) | Head::Map(1..) if depth >= MAX_DEPTH => return Err(Malformed::TooDeep.into()),
        Head::Array(count) => {
            let mut items = Vec::with_capacity((count as usize).min(TRUSTED_CAPACITY));
            let mut end = at;
            for _ in 0..count {
                let (item, next) = decode_at(bytes, end, depth + 1)?;
                items.push(item);
                end = next;
            }
            (Value::Array(items), end)
        }
        Head::Map(count) => {
            let mut pairs = Vec::with_capacity((count as usize).min(TRUSTED_CAPACITY));
            let mut end = at;
            for _ in 0..count {
                let (key, value_at) = decode_at(bytes, end, depth + 1)?;
                let (value, next) = decode_at(bytes, value_at, depth + 1)?;
                pairs.push((key, value));
                end = next;
            }
            (Value::Map(pairs), end)
        }
    })
}

/// The raw bytes of a top-level key's value in a raw record, without decoding; the last one if the key is repeated.
///
/// `None` when the record is not a map, has no such key, or is cut off.
pub fn lookup<'a>(record: &'a [u8], key: &[u8]) -> Option<&'a [u8]> {
    let (Head::Map(count), mut pos) = msgpack::head(record, 0).ok()? else { return None };
    let mut found = None;
    for _ in 0..count {
        let (head, at) = msgpack::head(record, pos).ok()?;
        let (value_at, matches) = match head {
            Head::Str(length) | Head::Bin(length) => {
                let end = at.checked_add(length)?;
                (end, record.get(at..end)? == key)
            }
            _ => (msgpack::skip(record, pos).ok()?, false),
        };
        pos = msgpack::skip(record, value_at).ok()?;
        if matches {
            found = record.get(value_at..pos);
        }
    }
    found
}

/// The text of a raw str or bin value (as [`lookup`] answers it), without copying.
pub fn text_of(raw: &[u8]) -> Option<&[u8]> {
    match msgpack::head(raw, 0).ok()? {
        (Head::Str(length) | Head::Bin(length), at) => raw.get(at..at.checked_add(length)?),
        _ => None,
    }
}

/// Raw values longer than this are named by their size only in [`preview`]: a log line is no place for megabytes.
const PREVIEW_INPUT_BYTES: usize = 4096;
/// Longest text that [`preview`] answers.
const PREVIEW_TEXT_BYTES: usize = 256;

/// A raw value as short text for one log line: JSON, cut to 256 bytes.
pub fn preview(raw: &[u8]) -> String {
    if raw.len() > PREVIEW_INPUT_BYTES {
        return format!("({} bytes)", raw.len());
    }
    let Ok((value, _)) = Value::decode(raw) else { return format!("({} bytes)", raw.len()) };
    let mut text = value.to_json().to_string();
    if text.len() > PREVIEW_TEXT_BYTES {
        let end = (0..=PREVIEW_TEXT_BYTES).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
        text.truncate(end);
        text.push_str("...");
    }
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Any value up to a few levels, strings not necessarily UTF-8.
    pub(crate) fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Nil),
            any::<bool>().prop_map(Value::Bool),
            any::<i64>().prop_map(Value::Int),
            (i64::MAX as u64 + 1..).prop_map(Value::UInt),
            (-1e300f64..1e300).prop_map(Value::Float),
            prop::collection::vec(any::<u8>(), 0..300).prop_map(Value::Str),
            prop::collection::vec(any::<u8>(), 0..300).prop_map(Value::Bin),
            prop::collection::vec(any::<u8>(), 0..20).prop_map(|data| Value::Ext(0, data)),
        ];
        leaf.prop_recursive(4, 32, 20, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..20).prop_map(Value::Array),
                prop::collection::vec((inner.clone(), inner), 0..20).prop_map(Value::Map),
            ]
        })
    }

    proptest! {
        #[test]
        fn values_come_back(value in any_value()) {
            let bytes = value.to_msgpack();
            prop_assert_eq!(Value::decode(&bytes), Ok((value, bytes.len())));
            prop_assert_eq!(msgpack::skip(&bytes, 0), Ok(bytes.len()));
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let decoded = Value::decode(&bytes).map(|(_, end)| end);
            prop_assert_eq!(decoded, msgpack::skip(&bytes, 0).map_err(|_| decoded.unwrap_err()));
            let _ = lookup(&bytes, b"a");
            let _ = preview(&bytes);
        }

        #[test]
        fn lookup_finds_what_decoding_finds(value in prop::collection::vec(("[ab]", any_value()), 0..6)) {
            let record = Value::Map(value.into_iter().map(|(key, value)| (Value::from(key.as_str()), value)).collect());
            let bytes = record.to_msgpack();
            for key in [b"a", b"b"] {
                let found = lookup(&bytes, key).map(|raw| Value::decode(raw).unwrap().0);
                prop_assert_eq!(found.as_ref(), record.get(key));
            }
        }
    }

    #[test]
    fn keys_within_keys_do_not_grow_with_each_level() {
        // 100 maps, each the only key of the one around it (found by the fuzz target frame_reader).
        let bytes = [vec![0x81; 100], vec![1; 101]].concat();
        let (value, _) = Value::decode(&bytes).unwrap();
        assert_eq!(value.to_json().to_string(), r#"{"{\"null\":1}":1}"#);
    }

    #[test]
    fn json_goes_in_and_out() {
        let text = r#"{"a":1,"b":[-1,1.5,null,true],"c":{"d":"é"},"u":18446744073709551615}"#;
        let value = Value::from_json(&serde_json::from_str(text).unwrap());
        assert_eq!(value.to_json().to_string(), text);
        let time = Value::Ext(0, vec![0, 0, 0, 5, 0, 0, 0, 9]);
        assert_eq!(time.to_json(), serde_json::json!(5));
        assert_eq!(Value::Str(vec![b'a', 0xff]).to_json(), serde_json::json!("a\u{fffd}"));
    }

    #[test]
    fn nesting_is_bounded() {
        let mut bytes = vec![0x91; MAX_DEPTH];
        bytes.push(0xc0);
        assert!(Value::decode(&bytes).is_ok());
        bytes.insert(0, 0x91);
        assert_eq!(Value::decode(&bytes), Err(Malformed::TooDeep.into()));
    }

    #[test]
    fn preview_is_short() {
        assert_eq!(preview(&Value::Map(vec![("a".into(), Value::Int(1))]).to_msgpack()), r#"{"a":1}"#);
        assert!(preview(&Value::Str(vec![b'x'; 4000]).to_msgpack()).len() < 270);
        assert_eq!(preview(&Value::Str(vec![b'x'; 5000]).to_msgpack()), "(5003 bytes)");
    }
}
