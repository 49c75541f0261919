//! Labels: named routers. A door may be handed out before its router exists, because a label's own outputs may lead
//! to other labels.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use futures_util::future::BoxFuture;

use super::Arrival;
use super::Router;
use super::sink::{Answers, EmitError, Sink};
use crate::telemetry::rate::Limited;

/// Labels that an event may pass, `@ROOT` counted. No configuration written by hand comes near (and behind a `copy` each
/// further label may double the work); one whose labels lead
/// in a circle (relabel to itself, a rejecting filter behind `@ERROR`) would otherwise never end.
const LABELS_MAX: u8 = 16;

/// Refuses a batch that goes round and round.
fn circle(batch: &[Arrival]) -> BoxFuture<'static, Answers> {
    static LINES: Limited = Limited::per_minute(3);
    let reason = format!("labels lead in a circle: more than {LABELS_MAX} passed");
    if let Some(folded) = LINES.admit() {
        let tag = batch.first().map(|arrival| arrival.stream.tag.to_string()).unwrap_or_default();
        tracing::error!(tag = %tag, repeated = folded, "{reason}; its events are refused, mend @label or relabel");
    }
    Box::pin(std::future::ready(vec![Err(EmitError::Output(reason)); batch.len()]))
}

/// A door to one label; leads somewhere once the label's router is built.
#[derive(Default)]
pub struct LabelDoor {
    router: OnceLock<Arc<Router>>,
}

impl LabelDoor {
    fn router(&self) -> Option<&Arc<Router>> {
        self.router.get()
    }
}

impl Sink for LabelDoor {
    fn emit(&self, mut batch: Vec<Arrival>) -> BoxFuture<'static, Answers> {
        if batch.iter().any(|arrival| arrival.labels_passed >= LABELS_MAX) {
            return circle(&batch);
        }
        for arrival in &mut batch {
            arrival.labels_passed += 1;
        }
        match self.router() {
            Some(router) => router.emit(batch),
            // Inputs start after everything is connected, so this is never seen in a running pipeline.
            None => {
                let refused = vec![Err(EmitError::Output("the label is not built yet".into())); batch.len()];
                Box::pin(std::future::ready(refused))
            }
        }
    }

    fn is_full(&self) -> bool {
        self.router().is_some_and(|router| router.is_full())
    }
}

/// All labels of a configuration. The top level is `@ROOT`.
#[derive(Default)]
pub struct Labels {
    doors: HashMap<String, Arc<LabelDoor>>,
}

/// Name of the top-level router.
pub const ROOT: &str = "@ROOT";

impl Labels {
    /// Doors for the given labels and for `@ROOT`.
    pub fn new<'a>(names: impl Iterator<Item = &'a str>) -> Self {
        let doors = names.chain([ROOT]).map(|name| (name.to_owned(), Arc::default())).collect();
        Self { doors }
    }

    /// The door of a label, `None` if there is no such label ("@X label not found").
    pub fn door(&self, name: &str) -> Option<Arc<LabelDoor>> {
        self.doors.get(name).cloned()
    }

    /// Puts the built router behind its door.
    pub fn connect(&self, name: &str, router: Arc<Router>) {
        if let Some(door) = self.doors.get(name) {
            // Names are unique (checked by config); a second router for a name would be ignored.
            let _ = door.router.set(router);
        }
    }
}
