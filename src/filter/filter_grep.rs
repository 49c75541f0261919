//! `grep`: keeps or drops events by regular expressions over their fields.
//!
//! ```text
//! <filter app.**>
//!   @type grep
//!   <regexp>
//!     key level
//!     pattern /^(warn|error)$/
//!   </regexp>
//!   <exclude>
//!     key $.request.path
//!     pattern /^\/health/
//!   </exclude>
//! </filter>
//! ```
//!
//! All `<regexp>` must match and no `<exclude>` may; `<or>` and `<and>` turn that around. A missing field counts as
//! empty text, a map or an array as Ruby's text of it. A field that cannot be looked up (a path through a number) or a
//! pattern that gives up keeps the event, with a warning.
//!
//! Source: Fluentd `filter_grep.rb`.

use std::borrow::Cow;
use std::ops::Range;

use bytes::{Bytes, BytesMut};

use super::{Filter, FilterPlugin, RejectedEvent};
use crate::config::{Diagnostics, Element, RegexpText, Span};
use crate::event::value::text_of;
use crate::event::{EventStream, RecordAccessor};
use crate::formatter::ruby_text;
use crate::formatter::token::Cursor;
use crate::regexp::Regexp;
use crate::telemetry::rate::Limited;

/// Lookups and patterns that fail do so for every event of a sender.
static FAILED_TEST: Limited = Limited::per_minute(6);

/// Highest number of the v0.12 parameters `regexpN` and `excludeN`.
const FLAT_MAX: usize = 20;

crate::params! {
    /// One test.
    pub struct ConditionParams {
        /// The field: a record accessor.
        key: String,
        /// The regular expression, with or without slashes.
        pattern: RegexpText,
    }
}

crate::params! {
    /// A group of tests of one kind.
    pub struct GroupParams {
        /// A test that the text must match.
        #[section] regexp: Vec<ConditionParams>,
        /// A test that the text must not match.
        #[section] exclude: Vec<ConditionParams>,
    }
}

crate::params! {
    /// Keeps or drops events by regular expressions.
    pub struct GrepParams {
        /// Must match, all of them.
        #[section] regexp: Vec<ConditionParams>,
        /// Must not match, none of them.
        #[section] exclude: Vec<ConditionParams>,
        /// All must match (regexp); not all may match (exclude).
        #[section] and: Vec<GroupParams>,
        /// One must match (regexp); none may match (exclude).
        #[section] or: Vec<GroupParams>,
    }
    foreign_parameters {
        "regexp1", "regexp2", "regexp3", "regexp4", "regexp5", "regexp6", "regexp7", "regexp8", "regexp9", "regexp10",
        "regexp11", "regexp12", "regexp13", "regexp14", "regexp15", "regexp16", "regexp17", "regexp18", "regexp19",
        "regexp20", "exclude1", "exclude2", "exclude3", "exclude4", "exclude5", "exclude6", "exclude7", "exclude8",
        "exclude9", "exclude10", "exclude11", "exclude12", "exclude13", "exclude14", "exclude15", "exclude16",
        "exclude17", "exclude18", "exclude19", "exclude20"
    }
}

/// Line in the table of filters.
pub const PLUGIN: FilterPlugin = FilterPlugin { names: &["grep"], spec: &GrepParams::SPEC, configure };

fn configure(element: &Element, diagnostics: &mut Diagnostics) -> Option<Box<dyn Filter>> {
    let params = GrepParams::from_element(element, diagnostics)?;
    let mut reader = Reader { diagnostics, sound: true };
    let mut grep = Grep::default();
    for (flat, target) in [("regexp", &mut grep.all), ("exclude", &mut grep.none)] {
        reader.flat(element, flat, target);
    }
    reader.add(params.regexp, "regexp", &mut grep.all);
    reader.add(params.exclude, "exclude", &mut grep.none);
    for group in params.and {
        reader.check_group("and", &group);
        reader.add(group.regexp, "regexp", &mut grep.all);
        reader.add(group.exclude, "exclude", &mut grep.not_all);
    }
    for group in params.or {
        reader.check_group("or", &group);
        reader.add(group.regexp, "regexp", &mut grep.any);
        reader.add(group.exclude, "exclude", &mut grep.none);
    }
    reader.sound.then(|| Box::new(grep) as Box<dyn Filter>)
}

struct Reader<'a> {
    diagnostics: &'a mut Diagnostics,
    sound: bool,
}

