//! Sections become typed configurations: nothing is opened, every fault is reported.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::buffer::BufferKind;
use crate::config::{
    Diagnostics, Directive, DirectiveKind, Document, Element, FromConfig, LogLevel, MASK, Reserved,
    SectionSpec, SystemConfig, looks_secret,
};
use crate::filter::{FILTERS, Filter};
use crate::input::{INPUTS, InputConfig};
use crate::output::buffer_section::{self, BufferContext, BufferSettings, Chunking};
use crate::output::out_copy::{self, CopyParams};
use crate::output::out_relabel::RelabelParams;
use crate::output::{OUTPUTS, OutputConfig};
use crate::router::pattern::TagPatterns;

/// A checked configuration, ready to be built.
pub struct Plan {
    pub(super) system: SystemConfig,
    pub(super) inputs: Vec<InputPlan>,
    pub(super) chains: Vec<ChainPlan>,
}

/// What every plugin section says apart from its own parameters.
#[derive(Clone)]
pub(super) struct Identity {
    pub(super) id: String,
    pub(super) type_name: String,
    /// `FILE:LINE`, for messages of the second step.
    pub(super) place: String,
    /// `@log_level`.
    pub(super) log_level: Option<LogLevel>,
    /// Parameters as written, secrets masked.
    pub(super) shown: Vec<(String, String)>,
}

pub(super) struct InputPlan {
    pub(super) identity: Identity,
    pub(super) label: Option<String>,
    pub(super) config: Box<dyn InputConfig>,
}

/// The top level (`label: None`) or one `<label>`.
pub(super) struct ChainPlan {
    pub(super) label: Option<String>,
    pub(super) rules: Vec<RulePlan>,
}

pub(super) struct RulePlan {
    pub(super) patterns: Arc<TagPatterns>,
    pub(super) action: ActionPlan,
}

pub(super) enum ActionPlan {
    Filter(Identity, Box<dyn Filter>),
    Output(OutputPlan),
}

pub(super) struct OutputPlan {
    pub(super) identity: Identity,
    pub(super) kind: OutputKind,
}

pub(super) enum OutputKind {
    Plain { config: Box<dyn OutputConfig>, buffer: Option<Box<BufferSettings>> },
    Copy { stores: Vec<StorePlan> },
    Relabel { label: String },
}

pub(super) struct StorePlan {
    pub(super) output: OutputPlan,
    pub(super) ignore_error: bool,
    pub(super) ignore_if_prev_success: bool,
}

/// Checks everything that can be checked without touching the world. `None` when there are faults.
pub fn check(document: &Document, diagnostics: &mut Diagnostics) -> Option<Plan> {
    let mut checker = Checker { system: &document.system, buffer_paths: HashMap::new(), diagnostics };
    checker.refuse_several_workers(document);
    let mut inputs = Vec::new();
    for source in &document.sources {
        inputs.extend(checker.input(source));
    }
    let mut chains = vec![checker.chain(None, &document.rules)];
    for label in &document.labels {
        chains.push(checker.chain(Some(&label.name), &label.rules));
    }
    if diagnostics.has_faults() {
        return None;
    }
    Some(Plan { system: document.system.clone(), inputs, chains })
}

struct Checker<'a> {
    system: &'a SystemConfig,
    /// Paths of file buffers, with the type and place of the output that has each.
    buffer_paths: HashMap<PathBuf, (String, String)>,
    diagnostics: &'a mut Diagnostics,
}

