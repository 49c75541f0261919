//! `ltsv`: `label:value` pairs separated by tabs.
//!
//! ```text
//! <match **>
//!   @type stdout
//!   <format>
//!     @type ltsv
//!   </format>
//! </match>
//! ```
//!
//! The delimiter inside values is replaced; labels, line feeds and label delimiters are not, as in Fluentd.

use std::sync::Arc;

use super::token::{Cursor, Token};
use super::{FormatError, FormatEvent, Formatter, FormatterPlugin, Newline, Scratch, line_end, ruby_text};
use crate::config::{Diagnostics, Element};

crate::params! {
    /// `label:value` pairs.
    pub struct LtsvParams {
        /// What stands between pairs.
        delimiter: String = "\t",
        /// What stands between label and value.
        label_delimiter: String = ":",
        /// What replaces the delimiter inside a value.
        replacement: String = " ",
        /// Whether each event ends with a line end.
        add_newline: bool = "true",
        /// The line end.
        newline: Newline = "lf",
    }
    foreign_parameters {
        "force_quotes", "keys", "fields", "json_parser", "output_time", "output_tag", "localtime", "utc", "timezone",
        "message_key", "output_type"
    }
}

/// Line in the table of formatters.
pub const PLUGIN: FormatterPlugin = FormatterPlugin { names: &["ltsv"], spec: &LtsvParams::SPEC, configure };

fn configure(element: &Element, diagnostics: &mut Diagnostics) -> Option<Arc<dyn Formatter>> {
    let params = LtsvParams::from_element(element, diagnostics)?;
    Some(Arc::new(LtsvFormatter {
        delimiter: params.delimiter.into_bytes(),
        label_delimiter: params.label_delimiter.into_bytes(),
        replacement: params.replacement.into_bytes(),
        line_end: line_end(params.newline, params.add_newline),
    }))
}

struct LtsvFormatter {
    delimiter: Vec<u8>,
    label_delimiter: Vec<u8>,
    replacement: Vec<u8>,
    line_end: &'static [u8],
}

impl Formatter for LtsvFormatter {
    fn format(
        &self,
        event: &FormatEvent<'_>,
        _scratch: &mut Scratch,
        out: &mut Vec<u8>,
    ) -> Result<(), FormatError> {
        let mut cursor = Cursor::new(event.record);
        let pairs = if let Token::Map(pairs) = cursor.token()? { pairs } else { 0 };
        for index in 0..pairs {
            if index > 0 {
                out.extend_from_slice(&self.delimiter);
            }
            ruby_text::write_text(&mut cursor, out)?;
            out.extend_from_slice(&self.label_delimiter);
            let value_from = out.len();
            ruby_text::write_text(&mut cursor, out)?;
            replace_from(out, value_from, &self.delimiter, &self.replacement);
        }
        out.extend_from_slice(self.line_end);
        Ok(())
    }

    fn ends_lines(&self) -> bool {
        !self.line_end.is_empty()
    }
}

/// Replaces every occurrence in the bytes from `start` on.
fn replace_from(out: &mut Vec<u8>, start: usize, what: &[u8], with: &[u8]) {
    let mut at = start;
    while !what.is_empty() && at + what.len() <= out.len() {
        if out[at..].starts_with(what) {
            out.splice(at..at + what.len(), with.iter().copied());
            at += with.len();
        } else {
            at += 1;
        }
    }
}
