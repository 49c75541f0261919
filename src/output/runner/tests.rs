//! The runner against a real memory buffer and a destination that does what the test says.

use std::sync::atomic::AtomicUsize;

use bytes::Bytes;
use futures_util::future::BoxFuture;

use super::*;
use crate::buffer::{self, Append, BufferConfig, FlushMode, FlushRules, Metadata};
use crate::event::Tag;
use crate::output::retry::RetryKind;

/// What the destination answers to the nth attempt.
type Script = Box<dyn Fn(usize, &Chunk) -> Result<(), WriteError> + Send + Sync>;

struct Scripted {
    attempts: AtomicUsize,
    delivered: Mutex<Vec<String>>,
    script: Script,
    recovered: Notify,
}

impl Output for Scripted {
    fn recovered(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.recovered.notified())
    }

    fn write(&self, chunk: Arc<Chunk>) -> BoxFuture<'_, Result<(), WriteError>> {
        Box::pin(async move {
            let nth = self.attempts.fetch_add(1, Ordering::SeqCst);
            let answer = (self.script)(nth, &chunk);
            if answer.is_ok() {
                self.delivered.lock().unwrap().push(tag_of(&chunk));
            }
            answer
        })
    }
}

fn tag_of(chunk: &Chunk) -> String {
    chunk.metadata.tag.as_ref().map(Tag::to_string).unwrap_or_default()
}

struct Bench {
    output: Arc<Scripted>,
    buffer: BufferHandle,
    metrics: Arc<PluginMetrics>,
    runner: Runner,
    backup: tempfile::TempDir,
}

fn retry(max_times: Option<u32>) -> RetryPolicy {
    RetryPolicy {
        kind: RetryKind::Periodic,
        wait: Duration::from_millis(20),
        randomize: false,
        max_times,
        ..RetryPolicy::default()
    }
}

fn start(retry: RetryPolicy, script: Script) -> Bench {
    let backup = tempfile::tempdir().unwrap();
    let mut config = BufferConfig::memory("test");
    config.flush = FlushRules { mode: FlushMode::Immediate, ..FlushRules::default() };
    config.backup.directory = Some(backup.path().to_owned());
    let (buffer, _) = buffer::open(config).unwrap();
    let output = Arc::new(Scripted {
        attempts: AtomicUsize::new(0),
        delivered: Mutex::default(),
        script,
        recovered: Notify::new(),
    });
    let metrics: Arc<PluginMetrics> = Arc::default();
    let runner = Runner::start(
        "test".into(),
        Arc::clone(&output) as Arc<dyn Output>,
        buffer.clone(),
        Arc::clone(&metrics),
        RunnerConfig { flush_thread_count: 1, retry, slow_flush_threshold: Duration::from_secs(20) },
    );
    Bench { output, buffer, metrics, runner, backup }
}

impl Bench {
    async fn append(&self, tag: &str) {
        let metadata = Metadata { tag: Some(Tag::from(tag)), ..Metadata::default() };
        let entry = Bytes::from_static(b"\x92\x01\x80");
        let append = Append { parts: vec![(metadata, entry, 1)], sender_chunk: None };
        self.buffer.append(vec![append]).await.remove(0).unwrap();
    }