impl Checker<'_> {
    /// One process plays all workers. Sections that differ from worker to worker are not built: doing the same for all
    /// of them would write to the wrong paths.
    fn refuse_several_workers(&mut self, document: &Document) {
        if self.system.workers > 1 {
            let rules = document.labels.iter().flat_map(|label| &label.rules).chain(&document.rules);
            for directive in document.sources.iter().chain(rules) {
                if directive.element.depends_on_worker_id() {
                    self.diagnostics
                        .fault(&directive.element.span, "worker_id with several workers is not built yet")
                        .hint("write a path or port of its own, or workers 1: one process uses all cores");
                }
            }
        }
        for (place, label) in document.labels.iter().enumerate() {
            if document.labels[..place].iter().any(|earlier| earlier.name == label.name) {
                self.diagnostics
                    .fault(&label.span, format!("Section <label {}> appears twice", label.name))
                    .hint("the same label in different <worker> sections is not built yet");
            }
        }
    }

    fn input(&mut self, source: &Directive) -> Option<InputPlan> {
        let name = source.reserved.type_name.as_str();
        let Some(plugin) = INPUTS.iter().find(|plugin| plugin.names.contains(&name)) else {
            return self.unknown("input", source, INPUTS.iter().flat_map(|plugin| plugin.names));
        };
        let config = (plugin.configure)(&source.element, self.diagnostics)?;
        let identity = identity(&source.element, &source.reserved, plugin.spec);
        Some(InputPlan { identity, label: source.reserved.label.clone(), config })
    }

    fn chain(&mut self, label: Option<&str>, rules: &[Directive]) -> ChainPlan {
        let rules = rules.iter().filter_map(|rule| self.rule(rule)).collect();
        ChainPlan { label: label.map(str::to_owned), rules }
    }

    fn rule(&mut self, directive: &Directive) -> Option<RulePlan> {
        let element = &directive.element;
        let argument = element.argument.trim();
        let patterns = match TagPatterns::parse(if argument.is_empty() { "**" } else { argument }) {
            Ok(patterns) => Some(Arc::new(patterns)),
            Err(error) => {
                self.diagnostics.fault(&element.span, error.to_string());
                None
            }
        };
        let action = match directive.kind {
            DirectiveKind::Filter => self.filter(directive),
            _ => self.output(element, &directive.reserved).map(ActionPlan::Output),
        };
        Some(RulePlan { patterns: patterns?, action: action? })
    }

    fn filter(&mut self, directive: &Directive) -> Option<ActionPlan> {
        let name = directive.reserved.type_name.as_str();
        let Some(plugin) = FILTERS.iter().find(|plugin| plugin.names.contains(&name)) else {
            return self.unknown("filter", directive, FILTERS.iter().flat_map(|plugin| plugin.names));
        };
        let filter = (plugin.configure)(&directive.element, self.diagnostics)?;
        let identity = identity(&directive.element, &directive.reserved, plugin.spec);
        Some(ActionPlan::Filter(identity, filter))
    }

    fn output(&mut self, element: &Element, reserved: &Reserved) -> Option<OutputPlan> {
        let name = reserved.type_name.as_str();
        if let ("copy" | "relabel", Some(section)) = (name, element.child("buffer")) {
            buffer_section::refuse(section, name, self.diagnostics);
        }
        match name {
            "copy" => self.copy(element, reserved),
            "relabel" => self.relabel(element, reserved),
            _ => self.plain_output(element, reserved),
        }
    }

    fn copy(&mut self, element: &Element, reserved: &Reserved) -> Option<OutputPlan> {
        let params = CopyParams::from_element(element, self.diagnostics);
        let mut stores = Vec::new();
        for (place, section) in element.children_named("store").enumerate() {
            let (ignore_error, ignore_if_prev_success) = out_copy::store_flags(section);
            if place == 0 && ignore_if_prev_success {
                let message = "ignore_if_prev_success must specify 2nd or later <store> directives";
                self.diagnostics.fault(&section.span, message);
            }
            let Some(reserved) = Reserved::from_element(section, self.diagnostics) else { continue };
            let Some(output) = self.output(section, &reserved) else { continue };
            stores.push(StorePlan { output, ignore_error, ignore_if_prev_success });
        }
        if element.child("store").is_none() {
            self.diagnostics.fault(&element.span, "'<store>' sections are required");
        }
        params?;
        let identity = identity(element, reserved, &CopyParams::SPEC);
        Some(OutputPlan { identity, kind: OutputKind::Copy { stores } })
    }

    fn relabel(&mut self, element: &Element, reserved: &Reserved) -> Option<OutputPlan> {
        RelabelParams::from_element(element, self.diagnostics)?;
        let Some(label) = reserved.label.clone() else {
            self.diagnostics
                .fault(&element.span, "@label must be specified for relabel output plugin")
                .expected("@label @NAME");
            return None;
        };
        let identity = identity(element, reserved, &RelabelParams::SPEC);
        Some(OutputPlan { identity, kind: OutputKind::Relabel { label } })
    }

    fn plain_output(&mut self, element: &Element, reserved: &Reserved) -> Option<OutputPlan> {
        let name = reserved.type_name.as_str();
        let Some(plugin) = OUTPUTS.iter().find(|plugin| plugin.names.contains(&name)) else {
            self.unknown_type("output", name, element, OUTPUTS.iter().flat_map(|plugin| plugin.names));
            return None;
        };
        buffer_section::refuse_flat(element, plugin.buffering, plugin.spec, self.diagnostics);
        self.refuse_secondary(element);
        let slow_flush_threshold = self.slow_flush_threshold(element);
        let section = buffer_section::open(element, plugin.buffering, self.diagnostics);
        let unbuffered = Chunking::default();
        let chunking = match &section {
            Some(Some(section)) => section.chunking(),
            Some(None) => Some(&unbuffered),
            None => None,
        };
        let config = (plugin.configure)(element, chunking, self.diagnostics);
        let identity = identity(element, reserved, plugin.spec);
        let context = BufferContext {
            plugin_id: &identity.id,
            has_id: reserved.id.is_some(),
            default_path: config.as_ref().and_then(|config| config.default_buffer_path()),
            system: self.system,
            slow_flush_threshold,
        };
        let buffer = match section? {
            Some(section) => {
                let settings = section.settings(&context, self.diagnostics)?;
                self.refuse_shared_path(element, name, &settings);
                Some(settings)
            }
            None => None,
        };
        let kind = OutputKind::Plain { config: config?, buffer: buffer.map(Box::new) };
        Some(OutputPlan { identity, kind })
    }

    /// `slow_flush_log_threshold` belongs to every buffered output, so no plugin declares it.
    fn slow_flush_threshold(&mut self, element: &Element) -> Duration {
        let Some(param) = element.param("slow_flush_log_threshold") else { return SLOW_FLUSH_DEFAULT };
        param.mark_used();
        let text = param.value.text().unwrap_or_default();
        match f64::from_config(text, true) {
            Ok(seconds) if seconds.is_finite() && seconds >= 0.0 => Duration::from_secs_f64(seconds.min(1e9)),
            _ => {
                self.diagnostics
                    .fault(&param.span, "slow_flush_log_threshold should be a number of seconds")
                    .got(text);
                SLOW_FLUSH_DEFAULT
            }
        }
    }

    /// Two outputs must not share a buffer path; Fluentd's words.
    fn refuse_shared_path(&mut self, element: &Element, type_name: &str, settings: &BufferSettings) {
        let BufferKind::File(file) = &settings.buffer.kind else { return };
        let span = element.child("buffer").map_or(&element.span, |section| &section.span);
        let owner = (type_name.to_owned(), span.to_string());
        if let Some((other, place)) = self.buffer_paths.insert(file.path.clone(), owner) {
            let path = file.path.display();
            self.diagnostics
                .fault(span, format!("Other '{other}' plugin already use same buffer path: type = {type_name}, buffer path = {path}"))
                .hint(format!("the other one stands at {place}; give each output a path of its own"));
        }
    }

    fn refuse_secondary(&mut self, element: &Element) {
        for section in element.children_named("secondary") {
            self.diagnostics
                .fault(&section.span, "section <secondary> is not built yet")
                .hint("without it, undeliverable chunks are kept in the buffer's backup directory");
        }
    }

    fn unknown<T>(
        &mut self,
        kind: &str,
        directive: &Directive,
        known: impl Iterator<Item = &'static &'static str>,
    ) -> Option<T> {
        self.unknown_type(kind, &directive.reserved.type_name, &directive.element, known);
        None
    }

    fn unknown_type(
        &mut self,
        kind: &str,
        name: &str,
        element: &Element,
        known: impl Iterator<Item = &'static &'static str>,
    ) {
        let span =
            element.param("@type").or_else(|| element.param("type")).map_or(&element.span, |p| &p.span);
        self.diagnostics
            .fault(span, format!("Unknown {kind} plugin '{name}'. tributary has no such plugin"))
            .suggest(name, known.copied());
    }
}

