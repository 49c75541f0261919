//! `--setup [DIR]`: a directory with a first configuration.

use std::fs;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;

/// Takes from clients of the forward protocol and prints.
const FIRST_CONFIGURATION: &str = "\
# Takes events of the forward protocol (Fluentd, Fluent Bit, client libraries) and prints them.
<source>
  @type forward
  bind 127.0.0.1
  port 24224
</source>

<match **>
  @type stdout
</match>
";

/// Makes `DIR`, `DIR/plugin` and `DIR/fluent.conf`; a configuration that is there stays as it is.
pub(super) fn set_up(directory: &Path) -> ExitCode {
    match make(directory) {
        Ok(true) => println!("Installed {}.", directory.join("fluent.conf").display()),
        Ok(false) => println!("{} already exists.", directory.join("fluent.conf").display()),
        Err(error) => {
            println!("error: {} cannot be set up: {error}", directory.display());
            return ExitCode::from(super::EXIT_FAILURE);
        }
    }
    ExitCode::SUCCESS
}

fn make(directory: &Path) -> io::Result<bool> {
    fs::create_dir_all(directory.join("plugin"))?;
    match fs::File::create_new(directory.join("fluent.conf")) {
        Ok(mut file) => file.write_all(FIRST_CONFIGURATION.as_bytes()).map(|()| true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_what_is_there() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join("etc");
        assert!(make(&place).unwrap());
        fs::write(place.join("fluent.conf"), "mine").unwrap();
        assert!(!make(&place).unwrap());
        assert_eq!(fs::read_to_string(place.join("fluent.conf")).unwrap(), "mine");
        assert!(place.join("plugin").is_dir());
    }
}
