//! One log line as text: pure, no clock, no I/O. Source of the form: Fluentd's `lib/fluent/log.rb`.

use std::fmt::Write as _;

use super::Level;

/// Longest line; the rest is cut. A field with a whole record of a peer must not fill the log in one go. The
/// configuration dump is the one long message, and it is ours.
pub(super) const LINE_BYTES_MAX: usize = 256 * 1024;

/// What one line says.
#[derive(Debug)]
pub(super) struct Line {
    pub level: Level,
    /// `#N`, for worker messages.
    pub worker: Option<u32>,
    /// `[id]`, when the plugin has an `@id`.
    pub plugin_id: Option<String>,
    /// Source position, when the global level is debug or trace.
    pub location: Option<(&'static str, u32)>,
    pub message: String,
    /// ` key=value ...`, already in Ruby's inspect form, with the leading blank.
    pub fields: String,
    /// Lines that were left out before this one.
    pub repeated: u64,
}

impl Line {
    /// Message and fields: what repeats are recognised by, and the `message` of the JSON form.
    pub(super) fn body(&self) -> String {
        let mut body = String::with_capacity(self.message.len() + self.fields.len() + 32);
        if let Some(id) = &self.plugin_id {
            let _ = write!(body, "[{}] ", printable(id));
        }
        if let Some((file, line)) = self.location {
            let _ = write!(body, "{}:{line}: ", file.strip_prefix("src/").unwrap_or(file));
        }
        body.push_str(&printable(&self.message));
        body.push_str(&self.fields);
        if self.repeated > 0 {
            let _ = write!(body, " (repeated {} times)", self.repeated);
        }
        if body.len() > LINE_BYTES_MAX {
            let end = (0..=LINE_BYTES_MAX).rev().find(|&end| body.is_char_boundary(end)).unwrap_or(0);
            body.truncate(end);
            body.push_str("...(cut)");
        }
        body
    }

    /// `TIME [LEVEL]: #0 [id] MESSAGE key=value` with its newline.
    pub(super) fn to_text(&self, time: &str, body: &str, colours: bool) -> String {
        let mut text = String::with_capacity(time.len() + body.len() + 32);
        let (on, off) = if colours { (self.level.colour(), "\x1b[0m") } else { ("", "") };
        let _ = write!(text, "{on}{time} [{}]: ", self.level);
        if let Some(worker) = self.worker {
            let _ = write!(text, "#{worker} ");
        }
        let _ = writeln!(text, "{body}{off}");
        text
    }

    /// `{"time":...,"level":...,"message":...[,"worker_id":0]}` with its newline.
    pub(super) fn to_json(&self, time: &str, body: &str) -> String {
        let quoted = |text: &str| serde_json::Value::from(text).to_string();
        let mut json =
            format!("{{\"time\":{},\"level\":\"{}\",\"message\":{}", quoted(time), self.level, quoted(body));
        if let Some(worker) = self.worker {
            let _ = write!(json, ",\"worker_id\":{worker}");
        }
        json.push_str("}\n");
        json
    }
}

/// A string as Ruby's `inspect` shows it.
pub(super) fn inspect(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '#' if matches!(characters.peek(), Some('{' | '$' | '@')) => out.push_str("\\#"),
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{b}' => out.push_str("\\v"),
            '\u{c}' => out.push_str("\\f"),
            '\u{1b}' => out.push_str("\\e"),
            _ => push_printable(&mut out, character, false),
        }
    }
    out.push('"');
    out
}

/// A float as Ruby's `inspect` shows it (`1.0e+20`).
pub(super) fn inspect_float(number: f64) -> String {
    if number.is_nan() {
        return "NaN".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    let text = format!("{number:?}");
    let Some((mantissa, exponent)) = text.split_once('e') else { return text };
    let point = if mantissa.contains('.') { "" } else { ".0" };
    let (sign, digits) = exponent.strip_prefix('-').map_or(('+', exponent), |digits| ('-', digits));
    format!("{mantissa}{point}e{sign}{digits:0>2}")
}

/// Free text with control characters made visible, so that no peer can move a terminal's cursor or fake a line
/// start; newline and tab stay (the configuration dump has many lines).
pub(super) fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        push_printable(&mut out, character, true);
    }
    out
}

