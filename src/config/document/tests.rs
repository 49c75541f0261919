use std::path::Path;

use super::*;
use crate::config::Severity;

fn read(environment: &FixedEnvironment) -> (Option<Document>, Diagnostics) {
    let mut diagnostics = Diagnostics::new();
    let options = LoadOptions { environment, ..LoadOptions::default() };
    let document = load(Path::new("/e/main.conf"), &options, &mut diagnostics);
    (document, diagnostics)
}

fn read_text(text: &str) -> (Option<Document>, Diagnostics) {
    read(&FixedEnvironment::default().with_file("/e/main.conf", text))
}

/// The faults of a text, one line each.
fn faults(text: &str) -> Vec<String> {
    let (document, diagnostics) = read_text(text);
    assert!(document.is_none(), "no fault in {text}");
    diagnostics.faults().map(|fault| fault.one_line()).collect()
}

fn warnings(text: &str) -> Vec<String> {
    let (document, diagnostics) = read_text(text);
    assert!(document.is_some(), "{}", diagnostics.render());
    assert!(diagnostics.iter().all(|item| item.severity == Severity::Warning));
    diagnostics.iter().map(|item| item.one_line()).collect()
}

const MATCH: &str = "<match>\n  @type null\n</match>\n";

#[test]
fn directives_keep_their_order_and_workers_come_last() {
    let text = "<system>\n workers 3\n</system>\n<worker 1-2>\n <match w>\n @type null\n </match>\n</worker>\n\
        <source>\n @type forward\n @id in\n @label @L\n</source>\n<filter a.**>\n @type grep\n</filter>\n\
        <match a.**>\n @type null\n @log_level debug\n</match>\n<label @L>\n <match>\n @type null\n </match>\n</label>\n";
    let (document, diagnostics) = read_text(text);
    let document = document.unwrap_or_else(|| panic!("{}", diagnostics.render()));
    assert!(diagnostics.is_empty(), "{}", diagnostics.render());
    assert_eq!(document.system.workers, 3);
    let rules: Vec<_> = document.rules.iter().map(|rule| (rule.kind, rule.pattern())).collect();
    let expected =
        [(DirectiveKind::Filter, "a.**"), (DirectiveKind::Match, "a.**"), (DirectiveKind::Match, "w")];
    assert_eq!(rules, expected);
    assert_eq!(document.rules[2].workers, Some(WorkerRange { first: 1, last: 2 }));
    assert_eq!(document.sources[0].reserved.id.as_deref(), Some("in"));
    assert_eq!(document.label("@L").unwrap().rules[0].pattern(), "**");
    assert_eq!(document.sources[0].element.span.to_string(), "/e/main.conf:9");
}

#[test]
fn directive_faults_all_at_once() {
    let text = "<source>\n  port 1\n</source>\n<label @A>\n</label>\n<label @A>\n</label>\n<label @ROOT>\n</label>\n\
        <match a>\n  @type relabel\n  @label @B\n  @id x\n</match>\n<match b>\n  @type copy\n  @log_level loud\n  <store>\n    @type null\n    @id x\n  </store>\n</match>\n\
        <system>\n</system>\n<system>\n</system>\n<worker 7>\n</worker>\n";
    assert_eq!(
        faults(text),
        [
            "/e/main.conf:25: <system> is duplicated. <system> should be only one (the first one is at /e/main.conf:23)",
            "/e/main.conf:1: Missing '@type' parameter on <source> directive (expected a plugin type such as @type forward)",
            "/e/main.conf:4: Missing <match> sections in <label @A> section (events that come here would go nowhere)",
            "/e/main.conf:6: Section <label @A> appears twice (the first one is at /e/main.conf:4)",
            "/e/main.conf:8: @ROOT for <label> is not permitted, reserved for getting root router (@ROOT is the top level itself)",
            "/e/main.conf:17: Unknown log level: level = loud (expected trace, debug, info, warn, error, fatal)",
            "/e/main.conf:27: worker id 7 specified by <worker> directive is not allowed (expected 0 to 0, <system> workers says how many there are)",
            "/e/main.conf:12: @B label not found (did you mean '@A'?)",
            "/e/main.conf:20: Duplicated plugin id `x`. Check whole configuration and fix it. (the first one is at /e/main.conf:13)",
        ]
    );
}

