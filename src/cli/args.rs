//! The options of the command line: Fluentd's (`lib/fluent/command/fluentd.rb`), and our sub-commands.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use super::cat::CatOptions;
use crate::bench::BenchCommand;

/// What `--version` prints after the name.
pub(super) const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (Fluentd-compatible log forwarder)");

/// Default directory of `--setup`, Fluentd's.
const SETUP_DIRECTORY: &str = "/etc/fluent";

/// The command line.
#[derive(Debug, Parser)]
#[command(
    name = "tributary",
    version = VERSION,
    about = "A Fluentd-compatible log forwarder",
    infer_long_args = true,
    args_conflicts_with_subcommands = true,
    disable_help_subcommand = true,
    max_term_width = 110
)]
pub struct Cli {
    /// What to do when no sub-command is given: run.
    #[command(flatten)]
    pub run: RunArgs,
    /// What to do instead of running.
    #[command(subcommand)]
    pub command: Option<Command>,
}

/// Sub-commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Check a configuration file and say everything that is wrong with it; start nothing
    ///
    /// Ends with 0 when it can run, 1 on faults, with --strict also on warnings.
    Check(CheckArgs),
    /// List the plugins that are built in
    Plugins,
    /// Show the parameters of a plugin
    Help(HelpArgs),
    /// Send records from standard input to in_forward, with fluent-cat's options
    Cat(CatOptions),
    /// Generate load, count what arrives, judge the difference (docs/BENCH.md)
    #[command(subcommand)]
    Bench(BenchCommand),
}

/// `check`
#[derive(Args, Debug)]
pub struct CheckArgs {
    /// Configuration file
    pub file: PathBuf,
    /// End with 1 on warnings, too
    #[arg(long)]
    pub strict: bool,
    /// Convert values strictly
    #[arg(long)]
    pub strict_config_value: bool,
}

/// `help`
#[derive(Args, Debug)]
pub struct HelpArgs {
    /// What to show: `plugin`
    #[arg(value_enum)]
    pub subject: HelpSubject,
    /// Its @type
    pub name: String,
}

/// What `help` knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum HelpSubject {
    /// A plugin.
    Plugin,
}

/// `--config-file-type`
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FileType {
    /// By extension.
    Guess,
    /// YAML.
    Yaml,
    /// YAML.
    Yml,
}

/// The options of Fluentd itself.
#[derive(Args, Debug, Default)]
pub struct RunArgs {
    /// Configuration file [default: $FLUENT_CONF, else /etc/tributary/tributary.conf, /etc/fluent/fluent.conf,
    /// /etc/fluent/fluentd.conf or /etc/td-agent/td-agent.conf, whichever is there first]
    #[arg(short, long, value_name = "PATH")]
    pub config: Option<PathBuf>,
    /// Check the configuration, build everything, start nothing, and exit
    #[arg(long)]
    pub dry_run: bool,
    /// Become a daemon and write its process number
    #[arg(short, long, value_name = "PIDFILE")]
    pub daemon: Option<PathBuf>,
    /// Log file; `-` is the standard output [default: -]
    #[arg(short = 'o', long, value_name = "PATH")]
    pub log: Option<PathBuf>,
    /// Text that is appended to the configuration; the two characters `\n` become newlines
    #[arg(short, long, value_name = "TEXT")]
    pub inline_config: Option<String>,
    /// Change to this user
    #[arg(long, value_name = "NAME")]
    pub user: Option<String>,
    /// Change to this group
    #[arg(long, value_name = "NAME")]
    pub group: Option<String>,
    /// File mode creation mask, octal [default: as inherited]
    #[arg(long, value_name = "OCTAL", value_parser = octal)]
    pub umask: Option<u32>,
    /// Number of workers; goes before `workers` of the `<system>` section
    #[arg(long, value_name = "NUM", value_parser = clap::value_parser!(u32).range(1..))]
    pub workers: Option<u32>,
    /// More log lines (-v debug, -vv trace)
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// Fewer log lines (-q warn, -qq error)
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub quiet: u8,
    /// Convert configuration values strictly
    #[arg(long)]
    pub strict_config_value: bool,
    /// Do not write the configuration to the log at start
    #[arg(long)]
    pub suppress_config_dump: bool,
    /// Start no `<source>`
    #[arg(long)]
    pub without_source: bool,
    /// Make a directory with a first configuration, and exit
    #[arg(short, long, value_name = "DIR", num_args = 0..=1, default_missing_value = SETUP_DIRECTORY)]
    pub setup: Option<PathBuf>,
    /// Options that are accepted because service units pass them.
    #[command(flatten)]
    pub fluentd: FluentdArgs,
}

