//! The vector rows of the formatters, and what all formatters promise.

use serde_json::Value as Json;

use super::*;
use crate::config::Diagnostics;
use crate::event::Value;
use crate::time::with_local_zone;

/// A section from the `params` of a vector row: `<name argument>#1` keys are sub-sections.
pub(crate) fn element_of(name: &str, params: &Json) -> Element {
    let (section, argument) = name.split_once(' ').unwrap_or((name, ""));
    let mut element = Element::new(section, argument);
    for (key, value) in params.as_object().expect("params are an object") {
        match value {
            Json::Object(_) => {
                let inner = key.trim_start_matches('<').split('>').next().expect("a section name");
                element = element.with_child(element_of(inner, value));
            }
            _ => element = element.with_param(key, value.as_str().expect("values are text")),
        }
    }
    element
}

/// An event time from a vector row.
pub(crate) fn time_of(json: &Json) -> EventTime {
    let seconds = |json: &Json| u32::try_from(json.as_u64().expect("seconds")).expect("32 bits");
    match json.get("sec") {
        Some(sec) => EventTime::Ext { seconds: seconds(sec), nanoseconds: seconds(&json["nsec"]) },
        None => EventTime::Int(json.get("int").unwrap_or(json).as_i64().expect("an integer time")),
    }
}

/// A record value from a vector row: `{"$base64": ...}` are raw bytes.
pub(crate) fn value_of(json: &Json) -> Value {
    match json {
        Json::Object(pairs) if pairs.contains_key("$base64") => {
            Value::Str(decode_base64(json["$base64"].as_str().expect("text")))
        }
        Json::Object(pairs) => Value::Map(
            pairs.iter().map(|(key, value)| (Value::from(key.as_str()), value_of(value))).collect(),
        ),
        Json::Array(items) => Value::Array(items.iter().map(value_of).collect()),
        other => Value::from_json(other),
    }
}

fn decode_base64(text: &str) -> Vec<u8> {
    const ALPHABET: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let (mut bits, mut count, mut out) = (0_u32, 0, Vec::new());
    for digit in text.chars().filter_map(|c| ALPHABET.find(c)) {
        bits = bits << 6 | u32::try_from(digit).expect("below 64");
        count += 6;
        if count >= 8 {
            count -= 8;
            out.push((bits >> count & 0xff) as u8);
        }
    }
    out
}

/// The rows of one vector file.
pub(crate) fn vector_rows(file: &str) -> Vec<Json> {
    let folder = std::env::var("VECTORS_DIR").unwrap_or_else(|_| "testdata/vectors".into());
    let text = std::fs::read_to_string(format!("{folder}/{file}")).expect("the vector file");
    text.lines().map(|line| serde_json::from_str(line).expect("a row is JSON")).collect()
}

#[test]
fn vectors() {
    let (mut run, mut not_built) = (0, std::collections::BTreeMap::<String, usize>::new());
    for row in vector_rows("formatters.jsonl") {
        let name = row["plugin"].as_str().expect("a name").trim_start_matches("format/");
        if !FORMATTERS.iter().any(|plugin| plugin.names.contains(&name)) {
            *not_built.entry(name.to_owned()).or_default() += 1;
            continue;
        }
        match row["env"]["TZ"].as_str() {
            Some(zone) => with_local_zone(zone, || check_row(name, &row)),
            None => with_local_zone("Etc/UTC", || check_row(name, &row)),
        }
        run += 1;
    }
    println!("formatters: {run} rows run; not built: {not_built:?}");
    assert!(run > 0);
}

