//! Text -> typed values, with the quirks of Fluentd's types.
//!
//! Source: Fluentd `lib/fluent/config/types.rb`. Not strict (the default) reads what it can, as Ruby's `to_i` and
//! `to_f` do; strict is `--strict-config-value`. Where a Rust type is narrower than Ruby's (a port is a `u16`),
//! a number outside is an error that names the range.

mod surprise;

use std::fmt;
use std::time::Duration;

/// Why a text is not a value of a type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TypeError {
    /// The text converts to nil (a bool that is neither true nor false, an empty symbol).
    #[error("expected {expected}, got {got:?}")]
    Nil {
        /// What would have been right.
        expected: &'static str,
        /// The text.
        got: String,
    },
    /// Not one of an enum's names; Fluentd's words.
    #[error("valid options are {} but got {got}", options.join(","))]
    Enum {
        /// The names.
        options: &'static [&'static str],
        /// The text.
        got: String,
    },
    /// Not a value of the type.
    #[error("expected {expected}, got {got:?}")]
    Invalid {
        /// What would have been right.
        expected: String,
        /// The text.
        got: String,
    },
    /// A regular expression without its right slash; Fluentd's words.
    #[error("invalid regexp: missing right slash: {0}")]
    Regexp(String),
}

impl TypeError {
    fn invalid(expected: impl Into<String>, got: &str) -> Self {
        Self::Invalid { expected: expected.into(), got: got.to_owned() }
    }
}

/// A type that a parameter can have.
pub trait FromConfig: Sized {
    /// Fluentd's name of the type, for help and docs.
    const TYPE_NAME: &'static str;
    /// True if nil is a value: the parameter needs no default and may be absent.
    const OPTIONAL: bool = false;
    /// True if the value must not be shown.
    const SECRET: bool = false;
    /// The names of an enum, for help and docs.
    const CHOICES: &'static [&'static str] = &[];

    /// Converts a value. `strict` refuses what Ruby would read half of.
    fn from_config(text: &str, strict: bool) -> Result<Self, TypeError>;

    /// What the text is read as, when that is hardly what was meant (`100ms` is 6000 s in Fluentd, and here); `None`
    /// for a plain value.
    fn surprise(_text: &str) -> Option<String> {
        None
    }

    /// The value for nil, if nil is a value.
    fn nil() -> Option<Self> {
        None
    }
}

