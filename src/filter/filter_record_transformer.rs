//! `record_transformer`: adds, replaces and removes fields.
//!
//! ```text
//! <filter app.**>
//!   @type record_transformer
//!   remove_keys secret,$.user.password
//!   <record>
//!     host ${hostname}
//!     service ${tag_parts[1]}
//!     message ${record["log"]}
//!   </record>
//! </filter>
//! ```
//!
//! Placeholders: `${tag}`, `${hostname}`, `${time}`, `${tag_parts[N]}`, `${tag_prefix[N]}`, `${tag_suffix[N]}`,
//! `${record["key"]}`. A value that is exactly one placeholder keeps the type of what it stands for. `enable_ruby` is
//! not built yet.
//!
//! Source: Fluentd `filter_record_transformer.rb`.

mod expand;

use bytes::BytesMut;

use super::{Filter, FilterPlugin, RejectedEvent};
use crate::config::{Diagnostics, Element, FreeForm};
use crate::event::msgpack::{self, Head};
use crate::event::value::{lookup, text_of};
use crate::event::{EventStream, EventTime, RecordAccessor, Value};
use crate::telemetry::rate::Limited;
use crate::time::{TimeFormat, Zone};
use expand::{EventView, Node, TagView, Template};

/// A placeholder that stands for nothing does so for every event.
static UNKNOWN_PLACEHOLDER: Limited = Limited::per_minute(6);

/// `${time}`: Ruby's text of a local time without zone name.
const TIME_FORMAT: &str = "%Y-%m-%d %H:%M:%S %z";

crate::params! {
    /// Adds, replaces and removes fields.
    pub struct RecordTransformerParams {
        /// Whether a value that is exactly one placeholder keeps its type; else it becomes text.
        auto_typecast: bool = "true",
        /// Start from an empty record.
        renew_record: bool = "false",
        /// Top-level fields that are kept all the same; needs `renew_record`.
        keep_keys: Option<Vec<String>>,
        /// Record accessors of fields that are removed at the end.
        remove_keys: Option<Vec<String>>,
        /// A field whose number becomes the event's time.
        renew_time_key: Option<String>,
        /// Fields and their values; later sections win.
        #[section] record: Vec<FreeForm>,
    }
    unbuilt { "enable_ruby" unless "false" | "no" }
}

/// Line in the table of filters.
pub const PLUGIN: FilterPlugin =
    FilterPlugin { names: &["record_transformer"], spec: &RecordTransformerParams::SPEC, configure };

fn configure(element: &Element, diagnostics: &mut Diagnostics) -> Option<Box<dyn Filter>> {
    let params = RecordTransformerParams::from_element(element, diagnostics)?;
    let fields = read_fields(&params.record, diagnostics);
    let mut removed_top = Vec::new();
    let mut removed_deep = Vec::new();
    let mut sound = true;
    for path in params.remove_keys.iter().flatten().filter(|path| !path.is_empty()) {
        match RecordAccessor::parse(path) {
            Ok(accessor) => match accessor.top_level_key() {
                Some(key) => removed_top.push(key.to_vec()),
                None => removed_deep.push(accessor),
            },
            Err(error) => {
                diagnostics.fault(&params.span, error.to_string());
                sound = false;
            }
        }
    }
    if params.keep_keys.is_some() && !params.renew_record {
        diagnostics.fault(&params.span, "'renew_record' must be true to use 'keep_keys'");
        sound = false;
    }
    let keep = params.keep_keys.unwrap_or_default().into_iter().map(String::into_bytes).collect();
    sound.then(|| {
        Box::new(RecordTransformer {
            fields,
            auto_typecast: params.auto_typecast,
            keep: params.renew_record.then_some(keep),
            removed_top,
            removed_deep,
            renew_time_key: params.renew_time_key.map(String::into_bytes),
            hostname: hostname(),
            time_format: TimeFormat::parse(TIME_FORMAT),
            zone: Zone::local(),
        }) as Box<dyn Filter>
    })
}

/// The fields of all sections in order; a key written again keeps its place and takes the later value.
fn read_fields(sections: &[FreeForm], diagnostics: &mut Diagnostics) -> Vec<(Template, Node)> {
    let mut fields: Vec<(String, Node)> = Vec::new();
    for (section, (key, text)) in
        sections.iter().flat_map(|section| section.entries.iter().map(move |entry| (section, entry)))
    {
        let node = Node::parse(text).unwrap_or_else(|| {
            diagnostics
                .warning(&section.span, format!("failed to parse {text} as json. Assuming it is a string"));
            Node::text(text)
        });
        match fields.iter_mut().find(|(known, _)| known == key) {
            Some((_, value)) => *value = node,
            None => fields.push((key.clone(), node)),
        }
    }
    fields.into_iter().map(|(key, node)| (Template::parse(&key), node)).collect()
}

fn hostname() -> Vec<u8> {
    use std::os::unix::ffi::OsStringExt;
    nix::unistd::gethostname().map(OsStringExt::into_vec).unwrap_or_else(|_| b"localhost".to_vec())
}

