//! The rules of the house as tests: they read the source text, so a broken rule fails with file and line.
//!
//! Two lists may only shrink: `tidy/long_functions.txt` and `tidy/long_files.txt` (what was too long when the rule
//! came). The sources are formatted by rustfmt, so the end of a function is the brace at its own indentation.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use tributary::config::{ParamSpec, SectionSpec};

const FUNCTION_LINES_MAX: usize = 70;
/// Lines before the tests: a longer file becomes a folder of its name.
const FILE_LINES_MAX: usize = 500;
/// main.rs only calls the library.
const MAIN_LINES_MAX: usize = 12;

/// Room, what it must not name, why.
const BANS: &[(&str, &[&str], &str)] = &[
    ("src/event", IO, "the traveller knows no sockets, files or tasks"),
    (
        "src/event",
        &["crate::input", "crate::output", "crate::buffer", "crate::pipeline"],
        "it is known by all",
    ),
    ("src/forward", IO, "the wire protocol is a pure function over bytes"),
    ("src/router", IO, "label and tag decide, nothing else"),
    ("src/router", &["crate::input", "crate::output", "crate::pipeline"], "the router knows no plugin"),
    ("src/filter", IO, "filters see batches and do no I/O"),
    ("src/filter", &["crate::input", "crate::output", "crate::buffer"], "filters know no stations"),
    ("src/formatter", IO, "a formatter makes text and does not know where it goes"),
    ("src/config", IO, "text becomes typed configuration without touching anything"),
    ("src/config", &["crate::input", "crate::output", "crate::filter"], "the language knows no plugin"),
    (
        "src/buffer",
        &["std::fs", "tokio::fs", "std::net", "tokio::net"],
        "only storage.rs calls the file system",
    ),
    (
        "src/buffer",
        &["crate::input", "crate::output"],
        "a buffer knows neither where events come from nor go to",
    ),
    ("src/buffer", &["crate::config", "crate::params"], "a buffer gets figures, not configuration text"),
    (
        "src/input",
        &["crate::output", "crate::buffer", "crate::pipeline"],
        "an input learns from the router whether it may confirm",
    ),
    (
        "src/output",
        &["crate::input", "crate::pipeline"],
        "an output knows neither inputs nor who assembles it",
    ),
    ("src/net", &["crate::forward", "crate::input", "crate::output"], "sockets know no messages"),
    ("src/time", IO, "a moment is text, nothing else"),
    ("src/buffer", &["crate::formatter"], "a chunk is bytes, not text"),
    ("src/net", &["crate::event", "crate::buffer", "crate::pipeline"], "sockets know no messages"),
    (
        "src/telemetry",
        &["crate::input", "crate::router", "crate::filter", "crate::output", "crate::pipeline"],
        "what is counted and logged does not depend on who does it",
    ),
    ("src/process", STATIONS_AND_WIRE, "the process knows nothing of what runs in it"),
    ("src/bench", STATIONS_AND_WIRE, "the judges share no code with what they judge"),
];
const STATIONS_AND_WIRE: &[&str] = &[
    "crate::event",
    "crate::forward",
    "crate::input",
    "crate::router",
    "crate::filter",
    "crate::buffer",
    "crate::output",
    "crate::pipeline",
];
const IO: &[&str] = &["tokio::", "std::fs", "std::net"];

/// File (or folder), token, why it may.
const EXCEPTIONS: &[(&str, &str, &str)] = &[
    ("src/config/environment.rs", "std::fs", "included files are part of the configuration text"),
    ("src/buffer/storage", "std::fs", "the one place that calls the file system"),
];

/// Plain data that travels between rooms: any room may name it.
const TRAVELLERS: &[&str] = &["crate::buffer::BufferStats"];

/// Plugins that are wiring: the pipeline builds them itself, because other outputs or labels stand behind them.
const WIRING: &[&str] = &["out_copy", "out_relabel"];

/// A source file; `code` is what stands before its tests, comments blanked, line for line.
struct Source {
    path: String,
    text: String,
    code: Vec<String>,
}