/// nil is a value.
impl<T: FromConfig> FromConfig for Option<T> {
    const TYPE_NAME: &'static str = T::TYPE_NAME;
    const OPTIONAL: bool = true;
    const SECRET: bool = T::SECRET;
    const CHOICES: &'static [&'static str] = T::CHOICES;

    fn surprise(text: &str) -> Option<String> {
        T::surprise(text)
    }

    fn from_config(text: &str, strict: bool) -> Result<Self, TypeError> {
        match T::from_config(text, strict) {
            Ok(value) => Ok(Some(value)),
            Err(TypeError::Nil { .. }) if !strict => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn nil() -> Option<Self> {
        Some(None)
    }
}

impl FromConfig for String {
    const TYPE_NAME: &'static str = "string";

    fn from_config(text: &str, _strict: bool) -> Result<Self, TypeError> {
        Ok(text.to_owned())
    }
}

/// `true yes` and nothing at all are true, `false no` are false; text from `#` on (a comment swallowed as a value)
/// is true; everything else is nil.
impl FromConfig for bool {
    const TYPE_NAME: &'static str = "bool";

    fn from_config(text: &str, strict: bool) -> Result<Self, TypeError> {
        match text {
            "true" | "yes" | "" => Ok(true),
            "false" | "no" => Ok(false),
            text if text.starts_with('#') => Ok(true),
            text if strict => Err(TypeError::invalid("true or false", text)),
            text => Err(TypeError::Nil { expected: "true or false", got: text.to_owned() }),
        }
    }
}

macro_rules! integers {
    ($($integer:ty),*) => {$(
        impl FromConfig for $integer {
            const TYPE_NAME: &'static str = "integer";

            fn from_config(text: &str, strict: bool) -> Result<Self, TypeError> {
                let value = integer(text, strict)?;
                <$integer>::try_from(value).map_err(|_| {
                    TypeError::invalid(
                        format!("an integer from {} to {}", <$integer>::MIN, <$integer>::MAX),
                        text,
                    )
                })
            }

            fn surprise(text: &str) -> Option<String> {
                surprise::integer(text)
            }
        }
    )*};
}
integers!(u8, u16, u32, u64, usize, i32, i64);

impl FromConfig for f64 {
    const TYPE_NAME: &'static str = "float";

    fn from_config(text: &str, strict: bool) -> Result<Self, TypeError> {
        float(text, strict)
    }
}

/// Bytes: digits followed by k, m, g or t (any case, powers of 1024), found anywhere in the text; else an integer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SizeBytes(pub u64);

impl FromConfig for SizeBytes {
    const TYPE_NAME: &'static str = "size";

    fn from_config(text: &str, strict: bool) -> Result<Self, TypeError> {
        let too_big = || TypeError::invalid("a size below 2^64 bytes such as 8m", text);
        for (unit, shift) in [('k', 10), ('m', 20), ('g', 30), ('t', 40)] {
            if let Some(digits) = digits_before(text, |c| c.eq_ignore_ascii_case(&unit)) {
                let count: u64 = digits.parse().map_err(|_| too_big())?;
                return count.checked_mul(1 << shift).map(Self).ok_or_else(too_big);
            }
        }
        let value = integer(text, strict)?;
        u64::try_from(value)
            .map(Self)
            .map_err(|_| TypeError::invalid("a size of 0 or more bytes such as 8m", text))
    }

    fn surprise(text: &str) -> Option<String> {
        surprise::size(text)
    }
}

/// Seconds: digits followed by s, m, h or d, found anywhere in the text; else a float.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Seconds(pub f64);

impl Seconds {
    /// As a duration: negative ones are zero, endless ones the maximum.
    pub fn duration(self) -> Duration {
        if self.0 <= 0.0 || self.0.is_nan() {
            return Duration::ZERO;
        }
        Duration::try_from_secs_f64(self.0).unwrap_or(Duration::MAX)
    }
}

impl FromConfig for Seconds {
    const TYPE_NAME: &'static str = "time";

    fn from_config(text: &str, strict: bool) -> Result<Self, TypeError> {
        for (unit, factor) in [('s', 1.0), ('m', 60.0), ('h', 3_600.0), ('d', 86_400.0)] {
            if let Some(digits) = digits_before(text, |c| c == unit) {
                let count: f64 =
                    digits.parse().map_err(|_| TypeError::invalid("a time such as 10s", text))?;
                return Ok(Self(count * factor));
            }
        }
        float(text, strict).map(Self)
    }

    fn surprise(text: &str) -> Option<String> {
        surprise::time(text)
    }
}

/// Text that no log, dump or message shows.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Secret(pub String);

impl Secret {
    /// The text itself, for the one place that needs it.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

/// What stands in the place of a secret, as in Fluentd.
pub const MASK: &str = "xxxxxx";

impl fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(MASK)
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(MASK)
    }
}

impl FromConfig for Secret {
    const TYPE_NAME: &'static str = "string";
    const SECRET: bool = true;

    fn from_config(text: &str, _strict: bool) -> Result<Self, TypeError> {
        Ok(Self(text.to_owned()))
    }
}

/// A name with an optional leading colon; nothing at all is nil.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Symbol(pub String);

impl FromConfig for Symbol {
    const TYPE_NAME: &'static str = "symbol";

    fn from_config(text: &str, _strict: bool) -> Result<Self, TypeError> {
        let name = text.strip_prefix(':').unwrap_or(text);
        if name.is_empty() {
            return Err(TypeError::Nil { expected: "a name", got: text.to_owned() });
        }
        Ok(Self(name.to_owned()))
    }
}

/// A JSON array, or text split on commas with the blanks around them; trailing empty items are dropped.
impl<T: FromConfig> FromConfig for Vec<T> {
    const TYPE_NAME: &'static str = "array";
    const SECRET: bool = T::SECRET;
    const CHOICES: &'static [&'static str] = T::CHOICES;

    fn from_config(text: &str, strict: bool) -> Result<Self, TypeError> {
        array(text)?.iter().map(|item| T::from_config(item, strict)).collect()
    }
}

fn array(text: &str) -> Result<Vec<String>, TypeError> {
    let wrong = |_| TypeError::invalid("a JSON array such as [\"a\",\"b\"], or a,b", text);
    if text.starts_with('[') {
        let items: Vec<serde_json::Value> = serde_json::from_str(text).map_err(wrong)?;
        return Ok(items.iter().map(json_text).collect());
    }
    let text = text.trim();
    let mut items: Vec<String> = text.split(',').map(|item| item.trim().to_owned()).collect();
    while items.last().is_some_and(String::is_empty) {
        items.pop();
    }
    Ok(items)
}

