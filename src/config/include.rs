//! What `@include` names: paths, globs, what is refused.

use std::path::{Component, Path, PathBuf};

use super::element::Source;
use super::environment::Environment;

/// Files included by files included by files: nobody writes more, and a mistake ends.
pub(crate) const MAX_DEPTH: usize = 16;
/// Files of one configuration.
pub(crate) const MAX_FILES: usize = 2_000;
/// Folders below each other that `**` walks.
const MAX_WALK_DEPTH: usize = 16;
/// Names that one glob looks at.
const MAX_NAMES_SEEN: usize = 100_000;
/// Alternatives that the braces of one location make.
const MAX_ALTERNATIVES: usize = 256;
/// Endings by which Fluentd 1.19 takes a `*.conf` for a forgotten copy: `x.bak.conf`, `x_old.conf`.
const BACKUP_WORDS: [&str; 9] = ["bak", "old", "backup", "orig", "prev", "conf", "tmp", "temp", "debug"];

/// True if the location may name several files.
pub(crate) fn is_pattern(location: &str) -> bool {
    location.contains(['*', '?', '[', '{'])
}

/// True for `name.bak.conf`, `name_old.conf` and the like.
pub(crate) fn looks_like_backup(path: &Path) -> bool {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let stem = name.strip_suffix(".conf").unwrap_or("");
    BACKUP_WORDS.iter().chain(&["wip"]).any(|word| {
        stem.strip_suffix(word).is_some_and(|rest| rest.len() > 1 && rest.ends_with(['.', '_', '-']))
    })
}

/// The files that a location names, sorted by path; none is not an error.
pub(crate) fn find(
    environment: &dyn Environment,
    location: &str,
    folder: &Path,
) -> Result<Vec<PathBuf>, String> {
    let path = match location.split_once("://") {
        Some(("file", path)) => path,
        Some((scheme @ ("http" | "https" | "ftp"), _)) => {
            return Err(format!("{scheme} addresses are not supported: fetch the file beforehand"));
        }
        _ => location.strip_prefix("file:").unwrap_or(location),
    };
    if path.is_empty() {
        return Err("no location".into());
    }
    let mut found = Vec::new();
    for alternative in alternatives(path)? {
        let full = normalised(&folder.join(alternative));
        if !is_pattern(&full.to_string_lossy()) {
            if is_file(environment, &full) {
                found.push(full);
            }
            continue;
        }
        let mut walk = Walk { environment, seen: 0, found: &mut found };
        let components: Vec<Component<'_>> = full.components().collect();
        walk.step(PathBuf::new(), &components, 0)?;
    }
    found.sort();
    found.dedup();
    Ok(found)
}

/// The file as a source: UTF-8, no YAML, no Ruby.
pub(crate) fn read(environment: &dyn Environment, path: &Path) -> Result<Source, String> {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("yaml" | "yml") => return Err(format!("{}: YAML is not built yet", path.display())),
        Some("rb") => return Err(format!("{}: the Ruby DSL is not supported", path.display())),
        _ => {}
    }
    let content = environment.read_file(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let name = path.display().to_string();
    match String::from_utf8(content) {
        Ok(text) => Ok(Source { name, text }),
        Err(error) => {
            let valid = error.utf8_error().valid_up_to();
            let line = error.as_bytes().iter().take(valid).filter(|byte| **byte == b'\n').count() + 1;
            Err(format!("{name}:{line}: the file is not UTF-8"))
        }
    }
}

fn is_file(environment: &dyn Environment, path: &Path) -> bool {
    // anything that can be opened counts, so that a file without permission is an error and not silence
    match environment.read_file(path) {
        Ok(_) => true,
        Err(error) => {
            !matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory)
        }
    }
}

/// `a/./b/../c` as `a/c`; what the names mean on disk (links) is not looked at.
pub(crate) fn normalised(path: &Path) -> PathBuf {
    let mut result = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir if matches!(result.components().next_back(), Some(Component::Normal(_))) => {
                result.pop();
            }
            other => result.push(other),
        }
    }
    result
}

/// `a{b,c}d` as `abd`, `acd`; an unclosed brace stands for itself.
fn alternatives(text: &str) -> Result<Vec<String>, String> {
    let mut done = Vec::new();
    let mut waiting = vec![text.to_owned()];
    while let Some(text) = waiting.pop() {
        if done.len() + waiting.len() >= MAX_ALTERNATIVES {
            return Err(format!("more than {MAX_ALTERNATIVES} alternatives in braces"));
        }
        // the innermost pair: the first closing brace and the last opening one before it
        let pair = text.find('}').and_then(|end| {
            let start = text.get(..end)?.rfind('{')?;
            Some((text.get(..start)?, text.get(start + 1..end)?, text.get(end + 1..)?))
        });
        match pair {
            Some((before, inside, after)) => {
                waiting.extend(inside.split(',').rev().map(|choice| format!("{before}{choice}{after}")));
            }
            None => done.push(text),
        }
    }
    Ok(done)
}

struct Walk<'a> {
    environment: &'a dyn Environment,
    seen: usize,
    found: &'a mut Vec<PathBuf>,
}

