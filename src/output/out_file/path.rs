//! From the parameter `path` to the name of a file: time slice, index mark, suffix. Pure.

use std::fmt;

/// What stands where the index goes in the text form of a template (Fluentd's mark).
const INDEX_MARK: &str = "_**";

/// Why a path cannot name files.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// `*` is the place of the time slice.
    #[error("path includes * but chunk key 'time' is not configured")]
    StarWithoutTime,
    /// Some but not all codes.
    #[error(
        "path has some but not all of the time codes that its timekey needs: expected {0}, or none of them"
    )]
    TooFewCodes(String),
}

/// A file name with its index cut out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathTemplate {
    /// What stands before the index, with placeholders.
    pub before: String,
    /// Whether there is an index.
    pub indexed: bool,
    /// What follows it.
    pub after: String,
}

impl PathTemplate {
    /// Builds the template. `slice_format` is the strftime format of a time slice, when `time` is a chunk key.
    pub fn new(
        path: &str,
        slice_format: Option<&str>,
        append: bool,
        suffix: &str,
    ) -> Result<Self, PathError> {
        let indexed = !append;
        if let Some((before, after)) = path.split_once('*') {
            let format = slice_format.ok_or(PathError::StarWithoutTime)?;
            return Ok(Self { before: format!("{before}{format}"), indexed, after: after.to_owned() });
        }
        let time = match slice_format {
            None => String::new(),
            Some(format) => match covered(path, format) {
                Coverage::All => String::new(),
                Coverage::Some => return Err(PathError::TooFewCodes(format.to_owned())),
                Coverage::None => format!(".{format}"),
            },
        };
        Ok(Self { before: format!("{path}{time}"), indexed, after: suffix.to_owned() })
    }
}

impl fmt::Display for PathTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}{}", self.before, if self.indexed { INDEX_MARK } else { "" }, self.after)
    }
}

enum Coverage {
    All,
    Some,
    None,
}

/// How many of the two-character codes of a format a path holds.
fn covered(path: &str, format: &str) -> Coverage {
    let codes: Vec<&str> = format.match_indices('%').filter_map(|(at, _)| format.get(at..at + 2)).collect();
    let held = codes.iter().filter(|code| path.contains(**code)).count();
    match held {
        0 => Coverage::None,
        _ if held == codes.len() => Coverage::All,
        _ => Coverage::Some,
    }
}

/// The format of time slices of this length; empty without slices.
pub fn timekey_format(timekey_seconds: Option<i64>) -> &'static str {
    match timekey_seconds {
        None => "",
        Some(..60) => "%Y%m%d%H%M%S",
        Some(..3_600) => "%Y%m%d%H%M",
        Some(..86_400) => "%Y%m%d%H",
        Some(_) => "%Y%m%d",
    }
}
