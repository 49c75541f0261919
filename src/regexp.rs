//! Regular expressions of configuration files, with Ruby's meaning.
//!
//! fancy-regex in its Oniguruma mode does the matching. What differs in Ruby is set or rewritten here: `^` and `$`
//! are line anchors everywhere, `m` lets the dot match a newline, `\d \w \s \h` are ASCII (`[[:alpha:]]` and `\p{L}`
//! are not). Limits: compat with Oniguruma is that of fancy-regex; a pattern it cannot read is a fault at start.

use std::borrow::Cow;

use crate::config::RegexpText;

/// Steps back that one match may take. A pattern such as `(a+)+$` would otherwise hold a thread for ever on hostile
/// input; a million steps are some 10 ms.
const BACKTRACK_LIMIT: usize = 1_000_000;

/// A pattern that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid regular expression /{pattern}/: {reason}")]
pub struct RegexpError {
    /// The pattern as configured.
    pub pattern: String,
    /// What is wrong with it.
    pub reason: String,
}

/// A match took more steps than any sensible pattern needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("regular expression gave up after {BACKTRACK_LIMIT} steps back")]
pub struct TooManySteps;

/// A compiled regular expression.
#[derive(Clone, Debug)]
pub struct Regexp(fancy_regex::Regex);

impl Regexp {
    /// Compiles a pattern.
    pub fn new(text: &RegexpText) -> Result<Self, RegexpError> {
        let mut builder = fancy_regex::RegexBuilder::new(&translate(&text.pattern));
        builder
            .oniguruma_mode(true)
            .multi_line(true)
            .case_insensitive(text.ignore_case)
            .dot_matches_new_line(text.dot_matches_newline)
            .backtrack_limit(BACKTRACK_LIMIT);
        builder
            .build()
            .map(Self)
            .map_err(|error| RegexpError { pattern: text.pattern.clone(), reason: error.to_string() })
    }

    /// Whether the text matches anywhere. Bytes that are not UTF-8 count as `?`, as in Fluentd.
    pub fn is_match(&self, text: &[u8]) -> Result<bool, TooManySteps> {
        self.0.is_match(scrub(text).as_ref()).map_err(|_| TooManySteps)
    }
}

/// The text with every run of bytes that is not UTF-8 replaced by `?`.
pub fn scrub(text: &[u8]) -> Cow<'_, str> {
    if let Ok(valid) = std::str::from_utf8(text) {
        return Cow::Borrowed(valid);
    }
    let mut out = String::with_capacity(text.len());
    for chunk in text.utf8_chunks() {
        out.push_str(chunk.valid());
        if !chunk.invalid().is_empty() {
            out.push('?');
        }
    }
    Cow::Owned(out)
}

/// Rewrites what Ruby reads differently: ASCII classes, and the option `m` in `(?m)`.
fn translate(pattern: &str) -> String {
    let mut out = String::with_capacity(pattern.len());
    let mut rest = pattern.chars().peekable();
    // Depth of brackets: inside a class the shorthand stands for its members.
    let mut class_depth = 0_usize;
    while let Some(character) = rest.next() {
        match character {
            '\\' => match rest.next() {
                Some(escaped) => match ascii_class(escaped) {
                    Some(members) if class_depth == 0 || escaped.is_ascii_uppercase() => {
                        let negated = if escaped.is_ascii_uppercase() { "^" } else { "" };
                        out.extend(["[", negated, members, "]"]);
                    }
                    Some(members) => out.push_str(members),
                    None => out.extend(['\\', escaped]),
                },
                None => out.push('\\'),
            },
            '[' => {
                let posix = if class_depth > 0 { posix_class(&mut rest) } else { None };
                if let Some(class) = posix {
                    out.push_str(&class);
                } else {
                    out.push('[');
                    class_depth += 1;
                    for literal in ['^', ']'] {
                        if let Some(first) = rest.next_if_eq(&literal) {
                            // Ruby takes a bracket right at the start as a member.
                            out.push_str(if first == ']' { "\\]" } else { "^" });
                        }
                    }
                }
            }
            ']' => {
                class_depth = class_depth.saturating_sub(1);
                out.push(']');
            }
            '(' if class_depth == 0 => {
                out.push('(');
                if rest.next_if_eq(&'?').is_some() {
                    out.push('?');
                    // Flags only; names, look-around and comments begin with another character.
                    while let Some(flag) = rest.next_if(|flag| matches!(flag, 'i' | 'm' | 'x' | '-')) {
                        out.push(if flag == 'm' { 's' } else { flag });
                    }
                }
            }
            other => out.push(other),
        }
    }
    out
}

