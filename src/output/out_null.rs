//! `null`: takes everything and throws it away.
//!
//! ```text
//! <match debug.**>
//!   @type null
//! </match>
//! ```
//!
//! Source: Fluentd `out_null.rb`.

use std::sync::Arc;

use futures_util::future::BoxFuture;

use super::buffer_section::Chunking;
use super::{Buffering, Output, OutputConfig, OutputContext, OutputPlugin, WriteError};
use crate::buffer::Chunk;
use crate::config::{BuildError, Diagnostics, Element};
use crate::event::EventStream;

crate::params! {
    /// Takes everything and throws it away.
    pub struct NullParams {
        /// For tests of buffers and retries: every flush fails.
        never_flush: bool = "false",
    }
    foreign { "buffer", "secondary" }
}

/// Line in the table of outputs.
pub const PLUGIN: OutputPlugin = OutputPlugin {
    names: &["null"],
    spec: &NullParams::SPEC,
    buffering: Buffering::Optional { default_keys: &[] },
    configure,
};

fn configure(
    element: &Element,
    _: Option<&Chunking>,
    diagnostics: &mut Diagnostics,
) -> Option<Box<dyn OutputConfig>> {
    NullParams::from_element(element, diagnostics)
        .map(|params| Box::new(NullOutput { never_flush: params.never_flush }) as Box<dyn OutputConfig>)
}

struct NullOutput {
    never_flush: bool,
}

impl OutputConfig for NullOutput {
    fn build(self: Box<Self>, _context: OutputContext) -> Result<Arc<dyn Output>, BuildError> {
        Ok(Arc::from(self as Box<dyn Output>))
    }
}

impl Output for NullOutput {
    fn write(&self, _chunk: Arc<Chunk>) -> BoxFuture<'_, Result<(), WriteError>> {
        let result = match self.never_flush {
            true => Err(WriteError::Unwell("failed to flush chunk".to_owned())),
            false => Ok(()),
        };
        Box::pin(std::future::ready(result))
    }

    fn process(&self, _streams: Vec<EventStream>) -> BoxFuture<'_, Result<(), WriteError>> {
        Box::pin(std::future::ready(Ok(())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn takes_streams_and_refuses_chunks_only_when_told() {
        let configured = |text: &str| {
            let element = Element::new("match", "**").with_param("never_flush", text);
            let mut diagnostics = Diagnostics::new();
            let params = NullParams::from_element(&element, &mut diagnostics).expect("configured");
            NullOutput { never_flush: params.never_flush }
        };
        let chunk = Arc::new(super::super::out_file::tests::chunk_of(&[]));
        assert!(configured("false").write(Arc::clone(&chunk)).await.is_ok());
        assert!(matches!(configured("true").write(chunk).await, Err(WriteError::Unwell(_))));
        assert!(configured("true").process(Vec::new()).await.is_ok());
    }
}
