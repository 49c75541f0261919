//! The front of a buffered output: splits streams by chunk keys and appends them. The back is `runner.rs`.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::future::BoxFuture;

use crate::buffer::{Append, BufferHandle, Splitter};
use crate::router::Arrival;
use crate::router::{Answers, EmitError, Sink};
use crate::telemetry::PluginMetrics;

/// Puts arrivals into the buffer of one output.
pub struct BufferedSink {
    /// The buffer.
    pub buffer: BufferHandle,
    /// Chunk keys in force.
    pub splitter: Splitter,
    /// The output asked for the tag in each entry ([`super::Output::wants_tag_in_entries`]).
    pub tag_in_entries: bool,
    /// The output's counters.
    pub metrics: Arc<PluginMetrics>,
}

impl Sink for BufferedSink {
    fn emit(&self, batch: Vec<Arrival>) -> BoxFuture<'static, Answers> {
        let streams = batch.len() as u64;
        let mut records = 0;
        let mut bytes = 0;
        let appends = batch
            .into_iter()
            .map(|arrival| {
                records += arrival.stream.count as u64;
                bytes += arrival.stream.entries.len() as u64;
                let mut parts = self.splitter.split(&arrival.stream);
                if self.tag_in_entries {
                    for (_, entries, count) in &mut parts {
                        *entries = crate::event::with_tag(&arrival.stream.tag, entries, *count);
                    }
                }
                Append { parts, sender_chunk: arrival.sender_chunk }
            })
            .collect();
        self.metrics.emit_count.fetch_add(streams, Ordering::Relaxed);
        self.metrics.emit_records.fetch_add(records, Ordering::Relaxed);
        self.metrics.emit_bytes.fetch_add(bytes, Ordering::Relaxed);
        let buffer = self.buffer.clone();
        let metrics = Arc::clone(&self.metrics);
        Box::pin(async move {
            let answers = buffer.append(appends).await;
            let failed = answers.iter().filter(|answer| answer.is_err()).count() as u64;
            if failed > 0 {
                metrics.errors.fetch_add(failed, Ordering::Relaxed);
            }
            answers.into_iter().map(|answer| answer.map_err(EmitError::from)).collect()
        })
    }

    fn is_full(&self) -> bool {
        self.buffer.is_full()
    }
}