struct RecordTransformer {
    fields: Vec<(Template, Node)>,
    auto_typecast: bool,
    /// With `renew_record`: the keys that stay.
    keep: Option<Vec<Vec<u8>>>,
    removed_top: Vec<Vec<u8>>,
    removed_deep: Vec<RecordAccessor>,
    renew_time_key: Option<Vec<u8>>,
    hostname: Vec<u8>,
    time_format: TimeFormat,
    zone: Zone,
}

/// Reused from event to event, so that a batch allocates a handful of times.
#[derive(Default)]
struct Work {
    /// New fields: key, msgpack of the value, whether it took the place of an old one.
    added: Vec<AddedField>,
    used: usize,
    /// The pairs of the new record.
    body: Vec<u8>,
    pairs: u32,
    unknown: u64,
}

#[derive(Default)]
struct AddedField {
    key: Vec<u8>,
    value: Vec<u8>,
    placed: bool,
}

impl Work {
    fn added(&self) -> &[AddedField] {
        self.added.get(..self.used).unwrap_or_default()
    }

    fn push_pair(&mut self, key: &[u8], value: &[u8]) {
        self.body.extend_from_slice(key);
        self.body.extend_from_slice(value);
        self.pairs += 1;
    }
}

impl Filter for RecordTransformer {
    fn filter(&self, stream: EventStream, rejected: &mut Vec<RejectedEvent>) -> EventStream {
        let tag = TagView::new(stream.tag.as_bytes());
        let mut out = BytesMut::with_capacity(stream.entries.len());
        let mut work = Work::default();
        let mut count = 0;
        for (time, record) in &stream {
            match self.transform(&tag, time, record, &mut work) {
                Ok(time) => {
                    count += 1;
                    self.write_event(time, &work, &mut out);
                }
                Err(reason) => rejected.push(RejectedEvent {
                    tag: stream.tag.clone(),
                    time,
                    record: Value::decode(record).map_or(Value::Nil, |(record, _)| record),
                    reason,
                }),
            }
        }
        if work.unknown > 0
            && let Some(repeated) = UNKNOWN_PLACEHOLDER.admit()
        {
            tracing::warn!(count = work.unknown, tag = %stream.tag, repeated, "unknown placeholder found");
        }
        EventStream { tag: stream.tag, entries: out.freeze(), count }
    }
}

impl RecordTransformer {
    /// Fills `work` with the pairs of the new record; answers the event's time.
    fn transform(
        &self,
        tag: &TagView<'_>,
        time: EventTime,
        record: &[u8],
        work: &mut Work,
    ) -> Result<EventTime, String> {
        let event = EventView {
            tag,
            time,
            record,
            hostname: &self.hostname,
            time_format: &self.time_format,
            zone: &self.zone,
            auto_typecast: self.auto_typecast,
        };
        self.expand_fields(&event, work);
        let time = self.renewed_time(time, record, work)?;
        work.body.clear();
        work.pairs = 0;
        match &self.keep {
            Some(keep) => self.copy_kept(keep, record, work),
            None => self.copy_all(record, work),
        }
        for at in 0..work.used {
            let Some(field) = work.added.get_mut(at).filter(|field| !field.placed) else { continue };
            if self.removed_top.contains(&field.key) {
                continue;
            }
            msgpack::write_str(&mut work.body, &field.key);
            work.body.extend_from_slice(&field.value);
            work.pairs += 1;
        }
        Ok(time)
    }

    /// All placeholders see the incoming record, never what this filter sets.
    fn expand_fields(&self, event: &EventView<'_>, work: &mut Work) {
        work.used = 0;
        for (key, node) in &self.fields {
            if work.added.len() == work.used {
                work.added.push(AddedField::default());
            }
            let Some((before, rest)) = work.added.split_at_mut_checked(work.used) else { return };
            let Some(field) = rest.first_mut() else { return };
            field.key.clear();
            field.value.clear();
            field.placed = false;
            key.write_text(event, &mut field.key, &mut work.unknown);
            node.write(event, &mut field.value, &mut work.unknown);
            // Two keys may expand to the same text: the later value wins, as in a Ruby hash.
            match before.iter_mut().find(|known| known.key == field.key) {
                Some(known) => std::mem::swap(&mut known.value, &mut field.value),
                None => work.used += 1,
            }
        }
    }

    fn copy_all(&self, record: &[u8], work: &mut Work) {
        let Ok((Head::Map(pairs), mut at)) = msgpack::head(record, 0) else { return };
        for _ in 0..pairs {
            let Ok(value_at) = msgpack::skip(record, at) else { return };
            let Ok(end) = msgpack::skip(record, value_at) else { return };
            let (Some(key), Some(value)) = (record.get(at..value_at), record.get(value_at..end)) else {
                return;
            };
            at = end;
            self.copy_pair(key, value, work);
        }
    }

