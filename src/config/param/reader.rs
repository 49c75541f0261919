//! Reads one section by its declaration and reports everything that is wrong with it.

use super::super::element::{Element, Param, ParamValue, Span};
use super::super::error::{Diagnostic, Diagnostics, nearest};
use super::super::types::{FromConfig, MASK, TypeError};
use super::{ParamSpec, RuleKind, SectionField, SectionSpec};

/// Names that every plugin section may hold; [`crate::config::Reserved`] reads them.
const RESERVED: [&str; 7] = ["@type", "type", "@id", "id", "@label", "@log_level", "log_level"];

pub(super) fn warn_unused_section<'a>(
    parent: &Element,
    child: &Element,
    diagnostics: &'a mut Diagnostics,
) -> &'a mut Diagnostic {
    let plugin = parent.type_name().map(|name| format!(" of {name} plugin")).unwrap_or_default();
    let message = format!("section <{}> is not used in {}{plugin}", child.name, parent.tag());
    diagnostics.warning(&child.span, message)
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
        let shown = if spec.secret { MASK.to_owned() } else { format!("{text:?}") };
        match T::from_config(text, strict) {
            Ok(value) => {
                if let Some(read) = T::surprise(text) {
                    self.diagnostics.warning(span, format!("'{}' parameter: {shown} {read}", spec.name));
                }
                Some(value)
            }
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
