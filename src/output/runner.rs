//! The back of a buffered output: takes chunks, delivers them, applies retry.
//!
//! `flush_thread_count` × [`Output::chunks_in_flight_per_thread`] tasks take chunks. While the destination is unwell
//! exactly one of them tries at each due time; the others wait, so an outage costs one chunk's work per try.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;

use super::retry::{Retry, RetryPolicy, Verdict};
use super::{Output, WriteError};
use crate::buffer::{BufferHandle, Chunk, ChunkId};
use crate::event::EventTime;
use crate::telemetry::{PluginMetrics, RetryStatus};
use crate::time::{TimeFormat, Zone};

/// How chunks are delivered: the flush and retry parameters of `<buffer>`.
#[derive(Clone, Debug)]
pub struct RunnerConfig {
    /// `flush_thread_count`: concurrent flushes (per thread several with pipelining outputs). 0: nothing is flushed.
    pub flush_thread_count: usize,
    /// `retry_*`.
    pub retry: RetryPolicy,
    /// `slow_flush_log_threshold`.
    pub slow_flush_threshold: Duration,
}

/// Refusals are remembered for this many chunks; a destination that refuses more at once is unwell as a whole.
const REFUSED_CHUNKS_MAX: usize = 1024;

struct Shared {
    plugin_id: String,
    output: Arc<dyn Output>,
    buffer: BufferHandle,
    metrics: Arc<PluginMetrics>,
    config: RunnerConfig,
    epoch: Instant,
    epoch_wall: SystemTime,
    state: Mutex<State>,
    /// Rung whenever the state may let another task through.
    changed: Notify,
}

struct State {
    retry: Retry,
    /// A task is trying while the destination is unwell.
    trying: bool,
    /// Chunks that the destination refused, with their own retry state.
    refused: HashMap<ChunkId, Retry>,
}

/// Running flush tasks of one output.
pub struct Runner {
    shared: Arc<Shared>,
    tasks: JoinSet<()>,
    watch: AbortHandle,
}

impl Runner {
    /// Spawns the flush tasks.
    pub fn start(
        plugin_id: String,
        output: Arc<dyn Output>,
        buffer: BufferHandle,
        metrics: Arc<PluginMetrics>,
        config: RunnerConfig,
    ) -> Self {
        let count = config.flush_thread_count * output.chunks_in_flight_per_thread().max(1);
        let state = State { retry: Retry::new(config.retry.clone()), trying: false, refused: HashMap::new() };
        let shared = Arc::new(Shared {
            plugin_id,
            output,
            buffer,
            metrics,
            config,
            epoch: Instant::now(),
            epoch_wall: SystemTime::now(),
            state: Mutex::new(state),
            changed: Notify::new(),
        });
        let mut tasks = JoinSet::new();
        for _ in 0..count {
            tasks.spawn(Arc::clone(&shared).flush());
        }
        let watch = tokio::spawn(Arc::clone(&shared).watch_recovery()).abort_handle();
        Self { shared, tasks, watch }
    }

    /// Where the retries stand, for monitors.
    pub fn retry_reading(&self) -> impl Fn() -> Option<RetryStatus> + Send + Sync + use<> {
        let shared = Arc::clone(&self.shared);
        move || shared.retry_status()
    }