impl Reader<'_> {
    fn fault(&mut self, span: &Span, message: String) {
        self.diagnostics.fault(span, message);
        self.sound = false;
    }

    fn check_group(&mut self, name: &str, group: &GroupParams) {
        if !group.regexp.is_empty() && !group.exclude.is_empty() {
            self.fault(&group.span, format!("do not mix <regexp> and <exclude> in one <{name}> section"));
        }
        if group.regexp.is_empty() && group.exclude.is_empty() {
            self.fault(&group.span, format!("<{name}> needs at least one <regexp> or <exclude> section"));
        }
    }

    /// `regexpN KEY PATTERN`: the rest of the line is the pattern, without slashes.
    fn flat(&mut self, element: &Element, name: &str, target: &mut Vec<Condition>) {
        for number in 1..=FLAT_MAX {
            let Some(param) = element.param(&format!("{name}{number}")) else { continue };
            let text = param.value.text().unwrap_or_default();
            let Some((key, pattern)) =
                text.split_once([' ', '\t']).filter(|(_, rest)| !rest.trim().is_empty())
            else {
                self.fault(&param.span, format!("{name}{number} must contain a key and a pattern"));
                continue;
            };
            let pattern = RegexpText {
                pattern: pattern.trim_start().to_owned(),
                ignore_case: false,
                dot_matches_newline: false,
            };
            self.push(key, &pattern, &param.span, name, target);
        }
    }

    fn add(&mut self, conditions: Vec<ConditionParams>, kind: &str, target: &mut Vec<Condition>) {
        for condition in conditions {
            self.push(&condition.key, &condition.pattern, &condition.span, kind, target);
        }
    }

    fn push(
        &mut self,
        key: &str,
        pattern: &RegexpText,
        span: &Span,
        kind: &str,
        target: &mut Vec<Condition>,
    ) {
        if target.iter().any(|known| known.key == key) {
            return self.fault(span, format!("'{key}' is specified more than once for {kind}"));
        }
        match (RecordAccessor::parse(key), Regexp::new(pattern)) {
            (Ok(accessor), Ok(regexp)) => target.push(Condition { key: key.to_owned(), accessor, regexp }),
            (accessor, regexp) => {
                let faults = [accessor.err().map(|e| e.to_string()), regexp.err().map(|e| e.to_string())];
                faults.into_iter().flatten().for_each(|message| self.fault(span, message));
            }
        }
    }
}

struct Condition {
    key: String,
    accessor: RecordAccessor,
    regexp: Regexp,
}

impl Condition {
    /// `Err` says why it cannot be known.
    fn matches(&self, record: &[u8]) -> Result<bool, String> {
        let value = self.accessor.get_raw(record).map_err(|error| error.to_string())?;
        let text = match value {
            None => Cow::Borrowed(&[][..]),
            Some(value) => match text_of(value) {
                Some(text) => Cow::Borrowed(text),
                None => {
                    let mut text = Vec::new();
                    ruby_text::write_text(&mut Cursor::new(value), &mut text).map_err(|e| e.to_string())?;
                    Cow::Owned(text)
                }
            },
        };
        self.regexp.is_match(&text).map_err(|error| error.to_string())
    }
}

/// The four lists of tests; an event must pass all four.
#[derive(Default)]
struct Grep {
    /// `<regexp>` and `<and><regexp>`.
    all: Vec<Condition>,
    /// `<or><regexp>`.
    any: Vec<Condition>,
    /// `<and><exclude>`.
    not_all: Vec<Condition>,
    /// `<exclude>` and `<or><exclude>`.
    none: Vec<Condition>,
}

impl Grep {
    fn passes(&self, record: &[u8]) -> Result<bool, String> {
        Ok(every(&self.all, record)?
            && (self.any.is_empty() || some(&self.any, record)?)
            && (self.not_all.is_empty() || !every(&self.not_all, record)?)
            && !some(&self.none, record)?)
    }
}

