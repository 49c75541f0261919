//! Figures of this process. Those that cannot be read are left out.

use crate::process;
use crate::telemetry::{Sample, SampleKind};

/// Memory, descriptors, processor time.
pub(super) fn samples() -> Vec<Sample> {
    use SampleKind::{Counter, Gauge};
    let figure = |value: Option<u64>| value.map(|value| value as f64);
    let figures: [(&'static str, &'static str, SampleKind, Option<f64>); 5] = [
        (
            "tributary_process_resident_memory_bytes",
            "Resident memory.",
            Gauge,
            figure(process::resident_bytes()),
        ),
        (
            "tributary_process_peak_resident_memory_bytes",
            "Highest resident memory.",
            Gauge,
            figure(process::peak_resident_bytes()),
        ),
        (
            "tributary_process_open_descriptors",
            "Open file descriptors.",
            Gauge,
            figure(process::open_descriptors()),
        ),
        (
            "tributary_process_max_descriptors",
            "Limit of file descriptors.",
            Gauge,
            figure(process::descriptor_limit()),
        ),
        (
            "tributary_process_cpu_seconds_total",
            "Processor time used, user and system.",
            Counter,
            process::processor_seconds(),
        ),
    ];
    figures
        .into_iter()
        .filter_map(|(name, help, kind, value)| {
            Some(Sample { name, help, kind, labels: Vec::new(), value: value? })
        })
        .collect()
}