/// Reads `:alpha:]` and the like behind their `[`; they are Unicode classes in Ruby. `None`, and nothing is read, when
/// it is something else.
fn posix_class(rest: &mut std::iter::Peekable<std::str::Chars<'_>>) -> Option<String> {
    let mut ahead = rest.clone();
    ahead.next_if_eq(&':')?;
    let negated = ahead.next_if_eq(&'^').is_some();
    let mut name = String::new();
    while let Some(letter) = ahead.next_if(char::is_ascii_lowercase) {
        name.push(letter);
    }
    ahead.next_if_eq(&':')?;
    ahead.next_if_eq(&']')?;
    let (outside, members) = match name.as_str() {
        "alpha" => (false, "\\p{Alphabetic}"),
        "digit" => (false, "\\p{Nd}"),
        "alnum" => (false, "\\p{Alphabetic}\\p{Nd}"),
        "upper" => (false, "\\p{Uppercase}"),
        "lower" => (false, "\\p{Lowercase}"),
        "space" => (false, "\\p{White_Space}"),
        "blank" => (false, "\\p{Zs}\\t"),
        "cntrl" => (false, "\\p{Cc}"),
        "punct" => (false, "\\p{P}$+<=>\\^`|\\~"),
        "xdigit" => (false, "0-9a-fA-F"),
        "word" => (false, "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}"),
        "ascii" => (false, "\\x00-\\x7f"),
        "graph" => (true, "\\p{White_Space}\\p{Cc}\\p{Cn}"),
        "print" => (true, "\\p{Cc}\\p{Cn}"),
        _ => return None,
    };
    *rest = ahead;
    Some(format!("[{}{members}]", if outside == negated { "" } else { "^" }))
}

/// Members of Ruby's ASCII shorthand classes.
fn ascii_class(escaped: char) -> Option<&'static str> {
    Some(match escaped.to_ascii_lowercase() {
        'd' => "0-9",
        'w' => "a-zA-Z0-9_",
        's' => "\\t\\n\\x0b\\f\\r\\x20",
        'h' => "0-9a-fA-F",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::FromConfig as _;

    fn regexp(text: &str) -> Regexp {
        let parsed = RegexpText::from_config(text, false).expect("a regexp");
        Regexp::new(&parsed).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn matches_as_ruby_does() {
        for (pattern, subject, expected) in [
            ("/^b$/", "a\nb\nc", true),
            ("/\\Ab/", "a\nb", false),
            ("/a.b/", "a\nb", false),
            ("/a.b/m", "a\nb", true),
            ("/(?m)a.b/", "a\nb", true),
            ("/(?m:a.b)c/", "a\nbc", true),
            ("/(?mi-x:A.b)/", "a\nB", true),
            ("/(?-m:a.b)/m", "a\nb", false),
            ("/ERR/i", "an error", true),
            ("/^\\d+$/", "12", true),
            ("/^\\d+$/", "１２", false),
            ("/\\w/", "é", false),
            ("/[[:alpha:]]/", "é", true),
            ("/^[[:alpha:]_-]+$/", "é_-", true),
            ("/[[:^alpha:]]/", "é", false),
            ("/^[[:punct:]]+$/", "!$~^", true),
            ("/^[[:graph:][:blank:]]+$/", "aé \t", true),
            ("/[[:graph:]]/", " \n", false),
            ("/^[^[:digit:]]$/", "x", true),
            ("/^[:d]+$/", ":d", true),
            ("/^[\\w.]+$/", "a.b_1", true),
            ("/^[^\\s]+$/", "a b", false),
            ("/[\\D]/", "12", false),
            ("/[\\D]/", "1x", true),
            ("/^\\h+$/", "09afAF", true),
            ("/^[]a]+$/", "]a", true),
            ("/^[^]]+$/", "]", false),
            ("/(?<y>\\d{4})-\\g<y>/", "2020-2021", true),
            ("/(?<=id=)\\d+(?!x)/", "id=42", true),
            ("/a(?=b)(?:b)/", "ab", true),
            ("/\\\\d/", "\\d", true),
            ("/$/", "", true),
            ("plain", "so plain", true),
            ("//", "anything", true),
        ] {
            assert_eq!(
                regexp(pattern).is_match(subject.as_bytes()),
                Ok(expected),
                "{pattern} on {subject:?}"
            );
        }
    }

    #[test]
    fn bytes_that_are_not_utf8_count_as_question_marks() {
        assert_eq!(regexp("/^a\\?b$/").is_match(b"a\xffb"), Ok(true));
        assert_eq!(scrub(b"\xe3\x81x\xff\xfe"), "?x??");
    }

    #[test]
    fn runaway_patterns_give_up_and_bad_ones_are_refused() {
        let hostile = format!("{}!", "a".repeat(40));
        assert_eq!(regexp("/^(?:(a|aa)|(?=a)a)+\\b\\1c$/").is_match(hostile.as_bytes()), Err(TooManySteps));
        let bad = RegexpText::from_config("/(a/", false).expect("a text");
        assert!(Regexp::new(&bad).expect_err("unclosed").to_string().contains("/(a/"));
    }
}
