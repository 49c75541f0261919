//! Labels: named routers. A door may be handed out before its router exists, because a label's own outputs may lead
//! to other labels.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use futures_util::future::BoxFuture;

use super::Router;
use super::sink::{Answers, EmitError, Sink};
use crate::input::Arrival;

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
    fn emit(&self, batch: Vec<Arrival>) -> BoxFuture<'static, Answers> {
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
