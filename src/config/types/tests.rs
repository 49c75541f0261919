use super::*;

fn lenient<T: FromConfig>(text: &str) -> T {
    T::from_config(text, false).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn strict<T: FromConfig>(text: &str) -> Option<T> {
    T::from_config(text, true).ok()
}

#[test]
fn integers() {
    let rows = [
        ("10", 10),
        ("abc", 0),
        ("10.9", 10),
        ("0x1f", 0),
        ("1_000", 1000),
        ("010", 10),
        ("-5k", -5),
        ("", 0),
    ];
    for (text, expected) in rows {
        assert_eq!(lenient::<i64>(text), expected, "{text}");
    }
    let rows =
        [("0x1f", Some(31)), ("010", Some(8)), ("1_000", Some(1000)), ("0b11", Some(3)), ("-7", Some(-7))];
    for (text, expected) in rows {
        assert_eq!(strict::<i64>(text), expected, "{text}");
    }
    for text in ["abc", "10.9", "", "1__0", "_1", "1_", "0x", "08", "1 2"] {
        assert_eq!(strict::<i64>(text), None, "{text}");
    }
    let error = u16::from_config("70000", false).unwrap_err();
    assert_eq!(error.to_string(), "expected an integer from 0 to 65535, got \"70000\"");
    assert!(u64::from_config("-1", false).is_err());
    assert!(i64::from_config(&"9".repeat(60), false).is_err());
    assert!(i64::from_config(&format!("-{}", "9".repeat(60)), true).is_err());
    assert_eq!(lenient::<u64>("18446744073709551615"), u64::MAX);
}

#[test]
fn floats() {
    let rows = [
        ("abc", 0.0),
        ("1.5x", 1.5),
        ("-2", -2.0),
        ("1e3", 1000.0),
        ("1_0.5", 10.5),
        ("1.", 1.0),
        (".5", 0.5),
        ("1e", 1.0),
    ];
    for (text, expected) in rows {
        assert_eq!(lenient::<f64>(text), expected, "{text}");
    }
    assert_eq!(strict::<f64>("1.5"), Some(1.5));
    for text in ["abc", "1.5x", "", "1e"] {
        assert_eq!(strict::<f64>(text), None, "{text}");
    }
}

#[test]
fn sizes() {
    const MIB: u64 = 1024 * 1024;
    let rows = [
        ("10kb", 10_240),
        ("5MB", 5 * MIB),
        ("1.5m", 5 * MIB),
        ("-5k", 5_120),
        ("abc", 0),
        ("512", 512),
        ("2G", 2048 * MIB),
        ("1t", MIB * MIB),
        ("8m", 8 * MIB),
        ("1g2k", 2_048), // k is tried first
        ("é3k", 3_072),
    ];
    for (text, expected) in rows {
        assert_eq!(lenient::<SizeBytes>(text).0, expected, "{text}");
    }
    assert_eq!(strict::<SizeBytes>("abc"), None);
    assert_eq!(strict::<SizeBytes>("8m"), Some(SizeBytes(8 * MIB)));
    for text in ["-1", "99999999999t", "99999999999999999999999k"] {
        assert!(SizeBytes::from_config(text, false).is_err(), "{text}");
    }
}

#[test]
fn times() {
    let rows = [
        ("10", 10.0),
        ("10s", 10.0),
        ("0.5h", 18_000.0),
        ("1h30m", 1_800.0),
        ("100ms", 6_000.0),
        ("5M", 5.0),
        ("2w", 2.0),
        ("1d", 86_400.0),
        ("0.5", 0.5),
        ("abc", 0.0),
    ];
    for (text, expected) in rows {
        assert_eq!(lenient::<Seconds>(text).0, expected, "{text}");
    }
    assert_eq!(strict::<Seconds>("5M"), None);
    assert_eq!(strict::<Seconds>("5m"), Some(Seconds(300.0)));
    assert_eq!(Seconds(0.25).duration(), Duration::from_millis(250));
    assert_eq!(Seconds(-1.0).duration(), Duration::ZERO);
    assert_eq!(Seconds(f64::NAN).duration(), Duration::ZERO);
    assert_eq!(Seconds(1e300).duration(), Duration::MAX);
}

#[test]
fn bools() {
    for text in ["true", "yes", "", "# comment", "#"] {
        assert!(lenient::<bool>(text), "{text}");
    }
    for text in ["false", "no"] {
        assert!(!lenient::<bool>(text), "{text}");
    }
    for text in ["TRUE", "1", "on", "0"] {
        assert!(matches!(bool::from_config(text, false), Err(TypeError::Nil { .. })), "{text}");
        assert_eq!(Option::<bool>::from_config(text, false), Ok(None), "{text}");
        assert!(Option::<bool>::from_config(text, true).is_err(), "{text}");
    }
}

#[test]
fn arrays() {
    let rows: [(&str, &[&str]); 9] = [
        ("", &[]),
        ("a,,b", &["a", "", "b"]),
        (" a , b ", &["a", "b"]),
        ("a,,", &["a"]),
        (",a", &["", "a"]),
        ("a b", &["a b"]),
        ("[\"a\",1,null,{\"b\":2}]", &["a", "1", "", "{\"b\":2}"]),
        ("[]", &[]),
        ("a\t,\nb", &["a", "b"]),
    ];
    for (text, expected) in rows {
        assert_eq!(lenient::<Vec<String>>(text), expected, "{text}");
    }
    assert_eq!(lenient::<Vec<i64>>("1,2, x"), [1, 2, 0]);
    assert!(Vec::<String>::from_config("[a]", false).is_err());
    assert!(Vec::<i64>::from_config("1,x", true).is_err());
}

#[test]
fn hashes() {
    let rows: [(&str, &[(&str, &str)]); 6] = [
        ("k:v,k2:v2", &[("k", "v"), ("k2", "v2")]),
        ("d : e", &[("d ", " e")]),
        ("a", &[("a", "")]),
        ("u:http://h", &[("u", "http://h")]),
        ("{\"b\":1,\"a\":\"x\",\"b\":2}", &[("b", "2"), ("a", "x")]),
        ("", &[]),
    ];
    for (text, expected) in rows {
        let expected: Vec<(String, String)> =
            expected.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
        assert_eq!(lenient::<HashParam>(text).0, expected, "{text}");
    }
    assert!(HashParam::from_config("{a}", false).is_err());
}

#[test]
fn regexps_symbols_modes_secrets() {
    let regexp = |text| lenient::<RegexpText>(text);
    assert_eq!(regexp("a/b").pattern, "a/b");
    assert_eq!(regexp("/a\\/b/").pattern, "a\\/b");
    assert_eq!(regexp("/a").pattern, "", "Fluentd's own reading");
    assert!(regexp("/a/i").ignore_case && !regexp("/a/i").dot_matches_newline);
    assert!(regexp("/a/im").ignore_case && regexp("/a/mi").dot_matches_newline);
    let error = RegexpText::from_config("/a/imx", false).unwrap_err().to_string();
    assert_eq!(error, "invalid regexp: missing right slash: /a/imx");
    assert_eq!(lenient::<Symbol>(":a").0, "a");
    assert_eq!(lenient::<Symbol>("a").0, "a");
    assert_eq!(Option::<Symbol>::from_config("", false), Ok(None));
    assert_eq!(lenient::<OctalMode>("0644"), OctalMode(0o644));
    assert_eq!(lenient::<OctalMode>("755"), OctalMode(0o755));
    for text in ["rw", "8", "+7", "", "77777"] {
        assert!(OctalMode::from_config(text, false).is_err(), "{text}");
    }
    let secret = lenient::<Secret>("s3cret");
    assert_eq!((format!("{secret} {secret:?}"), secret.reveal()), ("xxxxxx xxxxxx".into(), "s3cret"));
    const { assert!(Option::<Secret>::SECRET && Vec::<Secret>::SECRET) };
}

proptest::proptest! {
    #[test]
    fn no_text_panics(text in "\\PC{0,24}") {
        for strict in [false, true] {
            let _ = i64::from_config(&text, strict);
            let _ = f64::from_config(&text, strict);
            let _ = SizeBytes::from_config(&text, strict);
            let _ = Seconds::from_config(&text, strict).map(Seconds::duration);
            let _ = bool::from_config(&text, strict);
            let _ = Vec::<String>::from_config(&text, strict);
            let _ = HashParam::from_config(&text, strict);
            let _ = RegexpText::from_config(&text, strict);
            let _ = OctalMode::from_config(&text, strict);
        }
    }
}

#[test]
fn values_that_are_read_in_an_unexpected_way_are_told() {
    for plain in ["10", "0.5", "10s", "5m", "1h", "72h", "1d", "1e3"] {
        assert_eq!(Seconds::surprise(plain), None, "{plain}");
    }
    for (odd, read) in
        [("100ms", "6000 s"), ("0.5h", "18000 s"), ("1h30m", "1800 s"), ("5M", "5 s"), ("2w", "2 s")]
    {
        let told = Seconds::surprise(odd).unwrap_or_default();
        assert!(told.contains(read), "{odd}: {told}");
    }
    assert_eq!(u16::surprise("24224"), None);
    assert_eq!(i64::surprise("-1"), None);
    assert!(u16::surprise("abc").unwrap_or_default().contains("read as 0"));
    for plain in ["10", "8m", "8M", "256MB", "1GiB", "10kb"] {
        assert_eq!(SizeBytes::surprise(plain), None, "{plain}");
    }
    for (odd, read) in [("1.5m", "5242880 bytes"), ("abc", "0 bytes"), ("-5k", "5120 bytes")] {
        let told = SizeBytes::surprise(odd).unwrap_or_default();
        assert!(told.contains(read), "{odd}: {told}");
    }
}
