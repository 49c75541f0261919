//! What the vector tests of all filters share.

use serde_json::Value as Json;

use super::FILTERS;
use crate::config::Diagnostics;
use crate::event::{EventStream, EventTime, Tag, Value, msgpack};
use crate::formatter::tests::{element_of, time_of, value_of, vector_rows};
use crate::time::with_local_zone;

/// A stream of records, all at one time.
pub(super) fn stream_of(tag: &str, records: &[Value]) -> EventStream {
    let mut entries = Vec::new();
    for record in records {
        msgpack::write_entry(&mut entries, EventTime::Int(1_577_934_245), &record.to_msgpack());
    }
    EventStream { tag: Tag::from(tag), entries: entries.into(), count: records.len() }
}

/// Runs the rows of one filter that `is_built` accepts; says how many. The others are counted and printed.
pub(super) fn check_vectors(plugin: &str, is_built: impl Fn(&Json) -> bool) -> usize {
    let (mut run, mut not_built, mut others) = (0, 0, 0);
    for row in vector_rows("filters.jsonl") {
        if row["plugin"] != plugin {
            others += 1;
        } else if is_built(&row) {
            with_local_zone("Etc/UTC", || check_row(plugin, &row));
            run += 1;
        } else {
            not_built += 1;
        }
    }
    println!("{plugin}: {run} rows run, {not_built} not built; {others} rows of other filters");
    run
}

fn check_row(plugin: &str, row: &Json) {
    let name = plugin.trim_start_matches("filter/");
    let element = element_of("filter **", &row["params"]).with_param("@type", name);
    let entry = FILTERS.iter().find(|entry| entry.names.contains(&name)).expect("in the table");
    let mut diagnostics = Diagnostics::new();
    let filter = (entry.configure)(&element, &mut diagnostics);
    if row["expect"]["config_error"] == true {
        assert!(filter.is_none() && diagnostics.has_faults(), "{row}");
        return;
    }
    let filter = filter.unwrap_or_else(|| panic!("{row}: {}", diagnostics.render()));
    let stream = stream_from(row["input"]["tag"].as_str().expect("a tag"), &row["input"]["events"]);
    let mut rejected = Vec::new();
    let out = filter.filter(stream, &mut rejected);
    let expected = stream_from(row["input"]["tag"].as_str().expect("a tag"), &row["expect"]["events"]);
    let shown = |stream: &EventStream| -> Vec<(EventTime, Json)> {
        stream
            .iter()
            .map(|(time, record)| (time, Value::decode(record).expect("whole").0.to_json()))
            .collect()
    };
    assert_eq!(shown(&out), shown(&expected), "{row}");
    assert_eq!(out.count, expected.count, "{row}");
    assert!(rejected.is_empty(), "{row}: {rejected:?}");
}

fn stream_from(tag: &str, events: &Json) -> EventStream {
    let events = events.as_array().expect("events");
    let mut entries = Vec::new();
    for event in events {
        msgpack::write_entry(&mut entries, time_of(&event["time"]), &value_of(&event["record"]).to_msgpack());
    }
    EventStream { tag: Tag::from(tag), entries: entries.into(), count: events.len() }
}
