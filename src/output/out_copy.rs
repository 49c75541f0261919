//! `copy`: every stream goes to every `<store>`.
//!
//! ```text
//! <match app.**>
//!   @type copy
//!   <store>
//!     @type forward
//!     <server>
//!       host 192.0.2.1
//!     </server>
//!   </store>
//!   <store ignore_error>
//!     @type stdout
//!   </store>
//! </match>
//! ```
//!
//! An arrival is confirmed when every store without `ignore_error` has taken it. All stores are always offered every
//! stream: Fluentd stops at the first store that fails, so that the later ones miss it until the sender repeats.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::future::{BoxFuture, join_all};

use crate::config::Element;
use crate::params;
use crate::router::Arrival;
use crate::router::{Answers, EmitError, Sink};
use crate::telemetry::PluginMetrics;

params! {
    /// `copy`: every stream goes to every `<store>`.
    pub struct CopyParams {
        /// How records are shared between stores: no_copy, shallow, deep, marshal. Without effect here: records are
        /// immutable bytes, so every store sees what `deep` promises.
        copy_mode: String = "no_copy",
        /// Deprecated form of `copy_mode shallow`.
        deep_copy: bool = "false",
    }
    foreign { "store" }
}

/// One `<store>`.
pub struct Store {
    /// The output in it.
    pub sink: Arc<dyn Sink>,
    /// `ignore_error`: a failure is logged and does not count.
    pub ignore_error: bool,
    /// `ignore_if_prev_success`: only used for arrivals that the store before did not take.
    pub ignore_if_prev_success: bool,
}

/// Reads the words of `<store ARGUMENT>`: (ignore_error, ignore_if_prev_success).
pub fn store_flags(section: &Element) -> (bool, bool) {
    let words: Vec<&str> = section.argument.split_whitespace().collect();
    (words.contains(&"ignore_error"), words.contains(&"ignore_if_prev_success"))
}

/// The running output.
pub struct CopySink {
    stores: Arc<[Store]>,
    metrics: Arc<PluginMetrics>,
}

impl CopySink {
    /// A copy over stores in file order.
    pub fn new(stores: Vec<Store>, metrics: Arc<PluginMetrics>) -> Self {
        Self { stores: stores.into(), metrics }
    }
}

impl Sink for CopySink {
    fn emit(&self, batch: Vec<Arrival>) -> BoxFuture<'static, Answers> {
        self.metrics.emit_count.fetch_add(batch.len() as u64, Ordering::Relaxed);
        let stores = Arc::clone(&self.stores);
        Box::pin(async move {
            if stores.iter().any(|store| store.ignore_if_prev_success) {
                emit_in_turn(&stores, batch).await
            } else {
                emit_at_once(&stores, batch).await
            }
        })
    }

    fn is_full(&self) -> bool {
        self.stores.iter().all(|store| store.sink.is_full())
    }
}

async fn emit_at_once(stores: &[Store], batch: Vec<Arrival>) -> Answers {
    let mut answers: Answers = vec![Ok(()); batch.len()];
    let results = join_all(stores.iter().map(|store| store.sink.emit(batch.clone()))).await;
    for (store, result) in stores.iter().zip(results) {
        merge(&mut answers, store, result);
    }
    answers
}

/// With fall-back stores each store must have answered before the next is asked.
async fn emit_in_turn(stores: &[Store], batch: Vec<Arrival>) -> Answers {
    let mut answers: Answers = vec![Ok(()); batch.len()];
    let mut previous_took = vec![false; batch.len()];
    for store in stores {
        let places: Vec<usize> = (0..batch.len())
            .filter(|&place| !(store.ignore_if_prev_success && previous_took[place]))
            .collect();
        let results = store.sink.emit(places.iter().map(|&place| batch[place].clone()).collect()).await;
        previous_took = vec![false; batch.len()];
        for (&place, result) in places.iter().zip(results) {
            previous_took[place] = result.is_ok();
            merge_one(&mut answers[place], store, result);
        }
    }
    answers
}

fn merge(answers: &mut Answers, store: &Store, results: Answers) {
    for (answer, result) in answers.iter_mut().zip(results) {
        merge_one(answer, store, result);
    }
}

