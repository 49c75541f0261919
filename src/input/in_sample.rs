//! `sample` (or `dummy`): makes events, for trying a configuration out.
//!
//! ```text
//! <source>
//!   @type sample
//!   tag sample.app
//!   sample [{"message":"hello"},{"message":"again"}]
//!   rate 10
//!   auto_increment_key n
//! </source>
//! ```
//!
//! Events that the pipeline refuses (a full buffer) are offered again until it takes them; meanwhile none are made.
//!
//! Source: Fluentd `in_sample.rb`.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use bytes::{Bytes, BytesMut};
use futures_util::future::BoxFuture;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;

use super::{Input, InputConfig, InputContext, InputPlugin};
use crate::config::{BuildError, Diagnostics, Element};
use crate::event::{EventStream, EventTime, Tag, Value, msgpack};
use crate::router::{Arrival, Entrance};
use crate::telemetry::PluginMetrics;
use crate::telemetry::rate::Limited;

/// Slots of a second over which events are spread (Fluentd's number).
const SLOTS_PER_SECOND: u64 = 10;
const SLOT: Duration = Duration::from_millis(1000 / SLOTS_PER_SECOND);

/// Most events in one stream, so that a high rate makes several streams instead of a huge one.
const EVENTS_PER_STREAM: u64 = 1_000;

/// Most events that may be asked for in a second (`rate` x `size`): beyond this the bench is the right tool.
const MAX_EVENTS_PER_SECOND: u64 = 10_000_000;

/// A full buffer refuses every slot.
static REFUSED: Limited = Limited::per_minute(6);

crate::params! {
    /// Makes events.
    pub struct SampleParams {
        /// Their tag.
        tag: String,
        /// A JSON object, or an array of objects that are sent in turn.
        sample: String = "{\"message\":\"sample\"}",
        /// Events per emit.
        size: u64 = "1",
        /// Emits per second.
        rate: u64 = "1",
        /// A field that counts up from 0.
        auto_increment_key: Option<String>,
    }
    alias { dummy => sample }
    unbuilt { "<storage>" }
    inert {
        "suspend" => "Fluentd ignores it too",
        "reuse_record" => "records are never made twice"
    }
}

/// Line in the table of inputs.
pub const PLUGIN: InputPlugin =
    InputPlugin { names: &["sample", "dummy"], spec: &SampleParams::SPEC, configure };

fn configure(element: &Element, diagnostics: &mut Diagnostics) -> Option<Box<dyn InputConfig>> {
    let params = SampleParams::from_element(element, diagnostics)?;
    let span =
        element.param("sample").or_else(|| element.param("dummy")).map_or(&params.span, |param| &param.span);
    let Some(samples) = read_samples(&params.sample) else {
        diagnostics
            .fault(span, "sample is not what it should be")
            .expected("a JSON object, or an array of objects with at least one in it")
            .got(params.sample.as_str());
        return None;
    };
    let events_per_second = params.rate.saturating_mul(params.size.max(1));
    if params.rate == 0 || events_per_second > MAX_EVENTS_PER_SECOND {
        diagnostics
            .fault(&params.span, "rate and size ask for an impossible number of events")
            .expected(format!("from 1 to {MAX_EVENTS_PER_SECOND} a second"))
            .got(events_per_second.to_string());
        return None;
    }
    Some(Box::new(SampleConfig {
        generator: Generator::new(Tag::from(params.tag.as_str()), samples, params.auto_increment_key),
        pace: Pace { rate: params.rate, size: params.size.max(1) },
    }))
}

fn read_samples(text: &str) -> Option<Vec<Value>> {
    let samples = match serde_json::from_str(text).ok()? {
        serde_json::Value::Array(items) if !items.is_empty() => items,
        object @ serde_json::Value::Object(_) => vec![object],
        _ => return None,
    };
    samples.iter().all(serde_json::Value::is_object).then(|| samples.iter().map(Value::from_json).collect())
}

/// How many events each slot brings: a tenth of the rate, the remainder with the last slot.
#[derive(Clone, Copy, Debug)]
struct Pace {
    rate: u64,
    size: u64,
}

