//! The parameters that every plugin section may hold: `@type`, `@id`, `@label`, `@log_level`.

use super::element::{Element, Param};
use super::error::Diagnostics;
use super::types::{FromConfig, TypeError};

crate::config_enum! {
    /// A log level, lowest first.
    #[derive(PartialOrd, Ord)]
    pub enum LogLevel {
        /// Everything.
        Trace = "trace",
        /// For developers.
        Debug = "debug",
        /// The default.
        Info = "info",
        /// Something to look at.
        Warn = "warn",
        /// Something failed.
        Error = "error",
        /// The process cannot go on.
        Fatal = "fatal",
    }
}

/// What a plugin section says apart from its own parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reserved {
    /// `@type` (old name `type`).
    pub type_name: String,
    /// `@id` (old name `id`): unique in the process.
    pub id: Option<String>,
    /// `@label`: where the events of an input, or of relabel, go.
    pub label: Option<String>,
    /// `@log_level` (old name `log_level`).
    pub log_level: Option<LogLevel>,
}

impl Reserved {
    /// Reads them; a section without `@type` is a fault.
    pub fn from_element(element: &Element, diagnostics: &mut Diagnostics) -> Option<Self> {
        let type_param = either(element, "@type", "type", diagnostics);
        let type_name = type_param.and_then(|param| param.value.text()).map(str::to_owned);
        if type_name.is_none() {
            let message = format!("Missing '@type' parameter on {} directive", directive(element));
            diagnostics.fault(&element.span, message).expected("a plugin type such as @type forward");
        }
        let text = |param: Option<&Param>| param.and_then(|param| param.value.text()).map(str::to_owned);
        let id = text(either(element, "@id", "id", diagnostics));
        let label = text(element.param("@label"));
        let mut log_level = None;
        if let Some(param) = either(element, "@log_level", "log_level", diagnostics)
            && let Some(text) = param.value.text()
        {
            match LogLevel::from_config(text, false) {
                Ok(level) => log_level = Some(level),
                Err(error) => {
                    let expected = match error {
                        TypeError::Enum { options, .. } => options.join(", "),
                        other => other.to_string(),
                    };
                    let message = format!("Unknown log level: level = {text}");
                    diagnostics.fault(&param.span, message).expected(expected);
                }
            }
        }
        Some(Self { type_name: type_name?, id, label, log_level })
    }
}

/// Fluentd names the directive without its argument for sources, with it elsewhere; the tag says more, so we show it.
fn directive(element: &Element) -> String {
    element.tag()
}

/// The parameter under its name, else under its old name with Fluentd's warning.
fn either<'a>(
    element: &'a Element,
    name: &str,
    old_name: &str,
    diagnostics: &mut Diagnostics,
) -> Option<&'a Param> {
    if let Some(param) = element.param(name) {
        return Some(param);
    }
    let param = element.param(old_name)?;
    let message = format!("'{old_name}' is deprecated parameter name. use '{name}' instead.");
    diagnostics.warning(&param.span, message);
    Some(param)
}
