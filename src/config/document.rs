//! A whole configuration: files read, directives sorted by kind, references between them checked.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::element::{Element, Source, Span};
use super::environment::{Environment, FixedEnvironment, ProcessEnvironment};
use super::error::Diagnostics;
use super::reserved::Reserved;
use super::system::SystemConfig;
use super::v1_parser::V1Parser;
use super::{dump, include};

/// How a configuration is read.
pub struct LoadOptions<'a> {
    /// What embedded code and includes may see.
    pub environment: &'a dyn Environment,
    /// The local `worker_id`; `None` outside workers (empty text).
    pub worker_id: Option<u32>,
    /// `-i TEXT`: appended after the file.
    pub inline: Option<String>,
    /// `--strict-config-value`; `<system> strict_config_value true` does the same.
    pub strict: bool,
    /// `--workers`: wins over `<system> workers`.
    pub workers: Option<u32>,
    /// Folder whose `.conf` files are read after the main file, unless `<system> config_include_dir` says otherwise.
    pub include_dir: Option<PathBuf>,
}

impl Default for LoadOptions<'_> {
    fn default() -> Self {
        Self {
            environment: &ProcessEnvironment,
            worker_id: None,
            inline: None,
            strict: false,
            workers: None,
            include_dir: None,
        }
    }
}

/// What a directive is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirectiveKind {
    /// An input.
    Source,
    /// An output behind a tag pattern.
    Match,
    /// A filter behind a tag pattern.
    Filter,
}

/// `<source>`, `<match>` or `<filter>`.
#[derive(Clone, Debug)]
pub struct Directive {
    /// What it is.
    pub kind: DirectiveKind,
    /// The section as it was written.
    pub element: Element,
    /// Its `@type`, `@id`, `@label`, `@log_level`.
    pub reserved: Reserved,
    /// The workers that it belongs to; `None` is all.
    pub workers: Option<WorkerRange>,
}

impl Directive {
    /// The tag patterns of a match or filter; nothing written means everything.
    pub fn pattern(&self) -> &str {
        if self.element.argument.is_empty() { "**" } else { &self.element.argument }
    }
}

/// `<worker N>` or `<worker N-M>`, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerRange {
    /// First worker.
    pub first: u32,
    /// Last worker.
    pub last: u32,
}

