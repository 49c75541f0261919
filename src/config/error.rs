//! Faults and warnings of a configuration: collected, so that one run shows all of them.

use std::fmt;

use super::element::Span;

/// More than this many lines help nobody; the rest is only counted.
const MAX_DIAGNOSTICS: usize = 1_000;
/// Lines longer than this are cut in messages (a JSON value may be one line of a megabyte).
const MAX_SHOWN_CHARACTERS: usize = 200;
/// A parameter whose name contains one of these keeps its value out of messages and logs.
const SECRET_WORDS: [&str; 12] = [
    "password",
    "passwd",
    "passphrase",
    "secret",
    "token",
    "credential",
    "shared_key",
    "access_key",
    "api_key",
    "apikey",
    "license_key",
    "connection_string",
];

/// A checked configuration that could not become a running part. Text says what, where and what to do.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct BuildError(pub String);

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// Nothing is started.
    Fault,
    /// Logged; `check --strict` counts it as a fault.
    Warning,
}

/// One fault or warning.
#[derive(Clone, Debug)]
pub struct Diagnostic {
    /// How bad it is.
    pub severity: Severity,
    /// Where it is; `None` for things that stand nowhere.
    pub span: Option<Span>,
    /// What is wrong; contains Fluentd's own words where it has some.
    pub message: String,
    /// What would have been right.
    pub expected: Option<String>,
    /// What is there.
    pub got: Option<String>,
    /// What to do: the nearest known name, the new parameter.
    pub hint: Option<String>,
}

impl Diagnostic {
    /// Says what would have been right.
    pub fn expected(&mut self, text: impl Into<String>) -> &mut Self {
        self.expected = Some(text.into());
        self
    }

    /// Says what is there.
    pub fn got(&mut self, text: impl Into<String>) -> &mut Self {
        self.got = Some(text.into());
        self
    }

    /// Says what to do.
    pub fn hint(&mut self, text: impl Into<String>) -> &mut Self {
        self.hint = Some(text.into());
        self
    }

    /// Points at the nearest known name, if one is near.
    pub fn suggest<'a>(&mut self, name: &str, known: impl IntoIterator<Item = &'a str>) -> &mut Self {
        if let Some(near) = nearest(name, known) {
            self.hint = Some(format!("did you mean '{near}'?"));
        }
        self
    }

    /// One line without the source text, for a log: `FILE:LINE: message (expected …, got …; hint)`.
    pub fn one_line(&self) -> String {
        let mut text = match &self.span {
            Some(span) => format!("{span}: {}", self.message),
            None => self.message.clone(),
        };
        let details: Vec<String> = [
            self.expected.as_ref().map(|expected| format!("expected {expected}")),
            self.got.as_ref().map(|got| format!("got {got}")),
            self.hint.clone(),
        ]
        .into_iter()
        .flatten()
        .collect();
        if !details.is_empty() {
            text.push_str(&format!(" ({})", details.join(", ")));
        }
        text
    }
}

/// Several lines: place and message, the line itself, a caret, what was expected and got, what to do.
impl fmt::Display for Diagnostic {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = match self.severity {
            Severity::Fault => "error",
            Severity::Warning => "warning",
        };
        match &self.span {
            Some(span) => write!(formatter, "{span}: {word}: {}", self.message)?,
            None => write!(formatter, "{word}: {}", self.message)?,
        }
        if let Some(span) = &self.span
            && let Some(line) = span.source.line(span.line)
        {
            let (shown, caret) = shown_line(line, span.column);
            let number = span.line.to_string();
            let margin = " ".repeat(number.len());
            write!(formatter, "\n {number} | {shown}\n {margin} | {caret}^")?;
        }
        if let Some(expected) = &self.expected {
            write!(formatter, "\n   expected: {expected}")?;
        }
        if let Some(got) = &self.got {
            write!(formatter, "\n   got: {got}")?;
        }
        if let Some(hint) = &self.hint {
            write!(formatter, "\n   {hint}")?;
        }
        Ok(())
    }
}

