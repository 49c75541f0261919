//! Fluentd's record accessor: `name`, `$.a.b[0].c`, `$['a']["b c"][0]`.
//!
//! Source: Fluentd `lib/fluent/plugin_helper/record_accessor.rb`; testdata/vectors/record_accessor.jsonl.

use super::msgpack::{self, Head};
use super::value::{self, Value};

/// A path that is not one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid record accessor '{path}': {reason}")]
pub struct AccessorError {
    /// The text as configured.
    pub path: String,
    /// What is wrong with it and what was expected.
    pub reason: &'static str,
}

/// The path goes through a value that is neither map nor array (Ruby raises TypeError there).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("record accessor goes through a value that is neither a map nor an array")]
pub struct NotAContainer;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Key(Vec<u8>),
    Index(i64),
}

/// A parsed path into a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordAccessor {
    /// Never empty.
    steps: Vec<Step>,
}

/// Farthest that a set beyond the end of an array fills up with nil, as Ruby does without a limit.
const MAX_ARRAY_FILL: usize = 1024;

impl RecordAccessor {
    /// Parses a configured path.
    pub fn parse(path: &str) -> Result<Self, AccessorError> {
        let steps = if let Some(dotted) = path.strip_prefix("$.") {
            parse_dotted(dotted)
        } else if path.starts_with("$[") {
            parse_bracketed(&path[1..])
        } else {
            Ok(vec![Step::Key(path.as_bytes().to_vec())])
        };
        match steps {
            Ok(steps) if steps.is_empty() => {
                Err(AccessorError { path: path.into(), reason: "a key is expected after '$.'" })
            }
            Ok(steps) => Ok(Self { steps }),
            Err(reason) => Err(AccessorError { path: path.into(), reason }),
        }
    }

    /// The raw bytes of the value in a raw record, without decoding; `None` when a step is missing or nil.
    pub fn get_raw<'a>(&self, record: &'a [u8]) -> Result<Option<&'a [u8]>, NotAContainer> {
        let mut current = record;
        for step in &self.steps {
            let Some(next) = step_raw(current, step)? else { return Ok(None) };
            current = next;
        }
        Ok(Some(current))
    }

    /// The value in a decoded record; `None` when a step is missing or nil.
    pub fn get<'a>(&self, record: &'a Value) -> Result<Option<&'a Value>, NotAContainer> {
        let mut current = record;
        for step in &self.steps {
            let next = match (current, step) {
                (Value::Nil, _) => None,
                (Value::Map(_), Step::Key(key)) => current.get(key),
                (Value::Map(pairs), Step::Index(index)) => {
                    pairs.iter().rev().find(|(key, _)| *key == Value::Int(*index)).map(|(_, value)| value)
                }
                (Value::Array(items), Step::Index(index)) => {
                    resolve(*index, items.len()).and_then(|at| items.get(at))
                }
                _ => return Err(NotAContainer),
            };
            let Some(next) = next else { return Ok(None) };
            current = next;
        }
        Ok(Some(current))
    }

    /// Puts a value where the path points to; nothing happens when its parent does not exist.
    pub fn set(&self, record: &mut Value, value: Value) {
        let Some((parent, last)) = self.parent(record) else { return };
        match (parent, last) {
            (Value::Map(pairs), step) => match pairs.iter_mut().rev().find(|(key, _)| step.is_key(key)) {
                Some((_, old)) => *old = value,
                None => pairs.push((step.as_value(), value)),
            },
            (Value::Array(items), Step::Index(index)) => match resolve(*index, items.len()) {
                Some(at) if at < items.len() => items[at] = value,
                Some(at) if at - items.len() <= MAX_ARRAY_FILL => {
                    items.resize(at, Value::Nil);
                    items.push(value);
                }
                _ => {}
            },
            _ => {}
        }
    }

    /// Takes the value out of the record; `None` when there is none. Later elements of an array move up.
    pub fn delete(&self, record: &mut Value) -> Option<Value> {
        let (parent, last) = self.parent(record)?;
        match (parent, last) {
            (Value::Map(pairs), step) => {
                let at = pairs.iter().rposition(|(key, _)| step.is_key(key))?;
                let removed = pairs.remove(at).1;
                // A repeated key is one key to Fluentd: nothing of it may stay.
                pairs.retain(|(key, _)| !step.is_key(key));
                Some(removed)
            }
            (Value::Array(items), Step::Index(index)) => {
                let at = resolve(*index, items.len()).filter(|at| *at < items.len())?;
                Some(items.remove(at))
            }
            _ => None,
        }
    }

    /// The only key, when the path is one plain top-level key.
    pub fn top_level_key(&self) -> Option<&[u8]> {
        match self.steps.as_slice() {
            [Step::Key(key)] => Some(key),
            _ => None,
        }
    }

    fn parent<'a>(&self, record: &'a mut Value) -> Option<(&'a mut Value, &Step)> {
        let (last, way) = self.steps.split_last()?;
        let mut current = record;
        for step in way {
            current = match (current, step) {
                (Value::Map(pairs), step) => {
                    pairs.iter_mut().rev().find(|(key, _)| step.is_key(key)).map(|(_, value)| value)?
                }
                (Value::Array(items), Step::Index(index)) => {
                    let at = resolve(*index, items.len())?;
                    items.get_mut(at)?
                }
                _ => return None,
            };
        }
        Some((current, last))
    }
}

