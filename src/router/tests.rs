//! Rules, filters, `@ERROR` and answers, over sinks that remember.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures_util::future::BoxFuture;

use super::Arrival;
use super::pattern::TagPatterns;
use super::*;
use crate::event::{EventStream, EventTime, Tag, Value};
use crate::filter::{Filter, RejectedEvent};

#[derive(Default)]
struct Memory {
    tags: Mutex<Vec<String>>,
    refuses: bool,
    full: bool,
}

impl Sink for Memory {
    fn emit(&self, batch: Vec<Arrival>) -> BoxFuture<'static, Answers> {
        let answer = if self.refuses { Err(EmitError::Output("refused".into())) } else { Ok(()) };
        self.tags.lock().unwrap().extend(batch.iter().map(|arrival| arrival.stream.tag.to_string()));
        Box::pin(std::future::ready(vec![answer; batch.len()]))
    }

    fn is_full(&self) -> bool {
        self.full
    }
}

impl Memory {
    fn tags(&self) -> Vec<String> {
        self.tags.lock().unwrap().clone()
    }
}

/// Rejects every stream whole.
struct RejectAll;

impl Filter for RejectAll {
    fn filter(&self, stream: EventStream, rejected: &mut Vec<RejectedEvent>) -> EventStream {
        rejected.push(RejectedEvent {
            tag: stream.tag.clone(),
            time: EventTime::Int(1),
            record: Value::Map(Vec::new()),
            reason: "test".into(),
        });
        EventStream { entries: Bytes::new(), count: 0, ..stream }
    }
}

fn arrival(tag: &str) -> Arrival {
    let stream = EventStream { tag: Tag::from(tag), entries: Bytes::from_static(b"\x92\x01\x80"), count: 1 };
    Arrival::new(stream, None)
}

fn rule(pattern: &str, action: RuleAction) -> Rule {
    Rule { patterns: Arc::new(TagPatterns::parse(pattern).unwrap()), action }
}

fn to(sink: &Arc<Memory>) -> RuleAction {
    RuleAction::Match(Arc::clone(sink) as Arc<dyn Sink>)
}

fn reject_all() -> RuleAction {
    RuleAction::Filter(Arc::new(FilterStation { filter: Box::new(RejectAll), metrics: Arc::default() }))
}

fn sink() -> Arc<Memory> {
    Arc::default()
}

fn refusing() -> Arc<Memory> {
    Arc::new(Memory { refuses: true, ..Memory::default() })
}

#[tokio::test]
async fn the_first_match_wins_and_answers_keep_their_place() {
    let (first, second) = (sink(), refusing());
    let rules = vec![rule("a.**", to(&first)), rule("**", to(&second))];
    let router = Router::new(rules, Arc::default(), true);
    let answers = router.emit(["b", "a.x", "c", "a.y"].map(arrival).into()).await;
    assert_eq!(answers.iter().map(Result::is_ok).collect::<Vec<_>>(), [false, true, false, true]);
    assert_eq!(first.tags(), ["a.x", "a.y"]);
    assert_eq!(second.tags(), ["b", "c"]);
}

#[tokio::test]
async fn no_match_drops_and_confirms() {
    let only = sink();
    let router = Router::new(vec![rule("a", to(&only))], Arc::default(), true);
    let answers = router.emit(["x", "a"].map(arrival).into()).await;
    assert!(answers.iter().all(Result::is_ok));
    assert_eq!(only.tags(), ["a"]);
}

#[tokio::test]
async fn only_filters_before_the_match_apply() {
    let (early, late) = (sink(), sink());
    let rules = vec![rule("early", to(&early)), rule("**", reject_all()), rule("**", to(&late))];
    let router = Router::new(rules, Arc::default(), true);
    router.emit(["early", "late"].map(arrival).into()).await;
    assert_eq!(early.tags(), ["early"]);
    assert!(late.tags().is_empty());
}

#[tokio::test]
async fn rejected_records_must_be_taken_by_the_error_label_before_the_arrival_is_confirmed() {
    for (errors, confirmed) in [(sink(), true), (refusing(), false)] {
        let stream = Arc::new(ErrorStream::default());
        stream.connect(Arc::clone(&errors) as Arc<dyn Sink>);
        let end = sink();
        let rules = vec![rule("bad", reject_all()), rule("**", to(&end))];
        let router = Router::new(rules, stream, true);
        let answers = router.emit(["good", "bad"].map(arrival).into()).await;
        assert_eq!(answers.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, confirmed]);
        assert_eq!(errors.tags(), ["bad"]);
        assert_eq!(end.tags(), ["good"]);
    }
}

#[tokio::test]
async fn a_hundred_thousand_tags_do_not_stay_in_the_cache() {
    let end = sink();
    let router = Router::new(vec![rule("**", to(&end))], Arc::default(), true);
    for n in 0..100_000 {
        router.emit(vec![arrival(&format!("tag.{n}"))]).await;
    }
    assert_eq!(end.tags().len(), 100_000);
    assert!(router.cached_tags() <= 1024, "{}", router.cached_tags());
}

#[test]
fn full_means_every_output_is_full() {
    let full = || Arc::new(Memory { full: true, ..Memory::default() });
    let router = |sinks: Vec<Arc<Memory>>| {
        let rules = sinks.iter().map(|sink| rule("**", to(sink))).collect();
        Router::new(rules, Arc::default(), true)
    };
    assert!(!router(vec![]).is_full());
    assert!(!router(vec![full(), sink()]).is_full());
    assert!(router(vec![full(), full()]).is_full());
}

#[tokio::test]
async fn labels_that_lead_in_a_circle_refuse() {
    let labels = Labels::new(["@A", "@B"].into_iter());
    let door = |name: &str| labels.door(name).unwrap();
    for (name, next) in [("@A", "@B"), ("@B", "@A")] {
        let rules = vec![rule("**", RuleAction::Match(door(next)))];
        labels.connect(name, Arc::new(Router::new(rules, Arc::default(), true)));
    }
    assert!(door("@A").emit(vec![arrival("a")]).await[0].is_err());
}

#[tokio::test]
async fn a_filter_that_rejects_inside_the_error_label_ends() {
    let labels = Labels::new(["@ERROR"].into_iter());
    let errors = Arc::new(ErrorStream::default());
    errors.connect(labels.door("@ERROR").unwrap());
    let end = sink();
    let rules = vec![rule("**", reject_all()), rule("**", to(&end))];
    labels.connect("@ERROR", Arc::new(Router::new(rules, Arc::clone(&errors), true)));
    let router = Router::new(vec![rule("**", reject_all()), rule("**", to(&end))], errors, true);
    assert!(router.emit(vec![arrival("a")]).await[0].is_err());
}
