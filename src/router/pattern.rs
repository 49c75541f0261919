//! Tag patterns of `<match>` and `<filter>`: `*`, `**`, `{a,b}`, `\c`, `/re/`, several separated by blanks. Pure.
//!
//! Source: Fluentd `lib/fluent/match.rs`, which makes a regular expression of each pattern; here a pattern becomes a small
//! program that walks the tag once, so that no pattern can be slow. Results are cached per tag by the router.

use std::fmt;

/// Instructions of one pattern; far more than a hand-written one has, and it bounds the time for a tag.
const MAX_INSTRUCTIONS: usize = 16_384;
/// Steps that a `/re/` may go back before it counts as not matching (fancy-regex); a tag is short.
const MAX_BACKTRACKS: usize = 100_000;

/// Why a pattern is none.
#[derive(Debug, thiserror::Error)]
pub enum PatternError {
    /// `/re` without its right slash; Fluentd's words.
    #[error("invalid match - regex: expected a closing slash in {0}")]
    MissingSlash(String),
    /// The regular expression is wrong.
    #[error("invalid match - regex: {pattern}: {reason}")]
    Regex {
        /// The pattern as it was written.
        pattern: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The pattern is absurdly long.
    #[error("tag pattern is too long, expected at most {MAX_INSTRUCTIONS} steps")]
    TooLong,
}

/// The patterns of one `<match>` or `<filter>`: a tag fits if it fits one of them.
#[derive(Debug)]
pub struct TagPatterns {
    text: String,
    patterns: Vec<Pattern>,
}

impl TagPatterns {
    /// Parses the argument of the directive. Nothing at all fits nothing; a directive without argument means `**`.
    pub fn parse(text: &str) -> Result<Self, PatternError> {
        let patterns: Result<Vec<Pattern>, PatternError> =
            text.split_whitespace().map(Pattern::parse).collect();
        Ok(Self { text: text.to_owned(), patterns: patterns? })
    }

    /// True if the tag fits one of the patterns.
    pub fn matches(&self, tag: &[u8]) -> bool {
        self.patterns.iter().any(|pattern| pattern.matches(tag))
    }
}

/// The text that was parsed.
impl fmt::Display for TagPatterns {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

#[derive(Debug)]
enum Pattern {
    /// `**`
    Everything,
    /// No wildcard at all.
    Literal(Vec<u8>),
    Program(Vec<Instruction>),
    Regex(Box<fancy_regex::Regex>),
}

/// One step of the walk over a tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Instruction {
    /// This byte.
    Byte(u8),
    /// Any byte but a dot.
    NotDot,
    /// Any byte but a newline (what `.` is in a regular expression).
    NotNewline,
    /// Go on at both.
    Split(usize, usize),
    /// Go on there.
    Jump(usize),
    /// Only before a dot or at the end.
    DotOrEndAhead,
    /// Only at the start.
    AtStart,
    /// The pattern ends.
    Done,
}

/// The parts of a pattern before they become instructions.
#[derive(Clone, Debug)]
enum Node {
    Byte(u8),
    /// `*`
    Segment,
    /// `**`
    Any,
    /// `**.`: whole segments up to a dot, or nothing at the start.
    AnySegments,
    /// The dot before `**`: what stands before it ends here, or a dot follows.
    DotOrEndAhead,
    Alternatives(Vec<Vec<Node>>),
}

impl Pattern {
    fn parse(text: &str) -> Result<Self, PatternError> {
        if text == "**" {
            return Ok(Self::Everything);
        }
        if let Some(rest) = text.strip_prefix('/') {
            return Self::regex(text, rest);
        }
        let nodes = parse_nodes(text);
        let bytes: Option<Vec<u8>> =
            nodes.iter().map(|node| if let Node::Byte(byte) = node { Some(*byte) } else { None }).collect();
        if let Some(bytes) = bytes {
            return Ok(Self::Literal(bytes));
        }
        let mut program = Vec::new();
        compile(&nodes, &mut program)?;
        program.push(Instruction::Done);
        Ok(Self::Program(program))
    }

