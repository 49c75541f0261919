//! `json`: one JSON object per event.
//!
//! ```text
//! <match **>
//!   @type stdout
//!   <format>
//!     @type json
//!   </format>
//! </match>
//! ```
//!
//! Numbers, escapes and spacing are those of Fluentd with Oj. Bytes that are not UTF-8 become U+FFFD (Fluentd would
//! pass them through and make a line that no JSON reader takes) and are counted; with a written `json_parser json` they
//! are an error, as in Fluentd.

use std::sync::Arc;

use super::json::{self, Library};
use super::token::Cursor;
use super::{FormatError, FormatEvent, Formatter, FormatterPlugin, Newline, Scratch, line_end};
use crate::config::{Diagnostics, Element};

crate::params! {
    /// One JSON object per event.
    pub struct JsonParams {
        /// Whose forms to follow: `oj`, or any other word for Ruby's own `json` (floats from 1e16 with exponent, invalid
        /// UTF-8 is an error).
        json_parser: String = "oj",
        /// Whether each event ends with a line end.
        add_newline: bool = "true",
        /// The line end.
        newline: Newline = "lf",
    }
    foreign_parameters {
        "delimiter", "force_quotes", "keys", "fields", "label_delimiter", "output_time", "output_tag", "localtime",
        "utc", "timezone", "message_key", "output_type"
    }
}

/// Line in the table of formatters.
pub const PLUGIN: FormatterPlugin = FormatterPlugin { names: &["json"], spec: &JsonParams::SPEC, configure };

fn configure(element: &Element, diagnostics: &mut Diagnostics) -> Option<Arc<dyn Formatter>> {
    let params = JsonParams::from_element(element, diagnostics)?;
    Some(Arc::new(JsonFormatter {
        library: library(&params.json_parser),
        line_end: line_end(params.newline, params.add_newline),
    }))
}

/// Every word but `oj` means Ruby's own library to Fluentd.
pub(super) fn library(json_parser: &str) -> Library {
    if json_parser == "oj" { Library::Oj } else { Library::Stdlib }
}

struct JsonFormatter {
    library: Library,
    line_end: &'static [u8],
}

impl Formatter for JsonFormatter {
    fn format(
        &self,
        event: &FormatEvent<'_>,
        scratch: &mut Scratch,
        out: &mut Vec<u8>,
    ) -> Result<(), FormatError> {
        json::write_json(&mut Cursor::new(event.record), self.library, &mut scratch.replaced, out)?;
        out.extend_from_slice(self.line_end);
        Ok(())
    }

    fn ends_lines(&self) -> bool {
        !self.line_end.is_empty()
    }
}
