//! Configuration becomes running parts: check, build in reverse (outputs first), start, stop, and what monitors may see.

mod build;
mod lifecycle;
mod overview;
mod plan;

#[cfg(test)]
mod tests;

pub use lifecycle::{Running, StopSummary};
pub use overview::{
    Category, MetricFamily, Overview, PluginView, ProcessInfo, Reading, RetryStatus, Sample, SampleKind,
    TagTest,
};
pub use plan::{Plan, check, spec_of};

/// A running part could not be made. Text says what, where and what to do.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct BuildError(pub String);