    fn regex(text: &str, rest: &str) -> Result<Self, PatternError> {
        let inside = match rest.strip_suffix('/') {
            Some(inside) => inside,
            None if rest.is_empty() => "", // a lone slash is both ends, as in Fluentd
            None => return Err(PatternError::MissingSlash(text.to_owned())),
        };
        // Tags that are not UTF-8 are matched with their odd bytes replaced: Ruby would raise there.
        // Like Fluentd without a group around it: `/a|b/` is `\Aa` or `b\Z`
        fancy_regex::RegexBuilder::new(&format!("\\A{inside}\\Z"))
            .oniguruma_mode(true)
            .backtrack_limit(MAX_BACKTRACKS)
            .build()
            .map(|regex| Self::Regex(Box::new(regex)))
            .map_err(|error| PatternError::Regex { pattern: text.to_owned(), reason: error.to_string() })
    }

    fn matches(&self, tag: &[u8]) -> bool {
        match self {
            Self::Everything => true,
            // as with `\Z`: one newline at the end does not count
            Self::Literal(bytes) => tag == bytes || tag.strip_suffix(b"\n") == Some(bytes),
            Self::Program(program) => run(program, tag),
            Self::Regex(regex) => regex.is_match(String::from_utf8_lossy(tag).as_ref()).unwrap_or(false),
        }
    }
}

/// Braces that are open while a pattern is parsed.
struct OpenBrace {
    /// The finished alternatives.
    alternatives: Vec<Vec<Node>>,
    /// What stood before the brace.
    before: Vec<Node>,
    /// Where in the text the current alternative begins, and the finished ones.
    starts: Vec<usize>,
}

fn parse_nodes(text: &str) -> Vec<Node> {
    let mut open: Vec<OpenBrace> = Vec::new();
    let mut nodes: Vec<Node> = Vec::new();
    let mut dot_waits = false; // a dot means something else before `**`, and nothing at the end
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        if let Some(after) = rest.strip_prefix("**") {
            if dot_waits {
                nodes.push(Node::DotOrEndAhead);
                dot_waits = false;
            }
            rest = after;
            if let Some(after) = rest.strip_prefix('.') {
                nodes.push(Node::AnySegments);
                rest = after;
            } else {
                nodes.push(Node::Any);
            }
            continue;
        }
        if std::mem::take(&mut dot_waits) {
            nodes.push(Node::Byte(b'.'));
        }
        rest = rest.get(c.len_utf8()..).unwrap_or("");
        let at = text.len() - rest.len();
        match c {
            '\\' => {
                let Some(escaped) = rest.chars().next() else { break };
                push_literal(&mut nodes, escaped);
                rest = rest.get(escaped.len_utf8()..).unwrap_or("");
            }
            '.' => dot_waits = true,
            '*' => nodes.push(Node::Segment),
            '{' => {
                let before = std::mem::take(&mut nodes);
                open.push(OpenBrace { alternatives: Vec::new(), before, starts: vec![at] });
            }
            ',' => match open.last_mut() {
                Some(brace) => {
                    brace.alternatives.push(std::mem::take(&mut nodes));
                    brace.starts.push(at);
                }
                None => push_literal(&mut nodes, c),
            },
            '}' => match open.pop() {
                Some(mut brace) => {
                    brace.alternatives.push(nodes);
                    nodes = brace.before;
                    nodes.push(Node::Alternatives(brace.alternatives));
                }
                None => push_literal(&mut nodes, c),
            },
            c => push_literal(&mut nodes, c),
        }
    }
    // An unclosed brace ends with the pattern, and what is in it is then plain text.
    if let Some(brace) = open.first() {
        let inside = brace.starts.first().and_then(|start| text.get(*start..)).unwrap_or("");
        let alternatives = inside
            .split([',', '{'])
            .map(|text| text.strip_suffix('.').unwrap_or(text).bytes().map(Node::Byte).collect())
            .collect();
        nodes = brace.before.clone();
        nodes.push(Node::Alternatives(alternatives));
    }
    nodes
}