/// Options of Fluentd that mean nothing here, or that are refused.
#[derive(Args, Debug, Default)]
#[command(next_help_heading = "Fluentd options without effect here")]
pub struct FluentdArgs {
    /// One process without supervisor: always so
    #[arg(long)]
    pub no_supervisor: bool,
    /// Internal option of Fluentd's supervisor
    #[arg(long)]
    pub under_supervisor: bool,
    /// The v1 configuration format: always so
    #[arg(long, visible_alias = "use-v1")]
    pub use_v1_config: bool,
    /// The v0 configuration format: refused
    #[arg(long)]
    pub use_v0_config: bool,
    /// Ruby plugin directory
    #[arg(short, long, value_name = "DIR")]
    pub plugin: Vec<PathBuf>,
    /// Ruby load path
    #[arg(short = 'I', value_name = "PATH")]
    pub load_path: Vec<PathBuf>,
    /// Ruby library
    #[arg(short = 'r', value_name = "NAME")]
    pub require: Vec<String>,
    /// Bundler's Gemfile
    #[arg(short, long, value_name = "PATH")]
    pub gemfile: Option<PathBuf>,
    /// Where Bundler installs
    #[arg(short = 'G', long, value_name = "PATH")]
    pub gem_path: Option<PathBuf>,
    /// Log rotation: not built, rotate by rename and SIGUSR1
    #[arg(long, value_name = "AGE")]
    pub log_rotate_age: Option<String>,
    /// Log rotation: not built, rotate by rename and SIGUSR1
    #[arg(long, value_name = "BYTES")]
    pub log_rotate_size: Option<String>,
    /// Log events during shutdown: not built
    #[arg(long)]
    pub log_event_verbose: bool,
    /// Without effect in Fluentd, too
    #[arg(long, value_name = "SECONDS")]
    pub emit_error_log_interval: Option<String>,
    /// There are no stack traces
    #[arg(long, value_name = "VALUE", num_args = 0..=1, default_missing_value = "true")]
    pub suppress_repeated_stacktrace: Option<String>,
    /// Only inputs, events kept in a temporary buffer: refused
    #[arg(long)]
    pub with_source_only: bool,
    /// Format of the configuration file; YAML is refused
    #[arg(long, value_enum, value_name = "TYPE")]
    pub config_file_type: Option<FileType>,
    /// Always on
    #[arg(long)]
    pub enable_input_metrics: bool,
    /// Always on
    #[arg(long)]
    pub disable_input_metrics: bool,
    /// Always on
    #[arg(long)]
    pub enable_size_metrics: bool,
    /// Encoding of the configuration file; anything but utf-8 is refused
    #[arg(long, value_name = "NAME")]
    pub conf_encoding: Option<String>,
    /// There are no shared sockets
    #[arg(long)]
    pub disable_shared_socket: bool,
    /// Deprecated in Fluentd; see `tributary help plugin NAME`
    #[arg(long, value_name = "TYPE:NAME")]
    pub show_plugin_config: Option<String>,
}

impl FluentdArgs {
    /// What is asked for and would be wrong to ignore.
    pub(super) fn refused(&self) -> Option<String> {
        let utf8 = |name: &str| matches!(name.to_ascii_lowercase().as_str(), "utf-8" | "utf8" | "us-ascii");
        if self.use_v0_config {
            return Some("the v0 configuration format is not built (option --use-v0-config)".to_owned());
        }
        if self.with_source_only {
            return Some(
                "a temporary source-only buffer is not built (option --with-source-only)".to_owned(),
            );
        }
        if matches!(self.config_file_type, Some(FileType::Yaml | FileType::Yml)) {
            return Some("YAML configuration is not built (option --config-file-type)".to_owned());
        }
        match &self.conf_encoding {
            Some(name) if !utf8(name) => {
                Some(format!("the configuration must be UTF-8, not {name:?} (option --conf-encoding)"))
            }
            _ => None,
        }
    }

