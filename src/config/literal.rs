//! Values as they are written: bare words, `"…"`, `'…'`, JSON, with embedded code. Works on a cursor, reports through
//! [`ParseError`]; what is wrong with embedded code alone is noted and scanning goes on.

use std::sync::Arc;

use super::element::{ParamValue, Quote, Source, Span};
use super::ruby::{self, Halt, Scope};

/// A place in the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    pub offset: usize,
    pub line: u32,
    line_start: usize,
}

/// What stopped the reading of a value or tag, and where reading can go on.
#[derive(Debug)]
pub(crate) struct ParseError {
    pub at: Mark,
    pub message: String,
    pub expected: Option<String>,
    pub got: Option<String>,
    pub hint: Option<String>,
    /// Where the next line to read begins; `None`: after the line in which the cursor stands.
    pub resume: Option<Mark>,
}

impl ParseError {
    pub(crate) fn new(at: Mark, message: impl Into<String>) -> Box<Self> {
        Box::new(Self { at, message: message.into(), expected: None, got: None, hint: None, resume: None })
    }
}

/// What is wrong with a piece of embedded code.
#[derive(Debug)]
pub(crate) struct CodeFault {
    pub at: Mark,
    pub message: String,
    pub hint: Option<String>,
}

/// A position in a text that moves forward and knows its line.
pub(crate) struct Cursor {
    source: Arc<Source>,
    mark: Mark,
    /// Faults of embedded code since they were last taken.
    pub code_faults: Vec<CodeFault>,
    /// True once embedded code mentioned `worker_id`; reset by whoever asks.
    pub saw_worker_id: bool,
}

impl Cursor {
    pub(crate) fn new(source: Arc<Source>) -> Self {
        // editors on Windows put a byte order mark in front
        let offset = if source.text.starts_with('\u{feff}') { '\u{feff}'.len_utf8() } else { 0 };
        let mark = Mark { offset, line: 1, line_start: offset };
        Self { source, mark, code_faults: Vec::new(), saw_worker_id: false }
    }

    pub(crate) fn mark(&self) -> Mark {
        self.mark
    }

    pub(crate) fn reset(&mut self, mark: Mark) {
        self.mark = mark;
    }

    pub(crate) fn span(&self, mark: Mark) -> Span {
        let before = self.source.text.get(mark.line_start..mark.offset).unwrap_or("");
        let column = u32::try_from(before.chars().count()).unwrap_or(u32::MAX - 1) + 1;
        Span { source: self.source.clone(), line: mark.line, column }
    }

    pub(crate) fn rest(&self) -> &str {
        self.source.text.get(self.mark.offset..).unwrap_or("")
    }

    pub(crate) fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    pub(crate) fn next(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.mark.offset += c.len_utf8();
        if c == '\n' {
            self.mark.line = self.mark.line.saturating_add(1);
            self.mark.line_start = self.mark.offset;
        }
        Some(c)
    }

    pub(crate) fn take(&mut self, text: &str) -> bool {
        let matches = self.rest().starts_with(text);
        if matches {
            text.chars().for_each(|_| {
                self.next();
            });
        }
        matches
    }

    pub(crate) fn take_while(&mut self, keep: impl Fn(char) -> bool) -> String {
        let mut text = String::new();
        while let Some(c) = self.peek().filter(|c| keep(*c)) {
            text.push(c);
            self.next();
        }
        text
    }

    pub(crate) fn skip_blanks(&mut self) {
        while self.peek().is_some_and(is_blank) {
            self.next();
        }
    }

    /// Blanks, line ends and comments.
    pub(crate) fn skip_space(&mut self) {
        loop {
            match self.peek() {
                Some('#') => self.skip_line(),
                Some(c) if is_blank(c) || c == '\n' => {
                    self.next();
                }
                _ => return,
            }
        }
    }

    /// Bare words as a value.
    pub(crate) fn bare_value(&mut self) -> ParamValue {
        ParamValue::Text { text: self.bare(), quote: Quote::None }
    }

    /// Moves behind the next line end.
    pub(crate) fn skip_line(&mut self) {
        while self.next().is_some_and(|c| c != '\n') {}
    }

    /// Blanks and a comment up to the line end, which is taken; false if something else stands there.
    pub(crate) fn take_line_end(&mut self) -> bool {
        self.skip_blanks();
        if self.peek() == Some('#') {
            self.skip_comment();
        }
        self.peek().is_none() || self.take("\n")
    }

    /// Where the line after the given place begins.
    fn line_after(&self, mark: Mark) -> Mark {
        let text = &self.source.text;
        let end = text.get(mark.offset..).and_then(|rest| rest.find('\n'));
        let offset = end.map_or(text.len(), |at| mark.offset + at + 1);
        Mark { offset, line: mark.line.saturating_add(1), line_start: offset }
    }

