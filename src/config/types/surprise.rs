//! Values that Fluentd reads in a way that is hardly meant: same value here, and a warning that says which.

use super::{FromConfig, Seconds, SizeBytes};

/// A whole number with anything behind it.
pub(super) fn integer(text: &str) -> Option<String> {
    let digits = text.trim().trim_start_matches(['-', '+']);
    if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    Some(format!("is read as {}: write a whole number", super::integer(text, false).ok()?))
}

/// `1.5m` is 5 MiB; `8MB` and `8MiB` are what they look like.
pub(super) fn size(text: &str) -> Option<String> {
    let rest = text.trim().trim_start_matches(|c: char| c.is_ascii_digit()).to_ascii_lowercase();
    let plain = matches!(rest.as_str(), "" | "k" | "m" | "g" | "t" | "kb" | "mb" | "gb" | "tb");
    if plain || rest.ends_with("ib") {
        return None;
    }
    let read = SizeBytes::from_config(text, false).ok()?;
    Some(format!("is read as {} bytes: write whole numbers with k, m, g or t", read.0))
}

/// `100ms` is 6000 s.
pub(super) fn time(text: &str) -> Option<String> {
    let number = text.trim().trim_end_matches(['s', 'm', 'h', 'd']);
    let whole_units =
        text.trim().len() - number.len() == 1 && number.bytes().all(|byte| byte.is_ascii_digit());
    if whole_units || text.trim().parse::<f64>().is_ok() {
        return None;
    }
    let read = Seconds::from_config(text, false).ok()?.0;
    Some(format!("is read as {read} s: write whole numbers with s, m, h or d, or a plain number of seconds"))
}
