use super::super::environment::FixedEnvironment;
use super::{Halt, Scope, evaluate, scan};

fn run(code: &str) -> Result<String, Halt> {
    let environment = FixedEnvironment { host_name: "web1.example.com".into(), ..Default::default() }
        .with_variable("FOO", "bar")
        .with_variable("N", "12")
        .with_variable("LIST", "a, b ,c")
        .with_file("/run/secret", "s3cret\n");
    let scope = Scope { environment: &environment, worker_id: "2" };
    let text = format!("{code}}} rest }}");
    let found = scan(&text)?;
    assert_eq!(found.length, code.len(), "the code's end in {text}");
    evaluate(&found, &scope)
}

#[test]
fn the_subset() {
    let rows = [
        ("ENV['FOO']", "bar"),
        ("ENV[\"NOPE\"]", ""),
        ("::ENV['FOO']", "bar"),
        ("ENV.fetch('FOO')", "bar"),
        ("ENV.fetch('NOPE', 'd')", "d"),
        ("ENV.fetch('NOPE') { 'd' }", "d"),
        ("ENV['NOPE'] || 'dflt'", "dflt"),
        ("ENV['NOPE'] or 'dflt'", "dflt"),
        ("ENV['N'].to_i * 2", "24"),
        ("ENV.key?('FOO') ? 'a' : 'b'", "a"),
        ("ENV['NOPE'].nil? ? 1 : 2", "1"),
        ("if ENV['FOO'] == 'bar' then 'y' else 'n' end", "y"),
        ("'x' unless ENV['FOO']", ""),
        ("!ENV['FOO']", "false"),
        ("hostname", "web1.example.com"),
        ("Socket.gethostname", "web1.example.com"),
        ("require 'socket'; Socket.gethostname", "web1.example.com"),
        ("`hostname`.chomp", "web1.example.com"),
        ("hostname.split('.')[0]", "web1"),
        ("hostname.split('.').first", "web1"),
        ("hostname[0..3]", "web1"),
        ("hostname[-3..-1]", "com"),
        ("hostname[0, 4]", "web1"),
        ("worker_id", "2"),
        ("worker_id.to_i + 24224", "24226"),
        ("1+2", "3"),
        ("7 / 2", "3"),
        ("-7 / 2", "-4"),
        ("-7 % 3", "2"),
        ("7 / 2.0", "3.5"),
        ("2**10", "1024"),
        ("0x10", "16"),
        ("1e20", "1.0e+20"),
        ("[1,2].join(',')", "1,2"),
        (" {a: 1}[:a] ", "1"),
        ("{'k' => 'v'}['k']", "v"),
        ("\"x #{ENV['FOO']}\"", "x bar"),
        ("\"}\"", "}"),
        ("'a' 'b'", "ab"),
        ("'a' + \"b\"", "ab"),
        ("File.read('/run/secret').strip", "s3cret"),
        ("File.open('/run/secret').read.chomp", "s3cret"),
        ("IO.read('/run/secret').strip", "s3cret"),
        ("File.read('/nope') rescue 'none'", "none"),
        ("ENV['LIST'].split(',').map(&:strip).join('|')", "a|b|c"),
        ("ENV['NOPE'].to_s", ""),
        ("ENV['NOPE']&.strip", ""),
        ("ENV['FOO'].upcase", "BAR"),
        ("[\"a\", nil]", "[\"a\", nil]"),
        ("nil", ""),
        ("", ""),
    ];
    for (code, expected) in rows {
        assert_eq!(run(code).as_deref(), Ok(expected), "{code}");
    }
}

#[test]
fn nil_default_and_errors() {
    assert_eq!(run("ENV['NOPE'] || use_nil"), Err(Halt::UseNil));
    assert_eq!(run("use_default"), Err(Halt::UseDefault));
    assert_eq!(run("raise 'boom'"), Err(Halt::Raised("RuntimeError boom".into())));
    assert_eq!(run("ENV.fetch('NOPE')"), Err(Halt::Raised("KeyError key not found: \"NOPE\"".into())));
    assert!(
        matches!(run("ENV['NOPE'].split(',')"), Err(Halt::Raised(text)) if text.starts_with("NoMethodError"))
    );
    assert!(matches!(run("1 / 0"), Err(Halt::Raised(text)) if text.starts_with("ZeroDivisionError")));
    assert!(
        matches!(run("File.read('/nope')"), Err(Halt::Raised(text)) if text.starts_with("Errno::ENOENT"))
    );
}

#[test]
fn the_rest_is_refused_by_name() {
    let rows = [
        ("Time.now.to_i", "Time.now"),
        ("`rm -rf /`", "`rm -rf /`"),
        ("system('id')", "system('id')"),
        ("require 'open-uri'", "require 'open-uri'"),
        ("ENV['LIST'].split(',').map { |x| x.strip }", "ENV['LIST'].split(',').map { |x| x.strip }"),
        ("x = 1", "x = 1"),
        ("\"a\" * 1_000_000_000", "\"a\" * 1_000_000_000"),
        ("9_000_000_000_000_000_000 * 9", "9_000_000_000_000_000_000 * 9"),
    ];
    for (code, expression) in rows {
        match run(code) {
            Err(Halt::Refused { expression: got, .. }) => assert_eq!(got, expression),
            other => panic!("{code}: {other:?}"),
        }
    }
}

#[test]
fn code_without_end() {
    for text in ["ENV['x'", "", "'a", "1 +}", "} {{{"] {
        let result = scan(text);
        assert!(result.is_err() || text.starts_with('}'), "{text}: {result:?}");
    }
    let deep = format!("{}1{}}}", "(".repeat(500), ")".repeat(500));
    let environment = FixedEnvironment::default();
    let scope = Scope { environment: &environment, worker_id: "" };
    match scan(&deep) {
        Ok(code) => assert!(matches!(evaluate(&code, &scope), Err(Halt::Refused { .. }))),
        Err(halt) => assert_eq!(halt, Halt::NoEnd),
    }
}