#[test]
fn unused_things_warn() {
    let text =
        format!("stray 1\n<sorce>\n</sorce>\n<label @L>\n  q 1\n  <source>\n  </source>\n{MATCH}</label>\n");
    assert_eq!(
        warnings(&text),
        [
            "/e/main.conf:1: parameter 'stray' in <ROOT> is not used. (parameters belong into a section)",
            "/e/main.conf:2: section <sorce> is not used in <ROOT> (did you mean 'source'?)",
            "/e/main.conf:6: section <source> is not used in <label @L>",
            "/e/main.conf:5: parameter 'q' in <label @L> is not used.",
        ]
    );
    assert_eq!(
        warnings("<source>\n  type forward\n  id y\n</source>\n"),
        [
            "/e/main.conf:2: 'type' is deprecated parameter name. use '@type' instead.",
            "/e/main.conf:3: 'id' is deprecated parameter name. use '@id' instead.",
        ]
    );
}

#[test]
fn workers() {
    let head = "<system>\n  workers 4\n</system>\n";
    assert!(faults(&format!("{head}<worker 2-1>\n</worker>\n"))[0].contains("greater first_worker_id"));
    assert!(faults(&format!("{head}<worker x>\n</worker>\n"))[0].contains("requires a worker id"));
    assert!(
        faults(&format!("{head}<worker 0-1>\n</worker>\n<worker 1>\n</worker>\n"))[0].contains("collision")
    );
    assert!(
        faults(&format!("{head}<worker 0>\n<system>\n</system>\n</worker>\n"))[0]
            .contains("cannot have <system>")
    );
    let label = |range: &str| format!("<worker {range}>\n<label @L>\n{MATCH}</label>\n</worker>\n");
    let (document, diagnostics) = read_text(&format!("{head}{}{}", label("0"), label("1-2")));
    assert_eq!(document.map(|document| document.labels.len()), Some(2), "{}", diagnostics.render());
    assert!(faults("<system>\n  workers 0\n</system>\n")[0].contains("invalid number of workers"));
}

#[test]
fn system_section() {
    let text = "<system>\n  log_level debug\n  fsync interval 2s\n  memory_limit 1g\n  file_permission 0640\n  process_name x\n  <log>\n    format json\n  </log>\n</system>\n";
    let (document, diagnostics) = read_text(text);
    let system = document.unwrap().system;
    assert_eq!(system.log_level, Some(crate::config::LogLevel::Debug));
    assert_eq!(system.fsync, crate::config::FsyncPolicy::Interval(crate::config::Seconds(2.0)));
    assert_eq!(system.memory_limit_bytes(), 1 << 30);
    assert_eq!(system.file_permission, Some(crate::config::OctalMode(0o640)));
    assert_eq!(system.log.format, crate::config::LogFormat::Json);
    assert_eq!(diagnostics.warnings().count(), 1, "{}", diagnostics.render());
    assert_eq!(SystemConfig::default().memory_limit_bytes(), 256 << 20);
    assert_eq!(SystemConfig::default().fsync, crate::config::FsyncPolicy::Ack);
    for line in [
        "fsync sometimes",
        "fsync interval",
        "fsync interval 0s",
        "rpc_endpoint a:1",
        "log_level loud",
        "file_permission rw",
    ] {
        assert_eq!(faults(&format!("<system>\n  {line}\n</system>\n")).len(), 1, "{line}");
    }
}