impl Step {
    fn is_key(&self, key: &Value) -> bool {
        match self {
            Self::Key(bytes) => key.as_bytes() == Some(bytes.as_slice()),
            Self::Index(index) => *key == Value::Int(*index),
        }
    }

    fn as_value(&self) -> Value {
        match self {
            Self::Key(bytes) => Value::Str(bytes.clone()),
            Self::Index(index) => Value::Int(*index),
        }
    }
}

/// A negative index counts from the end; `None` when it reaches before the start.
fn resolve(index: i64, length: usize) -> Option<usize> {
    if index < 0 {
        length.checked_sub(usize::try_from(index.unsigned_abs()).ok()?)
    } else {
        usize::try_from(index).ok()
    }
}

fn step_raw<'a>(current: &'a [u8], step: &Step) -> Result<Option<&'a [u8]>, NotAContainer> {
    let Ok((head, at)) = msgpack::head(current, 0) else { return Ok(None) };
    match (head, step) {
        (Head::Nil, _) => Ok(None),
        (Head::Map(_), Step::Key(key)) => Ok(value::lookup(current, key)),
        (Head::Map(count), Step::Index(index)) => {
            let mut pos = at;
            let mut found = None;
            for _ in 0..count {
                let matches = matches!(msgpack::head(current, pos), Ok((Head::Int(key), _)) if key == *index);
                let Ok(value_at) = msgpack::skip(current, pos) else { return Ok(None) };
                let Ok(end) = msgpack::skip(current, value_at) else { return Ok(None) };
                if matches {
                    found = current.get(value_at..end);
                }
                pos = end;
            }
            Ok(found)
        }
        (Head::Array(count), Step::Index(index)) => {
            let Some(wanted) = resolve(*index, count as usize).filter(|wanted| *wanted < count as usize)
            else {
                return Ok(None);
            };
            let Ok(start) = msgpack::skip_values(current, at, wanted as u64, 1) else { return Ok(None) };
            let Ok(end) = msgpack::skip(current, start) else { return Ok(None) };
            Ok(current.get(start..end))
        }
        _ => Err(NotAContainer),
    }
}

fn parse_dotted(text: &str) -> Result<Vec<Step>, &'static str> {
    let mut steps = Vec::new();
    // Ruby's split drops empty parts at the end and keeps those in the middle.
    let text = text.trim_end_matches('.');
    if text.is_empty() {
        return Ok(steps);
    }
    for part in text.split('.') {
        let (key, brackets) = match part.find('[') {
            Some(at) => part.split_at(at),
            None => (part, ""),
        };
        if key.chars().any(char::is_whitespace) {
            return Err("white space in a key needs the form $['key']");
        }
        steps.push(Step::Key(key.as_bytes().to_vec()));
        parse_indexes(brackets, &mut steps)?;
    }
    Ok(steps)
}

