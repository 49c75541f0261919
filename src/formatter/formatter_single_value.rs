//! `single_value`: the text of one field and nothing else.
//!
//! ```text
//! <match **>
//!   @type stdout
//!   <format>
//!     @type single_value
//!     message_key log
//!   </format>
//! </match>
//! ```

use std::sync::Arc;

use super::token::Cursor;
use super::{FormatError, FormatEvent, Formatter, FormatterPlugin, Newline, Scratch, line_end, ruby_text};
use crate::config::{Diagnostics, Element};
use crate::event::value::lookup;

crate::params! {
    /// The text of one field.
    pub struct SingleValueParams {
        /// The field; a record without it gives an empty line.
        message_key: String = "message",
        /// Whether each event ends with a line end (a line feed at the end of the value stays).
        add_newline: bool = "true",
        /// The line end.
        newline: Newline = "lf",
    }
    foreign_parameters {
        "delimiter", "force_quotes", "keys", "fields", "json_parser", "label_delimiter", "output_time", "output_tag",
        "localtime", "utc", "timezone", "output_type"
    }
}

/// Line in the table of formatters.
pub const PLUGIN: FormatterPlugin =
    FormatterPlugin { names: &["single_value"], spec: &SingleValueParams::SPEC, configure };

fn configure(element: &Element, diagnostics: &mut Diagnostics) -> Option<Arc<dyn Formatter>> {
    let params = SingleValueParams::from_element(element, diagnostics)?;
    Some(Arc::new(SingleValueFormatter {
        message_key: params.message_key.into_bytes(),
        line_end: line_end(params.newline, params.add_newline),
    }))
}

struct SingleValueFormatter {
    message_key: Vec<u8>,
    line_end: &'static [u8],
}

impl Formatter for SingleValueFormatter {
    fn format(
        &self,
        event: &FormatEvent<'_>,
        _scratch: &mut Scratch,
        out: &mut Vec<u8>,
    ) -> Result<(), FormatError> {
        if let Some(value) = lookup(event.record, &self.message_key) {
            ruby_text::write_text(&mut Cursor::new(value), out)?;
        }
        out.extend_from_slice(self.line_end);
        Ok(())
    }

    fn ends_lines(&self) -> bool {
        !self.line_end.is_empty()
    }
}
