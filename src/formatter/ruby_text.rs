//! What Ruby's `to_s` and `inspect` make of a value. Fluentd puts this text wherever a value becomes part of a string:
//! ltsv, csv, tsv, single_value, the subject of grep, a placeholder inside longer text.
//!
//! Maps are written as Ruby up to 3.3 does (`{"a"=>1}`); Ruby 3.4 writes blanks around the arrow.

use super::token::{Cursor, Token};
use crate::event::msgpack::{MAX_DEPTH, Stop};

/// Appends an integer.
#[inline]
pub fn write_integer(negative: bool, mut magnitude: u64, out: &mut Vec<u8>) {
    const PAIRS: &[u8; 200] =
        b"0001020304050607080910111213141516171819202122232425262728293031323334353637383940414243\
4445464748495051525354555657585960616263646566676869707172737475767778798081828384858687\
888990919293949596979899";
    let mut buffer = [0_u8; 21];
    let mut start = buffer.len();
    while magnitude >= 100 {
        let pair = (magnitude % 100) as usize * 2;
        magnitude /= 100;
        start -= 2;
        buffer[start..start + 2].copy_from_slice(&PAIRS[pair..pair + 2]);
    }
    if magnitude >= 10 {
        let pair = magnitude as usize * 2;
        start -= 2;
        buffer[start..start + 2].copy_from_slice(&PAIRS[pair..pair + 2]);
    } else {
        start -= 1;
        buffer[start] = b'0' + magnitude as u8;
    }
    if negative {
        start -= 1;
        buffer[start] = b'-';
    }
    out.extend_from_slice(&buffer[start..]);
}