fn project() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// All Rust files of a folder, in order.
fn sources(folder: &str) -> Vec<Source> {
    let mut files = Vec::new();
    collect(&project().join(folder), &mut files);
    files.sort();
    let read = |path: PathBuf| {
        let text = std::fs::read_to_string(&path).expect("a source file");
        (path.strip_prefix(project()).expect("inside the project").display().to_string(), text)
    };
    let files: Vec<(String, String)> = files.into_iter().map(read).collect();
    let tests: BTreeSet<String> = files.iter().flat_map(|(path, text)| test_modules(path, text)).collect();
    let only_tests = |path: &str| {
        tests.iter().any(|module| path == format!("{module}.rs") || path.starts_with(&format!("{module}/")))
    };
    files
        .into_iter()
        .map(|(path, text)| {
            let code = if only_tests(&path) { Vec::new() } else { code_lines(&text) };
            Source { path, text, code }
        })
        .collect()
}

/// Modules in files of their own that a file declares for its tests only, as paths without `.rs`.
fn test_modules(path: &str, text: &str) -> Vec<String> {
    let folder = path.strip_suffix("/mod.rs").or(path.strip_suffix(".rs")).unwrap_or(path);
    let lines: Vec<&str> = text.lines().collect();
    let declared = lines.windows(2).filter(|two| two[0] == "#[cfg(test)]").filter_map(|two| {
        let name = module_of(two[1])?.strip_suffix(';')?;
        Some(format!("{folder}/{name}"))
    });
    declared.collect()
}

/// What follows `mod` in a line that declares a module.
fn module_of(line: &str) -> Option<&str> {
    ["mod ", "pub mod ", "pub(crate) mod ", "pub(super) mod "]
        .iter()
        .find_map(|visible| line.strip_prefix(visible))
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten() {
        let path = entry.expect("a folder's entry").path();
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

/// The lines before `mod tests { ... }`, comments blanked.
fn code_lines(text: &str) -> Vec<String> {
    let lines: Vec<&str> = text.lines().collect();
    let opens_tests = |line: &str| module_of(line).is_some_and(|rest| rest.ends_with('{'));
    let tests = lines.windows(2).position(|two| two[0] == "#[cfg(test)]" && opens_tests(two[1]));
    let code = &lines[..tests.unwrap_or(lines.len())];
    code.iter()
        .map(|line| if line.trim_start().starts_with("//") { String::new() } else { (*line).into() })
        .collect()
}

fn assert_none(rule: &str, broken: &[String]) {
    assert!(broken.is_empty(), "{rule}:\n  {}", broken.join("\n  "));
}

#[test]
fn rooms_name_only_what_they_may() {
    let mut broken = Vec::new();
    for source in sources("src") {
        for (room, tokens, why) in
            BANS.iter().filter(|(room, ..)| source.path.starts_with(&format!("{room}/")))
        {
            for (number, line) in source.code.iter().enumerate() {
                let line = TRAVELLERS.iter().fold(line.clone(), |line, name| line.replace(name, ""));
                broken.extend(named(&line, tokens).filter(|token| !is_exception(&source.path, token)).map(
                    |token| format!("{}:{}: {room} must not name {token}: {why}", source.path, number + 1),
                ));
            }
        }
    }
    assert_none("a room names what it must not know", &broken);
}

fn is_exception(path: &str, token: &str) -> bool {
    EXCEPTIONS.iter().any(|(file, allowed, _)| path.starts_with(file) && *allowed == token)
}

/// The tokens in a line, `use std::{fs, io}` included.
fn named<'a>(line: &'a str, tokens: &'a [&'a str]) -> impl Iterator<Item = &'a str> {
    let grouped = |token: &str| {
        let Some((parent, child)) = token.trim_end_matches("::").rsplit_once("::") else { return false };
        let Some(group) = line.trim_start().strip_prefix(&format!("use {parent}::{{")) else { return false };
        group.split([',', '{', '}', ';', ':', ' ']).any(|name| name == child)
    };
    tokens.iter().copied().filter(move |token| contains_path(line, token) || grouped(token))
}

/// Whether a path stands in a line as whole words.
fn contains_path(line: &str, path: &str) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(path).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + path.len()..].chars().next();
        !before.is_some_and(|c| is_word(c) || c == ':')
            && (path.ends_with("::") || !after.is_some_and(is_word))
    })
}

