//! The running whole, and how it stops.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::{Instant, timeout_at};

use crate::buffer::BufferHandle;
use crate::input::Input;
use crate::output::Output;
use crate::output::runner::Runner;

/// One output and, if it has one, its buffer with the tasks that empty it.
pub(super) struct RunningOutput {
    id: String,
    output: Arc<dyn Output>,
    buffered: Option<Buffered>,
}

struct Buffered {
    buffer: BufferHandle,
    runner: Runner,
    flush_at_shutdown: bool,
}

impl RunningOutput {
    pub(super) fn direct(id: String, output: Arc<dyn Output>) -> Self {
        Self { id, output, buffered: None }
    }

    pub(super) fn buffered(
        id: String,
        output: Arc<dyn Output>,
        buffer: BufferHandle,
        runner: Runner,
        flush_at_shutdown: bool,
    ) -> Self {
        Self { id, output, buffered: Some(Buffered { buffer, runner, flush_at_shutdown }) }
    }

    async fn stop(self, deadline: Instant) -> Option<Leftover> {
        let Some(Buffered { buffer, runner, flush_at_shutdown }) = self.buffered else {
            // The deadline is kept by the caller; an output that hangs is dropped.
            let _ = timeout_at(deadline, self.output.stop()).await;
            return None;
        };
        if timeout_at(deadline, buffer.close(flush_at_shutdown)).await.is_err() {
            tracing::warn!(plugin_id = %self.id, "the buffer was not closed in time; what it had confirmed is safe");
        }
        runner.stop(deadline).await;
        // The commits of the last writes are carried out before the figures are read.
        let _ = timeout_at(deadline, buffer.close(false)).await;
        let stats = buffer.stats();
        let chunks = stats.stage_length + stats.queue_length;
        let bytes = stats.stage_bytes + stats.queue_bytes;
        (chunks > 0).then_some(Leftover { id: self.id, chunks, bytes })
    }
}

/// What one buffer still holds.
#[derive(Debug)]
pub struct Leftover {
    /// The output.
    pub id: String,
    /// Chunks.
    pub chunks: usize,
    /// Bytes of events.
    pub bytes: u64,
}

/// What a stop left behind, for the last line of the log.
#[derive(Debug, Default)]
pub struct StopSummary {
    /// Buffers that are not empty; those in memory lose their content with the process.
    pub left: Vec<Leftover>,
}

/// Everything that runs.
pub struct Running {
    inputs: Vec<Box<dyn Input>>,
    outputs: Vec<RunningOutput>,
}

/// What stopping the inputs may take of the whole: the outputs need the rest.
const INPUT_SHARE: f64 = 0.5;

impl Running {
    pub(super) fn new(inputs: Vec<Box<dyn Input>>, outputs: Vec<RunningOutput>) -> Self {
        Self { inputs, outputs }
    }

    /// Queues everything that is staged (SIGUSR1).
    pub fn flush(&self) {
        for buffered in self.outputs.iter().filter_map(|output| output.buffered.as_ref()) {
            buffered.buffer.enqueue_all();
        }
    }

    /// Inputs stop and confirm what they stored, buffers close, outputs end; at `limit` whatever is left is dropped.
    pub async fn stop(mut self, limit: Duration) -> StopSummary {
        let now = Instant::now();
        let inputs_deadline = now + limit.mul_f64(INPUT_SHARE);
        let stopped =
            timeout_at(inputs_deadline, join_all(self.inputs.iter_mut().map(|input| input.stop()))).await;
        if stopped.is_err() {
            tracing::warn!("inputs did not stop in time; what they had not confirmed will be sent again");
        }
        drop(std::mem::take(&mut self.inputs));
        let deadline = now + limit;
        let left = join_all(self.outputs.into_iter().map(|output| output.stop(deadline))).await;
        StopSummary { left: left.into_iter().flatten().collect() }
    }
}
