//! What the router hands streams to.

use std::sync::Arc;

use futures_util::future::BoxFuture;

use super::Arrival;

/// Why an arrival may not be confirmed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum EmitError {
    /// A buffer behind the route refused.
    #[error("{0}")]
    Buffer(#[from] crate::buffer::AppendError),
    /// An output without buffer failed.
    #[error("{0}")]
    Output(String),
}

/// One answer per arrival, in order.
pub type Answers = Vec<Result<(), EmitError>>;

/// Something that takes events: a buffered output, a direct one, copy, a label.
pub trait Sink: Send + Sync {
    /// Takes a batch; resolves when each arrival may be confirmed, one answer per arrival in order.
    /// Nothing moves before the future is first polled; callers that keep order poll in order.
    fn emit(&self, batch: Vec<Arrival>) -> BoxFuture<'static, Answers>;

    /// True while nothing can be taken (every buffer behind it is full): inputs refuse early then.
    fn is_full(&self) -> bool {
        false
    }
}

/// The door from an input into the pipeline: the top level or the label named by `@label`.
#[derive(Clone)]
pub struct Entrance(Arc<dyn Sink>);

impl Entrance {
    /// A door that leads to the given sink.
    pub fn new(sink: Arc<dyn Sink>) -> Self {
        Self(sink)
    }

    /// Sends a batch on its way; see [`Sink::emit`].
    pub fn emit(&self, batch: Vec<Arrival>) -> BoxFuture<'static, Answers> {
        self.0.emit(batch)
    }

    /// See [`Sink::is_full`].
    pub fn is_full(&self) -> bool {
        self.0.is_full()
    }
}