impl Pace {
    fn events(self, slot: u64) -> u64 {
        let even = self.rate / SLOTS_PER_SECOND;
        let rest =
            if slot % SLOTS_PER_SECOND == SLOTS_PER_SECOND - 1 { self.rate % SLOTS_PER_SECOND } else { 0 };
        (even + rest) * self.size
    }
}

/// Makes the events themselves. Pure.
#[derive(Debug)]
struct Generator {
    tag: Tag,
    samples: Vec<Value>,
    /// The same as msgpack, for samples that do not change.
    packed: Vec<Vec<u8>>,
    auto_increment_key: Option<Value>,
    made: u64,
}

impl Generator {
    fn new(tag: Tag, samples: Vec<Value>, auto_increment_key: Option<String>) -> Self {
        let packed = samples.iter().map(Value::to_msgpack).collect();
        let auto_increment_key = auto_increment_key.map(|key| Value::from(key.as_str()));
        Self { tag, samples, packed, auto_increment_key, made: 0 }
    }

    fn arrivals(&mut self, mut events: u64, time: EventTime) -> Vec<Arrival> {
        let mut arrivals = Vec::new();
        while events > 0 {
            let count = events.min(EVENTS_PER_STREAM);
            let entries = self.entries(count, time);
            let stream = EventStream { tag: self.tag.clone(), entries, count: count as usize };
            arrivals.push(Arrival::new(stream, None));
            events -= count;
        }
        arrivals
    }

    fn entries(&mut self, count: u64, time: EventTime) -> Bytes {
        let mut out = BytesMut::new();
        for _ in 0..count {
            let at = (self.made % self.samples.len().max(1) as u64) as usize;
            match (&self.auto_increment_key, self.samples.get(at), self.packed.get(at)) {
                (Some(key), Some(Value::Map(pairs)), _) => {
                    let record = numbered(pairs, key, self.made).to_msgpack();
                    msgpack::write_entry(&mut out, time, &record);
                }
                (_, _, Some(packed)) => msgpack::write_entry(&mut out, time, packed),
                _ => {}
            }
            self.made += 1;
        }
        out.freeze()
    }
}

fn numbered(pairs: &[(Value, Value)], key: &Value, number: u64) -> Value {
    let number = i64::try_from(number).map_or(Value::UInt(number), Value::Int);
    let mut pairs = pairs.to_vec();
    match pairs.iter_mut().find(|(known, _)| known == key) {
        Some((_, value)) => *value = number,
        None => pairs.push((key.clone(), number)),
    }
    Value::Map(pairs)
}

struct SampleConfig {
    generator: Generator,
    pace: Pace,
}

impl InputConfig for SampleConfig {
    fn build(self: Box<Self>, context: InputContext) -> Result<Box<dyn Input>, BuildError> {
        let (stop, stopped) = watch::channel(false);
        let task = SampleTask {
            generator: self.generator,
            pace: self.pace,
            entrance: context.entrance,
            metrics: context.metrics,
            plugin_id: context.plugin_id,
            stopped,
        };
        Ok(Box::new(SampleInput { task: Some(task), stop, running: None }))
    }
}

struct SampleInput {
    task: Option<SampleTask>,
    stop: watch::Sender<bool>,
    running: Option<JoinHandle<()>>,
}

impl Input for SampleInput {
    fn start(&mut self) {
        if let Some(task) = self.task.take() {
            self.running = Some(tokio::spawn(task.run()));
        }
    }

    fn stop(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            self.stop.send_replace(true);
            if let Some(running) = self.running.take() {
                // A panic in the task has been reported by the runtime.
                let _ = running.await;
            }
        })
    }
}

struct SampleTask {
    generator: Generator,
    pace: Pace,
    entrance: Entrance,
    metrics: Arc<PluginMetrics>,
    plugin_id: String,
    stopped: watch::Receiver<bool>,
}