    /// Reads a parameter's value and the rest of its line.
    pub(crate) fn value(&mut self, scope: &Scope<'_>) -> Result<ParamValue, Box<ParseError>> {
        let start = self.mark;
        let value = match self.peek() {
            Some('"') => self.double_quoted(scope)?,
            Some('\'') => ParamValue::Text { text: self.single_quoted()?, quote: Quote::Single },
            Some('[' | '{') => self.json(scope)?,
            _ => self.bare_value(),
        };
        let end = self.mark;
        if self.take_line_end() {
            return Ok(value);
        }
        let mut error = ParseError::new(self.mark, "expected end of line");
        error.got = self.rest().chars().next().map(|c| format!("'{c}'"));
        error.hint = Some("only a comment may follow a quoted or JSON value".into());
        if end.line != start.line {
            // most likely the quote was never meant to stay open: read the swallowed lines as lines
            error.hint = Some(format!("the value began on line {}: is its end missing there?", start.line));
            error.resume = Some(self.line_after(start));
        }
        Err(error)
    }

    /// Unquoted: up to the line end or a blank followed by `#`; a `#` that comes first is data.
    fn bare(&mut self) -> String {
        let line = self.rest().split('\n').next().unwrap_or("");
        let comment =
            line.char_indices().zip(line.chars().skip(1)).find(|((_, c), next)| is_blank(*c) && *next == '#');
        let text = comment.map_or(line, |((at, _), _)| line.get(..at).unwrap_or("")).to_owned();
        self.mark.offset += text.len();
        text.trim_end_matches(is_blank).to_owned()
    }

    /// `'…'`: only `\'` and `\\` are escapes; ends on its line.
    pub(crate) fn single_quoted(&mut self) -> Result<String, Box<ParseError>> {
        let start = self.mark;
        self.next();
        let mut text = String::new();
        loop {
            match self.next() {
                Some('\'') => return Ok(text),
                Some('\\') if matches!(self.peek(), Some('\'' | '\\')) => text.extend(self.next()),
                None | Some('\n') => {
                    let message = "unexpected end of file in a single quoted string";
                    let mut error = ParseError::new(start, message);
                    error.expected = Some("' before the end of the line".into());
                    error.hint = Some("text of several lines needs double quotes".into());
                    error.resume = Some(self.line_after(start));
                    return Err(error);
                }
                Some(c) => text.push(c),
            }
        }
    }

    /// `"…"` with escapes and embedded code; may span lines.
    pub(crate) fn double_quoted(&mut self, scope: &Scope<'_>) -> Result<ParamValue, Box<ParseError>> {
        let start = self.mark;
        self.next();
        let mut text = String::new();
        let mut outcome = Outcome::default();
        loop {
            let at = self.mark;
            match self.next() {
                Some('"') => return Ok(outcome.value(text, Quote::Double)),
                Some('\\') => self.escape(at, &mut text)?,
                Some('#') if self.peek() == Some('{') => {
                    let piece = self.code(at, scope, &mut outcome)?;
                    text.push_str(&piece);
                }
                // files edited on Windows: the line end is the same
                Some('\r') if self.peek() == Some('\n') => {}
                Some(c) => text.push(c),
                None => {
                    let message = "unexpected end of file in a double quoted string";
                    let mut error = ParseError::new(start, message);
                    error.expected = Some("a closing \"".into());
                    error.resume = Some(self.line_after(start));
                    return Err(error);
                }
            }
        }
    }

    fn escape(&mut self, at: Mark, text: &mut String) -> Result<(), Box<ParseError>> {
        match self.next() {
            Some('r') => text.push('\r'),
            Some('n') => text.push('\n'),
            Some('t') => text.push('\t'),
            Some('f') => text.push('\x0c'),
            Some('b') => text.push('\x08'),
            Some('0') => text.push('\0'),
            Some('\r') if self.peek() == Some('\n') => {
                self.next();
            }
            Some('\n') => {} // joins the lines
            Some(c) if c.is_ascii_alphanumeric() => {
                let mut error = ParseError::new(at, format!("unexpected back-slash escape character '{c}'"));
                error.expected = Some("one of \\\" \\' \\r \\n \\t \\f \\b \\0 \\\\ or a symbol".into());
                error.hint = Some("single quotes keep back-slashes as they are".into());
                return Err(error);
            }
            Some(c) => text.push(c),
            None => {} // the end of the file is reported by the caller
        }
        Ok(())
    }