#[test]
fn the_binary_is_thin() {
    let main = sources("src").into_iter().find(|source| source.path == "src/main.rs").expect("src/main.rs");
    let lines = main.code.iter().filter(|line| !line.is_empty()).count();
    assert!(lines <= MAIN_LINES_MAX, "src/main.rs has {lines} lines; what it does belongs in the library");
}

#[test]
fn functions_are_short() {
    let mut long = BTreeMap::new();
    for source in sources("src").iter().chain(&sources("integration")).chain(&sources("benches")) {
        for (name, lines) in functions(&source.text) {
            if lines > FUNCTION_LINES_MAX {
                long.insert(format!("{} {name}", source.path), lines);
            }
        }
    }
    ratchet("long_functions.txt", &long, FUNCTION_LINES_MAX);
}

#[test]
fn files_are_short() {
    let files = sources("src").into_iter().chain(sources("integration"));
    let long =
        files.map(|source| (source.path, source.code.len())).filter(|(_, lines)| *lines > FILE_LINES_MAX);
    ratchet("long_files.txt", &long.collect(), FILE_LINES_MAX);
}

/// Names and lines of the functions of a formatted file.
fn functions(text: &str) -> Vec<(String, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (start, line) in lines.iter().enumerate() {
        let body = line.trim_start();
        let words: Vec<&str> = body.split(' ').take_while(|word| !word.contains('"')).collect();
        let Some(place) = words.iter().position(|word| *word == "fn") else { continue };
        let prefix = words[..place].iter().all(|word| {
            word.starts_with("pub") || ["const", "async", "extern", "in", "super)", "crate)"].contains(word)
        });
        let Some(name) = words.get(place + 1).filter(|_| prefix) else { continue };
        let end = format!("{}}}", &line[..line.len() - body.len()]);
        if line.ends_with('}') || line.ends_with(';') {
            continue;
        }
        let length = lines[start..].iter().position(|line| *line == end || *line == format!("{end},"));
        let name: String = name.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        found.extend(length.map(|length| (name, length + 1)));
    }
    found
}

/// Compares what is too long with the committed list: nothing new, nothing longer, nothing that is short by now.
fn ratchet(list: &str, long: &BTreeMap<String, usize>, limit: usize) {
    let path = format!("integration/tidy/{list}");
    let text =
        std::fs::read_to_string(project().join(&path)).unwrap_or_else(|error| panic!("{path}: {error}"));
    let listed: BTreeMap<&str, usize> = text
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(|line| line.rsplit_once(' ').and_then(|(name, lines)| Some((name, lines.parse().ok()?))))
        .map(|entry| entry.unwrap_or_else(|| panic!("{path}: a line is NAME LINES")))
        .collect();
    let mut broken = Vec::new();
    for (name, lines) in long {
        match listed.get(name.as_str()) {
            None => broken.push(format!("{name}: {lines} lines, at most {limit}")),
            Some(known) if lines > known => {
                broken.push(format!("{name}: grew from {known} to {lines} lines"))
            }
            Some(_) => {}
        }
    }
    for (name, known) in &listed {
        match long.get(*name) {
            None => broken.push(format!("{name}: short or gone, take it out of {path}")),
            Some(lines) if lines < known => broken.push(format!("{name}: shrank, write {lines} into {path}")),
            Some(_) => {}
        }
    }
    assert_none("too long", &broken);
}

#[test]
fn nothing_is_skipped_unsafe_or_silenced_without_reason() {
    let mut broken = Vec::new();
    // Built from parts, so that this file does not accuse itself.
    let (ignored, forbidden) = (concat!("#[", "ignore"), concat!("un", "safe"));
    for source in sources("src").iter().chain(&sources("integration")).chain(&sources("benches")) {
        for (number, line) in source.text.lines().enumerate() {
            let place = format!("{}:{}", source.path, number + 1);
            let code = line.split("//").next().unwrap_or_default();
            if code.contains(ignored) {
                broken.push(format!("{place}: a test that is not run"));
            }
            if contains_path(code, forbidden) {
                broken.push(format!("{place}: {forbidden} code, which src/lib.rs forbids"));
            }
            if code.contains(concat!("[", "allow("))
                && !source.text.lines().skip(number).take(6).any(has_reason)
            {
                broken.push(format!("{place}: allow needs a reason = \"...\""));
            }
        }
    }
    assert_none("not in this house", &broken);
}

