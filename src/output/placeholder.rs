//! Placeholders in parameters of buffered outputs: `${tag}`, `${tag[1]}`, `${field}`, `${chunk_id}`, strftime codes.
//!
//! Source: Fluentd `lib/fluent/plugin/output.rb` (`extract_placeholders`).

use crate::buffer::{ChunkId, ChunkKeys, Metadata};
use crate::event::{EventTime, Value};
use crate::formatter::ruby_text;
use crate::formatter::token::Cursor;
use crate::time::{BrokenTime, TimeFormat, Zone};

/// A tag or field value that would lead out of the directory that the configuration names.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid path component detected in {placeholder}: {value:?}")]
pub struct InvalidPathComponent {
    /// The placeholder as configured.
    pub placeholder: String,
    /// Its value.
    pub value: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    /// Literal bytes.
    Literal(String),
    /// Literal text with strftime codes; only with chunk key `time`.
    Time(TimeFormat),
    Tag,
    TagAt(i64),
    ChunkId,
    Field(String),
}

/// A parameter with placeholders, read once for the chunk keys in force.
#[derive(Clone, Debug)]
pub struct Template {
    parts: Vec<Part>,
    zone: Zone,
}

impl Template {
    /// Reads a text. `zone` is that of the time slots (`timekey_zone`).
    pub fn new(text: &str, keys: &ChunkKeys, zone: Zone) -> Self {
        let mut template = Self { parts: Vec::new(), zone };
        for piece in split(text) {
            match piece {
                Piece::Text(text) => template.push_text(text, keys),
                Piece::Placeholder(whole, name) => template.push_placeholder(whole, name, keys),
            }
        }
        template
    }

    fn push_text(&mut self, text: &str, keys: &ChunkKeys) {
        self.parts.push(if keys.time {
            Part::Time(TimeFormat::parse(text))
        } else {
            Part::Literal(text.to_owned())
        });
    }

    fn push_placeholder(&mut self, whole: &str, name: &str, keys: &ChunkKeys) {
        let part = match name {
            "chunk_id" if !self.parts.contains(&Part::ChunkId) => Some(Part::ChunkId),
            "tag" if keys.tag => Some(Part::Tag),
            _ if keys.tag && tag_index(name).is_some() => tag_index(name).map(Part::TagAt),
            _ if keys.fields.iter().any(|field| field == name) => Some(Part::Field(name.to_owned())),
            _ => None,
        };
        match part {
            Some(part) => self.parts.push(part),
            None => {
                // Fluentd empties unknown placeholders once it looks for fields at all, and leaves them otherwise.
                if keys.fields.is_empty() {
                    self.parts.push(Part::Literal(whole.to_owned()));
                }
            }
        }
    }

    /// The text for one chunk. Bytes, because tags and fields need not be UTF-8.
    pub fn expand(&self, metadata: &Metadata, chunk: ChunkId) -> Result<Vec<u8>, InvalidPathComponent> {
        let mut out = Vec::new();
        for part in &self.parts {
            match part {
                Part::Literal(text) => out.extend_from_slice(text.as_bytes()),
                Part::Time(format) => {
                    let slot = EventTime::Int(metadata.timekey.unwrap_or(0));
                    format.format(&BrokenTime::new(slot, &self.zone), &mut out);
                }
                Part::ChunkId => out.extend_from_slice(chunk.to_string().as_bytes()),
                Part::Tag => out.extend_from_slice(checked("${tag}", tag(metadata))?),
                Part::TagAt(index) => {
                    let part = tag_part(tag(metadata), *index);
                    out.extend_from_slice(checked(&format!("${{tag[{index}]}}"), part)?);
                }
                Part::Field(name) => {
                    let text = field_text(metadata, name);
                    out.extend_from_slice(checked(&format!("${{{name}}}"), &text)?);
                }
            }
        }
        Ok(out)
    }
}

