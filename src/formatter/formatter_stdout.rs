//! `stdout`: local time with nanoseconds, tag, and the record in another format; what `@type stdout` writes.
//!
//! ```text
//! <match **>
//!   @type stdout
//!   <format>
//!     @type stdout
//!     output_type ltsv
//!   </format>
//! </match>
//! ```

use std::sync::Arc;

use super::time_text::{TimeText, TimeType};
use super::{FormatError, FormatEvent, Formatter, FormatterPlugin, Scratch, configure as configure_section};
use crate::config::{Diagnostics, Element, Param, ParamValue, Quote};

crate::params! {
    /// Local time with nanoseconds, tag, and the record in another format.
    pub struct StdoutFormatParams {
        /// The format of the record.
        output_type: String = "json",
        /// strftime format of the time.
        time_format: String = "%Y-%m-%d %H:%M:%S.%N %z",
        /// Zone of the time: `+09:00`, `Asia/Tokyo`.
        timezone: Option<String>,
        /// UTC.
        utc: Option<bool>,
        /// The zone of the process; false is UTC.
        localtime: Option<bool>,
    }
    foreign_parameters {
        "json_parser", "add_newline", "newline", "delimiter", "label_delimiter", "replacement", "fields", "keys",
        "force_quotes", "message_key", "output_time", "output_tag"
    }
}

/// Line in the table of formatters.
pub const PLUGIN: FormatterPlugin =
    FormatterPlugin { names: &["stdout"], spec: &StdoutFormatParams::SPEC, configure };

/// Parameters that are this formatter's own; the rest belong to the inner one.
const OWN: [&str; 7] = ["@type", "type", "output_type", "time_format", "timezone", "utc", "localtime"];

fn configure(element: &Element, diagnostics: &mut Diagnostics) -> Option<Arc<dyn Formatter>> {
    let params = StdoutFormatParams::from_element(element, diagnostics)?;
    let zone = (params.timezone.as_deref(), params.utc, params.localtime);
    let time = TimeText::new(TimeType::Text, Some(&params.time_format), zone, &params.span, diagnostics)?;
    if params.output_type == "stdout" {
        diagnostics.fault(&params.span, "output_type of the stdout formatter cannot be 'stdout' again");
        return None;
    }
    let mut inner = element.clone();
    inner.params.retain(|param| !OWN.contains(&param.key.as_str()));
    let inner_type = ParamValue::Text { text: params.output_type, quote: Quote::None };
    inner.set_param(Param::new("@type", inner_type, element.span.clone()));
    element.mark_all_used();
    Some(Arc::new(StdoutFormatter { time, inner: configure_section(&inner, "json", diagnostics)? }))
}

struct StdoutFormatter {
    time: TimeText,
    inner: Arc<dyn Formatter>,
}

impl Formatter for StdoutFormatter {
    fn format(
        &self,
        event: &FormatEvent<'_>,
        scratch: &mut Scratch,
        out: &mut Vec<u8>,
    ) -> Result<(), FormatError> {
        self.time.write(event.time, scratch, out);
        out.push(b' ');
        out.extend_from_slice(event.tag);
        out.extend_from_slice(b": ");
        // An inner formatter with times of its own would mix them up with ours in the scratch.
        let mut inner_scratch = Scratch::default();
        self.inner.format(event, &mut inner_scratch, out)?;
        scratch.replaced += inner_scratch.replaced;
        if out.last() == Some(&b'\n') {
            out.pop();
        }
        if out.last() == Some(&b'\r') {
            out.pop();
        }
        out.push(b'\n');
        Ok(())
    }

    fn uses_tag(&self) -> bool {
        true
    }

    fn ends_lines(&self) -> bool {
        true
    }
}
