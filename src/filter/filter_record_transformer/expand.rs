//! Placeholders: text with holes, filled from an event. Pure.

use std::cell::OnceCell;

use crate::event::msgpack;
use crate::event::value::lookup;
use crate::event::{EventTime, Value};
use crate::formatter::ruby_text;
use crate::formatter::token::Cursor;
use crate::time::{BrokenTime, TimeFormat, Zone};

/// What placeholders see.
pub(super) struct EventView<'a> {
    pub(super) tag: &'a TagView<'a>,
    pub(super) time: EventTime,
    pub(super) record: &'a [u8],
    pub(super) hostname: &'a [u8],
    pub(super) time_format: &'a TimeFormat,
    pub(super) zone: &'a Zone,
    pub(super) auto_typecast: bool,
}

/// A tag and where its dots are, found once per batch.
pub(super) struct TagView<'a> {
    tag: &'a [u8],
    parts: OnceCell<Vec<(usize, usize)>>,
}

impl<'a> TagView<'a> {
    pub(super) fn new(tag: &'a [u8]) -> Self {
        Self { tag, parts: OnceCell::new() }
    }

    /// Start and end of each part. Ruby's `split` drops empty parts at the end.
    fn parts(&self) -> &[(usize, usize)] {
        self.parts.get_or_init(|| {
            let mut parts = Vec::new();
            let mut start = 0;
            for part in self.tag.split(|byte| *byte == b'.') {
                parts.push((start, start + part.len()));
                start += part.len() + 1;
            }
            while parts.last().is_some_and(|(start, end)| start == end) {
                parts.pop();
            }
            parts
        })
    }

    fn part(&self, index: i64) -> Option<(usize, usize)> {
        let parts = self.parts();
        let from_end = || parts.len().checked_sub(usize::try_from(index.unsigned_abs()).ok()?);
        let at = if index < 0 { from_end()? } else { usize::try_from(index).ok()? };
        parts.get(at).copied()
    }

    fn slice(&self, start: usize, end: usize) -> Option<&'a [u8]> {
        self.tag.get(start..end)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Placeholder {
    Tag,
    Hostname,
    Time,
    TagPart(i64),
    TagPrefix(i64),
    TagSuffix(i64),
    Record(Vec<u8>),
    Unknown,
}

impl Placeholder {
    /// Reads what stands in `${...}`.
    fn parse(inner: &str) -> Self {
        let index = |name: &str| inner.strip_prefix(name)?.strip_prefix('[')?.strip_suffix(']')?.parse().ok();
        let field = || inner.strip_prefix("record[\"")?.strip_suffix("\"]");
        match inner {
            "tag" => Self::Tag,
            "hostname" => Self::Hostname,
            "time" => Self::Time,
            _ => None
                .or_else(|| index("tag_parts").map(Self::TagPart))
                .or_else(|| index("tag_prefix").map(Self::TagPrefix))
                .or_else(|| index("tag_suffix").map(Self::TagSuffix))
                .or_else(|| field().map(|key| Self::Record(key.as_bytes().to_vec())))
                .unwrap_or(Self::Unknown),
        }
    }

    /// Text that the placeholder stands for, if it is text and known.
    fn text<'a>(&self, event: &EventView<'a>) -> Option<&'a [u8]> {
        match self {
            Self::Tag => Some(event.tag.tag),
            Self::Hostname => Some(event.hostname),
            Self::TagPart(index) => {
                event.tag.part(*index).and_then(|(start, end)| event.tag.slice(start, end))
            }
            Self::TagPrefix(index) => event.tag.part(*index).and_then(|(_, end)| event.tag.slice(0, end)),
            Self::TagSuffix(index) => {
                let end = event.tag.parts().last()?.1;
                event.tag.part(*index).and_then(|(start, _)| event.tag.slice(start, end))
            }
            Self::Time | Self::Record(_) | Self::Unknown => None,
        }
    }

    /// Appends its text; an unknown one gives nothing and is counted.
    fn write_text(&self, event: &EventView<'_>, out: &mut Vec<u8>, unknown: &mut u64) {
        match self {
            Self::Time => event.time_format.format(&BrokenTime::new(event.time, event.zone), out),
            Self::Record(key) => match lookup(event.record, key) {
                // Behind the shape scan every value reads to its end.
                Some(value) => drop(ruby_text::write_text(&mut Cursor::new(value), out)),
                None => *unknown += 1,
            },
            _ => match self.text(event) {
                Some(text) => out.extend_from_slice(text),
                None => *unknown += 1,
            },
        }
    }

    /// Appends its value as msgpack, in its own type; nil when unknown.
    fn write_value(&self, event: &EventView<'_>, out: &mut Vec<u8>, unknown: &mut u64) {
        match self {
            Self::Time => {
                let mut text = Vec::new();
                self.write_text(event, &mut text, unknown);
                msgpack::write_str(out, &text);
            }
            Self::Record(key) => match lookup(event.record, key) {
                Some(value) => out.extend_from_slice(value),
                None => write_unknown(out, unknown),
            },
            _ => match self.text(event) {
                Some(text) => msgpack::write_str(out, text),
                None => write_unknown(out, unknown),
            },
        }
    }
}

