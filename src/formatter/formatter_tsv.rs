//! `tsv`: chosen fields separated by tabs, nothing escaped.
//!
//! ```text
//! <match **>
//!   @type stdout
//!   <format>
//!     @type tsv
//!     keys host,method,path
//!   </format>
//! </match>
//! ```

use std::sync::Arc;

use super::token::Cursor;
use super::{FormatError, FormatEvent, Formatter, FormatterPlugin, Newline, Scratch, line_end, ruby_text};
use crate::config::{Diagnostics, Element};
use crate::event::value::lookup;

crate::params! {
    /// Chosen fields separated by tabs.
    pub struct TsvParams {
        /// Top-level keys in the order of the columns.
        keys: Vec<String>,
        /// What stands between columns.
        delimiter: String = "\t",
        /// Whether each event ends with a line end.
        add_newline: bool = "true",
        /// The line end.
        newline: Newline = "lf",
    }
    foreign_parameters {
        "force_quotes", "fields", "json_parser", "label_delimiter", "output_time", "output_tag", "localtime", "utc",
        "timezone", "message_key", "output_type"
    }
}

/// Line in the table of formatters.
pub const PLUGIN: FormatterPlugin = FormatterPlugin { names: &["tsv"], spec: &TsvParams::SPEC, configure };

fn configure(element: &Element, diagnostics: &mut Diagnostics) -> Option<Arc<dyn Formatter>> {
    let params = TsvParams::from_element(element, diagnostics)?;
    Some(Arc::new(TsvFormatter {
        keys: params.keys.into_iter().map(String::into_bytes).collect(),
        delimiter: params.delimiter.into_bytes(),
        line_end: line_end(params.newline, params.add_newline),
    }))
}

struct TsvFormatter {
    keys: Vec<Vec<u8>>,
    delimiter: Vec<u8>,
    line_end: &'static [u8],
}

impl Formatter for TsvFormatter {
    fn format(
        &self,
        event: &FormatEvent<'_>,
        _scratch: &mut Scratch,
        out: &mut Vec<u8>,
    ) -> Result<(), FormatError> {
        for (index, key) in self.keys.iter().enumerate() {
            if index > 0 {
                out.extend_from_slice(&self.delimiter);
            }
            if let Some(value) = lookup(event.record, key) {
                ruby_text::write_text(&mut Cursor::new(value), out)?;
            }
        }
        out.extend_from_slice(self.line_end);
        Ok(())
    }

    fn ends_lines(&self) -> bool {
        !self.line_end.is_empty()
    }
}