fn push_literal(nodes: &mut Vec<Node>, c: char) {
    nodes.extend(c.encode_utf8(&mut [0; 4]).bytes().map(Node::Byte));
}

fn compile(nodes: &[Node], program: &mut Vec<Instruction>) -> Result<(), PatternError> {
    for node in nodes {
        if program.len() > MAX_INSTRUCTIONS {
            return Err(PatternError::TooLong);
        }
        match node {
            Node::Byte(byte) => program.push(Instruction::Byte(*byte)),
            Node::Segment => repeat(Instruction::NotDot, program),
            Node::Any => repeat(Instruction::NotNewline, program),
            Node::DotOrEndAhead => program.push(Instruction::DotOrEndAhead),
            Node::AnySegments => {
                let split = program.len();
                program.push(Instruction::Done);
                repeat(Instruction::NotNewline, program);
                program.push(Instruction::Byte(b'.'));
                let jump = program.len();
                program.extend([Instruction::Jump(jump + 2), Instruction::AtStart]);
                program[split] = Instruction::Split(split + 1, jump + 1);
            }
            Node::Alternatives(alternatives) => compile_alternatives(alternatives, program)?,
        }
    }
    Ok(())
}

fn repeat(step: Instruction, program: &mut Vec<Instruction>) {
    let at = program.len();
    program.extend([Instruction::Split(at + 1, at + 3), step, Instruction::Jump(at)]);
}

fn compile_alternatives(
    alternatives: &[Vec<Node>],
    program: &mut Vec<Instruction>,
) -> Result<(), PatternError> {
    let mut jumps = Vec::new();
    for (index, alternative) in alternatives.iter().enumerate() {
        let last = index + 1 == alternatives.len();
        let split = program.len();
        if !last {
            program.push(Instruction::Done);
        }
        compile(alternative, program)?;
        if !last {
            jumps.push(program.len());
            program.push(Instruction::Done);
            program[split] = Instruction::Split(split + 1, program.len());
        }
    }
    let end = program.len();
    jumps.into_iter().for_each(|jump| program[jump] = Instruction::Jump(end));
    Ok(())
}

/// Walks the tag with every possible place in the program at once: time is tag length x program length, at worst.
fn run(program: &[Instruction], tag: &[u8]) -> bool {
    let mut current = Places::new(program.len());
    let mut next = Places::new(program.len());
    current.add(program, 0, tag, 0);
    for at in 0..=tag.len() {
        if current.done && (at == tag.len() || tag.get(at..) == Some(b"\n")) {
            return true;
        }
        let Some(byte) = tag.get(at) else { return false };
        next.clear();
        for place in &current.places {
            let steps = match program.get(*place) {
                Some(Instruction::Byte(expected)) => expected == byte,
                Some(Instruction::NotDot) => *byte != b'.',
                Some(Instruction::NotNewline) => *byte != b'\n',
                _ => false,
            };
            if steps {
                next.add(program, place + 1, tag, at + 1);
            }
        }
        std::mem::swap(&mut current, &mut next);
    }
    false
}

/// A set of places in a program.
struct Places {
    places: Vec<usize>,
    seen: Vec<bool>,
    done: bool,
}

impl Places {
    fn new(size: usize) -> Self {
        Self { places: Vec::new(), seen: vec![false; size], done: false }
    }

    fn clear(&mut self) {
        self.places.clear();
        self.seen.fill(false);
        self.done = false;
    }

