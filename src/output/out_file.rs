//! `file`: chunks become files, one per chunk and time slice, or are appended to one.
//!
//! ```text
//! <match app.**>
//!   @type file
//!   path /var/log/tributary/app.%Y-%m-%d
//!   append true
//!   <format>
//!     @type json
//!   </format>
//!   <buffer time>
//!     timekey 1d
//!   </buffer>
//! </match>
//! ```
//!
//! A chunk counts as delivered when its text is in the file and, unless `fsync` is off, on stable storage. With
//! `append false` a file appears under its name only when it is whole. With `append true` a failed write is taken back
//! to the length before; after a crash inside a write the torn line is ended first, so that it spoils no other.
//!
//! Source: Fluentd `out_file.rb`.

mod path;
mod writer;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::future::BoxFuture;

use super::buffer_section::Chunking;
use super::placeholder::{self, Template};
use super::{Buffering, Output, OutputConfig, OutputContext, OutputPlugin, WriteError};
use crate::buffer::Chunk;
use crate::config::{BuildError, Diagnostics, Element, FsyncPolicy, OctalMode};
use crate::formatter::{self, Formatter, Scratch};
use crate::telemetry::PluginMetrics;
use path::{PathError, PathTemplate};
use writer::{FileWriter, Permissions, WriteFault};

/// `timekey` when the configuration is silent (Fluentd's default for this plugin): a day.
const DEFAULT_TIMEKEY_SECONDS: i64 = 86_400;

/// Text collected before one write call: large enough that calls cost nothing, small enough to stay in the processor's
/// cache until the kernel has copied it.
const PIECE_BYTES: usize = 256 << 10;

crate::params! {
    /// Chunks become files.
    pub struct OutFileParams {
        /// Where files go, with placeholders and strftime codes. `*` stands for time slice and index.
        path: String,
        /// Whether chunks of one path are appended to one file; else each gets a file with an index.
        append: bool = "false",
        /// Whether `path_suffix` is added.
        add_path_suffix: bool = "true",
        /// The end of the file name.
        path_suffix: String = ".log",
    }
    unbuilt {
        "compress" unless "text", "recompress" unless "false", "symlink_path",
        "symlink_path_use_relative" unless "false", "<inject>", "include_time_key" unless "false",
        "include_tag_key" unless "false"
    }
    foreign { "buffer", "format", "secondary" }
    foreign_parameters {
        "format", "delimiter", "force_quotes", "keys", "fields", "json_parser", "label_delimiter", "output_time",
        "output_tag", "localtime", "utc", "timezone", "message_key", "add_newline", "output_type",
        "time_slice_format", "time_slice_wait", "buffer_type", "buffer_path", "num_threads", "flush_interval",
        "try_flush_interval", "queued_chunk_flush_interval", "disable_retry_limit", "retry_limit", "retry_wait",
        "max_retry_wait", "buffer_chunk_limit", "buffer_queue_limit", "buffer_queue_full_action",
        "flush_at_shutdown"
    }
}

/// Line in the table of outputs.
pub const PLUGIN: OutputPlugin = OutputPlugin {
    names: &["file"],
    spec: &OutFileParams::SPEC,
    buffering: Buffering::Always {
        default_keys: &["time"],
        default_type: "file",
        default_timekey_seconds: Some(DEFAULT_TIMEKEY_SECONDS),
    },
    configure,
};

fn configure(
    element: &Element,
    chunking: Option<&Chunking>,
    diagnostics: &mut Diagnostics,
) -> Option<Box<dyn OutputConfig>> {
    let params = OutFileParams::from_element(element, diagnostics);
    let formatter = formatter::configure_for(element, "out_file", diagnostics);
    let (params, formatter, chunking) = (params?, formatter?, chunking?.clone());
    let path = path_template(&params, element, &chunking, diagnostics)?;
    Some(Box::new(FileConfig { params, formatter, path, chunking }))
}

/// How files are named, checked against the chunk keys.
fn path_template(
    params: &OutFileParams,
    element: &Element,
    chunking: &Chunking,
    diagnostics: &mut Diagnostics,
) -> Option<PathTemplate> {
    let slice_format = chunking.timekey.as_ref().map(|timekey| match element.text("time_slice_format") {
        Some(format) => format,
        None => path::timekey_format(Some(timekey.unit_seconds)),
    });
    let span = element.param("path").map_or(&params.span, |param| &param.span);
    let suffix = if params.add_path_suffix { params.path_suffix.as_str() } else { "" };
    let path = match PathTemplate::new(&params.path, slice_format, params.append, suffix) {
        Ok(path) => path,
        Err(error) => {
            report_path(error, span, diagnostics);
            return None;
        }
    };
    let faults = placeholder::validate(&path.to_string(), &chunking.keys);
    for fault in &faults {
        diagnostics.fault(span, format!("Parameter 'path: {path}' {fault}"));
    }
    faults.is_empty().then_some(path)
}

