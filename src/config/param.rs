//! `params!`: the parameters of a section declared once; struct, parser, defaults, help and docs come from it.
//!
//! ```
//! use tributary::config::{Diagnostics, Element, Secret};
//! use tributary::params;
//!
//! params! {
//!     /// One server.
//!     pub struct ServerParams {
//!         /// Host name or address.
//!         host: String,
//!         /// Port.
//!         port: u16 = "24224",
//!         /// Key.
//!         shared_key: Option<Secret>,
//!     }
//! }
//! params! {
//!     /// The output.
//!     pub struct OutputParams {
//!         /// Tag that replaces the incoming one.
//!         tag: Option<String>,
//!         /// Where to send.
//!         #[section] server: Vec<ServerParams>,
//!     }
//!     alias { new_tag => tag }
//!     unbuilt { "phi_threshold", "<security>" }
//!     foreign { "buffer" }
//! }
//!
//! let element = Element::new("match", "**").with_child(Element::new("server", "").with_param("host", "a"));
//! let mut diagnostics = Diagnostics::new();
//! let params = OutputParams::from_element(&element, &mut diagnostics).unwrap();
//! assert_eq!(params.server[0].port, 24224);
//! ```
//!
//! Fields: `name: Type = "default"` (the default is text in Fluentd syntax), `name: Option<Type>` (default nil),
//! `name: Type` (required). Before a field stand, in this order, its doc lines, `#[section]`, `#[key("real-name")]`.
//! A section field is `Option<S>` (at most one), `Vec<S>` (many) or `S` (exactly one; with `#[section(init)]`
//! made from its defaults when it is not written).
//!
//! After the struct: `argument name: Type;` (or `= "default"`), then blocks in any order:
//! `alias { old => field }`, `unbuilt { "p", "<section>", "q" unless "false" }`, `inert { "p" => "reason" }`,
//! `removed { "p" => "what to write instead" }`, `deprecated { "p" => "why" }`, `foreign { "section" }` (read by another
//! room), `foreign_parameters { "p" }`.

mod declare;
mod reader;
mod spec;

use super::element::{Element, Param, Span};
use super::error::Diagnostics;
use super::types::{FromConfig, TypeError};
#[doc(hidden)]
pub use reader::SectionReader;
use reader::warn_unused_section;

/// The declared parameters of a section.
#[derive(Debug)]
pub struct SectionSpec {
    /// Doc lines of the section.
    pub doc: &'static [&'static str],
    /// The argument, if the section takes one.
    pub argument: Option<ParamSpec>,
    /// One slice per field, empty for sections; see [`SectionSpec::params`].
    #[doc(hidden)]
    pub params: &'static [&'static [ParamSpec]],
    /// One slice per field, empty for parameters; see [`SectionSpec::sections`].
    #[doc(hidden)]
    pub sections: &'static [&'static [SubsectionSpec]],
    /// One slice per block; see [`SectionSpec::rules`].
    #[doc(hidden)]
    pub rules: &'static [&'static [NameRule]],
    /// True for sections such as `<record>` that take any parameter.
    pub free_form: bool,
}

/// One parameter.
#[derive(Debug)]
pub struct ParamSpec {
    /// Its name in the configuration.
    pub name: &'static str,
    /// Its name as a Rust field.
    pub field: &'static str,
    /// Fluentd's name of its type.
    pub type_name: &'static str,
    /// The names of an enum, else empty.
    pub choices: &'static [&'static str],
    /// The default as text, `None` for nil or required.
    pub default: Option<&'static str>,
    /// True if it must be written.
    pub required: bool,
    /// True if its value must not be shown.
    pub secret: bool,
    /// Doc lines.
    pub doc: &'static [&'static str],
    /// Whether a text (not strictly) is a value of its type; lets a test check every default.
    pub check: fn(&str) -> Result<(), TypeError>,
}

/// One sub-section.
#[derive(Debug)]
pub struct SubsectionSpec {
    /// Its name in the configuration.
    pub name: &'static str,
    /// Doc lines of the field.
    pub doc: &'static [&'static str],
    /// True if it must be written.
    pub required: bool,
    /// True if it may be written more than once.
    pub multi: bool,
    /// What it holds.
    pub spec: &'static SectionSpec,
}

/// What is known about a name that is not a field.
#[derive(Debug)]
pub struct NameRule {
    /// The parameter, or `<section>` in angle brackets.
    pub name: &'static str,
    /// What about it.
    pub kind: RuleKind,
}