/// The text of a JSON value as a parameter would hold it.
fn json_text(value: &serde_json::Value) -> String {
    match value {
        serde_json::Value::Null => String::new(),
        serde_json::Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// A JSON object, or `k:v,k2:v2`; in order. Blanks around `:` belong to key and value, as in Fluentd.
/// A key without value holds the empty text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HashParam(pub Vec<(String, String)>);

impl FromConfig for HashParam {
    const TYPE_NAME: &'static str = "hash";

    fn from_config(text: &str, _strict: bool) -> Result<Self, TypeError> {
        let mut entries: Vec<(String, String)> = Vec::new();
        let mut set = |key: &str, value: String| match entries.iter_mut().find(|(known, _)| known == key) {
            Some(entry) => entry.1 = value,
            None => entries.push((key.to_owned(), value)),
        };
        if text.starts_with('{') {
            let object: serde_json::Map<String, serde_json::Value> = serde_json::from_str(text)
                .map_err(|_| TypeError::invalid("a JSON object such as {\"k\":\"v\"}, or k:v,k2:v2", text))?;
            object.iter().for_each(|(key, value)| set(key, json_text(value)));
        } else {
            for pair in text.split(',').filter(|pair| !pair.is_empty()) {
                let (key, value) = pair.split_once(':').unwrap_or((pair, ""));
                set(key, value.to_owned());
            }
        }
        Ok(Self(entries))
    }
}

/// Permission bits written in octal: `0644`. Unlike Fluentd, text that is not octal is refused: Ruby would read
/// `rw-r--r--` as 0 and make files that nobody can open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OctalMode(pub u32);

impl FromConfig for OctalMode {
    const TYPE_NAME: &'static str = "string";

    fn from_config(text: &str, _strict: bool) -> Result<Self, TypeError> {
        let digits = text.trim();
        let digits = digits.strip_prefix("0o").unwrap_or(digits);
        match u32::from_str_radix(digits, 8) {
            Ok(mode) if mode <= 0o7777 && !digits.starts_with('+') => Ok(Self(mode)),
            _ => Err(TypeError::invalid("an octal mode such as 0644", text)),
        }
    }
}

/// A regular expression as text, with its options: `/re/`, `/re/i`, `/re/m`, or the bare pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegexpText {
    /// The pattern between the slashes.
    pub pattern: String,
    /// Option `i`.
    pub ignore_case: bool,
    /// Option `m`: the dot matches a newline too.
    pub dot_matches_newline: bool,
}

impl FromConfig for RegexpText {
    const TYPE_NAME: &'static str = "regexp";

    fn from_config(text: &str, _strict: bool) -> Result<Self, TypeError> {
        if !text.starts_with('/') {
            let pattern = text.to_owned();
            return Ok(Self { pattern, ignore_case: false, dot_matches_newline: false });
        }
        let (before, options) = text.rsplit_once('/').unwrap_or(("", ""));
        if options.chars().count() > 2 {
            return Err(TypeError::Regexp(text.to_owned()));
        }
        Ok(Self {
            pattern: before.get(1..).unwrap_or("").to_owned(),
            ignore_case: options.contains('i'),
            dot_matches_newline: options.contains('m'),
        })
    }
}

/// The digits right before the first character that is a unit, as Ruby's `/([0-9]+)k/` finds them.
fn digits_before(text: &str, is_unit: impl Fn(char) -> bool) -> Option<&str> {
    text.char_indices().filter(|(_, c)| is_unit(*c)).find_map(|(end, _)| {
        let before = text.get(..end)?;
        let start = before.rfind(|c: char| !c.is_ascii_digit()).map_or(0, |at| {
            at + before.get(at..).and_then(|rest| rest.chars().next()).map_or(1, char::len_utf8)
        });
        before.get(start..).filter(|digits| !digits.is_empty())
    })
}

/// Ruby's `to_i`, or its `Integer()` when strict.
fn integer(text: &str, strict: bool) -> Result<i128, TypeError> {
    let trimmed = text.trim();
    let (negative, digits) = match trimmed.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, trimmed.strip_prefix('+').unwrap_or(trimmed)),
    };
    let (radix, digits) = if strict { radix_of(digits) } else { (10, digits) };
    let mut value: i128 = 0;
    let mut last = '_'; // an underscore may stand only between two digits
    for c in digits.chars() {
        match c.to_digit(radix) {
            // saturates far outside every integer type we have, which is then reported as out of range
            Some(digit) => value = value.saturating_mul(radix.into()).saturating_add(digit.into()),
            None if c == '_' && last != '_' => {}
            None if strict => return Err(TypeError::invalid("an integer", text)),
            None => break,
        }
        last = c;
    }
    if strict && last == '_' {
        return Err(TypeError::invalid("an integer", text));
    }
    Ok(if negative { -value } else { value })
}

