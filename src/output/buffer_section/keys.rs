//! The argument of `<buffer ...>`.

use crate::buffer::{ChunkKeyError, ChunkKeys};
use crate::event::RecordAccessor;

/// Reads a comma list, a JSON array, or empty / `[]` for a single chunk.
pub(super) fn parse(argument: &str) -> Result<ChunkKeys, ChunkKeyError> {
    let argument = argument.trim();
    let error =
        |key: &str, expected: &str| ChunkKeyError { key: key.to_owned(), expected: expected.to_owned() };
    let names: Vec<String> = if argument.starts_with('[') {
        serde_json::from_str::<Vec<serde_json::Value>>(argument)
            .map_err(|_| error(argument, "a JSON array of strings is expected"))?
            .into_iter()
            .map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_owned))
            .collect()
    } else {
        argument.split(',').map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).collect()
    };
    let mut keys = ChunkKeys::default();
    for name in names {
        match name.as_str() {
            "tag" => keys.tag = true,
            "time" => keys.time = true,
            _ if name.starts_with("$[") => {
                return Err(error(
                    &name,
                    "write nested keys as $.a.b: brackets are not supported in chunk keys",
                ));
            }
            _ if name.starts_with("$.") => {
                RecordAccessor::parse(&name).map_err(|fault| error(&name, fault.reason))?;
                keys.fields.push(name);
            }
            _ if name.is_empty() || !name.bytes().all(is_field_byte) => {
                return Err(error(&name, "tag, time, a field name of [-_.@a-zA-Z0-9] or $.a.b is expected"));
            }
            _ if !keys.fields.contains(&name) => keys.fields.push(name),
            _ => {}
        }
    }
    Ok(keys)
}

fn is_field_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-_.@".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_as_fluentd_writes_them() {
        let keys = |text: &str| parse(text).unwrap();
        assert_eq!(keys("tag"), ChunkKeys { tag: true, ..ChunkKeys::default() });
        assert_eq!(
            keys("tag,time, host ,$.k.ns"),
            ChunkKeys { tag: true, time: true, fields: vec!["host".into(), "$.k.ns".into()] }
        );
        assert_eq!(
            keys(r#"["tag","a.b"]"#),
            ChunkKeys { tag: true, time: false, fields: vec!["a.b".into()] }
        );
        assert!(keys("").is_empty() && keys("[]").is_empty());
        for bad in ["$['a']", "a b", "[1", "$."] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