#[test]
fn strict_values_reach_every_section() {
    let (_, diagnostics) = read_text("<system>\n  strict_config_value true\n</system>\n");
    assert!(diagnostics.strict_values());
}

#[test]
fn include_folder_and_command_line() {
    let environment = FixedEnvironment::default()
        .with_file("/e/main.conf", "@include d/a.conf\n")
        .with_file("/e/d/a.conf", "<source>\n  @type a\n</source>\n")
        .with_file("/e/d/sub/b.conf", "<system>\n  workers 3\n</system>\n<source>\n  @type b\n</source>\n");
    let mut diagnostics = Diagnostics::new();
    let options = LoadOptions {
        environment: &environment,
        inline: Some("<source>\\n  @type inline\\n</source>".into()),
        include_dir: Some("/e/d".into()),
        ..LoadOptions::default()
    };
    let document = load(Path::new("/e/main.conf"), &options, &mut diagnostics).unwrap();
    let types: Vec<&str> = document.sources.iter().map(|source| source.reserved.type_name.as_str()).collect();
    assert_eq!(types, ["a", "inline", "b"]);
    assert_eq!(document.system.workers, 1);
    assert_eq!(document.files.len(), 3);
    assert!(diagnostics.warnings().next().unwrap().message.contains("has no effect"));
    let off =
        environment.clone().with_file("/e/main.conf", "<system>\n  config_include_dir \"\"\n</system>\n");
    let options =
        LoadOptions { environment: &off, include_dir: Some("/e/d".into()), ..LoadOptions::default() };
    assert_eq!(load(Path::new("/e/main.conf"), &options, &mut Diagnostics::new()).unwrap().sources.len(), 0);
}

#[test]
fn worker_id_is_noticed() {
    let environment = FixedEnvironment::default().with_file(
        "/e/main.conf",
        "<source>\n  @type a\n  port \"#{24224 + worker_id.to_i}\"\n</source>\n<source>\n  @type b\n</source>\n",
    );
    let options = LoadOptions { environment: &environment, worker_id: Some(3), ..LoadOptions::default() };
    let document = load(Path::new("/e/main.conf"), &options, &mut Diagnostics::new()).unwrap();
    assert_eq!(document.sources[0].element.text("port"), Some("24227"));
    let noticed: Vec<bool> =
        document.sources.iter().map(|source| source.element.depends_on_worker_id()).collect();
    assert_eq!(noticed, [true, false]);
}

#[test]
fn a_missing_file_is_a_fault() {
    let (document, diagnostics) = read(&FixedEnvironment::default());
    assert!(document.is_none());
    assert!(diagnostics.render().contains("/e/main.conf"), "{}", diagnostics.render());
}

#[test]
fn dump_quotes_strings_and_masks_secrets() {
    crate::params! {
        /// Test plugin.
        pub struct DumpParams {
            /// Path.
            path: String,
            /// Port.
            port: u16 = "1",
            /// Key.
            shared_key: Option<crate::config::Secret>,
        }
    }
    let text = "<source>\n  @type t\n  path \"a\\tb'c\"\n  port 5\n  shared_key k1\n  <user>\n    password k2\n    name n\n  </user>\n</source>\n";
    let document = read_text(text).0.unwrap();
    const SPEC: &crate::config::SectionSpec = &DumpParams::SPEC;
    let dumped = document.dump(&|path| (path.len() == 2).then_some(SPEC));
    let expected = "<ROOT>\n  <source>\n    @type \"t\"\n    path \"a\\tb\\'c\"\n    port 5\n    shared_key xxxxxx\n    <user>\n      password xxxxxx\n      name n\n    </user>\n  </source>\n</ROOT>\n";
    assert_eq!(dumped, expected);
    let params = DumpParams::from_element(&document.sources[0].element, &mut Diagnostics::new()).unwrap();
    assert_eq!((params.path.as_str(), params.port, params.shared_key.is_some()), ("a\tb'c", 5, true));
}
