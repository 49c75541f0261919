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
//! Source: Fluentd `out_file.rb`, compat/outputs.md.

mod path;
mod writer;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::future::BoxFuture;

use super::placeholder::{self, Template};
use super::{Buffering, Output, OutputConfig, OutputContext, OutputPlugin, WriteError};
use crate::buffer::{Chunk, ChunkKeys};
use crate::config::{BuildError, Diagnostics, Element, FromConfig as _, FsyncPolicy, OctalMode, Seconds};
use crate::formatter::{self, Formatter, Scratch};
use crate::telemetry::PluginMetrics;
use crate::time::Zone;
use path::{PathError, PathTemplate, TimeSlices};
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

fn configure(element: &Element, diagnostics: &mut Diagnostics) -> Option<Box<dyn OutputConfig>> {
    let params = OutFileParams::from_element(element, diagnostics);
    let formatter = formatter::configure_for(element, "out_file", diagnostics);
    let slicing = Slicing::read(element, diagnostics);
    let (params, formatter, slicing) = (params?, formatter?, slicing?);
    let span = element.param("path").map_or(&params.span, |param| &param.span);
    let suffix = if params.add_path_suffix { params.path_suffix.as_str() } else { "" };
    let path = match PathTemplate::new(&params.path, slicing.slices.as_ref(), params.append, suffix) {
        Ok(path) => path,
        Err(error) => {
            report_path(error, span, diagnostics);
            return None;
        }
    };
    let faults = placeholder::validate(&path.to_string(), &slicing.keys);
    if !faults.is_empty() {
        for fault in faults {
            diagnostics.fault(span, format!("Parameter 'path: {path}' {fault}"));
        }
        return None;
    }
    Some(Box::new(FileConfig { params, formatter, path, slicing }))
}

fn report_path(error: PathError, span: &crate::config::Span, diagnostics: &mut Diagnostics) {
    let hint = match error {
        PathError::StarWithoutTime => "write <buffer time>, or a path without '*'",
        PathError::TooFewCodes(_) => "add the missing codes, or take all of them out and let them be added",
    };
    diagnostics.fault(span, error.to_string()).hint(hint);
}

/// What `<buffer>` (or flat v0.12 parameters) say that decides file names.
#[derive(Debug)]
struct Slicing {
    keys: ChunkKeys,
    /// `None` without chunk key `time`.
    slices: Option<TimeSlices>,
    zone: Zone,
}

impl Slicing {
    /// Reads only what it needs; the buffer's own reader checks the section and reports unknown names.
    fn read(element: &Element, diagnostics: &mut Diagnostics) -> Option<Self> {
        let nothing = Element::new("buffer", "");
        let buffer = element.child("buffer").unwrap_or(&nothing);
        let keys = read_keys(&buffer.argument);
        let flat_format = element.text("time_slice_format").filter(|_| element.child("buffer").is_none());
        let timekey = match (flat_format, buffer.text("timekey")) {
            (Some(format), _) => path::timekey_of_format(format),
            // A value that is no time is reported by the buffer's own reader.
            (None, Some(text)) => {
                Some(Seconds::from_config(text, false).map_or(0, |seconds| seconds.0 as i64))
            }
            (None, None) => Some(DEFAULT_TIMEKEY_SECONDS),
        };
        let Some(timekey_seconds) = timekey else {
            let span = element.param("time_slice_format").map_or(&element.span, |param| &param.span);
            diagnostics.fault(span, "time_slice_format only with %Y or %m is too long");
            return None;
        };
        let slices = keys.time.then(|| TimeSlices {
            timekey_seconds,
            format: flat_format
                .map_or_else(|| path::timekey_format(Some(timekey_seconds)).to_owned(), str::to_owned),
        });
        let zone = read_zone(element, buffer, diagnostics)?;
        Some(Self { keys, slices, zone })
    }
}

fn read_keys(argument: &str) -> ChunkKeys {
    if argument.trim().is_empty() {
        return ChunkKeys { time: true, ..ChunkKeys::default() };
    }
    let mut keys = ChunkKeys::default();
    for key in Vec::<String>::from_config(argument, false).unwrap_or_default() {
        match key.as_str() {
            "tag" => keys.tag = true,
            "time" => keys.time = true,
            "" => {}
            _ => keys.fields.push(key),
        }
    }
    keys
}

fn read_zone(plugin: &Element, buffer: &Element, diagnostics: &mut Diagnostics) -> Option<Zone> {
    let utc = buffer.text("timekey_use_utc").is_some_and(|text| bool::from_config(text, false) == Ok(true));
    let name = match plugin.child("buffer") {
        Some(buffer) => buffer.text("timekey_zone"),
        None => plugin.text("timezone"),
    };
    match name {
        _ if utc => Some(Zone::Utc),
        None => Some(Zone::local()),
        Some(name) => {
            Zone::parse(name).map_err(|error| diagnostics.fault(&buffer.span, error.to_string())).ok()
        }
    }
}

struct FileConfig {
    params: OutFileParams,
    formatter: Arc<dyn Formatter>,
    path: PathTemplate,
    slicing: Slicing,
}

impl OutputConfig for FileConfig {
    fn build(self: Box<Self>, context: OutputContext) -> Result<Arc<dyn Output>, BuildError> {
        let keys = &self.slicing.keys;
        let template = |text: &str| Template::new(text, keys, self.slicing.zone.clone());
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
