//! Station 3. Comes from: the router. Goes to: the next filter, then a buffer or an output.
//!
//! Filters are synchronous, see a batch, do no I/O.

mod filter_grep;
mod filter_record_transformer;

use crate::config::{Diagnostics, Element, SectionSpec};
use crate::event::{EventStream, EventTime, Tag, Value};

/// Every filter that is built.
pub const FILTERS: &[&FilterPlugin] = &[&filter_grep::PLUGIN, &filter_record_transformer::PLUGIN];

/// One line of the table of filters.
pub struct FilterPlugin {
    /// Names for `@type`; the first is the proper one.
    pub names: &'static [&'static str],
    /// The parameters: parser, help and docs come from here.
    pub spec: &'static SectionSpec,
    /// Section text -> a filter ready to run (a filter opens nothing, so one step is enough).
    pub configure: fn(&Element, &mut Diagnostics) -> Option<Box<dyn Filter>>,
}

/// A filter.
pub trait Filter: Send + Sync {
    /// The stream after this filter. A stream that passes unchanged is returned as it came (same bytes).
    /// Records that cannot be handled go to `rejected` (label `@ERROR`) and out of the stream.
    fn filter(&self, stream: EventStream, rejected: &mut Vec<RejectedEvent>) -> EventStream;
}

/// A record that a plugin refused, on its way to `@ERROR`.
#[derive(Debug)]
pub struct RejectedEvent {
    /// Original tag.
    pub tag: Tag,
    /// Original time.
    pub time: EventTime,
    /// Original record.
    pub record: Value,
    /// Why, lower case, for the log line.
    pub reason: String,
}

#[cfg(test)]
mod tests;