/// The kinds of [`NameRule`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleKind {
    /// Another name of the given field.
    Alias(&'static str),
    /// Fluentd knows it, we have not built it: a fault, unless the value is one of these.
    Unbuilt(&'static [&'static str]),
    /// Accepted without effect, for this reason: a warning.
    Inert(&'static str),
    /// Fluentd removed it: a fault that says what to write instead.
    Removed(&'static str),
    /// Works, with a warning.
    Deprecated(&'static str),
    /// Another room reads it: true for a section, false for a parameter.
    Foreign(bool),
}

/// A section that can be read: made by `params!`, [`FreeForm`], or a raw [`Element`].
pub trait FromSection: Sized {
    /// What it holds.
    const SPEC: SectionSpec;
    /// Reads it; every fault goes to the diagnostics.
    fn from_element(element: &Element, diagnostics: &mut Diagnostics) -> Option<Self>;
}

/// How often a section may stand: the type of a `#[section]` field.
pub trait SectionField: Sized {
    /// True if it must be written.
    const REQUIRED: bool;
    /// True if it may be written more than once.
    const MULTI: bool;
    /// What it holds.
    const SPEC: &'static SectionSpec;
    /// Makes the field from what was found (`REQUIRED` and `MULTI` are already checked).
    fn from_elements(elements: &[&Element], diagnostics: &mut Diagnostics) -> Option<Self>;
}

impl<S: FromSection> SectionField for S {
    const REQUIRED: bool = true;
    const MULTI: bool = false;
    const SPEC: &'static SectionSpec = &S::SPEC;

    fn from_elements(elements: &[&Element], diagnostics: &mut Diagnostics) -> Option<Self> {
        S::from_element(elements.first()?, diagnostics)
    }
}

impl<S: FromSection> SectionField for Option<S> {
    const REQUIRED: bool = false;
    const MULTI: bool = false;
    const SPEC: &'static SectionSpec = &S::SPEC;

    fn from_elements(elements: &[&Element], diagnostics: &mut Diagnostics) -> Option<Self> {
        match elements.first() {
            None => Some(None),
            Some(element) => S::from_element(element, diagnostics).map(Some),
        }
    }
}

impl<S: FromSection> SectionField for Vec<S> {
    const REQUIRED: bool = false;
    const MULTI: bool = true;
    const SPEC: &'static SectionSpec = &S::SPEC;

    fn from_elements(elements: &[&Element], diagnostics: &mut Diagnostics) -> Option<Self> {
        // every element is read, so that every fault is reported, before one of them ends the whole
        let read: Vec<Option<S>> = elements.iter().map(|e| S::from_element(e, diagnostics)).collect();
        read.into_iter().collect()
    }
}

const EMPTY_SPEC: SectionSpec =
    SectionSpec { doc: &[], argument: None, params: &[], sections: &[], rules: &[], free_form: true };

/// A section that takes any parameter, such as `<record>`.
#[derive(Clone, Debug, Default)]
pub struct FreeForm {
    /// The text after the section's name.
    pub argument: String,
    /// Key and value in order; a value of nil is the empty text.
    pub entries: Vec<(String, String)>,
    /// Where it stands.
    pub span: Span,
}

impl FromSection for FreeForm {
    const SPEC: SectionSpec = EMPTY_SPEC;

    fn from_element(element: &Element, diagnostics: &mut Diagnostics) -> Option<Self> {
        element.params.iter().for_each(Param::mark_used);
        for child in &element.children {
            warn_unused_section(element, child, diagnostics);
        }
        let entry = |param: &Param| (param.key.clone(), param.value.text().unwrap_or("").to_owned());
        Some(Self {
            argument: element.argument.clone(),
            entries: element.params.iter().map(entry).collect(),
            span: element.span.clone(),
        })
    }
}

/// The section as it stands, for somebody who reads it later; nothing in it counts as used or unused here.
impl FromSection for Element {
    const SPEC: SectionSpec = EMPTY_SPEC;

    fn from_element(element: &Element, _diagnostics: &mut Diagnostics) -> Option<Self> {
        Some(element.clone())
    }
}

/// The name in the configuration of a field: `r#type` is `type`.
#[doc(hidden)]
pub const fn field_name(ident: &'static str) -> &'static str {
    let bytes = ident.as_bytes();
    if bytes.len() > 2 && bytes[0] == b'r' && bytes[1] == b'#' { ident.split_at(2).1 } else { ident }
}

#[doc(hidden)]
pub const fn is_required<T: FromConfig>(default: Option<&'static str>) -> bool {
    !T::OPTIONAL && default.is_none()
}

#[doc(hidden)]
pub fn check_text<T: FromConfig>(text: &str) -> Result<(), TypeError> {
    T::from_config(text, false).map(|_| ())
}

#[cfg(test)]
mod tests;