    async fn until(&self, what: &str, reached: impl Fn(&Self) -> bool) {
        let waited = tokio::time::timeout(Duration::from_secs(20), async {
            while !reached(self) {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        });
        assert!(waited.await.is_ok(), "waited 20 s for: {what}; {:?}", self.buffer.stats());
    }

    fn delivered(&self) -> Vec<String> {
        self.output.delivered.lock().unwrap().clone()
    }

    fn is_empty(&self) -> bool {
        let stats = self.buffer.stats();
        stats.stage_length + stats.queue_length == 0
    }

    /// Chunks in the backup directory (each with a text beside it that says why).
    fn backups(&self) -> usize {
        let entries = std::fs::read_dir(self.backup.path()).unwrap();
        entries
            .filter(|entry| entry.as_ref().unwrap().path().extension().is_some_and(|end| end == "log"))
            .count()
    }

    async fn stop(self) {
        self.buffer.close(false).await;
        self.runner.stop(Instant::now() + Duration::from_secs(5)).await;
    }
}

#[tokio::test]
async fn a_chunk_is_gone_only_after_it_was_confirmed() {
    let unwell = |nth, _: &Chunk| if nth < 3 { Err(WriteError::Unwell("down".into())) } else { Ok(()) };
    let bench = start(retry(None), Box::new(unwell));
    bench.append("a").await;
    bench.until("two failures", |bench| bench.output.attempts.load(Ordering::SeqCst) >= 2).await;
    assert!(bench.delivered().is_empty());
    assert!(!bench.is_empty());
    bench.until("delivery", |bench| bench.delivered() == ["a"] && bench.is_empty()).await;
    assert_eq!(bench.metrics.rollback_count.load(Ordering::Relaxed), 3);
    assert_eq!(bench.metrics.write_count.load(Ordering::Relaxed), 1);
    bench.stop().await;
}

#[tokio::test]
async fn order_is_kept_over_an_outage_with_one_flush() {
    let unwell = |nth, _: &Chunk| if nth < 2 { Err(WriteError::Unwell("down".into())) } else { Ok(()) };
    let bench = start(retry(None), Box::new(unwell));
    for tag in ["a", "b", "c", "d"] {
        bench.append(tag).await;
    }
    bench.until("all delivered", Bench::is_empty).await;
    assert_eq!(bench.delivered(), ["a", "b", "c", "d"]);
    bench.stop().await;
}

#[tokio::test]
async fn one_refused_chunk_goes_aside_and_the_others_flow() {
    let refuse = |_, chunk: &Chunk| match tag_of(chunk).as_str() {
        "poison" => Err(WriteError::Refused("no".into())),
        _ => Ok(()),
    };
    let bench = start(retry(Some(2)), Box::new(refuse));
    bench.append("poison").await;
    for tag in ["a", "b"] {
        bench.append(tag).await;
    }
    bench.until("the others", |bench| bench.delivered() == ["a", "b"]).await;
    bench.until("the refused one aside", Bench::is_empty).await;
    assert_eq!(bench.backups(), 1);
    bench.stop().await;
}

#[tokio::test]
async fn unrecoverable_goes_aside_at_once() {
    let bench = start(retry(None), Box::new(|_, _| Err(WriteError::Unrecoverable("bad".into()))));
    bench.append("a").await;
    bench.until("aside", Bench::is_empty).await;
    assert_eq!(bench.output.attempts.load(Ordering::SeqCst), 1);
    bench.stop().await;
}

#[tokio::test]
async fn at_the_limit_the_whole_queue_goes_aside() {
    let bench = start(retry(Some(2)), Box::new(|_, _| Err(WriteError::Unwell("down".into()))));
    for tag in ["a", "b", "c"] {
        bench.append(tag).await;
    }
    bench.until("everything aside", Bench::is_empty).await;
    assert!(bench.delivered().is_empty());
    assert_eq!(bench.backups(), 3);
    bench.stop().await;
}

#[tokio::test]
async fn a_stop_during_an_outage_leaves_the_chunk_in_the_buffer() {
    let bench = start(retry(None), Box::new(|_, _| Err(WriteError::Unwell("down".into()))));
    bench.append("a").await;
    bench.until("a failure", |bench| bench.output.attempts.load(Ordering::SeqCst) >= 1).await;
    let buffer = bench.buffer.clone();
    buffer.close(true).await;
    let started = Instant::now();
    bench.runner.stop(started + Duration::from_secs(30)).await;
    assert!(started.elapsed() < Duration::from_secs(10), "an outage ends the flushing at shutdown");
    assert_eq!(buffer.stats().queue_length, 1);
}

#[tokio::test]
async fn a_recovered_destination_gets_its_chunks_at_once() {
    let unwell = |nth, _: &Chunk| if nth == 0 { Err(WriteError::Unwell("down".into())) } else { Ok(()) };
    let bench = start(RetryPolicy { wait: Duration::from_secs(3600), ..retry(None) }, Box::new(unwell));
    bench.append("a").await;
    bench.until("the failure", |bench| bench.output.attempts.load(Ordering::SeqCst) == 1).await;
    bench.output.recovered.notify_one();
    bench.until("delivery", |bench| bench.delivered() == ["a"]).await;
    bench.stop().await;
}
