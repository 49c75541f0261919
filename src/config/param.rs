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

use super::element::{Element, Param, ParamValue, Span};
use super::error::{Diagnostic, Diagnostics, nearest};
use super::types::{FromConfig, TypeError};

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

/// Names that every plugin section may hold; [`super::Reserved`] reads them.
const RESERVED: [&str; 7] = ["@type", "type", "@id", "id", "@label", "@log_level", "log_level"];

fn warn_unused_section<'a>(
    parent: &Element,
    child: &Element,
    diagnostics: &'a mut Diagnostics,
) -> &'a mut Diagnostic {
    let plugin = parent.type_name().map(|name| format!(" of {name} plugin")).unwrap_or_default();
    let message = format!("section <{}> is not used in {}{plugin}", child.name, parent.tag());
    diagnostics.warning(&child.span, message)
}

impl SectionSpec {
    /// The parameters in order.
    pub fn params(&self) -> impl Iterator<Item = &'static ParamSpec> + use<> {
        self.params.iter().copied().flatten()
    }

    /// The sub-sections in order.
    pub fn sections(&self) -> impl Iterator<Item = &'static SubsectionSpec> + use<> {
        self.sections.iter().copied().flatten()
    }

    /// What else is known about names: aliases, unbuilt ones and so on.
    pub fn rules(&self) -> impl Iterator<Item = &'static NameRule> + use<> {
        self.rules.iter().copied().flatten()
    }

    /// What is known about a parameter that is not a field under this name.
    pub fn param_rule(&self, name: &str) -> Option<RuleKind> {
        self.rules()
            .find(|rule| rule.name == name && rule.kind != RuleKind::Foreign(true))
            .map(|rule| rule.kind)
    }

    /// What is known about a section that is not a field.
    pub fn section_rule(&self, name: &str) -> Option<RuleKind> {
        let is_name = |rule: &NameRule| match rule.kind {
            RuleKind::Foreign(true) => rule.name.trim_matches(['<', '>']) == name,
            _ => rule.name.strip_prefix('<').and_then(|rest| rest.strip_suffix('>')) == Some(name),
        };
        self.rules().find(|rule| is_name(rule)).map(|rule| rule.kind)
    }

    fn aliases<'a>(&self, field: &'a str) -> impl Iterator<Item = &'static str> + use<'a> {
        let is_alias = move |rule: &&NameRule| matches!(rule.kind, RuleKind::Alias(of) if of == field);
        self.rules().filter(is_alias).map(|rule| rule.name)
    }

    /// The parameter with this name, under its own name or an alias.
    pub fn param(&self, name: &str) -> Option<&'static ParamSpec> {
        let field = match self.param_rule(name) {
            Some(RuleKind::Alias(field)) => Some(field),
            _ => None,
        };
        self.params().find(|param| param.name == name || Some(param.field) == field)
    }

    /// The sub-section with this name.
    pub fn section(&self, name: &str) -> Option<&'static SubsectionSpec> {
        self.sections().find(|section| section.name == name)
    }

    /// Every parameter name that may be written, for "did you mean".
    pub fn names(&self) -> impl Iterator<Item = &'static str> + use<> {
        let ruled = self.rules().map(|rule| rule.name).filter(|name| !name.starts_with('<'));
        self.params().map(|param| param.name).chain(ruled)
    }

    /// Help and docs: a markdown table of the parameters, then each sub-section under its own heading.
    pub fn markdown(&self, title: &str) -> String {
        let mut text = format!("### {title}\n\n");
        if !self.doc.is_empty() {
            text.push_str(&format!("{}\n\n", join_doc(self.doc)));
        }
        if self.free_form {
            text.push_str("Takes any parameter.\n\n");
        }
        if self.argument.is_some() || !self.params.is_empty() {
            text.push_str("| parameter | type | default | meaning |\n| --- | --- | --- | --- |\n");
            let argument = self.argument.iter().map(|spec| ("(argument)", spec));
            for (name, spec) in argument.chain(self.params().map(|spec| (spec.name, spec))) {
                text.push_str(&spec.markdown_row(name));
            }
            text.push('\n');
        }
        for section in self.sections() {
            let count = match (section.required, section.multi) {
                (true, _) => "exactly one",
                (false, true) => "any number",
                (false, false) => "at most one",
            };
            let doc = join_doc(section.doc);
            let heading = format!("{title} > `<{}>`", section.name);
            text.push_str(&section.spec.markdown(&heading).replacen(
                "\n\n",
                &format!("\n\n{doc} ({count})\n\n"),
                1,
            ));
        }
        text
    }
}