fn report_path(error: PathError, span: &crate::config::Span, diagnostics: &mut Diagnostics) {
    let hint = match error {
        PathError::StarWithoutTime => "write <buffer time>, or a path without '*'",
        PathError::TooFewCodes(_) => "add the missing codes, or take all of them out and let them be added",
    };
    diagnostics.fault(span, error.to_string()).hint(hint);
}

struct FileConfig {
    params: OutFileParams,
    formatter: Arc<dyn Formatter>,
    path: PathTemplate,
    chunking: Chunking,
}

impl OutputConfig for FileConfig {
    fn build(self: Box<Self>, context: OutputContext) -> Result<Arc<dyn Output>, BuildError> {
        let (keys, zone) = (&self.chunking.keys, self.chunking.zone());
        let template = |text: &str| Template::new(text, keys, zone.clone());
        writer::check_writable(&self.path.before).map_err(BuildError)?;
        let mode = |mode: Option<OctalMode>, silent: u32| mode.map_or(silent, |mode| mode.0);
        let silent = Permissions::default();
        let permissions = Permissions {
            file: mode(context.system.file_permission, silent.file),
            directory: mode(context.system.dir_permission, silent.directory),
        };
        // Without `fsync ack` the events were confirmed before they were safe in the buffer either.
        let sync = context.system.fsync == FsyncPolicy::Ack;
        Ok(Arc::new(FileOutput {
            plugin_id: context.plugin_id,
            metrics: context.metrics,
            tag_is_known: keys.tag || !self.formatter.uses_tag(),
            formatter: self.formatter,
            before: template(&self.path.before),
            after: template(&self.path.after),
            writer: Arc::new(FileWriter::new(self.params.append, sync, permissions)),
        }))
    }

    fn default_buffer_path(&self) -> Option<String> {
        Some(self.params.path.clone())
    }
}

/// A running file output.
struct FileOutput {
    plugin_id: String,
    metrics: Arc<PluginMetrics>,
    /// The tag of every event is a chunk key, or the format does not show it.
    tag_is_known: bool,
    formatter: Arc<dyn Formatter>,
    before: Template,
    after: Template,
    writer: Arc<FileWriter>,
}

impl Output for FileOutput {
    fn write(&self, chunk: Arc<Chunk>) -> BoxFuture<'_, Result<(), WriteError>> {
        Box::pin(async move {
            let expand = |template: &Template| {
                template
                    .expand(&chunk.metadata, chunk.id)
                    .map_err(|error| WriteError::Unrecoverable(error.to_string()))
            };
            let (before, after) = (expand(&self.before)?, expand(&self.after)?);
            let (formatter, writer) = (Arc::clone(&self.formatter), Arc::clone(&self.writer));
            // Formatting and syncing take milliseconds: not on the threads that serve sockets.
            let task = move || write_chunk(&writer, formatter.as_ref(), &before, &after, &chunk);
            let written = tokio::task::spawn_blocking(task).await;
            let written =
                written.map_err(|error| WriteError::Unwell(format!("writing was stopped: {error}")))?;
            let replaced = written.map_err(WriteFault::into_write_error)?;
            if replaced > 0 {
                self.metrics.replaced_values.fetch_add(replaced, Ordering::Relaxed);
                tracing::warn!(
                    plugin_id = %self.plugin_id,
                    count = replaced,
                    "values that text cannot hold were replaced"
                );
            }
            Ok(())
        })
    }

    fn wants_tag_in_entries(&self) -> bool {
        !self.tag_is_known
    }
}

/// Formats a chunk piece by piece into its file; answers how many values had to be replaced.
fn write_chunk(
    writer: &FileWriter,
    formatter: &dyn Formatter,
    before: &[u8],
    after: &[u8],
    chunk: &Chunk,
) -> Result<u64, WriteFault> {
    let tag = chunk.metadata.tag.as_ref().map_or(&[][..], |tag| tag.as_bytes());
    writer.write(before, after, chunk.id, formatter.ends_lines(), &mut |sink| {
        let mut scratch = Scratch::default();
        let slices = chunk.payload.iter().map(|slice| &slice[..]);
        formatter::format_in_pieces(formatter, tag, slices, PIECE_BYTES, &mut scratch, &mut |piece| {
            sink.write_all(piece).map_err(WriteFault::Io)
        })?;
        Ok(scratch.replaced)
    })
}

#[cfg(test)]
pub(super) mod tests;