/// The line as it may be shown (secrets masked, cut when long) and the blanks before the caret.
fn shown_line(line: &str, column: u32) -> (String, String) {
    let key: String = line.trim_start().chars().take_while(|c| !c.is_whitespace()).collect();
    let mut shown = if looks_secret(&key) {
        let indent: String = line.chars().take_while(|c| c.is_whitespace()).collect();
        format!("{indent}{key} xxxxxx")
    } else {
        line.to_owned()
    };
    if shown.chars().count() > MAX_SHOWN_CHARACTERS {
        shown = shown.chars().take(MAX_SHOWN_CHARACTERS).chain("…".chars()).collect();
    }
    let before = usize::try_from(column.saturating_sub(1)).unwrap_or(0).min(MAX_SHOWN_CHARACTERS);
    // tabs stay tabs, so that the caret stands under its character
    let caret = shown.chars().map(|c| if c == '\t' { '\t' } else { ' ' }).chain(std::iter::repeat(' '));
    (shown.replace(|c: char| c.is_control() && c != '\t', "\u{fffd}"), caret.take(before).collect())
}

/// True for parameter names whose values should not be shown.
pub fn looks_secret(key: &str) -> bool {
    let key = key.to_ascii_lowercase();
    SECRET_WORDS.iter().any(|word| key.contains(word))
}

/// All faults and warnings found so far.
#[derive(Debug, Default)]
pub struct Diagnostics {
    items: Vec<Diagnostic>,
    omitted: usize,
    omitted_faults: usize,
    overflow: Option<Box<Diagnostic>>,
    strict_values: bool,
    sections: Vec<String>,
}

impl Diagnostics {
    /// Nothing found yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Reports a fault; details can be chained.
    pub fn fault(&mut self, span: &Span, message: impl Into<String>) -> &mut Diagnostic {
        self.push(Severity::Fault, Some(span.clone()), message.into())
    }

    /// Reports a fault that stands nowhere in particular.
    pub fn fault_anywhere(&mut self, message: impl Into<String>) -> &mut Diagnostic {
        self.push(Severity::Fault, None, message.into())
    }

    /// Reports a warning; details can be chained.
    pub fn warning(&mut self, span: &Span, message: impl Into<String>) -> &mut Diagnostic {
        self.push(Severity::Warning, Some(span.clone()), message.into())
    }

    fn push(&mut self, severity: Severity, span: Option<Span>, message: String) -> &mut Diagnostic {
        let item = Diagnostic { severity, span, message, expected: None, got: None, hint: None };
        if self.items.len() < MAX_DIAGNOSTICS {
            self.items.push(item);
            let last = self.items.len() - 1;
            return &mut self.items[last];
        }
        self.omitted += 1;
        self.omitted_faults += usize::from(severity == Severity::Fault);
        self.overflow.insert(Box::new(item))
    }

    /// Puts everything in the order of the files and lines; what stands nowhere comes first. Files keep the order in
    /// which something was first found in them.
    pub fn sort_by_place(&mut self) {
        let mut files: Vec<String> = Vec::new();
        let place = |item: &Diagnostic, files: &mut Vec<String>| {
            let span = item.span.as_ref()?;
            let file = span.source.name.to_string();
            let nth = files.iter().position(|known| *known == file).unwrap_or_else(|| {
                files.push(file);
                files.len() - 1
            });
            Some((nth, span.line, span.column))
        };
        let keys: Vec<_> = self.items.iter().map(|item| place(item, &mut files)).collect();
        let mut order: Vec<usize> = (0..self.items.len()).collect();
        order.sort_by_key(|&nth| keys[nth]);
        let mut items: Vec<Option<Diagnostic>> =
            std::mem::take(&mut self.items).into_iter().map(Some).collect();
        self.items = order.into_iter().filter_map(|nth| items[nth].take()).collect();
    }

    /// True if anything would keep the process from starting.
    pub fn has_faults(&self) -> bool {
        self.omitted_faults > 0 || self.faults().next().is_some()
    }

