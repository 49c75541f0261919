//! Names of a buffer's files. Every name begins with the buffer's prefix, so that several buffers may share a directory.

use std::path::{Path, PathBuf};

use super::{ChunkId, format};

/// Prefix when `path` is a directory (as Fluentd's).
const DEFAULT_PREFIX: &str = "buffer";
/// Suffix of journals.
pub(super) const JOURNAL_SUFFIX: &str = "tjournal";

/// Which state a chunk file's name tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum State {
    /// `b`: it collects.
    Staged,
    /// `q`: it is complete.
    Queued,
}

/// What a file name in the buffer's directory says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Name {
    /// A chunk.
    Chunk(State, ChunkId),
    /// A journal with its number.
    Journal(u64),
    /// Lock file or one of our directories.
    Ours,
    /// A chunk or meta file of Fluentd.
    Fluentd,
    /// Belongs to a buffer with another prefix.
    OtherPrefix,
    /// None of these.
    Unknown,
}

/// Where a buffer's files are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Places {
    pub(super) directory: PathBuf,
    pub(super) prefix: String,
    /// `path` named a directory: all files in it are the buffer's business.
    whole_directory: bool,
}

impl Places {
    /// Reads `path` as Fluentd does: `DIRECTORY/PREFIX.*.SUFFIX` or `DIRECTORY/PREFIX.*` share
    /// the directory with others; everything else is a directory of its own, unless a plain file stands there.
    pub(super) fn new(path: &Path, is_file: bool) -> Self {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let prefix = match name.split_once(".*") {
            Some((prefix, _)) => prefix.to_owned(),
            None if is_file => name,
            None => {
                let prefix = DEFAULT_PREFIX.to_owned();
                return Self { directory: path.to_path_buf(), prefix, whole_directory: true };
            }
        };
        let directory = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent.to_path_buf(),
            _ => PathBuf::from("."),
        };
        Self { directory, prefix, whole_directory: false }
    }

    /// The file of a chunk in a state.
    pub(super) fn chunk(&self, state: State, id: ChunkId) -> PathBuf {
        let letter = if state == State::Staged { 'b' } else { 'q' };
        self.directory.join(format!("{}.{letter}{id}.{}", self.prefix, format::SUFFIX))
    }

    /// A journal.
    pub(super) fn journal(&self, number: u64) -> PathBuf {
        self.directory.join(format!("{}.{number:016x}.{JOURNAL_SUFFIX}", self.prefix))
    }

    /// The lock file.
    pub(super) fn lock(&self) -> PathBuf {
        self.directory.join(format!("{}.tlock", self.prefix))
    }

    /// Side files: what could not be read.
    pub(super) fn damaged(&self) -> PathBuf {
        self.directory.join(format!("{}.damaged", self.prefix))
    }

    /// Chunks that could not be delivered, unless another directory is set.
    pub(super) fn backup(&self) -> PathBuf {
        self.directory.join(format!("{}.backup", self.prefix))
    }

    /// Directory and prefix, for messages.
    pub(super) fn shown(&self) -> String {
        if self.whole_directory {
            self.directory.display().to_string()
        } else {
            format!("{}/{}.*", self.directory.display(), self.prefix)
        }
    }

    /// What a name in the directory says.
    pub(super) fn read_name(&self, name: &str) -> Name {
        let Some(rest) = name.strip_prefix(self.prefix.as_str()).and_then(|rest| rest.strip_prefix('.'))
        else {
            return match self.whole_directory {
                true if is_fluentd_single(name) => Name::Fluentd,
                true => Name::Unknown,
                false => Name::OtherPrefix,
            };
        };
        if matches!(rest, "tlock" | "damaged" | "backup") {
            return Name::Ours;
        }
        match rest.split_once('.') {
            Some((stem, format::SUFFIX)) => {
                let state = match stem.as_bytes().first() {
                    Some(b'b') => State::Staged,
                    Some(b'q') => State::Queued,
                    _ => return Name::Unknown,
                };
                stem.get(1..).and_then(ChunkId::parse).map_or(Name::Unknown, |id| Name::Chunk(state, id))
            }
            Some((number, JOURNAL_SUFFIX)) if number.len() == 16 => {
                u64::from_str_radix(number, 16).map_or(Name::Unknown, Name::Journal)
            }
            Some((stem, _)) if is_fluentd_stem(stem) => Name::Fluentd,
            _ if is_fluentd_single(name) => Name::Fluentd,
            _ => Name::Unknown,
        }
    }
}