/// The radix that a prefix stands for in Ruby's `Integer()`, and the digits after it.
fn radix_of(digits: &str) -> (u32, &str) {
    let lower = digits.get(..2).map(str::to_ascii_lowercase);
    let rest = digits.get(2..).unwrap_or("");
    match lower.as_deref() {
        Some("0x") => (16, rest),
        Some("0b") => (2, rest),
        Some("0o") => (8, rest),
        Some("0d") => (10, rest),
        _ if digits.len() > 1 && digits.starts_with('0') => (8, digits.get(1..).unwrap_or("")),
        _ => (10, digits),
    }
}

/// Ruby's `to_f` (the longest number at the start, else 0), or its `Float()` when strict.
fn float(text: &str, strict: bool) -> Result<f64, TypeError> {
    let trimmed = text.trim();
    let number: String = leading_number(trimmed).chars().filter(|c| *c != '_').collect();
    let whole = leading_number(trimmed).len() == trimmed.len();
    match number.parse::<f64>() {
        Ok(value) if whole || !strict => Ok(value),
        Err(_) if !strict => Ok(0.0),
        _ => Err(TypeError::invalid("a number", text)),
    }
}

/// The longest start of the text that is a decimal number with optional sign, fraction and exponent.
fn leading_number(text: &str) -> &str {
    let bytes = text.as_bytes();
    let digits = |mut at: usize| {
        let start = at;
        while bytes.get(at).is_some_and(|b| b.is_ascii_digit() || (*b == b'_' && at > start)) {
            at += 1;
        }
        at
    };
    let sign = usize::from(matches!(bytes.first(), Some(b'-' | b'+')));
    let mut end = digits(sign);
    if bytes.get(end) == Some(&b'.') && bytes.get(end + 1).is_some_and(u8::is_ascii_digit) {
        end = digits(end + 1);
    }
    if end > sign && matches!(bytes.get(end), Some(b'e' | b'E')) {
        let exponent = end + 1 + usize::from(matches!(bytes.get(end + 1), Some(b'-' | b'+')));
        if bytes.get(exponent).is_some_and(u8::is_ascii_digit) {
            end = digits(exponent);
        }
    }
    text.get(..end).unwrap_or("")
}

/// Declares an enum whose variants are names in the configuration: `enum`, `FromConfig` and `as_str` in one.
///
/// ```
/// tributary::config_enum! {
///     /// What to do when the buffer is full.
///     pub enum OverflowAction {
///         /// Refuse the message.
///         ThrowException = "throw_exception",
///         /// Stop reading for a while.
///         Block = "block",
///     }
/// }
/// ```
/// A variant may have further accepted names: `Gzip = "gzip" | "gz"`.
#[macro_export]
macro_rules! config_enum {
    (
        $(#[$meta:meta])*
        $visibility:vis enum $name:ident {
            $($(#[$variant_meta:meta])* $variant:ident = $text:literal $(| $more:literal)*),* $(,)?
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        $visibility enum $name {
            $($(#[$variant_meta])* $variant),*
        }

        impl $name {
            /// The name in the configuration.
            #[allow(dead_code, reason = "not every enum is printed")]
            $visibility fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $text),*
                }
            }
        }

        impl $crate::config::FromConfig for $name {
            const TYPE_NAME: &'static str = "enum";
            const CHOICES: &'static [&'static str] = &[$($text),*];

            fn from_config(text: &str, _strict: bool) -> Result<Self, $crate::config::TypeError> {
                match text {
                    $($text $(| $more)* => Ok(Self::$variant),)*
                    got => Err($crate::config::TypeError::Enum {
                        options: &[$($text),*],
                        got: got.to_owned(),
                    }),
                }
            }
        }
    };
}

#[cfg(test)]
mod tests;
