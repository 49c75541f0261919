//! What the tests of all inputs share.

use std::sync::{Arc, Mutex};

use futures_util::future::BoxFuture;
use tokio::sync::watch;

use super::InputContext;
use crate::event::Value;
use crate::router::{Answers, Arrival, EmitError, Entrance, Sink};

/// Collects records; refuses the first so many batches.
pub(super) struct RefusingSink {
    refuse: Mutex<usize>,
    records: Mutex<Vec<Value>>,
    count: watch::Sender<usize>,
}

impl RefusingSink {
    pub(super) fn refusing(batches: usize) -> Self {
        Self { refuse: Mutex::new(batches), records: Mutex::default(), count: watch::channel(0).0 }
    }

    pub(super) async fn wait_for_records(&self, wanted: usize) {
        let mut count = self.count.subscribe();
        count.wait_for(|count| *count >= wanted).await.expect("the sink lives");
    }

    pub(super) fn records(&self) -> Vec<Value> {
        self.records.lock().expect("no panic").clone()
    }
}

impl Sink for RefusingSink {
    fn emit(&self, batch: Vec<Arrival>) -> BoxFuture<'static, Answers> {
        let mut refuse = self.refuse.lock().expect("no panic");
        let refused = *refuse > 0 && !batch.is_empty();
        *refuse -= usize::from(refused);
        let answers: Answers = batch
            .iter()
            .map(|_| if refused { Err(EmitError::Output("full".to_owned())) } else { Ok(()) })
            .collect();
        if !refused {
            let mut records = self.records.lock().expect("no panic");
            for arrival in &batch {
                records
                    .extend(arrival.stream.iter().map(|(_, record)| Value::decode(record).expect("whole").0));
            }
            self.count.send_replace(records.len());
        }
        Box::pin(std::future::ready(answers))
    }
}

/// A context that leads to a sink.
pub(super) fn context(sink: Arc<dyn Sink>) -> InputContext {
    InputContext {
        plugin_id: "object:1".to_owned(),
        entrance: Entrance::new(sink),
        metrics: Arc::default(),
        overview: Arc::default(),
        system: Arc::default(),
        memory: Default::default(),
    }
}
