//! A scenario's directory and the processes that it starts in it.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Process, binary, read_json, tributary, wait_for};

/// A directory that vanishes with the scenario, unless `KEEP_ROOMS` is set: then its place is printed.
pub struct Room {
    directory: tempfile::TempDir,
}

impl Room {
    /// An empty one.
    pub fn new() -> Self {
        let mut directory = tempfile::tempdir().expect("a temporary directory");
        if std::env::var_os("KEEP_ROOMS").is_some() {
            directory.disable_cleanup(true);
            eprintln!("this scenario's files: {}", directory.path().display());
        }
        Self { directory }
    }

    /// The directory.
    pub fn folder(&self) -> &Path {
        self.directory.path()
    }

    /// A path in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder().join(name)
    }

    /// Starts tributary with a configuration in which each `{room}` becomes the directory. The caller waits for its
    /// port.
    pub fn tributary(&self, name: &str, configuration: &str) -> Process {
        let configuration = configuration.replace("{room}", &self.folder().display().to_string());
        tributary(self.folder(), name, &configuration)
    }

    /// Starts `tributary bench send` with journal `NAME.journal` and status `NAME.status`.
    pub fn bench_send(&self, name: &str, arguments: &[&str]) -> Process {
        let mut command = Command::new(binary());
        command.args(["bench", "send"]).args(arguments);
        command.arg("--journal").arg(self.path(&format!("{name}.journal")));
        command.arg("--status").arg(self.status_path(name));
        Process::start(self.folder(), name, &mut command)
    }

    /// Starts `tributary bench sink` on a port of its own choice, with status `NAME.status` and, after its end, the
    /// seen set `NAME.seen`. Returns with the port when it listens.
    pub fn bench_sink(&self, name: &str, arguments: &[&str]) -> (Process, u16) {
        let mut command = Command::new(binary());
        command.args(["bench", "sink", "--bind", "127.0.0.1:0"]).args(arguments);
        command.arg("--seen").arg(self.path(&format!("{name}.seen")));
        command.arg("--status").arg(self.status_path(name));
        let sink = Process::start(self.folder(), name, &mut command);
        let port = wait_for(&format!("the address of {name}"), || {
            let status = read_json(&self.status_path(name))?;
            status["listening"].as_str()?.rsplit(':').next()?.parse().ok()
        });
        (sink, port)
    }

    /// The last status that a bench process wrote.
    pub fn status(&self, name: &str) -> serde_json::Value {
        wait_for(&format!("a status of {name}"), || read_json(&self.status_path(name)))
    }

    fn status_path(&self, name: &str) -> PathBuf {
        self.path(&format!("{name}.status"))
    }

    /// The files of a directory of the room whose name ends so, in order of name; none when it is not there.
    pub fn files(&self, folder: &str, suffix: &str) -> Vec<PathBuf> {
        let listed = std::fs::read_dir(self.path(folder)).map(|entries| {
            let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
            paths.filter(|path| has_suffix(path, suffix)).collect()
        });
        let mut files: Vec<PathBuf> = listed.unwrap_or_default();
        files.sort();
        files
    }
}

fn has_suffix(path: &Path, suffix: &str) -> bool {
    path.is_file() && path.file_name().is_some_and(|name| name.to_string_lossy().ends_with(suffix))
}
