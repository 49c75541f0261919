//! `csv`: chosen fields, quoted.
//!
//! ```text
//! <match **>
//!   @type stdout
//!   <format>
//!     @type csv
//!     fields host,method,$.request.path
//!   </format>
//! </match>
//! ```

use std::sync::Arc;

use super::token::Cursor;
use super::{FormatError, FormatEvent, Formatter, FormatterPlugin, Scratch, ruby_text};
use crate::config::{Diagnostics, Element};
use crate::event::RecordAccessor;

crate::params! {
    /// Chosen fields, quoted.
    pub struct CsvParams {
        /// Record accessors in the order of the columns.
        fields: Vec<String>,
        /// What stands between columns; `\t` and `TAB` mean a tab.
        delimiter: String = ",",
        /// Quote every column, not only where it is needed.
        force_quotes: bool = "true",
        /// Whether each event ends with a line feed.
        add_newline: bool = "true",
    }
    inert { "newline" => "csv lines always end with a line feed, in Fluentd too" }
    foreign_parameters {
        "keys", "json_parser", "label_delimiter", "output_time", "output_tag", "localtime", "utc", "timezone",
        "message_key", "output_type"
    }
}

/// Line in the table of formatters.
pub const PLUGIN: FormatterPlugin = FormatterPlugin { names: &["csv"], spec: &CsvParams::SPEC, configure };

fn configure(element: &Element, diagnostics: &mut Diagnostics) -> Option<Arc<dyn Formatter>> {
    let params = CsvParams::from_element(element, diagnostics)?;
    let names = params.fields.iter().filter(|field| !field.trim().is_empty());
    let accessors: Vec<_> = names.map(|field| RecordAccessor::parse(field.trim())).collect();
    if accessors.is_empty() {
        diagnostics.fault(&params.span, "'fields' of the csv formatter names no field");
        return None;
    }
    let mut fields = Vec::new();
    for accessor in accessors {
        match accessor {
            Ok(accessor) => fields.push(accessor),
            Err(error) => {
                diagnostics.fault(&params.span, error.to_string());
                return None;
            }
        }
    }
    let delimiter = match params.delimiter.as_str() {
        "\\t" | "TAB" => "\t".to_owned(),
        _ => params.delimiter,
    };
    Some(Arc::new(CsvFormatter {
        fields,
        delimiter: delimiter.into_bytes(),
        force_quotes: params.force_quotes,
        add_newline: params.add_newline,
    }))
}

struct CsvFormatter {
    fields: Vec<RecordAccessor>,
    delimiter: Vec<u8>,
    force_quotes: bool,
    add_newline: bool,
}

impl Formatter for CsvFormatter {
    fn format(
        &self,
        event: &FormatEvent<'_>,
        _scratch: &mut Scratch,
        out: &mut Vec<u8>,
    ) -> Result<(), FormatError> {
        let mut text = Vec::new();
        for (index, field) in self.fields.iter().enumerate() {
            if index > 0 {
                out.extend_from_slice(&self.delimiter);
            }
            text.clear();
            // A path through a scalar raises in Fluentd; an empty column loses less than the whole chunk.
            let value = field.get_raw(event.record).ok().flatten();
            if let Some(value) = value {
                ruby_text::write_text(&mut Cursor::new(value), &mut text)?;
            }
            let present = value.is_some_and(|value| value != [0xc0]);
            if self.force_quotes || self.needs_quotes(&text, present) {
                out.push(b'"');
                for byte in &text {
                    out.extend(std::iter::repeat_n(*byte, if *byte == b'"' { 2 } else { 1 }));
                }
                out.push(b'"');
            } else {
                out.extend_from_slice(&text);
            }
        }
        if self.add_newline {
            out.push(b'\n');
        }
        Ok(())
    }

    fn ends_lines(&self) -> bool {
        self.add_newline
    }
}

impl CsvFormatter {
    fn needs_quotes(&self, text: &[u8], present: bool) -> bool {
        let special = |byte: &u8| matches!(byte, b'"' | b'\r' | b'\n');
        let delimited = !self.delimiter.is_empty()
            && text.windows(self.delimiter.len()).any(|part| part == self.delimiter);
        (text.is_empty() && present)
            || delimited
            || text.iter().any(special)
            || matches!(text.first(), Some(b' ' | b'\t'))
    }
}