/// `slow_flush_log_threshold` when silent (Fluentd's default).
const SLOW_FLUSH_DEFAULT: Duration = Duration::from_secs(20);

fn identity(element: &Element, reserved: &Reserved, spec: &SectionSpec) -> Identity {
    // Fluentd names a plugin without `@id` after its object; the number only has to be unique in the process.
    let id = reserved.id.clone().unwrap_or_else(|| format!("object:{:x}", fastrand::u32(0x1000..)));
    Identity {
        id,
        type_name: reserved.type_name.clone(),
        place: element.span.to_string(),
        log_level: reserved.log_level,
        shown: shown_params(element, spec),
    }
}

/// Parameters as written, secrets masked; sub-sections are not shown (monitor_agent's `config`).
fn shown_params(element: &Element, spec: &SectionSpec) -> Vec<(String, String)> {
    let shown = |param: &crate::config::Param| {
        let secret = spec.param(&param.key).is_some_and(|known| known.secret) || looks_secret(&param.key);
        let text = if secret { MASK } else { param.value.text().unwrap_or_default() };
        (param.key.clone(), text.to_owned())
    };
    element.params.iter().map(shown).collect()
}

/// The declared parameters of a plugin section, for the dump: `path` is the section and those around it, outermost first.
pub fn spec_of(path: &[&Element]) -> Option<&'static SectionSpec> {
    let section = path.last()?;
    let type_name = section.type_name();
    let find = |known: &'static [&'static str]| type_name.is_some_and(|name| known.contains(&name));
    match section.name.as_str() {
        "source" => INPUTS.iter().find(|plugin| find(plugin.names)).map(|plugin| plugin.spec),
        "filter" => FILTERS.iter().find(|plugin| find(plugin.names)).map(|plugin| plugin.spec),
        "match" | "store" if type_name == Some("copy") => Some(&CopyParams::SPEC),
        "match" | "store" if type_name == Some("relabel") => Some(&RelabelParams::SPEC),
        "match" | "store" => OUTPUTS.iter().find(|plugin| find(plugin.names)).map(|plugin| plugin.spec),
        "buffer" => Some(&buffer_section::BufferParams::SPEC),
        _ => None,
    }
}