impl Walk<'_> {
    fn step(&mut self, base: PathBuf, components: &[Component<'_>], depth: usize) -> Result<(), String> {
        let Some((first, rest)) = components.split_first() else {
            if is_file(self.environment, &base) {
                self.found.push(base);
            }
            return Ok(());
        };
        let name = first.as_os_str().to_string_lossy();
        if name == "**" && !rest.is_empty() {
            self.step(base.clone(), rest, depth)?;
            if depth < MAX_WALK_DEPTH {
                for entry in self.entries(&base)? {
                    if entry.is_directory && !entry.name.starts_with('.') {
                        self.step(base.join(entry.name), components, depth + 1)?;
                    }
                }
            }
            return Ok(());
        }
        if !is_pattern(&name) {
            return self.step(base.join(first), rest, depth);
        }
        for entry in self.entries(&base)? {
            let hidden = entry.name.starts_with('.') && !name.starts_with('.');
            let fits = !hidden && name_matches(&name, &entry.name);
            if fits && !(rest.is_empty() && entry.is_directory) {
                self.step(base.join(entry.name), rest, depth)?;
            }
        }
        Ok(())
    }

    fn entries(&mut self, folder: &Path) -> Result<Vec<super::environment::DirectoryEntry>, String> {
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        // a folder that is not there, or not ours to read, holds no match
        let entries = self.environment.list_directory(folder).unwrap_or_default();
        self.seen += entries.len();
        if self.seen > MAX_NAMES_SEEN {
            return Err(format!("the pattern looks at more than {MAX_NAMES_SEEN} names"));
        }
        Ok(entries)
    }
}

/// Whether a name fits a pattern of `*`, `?` and `[…]`.
fn name_matches(pattern: &str, name: &str) -> bool {
    let pattern: Vec<char> = pattern.chars().collect();
    let name: Vec<char> = name.chars().collect();
    // the classic two-pointer walk: on a mismatch the last star takes one more character
    let (mut p, mut n) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while let Some(c) = name.get(n) {
        let step = match pattern.get(p) {
            Some('*') => {
                star = Some((p, n));
                p += 1;
                continue;
            }
            Some('?') => Some(p + 1),
            Some('[') => class_matches(&pattern, p, *c),
            Some(literal) if literal == c => Some(p + 1),
            _ => None,
        };
        match (step, star) {
            (Some(next), _) => (p, n) = (next, n + 1),
            (None, Some((star_at, from))) => {
                star = Some((star_at, from + 1));
                (p, n) = (star_at + 1, from + 1);
            }
            (None, None) => return false,
        }
    }
    pattern.iter().skip(p).all(|c| *c == '*')
}

/// Whether `[…]` at `start` takes the character; the place behind it if so.
fn class_matches(pattern: &[char], start: usize, c: char) -> Option<usize> {
    let end = (start + 2..pattern.len()).find(|at| pattern.get(*at) == Some(&']'))?;
    let class = pattern.get(start + 1..end)?;
    let (negated, class) = match class.split_first() {
        Some(('!' | '^', rest)) => (true, rest),
        _ => (false, class),
    };
    let mut inside = false;
    let mut at = 0;
    while let Some(low) = class.get(at) {
        match (class.get(at + 1), class.get(at + 2)) {
            (Some('-'), Some(high)) => {
                inside |= (*low..=*high).contains(&c);
                at += 3;
            }
            _ => {
                inside |= *low == c;
                at += 1;
            }
        }
    }
    (inside != negated).then_some(end + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::FixedEnvironment;

    #[test]
    fn globs() {
        let environment =
            ["/e/a.conf", "/e/b.conf", "/e/.h.conf", "/e/d/c.conf", "/e/d/e/f.conf", "/e/x.txt"]
                .iter()
                .fold(FixedEnvironment::default(), |environment, path| environment.with_file(*path, ""));
        let rows: [(&str, &[&str]); 9] = [
            ("*.conf", &["/e/a.conf", "/e/b.conf"]),
            ("**/*.conf", &["/e/a.conf", "/e/b.conf", "/e/d/c.conf", "/e/d/e/f.conf"]),
            ("?.conf", &["/e/a.conf", "/e/b.conf"]),
            ("[b-z].conf", &["/e/b.conf"]),
            ("[!b].conf", &["/e/a.conf"]),
            ("{a,d/c}.conf", &["/e/a.conf", "/e/d/c.conf"]),
            ("nofile.conf", &[]),
            ("file:///e/./d/../a.conf", &["/e/a.conf"]),
            ("d/*/f.conf", &["/e/d/e/f.conf"]),
        ];
        for (location, expected) in rows {
            let found = find(&environment, location, Path::new("/e")).unwrap();
            let expected: Vec<PathBuf> = expected.iter().map(PathBuf::from).collect();
            assert_eq!(found, expected, "{location}");
        }
        for location in ["http://h/x", "https://h/x", "ftp://h/x", ""] {
            assert!(find(&environment, location, Path::new("/e")).is_err(), "{location}");
        }
    }

    #[test]
    fn names() {
        let rows = [
            ("*", "", true),
            ("a*b*c", "aXbYbZc", true),
            ("a*b*c", "aXbYbZ", false),
            ("[]", "x", false),
            ("[a", "a", false),
            ("a?", "aé", true),
        ];
        for (pattern, name, expected) in rows {
            assert_eq!(name_matches(pattern, name), expected, "{pattern} {name}");
        }
        assert!(looks_like_backup(Path::new("/x/a.bak.conf")));
        assert!(looks_like_backup(Path::new("/x/a_old.conf")));
        assert!(!looks_like_backup(Path::new("/x/bold.conf")));
    }
}