fn push_printable(out: &mut String, character: char, keep_lines: bool) {
    match character {
        '\n' | '\t' if keep_lines => out.push(character),
        '\n' => out.push_str("\\n"),
        '\t' => out.push_str("\\t"),
        '\r' => out.push_str("\\r"),
        // Ruby also hides format characters; the bidirectional ones can make a log lie.
        '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}' => {
            let _ = write!(out, "\\u{:04X}", u32::from(character));
        }
        _ if character.is_control() => {
            let _ = write!(out, "\\u{:04X}", u32::from(character));
        }
        _ => out.push(character),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(level: Level) -> Line {
        Line {
            level,
            worker: Some(0),
            plugin_id: None,
            location: None,
            message: "fluentd worker is now running".into(),
            fields: " worker=0".into(),
            repeated: 0,
        }
    }

    #[test]
    fn text_has_fluentds_form() {
        let mut line = line(Level::Info);
        let time = "2026-11-30 16:00:00 +0000";
        assert_eq!(
            line.to_text(time, &line.body(), false),
            "2026-11-30 16:00:00 +0000 [info]: #0 fluentd worker is now running worker=0\n"
        );
        line.plugin_id = Some("out".into());
        line.worker = None;
        line.level = Level::Warn;
        line.repeated = 37;
        assert_eq!(
            line.to_text(time, &line.body(), false),
            "2026-11-30 16:00:00 +0000 [warn]: [out] fluentd worker is now running worker=0 (repeated 37 times)\n"
        );
        assert_eq!(line.to_text(time, "x", true), "\x1b[33m2026-11-30 16:00:00 +0000 [warn]: x\x1b[0m\n");
    }

    #[test]
    fn json_has_worker_only_where_text_has_the_mark() {
        let mut line = line(Level::Error);
        assert_eq!(
            line.to_json("T", &line.body()),
            "{\"time\":\"T\",\"level\":\"error\",\"message\":\"fluentd worker is now running worker=0\",\"worker_id\":0}\n"
        );
        line.worker = None;
        assert_eq!(line.to_json("T", "a\nb"), "{\"time\":\"T\",\"level\":\"error\",\"message\":\"a\\nb\"}\n");
    }

    #[test]
    fn strings_are_inspected_as_ruby_does() {
        assert_eq!(inspect("plain"), "\"plain\"");
        assert_eq!(inspect("a\"b\\c\n\t\r\u{1b}"), "\"a\\\"b\\\\c\\n\\t\\r\\e\"");
        assert_eq!(inspect("#{x} #$y #@z #w #"), "\"\\#{x} \\#$y \\#@z #w #\"");
        assert_eq!(inspect("\u{1}é漢"), "\"\\u0001é漢\"");
        assert_eq!(inspect_float(1.5), "1.5");
        assert_eq!(inspect_float(3.0), "3.0");
        assert_eq!(inspect_float(1e20), "1.0e+20");
        assert_eq!(inspect_float(1.5e-7), "1.5e-07");
        assert_eq!(inspect_float(f64::NAN), "NaN");
    }

    #[test]
    fn control_characters_of_free_text_become_visible() {
        assert_eq!(printable("a\u{1b}[2Jb\r\nc\td\u{202e}"), "a\\u001B[2Jb\\r\nc\td\\u202E");
    }

    #[test]
    fn a_long_line_is_cut_at_a_character() {
        let mut line = line(Level::Info);
        line.message = "é".repeat(LINE_BYTES_MAX);
        let body = line.body();
        assert!(body.len() <= LINE_BYTES_MAX + 8 && body.ends_with("é...(cut)"));
    }
}