impl WorkerRange {
    fn overlaps(self, other: Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

/// True if two things can exist in one worker.
fn share_a_worker(left: Option<WorkerRange>, right: Option<WorkerRange>) -> bool {
    match (left, right) {
        (Some(left), Some(right)) => left.overlaps(right),
        _ => true,
    }
}

/// `<label @NAME>`: a chain of its own.
#[derive(Clone, Debug)]
pub struct Label {
    /// Its name with the `@`.
    pub name: String,
    /// Its matches and filters in file order.
    pub rules: Vec<Directive>,
    /// The workers that it belongs to; `None` is all.
    pub workers: Option<WorkerRange>,
    /// Where it stands.
    pub span: Span,
}

/// A whole configuration. Plugin names are not resolved here.
#[derive(Clone, Debug)]
pub struct Document {
    /// `<system>`.
    pub system: SystemConfig,
    /// The inputs in file order, those of `<worker>` sections last.
    pub sources: Vec<Directive>,
    /// The matches and filters of the top level in file order, those of `<worker>` sections last.
    pub rules: Vec<Directive>,
    /// The labels in file order.
    pub labels: Vec<Label>,
    /// Everything as it was read, for the dump.
    pub root: Element,
    /// Every file that was read, the main one first.
    pub files: Vec<PathBuf>,
}

impl Document {
    /// The label with this name (`@NAME`).
    pub fn label(&self, name: &str) -> Option<&Label> {
        self.labels.iter().find(|label| label.name == name)
    }

    /// The configuration as Fluentd dumps it, secrets masked; `spec_of` finds what is declared about a plugin's section.
    pub fn dump(&self, spec_of: &dump::SpecOf<'_>) -> String {
        dump::dump(&self.root, spec_of)
    }
}

/// Reads a configuration file with everything it includes. `None` after a fault.
pub fn load(path: &Path, options: &LoadOptions<'_>, diagnostics: &mut Diagnostics) -> Option<Document> {
    diagnostics.set_strict_values(options.strict);
    let path = include::normalised(path);
    let source = match include::read(options.environment, &path) {
        Ok(source) => source,
        Err(reason) => {
            diagnostics.fault_anywhere(format!("cannot read the configuration: {reason}"));
            return None;
        }
    };
    let mut root = Element::new("ROOT", "");
    root.span = Span {
        source: Arc::new(Source { name: source.name.clone(), text: String::new() }),
        line: 0,
        column: 0,
    };
    let worker_id = options.worker_id.map(|id| id.to_string()).unwrap_or_default();
    let mut parser = V1Parser {
        environment: options.environment,
        worker_id: &worker_id,
        diagnostics,
        files: vec![path.clone()],
        stack: vec![path.clone()],
    };
    let folder = path.parent().unwrap_or(Path::new("")).to_owned();
    parser.parse_into(Arc::new(source), &folder, &mut root, 0);
    if let Some(text) = &options.inline {
        let text = text.replace("\\n", "\n");
        let source = Arc::new(Source { name: "(command line)".into(), text });
        parser.parse_into(source, &folder, &mut root, 0);
    }
    // a `<system>` in the extra folder has no effect, as in Fluentd
    let mut system = system_of(&root, parser.diagnostics);
    if let (Some(system), Some(workers)) = (&mut system, options.workers) {
        system.workers = workers;
    }
    let extra = extra_folder(system.as_ref(), options);
    if let Some(extra) = extra {
        include_folder(&mut parser, &extra, &mut root);
    }
    let files = std::mem::take(&mut parser.files);
    let document = sort(root, system?, files, diagnostics);
    if diagnostics.has_faults() { None } else { document }
}

/// Reads a text that includes nothing and sees an empty environment: for tests and made-up sections.
pub fn parse_text(text: &str, diagnostics: &mut Diagnostics) -> Element {
    parse_text_in(text, &FixedEnvironment::default(), diagnostics)
}

/// Reads a text in the given environment; includes are relative to the folder `""`.
pub fn parse_text_in(text: &str, environment: &dyn Environment, diagnostics: &mut Diagnostics) -> Element {
    let source = Arc::new(Source { name: "(text)".into(), text: text.to_owned() });
    let mut root = Element::new("ROOT", "");
    let mut parser =
        V1Parser { environment, worker_id: "", diagnostics, files: Vec::new(), stack: Vec::new() };
    parser.parse_into(source, Path::new(""), &mut root, 0);
    root
}

fn system_of(root: &Element, diagnostics: &mut Diagnostics) -> Option<SystemConfig> {
    let mut sections = root.children_named("system");
    let Some(first) = sections.next() else { return Some(SystemConfig::default()) };
    for second in sections {
        let message = "<system> is duplicated. <system> should be only one";
        diagnostics.fault(&second.span, message).hint(format!("the first one is at {}", first.span));
    }
    let system = SystemConfig::read(first, diagnostics)?;
    if system.strict_config_value == Some(true) {
        diagnostics.set_strict_values(true);
    }
    Some(system)
}

fn extra_folder(system: Option<&SystemConfig>, options: &LoadOptions<'_>) -> Option<PathBuf> {
    match system.and_then(|system| system.config_include_dir.as_deref()) {
        Some("") => None,
        Some(folder) => Some(PathBuf::from(folder)),
        None => options.include_dir.clone(),
    }
}

/// Every `.conf` below the folder that no `@include` has read yet; `<system>` sections in them are dropped.
fn include_folder(parser: &mut V1Parser<'_>, folder: &Path, root: &mut Element) {
    let location = format!("{}/**/*.{{conf,yaml,yml}}", folder.display());
    let span = root.span.clone();
    let found = match include::find(parser.environment, &location, Path::new("")) {
        Ok(found) => found,
        Err(reason) => {
            parser.diagnostics.fault(&span, format!("include error {location} - {reason}"));
            return;
        }
    };
    for path in found {
        if parser.files.contains(&path) {
            continue;
        }
        let mut added = Element::new("ROOT", "");
        parser.include_file(&path, &path.display().to_string(), &span, &mut added, 0);
        added.params.into_iter().for_each(|param| root.set_param(param));
        for child in added.children {
            if child.name == "system" {
                parser.diagnostics.warning(&child.span, "a <system> in the include folder has no effect");
            } else {
                root.children.push(child);
            }
        }
    }
}

fn sort(
    root: Element,
    system: SystemConfig,
    files: Vec<PathBuf>,
    diagnostics: &mut Diagnostics,
) -> Option<Document> {
    let mut document =
        Document { system, sources: Vec::new(), rules: Vec::new(), labels: Vec::new(), root, files };
    let root = document.root.clone();
    for param in &root.params {
        diagnostics
            .warning(&param.span, format!("parameter '{}' in <ROOT> is not used.", param.key))
            .hint("parameters belong into a section");
    }
    let known = ["source", "match", "filter", "label", "worker", "system"];
    for element in root.children.iter().filter(|element| element.name != "worker") {
        if !document.add(element, None, diagnostics) && element.name != "system" {
            let message = format!("section <{}> is not used in <ROOT>", element.name);
            diagnostics.warning(&element.span, message).suggest(&element.name, known);
        }
    }
    // as in Fluentd, what belongs to some workers only comes after everything else
    let mut ranges: Vec<(WorkerRange, Span)> = Vec::new();
    for worker in root.children_named("worker") {
        let Some(range) = worker_range(worker, document.system.workers, diagnostics) else { continue };
        if let Some((_, before)) = ranges.iter().find(|(known, _)| known.overlaps(range)) {
            let message =
                format!("worker id collision: <worker {}> overlaps an earlier one", worker.argument);
            diagnostics.fault(&worker.span, message).hint(format!("the other is at {before}"));
        }
        ranges.push((range, worker.span.clone()));
        for element in &worker.children {
            if !document.add(element, Some(range), diagnostics) {
                let message = format!("<worker> section cannot have <{}> directive", element.name);
                diagnostics.fault(&element.span, message).expected("source, match, filter or label");
            }
        }
        for param in &worker.params {
            let message = format!("parameter '{}' in {} is not used.", param.key, worker.tag());
            diagnostics.warning(&param.span, message);
        }
    }
    document.check_labels(diagnostics);
    document.check_ids(diagnostics);
    Some(document)
}

fn worker_range(worker: &Element, workers: u32, diagnostics: &mut Diagnostics) -> Option<WorkerRange> {
    let argument = worker.argument.trim();
    let (first, last) = argument.split_once('-').unwrap_or((argument, argument));
    let range = match (first.trim().parse(), last.trim().parse()) {
        (Ok(first), Ok(last)) => WorkerRange { first, last },
        _ => {
            diagnostics
                .fault(&worker.span, format!("worker section requires a worker id: <worker {argument}>"))
                .expected("<worker N> or <worker N-M>");
            return None;
        }
    };
    if range.first > range.last {
        let message = format!("greater first_worker_id<{}> than last_worker_id<{}>", range.first, range.last);
        diagnostics.fault(&worker.span, message);
        return None;
    }
    if range.last >= workers {
        let message = format!("worker id {} specified by <worker> directive is not allowed", range.last);
        let fault = diagnostics.fault(&worker.span, message);
        fault
            .expected(format!("0 to {}", workers.saturating_sub(1)))
            .hint("<system> workers says how many there are");
        return None;
    }
    Some(range)
}

impl Document {
    /// Takes one top-level section; false if it is not a directive.
    fn add(
        &mut self,
        element: &Element,
        workers: Option<WorkerRange>,
        diagnostics: &mut Diagnostics,
    ) -> bool {
        match element.name.as_str() {
            "source" => self.sources.extend(directive(DirectiveKind::Source, element, workers, diagnostics)),
            "match" => self.rules.extend(directive(DirectiveKind::Match, element, workers, diagnostics)),
            "filter" => self.rules.extend(directive(DirectiveKind::Filter, element, workers, diagnostics)),
            "label" => self.add_label(element, workers, diagnostics),
            _ => return false,
        }
        true
    }

    fn add_label(&mut self, element: &Element, workers: Option<WorkerRange>, diagnostics: &mut Diagnostics) {
        let name = element.argument.clone();
        if name.is_empty() {
            let fault = diagnostics.fault(&element.span, "Missing symbol argument on <label> directive");
            fault.expected("<label @NAME>");
            return;
        }
        if name == "@ROOT" {
            let fault = diagnostics
                .fault(&element.span, "@ROOT for <label> is not permitted, reserved for getting root router");
            fault.hint("@ROOT is the top level itself");
            return;
        }
        if !name.starts_with('@') {
            diagnostics
                .warning(&element.span, format!("label name '{name}' does not begin with '@'"))
                .hint("@label parameters must name it exactly like this");
        }
        if let Some(first) =
            self.labels.iter().find(|label| label.name == name && share_a_worker(label.workers, workers))
        {
            let fault = diagnostics.fault(&element.span, format!("Section <label {name}> appears twice"));
            fault.hint(format!("the first one is at {}", first.span));
            return;
        }
        let mut rules = Vec::new();
        let mut has_match = false;
        for child in &element.children {
            let kind = match child.name.as_str() {
                "match" => DirectiveKind::Match,
                "filter" => DirectiveKind::Filter,
                _ => {
                    let message = format!("section <{}> is not used in {}", child.name, element.tag());
                    diagnostics.warning(&child.span, message).suggest(&child.name, ["match", "filter"]);
                    continue;
                }
            };
            has_match |= kind == DirectiveKind::Match;
            rules.extend(directive(kind, child, workers, diagnostics));
        }
        for param in &element.params {
            let message = format!("parameter '{}' in {} is not used.", param.key, element.tag());
            diagnostics.warning(&param.span, message);
        }
        if !has_match {
            let message = format!("Missing <match> sections in <label {name}> section");
            diagnostics.fault(&element.span, message).hint("events that come here would go nowhere");
        }
        self.labels.push(Label { name, rules, workers, span: element.span.clone() });
    }

    /// Every section that is a plugin or holds one.
    fn directives(&self) -> impl Iterator<Item = &Directive> {
        let in_labels = self.labels.iter().flat_map(|label| &label.rules);
        self.sources.iter().chain(&self.rules).chain(in_labels)
    }

    fn check_labels(&self, diagnostics: &mut Diagnostics) {
        let names: BTreeSet<&str> = self.labels.iter().map(|label| label.name.as_str()).collect();
        for directive in self.directives() {
            for_each_plugin(&directive.element, &mut |element| {
                let Some(param) = element.params.iter().find(|param| param.key == "@label") else { return };
                let Some(name) = param.value.text() else { return };
                if name != "@ROOT" && !names.contains(name) {
                    let fault = diagnostics.fault(&param.span, format!("{name} label not found"));
                    fault.suggest(name, names.iter().copied());
                }
            });
        }
    }

    fn check_ids(&self, diagnostics: &mut Diagnostics) {
        let mut seen: Vec<(String, Option<WorkerRange>, Span)> = Vec::new();
        for directive in self.directives() {
            for_each_plugin(&directive.element, &mut |element| {
                let find = |key| element.params.iter().find(|param| param.key == key);
                let old = || find("id").filter(|_| std::ptr::eq(element, &directive.element));
                let Some(param) = find("@id").or_else(old) else { return };
                let Some(id) = param.value.text() else { return };
                let twin = seen
                    .iter()
                    .find(|(known, workers, _)| known == id && share_a_worker(*workers, directive.workers));
                if let Some((_, _, first)) = twin {
                    let message =
                        format!("Duplicated plugin id `{id}`. Check whole configuration and fix it.");
                    diagnostics.fault(&param.span, message).hint(format!("the first one is at {first}"));
                }
                seen.push((id.to_owned(), directive.workers, param.span.clone()));
            });
        }
    }
}

fn directive(
    kind: DirectiveKind,
    element: &Element,
    workers: Option<WorkerRange>,
    diagnostics: &mut Diagnostics,
) -> Option<Directive> {
    let reserved = Reserved::from_element(element, diagnostics)?;
    Some(Directive { kind, element: element.clone(), reserved, workers })
}

/// The section and those below it that can be plugins (`<store>`, `<buffer>`, `<parse>` …): not the free-form ones.
fn for_each_plugin(element: &Element, visit: &mut impl FnMut(&Element)) {
    visit(element);
    for child in &element.children {
        if child.name != "record" {
            for_each_plugin(child, visit);
        }
    }
}

#[cfg(test)]
mod tests;
