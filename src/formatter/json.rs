//! JSON straight from a record's msgpack bytes into a byte buffer: no `Value`, no allocation per event.
//!
//! Escapes, spacing and floats are those of Oj in Fluentd's settings; differences are
//! where Oj would write something that is not JSON: invalid UTF-8 becomes U+FFFD, `NaN` and infinities become `null`.
//! Both are counted.

use super::ruby_text;
use super::token::{Cursor, Token};
use crate::event::msgpack::{MAX_DEPTH, Stop};

/// Largest magnitude below which Oj prints an integral float with all its digits (`long long`).
const INTEGRAL_FLOAT_LIMIT: f64 = 9_223_372_036_854_775_808.0;

/// How a writer treats what differs between Fluentd's two JSON libraries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Library {
    /// Oj (Fluentd's default): integral floats below 2^63 in full, any string accepted.
    Oj,
    /// Ruby's own `json`: floats as `Float#to_s`; invalid UTF-8 and non-finite floats are errors.
    Stdlib,
}

/// Why a record has no JSON text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JsonError {
    /// The bytes are not msgpack.
    #[error("record is not well-formed: {0}")]
    Malformed(#[from] Stop),
    /// Only with [`Library::Stdlib`].
    #[error("source sequence is illegal/malformed utf-8")]
    InvalidUtf8,
    /// Only with [`Library::Stdlib`].
    #[error("NaN or infinity not allowed in JSON")]
    NotFinite,
    /// Deeper than any input lets in.
    #[error("record is nested deeper than {MAX_DEPTH} levels")]
    TooDeep,
}

/// Appends the JSON of the next value; `replaced` grows by one for each string or float that had to be changed.
/// After an error the text appended so far is for the caller to cut.
pub fn write_json(
    cursor: &mut Cursor<'_>,
    library: Library,
    replaced: &mut u64,
    out: &mut Vec<u8>,
) -> Result<(), JsonError> {
    // Text is longer than its msgpack by quotes and commas; one growth here instead of several on the way.
    out.reserve(cursor.remaining().min(MAX_RESERVE_BYTES));
    Writer { library, replaced, out }.value(cursor, 0)
}

/// Most that is reserved ahead for one record, so that a record at the end of a large slice does not ask for all of it.
const MAX_RESERVE_BYTES: usize = 1024;

struct Writer<'a> {
    library: Library,
    replaced: &'a mut u64,
    out: &'a mut Vec<u8>,
}

