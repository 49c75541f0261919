//! Configuration becomes running parts: check, build in reverse (outputs first), start, stop.

mod build;
mod lifecycle;
mod plan;

#[cfg(test)]
mod tests;

pub use lifecycle::{Running, StopSummary};
pub use plan::{Plan, check, spec_of};
