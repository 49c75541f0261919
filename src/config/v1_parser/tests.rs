use std::path::PathBuf;

use serde_json::{Map, Value, json};

use super::super::{Diagnostics, Element, FixedEnvironment, ParamValue, parse_text, parse_text_in};

fn vectors() -> String {
    let own = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("testdata/vectors/config.jsonl");
    let given = std::env::var_os("VECTORS_DIR").map(|folder| PathBuf::from(folder).join("config.jsonl"));
    let path = given.filter(|path| path.exists()).unwrap_or(own);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn params_json(element: &Element) -> Value {
    let mut object = Map::new();
    for param in &element.params {
        let value = match &param.value {
            ParamValue::Text { text, .. } => json!(text),
            ParamValue::Nil => Value::Null,
            ParamValue::UseDefault => json!({"$use_default": true}),
            ParamValue::Invalid => json!({"$invalid": true}),
        };
        object.insert(param.key.clone(), value);
    }
    Value::Object(object)
}

fn run(row: &Value) -> Result<(), String> {
    let mut environment = FixedEnvironment { host_name: "host".into(), ..Default::default() };
    for (name, value) in row["env"].as_object().into_iter().flatten() {
        environment = environment.with_variable(name, value.as_str().unwrap_or(""));
    }
    for (path, content) in row["files"].as_object().into_iter().flatten() {
        environment = environment.with_file(path, content.as_str().unwrap_or(""));
    }
    let mut diagnostics = Diagnostics::new();
    let root = parse_text_in(row["input"].as_str().ok_or("no input")?, &environment, &mut diagnostics);
    if let Some(expected) = row["expect"]["config_error"].as_str() {
        let found = diagnostics.faults().any(|fault| fault.message.contains(expected));
        return if found {
            Ok(())
        } else {
            Err(format!("no fault {expected:?} in:\n{}", diagnostics.render()))
        };
    }
    if diagnostics.has_faults() {
        return Err(diagnostics.render());
    }
    if let Some(expected) = row["expect"]["warning"].as_str()
        && !diagnostics.warnings().any(|warning| warning.message.contains(expected))
    {
        return Err(format!("no warning {expected:?}"));
    }
    let sections: Vec<Value> = root
        .children
        .iter()
        .map(|child| json!({"name": child.name, "argument": child.argument, "params": params_json(child)}))
        .collect();
    let got = json!({"params": params_json(&root), "sections": sections});
    let none = json!([]);
    let sections = row["expect"].get("sections").unwrap_or(&none);
    let expected = json!({"params": row["expect"]["params"], "sections": sections});
    if got == expected { Ok(()) } else { Err(format!("got {got}\nexpected {expected}")) }
}

#[test]
fn every_vector_of_the_language() {
    let text = vectors();
    let mut failed = Vec::new();
    let mut count = 0;
    for (index, line) in text.lines().enumerate() {
        let row: Value = serde_json::from_str(line).unwrap();
        count += 1;
        if let Err(reason) = run(&row) {
            failed.push(format!("row {}: {}\n{reason}", index + 1, row["input"]));
        }
    }
    println!("{count} configuration vectors");
    assert!(count >= 66, "only {count} rows");
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// Each fault as `LINE:COLUMN message`.
fn faults(text: &str) -> Vec<String> {
    let mut diagnostics = Diagnostics::new();
    parse_text(text, &mut diagnostics);
    diagnostics
        .faults()
        .map(|fault| {
            let span = fault.span.as_ref().unwrap();
            format!("{}:{} {}", span.line, span.column, fault.message)
        })
        .collect()
}

#[test]
fn reading_goes_on_after_a_fault() {
    let text = "a \"x\\y\"\nb 1\nc [1\n<source>\n  d \"open\n  e \"closed\"\n  f 'x\n</source>\n<match>\n  <store>\n</match>\n\
        g \"#{Time.now}\"\nh \"#{ENV['}\"\n</x>\n<y>\n";
    assert_eq!(
        faults(text),
        [
            "1:5 unexpected back-slash escape character 'y'",
            "3:3 got incomplete JSON array configuration",
            "6:6 expected end of line",
            "7:5 unexpected end of file in a single quoted string",
            "11:1 unmatched end tag",
            "12:4 embedded code is not supported: Time.now: Time.now is not supported",
            "13:4 embedded code is not valid Ruby",
            "14:1 unmatched end tag",
            "15:1 expected end tag '</y>' but got end of file",
        ]
    );
}

#[test]
fn a_fault_shows_its_line() {
    let mut diagnostics = Diagnostics::new();
    parse_text("ok 1\n\tkey \"v\" tail\npassword \"hunter2\" x\n", &mut diagnostics);
    let text = diagnostics.render();
    let expected = "(text):2: error: expected end of line\n 2 | \tkey \"v\" tail\n   | \t        ^\n   got: 't'\n   \
        only a comment may follow a quoted or JSON value\n";
    assert!(text.starts_with(expected), "{text}");
    assert!(text.contains(" 3 | password xxxxxx\n") && !text.contains("hunter2"), "{text}");
}

#[test]
fn line_ends_and_marks_of_windows() {
    let mut diagnostics = Diagnostics::new();
    let root = parse_text(
        "\u{feff}<source>\r\n  k v\r\n  q \"a\r\nb\" # c\r\n</source>\r\nk\rj 2\r\n",
        &mut diagnostics,
    );
    assert!(diagnostics.is_empty(), "{}", diagnostics.render());
    assert_eq!(root.children[0].text("k"), Some("v"));
    assert_eq!(root.children[0].text("q"), Some("a\nb"));
    assert_eq!(root.text("k"), Some("j 2"));
}

#[test]
fn includes_end() {
    let environment = FixedEnvironment::default()
        .with_file("a.conf", "x 1\n@include b.conf\n")
        .with_file("b.conf", "@include ./a.conf\n")
        .with_file("bad.conf", vec![b'\n', 0xff])
        .with_file("x.yaml", "a: b")
        .with_file("bak/a.bak.conf", "");
    let mut diagnostics = Diagnostics::new();
    let text = "@include a.conf\n@include bad.conf\n@include http://h/x\n@include x.yaml\n@include bak/*.conf\n@include none\n@include\n";
    parse_text_in(text, &environment, &mut diagnostics);
    let messages: Vec<String> = diagnostics.iter().map(|item| item.one_line()).collect();
    assert_eq!(
        messages,
        [
            "b.conf:1: include error ./a.conf - a.conf includes itself",
            "(text):2: include error bad.conf - bad.conf:2: the file is not UTF-8",
            "(text):3: include error http://h/x - http addresses are not supported: fetch the file beforehand",
            "(text):4: include error x.yaml - x.yaml: YAML is not built yet",
            "(text):5: bak/a.bak.conf looks like a backup of another included file",
            "(text):6: include none names no file (Fluentd says nothing here and goes on without it)",
            "(text):7: include error  - no location",
        ]
    );
}

#[test]
fn limits() {
    let deep = "<a>\n".repeat(40);
    assert!(faults(&deep).iter().any(|fault| fault.contains("nested deeper")));
    let broken = "k \"a\" b\n".repeat(500);
    assert!(faults(&broken).len() <= 101);
    let open = "k [\n".repeat(100_000);
    assert_eq!(faults(&open).last().unwrap(), "101:1 too many faults, the rest of the file is not read");
}
