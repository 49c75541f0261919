//! `tributary bench measure`: what a process and its children cost, read from `/proc`.

use std::io;
use std::process::ExitCode;

use serde_json::json;

/// Clock ticks a second in `/proc/PID/stat`: USER_HZ, 100 on every Linux that Rust runs on (proc(5)).
const TICKS_PER_SECOND: f64 = 100.0;

/// `tributary bench measure`
#[derive(Clone, Debug, clap::Args)]
pub struct MeasureOptions {
    /// The process
    #[arg(long, value_name = "PID")]
    pub pid: u32,
}

/// A reading of a process and its descendants.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// User and system time in seconds since their start, of ended and waited-for children too.
    pub cpu_seconds: f64,
    /// Sum of the peaks of resident memory (VmHWM), bytes.
    pub peak_resident_bytes: u64,
    /// Sum of resident memory now (VmRSS), bytes.
    pub resident_bytes: u64,
    /// Open file descriptors.
    pub open_files: u64,
    /// Processes that were read.
    pub processes: u64,
}

/// Reads a process and all its descendants. An error when the process itself is gone; children may vanish meanwhile.
pub fn usage(pid: u32) -> io::Result<Usage> {
    let mut total = one(pid)?;
    let parents = parents()?;
    let mut family = vec![pid];
    let mut next = 0;
    while let Some(parent) = family.get(next).copied() {
        next += 1;
        for (child, _) in parents.iter().filter(|(_, of)| *of == parent) {
            family.push(*child);
            if let Ok(usage) = one(*child) {
                total.cpu_seconds += usage.cpu_seconds;
                total.peak_resident_bytes += usage.peak_resident_bytes;
                total.resident_bytes += usage.resident_bytes;
                total.open_files += usage.open_files;
                total.processes += 1;
            }
        }
    }
    Ok(total)
}

fn one(pid: u32) -> io::Result<Usage> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let fields = stat_fields(&stat);
    // utime, stime, cutime, cstime: fields 14 to 17 of proc(5), counted from 3 behind the name.
    let ticks: f64 = fields.iter().skip(11).take(4).filter_map(|field| field.parse::<f64>().ok()).sum();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let open_files = std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, |entries| entries.count() as u64);
    Ok(Usage {
        cpu_seconds: ticks / TICKS_PER_SECOND,
        peak_resident_bytes: status_bytes(&status, "VmHWM:"),
        resident_bytes: status_bytes(&status, "VmRSS:"),
        open_files,
        processes: 1,
    })
}

/// The fields behind `(name)`, which may hold blanks and brackets itself.
fn stat_fields(stat: &str) -> Vec<&str> {
    stat.rsplit_once(')').map_or(Vec::new(), |(_, rest)| rest.split_whitespace().collect())
}

/// A line of `/proc/PID/status` in bytes; 0 when absent (a process that has ended).
fn status_bytes(status: &str, key: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(key));
    let kib =
        line.and_then(|rest| rest.split_whitespace().next()).and_then(|number| number.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// `(process, parent)` of everything that runs.
fn parents() -> io::Result<Vec<(u32, u32)>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { continue };
        if let Some(parent) = stat_fields(&stat).get(1).and_then(|field| field.parse().ok()) {
            found.push((pid, parent));
        }
    }
    Ok(found)
}

/// Runs `bench measure`: one line of JSON; 2 when there is no such process.
pub fn run(options: MeasureOptions) -> ExitCode {
    match usage(options.pid) {
        Ok(usage) => {
            println!(
                "{}",
                json!({
                    "pid": options.pid,
                    "processes": usage.processes,
                    "cpu_seconds": usage.cpu_seconds,
                    "peak_resident_bytes": usage.peak_resident_bytes,
                    "resident_bytes": usage.resident_bytes,
                    "open_files": usage.open_files,
                })
            );
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("bench measure: process {}: {error}", options.pid);
            ExitCode::from(2)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_itself_and_a_child() {
        let alone = usage(std::process::id()).expect("own process");
        assert!(alone.peak_resident_bytes > 1 << 20 && alone.open_files >= 3, "{alone:?}");
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("sleep");
        let both = usage(std::process::id()).expect("own process");
        child.kill().and_then(|()| child.wait()).expect("child ends");
        assert!(both.processes > 1, "{both:?}");
    }

    #[test]
    fn a_name_with_brackets_does_not_shift_the_fields() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 0 0 0 0 0 150 50 10 5 20 0";
        let fields = stat_fields(stat);
        assert_eq!((fields[0], fields[1], fields[11], fields[14]), ("S", "1", "150", "5"));
    }
}
