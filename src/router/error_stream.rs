//! Where records go that a plugin rejected: label `@ERROR`, or the log.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;

use super::Arrival;
use super::sink::{Answers, Sink};
use crate::event::{EventStream, msgpack};
use crate::filter::RejectedEvent;

/// A batch with more rejected records than this dumps the first ones and counts the rest: the log must not become the
/// slowest part of a bad stream.
const DUMPED_PER_BATCH_MAX: usize = 8;

/// The way to `@ERROR`. Made before the labels, connected when they exist.
#[derive(Default)]
pub struct ErrorStream {
    label: OnceLock<Arc<dyn Sink>>,
}

impl ErrorStream {
    /// Connects the label `@ERROR`; without it rejected records are dumped to the log, as Fluentd does.
    pub fn connect(&self, label: Arc<dyn Sink>) {
        // A second connection would be a defect of the builder; the first one stands.
        let _ = self.label.set(label);
    }

    /// Sends rejected records on; `None` when there is no label and they were dumped.
    pub(super) fn send(
        &self,
        rejected: Vec<RejectedEvent>,
        labels_passed: u8,
    ) -> Option<futures_util::future::BoxFuture<'static, Answers>> {
        let Some(label) = self.label.get() else {
            dump(&rejected, "dump an error event");
            return None;
        };
        dump(&rejected, "send an error event to @ERROR");
        let batch = rejected
            .into_iter()
            .map(|event| {
                let mut entry = Vec::new();
                msgpack::write_entry(&mut entry, event.time, &event.record.to_msgpack());
                let stream = EventStream { tag: event.tag, entries: Bytes::from(entry), count: 1 };
                Arrival { stream, sender_chunk: None, labels_passed }
            })
            .collect();
        Some(label.emit(batch))
    }
}

fn dump(rejected: &[RejectedEvent], message: &'static str) {
    for event in rejected.iter().take(DUMPED_PER_BATCH_MAX) {
        let record = event.record.to_json();
        tracing::warn!(
            error = %event.reason,
            tag = %event.tag,
            time = event.time.seconds(),
            record = %record,
            "{message}"
        );
    }
    if let Some(more) = rejected.len().checked_sub(DUMPED_PER_BATCH_MAX).filter(|&more| more > 0) {
        tracing::warn!(more, "{message}: further records of the same batch are not shown");
    }
}
