//! Station 2. Comes from: inputs. Goes to: filters and the first matching output.
//!
//! The router must not know plugins by name, disk or sockets.

mod arrival;
mod error_stream;
mod label;
pub mod pattern;
mod rules;
mod sink;
mod unmatched;

#[cfg(test)]
mod tests;

pub use arrival::Arrival;
pub use error_stream::ErrorStream;
pub use label::{LabelDoor, Labels, ROOT};
pub use rules::{FilterStation, Router, Rule, RuleAction};
pub use sink::{Answers, EmitError, Entrance, Sink};