    /// Waits until the buffer is drained (it must be closed) or the destination is unwell, then ends every task and
    /// closes the output. A `write` that still runs at `deadline` is dropped; its chunk stays in the buffer.
    pub async fn stop(mut self, deadline: Instant) {
        loop {
            tokio::select! {
                joined = self.tasks.join_next() => if joined.is_none() { break },
                () = tokio::time::sleep_until(deadline) => break,
                // A failing destination ends the flushing at shutdown, as in Fluentd.
                () = self.shared.unwell() => break,
            }
        }
        self.watch.abort();
        self.tasks.shutdown().await;
        self.shared.output.stop().await;
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Duration {
        self.epoch.elapsed()
    }

    fn retry_status(&self) -> Option<RetryStatus> {
        let state = self.state();
        let (steps, start) = state.retry.progress()?;
        let next = state.retry.next()?;
        Some(RetryStatus {
            start: self.epoch_wall + start,
            steps: u64::from(steps),
            next_time: self.epoch_wall + next,
        })
    }

    async fn flush(self: Arc<Self>) {
        loop {
            let permit = self.permit().await;
            let Some(chunk) = self.buffer.take().await else { return };
            let turn = Turn { shared: Arc::clone(&self), chunk, settled: false };
            if !permit.sole && self.state().retry.next().is_some() {
                // The destination fell ill while this task waited for a chunk: back to the queue, wait for a permit.
                continue;
            }
            self.deliver(turn).await;
        }
    }

    /// Tries at once when the destination is seen to be well again.
    async fn watch_recovery(self: Arc<Self>) {
        loop {
            self.output.recovered().await;
            self.state().retry.hasten(self.now());
            self.changed.notify_waiters();
        }
    }

    /// Waits until a try may be made: at once while the destination is well, else alone and when it is due.
    /// No chunk is held meanwhile, so an outage holds no payload in memory.
    async fn permit(self: &Arc<Self>) -> Permit {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let due = {
                let mut state = self.state();
                match state.retry.next() {
                    None => return Permit { shared: Arc::clone(self), sole: false },
                    Some(_) if state.trying => None,
                    Some(next) if next <= self.now() => {
                        state.trying = true;
                        return Permit { shared: Arc::clone(self), sole: true };
                    }
                    Some(next) => Some(next),
                }
            };
            match due {
                Some(next) => tokio::select! {
                    () = tokio::time::sleep_until(self.epoch + next) => {}
                    () = changed => {}
                },
                None => changed.await,
            }
        }
    }

    async fn deliver(&self, mut turn: Turn) {
        let chunk = Arc::clone(&turn.chunk);
        let started = Instant::now();
        let result = self.output.write(Arc::clone(&chunk)).await;
        turn.settled = true;
        let elapsed = started.elapsed();
        self.metrics.flush_time_ms.fetch_add(elapsed.as_millis() as u64, Ordering::Relaxed);
        if elapsed > self.config.slow_flush_threshold {
            self.metrics.slow_flush_count.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(
                elapsed_time = elapsed.as_secs_f64(),
                slow_flush_log_threshold = self.config.slow_flush_threshold.as_secs_f64(),
                plugin_id = %self.plugin_id,
                "buffer flush took longer time than slow_flush_log_threshold:"
            );
        }
        match result {
            Ok(()) => self.delivered(&chunk),
            Err(WriteError::Unrecoverable(reason)) => {
                self.metrics.errors.fetch_add(1, Ordering::Relaxed);
                self.buffer.set_aside(chunk.id, reason);
                self.state().refused.remove(&chunk.id);
            }
            Err(WriteError::Unwell(reason)) => self.unwell_after(&chunk, &reason),
            Err(WriteError::Refused(reason)) => self.refused(&chunk, &reason),
        }
    }

    fn delivered(&self, chunk: &Chunk) {
        self.buffer.commit(chunk.id);
        self.metrics.write_count.fetch_add(1, Ordering::Relaxed);
        let recovered = {
            let mut state = self.state();
            state.refused.remove(&chunk.id);
            state.retry.on_success()
        };
        if recovered {
            tracing::warn!(plugin_id = %self.plugin_id, chunk_id = %chunk.id, "retry succeeded.");
            self.changed.notify_waiters();
        }
    }

