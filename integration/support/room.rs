//! A scenario's directory and the processes that it starts in it.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{BINARY, PATIENCE, Running, read_json, wait_for};

/// A directory that vanishes with the scenario, and is kept and named when it fails and `KEEP_ROOMS` is set.
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

    /// A path in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Writes the configuration `NAME.conf`; each `{room}` in the text becomes the directory.
    pub fn write_configuration(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(&format!("{name}.conf"));
        let text = text.replace("{room}", &self.directory.path().display().to_string());
        std::fs::write(&path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        path
    }

    /// Starts `tributary -c NAME.conf`; its log is `NAME.log`. The caller waits for its port.
    pub fn tributary(&self, name: &str) -> Running {
        let mut command = Command::new(BINARY);
        command.arg("-c").arg(self.path(&format!("{name}.conf")));
        Running::start(name, &mut command, &self.path(&format!("{name}.log")))
    }

    /// Starts `tributary bench send` with journal `NAME.journal` and status `NAME.status`.
    pub fn bench_send(&self, name: &str, arguments: &[&str]) -> Running {
        let mut command = Command::new(BINARY);
        command.args(["bench", "send"]).args(arguments);
        command.arg("--journal").arg(self.path(&format!("{name}.journal")));
        command.arg("--status").arg(self.status_path(name));
        Running::start(name, &mut command, &self.path(&format!("{name}.out")))
    }

    /// Starts `tributary bench sink` on a port of its own choice, with status `NAME.status` and, after its end, the
    /// seen set `NAME.seen`. Returns the port when it listens.
    pub fn bench_sink(&self, name: &str, arguments: &[&str]) -> (Running, u16) {
        let mut command = Command::new(BINARY);
        command.args(["bench", "sink", "--bind", "127.0.0.1:0"]).args(arguments);
        command.arg("--seen").arg(self.path(&format!("{name}.seen")));
        command.arg("--status").arg(self.status_path(name));
        let sink = Running::start(name, &mut command, &self.path(&format!("{name}.out")));
        let port = wait_for(&format!("the address of {name}"), PATIENCE, || {
            let status = read_json(&self.status_path(name))?;
            status["listening"].as_str()?.rsplit(':').next()?.parse().ok()
        });
        (sink, port)
    }

    /// The last status that a bench process wrote.
    pub fn status(&self, name: &str) -> serde_json::Value {
        wait_for(&format!("a status of {name}"), PATIENCE, || read_json(&self.status_path(name)))
    }

    fn status_path(&self, name: &str) -> PathBuf {
        self.path(&format!("{name}.status"))
    }

    /// The files of a directory of the room whose name ends so, in order.
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
