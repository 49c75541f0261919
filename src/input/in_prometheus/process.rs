//! Figures of this process from /proc. Those that cannot be read are left out.

use crate::pipeline::{Sample, SampleKind};

/// Memory, descriptors, processor time.
pub(super) fn samples() -> Vec<Sample> {
    let gauge =
        |name, help, value: Option<f64>| value.map(|value| sample(name, help, SampleKind::Gauge, value));
    let memory = std::fs::read_to_string("/proc/self/status").ok();
    let kibibytes =
        |key: &str| memory.as_deref().and_then(|text| status_kibibytes(text, key)).map(|n| n * 1024.0);
    let open = std::fs::read_dir("/proc/self/fd").ok().map(|entries| entries.count() as f64);
    let limit = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE).ok();
    let processor =
        nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_SELF).ok().map(|usage| {
            let seconds = |time: nix::sys::time::TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
            seconds(usage.user_time()) + seconds(usage.system_time())
        });
    let help = "Processor time used, user and system.";
    [
        gauge("tributary_process_resident_memory_bytes", "Resident memory.", kibibytes("VmRSS")),
        gauge("tributary_process_peak_resident_memory_bytes", "Highest resident memory.", kibibytes("VmHWM")),
        gauge("tributary_process_open_descriptors", "Open file descriptors.", open),
        gauge(
            "tributary_process_max_descriptors",
            "Limit of file descriptors.",
            limit.map(|(soft, _)| soft as f64),
        ),
        processor
            .map(|value| sample("tributary_process_cpu_seconds_total", help, SampleKind::Counter, value)),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn sample(name: &'static str, help: &'static str, kind: SampleKind, value: f64) -> Sample {
    Sample { name, help, kind, labels: Vec::new(), value }
}

/// A line such as `VmRSS:     1234 kB`.
fn status_kibibytes(text: &str, key: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    line.split_whitespace().next()?.parse().ok()
}
