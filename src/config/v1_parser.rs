//! Text -> tree of elements: Fluentd's v1 language with positions.
//!
//! Source: Fluentd `lib/fluent/config/v1_parser.rb`, whose messages are kept word for word where it has some. Unlike there, reading
//! goes on after a fault, at the next line that makes sense, so that one run shows all of them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::element::{Element, Param, ParamValue, Quote, Source, Span};
use super::environment::Environment;
use super::error::Diagnostics;
use super::include;
use super::literal::{Cursor, ParseError, is_blank};
use super::ruby::Scope;

/// Sections nested deeper than this are a mistake; keeps every later walk over the tree within its stack.
const MAX_SECTION_DEPTH: usize = 32;
/// After this many syntax faults the rest of a file is not read: it is no configuration, and every fault may have cost a
/// look at the whole rest of the text.
const MAX_SYNTAX_FAULTS: usize = 100;
/// Sections in which an unknown `@name` is an error rather than a warning.
const STRICT_SECTIONS: [&str; 4] = ["source", "match", "filter", "system"];
/// The `@` names that exist.
const RESERVED: [&str; 4] = ["@type", "@id", "@label", "@log_level"];

/// Reads texts into elements; one for a whole configuration with all its included files.
pub(crate) struct V1Parser<'a> {
    pub environment: &'a dyn Environment,
    pub worker_id: &'a str,
    pub diagnostics: &'a mut Diagnostics,
    /// Every file read so far, for those that may be read once only.
    pub files: Vec<PathBuf>,
    /// The files that are being read, outermost first.
    pub stack: Vec<PathBuf>,
}

