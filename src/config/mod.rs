//! Fluentd's configuration language. Knows no plugin.
//!
//! A file becomes a tree of [`Element`]s; a section becomes a typed struct through [`params!`](crate::params); faults and
//! warnings gather in [`Diagnostics`].

mod document;
mod dump;
mod element;
mod environment;
mod error;
mod include;
mod literal;
pub mod param;
mod reserved;
mod ruby;
mod system;
mod types;
mod v1_parser;

pub use document::{
    Directive, DirectiveKind, Document, Label, LoadOptions, WorkerRange, load, parse_text, parse_text_in,
};
pub use dump::SpecOf;
pub use element::{Element, Param, ParamValue, Quote, Source, Span};
pub use environment::{DirectoryEntry, Environment, FixedEnvironment, MAX_FILE_BYTES, ProcessEnvironment};
pub use error::{BuildError, Diagnostic, Diagnostics, Severity, looks_secret, nearest};
pub use param::{
    FreeForm, FromSection, NameRule, ParamSpec, RuleKind, SectionField, SectionSpec, SubsectionSpec,
};
pub use reserved::{LogLevel, Reserved};
pub use system::{DEFAULT_MEMORY_LIMIT_BYTES, FsyncPolicy, LogFormat, LogParams, SystemConfig};
pub use types::{
    FromConfig, HashParam, MASK, OctalMode, RegexpText, Seconds, Secret, SizeBytes, Symbol, TypeError,
};
