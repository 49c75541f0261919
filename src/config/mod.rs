//! Fluentd's configuration language. Knows no plugin.

/// Settings of `<system>`.
#[derive(Debug, Default)]
pub struct SystemConfig {}
/// A section of the file with positions.
#[derive(Debug)]
pub struct Element {}
/// All faults and warnings found so far.
#[derive(Debug, Default)]
pub struct Diagnostics {}
/// The declared parameters of a section.
#[derive(Debug)]
pub struct SectionSpec {}
