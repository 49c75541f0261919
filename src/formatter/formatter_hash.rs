//! `hash`: the record as Ruby's `inspect` shows it (up to Ruby 3.3).
//!
//! ```text
//! <match **>
//!   @type stdout
//!   <format>
//!     @type hash
//!   </format>
//! </match>
//! ```

use std::sync::Arc;

use super::token::Cursor;
use super::{FormatError, FormatEvent, Formatter, FormatterPlugin, Newline, Scratch, line_end, ruby_text};
use crate::config::{Diagnostics, Element};

crate::params! {
    /// The record as Ruby's `inspect` shows it.
    pub struct HashFormatParams {
        /// Whether each event ends with a line end.
        add_newline: bool = "true",
        /// The line end.
        newline: Newline = "lf",
    }
    foreign_parameters {
        "delimiter", "force_quotes", "keys", "fields", "json_parser", "label_delimiter", "output_time", "output_tag",
        "localtime", "utc", "timezone", "message_key", "output_type"
    }
}

/// Line in the table of formatters.
pub const PLUGIN: FormatterPlugin =
    FormatterPlugin { names: &["hash"], spec: &HashFormatParams::SPEC, configure };

fn configure(element: &Element, diagnostics: &mut Diagnostics) -> Option<Arc<dyn Formatter>> {
    let params = HashFormatParams::from_element(element, diagnostics)?;
    Some(Arc::new(HashFormatter { line_end: line_end(params.newline, params.add_newline) }))
}

struct HashFormatter {
    line_end: &'static [u8],
}

impl Formatter for HashFormatter {
    fn format(
        &self,
        event: &FormatEvent<'_>,
        _scratch: &mut Scratch,
        out: &mut Vec<u8>,
    ) -> Result<(), FormatError> {
        ruby_text::write_inspect(&mut Cursor::new(event.record), out)?;
        out.extend_from_slice(self.line_end);
        Ok(())
    }

    fn ends_lines(&self) -> bool {
        !self.line_end.is_empty()
    }
}
