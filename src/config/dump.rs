//! The configuration as Fluentd writes it into its log at start and answers over RPC.
//!
//! Source: Fluentd `lib/fluent/config/element.rb` `to_s`. Values of string type stand in double quotes, other and unknown ones
//! raw, nil as nothing, secrets as `xxxxxx`. Parameters of sections that no table knows are masked when their name looks like a
//! secret: Fluentd would print them.

use super::element::{Element, Param};
use super::error::looks_secret;
use super::param::SectionSpec;
use super::types::MASK;

/// Finds what is declared about a section: the section and those around it, outermost first.
pub type SpecOf<'a> = dyn Fn(&[&Element]) -> Option<&'static SectionSpec> + 'a;

/// The whole text, `<ROOT>` to `</ROOT>`. `spec_of` is asked for top-level plugin sections and for every section whose parent's
/// declaration does not know it.
pub fn dump(root: &Element, spec_of: &SpecOf<'_>) -> String {
    let mut text = String::new();
    write_element(&mut text, root, None, &mut Vec::new(), spec_of);
    text
}

fn write_element<'a>(
    text: &mut String,
    element: &'a Element,
    known: Option<&'static SectionSpec>,
    path: &mut Vec<&'a Element>,
    spec_of: &SpecOf<'_>,
) {
    let indent = "  ".repeat(path.len());
    text.push_str(&format!("{indent}{}\n", element.tag()));
    path.push(element);
    let spec = known.or_else(|| spec_of(path));
    for param in &element.params {
        text.push_str(&format!("{indent}  {} {}\n", param.key, shown(param, spec)));
    }
    for child in &element.children {
        let known = spec.and_then(|spec| spec.section(&child.name)).map(|section| section.spec);
        write_element(text, child, known, path, spec_of);
    }
    path.pop();
    text.push_str(&format!("{indent}</{}>\n", element.name));
}

fn shown(param: &Param, spec: Option<&SectionSpec>) -> String {
    let Some(value) = param.value.text() else { return String::new() };
    match spec.and_then(|spec| spec.param(&param.key)) {
        Some(known) if known.secret => MASK.to_owned(),
        Some(known) if known.type_name == "string" => quoted(value),
        Some(_) => value.to_owned(),
        None if looks_secret(&param.key) => MASK.to_owned(),
        // `@type` and its kind are strings wherever they stand
        None if param.key.starts_with('@') => quoted(value),
        None => value.to_owned(),
    }
}

fn quoted(value: &str) -> String {
    let mut text = String::from("\"");
    for c in value.chars() {
        match c {
            '"' | '\'' | '\\' => text.extend(['\\', c]),
            '\r' => text.push_str("\\r"),
            '\n' => text.push_str("\\n"),
            '\t' => text.push_str("\\t"),
            '\x0c' => text.push_str("\\f"),
            '\x08' => text.push_str("\\b"),
            c => text.push(c),
        }
    }
    text.push('"');
    text
}
