//! The time parameters that `out_file` and `stdout` share, and the time as text, remembered per second.

use super::Scratch;
use super::ruby_text;
use crate::config::{Diagnostics, Span};
use crate::event::EventTime;
use crate::time::{TimeFormat, Zone, write_iso8601};

crate::config_enum! {
    /// How a time is written.
    pub enum TimeType {
        /// `time_format`, or ISO 8601 without fraction.
        Text = "string",
        /// Whole seconds since 1970.
        UnixTime = "unixtime",
        /// Seconds since 1970 with nine digits of fraction.
        Float = "float",
    }
}

/// Writes times as configured.
pub(super) struct TimeText {
    kind: TimeType,
    format: Option<TimeFormat>,
    zone: Zone,
}

impl TimeText {
    /// The zone follows Fluentd: `timezone`, else UTC by `utc` or a written `localtime false`, else the process's own.
    pub(super) fn new(
        kind: TimeType,
        format: Option<&str>,
        zone: (Option<&str>, Option<bool>, Option<bool>),
        span: &Span,
        diagnostics: &mut Diagnostics,
    ) -> Option<Self> {
        let format = format.map(TimeFormat::parse);
        let zone = match zone {
            (Some(name), ..) => match Zone::parse(name) {
                Ok(zone) => zone,
                Err(error) => {
                    diagnostics.fault(span, error.to_string());
                    return None;
                }
            },
            (None, Some(true), Some(true)) => {
                diagnostics.fault(span, "both of utc and localtime are specified, use only one of them");
                return None;
            }
            (None, Some(true), _) | (None, None, Some(false)) => Zone::Utc,
            (None, ..) => Zone::local(),
        };
        Some(Self { kind, format, zone })
    }

    /// Appends the time; calendar work is done once per second of a batch.
    pub(super) fn write(&self, time: EventTime, scratch: &mut Scratch, out: &mut Vec<u8>) {
        match self.kind {
            TimeType::UnixTime => {
                ruby_text::write_integer(time.seconds() < 0, time.seconds().unsigned_abs(), out)
            }
            TimeType::Float => write_float_time(time, out),
            TimeType::Text => self.write_text(time, scratch, out),
        }
    }

    fn write_text(&self, time: EventTime, scratch: &mut Scratch, out: &mut Vec<u8>) {
        let same_second = scratch.time_of == Some(time.seconds());
        if !same_second {
            scratch.broken.set(time, &self.zone);
            scratch.time_of = Some(time.seconds());
            scratch.time_text.clear();
        }
        match &self.format {
            Some(format) if format.has_subsecond() => {
                scratch.broken.set_nanoseconds(time.nanoseconds());
                format.format(&scratch.broken, out);
                return;
            }
            _ if same_second => {}
            Some(format) => format.format(&scratch.broken, &mut scratch.time_text),
            None => write_iso8601(&scratch.broken, &mut scratch.time_text),
        }
        out.extend_from_slice(&scratch.time_text);
    }
}

/// `1577934245.000000005`; an integer time as Ruby's float, `1577934245.0`. (Fluentd prints fewer than nine digits of
/// nanoseconds as zeros only, a defect that is not copied.)
fn write_float_time(time: EventTime, out: &mut Vec<u8>) {
    use std::io::Write as _;
    // Writing to a Vec cannot fail.
    let _ = match time {
        EventTime::Int(seconds) => write!(out, "{seconds}.0"),
        EventTime::Ext { seconds, nanoseconds } => write!(out, "{seconds}.{nanoseconds:09}"),
    };
}
