//! An output without a buffer: streams go straight to it and its answer goes back to the input.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::future::BoxFuture;

use super::Output;
use crate::router::Arrival;
use crate::router::{Answers, EmitError, Sink};
use crate::telemetry::PluginMetrics;

/// Hands streams to [`Output::process`].
pub struct DirectSink {
    /// The output.
    pub output: Arc<dyn Output>,
    /// Its counters.
    pub metrics: Arc<PluginMetrics>,
}

impl Sink for DirectSink {
    fn emit(&self, batch: Vec<Arrival>) -> BoxFuture<'static, Answers> {
        let count = batch.len();
        let streams: Vec<_> = batch.into_iter().map(|arrival| arrival.stream).collect();
        let records = streams.iter().map(|stream| stream.count as u64).sum();
        let bytes = streams.iter().map(|stream| stream.entries.len() as u64).sum();
        self.metrics.emit_count.fetch_add(count as u64, Ordering::Relaxed);
        self.metrics.emit_records.fetch_add(records, Ordering::Relaxed);
        self.metrics.emit_bytes.fetch_add(bytes, Ordering::Relaxed);
        let output = Arc::clone(&self.output);
        let metrics = Arc::clone(&self.metrics);
        Box::pin(async move {
            let answer = output.process(streams).await.map_err(|error| {
                metrics.errors.fetch_add(1, Ordering::Relaxed);
                EmitError::Output(error.to_string())
            });
            vec![answer; count]
        })
    }
}
