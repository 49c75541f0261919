//! Records as text. Outputs and filters that write text pick a formatter by `<format> @type`.
//!
//! A formatter reads the raw msgpack bytes of a record and appends to a buffer: no `Value`, no allocation per event.

mod formatter_csv;
mod formatter_hash;
mod formatter_json;
mod formatter_ltsv;
mod formatter_msgpack;
mod formatter_out_file;
mod formatter_single_value;
mod formatter_stdout;
mod formatter_tsv;
pub mod json;
pub mod ruby_text;
mod time_text;
pub mod token;

use std::sync::Arc;

use crate::config::{Diagnostics, Element, Param, SectionSpec, nearest};
use crate::event::msgpack::Stop;
use crate::event::{ChunkEntries, EventTime};
use crate::time::BrokenTime;

/// One line of the table of formatters.
pub struct FormatterPlugin {
    /// Names for `@type`; the first is the proper one.
    pub names: &'static [&'static str],
    /// The parameters: parser, help and docs come from here.
    pub spec: &'static SectionSpec,
    /// Section text -> a formatter.
    pub configure: fn(&Element, &mut Diagnostics) -> Option<Arc<dyn Formatter>>,
}

/// Every formatter that is built.
pub const FORMATTERS: &[&FormatterPlugin] = &[
    &formatter_json::PLUGIN,
    &formatter_out_file::PLUGIN,
    &formatter_stdout::PLUGIN,
    &formatter_ltsv::PLUGIN,
    &formatter_csv::PLUGIN,
    &formatter_tsv::PLUGIN,
    &formatter_single_value::PLUGIN,
    &formatter_hash::PLUGIN,
    &formatter_msgpack::PLUGIN,
];

/// One event as a formatter sees it.
#[derive(Clone, Copy, Debug)]
pub struct FormatEvent<'a> {
    /// The tag; empty when nobody knows it.
    pub tag: &'a [u8],
    /// When it happened.
    pub time: EventTime,
    /// The record: the raw bytes of a msgpack map.
    pub record: &'a [u8],
}

/// What a formatter keeps between the events of one batch. One per batch and formatter; not shared between formatters.
#[derive(Default)]
pub struct Scratch {
    /// Strings and floats that had to be replaced because their form has no place in the text.
    pub replaced: u64,
    /// The text of the last time, valid for `time_of`.
    time_text: Vec<u8>,
    time_of: Option<i64>,
    broken: BrokenTime,
}

/// Why an event has no text. The chunk that holds it cannot be delivered by any retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// No JSON text.
    #[error(transparent)]
    Json(#[from] json::JsonError),
    /// The record is not msgpack.
    #[error("record is not well-formed: {0}")]
    Malformed(#[from] Stop),
    /// The bytes after the last event are not an event.
    #[error("{0} bytes after the last event are no event")]
    TrailingBytes(usize),
}

/// Turns events into text.
pub trait Formatter: Send + Sync {
    /// Appends the text of one event, with its line end. After an error `out` holds a part of it for the caller to cut.
    fn format(
        &self,
        event: &FormatEvent<'_>,
        scratch: &mut Scratch,
        out: &mut Vec<u8>,
    ) -> Result<(), FormatError>;

    /// True when the text shows the tag, so that an output must know the tag of each event.
    fn uses_tag(&self) -> bool {
        false
    }

    /// True when the text of every event ends with a line feed, so that a torn line can be told and ended.
    fn ends_lines(&self) -> bool {
        false
    }
}

/// Formats slices of entries and hands the text on in pieces of about `piece_bytes`, so that a large chunk never
/// stands in memory twice. Entries that carry a tag of their own ([`crate::event::with_tag`]) show it, the others show
/// `tag`. Ends at the first fault of either side.
pub fn format_in_pieces<'a, E: From<FormatError>>(
    formatter: &dyn Formatter,
    tag: &[u8],
    slices: impl Iterator<Item = &'a [u8]>,
    piece_bytes: usize,
    scratch: &mut Scratch,
    sink: &mut dyn FnMut(&[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let mut out = Vec::new();
    for slice in slices {
        let mut iterator = ChunkEntries::new(slice);
        for (own_tag, time, record) in iterator.by_ref() {
            formatter.format(
                &FormatEvent { tag: own_tag.unwrap_or(tag), time, record },
                scratch,
                &mut out,
            )?;
            if out.len() >= piece_bytes {
                sink(&out)?;
                out.clear();
            }
        }
        if !iterator.rest().is_empty() {
            return Err(FormatError::TrailingBytes(iterator.rest().len()).into());
        }
    }
    if out.is_empty() { Ok(()) } else { sink(&out) }
}

/// v0.12 parameters that stand for a `<format>` section when a plugin has none (Fluentd `compat_parameters.rb`). For
/// `foreign_parameters` of plugins that format.
pub const FLAT_PARAMETERS: [&str; 15] = [
    "format",
    "delimiter",
    "force_quotes",
    "keys",
    "fields",
    "json_parser",
    "label_delimiter",
    "output_time",
    "output_tag",
    "localtime",
    "utc",
    "timezone",
    "message_key",
    "add_newline",
    "output_type",
];

/// The formatter of a plugin: its `<format>` section, else its flat v0.12 parameters, else the default type.
pub fn configure_for(
    plugin: &Element,
    default_type: &str,
    diagnostics: &mut Diagnostics,
) -> Option<Arc<dyn Formatter>> {
    let mut sections = plugin.children_named("format");
    let section = sections.next();
    if let Some(second) = sections.next() {
        diagnostics.fault(&second.span, "'<format>' section cannot be written twice or more");
        return None;
    }
    match section {
        Some(section) => configure(section, default_type, diagnostics),
        None => configure(&flat_section(plugin), default_type, diagnostics),
    }
}

/// The formatter that a `<format>` section describes.
pub fn configure(
    section: &Element,
    default_type: &str,
    diagnostics: &mut Diagnostics,
) -> Option<Arc<dyn Formatter>> {
    let name = section.type_name().unwrap_or(default_type);
    if let Some(plugin) = FORMATTERS.iter().find(|plugin| plugin.names.contains(&name)) {
        return (plugin.configure)(section, diagnostics);
    }
    let known = FORMATTERS.iter().flat_map(|plugin| plugin.names.iter().copied());
    let hint = match nearest(name, known.clone()) {
        Some(near) => format!("did you mean '{near}'?"),
        None => format!("built are {}", known.collect::<Vec<_>>().join(", ")),
    };
    diagnostics.fault(&section.span, format!("unknown formatter type '{name}'")).hint(hint);
    None
}

/// A `<format>` section made of a plugin's flat parameters.
fn flat_section(plugin: &Element) -> Element {
    let mut section = Element::new("format", "");
    section.span = plugin.span.clone();
    for param in plugin.params.iter().filter(|param| FLAT_PARAMETERS.contains(&param.key.as_str())) {
        param.mark_used();
        let key = if param.key == "format" { "@type" } else { &param.key };
        section.set_param(Param::new(key, param.value.clone(), param.span.clone()));
    }
    section
}

crate::config_enum! {
    /// How a line ends.
    pub enum Newline {
        /// A line feed.
        Lf = "lf",
        /// Carriage return and line feed.
        Crlf = "crlf",
    }
}

/// The bytes of a line end: none without `add_newline`.
fn line_end(newline: Newline, add_newline: bool) -> &'static [u8] {
    match newline {
        _ if !add_newline => b"",
        Newline::Lf => b"\n",
        Newline::Crlf => b"\r\n",
    }
}

#[cfg(test)]
pub(crate) mod tests;