    /// Options with a meaning in Fluentd that are without effect here, each with what to know. Options that service
    /// units pass and whose meaning is always fulfilled are silent.
    pub(super) fn without_effect(&self) -> Vec<(&'static str, &'static str)> {
        const RUBY: &str = "there is no Ruby here; plugins are built in";
        const ROTATION: &str = "log rotation is not built; rename the file and send SIGUSR1 (logrotate)";
        const METRICS: &str = "input metrics are always counted";
        [
            (!self.plugin.is_empty(), "-p, --plugin", RUBY),
            (!self.load_path.is_empty(), "-I", RUBY),
            (!self.require.is_empty(), "-r", RUBY),
            (self.gemfile.is_some(), "-g, --gemfile", RUBY),
            (self.gem_path.is_some(), "-G, --gem-path", RUBY),
            (self.log_rotate_age.is_some(), "--log-rotate-age", ROTATION),
            (self.log_rotate_size.is_some(), "--log-rotate-size", ROTATION),
            (self.log_event_verbose, "--log-event-verbose", "log events are not built"),
            (self.disable_input_metrics, "--disable-input-metrics", METRICS),
        ]
        .into_iter()
        .filter_map(|(given, option, why)| given.then_some((option, why)))
        .collect()
    }
}

fn octal(text: &str) -> Result<u32, String> {
    match u32::from_str_radix(text, 8) {
        Ok(mask) if mask <= 0o777 => Ok(mask),
        _ => Err("expected an octal number up to 777".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(std::iter::once("tributary").chain(line.split(' ')))
    }

    #[test]
    fn the_definition_is_consistent() {
        use clap::CommandFactory as _;
        Cli::command().debug_assert();
    }

    #[test]
    fn options_of_service_units_are_taken() {
        let td_agent = parse(
            "--log /var/log/td-agent/td-agent.log --daemon /var/run/td-agent/td-agent.pid --user td-agent --group \
             td-agent --use-v1-config",
        )
        .unwrap()
        .run;
        assert_eq!(td_agent.log.unwrap().to_str(), Some("/var/log/td-agent/td-agent.log"));
        assert_eq!(td_agent.daemon.unwrap().to_str(), Some("/var/run/td-agent/td-agent.pid"));
        assert_eq!(
            (td_agent.user.as_deref(), td_agent.group.as_deref()),
            (Some("td-agent"), Some("td-agent"))
        );
        assert!(td_agent.fluentd.without_effect().is_empty());

        let all = parse(
            "-c /c -o - -d /p -p /a -p /b -I x -r y -g G -G P --no-supervisor --under-supervisor -qq -v \
             --suppress-repeated-stacktrace --suppress-config-dump --without-source --umask 022 --workers 2 \
             --log-rotate-age daily --log-rotate-size 1048576 --emit-error-log-interval 5 --enable-size-metrics \
             --disable-shared-socket --conf-encoding utf-8 --config-file-type guess --strict-config-value",
        )
        .unwrap()
        .run;
        assert_eq!((all.quiet, all.verbose, all.umask, all.workers), (2, 1, Some(0o22), Some(2)));
        assert_eq!(all.fluentd.suppress_repeated_stacktrace.as_deref(), Some("true"));
        assert_eq!(all.fluentd.without_effect().len(), 7);
        assert_eq!(all.fluentd.refused(), None);
    }

    #[test]
    fn long_options_may_be_abbreviated_and_take_either_form() {
        let run = parse("--conf=/x --dry --suppress-conf").unwrap_err();
        // `--conf` could be `--conf-encoding`, `--config` or `--config-file-type`.
        assert_eq!(run.kind(), clap::error::ErrorKind::UnknownArgument);
        let run = parse("--config=/x --dry --suppress-conf --inline a --setup").unwrap().run;
        assert_eq!(run.config.unwrap().to_str(), Some("/x"));
        assert!(run.dry_run && run.suppress_config_dump);
        assert_eq!(run.setup.unwrap().to_str(), Some(SETUP_DIRECTORY));
    }

    #[test]
    fn what_cannot_be_ignored_is_refused() {
        for line in
            ["--use-v0-config", "--with-source-only", "--config-file-type yaml", "--conf-encoding sjis"]
        {
            assert!(parse(line).unwrap().run.fluentd.refused().is_some(), "{line}");
        }
        for line in ["--no-such", "stray", "--umask 9", "--umask 1000", "--workers 0", "check", "--daemon"] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
