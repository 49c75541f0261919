//! `stdout`: events as text on the terminal (or into the log file with `-o`), for looking at them.
//!
//! ```text
//! <match debug.**>
//!   @type stdout
//!   <format>
//!     @type json
//!   </format>
//! </match>
//! ```
//!
//! Without `<buffer>` each batch is written before its sender is confirmed.
//!
//! Source: Fluentd `out_stdout.rb`.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::future::BoxFuture;

use super::buffer_section::Chunking;
use super::{Buffering, Output, OutputConfig, OutputContext, OutputPlugin, WriteError};
use crate::buffer::Chunk;
use crate::config::{BuildError, Diagnostics, Element};
use crate::event::EventStream;
use crate::formatter::{self, FormatError, Formatter, Scratch};
use crate::telemetry::{PluginMetrics, log};

/// Text collected before one write call, so that a batch of any size costs bounded memory.
const PIECE_BYTES: usize = 1 << 16;

crate::params! {
    /// Events as text on the terminal.
    pub struct StdoutParams {}
    inert { "use_logger" => "text goes where the log goes: to the standard output, or into the file of -o" }
    unbuilt { "<inject>", "include_time_key" unless "false", "include_tag_key" unless "false" }
    foreign { "buffer", "format", "secondary" }
    foreign_parameters {
        "format", "delimiter", "force_quotes", "keys", "fields", "json_parser", "label_delimiter", "output_time",
        "output_tag", "localtime", "utc", "timezone", "message_key", "add_newline", "output_type"
    }
}

/// Line in the table of outputs.
pub const PLUGIN: OutputPlugin = OutputPlugin {
    names: &["stdout"],
    spec: &StdoutParams::SPEC,
    buffering: Buffering::Optional { default_keys: &["tag"] },
    configure,
};

fn configure(
    element: &Element,
    chunking: Option<&Chunking>,
    diagnostics: &mut Diagnostics,
) -> Option<Box<dyn OutputConfig>> {
    let params = StdoutParams::from_element(element, diagnostics);
    let formatter = formatter::configure_for(element, "stdout", diagnostics);
    params?;
    Some(Box::new(StdoutConfig { formatter: formatter?, tag_is_key: chunking?.keys.tag }))
}

struct StdoutConfig {
    formatter: Arc<dyn Formatter>,
    tag_is_key: bool,
}

impl OutputConfig for StdoutConfig {
    fn build(self: Box<Self>, context: OutputContext) -> Result<Arc<dyn Output>, BuildError> {
        Ok(Arc::new(StdoutOutput {
            formatter: self.formatter,
            metrics: context.metrics,
            tag_is_key: self.tag_is_key,
        }))
    }
}

struct StdoutOutput {
    formatter: Arc<dyn Formatter>,
    metrics: Arc<PluginMetrics>,
    tag_is_key: bool,
}

/// A run of events with the tag that those without their own have.
type Run = (Vec<u8>, bytes::Bytes);

impl StdoutOutput {
    async fn write_runs(&self, runs: Vec<Run>) -> Result<(), WriteError> {
        let formatter = Arc::clone(&self.formatter);
        // The terminal may be slow or stopped: never on the threads that serve sockets.
        let task = move || write_to(formatter.as_ref(), &runs, &mut log::write_events);
        let written = tokio::task::spawn_blocking(task).await;
        let written = written.map_err(|error| WriteError::Unwell(format!("writing was stopped: {error}")))?;
        self.metrics.replaced_values.fetch_add(written?, Ordering::Relaxed);
        Ok(())
    }
}

impl From<FormatError> for WriteError {
    fn from(error: FormatError) -> Self {
        Self::Unrecoverable(error.to_string())
    }
}

/// Formats and writes; answers how many values had to be replaced.
fn write_to(
    formatter: &dyn Formatter,
    runs: &[Run],
    sink: &mut dyn FnMut(&[u8]) -> std::io::Result<()>,
) -> Result<u64, WriteError> {
    let mut replaced = 0;
    for (tag, entries) in runs {
        let mut scratch = Scratch::default();
        let slices = std::iter::once(&entries[..]);
        formatter::format_in_pieces(formatter, tag, slices, PIECE_BYTES, &mut scratch, &mut |piece| {
            sink(piece)
                .map_err(|error| WriteError::Unwell(format!("cannot write to the standard output: {error}")))
        })?;
        replaced += scratch.replaced;
    }
    Ok(replaced)
}

impl Output for StdoutOutput {
    fn write(&self, chunk: Arc<Chunk>) -> BoxFuture<'_, Result<(), WriteError>> {
        let tag = chunk.metadata.tag.as_ref().map(|tag| tag.as_bytes().to_vec()).unwrap_or_default();
        Box::pin(self.write_runs(chunk.payload.iter().map(|slice| (tag.clone(), slice.clone())).collect()))
    }

    fn process(&self, streams: Vec<EventStream>) -> BoxFuture<'_, Result<(), WriteError>> {
        let run = |stream: EventStream| (stream.tag.as_bytes().to_vec(), stream.entries);
        Box::pin(self.write_runs(streams.into_iter().map(run).collect()))
    }

    fn wants_tag_in_entries(&self) -> bool {
        !self.tag_is_key && self.formatter.uses_tag()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{EventTime, msgpack};
    use crate::time::with_local_zone;

    fn formatter(element: &Element) -> Arc<dyn Formatter> {
        let mut diagnostics = Diagnostics::new();
        let formatter =
            with_local_zone("Etc/UTC", || formatter::configure_for(element, "stdout", &mut diagnostics));
        assert!(diagnostics.is_empty(), "{}", diagnostics.render());
        formatter.expect("configured")
    }

    #[test]
    fn lines_have_time_tag_and_json_and_exactly_one_line_feed() {
        let mut entries = Vec::new();
        msgpack::write_entry(&mut entries, EventTime::Int(5), &[0x81, 0xa1, b'a', 1]);
        let runs = [(b"x.y".to_vec(), entries.into())];
        let mut text = Vec::new();
        let mut sink = |piece: &[u8]| {
            text.extend_from_slice(piece);
            Ok(())
        };
        write_to(formatter(&Element::new("match", "")).as_ref(), &runs, &mut sink).expect("written");
        assert_eq!(String::from_utf8_lossy(&text), "1970-01-01 00:00:05.000000000 +0000 x.y: {\"a\":1}\n");
    }

    #[test]
    fn a_closed_terminal_is_told_and_retried() {
        let mut entries = Vec::new();
        msgpack::write_entry(&mut entries, EventTime::Int(5), &[0x80]);
        let mut sink = |_: &[u8]| Err(std::io::ErrorKind::BrokenPipe.into());
        let result = write_to(
            formatter(&Element::new("match", "")).as_ref(),
            &[(Vec::new(), entries.into())],
            &mut sink,
        );
        assert!(matches!(result, Err(WriteError::Unwell(_))), "{result:?}");
    }
}