impl Writer<'_> {
    fn value(&mut self, cursor: &mut Cursor<'_>, depth: usize) -> Result<(), JsonError> {
        match cursor.token()? {
            Token::Str(text) | Token::Bin(text) => self.string(text)?,
            Token::Int(value) => ruby_text::write_integer(value < 0, value.unsigned_abs(), self.out),
            Token::Map(length) => self.map(cursor, length, depth)?,
            Token::Array(length) => self.array(cursor, length, depth)?,
            Token::Nil => self.out.extend_from_slice(b"null"),
            Token::Bool(value) => self.out.extend_from_slice(if value { b"true" } else { b"false" }),
            Token::UInt(value) => ruby_text::write_integer(false, value, self.out),
            Token::Float(value) => self.float(value)?,
            Token::Ext(data) => ruby_text::write_event_time(data, self.out),
        }
        Ok(())
    }

    fn map(&mut self, cursor: &mut Cursor<'_>, length: u32, depth: usize) -> Result<(), JsonError> {
        if depth >= MAX_DEPTH {
            return Err(JsonError::TooDeep);
        }
        self.out.push(b'{');
        for index in 0..length {
            if index > 0 {
                self.out.push(b',');
            }
            self.key(cursor)?;
            self.out.push(b':');
            self.value(cursor, depth + 1)?;
        }
        self.out.push(b'}');
        Ok(())
    }

    fn array(&mut self, cursor: &mut Cursor<'_>, length: u32, depth: usize) -> Result<(), JsonError> {
        if depth >= MAX_DEPTH {
            return Err(JsonError::TooDeep);
        }
        self.out.push(b'[');
        for index in 0..length {
            if index > 0 {
                self.out.push(b',');
            }
            self.value(cursor, depth + 1)?;
        }
        self.out.push(b']');
        Ok(())
    }

    /// A key that is no string becomes its text, as in Ruby.
    fn key(&mut self, cursor: &mut Cursor<'_>) -> Result<(), JsonError> {
        let before = *cursor;
        if let Token::Str(text) | Token::Bin(text) = cursor.token()? {
            return self.string(text);
        }
        *cursor = before;
        let mut text = Vec::new();
        ruby_text::write_text(cursor, &mut text)?;
        self.string(&text)
    }

    fn float(&mut self, value: f64) -> Result<(), JsonError> {
        use std::io::Write as _;
        if !value.is_finite() {
            if self.library == Library::Stdlib {
                return Err(JsonError::NotFinite);
            }
            *self.replaced += 1;
            self.out.extend_from_slice(b"null");
        } else if self.library == Library::Oj && value.abs() < INTEGRAL_FLOAT_LIMIT && value.fract() == 0.0 {
            // Writing to a Vec cannot fail.
            let _ = write!(self.out, "{value:.1}");
        } else {
            ruby_text::write_float(value, self.out);
        }
        Ok(())
    }

    #[inline]
    fn string(&mut self, text: &[u8]) -> Result<(), JsonError> {
        self.out.push(b'"');
        let plain = plain_prefix(text);
        if plain == text.len() {
            self.out.extend_from_slice(text);
        } else {
            self.string_with_care(text)?;
        }
        self.out.push(b'"');
        Ok(())
    }

    /// A string with something to escape or beyond ASCII.
    fn string_with_care(&mut self, text: &[u8]) -> Result<(), JsonError> {
        if let Ok(valid) = std::str::from_utf8(text) {
            self.escape(valid.as_bytes());
            return Ok(());
        }
        if self.library == Library::Stdlib {
            return Err(JsonError::InvalidUtf8);
        }
        *self.replaced += 1;
        for chunk in text.utf8_chunks() {
            self.escape(chunk.valid().as_bytes());
            if !chunk.invalid().is_empty() {
                self.out.extend_from_slice("\u{fffd}".as_bytes());
            }
        }
        Ok(())
    }

    fn escape(&mut self, text: &[u8]) {
        let mut clean_from = 0;
        for (at, byte) in text.iter().enumerate() {
            if *byte >= 0x20 && *byte != b'"' && *byte != b'\\' {
                continue;
            }
            self.out.extend_from_slice(&text[clean_from..at]);
            clean_from = at + 1;
            match byte {
                b'"' => self.out.extend_from_slice(b"\\\""),
                b'\\' => self.out.extend_from_slice(b"\\\\"),
                b'\n' => self.out.extend_from_slice(b"\\n"),
                b'\r' => self.out.extend_from_slice(b"\\r"),
                b'\t' => self.out.extend_from_slice(b"\\t"),
                0x08 => self.out.extend_from_slice(b"\\b"),
                0x0c => self.out.extend_from_slice(b"\\f"),
                other => {
                    const DIGITS: &[u8; 16] = b"0123456789abcdef";
                    let (high, low) = (DIGITS[usize::from(other >> 4)], DIGITS[usize::from(other & 15)]);
                    self.out.extend_from_slice(&[b'\\', b'u', b'0', b'0', high, low]);
                }
            }
        }
        self.out.extend_from_slice(&text[clean_from..]);
    }
}

/// How many bytes from the start are ASCII that JSON writes as it is, counted in steps of 8 except at the end: eight
/// bytes are tested with a few operations on one word.
#[inline]
fn plain_prefix(text: &[u8]) -> usize {
    let (words, tail) = text.as_chunks::<8>();
    for (index, word) in words.iter().enumerate() {
        if !is_plain_word(u64::from_le_bytes(*word)) {
            return index * 8;
        }
    }
    let plain = |byte: &u8| (0x20..0x80).contains(byte) && *byte != b'"' && *byte != b'\\';
    words.len() * 8 + tail.iter().position(|byte| !plain(byte)).unwrap_or(tail.len())
}