    /// True if nothing at all was found.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Everything, in the order found.
    pub fn iter(&self) -> impl Iterator<Item = &Diagnostic> {
        self.items.iter()
    }

    /// The faults.
    pub fn faults(&self) -> impl Iterator<Item = &Diagnostic> {
        self.items.iter().filter(|item| item.severity == Severity::Fault)
    }

    /// The warnings.
    pub fn warnings(&self) -> impl Iterator<Item = &Diagnostic> {
        self.items.iter().filter(|item| item.severity == Severity::Warning)
    }

    /// Everything as text for a terminal, one block per finding.
    pub fn render(&self) -> String {
        let mut text: String = self.items.iter().map(|item| format!("{item}\n")).collect();
        if self.omitted > 0 {
            text.push_str(&format!("{} more are not shown\n", self.omitted));
        }
        text
    }

    /// Whether values are converted strictly (`--strict-config-value`, `<system> strict_config_value true`).
    pub fn strict_values(&self) -> bool {
        self.strict_values
    }

    /// Sets how values are converted from now on.
    pub fn set_strict_values(&mut self, strict: bool) {
        self.strict_values = strict;
    }

    /// Enters a sub-section: required parameters missing below are reported "in section a > b".
    pub fn enter_section(&mut self, name: &str) {
        self.sections.push(name.to_owned());
    }

    /// Leaves the innermost sub-section.
    pub fn leave_section(&mut self) {
        self.sections.pop();
    }

    /// Fluentd's suffix for nested sections: empty at the top, else `, in section a > b`.
    pub fn section_suffix(&self) -> String {
        if self.sections.is_empty() {
            String::new()
        } else {
            format!(", in section {}", self.sections.join(" > "))
        }
    }
}

/// The known name nearest to `name`, if it is near enough to be meant (a third of the letters, at least one).
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let limit = (name.chars().count() / 3).max(1);
    known
        .into_iter()
        .map(|candidate| (edit_distance(name, candidate), candidate))
        .filter(|(distance, candidate)| *distance <= limit && *distance < candidate.chars().count())
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Letters to insert, delete, replace, or swap with their neighbour.
fn edit_distance(left: &str, right: &str) -> usize {
    /// Names longer than this are never typing errors of ours; keeps the work bounded.
    const MAX_NAME_CHARACTERS: usize = 64;
    let left: Vec<char> = left.chars().collect();
    let right: Vec<char> = right.chars().collect();
    if left.len() > MAX_NAME_CHARACTERS || right.len() > MAX_NAME_CHARACTERS {
        return usize::MAX;
    }
    let mut before_last: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=right.len()).collect();
    for (row, a) in left.iter().enumerate() {
        let mut current = vec![row + 1];
        for (column, b) in right.iter().enumerate() {
            let replaced = last[column] + usize::from(a != b);
            let mut best = replaced.min(last[column + 1] + 1).min(current[column] + 1);
            if row > 0 && column > 0 && *a == right[column - 1] && left[row - 1] == *b {
                best = best.min(before_last[column - 1] + 1);
            }
            current.push(best);
        }
        before_last = std::mem::replace(&mut last, current);
    }
    last[right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name() {
        let known = ["port", "path", "flush_interval", "tag"];
        let rows = [
            ("prot", Some("port")),
            ("pth", Some("path")),
            ("flush_intervall", Some("flush_interval")),
            ("xyz", None),
            ("tga", Some("tag")),
            ("", None),
        ];
        for (name, expected) in rows {
            assert_eq!(nearest(name, known), expected, "{name}");
        }
    }

    #[test]
    fn the_number_of_findings_is_bounded() {
        let mut diagnostics = Diagnostics::new();
        for number in 0..MAX_DIAGNOSTICS {
            diagnostics.warning(&Span::none(), format!("{number}"));
        }
        assert!(!diagnostics.has_faults());
        diagnostics.fault_anywhere("late").hint("still counts");
        assert!(diagnostics.has_faults());
        assert_eq!(diagnostics.iter().count(), MAX_DIAGNOSTICS);
        assert!(diagnostics.render().ends_with("1 more are not shown\n"));
    }
}