    /// Embedded code; the cursor stands at `{`. Its value, or empty text and a note in `outcome`.
    fn code(
        &mut self,
        at: Mark,
        scope: &Scope<'_>,
        outcome: &mut Outcome,
    ) -> Result<String, Box<ParseError>> {
        self.next();
        let code = match ruby::scan(self.rest()) {
            Ok(code) => code,
            Err(_) => {
                let mut error = ParseError::new(at, "embedded code is not valid Ruby");
                error.expected = Some("an expression closed by '}' after #{".into());
                error.hint = Some("write \\#{ if no code is meant".into());
                error.resume = Some(self.line_after(at));
                return Err(error);
            }
        };
        let end = self.mark.offset + code.length;
        while self.mark.offset < end && self.next().is_some() {}
        self.next(); // the closing brace
        self.saw_worker_id |= code.mentions_worker_id;
        match ruby::evaluate(&code, scope) {
            Ok(text) => return Ok(text),
            Err(Halt::UseNil) => outcome.nil = true,
            Err(Halt::UseDefault) => outcome.default = true,
            Err(Halt::Raised(text)) => {
                outcome.invalid = true;
                let message = format!("embedded code failed: {text}");
                self.code_faults.push(CodeFault { at, message, hint: None });
            }
            Err(Halt::Refused { expression, reason }) => {
                outcome.invalid = true;
                let message = format!("embedded code is not supported: {expression}: {reason}");
                let hint = "docs/COMPAT.md lists what embedded code may use; an environment variable can carry the value";
                self.code_faults.push(CodeFault { at, message, hint: Some(hint.into()) });
            }
            Err(Halt::NoEnd) => outcome.invalid = true,
        }
        Ok(String::new())
    }

    /// `[…]` or `{…}`: brackets are matched outside strings, comments dropped, code evaluated; kept as compact JSON.
    fn json(&mut self, scope: &Scope<'_>) -> Result<ParamValue, Box<ParseError>> {
        let start = self.mark;
        let kind = if self.peek() == Some('[') { "array" } else { "hash" };
        let mut outcome = Outcome::default();
        let text = self.json_text(scope, kind, &mut outcome)?;
        if outcome.nil || outcome.default || outcome.invalid {
            return Ok(outcome.value(text, Quote::Json));
        }
        match serde_json::from_str::<serde_json::Value>(&text) {
            Ok(value) => Ok(ParamValue::Text { text: value.to_string(), quote: Quote::Json }),
            Err(reason) => {
                let mut error = incomplete_json(start, kind);
                error.expected = Some(format!("a JSON {}", if kind == "array" { "array" } else { "object" }));
                error.got = Some(reason.to_string());
                error.hint = Some("quote the value if it is not meant as JSON".into());
                Err(error)
            }
        }
    }

    /// The text up to the bracket that closes the first one.
    fn json_text(
        &mut self,
        scope: &Scope<'_>,
        kind: &str,
        outcome: &mut Outcome,
    ) -> Result<String, Box<ParseError>> {
        let start = self.mark;
        let resume = Some(self.line_after(start));
        let mut text = String::new();
        let mut open: Vec<char> = Vec::new();
        let mut in_string = false;
        loop {
            let at = self.mark;
            let Some(c) = self.next() else {
                let mut error = incomplete_json(start, kind);
                error.expected = open.last().map(|c| format!("'{c}' before the end of the file"));
                error.resume = resume;
                return Err(error);
            };
            match c {
                '#' if self.peek() == Some('{') => match self.code(at, scope, outcome) {
                    Ok(piece) => text.push_str(&piece),
                    Err(error) if at.line == start.line => return Err(error),
                    // several lines on, the likelier mistake is that the JSON was never closed
                    Err(_) => {
                        let mut error = incomplete_json(start, kind);
                        error.resume = resume;
                        return Err(error);
                    }
                },
                '"' => {
                    in_string = !in_string;
                    text.push(c);
                }
                '\\' if in_string => {
                    text.push(c);
                    text.extend(self.next());
                }
                _ if in_string => text.push(c),
                '#' => self.skip_comment(),
                '[' | '{' => {
                    open.push(if c == '[' { ']' } else { '}' });
                    text.push(c);
                }
                ']' | '}' => {
                    text.push(c);
                    if open.pop() != Some(c) {
                        let mut error = incomplete_json(at, kind);
                        error.got = Some(format!("'{c}'"));
                        error.resume = resume;
                        return Err(error);
                    }
                }
                c => text.push(c),
            }
            if open.is_empty() {
                return Ok(text);
            }
        }
    }

    /// The rest of the line, without its end.
    fn skip_comment(&mut self) {
        while self.peek().is_some_and(|c| c != '\n') {
            self.next();
        }
    }
}

fn incomplete_json(at: Mark, kind: &str) -> Box<ParseError> {
    ParseError::new(at, format!("got incomplete JSON {kind} configuration"))
}

/// What embedded code said about the value as a whole.
#[derive(Default)]
struct Outcome {
    nil: bool,
    default: bool,
    invalid: bool,
}

impl Outcome {
    fn value(&self, text: String, quote: Quote) -> ParamValue {
        if self.invalid {
            ParamValue::Invalid
        } else if self.nil {
            ParamValue::Nil
        } else if self.default {
            ParamValue::UseDefault
        } else {
            ParamValue::Text { text, quote }
        }
    }
}

/// A blank within a line. A carriage return is one: it never ends a line.
pub(crate) fn is_blank(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\r')
}