/// What is wrong with a parameter whose placeholders must fit the chunk keys exactly (out_file, out_secondary_file).
/// `text` is the parameter with everything that the plugin adds to it.
pub fn validate(text: &str, keys: &ChunkKeys) -> Vec<String> {
    let mut faults = Vec::new();
    let (mut has_tag, mut has_time, mut used) = (false, false, Vec::new());
    for piece in split(text) {
        match piece {
            Piece::Text(text) => has_time |= TimeFormat::parse(text).has_codes(),
            Piece::Placeholder(_, "chunk_id") => {}
            Piece::Placeholder(_, name) if name == "tag" || tag_index(name).is_some() => has_tag = true,
            Piece::Placeholder(_, name) => used.push(name),
        }
    }
    match (keys.time, has_time) {
        (true, false) => {
            faults.push("has no timestamp placeholder, but chunk key 'time' is configured".to_owned())
        }
        (false, true) => {
            faults.push("has timestamp placeholders, but chunk key 'time' is not configured".to_owned());
        }
        _ => {}
    }
    match (keys.tag, has_tag) {
        (true, false) => faults.push("has no tag placeholder, but chunk key 'tag' is configured".to_owned()),
        (false, true) => {
            faults.push("has tag placeholders, but chunk key 'tag' is not configured".to_owned())
        }
        _ => {}
    }
    let not_used: Vec<_> =
        keys.fields.iter().filter(|key| !used.contains(&key.as_str())).map(String::as_str).collect();
    if !not_used.is_empty() {
        faults.push(format!("doesn't have enough placeholders for keys {}", not_used.join(",")));
    }
    let not_keys: Vec<_> =
        used.iter().filter(|name| !keys.fields.iter().any(|key| key == *name)).copied().collect();
    if !not_keys.is_empty() {
        faults.push(format!("has placeholders, but chunk keys doesn't have keys {}", not_keys.join(",")));
    }
    faults
}

enum Piece<'a> {
    Text(&'a str),
    /// The whole of it, and what stands between the braces.
    Placeholder(&'a str, &'a str),
}

fn split(text: &str) -> Vec<Piece<'_>> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while let Some(start) = rest.find("${") {
        let (before, from) = rest.split_at(start);
        let Some(end) = from.find('}') else { break };
        if !before.is_empty() {
            pieces.push(Piece::Text(before));
        }
        pieces.push(Piece::Placeholder(&from[..=end], &from[2..end]));
        rest = &from[end + 1..];
    }
    if !rest.is_empty() {
        pieces.push(Piece::Text(rest));
    }
    pieces
}

/// The number in `tag[N]`.
fn tag_index(name: &str) -> Option<i64> {
    name.strip_prefix("tag[")?.strip_suffix(']')?.parse().ok()
}

fn tag(metadata: &Metadata) -> &[u8] {
    metadata.tag.as_ref().map_or(&[], |tag| tag.as_bytes())
}

fn tag_part(tag: &[u8], index: i64) -> &[u8] {
    let parts = || tag.split(|byte| *byte == b'.');
    let wanted = usize::try_from(index)
        .ok()
        .or_else(|| parts().count().checked_sub(usize::try_from(index.unsigned_abs()).ok()?));
    wanted.and_then(|at| parts().nth(at)).unwrap_or_default()
}

fn field_text(metadata: &Metadata, name: &str) -> Vec<u8> {
    let value =
        metadata.variables.iter().find(|(key, _)| key == name).map_or(&Value::Nil, |(_, value)| value);
    let mut text = Vec::new();
    // What we encoded ourselves reads back.
    let _ = ruby_text::write_text(&mut Cursor::new(&value.to_msgpack()), &mut text);
    text
}

