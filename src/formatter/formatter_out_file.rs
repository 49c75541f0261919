//! `out_file`: time, tag and JSON in one line; what `@type file` writes when nothing is said.
//!
//! ```text
//! <match **>
//!   @type file
//!   path /var/log/tributary/app
//!   <format>
//!     @type out_file
//!     time_format %Y-%m-%d %H:%M:%S.%L
//!   </format>
//! </match>
//! ```

use std::sync::Arc;

use super::json;
use super::time_text::{TimeText, TimeType};
use super::token::Cursor;
use super::{
    FormatError, FormatEvent, Formatter, FormatterPlugin, Newline, Scratch, formatter_json, line_end,
};
use crate::config::{Diagnostics, Element};

crate::params! {
    /// Time, tag and JSON in one line.
    pub struct OutFileParams {
        /// Whether the time is written.
        output_time: bool = "true",
        /// Whether the tag is written.
        output_tag: bool = "true",
        /// What stands between the parts: a text that holds SPACE or COMMA (any case) selects those, all else is a tab.
        delimiter: Option<String>,
        /// How the time is written.
        time_type: TimeType = "string",
        /// strftime format of the time; ISO 8601 without fraction when silent.
        time_format: Option<String>,
        /// Zone of the time: `+09:00`, `Asia/Tokyo`.
        timezone: Option<String>,
        /// UTC, shown as `Z`.
        utc: Option<bool>,
        /// The zone of the process; false is UTC.
        localtime: Option<bool>,
        /// As for json.
        json_parser: String = "oj",
        /// The line end.
        newline: Newline = "lf",
    }
    foreign_parameters { "force_quotes", "keys", "fields", "label_delimiter", "message_key", "output_type", "add_newline" }
}

/// Line in the table of formatters.
pub const PLUGIN: FormatterPlugin =
    FormatterPlugin { names: &["out_file"], spec: &OutFileParams::SPEC, configure };

fn configure(element: &Element, diagnostics: &mut Diagnostics) -> Option<Arc<dyn Formatter>> {
    let params = OutFileParams::from_element(element, diagnostics)?;
    let zone = (params.timezone.as_deref(), params.utc, params.localtime);
    let time =
        TimeText::new(params.time_type, params.time_format.as_deref(), zone, &params.span, diagnostics)?;
    let delimiter = params.delimiter.unwrap_or_default().to_ascii_uppercase();
    Some(Arc::new(OutFileFormatter {
        time: params.output_time.then_some(time),
        tag: params.output_tag,
        delimiter: match () {
            () if delimiter.contains("SPACE") => b' ',
            () if delimiter.contains("COMMA") => b',',
            () => b'\t',
        },
        library: formatter_json::library(&params.json_parser),
        line_end: line_end(params.newline, true),
    }))
}

struct OutFileFormatter {
    time: Option<TimeText>,
    tag: bool,
    delimiter: u8,
    library: json::Library,
    line_end: &'static [u8],
}

impl Formatter for OutFileFormatter {
    fn format(
        &self,
        event: &FormatEvent<'_>,
        scratch: &mut Scratch,
        out: &mut Vec<u8>,
    ) -> Result<(), FormatError> {
        if let Some(time) = &self.time {
            time.write(event.time, scratch, out);
            out.push(self.delimiter);
        }
        if self.tag {
            out.extend_from_slice(event.tag);
            out.push(self.delimiter);
        }
        json::write_json(&mut Cursor::new(event.record), self.library, &mut scratch.replaced, out)?;
        out.extend_from_slice(self.line_end);
        Ok(())
    }

    fn uses_tag(&self) -> bool {
        self.tag
    }

    fn ends_lines(&self) -> bool {
        !self.line_end.is_empty()
    }
}
