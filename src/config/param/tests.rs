use super::super::{Diagnostics, Element, FreeForm, Seconds, Secret, Severity, SizeBytes};

crate::config_enum! {
    /// Example enum.
    pub enum Mode {
        /// One.
        Fast = "fast",
        /// Two.
        Slow = "slow" | "lazy",
    }
}

crate::params! {
    /// User and password.
    pub struct UserParams {
        /// Name.
        username: String,
        /// Password.
        password: Secret,
    }
}

crate::params! {
    /// Security section.
    pub struct SecurityParams {
        /// Own host name.
        self_hostname: String,
        /// Key.
        shared_key: Option<Secret>,
        /// Users.
        #[section] user: Vec<UserParams>,
    }
}

crate::params! {
    /// Defaults only.
    pub struct LimitParams {
        /// A size.
        size: SizeBytes = "8m",
    }
}

crate::params! {
    /// An input
    /// with two doc lines.
    pub struct ExampleParams {
        /// Port for TCP and UDP.
        port: u16 = "24224",
        /// Tag.
        tag: Option<String>,
        /// Path.
        path: String,
        /// Wait.
        flush_interval: Seconds = "60s",
        /// Switch.
        compress: bool = "false",
        /// Mode.
        mode: Mode = "fast",
        /// Keyword.
        r#type: Option<String>,
        /// Odd name.
        #[key("odd-name")] odd: Option<i64>,
        /// Security.
        #[section] security: Option<SecurityParams>,
        /// Records.
        #[section] record: Vec<FreeForm>,
        /// Limits.
        #[section(init)] #[key("limits")] limit: LimitParams,
    }
    argument keys: Vec<String> = "";
    alias { old_port => port, "older-port" => port }
    unbuilt { "phi_threshold", "verify" unless "false" | "no", "<transport>" }
    inert { "linger_timeout" => "sockets are never reset here" }
    removed { "host" => "use <server> host" }
    deprecated { "compress" => "it is always on" }
    foreign { "buffer", "<format>" }
    foreign_parameters { "flush_mode" }
}

fn read(element: &Element) -> (Option<ExampleParams>, Diagnostics) {
    let mut diagnostics = Diagnostics::new();
    let params = ExampleParams::from_element(element, &mut diagnostics);
    (params, diagnostics)
}

fn messages(diagnostics: &Diagnostics, severity: Severity) -> Vec<String> {
    diagnostics.iter().filter(|item| item.severity == severity).map(|item| item.one_line()).collect()
}