/// Appends a float as `Float#to_s`: shortest digits that read back the same, `1.0`, `1.5e-07`, `1.0e+20`; plain
/// notation for exponents from -4 to 15. `NaN`, `Infinity`, `-Infinity`.
pub fn write_float(value: f64, out: &mut Vec<u8>) {
    use std::io::Write as _;
    if !value.is_finite() {
        let text = if value.is_nan() {
            "NaN"
        } else if value > 0.0 {
            "Infinity"
        } else {
            "-Infinity"
        };
        return out.extend_from_slice(text.as_bytes());
    }
    // Shortest digits in the form `-d.ddde-N`; 32 bytes hold any f64 so written.
    let mut scratch = [0_u8; 32];
    let mut free = &mut scratch[..];
    let _ = write!(free, "{value:e}");
    let unused = free.len();
    let text = &scratch[..scratch.len() - unused];
    let (sign, text) = text.strip_prefix(b"-").map_or((false, text), |rest| (true, rest));
    let (mantissa, exponent) = text.iter().position(|byte| *byte == b'e').map_or((text, &b"0"[..]), |at| {
        let (mantissa, rest) = text.split_at(at);
        (mantissa, &rest[1..])
    });
    let exponent: i32 = std::str::from_utf8(exponent).ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    let (first, fraction) = mantissa.split_at(mantissa.len().min(1));
    let fraction = fraction.strip_prefix(b".").unwrap_or(fraction);
    if sign {
        out.push(b'-');
    }
    if !(-4..16).contains(&exponent) {
        out.extend_from_slice(first);
        out.push(b'.');
        out.extend_from_slice(if fraction.is_empty() { b"0" } else { fraction });
        let _ = write!(out, "e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.unsigned_abs());
    } else if exponent < 0 {
        out.extend_from_slice(b"0.");
        out.extend(std::iter::repeat_n(b'0', exponent.unsigned_abs() as usize - 1));
        out.extend_from_slice(first);
        out.extend_from_slice(fraction);
    } else {
        let whole = exponent.unsigned_abs() as usize;
        out.extend_from_slice(first);
        let (whole_digits, rest) = fraction.split_at(fraction.len().min(whole));
        out.extend_from_slice(whole_digits);
        out.extend(std::iter::repeat_n(b'0', whole - whole_digits.len()));
        out.push(b'.');
        out.extend_from_slice(if rest.is_empty() { b"0" } else { rest });
    }
}

/// Appends `to_s` of the next value: nil is empty, a string is itself (bytes as they are), containers as `inspect`.
pub fn write_text(cursor: &mut Cursor<'_>, out: &mut Vec<u8>) -> Result<(), Stop> {
    let before = *cursor;
    match cursor.token()? {
        Token::Nil => {}
        Token::Str(text) | Token::Bin(text) => out.extend_from_slice(text),
        _ => {
            *cursor = before;
            write_inspect(cursor, out)?;
        }
    }
    Ok(())
}

/// Appends `inspect` of the next value; containers nested beyond what inputs let in are written as `...`.
pub fn write_inspect(cursor: &mut Cursor<'_>, out: &mut Vec<u8>) -> Result<(), Stop> {
    inspect(cursor, out, 0)
}

fn inspect(cursor: &mut Cursor<'_>, out: &mut Vec<u8>, depth: usize) -> Result<(), Stop> {
    let before = *cursor;
    match cursor.token()? {
        Token::Nil => out.extend_from_slice(b"nil"),
        Token::Bool(value) => out.extend_from_slice(if value { b"true" } else { b"false" }),
        Token::Int(value) => write_integer(value < 0, value.unsigned_abs(), out),
        Token::UInt(value) => write_integer(false, value, out),
        Token::Float(value) => write_float(value, out),
        Token::Str(text) => inspect_string(text, true, out),
        Token::Bin(text) => inspect_string(text, false, out),
        Token::Ext(data) => write_event_time(data, out),
        Token::Array(_) | Token::Map(_) if depth >= MAX_DEPTH => {
            *cursor = before;
            cursor.skip()?;
            out.extend_from_slice(b"...");
        }
        Token::Array(length) => {
            out.push(b'[');
            for index in 0..length {
                if index > 0 {
                    out.extend_from_slice(b", ");
                }
                inspect(cursor, out, depth + 1)?;
            }
            out.push(b']');
        }
        Token::Map(length) => {
            out.push(b'{');
            for index in 0..length {
                if index > 0 {
                    out.extend_from_slice(b", ");
                }
                inspect(cursor, out, depth + 1)?;
                out.extend_from_slice(b"=>");
                inspect(cursor, out, depth + 1)?;
            }
            out.push(b'}');
        }
    }
    Ok(())
}

/// Appends an event time inside a record as its whole seconds (`EventTime#to_s`); nothing for one of a wrong length.
pub fn write_event_time(data: &[u8], out: &mut Vec<u8>) {
    if let Some((seconds, _)) = data.split_first_chunk::<4>() {
        write_integer(false, u32::from_be_bytes(*seconds).into(), out);
    }
}

/// Appends a string in quotes, escaped as Ruby does; `unicode` is false for binary strings.
pub fn inspect_string(text: &[u8], unicode: bool, out: &mut Vec<u8>) {
    out.push(b'"');
    if unicode {
        for chunk in text.utf8_chunks() {
            let valid = chunk.valid();
            for (at, character) in valid.char_indices() {
                let next = valid.as_bytes().get(at + character.len_utf8()).copied();
                inspect_character(character, next, out);
            }
            chunk.invalid().iter().for_each(|byte| push_hex(*byte, out));
        }
    } else {
        for (at, byte) in text.iter().enumerate() {
            if byte.is_ascii() {
                inspect_character(char::from(*byte), text.get(at + 1).copied(), out);
            } else {
                push_hex(*byte, out);
            }
        }
    }
    out.push(b'"');
}

fn push_hex(byte: u8, out: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    out.extend_from_slice(&[b'\\', b'x', DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
}

fn inspect_character(character: char, next: Option<u8>, out: &mut Vec<u8>) {
    use std::io::Write as _;
    let short: &[u8] = match character {
        '"' => b"\\\"",
        '\\' => b"\\\\",
        '\n' => b"\\n",
        '\r' => b"\\r",
        '\t' => b"\\t",
        '\u{7}' => b"\\a",
        '\u{8}' => b"\\b",
        '\u{b}' => b"\\v",
        '\u{c}' => b"\\f",
        '\u{1b}' => b"\\e",
        '\u{7f}' => b"\\x7F",
        // Ruby would read `#{`, `#$` and `#@` as interpolation.
        '#' if matches!(next, Some(b'{' | b'$' | b'@')) => b"\\#",
        other if other.is_control() => {
            let _ = write!(out, "\\u{:04X}", u32::from(other));
            return;
        }
        other => {
            let mut buffer = [0_u8; 4];
            out.extend_from_slice(other.encode_utf8(&mut buffer).as_bytes());
            return;
        }
    };
    out.extend_from_slice(short);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn float(value: f64) -> String {
        let mut out = Vec::new();
        write_float(value, &mut out);
        String::from_utf8(out).expect("ASCII")
    }

    #[test]
    fn floats_print_as_float_to_s() {
        for (value, expected) in [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (-2.5, "-2.5"),
            (0.1, "0.1"),
            (0.0001, "0.0001"),
            (0.000_123, "0.000123"),
            (0.000_01, "1.0e-05"),
            (1.5e-7, "1.5e-07"),
            (123_456.789, "123456.789"),
            (1e15, "1000000000000000.0"),
            (9_007_199_254_740_993.0, "9007199254740992.0"),
            (1e16, "1.0e+16"),
            (1e20, "1.0e+20"),
            (1.25e100, "1.25e+100"),
            (f64::MIN_POSITIVE, "2.2250738585072014e-308"),
            (f64::NAN, "NaN"),
            (f64::NEG_INFINITY, "-Infinity"),
            (f64::from(0.1_f32), "0.10000000149011612"),
        ] {
            assert_eq!(float(value), expected);
        }
    }

    #[test]
    fn integers_print_whole() {
        for value in [0, 1, 9, 10, 99, 100, 101, 12_345, 1_000_000, u64::MAX] {
            let mut out = Vec::new();
            write_integer(false, value, &mut out);
            assert_eq!(out, value.to_string().as_bytes());
        }
        let mut out = Vec::new();
        write_integer(true, i64::MIN.unsigned_abs(), &mut out);
        assert_eq!(out, i64::MIN.to_string().as_bytes());
    }

    #[test]
    fn strings_are_inspected_as_rubys() {
        let show = |text: &[u8], unicode| {
            let mut out = Vec::new();
            inspect_string(text, unicode, &mut out);
            String::from_utf8(out).expect("UTF-8")
        };
        assert_eq!(show("a\"\\\n\u{1}\u{1b}é#{x} #a".as_bytes(), true), r##""a\"\\\n\u0001\eé\#{x} #a""##);
        assert_eq!(show(b"a\xff", true), r#""a\xFF""#);
        assert_eq!(show("é".as_bytes(), false), r#""\xC3\xA9""#);
    }
}