fn merge_one(answer: &mut Result<(), EmitError>, store: &Store, result: Result<(), EmitError>) {
    let Err(error) = result else { return };
    if store.ignore_error {
        tracing::error!(error = %error, "ignore emit error in copy store");
    } else if answer.is_ok() {
        *answer = Err(error);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use bytes::Bytes;

    use super::*;
    use crate::event::{EventStream, Tag};

    #[derive(Default)]
    struct Memory {
        got: Mutex<usize>,
        refuses: bool,
    }

    impl Sink for Memory {
        fn emit(&self, batch: Vec<Arrival>) -> BoxFuture<'static, Answers> {
            *self.got.lock().unwrap() += batch.len();
            let answer = if self.refuses { Err(EmitError::Output("refused".into())) } else { Ok(()) };
            Box::pin(std::future::ready(vec![answer; batch.len()]))
        }
    }

    fn store(sink: &Arc<Memory>, words: &str) -> Store {
        let section = Element::new("store", words);
        let (ignore_error, ignore_if_prev_success) = store_flags(&section);
        Store { sink: Arc::clone(sink) as Arc<dyn Sink>, ignore_error, ignore_if_prev_success }
    }

    async fn emit(stores: Vec<Store>) -> bool {
        let stream =
            EventStream { tag: Tag::from("a"), entries: Bytes::from_static(b"\x92\x01\x80"), count: 1 };
        let arrival = Arrival::new(stream, None);
        CopySink::new(stores, Arc::default()).emit(vec![arrival]).await[0].is_ok()
    }

    fn sinks() -> (Arc<Memory>, Arc<Memory>) {
        (Arc::new(Memory { refuses: true, ..Memory::default() }), Arc::default())
    }

    fn got(sink: &Memory) -> usize {
        *sink.got.lock().unwrap()
    }

    #[tokio::test]
    async fn every_store_is_offered_everything() {
        let (refusing, healthy) = sinks();
        assert!(!emit(vec![store(&refusing, ""), store(&healthy, "")]).await);
        assert_eq!(got(&healthy), 1);
    }

    #[tokio::test]
    async fn ignore_error_confirms_all_the_same() {
        let (refusing, healthy) = sinks();
        assert!(emit(vec![store(&refusing, "ignore_error"), store(&healthy, "")]).await);
    }

    #[tokio::test]
    async fn a_fall_back_store_is_used_only_after_a_failure() {
        let (refusing, healthy) = sinks();
        let third: Arc<Memory> = Arc::default();
        let stores = vec![
            store(&refusing, "ignore_error"),
            store(&healthy, "ignore_if_prev_success"),
            store(&third, "ignore_if_prev_success"),
        ];
        assert!(emit(stores).await);
        assert_eq!((got(&refusing), got(&healthy), got(&third)), (1, 1, 0));
    }

    /// The rows about a store that changes records, and about stopping at the first failure, differ by design
    /// (docs/COMPAT.md); the row without stores is a fault of the pipeline's first step.
    #[tokio::test]
    async fn vectors() {
        let folder = std::env::var("VECTORS_DIR").unwrap_or_else(|_| "testdata/vectors".into());
        let text = std::fs::read_to_string(format!("{folder}/outputs.jsonl")).expect("outputs.jsonl");
        let (mut run, mut differ) = (0, 0);
        for line in text.lines().filter(|line| line.contains("\"out/copy\"")) {
            let row: serde_json::Value = serde_json::from_str(line).expect("a row");
            let params = row["params"].as_object().expect("params");
            let sections: Vec<_> = params.iter().filter(|(key, _)| key.starts_with("<store")).collect();
            let shared = params.get("copy_mode").is_none() && line.contains("\"mutate\"");
            let stops = row["expect"]["raised"] == true;
            if sections.is_empty() || shared || stops {
                differ += 1;
                continue;
            }
            let sinks: Vec<Arc<Memory>> = sections
                .iter()
                .map(|(_, store)| Arc::new(Memory { refuses: store["fail"] == "true", ..Memory::default() }))
                .collect();
            let stores = sections.iter().zip(&sinks).map(|((key, _), sink)| {
                let words = key.trim_start_matches("<store").split('>').next().unwrap_or_default();
                store(sink, words.trim())
            });
            assert!(emit(stores.collect()).await, "{line}");
            let names = sections.iter().zip(&sinks).filter(|(_, sink)| got(sink) > 0 && !sink.refuses);
            let received: Vec<_> = names.map(|((_, store), _)| &store["name"]).collect();
            let expected = row["expect"]["received"].as_array().expect("received");
            assert_eq!(received, expected.iter().map(|event| &event["store"]).collect::<Vec<_>>(), "{line}");
            run += 1;
        }
        println!("out/copy: {run} rows run, {differ} differ by design");
        assert!(run >= 4);
    }
}