/// Refuses a value that could name a file outside the configured directory. Beyond what Fluentd refuses, a value that
/// is or ends with `..` would do the same together with the `/` that may follow it in the template.
fn checked<'a>(placeholder: &str, value: &'a [u8]) -> Result<&'a [u8], InvalidPathComponent> {
    let separator = |byte: Option<&u8>| matches!(byte, Some(b'/' | b'\\'));
    let climbs = |window: &[u8]| matches!(window, b"../" | b"..\\");
    let ends_in_parent =
        value.strip_suffix(b"..").is_some_and(|rest| rest.is_empty() || separator(rest.last()));
    if separator(value.first()) || value.windows(3).any(climbs) || ends_in_parent {
        return Err(InvalidPathComponent {
            placeholder: placeholder.to_owned(),
            value: String::from_utf8_lossy(value).into_owned(),
        });
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Tag;

    fn keys(tag: bool, time: bool, fields: &[&str]) -> ChunkKeys {
        ChunkKeys { tag, time, fields: fields.iter().map(|field| (*field).to_owned()).collect() }
    }

    fn metadata(tag: &str, field: Value) -> Metadata {
        Metadata {
            timekey: Some(1_577_934_000),
            tag: Some(Tag::from(tag)),
            variables: vec![("$.a.b".to_owned(), field)],
        }
    }

    fn expand(text: &str, keys: &ChunkKeys, metadata: &Metadata) -> String {
        let template = Template::new(text, keys, Zone::Fixed(3600));
        String::from_utf8(template.expand(metadata, ChunkId([0xab; 16])).expect("safe values"))
            .expect("UTF-8")
    }

    #[test]
    fn placeholders_follow_the_chunk_keys() {
        let all = keys(true, true, &["$.a.b"]);
        let some = metadata("app.web.x", Value::Int(7));
        let id = "ab".repeat(16);
        for (text, expected) in [
            (
                "%Y-%H|%%|${tag}|${tag[0]}|${tag[-1]}|${tag[9]}|${tag[-9]}",
                "2020-04|%|app.web.x|app|x||".to_owned(),
            ),
            ("${$.a.b}|${nope}|${chunk_id}|${chunk_id}", format!("7||{id}|")),
            ("${tag", "${tag".to_owned()),
        ] {
            assert_eq!(expand(text, &all, &some), expected);
        }
        let tag_only = keys(true, false, &[]);
        assert_eq!(
            expand("%Y ${tag} ${x} ${chunk_id}", &tag_only, &some),
            format!("%Y app.web.x ${{x}} {id}")
        );
        let none = keys(false, false, &[]);
        assert_eq!(
            expand("%Y ${tag} ${chunk_id} ${chunk_id}", &none, &some),
            format!("%Y ${{tag}} {id} ${{chunk_id}}")
        );
        assert_eq!(expand("${$.a.b}", &all, &metadata("t", Value::Nil)), "");
        assert_eq!(expand("${$.a.b}", &all, &metadata("t", Value::Array(vec![Value::Nil]))), "[nil]");
    }

    #[test]
    fn values_that_leave_the_directory_are_refused() {
        let template = Template::new("x/${tag}/y", &keys(true, false, &[]), Zone::Utc);
        for bad in ["/etc", "\\x", "a/../b", "a..\\b", "..", "a/.."] {
            assert!(template.expand(&metadata(bad, Value::Nil), ChunkId([0; 16])).is_err(), "{bad}");
        }
        for good in ["a/b", "a..b", "...", ".", "a."] {
            assert!(template.expand(&metadata(good, Value::Nil), ChunkId([0; 16])).is_ok(), "{good}");
        }
    }

    #[test]
    fn validation_names_each_mismatch() {
        assert!(validate("a.${tag[1]}.${k}.%Y", &keys(true, true, &["k"])).is_empty());
        assert!(validate("a", &keys(false, false, &[])).is_empty());
        assert_eq!(validate("a", &keys(true, true, &["k"])).len(), 3);
        assert_eq!(validate("a.${tag}.${k}.%d", &keys(false, false, &[])).len(), 3);
    }
}
