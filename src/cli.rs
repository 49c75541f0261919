//! Command line.

use std::process::ExitCode;

use clap::Parser;

use crate::bench;

#[derive(Parser)]
#[command(name = "tributary", version)]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Generate load, count what arrives, judge the difference
    #[command(subcommand)]
    Bench(bench::BenchCommand),
    /// Send records from standard input, as fluent-cat does
    Cat(bench::CatOptions),
}

/// Entry point of the binary; returns the exit code.
pub fn main() -> ExitCode {
    match CommandLine::parse().command {
        Command::Bench(command) => bench::run(command),
        Command::Cat(options) => bench::cat::run(options),
    }
}