fn check_row(name: &str, row: &Json) {
    let element = element_of("format", &row["params"]).with_param("@type", name);
    let mut diagnostics = Diagnostics::new();
    let formatter = configure(&element, "json", &mut diagnostics);
    if row["expect"]["config_error"] == true {
        assert!(formatter.is_none() && diagnostics.has_faults(), "{row}");
        return;
    }
    let formatter = formatter.unwrap_or_else(|| panic!("{row}: {}", diagnostics.render()));
    assert!(diagnostics.is_empty(), "{row}: {}", diagnostics.render());
    let (mut input, mut expected) = (row["input"].clone(), row["expect"]["output"].clone());
    let beyond_64_bits = ",\"i\":100000000000000000000";
    if let Some(text) = expected.as_str().filter(|text| text.contains(beyond_64_bits)) {
        // msgpack cannot carry this integer, so that no record of ours can hold it.
        input["record"].as_object_mut().expect("a record").shift_remove("i");
        expected = Json::String(text.replace(beyond_64_bits, ""));
    }
    let record = value_of(&input["record"]).to_msgpack();
    let tag = input["tag"].as_str().expect("a tag").as_bytes();
    let event = FormatEvent { tag, time: time_of(&input["time"]), record: &record };
    let mut out = Vec::new();
    let result = formatter.format(&event, &mut Scratch::default(), &mut out);
    if let Some(class) = row["expect"]["error"].as_str() {
        assert_eq!(
            (class, result),
            ("JSON::GeneratorError", Err(json::JsonError::InvalidUtf8.into())),
            "{row}"
        );
        return;
    }
    assert_eq!(result, Ok(()), "{row}");
    match row["expect"]["output_base64"].as_str() {
        Some(base64) => assert_eq!(out, decode_base64(base64), "{row}"),
        None => assert_eq!(String::from_utf8_lossy(&out), expected.as_str().expect("text"), "{row}"),
    }
}

fn built(element: &Element) -> Arc<dyn Formatter> {
    let mut diagnostics = Diagnostics::new();
    let formatter = configure_for(element, "out_file", &mut diagnostics);
    assert!(!diagnostics.has_faults(), "{}", diagnostics.render());
    formatter.expect("configured")
}

#[test]
fn flat_parameters_stand_for_a_section() {
    let flat = Element::new("match", "**").with_param("format", "tsv").with_param("keys", "a");
    let mut out = Vec::new();
    let record = Value::Map(vec![("a".into(), Value::Int(7))]).to_msgpack();
    let event = FormatEvent { tag: b"t", time: EventTime::Int(0), record: &record };
    built(&flat).format(&event, &mut Scratch::default(), &mut out).expect("formats");
    assert_eq!(out, b"7\n");
    assert!(flat.unused_params().next().is_none());
}

#[test]
fn unknown_types_are_named_with_the_nearest() {
    let mut diagnostics = Diagnostics::new();
    assert!(
        configure(&Element::new("format", "").with_param("@type", "jsno"), "json", &mut diagnostics)
            .is_none()
    );
    assert!(diagnostics.render().contains("did you mean 'json'?"), "{}", diagnostics.render());
}

/// Appends the text of a run of entries as one piece; says how many lines it has.
fn format_entries(
    formatter: &dyn Formatter,
    tag: &[u8],
    entries: &[u8],
    scratch: &mut Scratch,
    out: &mut Vec<u8>,
) -> Result<usize, FormatError> {
    let mut lines = 0;
    let slices = std::iter::once(entries);
    format_in_pieces(formatter, tag, slices, usize::MAX, scratch, &mut |piece| {
        lines += piece.iter().filter(|byte| **byte == b'\n').count();
        out.extend_from_slice(piece);
        Ok::<_, FormatError>(())
    })?;
    Ok(lines)
}

#[test]
fn a_batch_remembers_its_second_and_forgets_half_events() {
    let formatter = with_local_zone("Etc/UTC", || built(&Element::new("match", "")));
    let mut entries = Vec::new();
    for seconds in [5, 5, 65] {
        crate::event::msgpack::write_entry(&mut entries, EventTime::Int(seconds), &[0x80]);
    }
    let (mut scratch, mut out) = (Scratch::default(), b"before|".to_vec());
    let tag = b"t";
    assert_eq!(format_entries(formatter.as_ref(), tag, &entries, &mut scratch, &mut out), Ok(3));
    let expected = "before|1970-01-01T00:00:05+00:00\tt\t{}\n1970-01-01T00:00:05+00:00\tt\t{}\n\
                    1970-01-01T00:01:05+00:00\tt\t{}\n";
    assert_eq!(String::from_utf8_lossy(&out), expected);
    entries.extend_from_slice(&[0x92, 1]);
    assert_eq!(
        format_entries(formatter.as_ref(), tag, &entries, &mut scratch, &mut out),
        Err(FormatError::TrailingBytes(2))
    );
    assert_eq!(out.len(), expected.len());
}
