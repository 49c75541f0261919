//! v0.12 buffer parameters, which stand in the output's own section. Those about time slices are read for outputs that
//! write by time (`file`); the others are faults that say where they belong.

use super::Buffering;
use crate::config::{Diagnostics, Element, FromConfig as _, Param, SectionSpec};

/// Fluentd's v0 names of buffer parameters and what they are called in `<buffer>`.
const NAMES: [(&str, &str); 20] = [
    ("buffer_type", "@type"),
    ("buffer_path", "path"),
    ("num_threads", "flush_thread_count"),
    ("flush_interval", "flush_interval"),
    ("try_flush_interval", "flush_thread_interval"),
    ("queued_chunk_flush_interval", "flush_thread_burst_interval"),
    ("disable_retry_limit", "retry_forever"),
    ("retry_limit", "retry_max_times"),
    ("max_retry_wait", "retry_max_interval"),
    ("retry_wait", "retry_wait"),
    ("buffer_chunk_limit", "chunk_limit_size"),
    ("buffer_queue_limit", "queue_limit_length"),
    ("buffer_queue_full_action", "overflow_action"),
    ("flush_at_shutdown", "flush_at_shutdown"),
    ("time_slice_format", "timekey"),
    ("time_slice_wait", "timekey_wait"),
    ("timezone", "timekey_zone"),
    ("utc", "timekey_use_utc true"),
    ("localtime", "timekey_use_utc false"),
    ("flush_mode", "flush_mode"),
];

/// Words that a format also understands: they are its own where the output takes a flat format.
const FORMAT_WORDS: [&str; 3] = ["timezone", "utc", "localtime"];

/// Words that [`section`] reads.
const SLICE_WORDS: [&str; 2] = ["time_slice_format", "time_slice_wait"];

/// Buffer parameters outside `<buffer>` are not converted yet, but for those about time; ignoring them could mean
/// memory where a file was asked for.
pub fn refuse_flat(
    output: &Element,
    buffering: Buffering,
    spec: &SectionSpec,
    diagnostics: &mut Diagnostics,
) {
    if matches!(buffering, Buffering::Never) {
        return;
    }
    let sliced = is_sliced(buffering) && output.child("buffer").is_none();
    for (old, new) in NAMES {
        let of_format = FORMAT_WORDS.contains(&old) && spec.rules().any(|rule| rule.name == old);
        if of_format || (sliced && SLICE_WORDS.contains(&old)) {
            continue;
        }
        let Some(param) = output.param(old) else { continue };
        diagnostics
            .fault(&param.span, format!("buffer parameter '{old}' outside <buffer> is not built yet"))
            .hint(format!("write '{new}' into a <buffer> section"));
    }
}

fn is_sliced(buffering: Buffering) -> bool {
    matches!(buffering, Buffering::Always { default_timekey_seconds: Some(_), .. })
}

/// The section that an output without `<buffer>` has: empty but for what its parameters say about time slices.
/// `None`: faults were found.
pub(super) fn section(
    output: &Element,
    buffering: Buffering,
    diagnostics: &mut Diagnostics,
) -> Option<Element> {
    let mut section = Element { span: output.span.clone(), ..Element::new("buffer", "") };
    if !is_sliced(buffering) {
        return Some(section);
    }
    for (old, new) in [("time_slice_wait", "timekey_wait"), ("timezone", "timekey_zone")] {
        if let Some(param) = output.param(old) {
            section.set_param(Param::new(new, param.value.clone(), param.span.clone()));
        }
    }
    let Some(format) = output.param("time_slice_format") else { return Some(section) };
    let Some(timekey) = timekey_of_format(format.value.text().unwrap_or_default()) else {
        diagnostics.fault(&format.span, "time_slice_format only with %Y or %m is too long");
        return None;
    };
    // A value that is no boolean, and both words at once, are reported by the format's own reader.
    let says = |word: &str, value: bool| {
        output.text(word).is_some_and(|text| bool::from_config(text, false) == Ok(value))
    };
    let section = section.with_param("timekey", &timekey.to_string());
    Some(if says("utc", true) || says("localtime", false) {
        section.with_param("timekey_use_utc", "true")
    } else {
        section
    })
}

/// The timekey that a `time_slice_format` stands for, by its finest code; none when that is a month or a year.
fn timekey_of_format(format: &str) -> Option<i64> {
    let has = |codes: &[&str]| codes.iter().any(|code| format.contains(code));
    match () {
        () if has(&["%S", "%s", "%T", "%X", "%c", "%r", "%+", "%L", "%N"]) => Some(1),
        () if has(&["%M", "%R"]) => Some(60),
        () if has(&["%H", "%I", "%k", "%l"]) => Some(3_600),
        () if has(&["%d", "%j", "%e", "%D", "%F", "%x", "%v"]) => Some(86_400),
        () => None,
    }
}
