//! The judges: a generator, a counting sink, a counter of output files, the oracle, and a meter of whole processes.
//!
//! Every event that `bench send` makes carries three numbers: `run` (one per start of the generator), `seq` (from 0,
//! without holes) and `sent_ns` (wall clock at sending). The generator journals each acknowledged range: from that
//! moment the events are a *debt* of the forwarder. `bench sink` and `bench count` collect what arrived; the oracle
//! ([`oracle::judge`]) compares the two. docs/BENCH.md shows the commands.
//!
//! The judges must not share the code that they judge: the sink decodes the protocol with [`wire`], not with
//! `forward`, and everything here runs on plain threads and blocking sockets.

pub mod chunk_id;
pub mod count;
pub mod histogram;
pub mod journal;
pub mod measure;
pub mod oracle;
pub mod record;
pub mod send;
pub mod sink;
mod status;
pub mod tally;
pub mod wire;

pub use count::CountOptions;
pub use measure::MeasureOptions;
pub use oracle::JudgeOptions;
pub use send::SendOptions;
pub use sink::SinkOptions;

use std::process::ExitCode;

/// `tributary bench ...`
#[derive(Debug, clap::Subcommand)]
pub enum BenchCommand {
    /// Generate load over the forward protocol and account for every acknowledgement
    Send(SendOptions),
    /// Receive over the forward protocol and count what arrives, per run: lost, repeated, gaps, latency
    Sink(SinkOptions),
    /// Count the events of output files (JSON lines or out_file format), as `sink` does
    Count(CountOptions),
    /// Compare journals of acknowledged events with what arrived; exit code 1 on a violation
    Judge(JudgeOptions),
    /// CPU seconds and peak memory of a process and its children
    Measure(MeasureOptions),
}

/// Runs a bench command; the exit code is that of the process.
pub fn run(command: BenchCommand) -> ExitCode {
    match command {
        BenchCommand::Send(options) => send::run(options),
        BenchCommand::Sink(options) => sink::run(options),
        BenchCommand::Count(options) => count::run(options),
        BenchCommand::Judge(options) => oracle::run(options),
        BenchCommand::Measure(options) => measure::run(options),
    }
}

/// Nanoseconds since 1970; 0 when the clock stands before that.
pub fn wall_clock_ns() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}