    fn unwell_after(&self, chunk: &Chunk, reason: &str) {
        self.metrics.errors.fetch_add(1, Ordering::Relaxed);
        self.metrics.rollback_count.fetch_add(1, Ordering::Relaxed);
        let (verdict, steps, first_or_stepped) = {
            let mut state = self.state();
            let before = state.retry.next();
            let verdict = state.retry.on_failure(self.now(), fastrand::f64());
            let steps = state.retry.progress().map_or(0, |(steps, _)| steps);
            (verdict, steps, state.retry.next() != before)
        };
        match verdict {
            Verdict::RetryAt(next) => {
                // Concurrent flushes fail for the same reason: one line per step, not one per chunk.
                if first_or_stepped {
                    self.log_retry(chunk, steps, next, reason);
                }
                self.buffer.rollback(chunk.id);
            }
            Verdict::GiveUp => self.give_up(chunk, reason),
        }
        self.changed.notify_waiters();
    }

    /// The destination is well but does not want this chunk: the chunk has its own retry state, the others go on.
    fn refused(&self, chunk: &Chunk, reason: &str) {
        self.metrics.errors.fetch_add(1, Ordering::Relaxed);
        let verdict = {
            let mut state = self.state();
            if state.refused.len() >= REFUSED_CHUNKS_MAX && !state.refused.contains_key(&chunk.id) {
                None
            } else {
                let policy = self.config.retry.clone();
                let retry = state.refused.entry(chunk.id).or_insert_with(|| Retry::new(policy));
                Some(retry.on_failure(self.now(), fastrand::f64()))
            }
        };
        match verdict {
            None => self.unwell_after(chunk, reason),
            Some(Verdict::GiveUp) => {
                self.state().refused.remove(&chunk.id);
                self.buffer.set_aside(chunk.id, reason.to_owned());
            }
            Some(Verdict::RetryAt(next)) => {
                self.metrics.rollback_count.fetch_add(1, Ordering::Relaxed);
                self.log_retry(chunk, 0, next, reason);
                // The chunk stays taken, so nobody else tries it; after a stop its file is still there.
                let (buffer, id, due) = (self.buffer.clone(), chunk.id, self.epoch + next);
                tokio::spawn(async move {
                    tokio::time::sleep_until(due).await;
                    buffer.rollback(id);
                });
            }
        }
    }

    fn give_up(&self, chunk: &Chunk, reason: &str) {
        tracing::error!(
            plugin_id = %self.plugin_id,
            error = %reason,
            "Hit limit for retries. dropping all chunks in the buffer queue."
        );
        self.state().retry.reset();
        self.buffer.set_aside(chunk.id, reason.to_owned());
        self.buffer.set_aside_queued(reason);
    }

    fn log_retry(&self, chunk: &Chunk, steps: u32, next: Duration, reason: &str) {
        let next_time = retry_time(self.epoch_wall + next);
        tracing::warn!(
            retry_times = steps,
            next_retry_time = %next_time,
            chunk = %chunk.id,
            error = %reason,
            plugin_id = %self.plugin_id,
            "failed to flush the buffer."
        );
    }

    async fn unwell(&self) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if self.state().retry.next().is_some() {
                return;
            }
            changed.await;
        }
    }
}

/// `next_retry_time` as Fluentd prints it, local.
fn retry_time(at: SystemTime) -> String {
    let seconds = at.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64);
    TimeFormat::parse("%Y-%m-%d %H:%M:%S %z").text(EventTime::Int(seconds), &Zone::local())
}

/// The right to make one try.
struct Permit {
    shared: Arc<Shared>,
    sole: bool,
}

impl Drop for Permit {
    fn drop(&mut self) {
        if self.sole {
            self.shared.state().trying = false;
            self.shared.changed.notify_waiters();
        }
    }
}

/// A chunk in the hands of a flush task. Dropped unsettled (the task was cancelled at shutdown) it goes back.
struct Turn {
    shared: Arc<Shared>,
    chunk: Arc<Chunk>,
    settled: bool,
}

impl Drop for Turn {
    fn drop(&mut self) {
        if !self.settled {
            self.shared.buffer.rollback(self.chunk.id);
        }
    }
}

#[cfg(test)]
mod tests;