impl SampleTask {
    async fn run(mut self) {
        let mut ticks = tokio::time::interval(SLOT);
        // After a refusal the slots that passed are not made up for.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        for slot in 0.. {
            tokio::select! {
                _ = ticks.tick() => {}
                _ = self.stopped.wait_for(|stopped| *stopped) => return,
            }
            let arrivals = self.generator.arrivals(self.pace.events(slot), EventTime::of(SystemTime::now()));
            if !self.emit(arrivals).await {
                return;
            }
        }
    }

    /// Offers events until they are taken; false when it is time to stop.
    async fn emit(&mut self, mut arrivals: Vec<Arrival>) -> bool {
        while !arrivals.is_empty() {
            let answers = self.entrance.emit(arrivals.clone()).await;
            let mut refused = Vec::new();
            for (arrival, answer) in arrivals.into_iter().zip(answers) {
                match answer {
                    Ok(()) => self.count(&arrival),
                    Err(error) => {
                        if let Some(repeated) = REFUSED.admit() {
                            tracing::warn!(plugin_id = %self.plugin_id, %error, repeated, "emit failed, trying again");
                        }
                        refused.push(arrival);
                    }
                }
            }
            arrivals = refused;
            if !arrivals.is_empty() {
                tokio::select! {
                    () = tokio::time::sleep(SLOT) => {}
                    _ = self.stopped.wait_for(|stopped| *stopped) => return false,
                }
            }
        }
        true
    }

    fn count(&self, arrival: &Arrival) {
        self.metrics.emit_count.fetch_add(1, Ordering::Relaxed);
        self.metrics.emit_records.fetch_add(arrival.stream.count as u64, Ordering::Relaxed);
        self.metrics.emit_bytes.fetch_add(arrival.stream.entries.len() as u64, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{RefusingSink, context};
    use super::*;

    #[test]
    fn a_second_brings_the_rate_and_samples_rotate() {
        let pace = Pace { rate: 25, size: 2 };
        let slots: Vec<u64> = (0..10).map(|slot| pace.events(slot)).collect();
        assert_eq!(slots, [4, 4, 4, 4, 4, 4, 4, 4, 4, 14]);
        let samples = read_samples(r#"[{"a":1},{"n":"x","b":2}]"#).expect("samples");
        let mut generator = Generator::new(Tag::from("t"), samples, Some("n".to_owned()));
        let arrivals = generator.arrivals(2_003, EventTime::Int(1));
        assert_eq!(
            arrivals.iter().map(|arrival| arrival.stream.count).collect::<Vec<_>>(),
            [1_000, 1_000, 3]
        );
        let records: Vec<_> = arrivals[0]
            .stream
            .iter()
            .take(2)
            .map(|(_, record)| Value::decode(record).expect("whole").0.to_json().to_string())
            .collect();
        assert_eq!(records, [r#"{"a":1,"n":0}"#, r#"{"n":1,"b":2}"#]);
    }

    #[test]
    fn what_is_no_sample_is_a_fault() {
        for bad in ["1", "[]", "[1]", "{", "\"x\""] {
            let element = Element::new("source", "").with_param("tag", "t").with_param("dummy", bad);
            let mut diagnostics = Diagnostics::new();
            assert!(configure(&element, &mut diagnostics).is_none(), "{bad}");
            assert!(diagnostics.has_faults(), "{bad}");
        }
        for (rate, size) in [("0", "1"), ("100000000", "1"), ("18446744073709551615", "2")] {
            let element = Element::new("source", "")
                .with_param("tag", "t")
                .with_param("rate", rate)
                .with_param("size", size);
            assert!(configure(&element, &mut Diagnostics::new()).is_none(), "{rate}");
        }
    }

    #[tokio::test]
    async fn refused_events_are_offered_again_and_none_is_lost() {
        let sink = Arc::new(RefusingSink::refusing(3));
        let element = Element::new("source", "")
            .with_param("tag", "t")
            .with_param("rate", "100")
            .with_param("auto_increment_key", "n");
        let config = configure(&element, &mut Diagnostics::new()).expect("configured");
        let mut input = config.build(context(sink.clone())).unwrap_or_else(|error| panic!("{error}"));
        input.start();
        sink.wait_for_records(20).await;
        input.stop().await;
        let numbers: Vec<i64> = sink
            .records()
            .iter()
            .map(|record| match record.get(b"n") {
                Some(Value::Int(number)) => *number,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(numbers, (0..numbers.len() as i64).collect::<Vec<_>>());
    }
}
