//! Configuration becomes running parts: build in reverse (outputs first), start, stop, and what monitors may see.

mod overview;

pub use overview::{
    Category, Overview, PluginView, ProcessInfo, Reading, RetryStatus, Sample, SampleKind, TagTest,
};

/// A running part could not be made. Text says what, where and what to do.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct BuildError(pub String);