fn has_reason(line: &str) -> bool {
    line.contains("reason = ")
}

#[test]
fn every_dependency_says_why() {
    let manifest = std::fs::read_to_string(project().join("Cargo.toml")).expect("Cargo.toml");
    let mut broken = Vec::new();
    let mut in_dependencies = false;
    for (number, line) in manifest.lines().enumerate() {
        if line.starts_with('[') {
            in_dependencies = line.contains("dependencies");
        } else if in_dependencies && line.contains(" = ") && !line.contains(" # ") {
            broken.push(format!("Cargo.toml:{}: {line}", number + 1));
        }
    }
    assert_none("a dependency without a reason on its line", &broken);
}

/// Stations with plugins, and the start of their files' names.
const STATIONS: &[(&str, &str)] =
    &[("input", "in_"), ("filter", "filter_"), ("formatter", "formatter_"), ("output", "out_")];

#[test]
fn every_plugin_file_is_in_its_table() {
    let mut broken = Vec::new();
    for (station, prefix) in STATIONS {
        let folder = project().join("src").join(station);
        let table = std::fs::read_to_string(folder.join("mod.rs")).expect("a station's mod.rs");
        let mut modules = BTreeSet::new();
        for entry in std::fs::read_dir(&folder).expect("a station") {
            let name = entry.expect("an entry").file_name().into_string().expect("a name in UTF-8");
            let module = name.trim_end_matches(".rs");
            // helpers that several plugins share do not have the prefix
            if module.starts_with(prefix) && !WIRING.contains(&module) {
                modules.insert(module.to_owned());
            }
        }
        for module in modules.iter().filter(|module| !table.contains(&format!("&{module}::PLUGIN"))) {
            broken.push(format!("src/{station}/{module}: no line &{module}::PLUGIN in src/{station}/mod.rs"));
        }
    }
    assert_none("a plugin that nobody can configure", &broken);
}