#[test]
fn defaults_nil_alias_argument_and_sections() {
    let user = Element::new("user", "").with_param("username", "u").with_param("password", "p");
    let security = Element::new("security", "").with_param("self_hostname", "me").with_child(user);
    let record = Element::new("record", "").with_param("b", "1").with_param("a", "2");
    let element = Element::new("source", "tag, time")
        .with_param("@type", "example")
        .with_param("path", "/x")
        .with_param("old_port", "99")
        .with_param("odd-name", "-5")
        .with_child(security)
        .with_child(record)
        .with_child(Element::new("buffer", ""))
        .with_child(Element::new("format", ""))
        .with_param("flush_mode", "x");
    let (params, diagnostics) = read(&element);
    assert!(diagnostics.is_empty(), "{}", diagnostics.render());
    let params = params.unwrap();
    assert_eq!((params.port, params.path.as_str(), params.tag), (99, "/x", None));
    assert_eq!(params.flush_interval.duration().as_secs(), 60);
    assert_eq!((params.compress, params.mode, params.odd), (false, Mode::Fast, Some(-5)));
    assert_eq!(params.keys, ["tag", "time"]);
    assert_eq!(params.limit.size, SizeBytes(8 * 1024 * 1024));
    assert_eq!(params.record[0].entries, [("b".into(), "1".into()), ("a".into(), "2".into())]);
    assert_eq!((params.r#type, params.span.line), (None, 0));
    let security = params.security.unwrap();
    assert_eq!((security.self_hostname.as_str(), security.user[0].username.as_str()), ("me", "u"));
    assert!(security.shared_key.is_none());
    assert_eq!(security.user[0].password.reveal(), "p");
    assert_eq!(format!("{:?}", security.user[0].password), "xxxxxx");
    assert!(element.unused_params().any(|param| param.key == "flush_mode"), "the other room marks it");
}

#[test]
fn every_fault_at_once() {
    let security =
        Element::new("security", "").with_child(Element::new("user", "").with_param("username", "u"));
    let element = Element::new("source", "")
        .with_param("port", "70000")
        .with_param("mode", "medium")
        .with_param("phi_threshold", "16")
        .with_param("verify", "true")
        .with_param("host", "h")
        .with_child(security)
        .with_child(Element::new("limits", ""))
        .with_child(Element::new("limits", ""))
        .with_child(Element::new("transport", "tls"));
    let (params, diagnostics) = read(&element);
    assert!(params.is_none());
    assert_eq!(
        messages(&diagnostics, Severity::Fault),
        [
            "(made): 'port' parameter: expected an integer from 0 to 65535, got \"70000\"",
            "(made): 'path' parameter is required",
            "(made): 'mode' parameter: valid options are fast,slow but got medium",
            "(made): 'self_hostname' parameter is required, in section security",
            "(made): 'password' parameter is required, in section security > user",
            "(made): '<limits>' section cannot be written twice or more",
            "(made): 'phi_threshold' parameter is known to Fluentd but not built yet (remove it to start without what it asks for)",
            "(made): 'verify' parameter is known to Fluentd but not built yet (only false, no is accepted so far)",
            "(made): 'host' parameter is already removed: use <server> host",
            "(made): section <transport> is known to Fluentd but not built yet (remove it to start without what it asks for)",
        ]
    );
}

#[test]
fn warnings_name_the_nearest_parameter() {
    let element = Element::new("source", "")
        .with_param("@type", "example")
        .with_param("path", "/x")
        .with_param("prot", "1")
        .with_param("verify", "no")
        .with_param("linger_timeout", "1")
        .with_param("compress", "yes")
        .with_param("zzz", "1")
        .with_child(Element::new("secrity", ""));
    let (params, diagnostics) = read(&element);
    assert!(params.unwrap().compress);
    assert_eq!(
        messages(&diagnostics, Severity::Warning),
        [
            "(made): parameter 'prot' in <source> is not used. (did you mean 'port'?)",
            "(made): 'linger_timeout' parameter has no effect: sockets are never reset here",
            "(made): 'compress' parameter is deprecated: it is always on",
            "(made): parameter 'zzz' in <source> is not used.",
            "(made): section <secrity> is not used in <source> of example plugin (did you mean 'security'?)",
        ]
    );
}

#[test]
fn the_spec_describes_the_section_and_its_defaults_parse() {
    const SPEC: &super::SectionSpec = &ExampleParams::SPEC;
    for param in SPEC.params() {
        assert!(!param.doc.is_empty());
        if let Some(text) = param.default {
            (param.check)(text).unwrap();
        }
    }
    assert!(SPEC.param("path").unwrap().required);
    assert_eq!(SPEC.param("older-port").unwrap().name, "port");
    assert_eq!(SPEC.param("type").unwrap().field, "type");
    let security = SPEC.section("security").unwrap();
    assert!(!security.required && !security.multi);
    assert!(security.spec.param("shared_key").unwrap().secret);
    let text = SPEC.markdown("in_example");
    assert!(text.contains("An input with two doc lines."), "{text}");
    assert!(text.contains("| `port` | integer | `24224` | Port for TCP and UDP. |"), "{text}");
    assert!(text.contains("| `mode` | enum: fast, slow | `fast` | Mode. |"), "{text}");
    assert!(text.contains("| `path` | string | required | Path. |"), "{text}");
    assert!(text.contains("### in_example > `<security>`"), "{text}");
}
