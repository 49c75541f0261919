//! What a configuration may see of the world: variables, host name, files. The one file of this room that opens
//! anything; parsers get the trait, so that tests bring a world of their own.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// A configuration file or a file read by embedded code is never this large; a device or a log read by mistake is.
pub const MAX_FILE_BYTES: u64 = 16 * 1024 * 1024;

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DirectoryEntry {
    /// Its name.
    pub name: String,
    /// True for directories (not for links to directories: a walk must end).
    pub is_directory: bool,
}

/// What a configuration may see of the world.
pub trait Environment {
    /// The value of an environment variable; `None` when unset or not UTF-8.
    fn variable(&self, name: &str) -> Option<String>;
    /// The host name.
    fn host_name(&self) -> String;
    /// The content of a file of at most [`MAX_FILE_BYTES`].
    fn read_file(&self, path: &Path) -> io::Result<Vec<u8>>;
    /// The entries of a directory, in any order.
    fn list_directory(&self, path: &Path) -> io::Result<Vec<DirectoryEntry>>;
}

/// The process's own environment and the real file system.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcessEnvironment;

impl Environment for ProcessEnvironment {
    fn variable(&self, name: &str) -> Option<String> {
        if name.is_empty() || name.contains(['=', '\0']) {
            return None;
        }
        std::env::var(name).ok()
    }

    fn host_name(&self) -> String {
        nix::unistd::gethostname().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
    }

    fn read_file(&self, path: &Path) -> io::Result<Vec<u8>> {
        let mut content = Vec::new();
        std::fs::File::open(path)?.take(MAX_FILE_BYTES + 1).read_to_end(&mut content)?;
        if content.len() as u64 > MAX_FILE_BYTES {
            return Err(io::Error::new(
                io::ErrorKind::FileTooLarge,
                format!("file is larger than {MAX_FILE_BYTES} bytes"),
            ));
        }
        Ok(content)
    }

    fn list_directory(&self, path: &Path) -> io::Result<Vec<DirectoryEntry>> {
        std::fs::read_dir(path)?
            .map(|entry| {
                let entry = entry?;
                let name = entry.file_name().to_string_lossy().into_owned();
                Ok(DirectoryEntry { name, is_directory: entry.file_type()?.is_dir() })
            })
            .collect()
    }
}

/// A made-up world: for tests, fuzzing and text that must not see the machine.
#[derive(Clone, Debug, Default)]
pub struct FixedEnvironment {
    /// Variables.
    pub variables: BTreeMap<String, String>,
    /// Host name.
    pub host_name: String,
    /// Files by path; their folders exist by themselves.
    pub files: BTreeMap<PathBuf, Vec<u8>>,
}

impl FixedEnvironment {
    /// The same with one more variable.
    #[must_use]
    pub fn with_variable(mut self, name: &str, value: &str) -> Self {
        self.variables.insert(name.into(), value.into());
        self
    }

    /// The same with one more file.
    #[must_use]
    pub fn with_file(mut self, path: impl Into<PathBuf>, content: impl Into<Vec<u8>>) -> Self {
        self.files.insert(path.into(), content.into());
        self
    }
}

impl Environment for FixedEnvironment {
    fn variable(&self, name: &str) -> Option<String> {
        self.variables.get(name).cloned()
    }

    fn host_name(&self) -> String {
        self.host_name.clone()
    }

    fn read_file(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.files.get(path).cloned().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn list_directory(&self, path: &Path) -> io::Result<Vec<DirectoryEntry>> {
        let mut entries = BTreeSet::new();
        for file in self.files.keys() {
            let Ok(below) = file.strip_prefix(path) else { continue };
            let mut components = below.components();
            if let Some(first) = components.next() {
                let name = first.as_os_str().to_string_lossy().into_owned();
                entries.insert(DirectoryEntry { name, is_directory: components.next().is_some() });
            }
        }
        if entries.is_empty() {
            Err(io::ErrorKind::NotFound.into())
        } else {
            Ok(entries.into_iter().collect())
        }
    }
}
