//! `msgpack`: the record's bytes as they are, without line end.
//!
//! ```text
//! <match **>
//!   @type file
//!   path /var/log/tributary/app
//!   <format>
//!     @type msgpack
//!   </format>
//! </match>
//! ```

use std::sync::Arc;

use super::{FormatError, FormatEvent, Formatter, FormatterPlugin, Scratch};
use crate::config::{Diagnostics, Element};

crate::params! {
    /// The record's bytes as they are.
    pub struct MsgpackFormatParams {}
    foreign_parameters {
        "delimiter", "force_quotes", "keys", "fields", "json_parser", "label_delimiter", "output_time", "output_tag",
        "localtime", "utc", "timezone", "message_key", "output_type", "add_newline"
    }
}

/// Line in the table of formatters.
pub const PLUGIN: FormatterPlugin =
    FormatterPlugin { names: &["msgpack"], spec: &MsgpackFormatParams::SPEC, configure };

fn configure(element: &Element, diagnostics: &mut Diagnostics) -> Option<Arc<dyn Formatter>> {
    MsgpackFormatParams::from_element(element, diagnostics)?;
    Some(Arc::new(MsgpackFormatter))
}

struct MsgpackFormatter;

impl Formatter for MsgpackFormatter {
    fn format(
        &self,
        event: &FormatEvent<'_>,
        _scratch: &mut Scratch,
        out: &mut Vec<u8>,
    ) -> Result<(), FormatError> {
        out.extend_from_slice(event.record);
        Ok(())
    }
}