    fn copy_kept(&self, keep: &[Vec<u8>], record: &[u8], work: &mut Work) {
        for key in keep {
            if let Some(value) = lookup(record, key) {
                let mut packed_key = Vec::with_capacity(key.len() + 5);
                msgpack::write_str(&mut packed_key, key);
                self.copy_pair(&packed_key, value, work);
            }
        }
    }

    /// One pair of the incoming record, with the new value if there is one.
    fn copy_pair(&self, key: &[u8], value: &[u8], work: &mut Work) {
        let Some(text) = text_of(key) else { return work.push_pair(key, value) };
        if self.removed_top.iter().any(|removed| removed == text) {
            return;
        }
        let added = work.added.get_mut(..work.used).unwrap_or_default();
        match added.iter_mut().find(|field| field.key == text) {
            Some(field) => {
                field.placed = true;
                work.body.extend_from_slice(key);
                work.body.extend_from_slice(&field.value);
                work.pairs += 1;
            }
            None => work.push_pair(key, value),
        }
    }

    /// The time that `renew_time_key` gives, from the record as it is before fields are removed.
    fn renewed_time(&self, time: EventTime, record: &[u8], work: &Work) -> Result<EventTime, String> {
        let Some(key) = &self.renew_time_key else { return Ok(time) };
        let new = work.added().iter().find(|field| field.key == *key).map(|field| field.value.as_slice());
        let stays = self.keep.as_ref().is_none_or(|keep| keep.contains(key));
        let Some(value) = new.or_else(|| lookup(record, key).filter(|_| stays)) else { return Ok(time) };
        let value = Value::decode(value).map_err(|error| error.to_string())?.0;
        expand::time_of(&value).ok_or_else(|| {
            format!("renew_time_key: expected a number of seconds, got a {}", expand::kind_of(&value))
        })
    }

    fn write_event(&self, time: EventTime, work: &Work, out: &mut BytesMut) {
        let mut record = Vec::with_capacity(work.body.len() + 5);
        msgpack::write_map_header(&mut record, work.pairs);
        record.extend_from_slice(&work.body);
        if !self.removed_deep.is_empty()
            && let Ok((mut decoded, _)) = Value::decode(&record)
        {
            for accessor in &self.removed_deep {
                accessor.delete(&mut decoded);
            }
            record = decoded.to_msgpack();
        }
        msgpack::write_entry(out, time, &record);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{check_vectors, stream_of};
    use super::*;

    #[test]
    fn vectors() {
        let without_ruby = |row: &serde_json::Value| row["params"].get("enable_ruby").is_none();
        assert_eq!(check_vectors("filter/record_transformer", without_ruby), 16);
    }

    fn run(element: &Element, records: &[Value]) -> (EventStream, Vec<RejectedEvent>) {
        let mut diagnostics = Diagnostics::new();
        let filter = configure(element, &mut diagnostics);
        assert!(!diagnostics.has_faults(), "{}", diagnostics.render());
        let mut rejected = Vec::new();
        let stream = filter.expect("configured").filter(stream_of("a.b", records), &mut rejected);
        (stream, rejected)
    }

    fn map(pairs: &[(&str, Value)]) -> Value {
        Value::Map(pairs.iter().map(|(key, value)| ((*key).into(), value.clone())).collect())
    }

    #[test]
    fn existing_keys_keep_their_place_and_new_ones_go_to_the_end() {
        let record = Element::new("record", "").with_param("new", "${record[\"a\"]}").with_param("a", "x");
        let element = Element::new("filter", "**").with_child(record);
        let (stream, _) = run(&element, &[map(&[("a", Value::Int(1)), ("b", Value::Int(2))])]);
        let expected = map(&[("a", "x".into()), ("b", Value::Int(2)), ("new", Value::Int(1))]);
        assert_eq!(stream, stream_of("a.b", &[expected]));
    }

    #[test]
    fn a_time_that_is_no_number_rejects_the_event() {
        let element = Element::new("filter", "**").with_param("renew_time_key", "t");
        let bad = map(&[("t", Value::Array(vec![]))]);
        let (stream, rejected) =
            run(&element, &[bad.clone(), map(&[("t", Value::Float(1.5))]), map(&[("t", "abc".into())])]);
        assert_eq!((stream.count, rejected.len()), (2, 1));
        assert_eq!(rejected[0].record, bad);
        let times: Vec<_> = stream.iter().map(|(time, _)| time).collect();
        let ext = |seconds, nanoseconds| EventTime::Ext { seconds, nanoseconds };
        assert_eq!(times, [ext(1, 500_000_000), ext(0, 0)]);
    }

    #[test]
    fn ruby_and_keep_keys_without_renew_record_are_faults() {
        for element in [
            Element::new("filter", "**").with_param("enable_ruby", "true"),
            Element::new("filter", "**").with_param("enable_ruby", ""),
            Element::new("filter", "**").with_param("keep_keys", "a"),
            Element::new("filter", "**").with_param("remove_keys", "$."),
        ] {
            let mut diagnostics = Diagnostics::new();
            configure(&element, &mut diagnostics);
            assert!(diagnostics.has_faults());
        }
    }
}