fn parse_indexes(mut text: &str, steps: &mut Vec<Step>) -> Result<(), &'static str> {
    while let Some(inner) = text.strip_prefix('[') {
        if inner.is_empty() {
            return Ok(()); // an unterminated last bracket without content counts as absent
        }
        let Some((index, rest)) = inner.split_once(']') else { return Err("']' is missing") };
        steps.push(Step::Index(index.parse().map_err(|_| "an integer is expected between '[' and ']'")?));
        text = rest;
    }
    if text.is_empty() { Ok(()) } else { Err("nothing may follow ']' but '.' or '['") }
}

fn parse_bracketed(mut text: &str) -> Result<Vec<Step>, &'static str> {
    let mut steps = Vec::new();
    while let Some(inner) = text.strip_prefix('[') {
        if inner.is_empty() && !steps.is_empty() {
            return Ok(steps);
        }
        text = match inner.chars().next() {
            Some(quote @ ('\'' | '"')) => {
                let close = format!("{quote}]");
                let Some((key, rest)) = inner[1..].split_once(&close) else {
                    return Err("the closing quote and ']' are missing or do not match");
                };
                steps.push(Step::Key(key.as_bytes().to_vec()));
                rest
            }
            _ => {
                let Some((index, rest)) = inner.split_once(']') else { return Err("']' is missing") };
                steps.push(Step::Index(
                    index
                        .parse()
                        .map_err(|_| "a quoted key or an integer is expected between '[' and ']'")?,
                ));
                rest
            }
        };
    }
    if text.is_empty() { Ok(steps) } else { Err("nothing may follow ']' but '['") }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every row of the vector file, on the decoded and on the raw record.
    #[test]
    fn vectors() {
        let folder = std::env::var("VECTORS_DIR").unwrap_or_else(|_| "testdata/vectors".into());
        let text = std::fs::read_to_string(format!("{folder}/record_accessor.jsonl")).unwrap();
        let mut rows = 0;
        for line in text.lines() {
            let row: serde_json::Value = serde_json::from_str(line).unwrap();
            check_row(&row);
            rows += 1;
        }
        assert!(rows > 20, "only {rows} rows in {folder}");
    }

    fn check_row(row: &serde_json::Value) {
        let path = row["params"]["path"].as_str().unwrap();
        let mut record = Value::from_json(&row["input"]);
        let raw = record.to_msgpack();
        let expect = &row["expect"];
        let accessor = match RecordAccessor::parse(path) {
            Ok(accessor) => accessor,
            Err(fault) => {
                assert_eq!(expect["config_error"], true, "{fault}");
                return;
            }
        };
        assert_ne!(expect["config_error"], true, "{path} should be refused");
        match row["plugin"].as_str().unwrap() {
            "record_accessor/get" => {
                let decoded = accessor.get(&record).map(|value| value.map(Value::to_json));
                let raw = accessor
                    .get_raw(&raw)
                    .map(|value| value.map(|raw| Value::decode(raw).unwrap().0.to_json()));
                assert_eq!(decoded, raw, "{path}");
                if expect["error"] == "TypeError" {
                    assert_eq!(decoded, Err(NotAContainer), "{path}");
                } else {
                    assert_eq!(decoded.unwrap().unwrap_or_default(), expect["value"], "{path}");
                }
            }
            "record_accessor/delete" => {
                accessor.delete(&mut record);
                assert_eq!(record.to_json(), expect["record"], "{path}");
            }
            "record_accessor/set" => {
                accessor.set(&mut record, Value::from_json(&row["params"]["value"]));
                assert_eq!(record.to_json(), expect["record"], "{path}");
            }
            other => panic!("unknown row {other}"),
        }
    }

    #[test]
    fn odd_paths() {
        for path in ["$.", "$..", "$[", "$[]", "$[x]", "$['a'", "$['a']b", "$.a[x]", "$.a[0]b", "$.a[0"] {
            assert!(RecordAccessor::parse(path).is_err(), "{path}");
        }
        let key = |path: &str| RecordAccessor::parse(path).unwrap().top_level_key().map(<[u8]>::to_vec);
        assert_eq!(key("$"), Some(b"$".to_vec()));
        assert_eq!(key("a.b"), Some(b"a.b".to_vec()));
        assert_eq!(key("$.a"), Some(b"a".to_vec()));
        assert_eq!(key("$.a[0]"), None);
    }
}