fn write_unknown(out: &mut Vec<u8>, unknown: &mut u64) {
    *unknown += 1;
    Value::Nil.encode(out);
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Literal(Vec<u8>),
    Hole(Placeholder),
}

/// Text with placeholders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Template(Vec<Piece>);

impl Template {
    /// Reads a text: `${...}` and `__NAME__` are placeholders, the latter all unknown since v0.12 is gone.
    pub(super) fn parse(text: &str) -> Self {
        let mut pieces = Vec::new();
        let mut literal_from = 0;
        let mut at = 0;
        while at < text.len() {
            let rest = text.get(at..).unwrap_or_default();
            let found = dollar_placeholder(rest).or_else(|| underscore_placeholder(rest));
            let Some((length, placeholder)) = found else {
                at += rest.chars().next().map_or(1, char::len_utf8);
                continue;
            };
            push_literal(&mut pieces, text.get(literal_from..at));
            pieces.push(Piece::Hole(placeholder));
            at += length;
            literal_from = at;
        }
        push_literal(&mut pieces, text.get(literal_from..));
        Self(pieces)
    }

    /// Appends the text of an event.
    pub(super) fn write_text(&self, event: &EventView<'_>, out: &mut Vec<u8>, unknown: &mut u64) {
        for piece in &self.0 {
            match piece {
                Piece::Literal(text) => out.extend_from_slice(text),
                Piece::Hole(placeholder) => placeholder.write_text(event, out, unknown),
            }
        }
    }

    fn write_value(&self, event: &EventView<'_>, out: &mut Vec<u8>, unknown: &mut u64) {
        match self.0.as_slice() {
            [Piece::Literal(text)] => msgpack::write_str(out, text),
            [Piece::Hole(placeholder)] if event.auto_typecast => placeholder.write_value(event, out, unknown),
            _ => {
                let mut text = Vec::new();
                self.write_text(event, &mut text, unknown);
                msgpack::write_str(out, &text);
            }
        }
    }
}

fn push_literal(pieces: &mut Vec<Piece>, text: Option<&str>) {
    if let Some(text) = text.filter(|text| !text.is_empty()) {
        pieces.push(Piece::Literal(text.as_bytes().to_vec()));
    }
}

/// `${...}` with at least one character in it that is no closing brace.
fn dollar_placeholder(rest: &str) -> Option<(usize, Placeholder)> {
    let inner = rest.strip_prefix("${")?;
    let end = inner.find('}').filter(|end| *end > 0)?;
    Some((end + 3, Placeholder::parse(inner.get(..end)?)))
}

/// `__NAME__`: the longest run of capitals and underscores that ends in two of the latter.
fn underscore_placeholder(rest: &str) -> Option<(usize, Placeholder)> {
    rest.strip_prefix("__")?;
    let run = rest.bytes().take_while(|byte| byte.is_ascii_uppercase() || *byte == b'_').count();
    let end = rest.get(..run)?.rfind("__").map(|at| at + 2).filter(|end| *end >= 5)?;
    Some((end, Placeholder::Unknown))
}

/// A configured value: text with placeholders, or JSON whose texts have them.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Node {
    Text(Template),
    /// A number, bool or null of JSON, as msgpack.
    Constant(Vec<u8>),
    Array(Vec<Node>),
    Map(Vec<(Template, Node)>),
}

impl Node {
    /// Text as it is.
    pub(super) fn text(text: &str) -> Self {
        Self::Text(Template::parse(text))
    }

    /// Reads a value; one that begins like JSON but is none gives nothing.
    pub(super) fn parse(text: &str) -> Option<Self> {
        if !text.starts_with(['{', '[']) {
            return Some(Self::text(text));
        }
        serde_json::from_str(text).ok().map(|json| Self::from_json(&json))
    }

    fn from_json(json: &serde_json::Value) -> Self {
        match json {
            serde_json::Value::String(text) => Self::text(text),
            serde_json::Value::Array(items) => Self::Array(items.iter().map(Self::from_json).collect()),
            serde_json::Value::Object(pairs) => Self::Map(
                pairs.iter().map(|(key, value)| (Template::parse(key), Self::from_json(value))).collect(),
            ),
            other => Self::Constant(Value::from_json(other).to_msgpack()),
        }
    }

