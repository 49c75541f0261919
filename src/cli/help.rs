//! `tributary plugins` and `tributary help plugin NAME`: what the declared parameters say.

use std::fmt::Write as _;
use std::process::ExitCode;

use crate::config::{ParamSpec, RuleKind, SectionSpec, nearest};
use crate::filter::FILTERS;
use crate::formatter::FORMATTERS;
use crate::input::INPUTS;
use crate::output::buffer_section::BufferParams;
use crate::output::out_copy::CopyParams;
use crate::output::out_relabel::RelabelParams;
use crate::output::{Buffering, OUTPUTS};

/// One plugin of any kind.
struct Entry {
    kind: &'static str,
    names: &'static [&'static str],
    spec: &'static SectionSpec,
    buffered: bool,
}

/// All plugins, in the order in which an event passes them.
fn entries() -> Vec<Entry> {
    static COPY: SectionSpec = CopyParams::SPEC;
    static RELABEL: SectionSpec = RelabelParams::SPEC;
    let entry = |kind, names, spec| Entry { kind, names, spec, buffered: false };
    let mut entries: Vec<Entry> =
        INPUTS.iter().map(|plugin| entry("input", plugin.names, plugin.spec)).collect();
    entries.extend(FILTERS.iter().map(|plugin| entry("filter", plugin.names, plugin.spec)));
    // These two lead on to other outputs and belong to the router rather than to the table.
    entries.push(entry("output", &["copy"], &COPY));
    entries.push(entry("output", &["relabel"], &RELABEL));
    entries.extend(OUTPUTS.iter().map(|plugin| Entry {
        buffered: !matches!(plugin.buffering, Buffering::Never),
        ..entry("output", plugin.names, plugin.spec)
    }));
    entries.extend(FORMATTERS.iter().map(|plugin| entry("formatter", plugin.names, plugin.spec)));
    entries
}

/// `plugins`: kind, names and what it does, a line each.
pub(super) fn list_plugins() -> ExitCode {
    for entry in entries() {
        let doc = entry.spec.doc.first().map_or("", |line| line.trim());
        println!("{:<10} {:<24} {doc}", entry.kind, entry.names.join(", "));
    }
    ExitCode::SUCCESS
}

/// `help plugin NAME`: all plugins of that name (`stdout` is an output and a filter).
pub(super) fn show_plugin(name: &str) -> ExitCode {
    let entries = entries();
    let found: Vec<&Entry> = entries.iter().filter(|entry| entry.names.contains(&name)).collect();
    if found.is_empty() {
        let known = entries.iter().flat_map(|entry| entry.names.iter().copied());
        let hint = nearest(name, known).map(|near| format!(", did you mean {near:?}?")).unwrap_or_default();
        println!("error: unknown plugin {name:?}{hint} (see: tributary plugins)");
        return ExitCode::from(super::EXIT_FAILURE);
    }
    for entry in found {
        println!("{} {}\n", entry.kind, entry.names.join(", "));
        print!("{}", section_help(entry.spec, 0));
        if entry.buffered {
            println!("<buffer CHUNK_KEYS>");
            print!("{}", section_help(&BufferParams::SPEC, 2));
        }
        println!();
    }
    ExitCode::SUCCESS
}

/// The parameters of a section and of its sub-sections, with their docs.
pub(super) fn section_help(spec: &SectionSpec, depth: usize) -> String {
    let mut text = String::new();
    let indent = "  ".repeat(depth);
    for line in spec.doc {
        let _ = writeln!(text, "{indent}{}", line.trim());
    }
    if let Some(argument) = &spec.argument {
        param_help(&mut text, argument, &format!("{indent}argument "));
    }
    for param in spec.params() {
        param_help(&mut text, param, &indent);
    }
    for section in spec.sections() {
        let required = if section.required { ", required" } else { "" };
        let multi = if section.multi { ", may be repeated" } else { "" };
        let _ = writeln!(text, "{indent}<{}>{required}{multi}", section.name);
        for line in section.doc {
            let _ = writeln!(text, "{indent}    {}", line.trim());
        }
        text.push_str(&section_help(section.spec, depth + 2));
    }
    for rule in spec.rules() {
        let note = match rule.kind {
            RuleKind::Alias(field) => format!("another name of {field}"),
            RuleKind::Unbuilt([]) => "not built yet: refused".to_owned(),
            RuleKind::Unbuilt(values) => format!("not built yet: refused, except {}", values.join(", ")),
            RuleKind::Inert(why) => format!("accepted without effect: {why}"),
            RuleKind::Removed(instead) => format!("removed: {instead}"),
            RuleKind::Deprecated(why) => format!("deprecated: {why}"),
            RuleKind::Foreign(_) => continue,
        };
        let _ = writeln!(text, "{indent}{}\n{indent}    {note}", rule.name);
    }
    text
}

fn param_help(text: &mut String, param: &ParamSpec, indent: &str) {
    let _ = write!(text, "{indent}{} ({}", param.name, param.type_name);
    if !param.choices.is_empty() {
        let _ = write!(text, ": {}", param.choices.join(", "));
    }
    match param.default {
        Some(default) => {
            let _ = write!(text, ", default {default:?}");
        }
        None if param.required => text.push_str(", required"),
        None => {}
    }
    if param.secret {
        text.push_str(", secret");
    }
    text.push_str(")\n");
    for line in param.doc {
        let _ = writeln!(text, "{indent}    {}", line.trim());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Secret;
    use crate::params;

    params! {
        /// One server.
        struct ServerParams {
            /// Host name or address.
            host: String,
        }
    }
    params! {
        /// Sends.
        struct OutputParams {
            /// Tag that replaces the incoming one.
            tag: Option<String>,
            /// Key.
            key: Option<Secret>,
            /// Port.
            port: u16 = "24224",
            /// Where to send.
            #[section] server: Vec<ServerParams>,
        }
        alias { new_tag => tag }
        unbuilt { "phi_threshold" }
    }

    #[test]
    fn shows_every_parameter_with_its_doc() {
        let text = section_help(&OutputParams::SPEC, 0);
        for expected in [
            "Sends.\n",
            "tag (string)\n    Tag that replaces the incoming one.\n",
            "key (string, secret)\n",
            "port (integer, default \"24224\")\n    Port.\n",
            "<server>, may be repeated\n    Where to send.\n    One server.\n    host (string, required)\n        Host name or address.\n",
            "new_tag\n    another name of tag\n",
            "phi_threshold\n    not built yet: refused\n",
        ] {
            assert!(text.contains(expected), "{expected:?} is missing in\n{text}");
        }
        let mut diagnostics = crate::config::Diagnostics::new();
        let server = crate::config::Element::new("server", "").with_param("host", "h");
        let element = crate::config::Element::new("match", "").with_child(server);
        let read = OutputParams::from_element(&element, &mut diagnostics).unwrap();
        assert!(read.tag.is_none() && read.key.is_none() && read.port == 24224 && read.server[0].host == "h");
    }
}
