//! `--daemon PIDFILE`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// A pid file of this process; removed when dropped, if it still holds our number.
#[derive(Debug)]
pub struct PidFile {
    path: PathBuf,
    content: String,
}

impl PidFile {
    /// Writes the process number with a newline; an existing file is replaced, as in Fluentd.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(path: &Path) -> io::Result<Self> {
        let content = format!("{}\n", std::process::id());
        // Readers poll for this file: it appears whole or not at all.
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{}.tmp", std::process::id()));
        let temporary = path.with_file_name(name);
        fs::write(&temporary, &content)?;
        fs::rename(&temporary, path).inspect_err(|_| {
            let _ = fs::remove_file(&temporary);
        })?;
        Ok(Self { path: path.to_owned(), content })
    }

    /// Removes the file, if it still holds our number; what dropping does.
    pub fn remove(&self) {
        if fs::read_to_string(&self.path).is_ok_and(|content| content == self.content) {
            // After `--user` the directory may refuse; the next start replaces the file.
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        self.remove();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_whole_and_goes_away_only_when_it_is_ours() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pid");
        fs::write(&path, "1\n").unwrap();
        let file = PidFile::write(&path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), format!("{}\n", std::process::id()));
        drop(file);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);

        let file = PidFile::write(&path).unwrap();
        fs::write(&path, "12345\n").unwrap();
        drop(file);
        assert_eq!(fs::read_to_string(&path).unwrap(), "12345\n");
    }
}
