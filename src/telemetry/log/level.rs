//! Fluentd's log levels.

use std::fmt;

use crate::config::LogLevel;

/// A log level, from the most talkative. `fatal` is an error event with the field `fatal = true`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Level {
    /// `-vv`
    Trace = 0,
    /// `-v`
    Debug = 1,
    /// The default.
    Info = 2,
    /// `-q`
    Warn = 3,
    /// `-qq`
    Error = 4,
    /// The process ends.
    Fatal = 5,
}

impl Level {
    /// All, in order.
    pub const ALL: [Level; 6] =
        [Level::Trace, Level::Debug, Level::Info, Level::Warn, Level::Error, Level::Fatal];

    /// Name as configured and as printed in brackets.
    pub fn as_str(self) -> &'static str {
        match self {
            Level::Trace => "trace",
            Level::Debug => "debug",
            Level::Info => "info",
            Level::Warn => "warn",
            Level::Error => "error",
            Level::Fatal => "fatal",
        }
    }

    /// Moves by `-v` (negative) and `-q` (positive) steps, staying between trace and error.
    pub fn shifted(self, steps: i32) -> Level {
        let index = (self as i32).saturating_add(steps).clamp(0, Level::Error as i32);
        Level::ALL.get(index as usize).copied().unwrap_or(Level::Info)
    }

    pub(super) fn from_number(number: u8) -> Level {
        Level::ALL.get(usize::from(number)).copied().unwrap_or(Level::Info)
    }

    pub(super) fn of(metadata: &tracing::Metadata<'_>) -> Level {
        match *metadata.level() {
            tracing::Level::TRACE => Level::Trace,
            tracing::Level::DEBUG => Level::Debug,
            tracing::Level::INFO => Level::Info,
            tracing::Level::WARN => Level::Warn,
            tracing::Level::ERROR => Level::Error,
        }
    }

    /// Escape sequence of the line on a terminal (Fluentd's colours).
    pub(super) fn colour(self) -> &'static str {
        match self {
            Level::Trace => "\x1b[34m",
            Level::Debug => "\x1b[37m",
            Level::Info => "\x1b[32m",
            Level::Warn => "\x1b[33m",
            Level::Error => "\x1b[35m",
            Level::Fatal => "\x1b[31m",
        }
    }
}

impl From<LogLevel> for Level {
    fn from(level: LogLevel) -> Self {
        match level {
            LogLevel::Trace => Level::Trace,
            LogLevel::Debug => Level::Debug,
            LogLevel::Info => Level::Info,
            LogLevel::Warn => Level::Warn,
            LogLevel::Error => Level::Error,
            LogLevel::Fatal => Level::Fatal,
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