    /// Appends the value for an event as msgpack.
    pub(super) fn write(&self, event: &EventView<'_>, out: &mut Vec<u8>, unknown: &mut u64) {
        match self {
            Self::Text(template) => template.write_value(event, out, unknown),
            Self::Constant(bytes) => out.extend_from_slice(bytes),
            Self::Array(items) => {
                msgpack::write_array_header(out, items.len() as u32);
                items.iter().for_each(|item| item.write(event, out, unknown));
            }
            Self::Map(pairs) => {
                msgpack::write_map_header(out, pairs.len() as u32);
                for (key, value) in pairs {
                    let mut text = Vec::new();
                    key.write_text(event, &mut text, unknown);
                    msgpack::write_str(out, &text);
                    value.write(event, out, unknown);
                }
            }
        }
    }
}

/// Ruby's `Time.at(value.to_f)` as an event time; nothing for values that have no `to_f`. Times outside the range of
/// an EventTime keep their whole seconds.
pub(super) fn time_of(value: &Value) -> Option<EventTime> {
    let seconds = match value {
        Value::Nil => 0.0,
        Value::Int(value) => *value as f64,
        Value::UInt(value) => *value as f64,
        Value::Float(value) => *value,
        Value::Str(text) | Value::Bin(text) => leading_float(&String::from_utf8_lossy(text)),
        Value::Ext(..) => return value.as_event_time(),
        Value::Bool(_) | Value::Array(_) | Value::Map(_) => return None,
    };
    if !seconds.is_finite() {
        return None;
    }
    let whole = seconds.floor();
    // The fraction of a float that holds seconds since 1970 is exact to some 100 ns; cut, not rounded, as Ruby does.
    let nanoseconds = ((seconds - whole) * 1e9) as u32;
    let in_range = whole >= 0.0 && whole <= f64::from(u32::MAX);
    Some(if in_range {
        EventTime::Ext { seconds: whole as u32, nanoseconds }
    } else {
        EventTime::Int(whole as i64)
    })
}

/// Ruby's `String#to_f`: the longest number at the start, else 0.
fn leading_float(text: &str) -> f64 {
    let text = text.trim_start();
    let length = text
        .char_indices()
        .take_while(|(_, c)| c.is_ascii_digit() || matches!(c, '.' | '-' | '+' | 'e' | 'E' | '_'))
        .count();
    let candidate: String = text.chars().take(length).filter(|c| *c != '_').collect();
    (0..=candidate.len())
        .rev()
        .filter_map(|end| candidate.get(..end))
        .find_map(|prefix| prefix.parse().ok())
        .unwrap_or(0.0)
}

/// What a value is called in a message.
pub(super) fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Bool(_) => "bool",
        Value::Array(_) => "array",
        Value::Map(_) => "map",
        _ => "value that is no finite number",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view<'a>(tag: &'a TagView<'a>, record: &'a [u8], format: &'a TimeFormat) -> EventView<'a> {
        let time = EventTime::Int(0);
        EventView {
            tag,
            time,
            record,
            hostname: b"web1",
            time_format: format,
            zone: &Zone::Utc,
            auto_typecast: true,
        }
    }

    #[test]
    fn holes_are_found_where_ruby_finds_them() {
        let format = TimeFormat::parse("%s");
        let tag = TagView::new(b"a.b.c");
        for (text, expected, unknown) in [
            ("${tag}-${hostname}-${time}", "a.b.c-web1-0", 0),
            ("${}x${tag", "${}x${tag", 0),
            ("__A____B__c", "c", 1),
            ("___x __a__ __ ____", "___x __a__ __ ____", 0),
            ("${tag_parts[-3]}${tag_parts[-4]}", "a", 1),
            ("${tag_prefix[-2]} ${tag_suffix[-1]}", "a.b c", 0),
            ("${tag_parts[x]}${record['k']}${record[\"k\"]}", "", 3),
            ("é${tag_parts[0]}é", "éaé", 0),
        ] {
            let (mut out, mut count) = (Vec::new(), 0);
            Template::parse(text).write_text(&view(&tag, &[0x80], &format), &mut out, &mut count);
            assert_eq!((String::from_utf8_lossy(&out).as_ref(), count), (expected, unknown), "{text}");
        }
    }

    #[test]
    fn numbers_at_the_start_of_a_text_are_times() {
        for (text, expected) in
            [("100", 100.0), (" 1.5x", 1.5), ("abc", 0.0), ("1e2", 100.0), ("-", 0.0), ("1_0", 10.0)]
        {
            assert_eq!(leading_float(text), expected, "{text}");
        }
        assert_eq!(time_of(&Value::Int(-1)), Some(EventTime::Int(-1)));
        assert_eq!(time_of(&Value::Float(f64::NAN)), None);
        assert_eq!(time_of(&Value::Float(1e300)), Some(EventTime::Int(i64::MAX)));
    }
}