    /// Adds a place and all that can be reached from it without a byte.
    fn add(&mut self, program: &[Instruction], place: usize, tag: &[u8], at: usize) {
        let mut waiting = vec![place];
        while let Some(place) = waiting.pop() {
            match self.seen.get_mut(place) {
                Some(seen) if !*seen => *seen = true,
                _ => continue,
            }
            match program.get(place) {
                Some(Instruction::Split(left, right)) => waiting.extend([*left, *right]),
                Some(Instruction::Jump(to)) => waiting.push(*to),
                Some(Instruction::DotOrEndAhead) if matches!(tag.get(at), None | Some(b'.')) => {
                    waiting.push(place + 1);
                }
                Some(Instruction::AtStart) if at == 0 => waiting.push(place + 1),
                Some(Instruction::Done) => self.done = true,
                Some(Instruction::Byte(_) | Instruction::NotDot | Instruction::NotNewline) => {
                    self.places.push(place);
                }
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fits(pattern: &str, tag: &str) -> bool {
        TagPatterns::parse(pattern).unwrap().matches(tag.as_bytes())
    }

    #[test]
    fn every_row_of_the_table() {
        // pattern, tags that fit, tags that do not
        let rows: &[(&str, &[&str], &[&str])] = &[
            ("a", &["a", "a\n"], &["", "b", "aa", "a.b", "a\n\n"]),
            ("a.*", &["a.b", "a."], &["a", "a.b.c", "ab"]),
            ("*", &["a", ""], &["a.b"]),
            ("a*", &["a", "ab"], &["a.b", "ba"]),
            ("a.*.c", &["a.b.c", "a..c"], &["a.c", "a.b.b.c"]),
            ("**", &["", "a", "a.b.c"], &[]),
            ("a.**", &["a", "a.b", "a.b.c", "a.", "a..b"], &["ab", "b.a", ""]),
            ("**.c", &["c", "a.c", "a.b.c", ".c"], &["ac", "c.a", "a.bc"]),
            ("a**", &["a", "ab", "a.b"], &["b"]),
            ("a.**.c", &["a.c", "a.b.c", "a.b.b.c"], &["ac", "a.bc", "abc", "a.b"]),
            ("**.b.**", &["b", "a.b", "b.c", "a.b.c"], &["ab", "bc"]),
            ("{x,y}", &["x", "y"], &["", "xy", "x,y", "z"]),
            ("{a,b.**}.c", &["a.c", "b.c", "b.x.c", "b.x.y.c"], &["c", "a.x.c", "bc"]),
            ("a.{b,{c,d}.e}", &["a.b", "a.c.e", "a.d.e"], &["a.c", "a.e"]),
            ("{,a}b", &["b", "ab"], &["a"]),
            ("{**.a,b}", &["a", "x.a", "b"], &["xa"]),
            // an unclosed brace is closed at the end, wildcards inside it are then literal
            ("{a,b", &["a", "b"], &["{a,b", "a,b"]),
            ("x.{a*,b", &["x.a*", "x.b"], &["x.ab"]),
            ("a.", &["a"], &["a.", "a.b"]),
            ("a}", &["a}"], &["a"]),
            ("a,b", &["a,b"], &["a", "b"]),
            ("a\\*", &["a*"], &["ab", "a"]),
            ("a\\.b\\{", &["a.b{"], &["a.b"]),
            ("a-b+c", &["a-b+c"], &["a-bbc"]),
            ("a.*|b", &["a.x|b"], &["a.x", "b"]),
            ("é.*", &["é.x"], &["e.x"]),
            ("a b.**  c", &["a", "b", "b.x", "c"], &["a b", "d"]),
            ("", &[], &["", "a"]),
        ];
        for (pattern, fitting, others) in rows {
            for tag in *fitting {
                assert!(fits(pattern, tag), "{pattern:?} should fit {tag:?}");
            }
            for tag in *others {
                assert!(!fits(pattern, tag), "{pattern:?} should not fit {tag:?}");
            }
        }
    }

    #[test]
    fn regular_expressions() {
        assert!(fits("/a.+/", "ab.c") && !fits("/a.+/", "xab"));
        assert!(fits("/(?!b).*/", "a") && !fits("/(?!b).*/", "b"));
        assert!(fits("/a\\.(b|c)/", "a.c") && !fits("/a\\.(b|c)/", "a.d"));
        assert!(fits("x /a/", "x") && fits("x /a/", "a"));
        assert!(fits("/a/", "a\n") && !fits("/a/", "a\nb"));
        // no group is put around it
        assert!(fits("/a|b/", "ax") && fits("/a|b/", "xb"));
        let error = TagPatterns::parse("/a").unwrap_err().to_string();
        assert!(error.starts_with("invalid match - regex"), "{error}");
        assert!(TagPatterns::parse("/(/").is_err());
    }

    #[test]
    fn tags_are_bytes() {
        let patterns = TagPatterns::parse("a.* b.**").unwrap();
        assert!(patterns.matches(b"a.\xff") && patterns.matches(b"b.\xff.x") && !patterns.matches(b"\xff"));
        let matches_everything =
            |patterns: &TagPatterns| patterns.patterns.iter().any(|one| matches!(one, Pattern::Everything));
        assert!(matches_everything(&TagPatterns::parse("x **").unwrap()));
        assert!(!matches_everything(&patterns));
        assert_eq!(patterns.to_string(), "a.* b.**");
    }

    #[test]
    fn no_pattern_is_slow_or_endless() {
        let nested = "{**,**".repeat(200) + &"}".repeat(200);
        let tag = "a.".repeat(500);
        assert!(fits(&nested, &tag));
        assert!(!fits(&format!("{}x", "**".repeat(200)), &tag));
        assert!(matches!(TagPatterns::parse(&"*".repeat(99_999)), Err(PatternError::TooLong)));
    }

    /// The translation that Fluentd describes, through a regular expression: an independent reading of the rules.
    fn as_regex(pattern: &str) -> String {
        let mut out = String::new();
        let mut depth = 0;
        let mut rest = pattern;
        while !rest.is_empty() {
            if let Some(after) = rest.strip_prefix(".**.") {
                out.push_str("(?![^.])(?:[^\\n]*\\.|\\A)");
                rest = after;
            } else if let Some(after) = rest.strip_prefix(".**") {
                out.push_str("(?![^.])[^\\n]*");
                rest = after;
            } else if let Some(after) = rest.strip_prefix("**.") {
                out.push_str("(?:[^\\n]*\\.|\\A)");
                rest = after;
            } else if let Some(after) = rest.strip_prefix("**") {
                out.push_str("[^\\n]*");
                rest = after;
            } else {
                let (c, after) = rest.split_at(1);
                match c {
                    "*" => out.push_str("[^.]*"),
                    "." if after.is_empty() => {}
                    "." => out.push_str("\\."),
                    "{" => {
                        depth += 1;
                        out.push_str("(?:");
                    }
                    "}" if depth > 0 => {
                        depth -= 1;
                        out.push(')');
                    }
                    "," if depth > 0 => out.push('|'),
                    c => out.push_str(
                        &c.replace(['}', ','], "[$0]").replace("[$0]", if c == "}" { "\\}" } else { "," }),
                    ),
                }
                rest = after;
            }
        }
        format!("\\A{out}\\n?\\z")
    }

    proptest::proptest! {
        #[test]
        fn agrees_with_the_regular_expression(
            parts in proptest::collection::vec(
                proptest::sample::select(vec!["a", "b", ".", "*", "**", "{a,b.**}", "{**.a,*}"]), 1..8),
            tag in "[ab.]{0,8}",
        ) {
            let pattern = parts.concat();
            let regex = fancy_regex::Regex::new(&as_regex(&pattern)).unwrap();
            proptest::prop_assert_eq!(fits(&pattern, &tag), regex.is_match(&tag).unwrap(), "{} {}", pattern, tag);
        }
    }
}