impl ParamSpec {
    fn markdown_row(&self, name: &str) -> String {
        let choices =
            if self.choices.is_empty() { String::new() } else { format!(": {}", self.choices.join(", ")) };
        let default = match (self.required, self.default) {
            (true, _) => "required".to_owned(),
            (false, Some(text)) => format!("`{text}`"),
            (false, None) => "nil".to_owned(),
        };
        let secret = if self.secret { ", secret" } else { "" };
        let doc = join_doc(self.doc).replace('|', "\\|");
        format!("| `{name}` | {}{choices}{secret} | {default} | {doc} |\n", self.type_name)
    }
}

fn join_doc(lines: &[&str]) -> String {
    lines.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ").trim().to_owned()
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

/// Reads one section for `params!`; the macro's expansion is its only user.
#[doc(hidden)]
pub struct SectionReader<'a> {
    element: &'a Element,
    spec: &'static SectionSpec,
    diagnostics: &'a mut Diagnostics,
}

#[doc(hidden)]
impl<'a> SectionReader<'a> {
    pub fn new(element: &'a Element, spec: &'static SectionSpec, diagnostics: &'a mut Diagnostics) -> Self {
        Self { element, spec, diagnostics }
    }

    /// A parameter: written, or its default, or nil; `None` after a fault.
    pub fn param<T: FromConfig>(&mut self, field: &str) -> Option<T> {
        let spec = self.spec.params().find(|spec| spec.field == field)?;
        let mut found = self.element.param(spec.name);
        for alias in self.spec.aliases(spec.field) {
            let other = self.element.param(alias);
            found = found.or(other);
        }
        match found.map(|param| (param, &param.value)) {
            None => self.absent(spec),
            Some((_, ParamValue::Invalid)) => None,
            Some((param, ParamValue::UseDefault)) => self.use_default(spec, &param.span),
            Some((param, ParamValue::Nil)) => match T::nil() {
                Some(nil) if spec.default.is_none() => Some(nil),
                _ => self.nil_fault(spec, &param.span, "nil"),
            },
            Some((param, ParamValue::Text { text, .. })) => self.convert(spec, &param.span, text),
        }
    }

    fn convert<T: FromConfig>(&mut self, spec: &ParamSpec, span: &Span, text: &str) -> Option<T> {
        let strict = self.diagnostics.strict_values();
        let shown = if spec.secret { super::types::MASK.to_owned() } else { format!("{text:?}") };
        match T::from_config(text, strict) {
            Ok(value) => Some(value),
            Err(TypeError::Nil { .. }) => self.nil_fault(spec, span, &shown),
            Err(error) => {
                let what = if spec.secret { "is not valid".to_owned() } else { error.to_string() };
                self.diagnostics.fault(span, format!("'{}' parameter: {what}", spec.name));
                None
            }
        }
    }

    fn nil_fault<T>(&mut self, spec: &ParamSpec, span: &Span, got: &str) -> Option<T> {
        let suffix = self.diagnostics.section_suffix();
        let message = format!("'{}' parameter is required but nil is specified{suffix}", spec.name);
        let expected = match spec.type_name {
            "bool" => "true or false".to_owned(),
            other => format!("a value of type {other}"),
        };
        self.diagnostics.fault(span, message).expected(expected).got(got);
        None
    }

    fn absent<T: FromConfig>(&mut self, spec: &ParamSpec) -> Option<T> {
        match spec.default {
            Some(text) => self.default(spec, text),
            None => T::nil().or_else(|| {
                let suffix = self.diagnostics.section_suffix();
                let message = format!("'{}' parameter is required{suffix}", spec.name);
                let fault = self.diagnostics.fault(&self.element.span, message);
                let candidates = self.element.unused_params().map(|param| param.key.as_str());
                if let Some(near) = nearest(spec.name, candidates) {
                    fault.hint(format!("is '{near}' meant to be '{}'?", spec.name));
                }
                None
            }),
        }
    }

    fn use_default<T: FromConfig>(&mut self, spec: &ParamSpec, span: &Span) -> Option<T> {
        match spec.default {
            Some(text) => self.default(spec, text),
            None => T::nil().or_else(|| {
                let suffix = self.diagnostics.section_suffix();
                self.diagnostics.fault(span, format!("'{}' doesn't have default value{suffix}", spec.name));
                None
            }),
        }
    }