fn every(conditions: &[Condition], record: &[u8]) -> Result<bool, String> {
    for condition in conditions {
        if !condition.matches(record)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn some(conditions: &[Condition], record: &[u8]) -> Result<bool, String> {
    for condition in conditions {
        if condition.matches(record)? {
            return Ok(true);
        }
    }
    Ok(false)
}

impl Filter for Grep {
    fn filter(&self, stream: EventStream, _rejected: &mut Vec<RejectedEvent>) -> EventStream {
        let mut kept = KeptRuns::default();
        let mut entries = stream.iter();
        let mut at = 0;
        while let Some((_, record, pair)) = entries.next_with_pair() {
            let keep = self.passes(record).unwrap_or_else(|error| {
                if let Some(repeated) = FAILED_TEST.admit() {
                    tracing::warn!(error, tag = %stream.tag, repeated, "failed to grep events, event is kept");
                }
                true
            });
            kept.add(at..at + pair.len(), keep);
            at += pair.len();
        }
        kept.cut(stream)
    }
}

/// Which bytes of a stream stay, as runs, so that what stays is cut out and never rewritten.
#[derive(Default)]
struct KeptRuns {
    runs: Vec<Range<usize>>,
    count: usize,
}

impl KeptRuns {
    fn add(&mut self, pair: Range<usize>, keep: bool) {
        if !keep {
            return;
        }
        self.count += 1;
        match self.runs.last_mut() {
            Some(last) if last.end == pair.start => last.end = pair.end,
            _ => self.runs.push(pair),
        }
    }

    fn cut(self, stream: EventStream) -> EventStream {
        let whole = stream.entries.len();
        let entries = match self.runs.as_slice() {
            [] => Bytes::new(),
            [run] if run.len() == whole => stream.entries,
            [run] => stream.entries.slice(run.clone()),
            runs => {
                let mut out = BytesMut::with_capacity(runs.iter().map(Range::len).sum());
                for run in runs {
                    out.extend_from_slice(stream.entries.get(run.clone()).unwrap_or_default());
                }
                out.freeze()
            }
        };
        EventStream { tag: stream.tag, entries, count: self.count }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{check_vectors, stream_of};
    use super::*;
    use crate::event::Value;

    fn grep(element: &Element) -> Box<dyn Filter> {
        let mut diagnostics = Diagnostics::new();
        let filter = configure(element, &mut diagnostics);
        assert!(diagnostics.is_empty(), "{}", diagnostics.render());
        filter.expect("configured")
    }

    fn regexp(kind: &str, key: &str, pattern: &str) -> Element {
        Element::new(kind, "").with_param("key", key).with_param("pattern", pattern)
    }

    #[test]
    fn vectors() {
        assert_eq!(check_vectors("filter/grep", |_| true), 9);
    }

    #[test]
    fn what_passes_keeps_its_bytes() {
        let filter = grep(&Element::new("filter", "**").with_child(regexp("regexp", "n", "^[1-3]$")));
        let record = |n: i64| Value::Map(vec![("n".into(), Value::Int(n))]);
        let whole = stream_of("t", &[record(1), record(2), record(3)]);
        let passed = filter.filter(whole.clone(), &mut Vec::new());
        assert_eq!((passed.entries.as_ptr(), passed.count), (whole.entries.as_ptr(), 3));
        let middle = stream_of("t", &[record(9), record(2), record(3), record(9)]);
        let passed = filter.filter(middle.clone(), &mut Vec::new());
        assert_eq!(passed, stream_of("t", &[record(2), record(3)]));
        assert_eq!(passed.entries.as_ptr(), middle.entries[passed.entries.len() / 2..].as_ptr());
        let holes = filter.filter(stream_of("t", &[record(1), record(9), record(2)]), &mut Vec::new());
        assert_eq!(holes, stream_of("t", &[record(1), record(2)]));
        assert_eq!(filter.filter(stream_of("t", &[record(9)]), &mut Vec::new()), stream_of("t", &[]));
    }

    #[test]
    fn not_all_of_and_exclude_may_match() {
        let group = Element::new("and", "")
            .with_child(regexp("exclude", "a", "/1/"))
            .with_child(regexp("exclude", "b", "/2/"));
        let filter = grep(&Element::new("filter", "**").with_child(group));
        let record =
            |a: i64, b: i64| Value::Map(vec![("a".into(), Value::Int(a)), ("b".into(), Value::Int(b))]);
        let passed = filter.filter(stream_of("t", &[record(1, 2), record(1, 3)]), &mut Vec::new());
        assert_eq!(passed, stream_of("t", &[record(1, 3)]));
    }

    #[test]
    fn a_test_that_cannot_be_made_keeps_the_event() {
        let filter = grep(&Element::new("filter", "**").with_child(regexp("regexp", "$.a.b", "/x/")));
        let stream = stream_of("t", &[Value::Map(vec![("a".into(), Value::Int(1))])]);
        assert_eq!(filter.filter(stream.clone(), &mut Vec::new()), stream);
    }

    #[test]
    fn every_bad_pattern_and_key_is_a_fault() {
        let element = Element::new("filter", "**")
            .with_child(regexp("regexp", "a", "/(/"))
            .with_child(regexp("exclude", "$.", "/x/"))
            .with_child(Element::new("or", ""));
        let mut diagnostics = Diagnostics::new();
        assert!(configure(&element, &mut diagnostics).is_none());
        assert_eq!(diagnostics.faults().count(), 3, "{}", diagnostics.render());
    }
}
