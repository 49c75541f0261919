//! A section of the configuration: name, argument, parameters and sub-sections, each with its position.
//!
//! Source: Fluentd `lib/fluent/config/element.rb`. Parameters remember whether anybody asked for them, so that
//! the ones nobody asked for can be warned about.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A text that configuration was read from: a file, `-i TEXT`, or a made-up element of a test.
#[derive(Debug)]
pub struct Source {
    /// The path as it was opened, or a word in parentheses when there is no file.
    pub name: String,
    /// The whole text, so that a message can show the line.
    pub text: String,
}

impl Source {
    /// The line with the given number (from 1), without its line end.
    pub fn line(&self, number: u32) -> Option<&str> {
        let index = usize::try_from(number).ok()?.checked_sub(1)?;
        self.text.split('\n').nth(index).map(|line| line.trim_end_matches('\r'))
    }
}

/// Where something stands: source, line and column, both counted from 1 (columns in characters).
#[derive(Clone)]
pub struct Span {
    /// The text it stands in.
    pub source: Arc<Source>,
    /// Line from 1; 0 when the source has no lines (elements that were made, not read).
    pub line: u32,
    /// Column from 1, in characters.
    pub column: u32,
}

impl Span {
    /// The position of something that was not read from a text.
    pub fn none() -> Self {
        Self { source: Arc::new(Source { name: "(made)".into(), text: String::new() }), line: 0, column: 0 }
    }
}

impl Default for Span {
    fn default() -> Self {
        Self::none()
    }
}

/// `FILE:LINE`, or the source's name alone when it has no lines.
impl fmt::Display for Span {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line == 0 {
            write!(formatter, "{}", self.source.name)
        } else {
            write!(formatter, "{}:{}", self.source.name, self.line)
        }
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}:{}", self.source.name, self.line, self.column)
    }
}

/// How a value was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quote {
    /// Bare words up to the end of the line.
    None,
    /// `'…'`
    Single,
    /// `"…"`
    Double,
    /// `[…]` or `{…}`, stored as compact JSON.
    Json,
}

/// The value of a parameter before its type is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ParamValue {
    /// Text, with escapes and embedded code already resolved.
    Text {
        /// The text.
        text: String,
        /// How it was written.
        quote: Quote,
    },
    /// `"#{… use_nil}"`: explicitly nil.
    Nil,
    /// `"#{… use_default}"`: as if it were not written.
    UseDefault,
    /// The value is wrong and that has been reported; nobody needs to complain again.
    Invalid,
}

impl ParamValue {
    /// The text, or `None` for nil and "use default".
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Text { text, .. } => Some(text),
            Self::Nil | Self::UseDefault | Self::Invalid => None,
        }
    }
}

/// One parameter of a section.
#[derive(Debug)]
pub struct Param {
    /// Its name.
    pub key: String,
    /// Its value.
    pub value: ParamValue,
    /// Where the key stands.
    pub span: Span,
    used: AtomicBool,
}

impl Param {
    /// A parameter that nobody has asked for yet.
    pub fn new(key: impl Into<String>, value: ParamValue, span: Span) -> Self {
        Self { key: key.into(), value, span, used: AtomicBool::new(false) }
    }

    /// True once somebody asked for it.
    pub fn is_used(&self) -> bool {
        self.used.load(Ordering::Relaxed)
    }

    /// Keeps the parameter out of the warnings about unused ones.
    pub fn mark_used(&self) {
        self.used.store(true, Ordering::Relaxed);
    }
}

impl Clone for Param {
    fn clone(&self) -> Self {
        Self {
            key: self.key.clone(),
            value: self.value.clone(),
            span: self.span.clone(),
            used: AtomicBool::new(self.is_used()),
        }
    }
}

/// A section: `<name argument> parameters and sub-sections </name>`.
#[derive(Clone, Debug, Default)]
pub struct Element {
    /// The name in the tag, `ROOT` for a file.
    pub name: String,
    /// The text after the name, trimmed; empty when there is none.
    pub argument: String,
    /// The parameters in order of their first mention; a key stands here once, the last value wins.
    pub params: Vec<Param>,
    /// The sub-sections in order.
    pub children: Vec<Element>,
    /// Where the opening tag stands.
    pub span: Span,
    /// True if embedded code in its own parameters or argument mentions `worker_id`: such a plugin is built once
    /// per worker, from the configuration read with that worker's id.
    pub uses_worker_id: bool,
}

impl Element {
    /// An empty section without position.
    pub fn new(name: impl Into<String>, argument: impl Into<String>) -> Self {
        Self { name: name.into(), argument: argument.into(), ..Self::default() }
    }

    /// The same with one more parameter; for tests and for code that makes sections.
    #[must_use]
    pub fn with_param(mut self, key: &str, text: &str) -> Self {
        let value = ParamValue::Text { text: text.into(), quote: Quote::None };
        self.set_param(Param::new(key, value, self.span.clone()));
        self
    }

    /// The same with one more sub-section.
    #[must_use]
    pub fn with_child(mut self, child: Element) -> Self {
        self.children.push(child);
        self
    }

    /// Adds a parameter; a second one with the same key replaces the value and keeps the place, as in Fluentd.
    pub fn set_param(&mut self, param: Param) {
        match self.params.iter_mut().find(|known| known.key == param.key) {
            Some(known) => *known = param,
            None => self.params.push(param),
        }
    }

    /// The parameter, marked as used.
    pub fn param(&self, key: &str) -> Option<&Param> {
        let param = self.params.iter().find(|param| param.key == key)?;
        param.mark_used();
        Some(param)
    }

    /// The parameter's text, marked as used; `None` when it is absent, nil or "use default".
    pub fn text(&self, key: &str) -> Option<&str> {
        self.param(key)?.value.text()
    }

    /// True if the parameter is written; does not mark it.
    pub fn has(&self, key: &str) -> bool {
        self.params.iter().any(|param| param.key == key)
    }

    /// The sub-sections with the given name, in order.
    pub fn children_named<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Element> + 'a {
        self.children.iter().filter(move |child| child.name == name)
    }

    /// The first sub-section with the given name.
    pub fn child(&self, name: &str) -> Option<&Element> {
        self.children.iter().find(|child| child.name == name)
    }

    /// The parameters that nobody asked for.
    pub fn unused_params(&self) -> impl Iterator<Item = &Param> {
        self.params.iter().filter(|param| !param.is_used())
    }

    /// Marks every parameter here and below as used.
    pub fn mark_all_used(&self) {
        self.params.iter().for_each(Param::mark_used);
        self.children.iter().for_each(Element::mark_all_used);
    }

    /// True if embedded code here or below mentions `worker_id`.
    pub fn depends_on_worker_id(&self) -> bool {
        self.uses_worker_id || self.children.iter().any(Element::depends_on_worker_id)
    }

    /// The opening tag: `<match a.**>`, `<source>`.
    pub fn tag(&self) -> String {
        if self.argument.is_empty() {
            format!("<{}>", self.name)
        } else {
            format!("<{} {}>", self.name, self.argument)
        }
    }

    /// The plugin type as written (`@type` or `type`), without marking it.
    pub fn type_name(&self) -> Option<&str> {
        let find = |key: &str| self.params.iter().find(|param| param.key == key);
        find("@type").or_else(|| find("type"))?.value.text()
    }
}