    fn default<T: FromConfig>(&mut self, spec: &ParamSpec, text: &str) -> Option<T> {
        match T::from_config(text, false) {
            Ok(value) => Some(value),
            Err(error) => {
                let message = format!("the built-in default of '{}' is wrong: {error}", spec.name);
                self.diagnostics.fault(&self.element.span, message);
                None
            }
        }
    }

    /// The argument of the section.
    pub fn argument<T: FromConfig>(&mut self) -> Option<T> {
        let spec = self.spec.argument.as_ref()?;
        if !self.element.argument.is_empty() {
            let span = self.element.span.clone();
            return self.convert(spec, &span, &self.element.argument);
        }
        match spec.default {
            Some(text) => self.default(spec, text),
            None => T::nil().or_else(|| {
                let name = &self.element.name;
                let argument = spec.name.to_uppercase();
                let message = format!("'<{name} {argument}>' section requires argument");
                self.diagnostics.fault(&self.element.span, message);
                None
            }),
        }
    }

    /// A sub-section field.
    pub fn section<F: SectionField>(&mut self, name: &str, init: bool) -> Option<F> {
        let found: Vec<&Element> = self.element.children_named(name).collect();
        let suffix = self.diagnostics.section_suffix();
        if found.len() > 1 && !F::MULTI {
            let message = format!("'<{name}>' section cannot be written twice or more{suffix}");
            self.diagnostics.fault(&found[1].span, message);
            return None;
        }
        if found.is_empty() && init {
            let mut made = Element::new(name, "");
            made.span = self.element.span.clone();
            return F::from_elements(&[&made], self.diagnostics);
        }
        if found.is_empty() && F::REQUIRED {
            let message = format!("'<{name}>' sections are required{suffix}");
            self.diagnostics.fault(&self.element.span, message);
            return None;
        }
        self.diagnostics.enter_section(name);
        let field = F::from_elements(&found, self.diagnostics);
        self.diagnostics.leave_section();
        field
    }

    /// Everything that no field asked for: rules, reserved names, unknown ones.
    pub fn finish(self) {
        if self.spec.free_form {
            return;
        }
        for param in &self.element.params {
            match self.spec.param_rule(&param.key) {
                Some(rule) => apply_param_rule(self.diagnostics, param, rule),
                None if param.is_used() || RESERVED.contains(&param.key.as_str()) => {}
                None => {
                    let tag = self.element.tag();
                    let message = format!("parameter '{}' in {tag} is not used.", param.key);
                    self.diagnostics.warning(&param.span, message).suggest(&param.key, self.spec.names());
                }
            }
        }
        for child in &self.element.children {
            if self.spec.section(&child.name).is_some() {
                continue;
            }
            match self.spec.section_rule(&child.name) {
                Some(rule) => apply_section_rule(self.diagnostics, child, rule),
                None => {
                    let known = self.spec.sections().map(|section| section.name);
                    warn_unused_section(self.element, child, self.diagnostics).suggest(&child.name, known);
                }
            }
        }
    }
}

fn apply_param_rule(diagnostics: &mut Diagnostics, param: &Param, rule: RuleKind) {
    let key = &param.key;
    match rule {
        RuleKind::Alias(_) => return,   // its field has read it
        RuleKind::Foreign(_) => return, // stays unmarked: the other room marks it
        RuleKind::Unbuilt(harmless) => {
            if !param.value.text().is_some_and(|text| harmless.contains(&text)) {
                let message = format!("'{key}' parameter is known to Fluentd but not built yet");
                diagnostics.fault(&param.span, message).hint(unbuilt_hint(harmless));
            }
        }
        RuleKind::Inert(reason) => {
            diagnostics.warning(&param.span, format!("'{key}' parameter has no effect: {reason}"));
        }
        RuleKind::Removed(text) => {
            diagnostics.fault(&param.span, format!("'{key}' parameter is already removed: {text}"));
        }
        RuleKind::Deprecated(text) => {
            diagnostics.warning(&param.span, format!("'{key}' parameter is deprecated: {text}"));
        }
    }
    param.mark_used();
}

fn unbuilt_hint(harmless: &[&str]) -> String {
    if harmless.is_empty() {
        "remove it to start without what it asks for".to_owned()
    } else {
        format!("only {} is accepted so far", harmless.join(", "))
    }
}