/// True when none of the eight bytes is below 0x20, above 0x7f, a quote or a backslash. May say false for plain bytes
/// that follow a special one (borrows), never true for a special one.
#[inline]
fn is_plain_word(word: u64) -> bool {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = 0x8080_8080_8080_8080;
    let below_blank = word.wrapping_sub(ONES * 0x20);
    let quote = (word ^ (ONES * 0x22)).wrapping_sub(ONES);
    let backslash = (word ^ (ONES * 0x5c)).wrapping_sub(ONES);
    (word | below_blank | quote | backslash) & HIGH == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(bytes: &[u8], library: Library) -> Result<(String, u64), JsonError> {
        let mut out = Vec::new();
        let mut replaced = 0;
        write_json(&mut Cursor::new(bytes), library, &mut replaced, &mut out)?;
        Ok((String::from_utf8(out).expect("JSON is UTF-8"), replaced))
    }

    fn packed_string(text: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0xdb];
        bytes.extend_from_slice(&u32::try_from(text.len()).expect("short").to_be_bytes());
        bytes.extend_from_slice(text);
        bytes
    }

    #[test]
    fn every_special_byte_is_seen_at_every_place() {
        for special in
            (0_u8..=255).filter(|byte| !(0x20..0x80).contains(byte) || matches!(byte, b'"' | b'\\'))
        {
            for length in 1..20 {
                for at in 0..length {
                    let mut text = vec![b'x'; length];
                    text[at] = special;
                    assert!(plain_prefix(&text) <= at, "{special:#x} at {at} of {length}");
                }
            }
        }
        let all: Vec<u8> = (0x20..0x80).filter(|byte| !matches!(byte, b'"' | b'\\')).collect();
        assert_eq!(plain_prefix(&all), all.len());
    }

    #[test]
    fn agrees_with_serde_on_every_character_below_two_hundred() {
        for code in 0..200_u32 {
            let text = format!("12345678{}x", char::from_u32(code).expect("no surrogate"));
            let (ours, replaced) = json(&packed_string(text.as_bytes()), Library::Oj).expect("valid");
            assert_eq!(ours, serde_json::to_string(&text).expect("text"), "{code}");
            assert_eq!(replaced, 0);
        }
    }

    #[test]
    fn what_is_not_json_is_replaced_and_counted_or_refused() {
        let bad = packed_string(b"a\xffb\xe3\x81");
        assert_eq!(json(&bad, Library::Oj), Ok(("\"a\u{fffd}b\u{fffd}\"".to_owned(), 1)));
        assert_eq!(json(&bad, Library::Stdlib), Err(JsonError::InvalidUtf8));
        let mut nan = vec![0xcb];
        nan.extend_from_slice(&f64::NAN.to_be_bytes());
        assert_eq!(json(&nan, Library::Oj), Ok(("null".to_owned(), 1)));
        assert_eq!(json(&nan, Library::Stdlib), Err(JsonError::NotFinite));
    }

    #[test]
    fn floats_follow_the_library() {
        let float = |value: f64, library| {
            let mut bytes = vec![0xcb];
            bytes.extend_from_slice(&value.to_be_bytes());
            json(&bytes, library).expect("finite").0
        };
        assert_eq!(float(1e16, Library::Oj), "10000000000000000.0");
        assert_eq!(float(1e16, Library::Stdlib), "1.0e+16");
        assert_eq!(float(1e20, Library::Oj), "1.0e+20");
        assert_eq!(float(2.5, Library::Oj), "2.5");
        assert_eq!(float(-3.0, Library::Oj), "-3.0");
    }

    #[test]
    fn odd_keys_and_times_become_text() {
        let bytes = [0x83, 1, 0xc0, 0xc0, 2, 0x91, 3, 0xd7, 0, 0, 0, 0, 7, 0, 0, 0, 9];
        assert_eq!(json(&bytes, Library::Oj), Ok((r#"{"1":null,"":2,"[3]":7}"#.to_owned(), 0)));
    }

    #[test]
    fn hostile_bytes_end_in_an_error() {
        assert_eq!(json(&[0x91; 200], Library::Oj), Err(JsonError::TooDeep));
        assert!(matches!(
            json(&[0xdd, 0xff, 0xff, 0xff, 0xff, 1], Library::Oj),
            Err(JsonError::Malformed(_))
        ));
        assert!(matches!(json(&[], Library::Oj), Err(JsonError::Malformed(_))));
    }
}
