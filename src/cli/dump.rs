//! The configuration as text for the log: Fluentd's dump, with secrets masked.

use std::fmt::Write as _;

use crate::config::{Element, MASK, Param, ParamValue, SectionSpec, looks_secret};

/// `<ROOT>`, sections indented by two blanks, `</ROOT>`. Values of string parameters stand in double quotes, other and
/// unknown ones as they are; secrets show as `xxxxxx`. `spec_of` knows the plugins.
pub(super) fn dump(root: &Element, spec_of: &dyn Fn(&Element) -> Option<&'static SectionSpec>) -> String {
    let mut text = String::from("<ROOT>\n");
    for param in &root.params {
        write_param(&mut text, param, None, 1);
    }
    for child in &root.children {
        write_section(&mut text, child, spec_of(child), spec_of, 1);
    }
    text.push_str("</ROOT>\n");
    text
}

fn write_section(
    text: &mut String,
    element: &Element,
    spec: Option<&'static SectionSpec>,
    spec_of: &dyn Fn(&Element) -> Option<&'static SectionSpec>,
    depth: usize,
) {
    let indent = "  ".repeat(depth);
    let _ = writeln!(text, "{indent}{}", element.tag());
    for param in &element.params {
        write_param(text, param, spec, depth + 1);
    }
    for child in &element.children {
        let declared = spec.and_then(|spec| spec.sections().find(|section| section.name == child.name));
        let child_spec = declared.map(|section| section.spec).or_else(|| spec_of(child));
        write_section(text, child, child_spec, spec_of, depth + 1);
    }
    let _ = writeln!(text, "{indent}</{}>", element.name);
}

fn write_param(text: &mut String, param: &Param, spec: Option<&'static SectionSpec>, depth: usize) {
    let declared = spec.and_then(|spec| spec.param(&param.key));
    let secret = declared.is_some_and(|declared| declared.secret) || looks_secret(&param.key);
    let value = match &param.value {
        ParamValue::Nil | ParamValue::UseDefault => String::new(),
        ParamValue::Text { .. } if secret => MASK.to_owned(),
        ParamValue::Text { text, .. } if declared.is_some_and(|declared| declared.type_name == "string") => {
            quoted(text)
        }
        // Raw as in Fluentd, but no value may break out of its line.
        ParamValue::Text { text, .. } if text.contains(char::is_control) => quoted(text),
        ParamValue::Text { text, .. } => text.clone(),
    };
    let _ = writeln!(text, "{}{} {value}", "  ".repeat(depth), param.key);
}

fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for character in text.chars() {
        match character {
            '"' | '\'' | '\\' => out.extend(['\\', character]),
            '\r' => out.push_str("\\r"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\u{c}' => out.push_str("\\f"),
            '\u{8}' => out.push_str("\\b"),
            _ => out.push(character),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Secret;
    use crate::params;

    params! {
        /// A server.
        struct ServerParams {
            /// Host.
            host: String,
            /// Key.
            key_of_door: Option<Secret>,
        }
    }
    params! {
        /// An output.
        struct OutputParams {
            /// Tag.
            tag: Option<String>,
            /// Port.
            port: u16 = "1",
            /// Servers.
            #[section] server: Vec<ServerParams>,
        }
    }

    #[test]
    fn strings_are_quoted_and_secrets_masked() {
        static SPEC: SectionSpec = <OutputParams as crate::config::FromSection>::SPEC;
        let server =
            Element::new("server", "").with_param("host", "a\"b").with_param("key_of_door", "s3cret");
        let output = Element::new("match", "a.**")
            .with_param("@type", "forward")
            .with_param("tag", "x'y")
            .with_param("port", "24224")
            .with_param("my_password", "s3cret")
            .with_param("lines", "a\nb")
            .with_child(server);
        let root = Element::new("ROOT", "").with_child(output);
        let spec_of = |element: &Element| (element.name == "match").then_some(&SPEC);
        assert_eq!(
            dump(&root, &spec_of),
            "<ROOT>\n  <match a.**>\n    @type forward\n    tag \"x\\'y\"\n    port 24224\n    my_password xxxxxx\n    \
             lines \"a\\nb\"\n    <server>\n      host \"a\\\"b\"\n      key_of_door xxxxxx\n    </server>\n  </match>\n</ROOT>\n"
        );
        // The declared structs are read, so that they are what they look like.
        let mut diagnostics = crate::config::Diagnostics::new();
        let read: Option<OutputParams> =
            crate::config::FromSection::from_element(&Element::new("match", ""), &mut diagnostics);
        let read = read.unwrap();
        assert!(read.tag.is_none() && read.port == 1 && read.server.is_empty());
        let server: Option<ServerParams> = crate::config::FromSection::from_element(
            &Element::new("server", "").with_param("host", "h"),
            &mut diagnostics,
        );
        let server = server.unwrap();
        assert!(server.host == "h" && server.key_of_door.is_none());
    }
}
