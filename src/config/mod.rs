//! Fluentd's configuration language. Knows no plugin.
//!
//! A file becomes a tree of [`Element`]s; a section becomes a typed struct through [`params!`](crate::params); faults and
//! warnings gather in [`Diagnostics`].

mod element;
mod error;
pub mod param;
mod reserved;
mod types;

pub use element::{Element, Param, ParamValue, Quote, Source, Span};
pub use error::{Diagnostic, Diagnostics, Severity, looks_secret, nearest};
pub use param::{
    FreeForm, FromSection, NameRule, ParamSpec, RuleKind, SectionField, SectionSpec, SubsectionSpec,
};
pub use reserved::{LogLevel, Reserved};
pub use types::{
    FromConfig, HashParam, MASK, OctalMode, RegexpText, Seconds, Secret, SizeBytes, Symbol, TypeError,
};

/// Settings of `<system>`.
#[derive(Debug, Default)]
pub struct SystemConfig {}
