//! Command line: Fluentd's options and exit codes, and our sub-commands.
//!
//! | exit code | when |
//! | --- | --- |
//! | 0 | normal stop, `--dry-run` and `check` without faults, `--setup`, help, version |
//! | 1 | wrong usage; `check` or `--dry-run` with faults (`check --strict` also with warnings); the process cannot be set up (pid file, user, log), something that the configuration names cannot be opened (a port is taken), or the process had to stop before it was done |
//! | 2 | a fault in the configuration; nothing was started, and starting again would not mend it |

mod args;
mod cat;
mod engine;
mod help;
mod run;
mod setup;

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser as _};

use crate::bench;
use crate::config::Diagnostics;
use args::{Cli, Command};
use engine::Additions;

/// Wrong usage, or something outside of the configuration failed: a service manager may try again.
const EXIT_FAILURE: u8 = 1;

/// A fault in the configuration; nothing was started.
const EXIT_CONFIGURATION: u8 = 2;

/// Entry point of the binary; returns the exit code.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    match cli.command {
        None => run_or_set_up(&cli.run),
        Some(Command::Check(arguments)) => check(&arguments),
        Some(Command::Plugins) => help::list_plugins(),
        Some(Command::Help(arguments)) => help::show_plugin(&arguments.name),
        Some(Command::Cat(options)) => cat::run(options),
        Some(Command::Bench(command)) => bench::run(command),
    }
}

fn run_or_set_up(args: &args::RunArgs) -> ExitCode {
    if let Some(reason) = args.fluentd.refused() {
        println!("error: {reason}");
        return ExitCode::from(EXIT_FAILURE);
    }
    if args.fluentd.show_plugin_config.is_some() {
        println!("--show-plugin-config is deprecated, use: tributary help plugin NAME");
        return ExitCode::SUCCESS;
    }
    match &args.setup {
        Some(directory) => setup::set_up(directory),
        None => run::run(args),
    }
}

/// `check FILE`: everything that was found, each with its place, then one line that sums up.
fn check(args: &args::CheckArgs) -> ExitCode {
    let mut diagnostics = Diagnostics::new();
    let additions = Additions { strict: args.strict_config_value, ..Additions::default() };
    let loaded = engine::load(&args.file, additions, &mut diagnostics);
    print!("{}", diagnostics.render());
    let (faults, warnings) = (diagnostics.faults().count(), diagnostics.warnings().count());
    let failed = diagnostics.has_faults() || loaded.is_none() || (args.strict && warnings > 0);
    let verdict = if failed { "not accepted" } else { "ok" };
    println!("{}: {verdict}, {faults} fault(s), {warnings} warning(s)", args.file.display());
    if failed { ExitCode::from(EXIT_FAILURE) } else { ExitCode::SUCCESS }
}

/// Help and version to the standard output with 0. Anything else as Fluentd: usage text and `error: ...` on the
/// standard output with 1.
fn usage(error: &clap::Error) -> ExitCode {
    if error.exit_code() == 0 {
        // A closed standard output is no reason to fail.
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    let text = error.to_string();
    let reason = text.split("\n\nUsage:").next().unwrap_or(&text).trim_end();
    let mut command = Cli::command();
    command.build();
    let first = std::env::args().nth(1).unwrap_or_default();
    let shown = command.find_subcommand_mut(&first).map(|found| found.render_help());
    println!("{}\n{reason}", shown.unwrap_or_else(|| command.render_help()));
    ExitCode::from(EXIT_FAILURE)
}