fn apply_section_rule(diagnostics: &mut Diagnostics, child: &Element, rule: RuleKind) {
    let name = &child.name;
    match rule {
        RuleKind::Alias(_) | RuleKind::Foreign(_) => return,
        RuleKind::Unbuilt(_) => {
            let message = format!("section <{name}> is known to Fluentd but not built yet");
            diagnostics.fault(&child.span, message).hint(unbuilt_hint(&[]));
        }
        RuleKind::Inert(reason) => {
            diagnostics.warning(&child.span, format!("section <{name}> has no effect: {reason}"));
        }
        RuleKind::Removed(text) => {
            diagnostics.fault(&child.span, format!("section <{name}> is already removed: {text}"));
        }
        RuleKind::Deprecated(text) => {
            diagnostics.warning(&child.span, format!("section <{name}> is deprecated: {text}"));
        }
    }
    child.mark_all_used();
}

/// Declares the parameters of a section; the module [`param`](crate::config::param) shows the whole form.
#[macro_export]
macro_rules! params {
    // struct, then `argument`, then blocks
    (
        $(#[doc = $doc:literal])*
        $visibility:vis struct $name:ident { $($fields:tt)* }
        argument $argument:ident : $argument_type:ty $(= $argument_default:literal)? ;
        $($block:ident { $($body:tt)* })*
    ) => {
        $crate::params! { @build
            [$($doc)*] [$visibility] $name { $($fields)* }
            [$argument [$argument_type] [$($argument_default)?]]
            $($block { $($body)* })*
        }
    };
    // struct, then blocks
    (
        $(#[doc = $doc:literal])*
        $visibility:vis struct $name:ident { $($fields:tt)* }
        $($block:ident { $($body:tt)* })*
    ) => {
        $crate::params! { @build
            [$($doc)*] [$visibility] $name { $($fields)* } []
            $($block { $($body)* })*
        }
    };

    (@build
        [$($doc:literal)*] [$visibility:vis] $name:ident {
            $(
                $(#[doc = $field_doc:literal])*
                $(#[section $($section:tt)*])?
                $(#[key($key:literal)])?
                $field:ident : $type:ty $(= $default:literal)?
            ),* $(,)?
        }
        [$($argument:ident [$argument_type:ty] [$($argument_default:literal)?])?]
        $($block:ident { $($body:tt)* })*
    ) => {
        $(#[doc = $doc])*
        #[derive(Clone, Debug)]
        $visibility struct $name {
            $($(#[doc = $field_doc])* pub $field: $type,)*
            $(/// The text after the section's name.
            pub $argument: $argument_type,)?
            /// Where the section stands.
            #[allow(dead_code, reason = "kept for faults found later; not every section has some")]
            pub span: $crate::config::Span,
        }

        #[allow(dead_code, reason = "not every section is read by its concrete type")]
        impl $name {
            /// What the section holds.
            pub const SPEC: $crate::config::SectionSpec = $crate::config::SectionSpec {
                doc: &[$($doc),*],
                argument: $crate::params!(@argument $($argument [$argument_type] [$($argument_default)?])?),
                params: &[$($crate::params!(@param_spec
                    [$([section $($section)*])?] [$($key)?] $field [$type] [$($default)?] [$($field_doc)*]
                )),*],
                sections: &[$($crate::params!(@section_spec
                    [$([section $($section)*])?] [$($key)?] $field [$type] [$($field_doc)*]
                )),*],
                rules: &[$($crate::params!(@block $block { $($body)* })),*],
                free_form: false,
            };

            /// Reads the section; every fault goes to the diagnostics.
            pub fn from_element(
                element: &$crate::config::Element,
                diagnostics: &mut $crate::config::Diagnostics,
            ) -> Option<Self> {
                const SPEC: &$crate::config::SectionSpec = &<$name>::SPEC;
                #[allow(unused_mut, reason = "a section without fields reads nothing")]
                let mut reader = $crate::config::param::SectionReader::new(element, SPEC, diagnostics);
                $(let $argument: Option<$argument_type> = reader.argument();)?
                $(let $field: Option<$type> = $crate::params!(@read
                    reader [$([section $($section)*])?] [$($key)?] $field
                );)*
                reader.finish();
                Some(Self {
                    $($argument: $argument?,)?
                    $($field: $field?,)*
                    span: element.span.clone(),
                })
            }
        }

        impl $crate::config::FromSection for $name {
            const SPEC: $crate::config::SectionSpec = <$name>::SPEC;

            fn from_element(
                element: &$crate::config::Element,
                diagnostics: &mut $crate::config::Diagnostics,
            ) -> Option<Self> {
                <$name>::from_element(element, diagnostics)
            }
        }
    };

    (@key [] $field:ident) => { $crate::config::param::field_name(stringify!($field)) };
    (@key [$key:literal] $field:ident) => { $key };

    (@default) => { None };
    (@default $default:literal) => { Some($default) };

    (@argument) => { None };
    (@argument $argument:ident [$type:ty] [$($default:literal)?]) => {
        Some($crate::params!(@spec [] $argument [$type] [$($default)?] []))
    };

    (@spec [$($key:literal)?] $field:ident [$type:ty] [$($default:literal)?] [$($doc:literal)*]) => {
        $crate::config::ParamSpec {
            name: $crate::params!(@key [$($key)?] $field),
            field: $crate::config::param::field_name(stringify!($field)),
            type_name: <$type as $crate::config::FromConfig>::TYPE_NAME,
            choices: <$type as $crate::config::FromConfig>::CHOICES,
            default: $crate::params!(@default $($default)?),
            required: $crate::config::param::is_required::<$type>($crate::params!(@default $($default)?)),
            secret: <$type as $crate::config::FromConfig>::SECRET,
            doc: &[$($doc),*],
            check: $crate::config::param::check_text::<$type>,
        }
    };

    (@param_spec [[section $($how:tt)*]] $($rest:tt)*) => { &[] };
    (@param_spec [] $($rest:tt)*) => { &[$crate::params!(@spec $($rest)*)] };

    (@section_spec [] $($rest:tt)*) => { &[] };
    (@section_spec [[section $($how:tt)*]] [$($key:literal)?] $field:ident [$type:ty] [$($doc:literal)*]) => {
        &[$crate::config::SubsectionSpec {
            name: $crate::params!(@key [$($key)?] $field),
            doc: &[$($doc),*],
            required: <$type as $crate::config::SectionField>::REQUIRED
                && !$crate::params!(@is_init $($how)*),
            multi: <$type as $crate::config::SectionField>::MULTI,
            spec: <$type as $crate::config::SectionField>::SPEC,
        }]
    };

    (@is_init) => { false };
    (@is_init (init)) => { true };

    (@read $reader:ident [] [$($key:literal)?] $field:ident) => {
        $reader.param($crate::config::param::field_name(stringify!($field)))
    };
    (@read $reader:ident [[section $($how:tt)*]] [$($key:literal)?] $field:ident) => {
        $reader.section($crate::params!(@key [$($key)?] $field), $crate::params!(@is_init $($how)*))
    };

    (@block alias { $($old:tt => $field:ident),* $(,)? }) => {
        &[$($crate::config::NameRule {
            name: $crate::params!(@name $old),
            kind: $crate::config::RuleKind::Alias($crate::config::param::field_name(stringify!($field))),
        }),*]
    };
    (@block unbuilt { $($name:literal $(unless $($harmless:literal)|+)?),* $(,)? }) => {
        &[$($crate::config::NameRule {
            name: $name,
            kind: $crate::config::RuleKind::Unbuilt(&[$($($harmless),+)?]),
        }),*]
    };
    (@block inert { $($name:literal => $reason:literal),* $(,)? }) => {
        &[$($crate::config::NameRule { name: $name, kind: $crate::config::RuleKind::Inert($reason) }),*]
    };
    (@block removed { $($name:literal => $reason:literal),* $(,)? }) => {
        &[$($crate::config::NameRule { name: $name, kind: $crate::config::RuleKind::Removed($reason) }),*]
    };
    (@block deprecated { $($name:literal => $reason:literal),* $(,)? }) => {
        &[$($crate::config::NameRule { name: $name, kind: $crate::config::RuleKind::Deprecated($reason) }),*]
    };
    (@block foreign { $($name:literal),* $(,)? }) => {
        &[$($crate::config::NameRule {
            name: $name,
            kind: $crate::config::RuleKind::Foreign(true),
        }),*]
    };
    (@block foreign_parameters { $($name:literal),* $(,)? }) => {
        &[$($crate::config::NameRule {
            name: $name,
            kind: $crate::config::RuleKind::Foreign(false),
        }),*]
    };

    (@name $name:ident) => { stringify!($name) };
    (@name $name:literal) => { $name };
}

#[cfg(test)]
mod tests;