/// Every table's entries: station, names, parameters.
fn tables() -> Vec<(&'static str, &'static [&'static str], &'static SectionSpec)> {
    use tributary::{filter::FILTERS, formatter::FORMATTERS, input::INPUTS, output::OUTPUTS};
    let mut all: Vec<(_, _, &SectionSpec)> = Vec::new();
    all.extend(INPUTS.iter().map(|plugin| ("input", plugin.names, plugin.spec)));
    all.extend(FILTERS.iter().map(|plugin| ("filter", plugin.names, plugin.spec)));
    all.extend(FORMATTERS.iter().map(|plugin| ("formatter", plugin.names, plugin.spec)));
    all.extend(OUTPUTS.iter().map(|plugin| ("output", plugin.names, plugin.spec)));
    all
}

#[test]
fn plugins_are_described() {
    let mut broken = Vec::new();
    let mut names = BTreeSet::new();
    for (station, own, spec) in tables() {
        let first = own.first().expect("a plugin has a name");
        for name in own {
            if !names.insert((station, *name)) {
                broken.push(format!("{station} {name}: in its table twice"));
            }
        }
        undescribed(&format!("{station} {first}"), spec, &mut broken);
    }
    assert_none("plugins", &broken);
}

/// Parameters without doc, or whose default is not in the language of the configuration.
fn undescribed(place: &str, spec: &SectionSpec, broken: &mut Vec<String>) {
    let check = |param: &ParamSpec, broken: &mut Vec<String>| {
        if param.doc.iter().all(|line| line.trim().is_empty()) {
            broken.push(format!("{place}: {} has no doc", param.name));
        }
        if let Some(Err(error)) = param.default.map(param.check) {
            broken.push(format!("{place}: default of {}: {error}", param.name));
        }
    };
    spec.argument.iter().for_each(|param| check(param, broken));
    spec.params.iter().copied().flatten().for_each(|param| check(param, broken));
    for section in spec.sections.iter().copied().flatten() {
        if section.doc.iter().all(|line| line.trim().is_empty()) {
            broken.push(format!("{place}: <{}> has no doc", section.name));
        }
        undescribed(&format!("{place} <{}>", section.name), section.spec, broken);
    }
}

#[test]
fn compatibility_rows_name_tests_that_exist() {
    let page = std::fs::read_to_string(project().join("docs/COMPAT.md")).expect("docs/COMPAT.md");
    let mut known = BTreeSet::new();
    for source in sources("src").iter().chain(&sources("integration")) {
        known.extend(source.text.lines().filter_map(|line| {
            let name = line.trim_start().trim_start_matches("async ").strip_prefix("fn ")?;
            Some(name.split('(').next().unwrap_or_default().to_owned())
        }));
    }
    let mut broken = Vec::new();
    let (mut rows, mut untested) = (0_u32, 0_u32);
    for (number, line) in page.lines().enumerate() {
        let row = line.trim().trim_start_matches('|').trim_end_matches('|');
        let cells: Vec<&str> = row.split(" | ").map(str::trim).collect();
        if !line.starts_with('|') || line.starts_with("|-") || line.starts_with("| -") || cells.len() < 4 {
            continue;
        }
        let test = cells.last().copied().unwrap_or_default();
        if test == "test" {
            continue;
        }
        rows += 1;
        untested += u32::from(test.is_empty());
        // "same" stands for the row above.
        for name in test.split('`').skip(1).step_by(2) {
            let function = name.rsplit("::").next().unwrap_or_default();
            let path = name.contains('/') && project().join(name).exists();
            let whole_module = is_module_of_tests(name.strip_suffix("::*").unwrap_or(name));
            if !known.contains(function) && !path && !whole_module {
                broken.push(format!("docs/COMPAT.md:{}: no test {name}", number + 1));
            }
        }
    }
    println!("{rows} differences, {untested} of them without a test");
    assert!(rows > 0, "docs/COMPAT.md has no rows: has its form changed?");
    assert_none("a difference without a test", &broken);
}

/// `buffer::flush::tests` or `buffer::crash_tests`: whether the library has that module of tests.
fn is_module_of_tests(name: &str) -> bool {
    let path = project().join("src").join(name.replace("::", "/"));
    if name.ends_with("_tests") {
        return path.with_extension("rs").exists();
    }
    let Some(module) = name.strip_suffix("::tests") else { return false };
    let path = project().join("src").join(module.replace("::", "/"));
    let text = std::fs::read_to_string(path.with_extension("rs"));
    text.or_else(|_| std::fs::read_to_string(path.join("mod.rs")))
        .is_ok_and(|text| text.contains("mod tests"))
}

#[test]
fn the_rules_see_what_they_are_made_for() {
    assert!(contains_path("use tokio::net::TcpStream;", "tokio::"));
    assert!(contains_path("    let f = std::fs::read(path)?;", "std::fs"));
    assert!(!contains_path("use crate::outputs::X;", "crate::output"));
    assert!(!contains_path("my_tokio::x()", "tokio::"));
    let found: Vec<_> = named("use std::{fs, io};", &["std::fs", "std::net"]).collect();
    assert_eq!(found, ["std::fs"]);
    let text = "impl A {\n    pub(crate) async fn long(\n        &self,\n    ) {\n        body\n    }\n}\nfn short() {}\n";
    assert_eq!(functions(text), [("long".to_owned(), 5)]);
    for visible in ["", "pub(crate) "] {
        let text =
            format!("use a;\n// tokio::x\n#[cfg(test)]\n{visible}mod tests {{\n    use tokio::x;\n}}\n");
        assert_eq!(code_lines(&text), ["use a;", ""]);
    }
    let text = "mod a;\n#[cfg(test)]\nmod sim;\n#[cfg(test)]\npub(crate) mod tests;\n";
    assert_eq!(test_modules("src/b/mod.rs", text), ["src/b/sim", "src/b/tests"]);
    assert_eq!(test_modules("src/b/c.rs", text), ["src/b/c/sim", "src/b/c/tests"]);
    assert_eq!(code_lines(text).len(), 5);
}