/// `b` or `q` and an even number of hexadecimal digits.
fn is_fluentd_stem(stem: &str) -> bool {
    let digits = stem.strip_prefix(['b', 'q']).unwrap_or_default();
    !digits.is_empty()
        && digits.len().is_multiple_of(2)
        && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// `fsb.KEY.<b|q><hex>.buf` (buf_file_single).
fn is_fluentd_single(name: &str) -> bool {
    let middle = name.strip_prefix("fsb.").and_then(|rest| rest.strip_suffix(".buf"));
    middle.and_then(|middle| middle.rsplit_once('.')).is_some_and(|(_, stem)| is_fluentd_stem(stem))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_as_fluentd_reads_them() {
        let places = |path: &str, is_file| {
            let places = Places::new(Path::new(path), is_file);
            (places.directory.display().to_string(), places.prefix)
        };
        assert_eq!(places("/d/buf", false), ("/d/buf".into(), "buffer".into()));
        assert_eq!(places("/d/app.*.buffer", false), ("/d".into(), "app".into()));
        assert_eq!(places("/d/app.*", false), ("/d".into(), "app".into()));
        assert_eq!(places("app.*", false), (".".into(), "app".into()));
        assert_eq!(places("/d/x.log", true), ("/d".into(), "x.log".into()));
    }

    #[test]
    fn names_say_what_they_are() {
        let hex = "66180634f0cb24c781d7a47a033c31a2";
        let id = ChunkId::parse(hex).unwrap();
        let whole = Places::new(Path::new("/d"), false);
        let shared = Places::new(Path::new("/d/app.*.buffer"), false);
        for (name, expected) in [
            (format!("buffer.b{hex}.tchunk"), Name::Chunk(State::Staged, id)),
            (format!("buffer.q{hex}.tchunk"), Name::Chunk(State::Queued, id)),
            ("buffer.000000000000000a.tjournal".into(), Name::Journal(10)),
            ("buffer.tlock".into(), Name::Ours),
            ("buffer.damaged".into(), Name::Ours),
            (format!("buffer.b{hex}.log"), Name::Fluentd),
            (format!("buffer.q{hex}.log.meta"), Name::Fluentd),
            (format!("fsb.s.a%20b%2Fc.b{hex}.buf"), Name::Fluentd),
            (format!("fsb..q{hex}.buf"), Name::Fluentd),
            ("buffer.b12.tchunk".into(), Name::Unknown),
            ("readme.txt".into(), Name::Unknown),
        ] {
            assert_eq!(whole.read_name(&name), expected, "{name}");
        }
        assert_eq!(shared.read_name(&format!("app.b{hex}.buffer")), Name::Fluentd);
        assert_eq!(shared.read_name(&format!("app.b{hex}.tchunk")), Name::Chunk(State::Staged, id));
        assert_eq!(shared.read_name("other.b12.log"), Name::OtherPrefix);
        let path = whole.chunk(State::Queued, id);
        assert_eq!(
            whole.read_name(path.file_name().unwrap().to_str().unwrap()),
            Name::Chunk(State::Queued, id)
        );
        assert_eq!(
            whole.read_name(whole.journal(7).file_name().unwrap().to_str().unwrap()),
            Name::Journal(7)
        );
    }
}