impl V1Parser<'_> {
    /// Reads a text into the section `into`, which it cannot close. `folder` is where its includes are relative to.
    pub(crate) fn parse_into(
        &mut self,
        source: Arc<Source>,
        folder: &Path,
        into: &mut Element,
        depth: usize,
    ) {
        let mut cursor = Cursor::new(source);
        // the sections that this text has opened, outermost first; `into` stands before them
        let mut open: Vec<Element> = Vec::new();
        let mut faults = 0;
        loop {
            cursor.skip_space();
            if cursor.peek().is_none() {
                break;
            }
            let base_depth = depth + open.len();
            let outcome = if cursor.rest().starts_with("</") {
                self.end_tag(&mut cursor, &mut open, into)
            } else if cursor.peek() == Some('<') {
                self.start_tag(&mut cursor, base_depth).map(|element| open.extend(element))
            } else {
                let section = open.last_mut().unwrap_or(into);
                self.parameter(&mut cursor, folder, section, base_depth)
            };
            self.take_code_faults(&mut cursor, outcome.as_ref().err().map(AsRef::as_ref));
            if let Err(error) = outcome {
                self.report(&mut cursor, *error);
                faults += 1;
                if faults >= MAX_SYNTAX_FAULTS {
                    let span = cursor.span(cursor.mark());
                    self.diagnostics.fault(&span, "too many faults, the rest of the file is not read");
                    break;
                }
            }
        }
        while let Some(element) = open.last() {
            let message = format!("expected end tag '</{}>' but got end of file", element.name);
            self.diagnostics.fault(&element.span, message).hint("the section that begins here is not closed");
            close(&mut open, into);
        }
    }

    fn report(&mut self, cursor: &mut Cursor, error: ParseError) {
        let fault = self.diagnostics.fault(&cursor.span(error.at), error.message);
        fault.expected = error.expected;
        fault.got = error.got;
        fault.hint = error.hint;
        match error.resume {
            Some(mark) => cursor.reset(mark),
            None => cursor.skip_line(),
        }
    }

    /// Reports what embedded code did wrong, except where the text is about to be read again.
    fn take_code_faults(&mut self, cursor: &mut Cursor, error: Option<&ParseError>) {
        let again_from = error.and_then(|error| error.resume).map_or(usize::MAX, |mark| mark.offset);
        for fault in std::mem::take(&mut cursor.code_faults) {
            if fault.at.offset < again_from {
                let span = cursor.span(fault.at);
                self.diagnostics.fault(&span, fault.message).hint = fault.hint;
            }
        }
    }

    fn scope(&self) -> Scope<'_> {
        Scope { environment: self.environment, worker_id: self.worker_id }
    }

    /// `<name argument>`; `None` when the whole section is skipped.
    fn start_tag(&mut self, cursor: &mut Cursor, depth: usize) -> Result<Option<Element>, Box<ParseError>> {
        let start = cursor.mark();
        cursor.next();
        let name = cursor.take_while(is_name);
        if name.is_empty() {
            let mut error = ParseError::new(cursor.mark(), "expected a section name after '<'");
            error.expected = Some("letters, digits and _".into());
            return Err(error);
        }
        cursor.skip_blanks();
        cursor.saw_worker_id = false;
        let argument = match cursor.peek() {
            Some('"') => match cursor.double_quoted(&self.scope())? {
                ParamValue::Text { text, .. } => text,
                _ => String::new(),
            },
            Some('\'') => cursor.single_quoted()?,
            _ => cursor.take_while(|c| c != '>' && c != '\n').trim_matches(is_blank).to_owned(),
        };
        let uses_worker_id = std::mem::take(&mut cursor.saw_worker_id);
        cursor.skip_blanks();
        if !cursor.take(">") {
            return Err(ParseError::new(cursor.mark(), "expected '>'"));
        }
        let mut element = Element::new(name, argument);
        element.span = cursor.span(start);
        element.uses_worker_id = uses_worker_id;
        if depth >= MAX_SECTION_DEPTH {
            let message = format!("sections are nested deeper than {MAX_SECTION_DEPTH}");
            return Err(ParseError::new(start, message));
        }
        let end = cursor.mark();
        if !cursor.take_line_end() {
            // the section is open all the same: its end tag further down is right
            self.diagnostics
                .fault(&cursor.span(end), "expected end of line after tag")
                .hint("each tag stands alone on its line");
            let rest = cursor.rest().split('\n').next().unwrap_or("");
            let closes_here = rest.contains(&format!("</{}>", element.name));
            cursor.skip_line();
            if closes_here {
                return Ok(None);
            }
        }
        Ok(Some(element))
    }

    /// `</name>`
    fn end_tag(
        &mut self,
        cursor: &mut Cursor,
        open: &mut Vec<Element>,
        into: &mut Element,
    ) -> Result<(), Box<ParseError>> {
        let start = cursor.mark();
        cursor.take("</");
        let name = cursor.take_while(is_name);
        cursor.skip_blanks();
        if !cursor.take(">") {
            return Err(ParseError::new(cursor.mark(), "expected '>'"));
        }
        let end = cursor.mark();
        if !cursor.take_line_end() {
            self.diagnostics.fault(&cursor.span(end), "expected end of line after end tag");
            cursor.skip_line();
        }
        match open.last() {
            Some(innermost) if innermost.name == name => {}
            Some(innermost) => {
                let hint = format!("the innermost open section begins on line {}", innermost.span.line);
                let expected = format!("'</{}>'", innermost.name);
                let fault = self.diagnostics.fault(&cursor.span(start), "unmatched end tag");
                fault.expected(expected).got(format!("'</{name}>'")).hint(hint);
            }
            None => {
                let fault = self.diagnostics.fault(&cursor.span(start), "unmatched end tag");
                fault.got(format!("'</{name}>'")).hint("no section of this file is open here");
            }
        }
        // an outer section of this name: its inner ones lack their end tags; else the name is misspelt
        let closing = open.iter().rposition(|element| element.name == name).map_or(1, |at| open.len() - at);
        (0..closing).for_each(|_| close(open, into));
        Ok(())
    }

    /// `key value`, or `@include`.
    fn parameter(
        &mut self,
        cursor: &mut Cursor,
        folder: &Path,
        section: &mut Element,
        depth: usize,
    ) -> Result<(), Box<ParseError>> {
        let start = cursor.mark();
        let key = match cursor.peek() {
            Some('"') => match cursor.double_quoted(&self.scope())? {
                ParamValue::Text { text, .. } => text,
                _ => String::new(),
            },
            Some('\'') => cursor.single_quoted()?,
            _ => cursor.take_while(|c| !is_blank(c) && c != '\n'),
        };
        cursor.skip_blanks();
        let span = cursor.span(start);
        if key == "@include" || (key == "include" && depth == 0) {
            if key == "include" {
                self.diagnostics.warning(&span, "'include' is deprecated. Use '@include' instead");
            }
            return self.include(cursor, &span, folder, section, depth);
        }
        if key.starts_with('@') && !RESERVED.contains(&key.as_str()) {
            let message = format!(
                "'@' is the system reserved prefix. Don't use '@' prefix parameter in the configuration: {key}"
            );
            if depth == 0 || STRICT_SECTIONS.contains(&section.name.as_str()) {
                self.diagnostics.fault(&span, message).suggest(&key, RESERVED);
            } else {
                self.diagnostics.warning(&span, message).suggest(&key, RESERVED);
            }
        }
        if cursor.peek().is_none() || cursor.take("\n") {
            let value = ParamValue::Text { text: String::new(), quote: Quote::None };
            section.set_param(Param::new(key, value, span));
            return Ok(());
        }
        cursor.saw_worker_id = false;
        let value = cursor.value(&self.scope());
        section.uses_worker_id |= std::mem::take(&mut cursor.saw_worker_id);
        let (value, result) = match value {
            Ok(value) => (value, Ok(())),
            // the parameter is there, so nobody shall report it as missing
            Err(error) => (ParamValue::Invalid, Err(error)),
        };
        section.set_param(Param::new(key, value, span));
        result
    }

    /// The location after `@include`, and what it names.
    fn include(
        &mut self,
        cursor: &mut Cursor,
        span: &Span,
        folder: &Path,
        section: &mut Element,
        depth: usize,
    ) -> Result<(), Box<ParseError>> {
        let location = match cursor.peek() {
            Some('"' | '\'') => cursor.value(&self.scope())?,
            _ => cursor.bare_value(),
        };
        cursor.take_line_end();
        match location {
            ParamValue::Text { text, .. } => self.include_location(&text, span, folder, section, depth),
            ParamValue::Invalid => {}
            ParamValue::Nil | ParamValue::UseDefault => {
                self.diagnostics.fault(span, "include error  - no location");
            }
        }
        Ok(())
    }

    fn include_location(
        &mut self,
        location: &str,
        span: &Span,
        folder: &Path,
        section: &mut Element,
        depth: usize,
    ) {
        let found = match include::find(self.environment, location, folder) {
            Ok(found) => found,
            Err(reason) => {
                self.diagnostics.fault(span, format!("include error {location} - {reason}"));
                return;
            }
        };
        if found.is_empty() && !include::is_pattern(location) {
            self.diagnostics
                .warning(span, format!("include {location} names no file"))
                .hint("Fluentd says nothing here and goes on without it");
        }
        for path in found {
            if include::looks_like_backup(&path) && include::is_pattern(location) {
                let message = format!("{} looks like a backup of another included file", path.display());
                self.diagnostics.warning(span, message);
            }
            self.include_file(&path, location, span, section, depth);
        }
    }

    /// Reads one file into the section; faults of the file itself are reported at the `@include`.
    pub(crate) fn include_file(
        &mut self,
        path: &Path,
        location: &str,
        span: &Span,
        section: &mut Element,
        depth: usize,
    ) {
        let mut fault = |reason: String| {
            self.diagnostics.fault(span, format!("include error {location} - {reason}"));
        };
        if self.stack.iter().any(|outer| outer == path) {
            return fault(format!("{} includes itself", path.display()));
        }
        if self.stack.len() >= include::MAX_DEPTH {
            return fault(format!("includes are nested deeper than {}", include::MAX_DEPTH));
        }
        if self.files.len() >= include::MAX_FILES {
            return fault(format!("more than {} files", include::MAX_FILES));
        }
        match include::read(self.environment, path) {
            Err(reason) => fault(reason),
            Ok(source) => {
                self.files.push(path.to_owned());
                self.stack.push(path.to_owned());
                let folder = path.parent().unwrap_or(Path::new(""));
                self.parse_into(Arc::new(source), folder, section, depth);
                self.stack.pop();
            }
        }
    }
}

/// Moves the innermost open section into the one around it.
fn close(open: &mut Vec<Element>, into: &mut Element) {
    if let Some(element) = open.pop() {
        open.last_mut().unwrap_or(into).children.push(element);
    }
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

#[cfg(test)]
mod tests;
