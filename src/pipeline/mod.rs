//! Configuration becomes running parts: build in reverse (outputs first), start, stop, and what monitors may see.

/// What monitor_agent, prometheus and the last line may see of everything that runs.
#[derive(Default)]
pub struct Overview {}

/// A running part could not be made. Text says what, where and what to do.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct BuildError(pub String);
