//! `debug_agent`: accepted and ignored. In Fluentd it is a remote Ruby shell.
//!
//! ```text
//! <source>
//!   @type debug_agent
//! </source>
//! ```

use futures_util::future::BoxFuture;

use super::{Input, InputConfig, InputContext, InputPlugin};
use crate::config::{BuildError, Diagnostics, Element};

crate::params! {
    /// Accepted and ignored.
    pub struct DebugAgentParams {}
    foreign_parameters { "bind", "port", "unix_path", "object" }
}

/// Line in the table of inputs.
pub const PLUGIN: InputPlugin =
    InputPlugin { names: &["debug_agent"], spec: &DebugAgentParams::SPEC, configure };

fn configure(element: &Element, diagnostics: &mut Diagnostics) -> Option<Box<dyn InputConfig>> {
    let params = DebugAgentParams::from_element(element, diagnostics)?;
    element.mark_all_used();
    diagnostics
        .warning(&params.span, "debug_agent is ignored: it is a remote Ruby shell, and there is no Ruby here")
        .hint("use monitor_agent or prometheus to look inside");
    Some(Box::new(Nothing))
}

/// An input that does nothing.
pub(super) struct Nothing;

impl InputConfig for Nothing {
    fn build(self: Box<Self>, _context: InputContext) -> Result<Box<dyn Input>, BuildError> {
        Ok(self)
    }
}

impl Input for Nothing {
    fn start(&mut self) {}

    fn stop(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_accepted_with_a_warning() {
        let element =
            Element::new("source", "").with_param("@type", "debug_agent").with_param("port", "24230");
        let mut diagnostics = Diagnostics::new();
        assert!(configure(&element, &mut diagnostics).is_some());
        assert_eq!((diagnostics.faults().count(), diagnostics.warnings().count()), (0, 1));
    }
}
