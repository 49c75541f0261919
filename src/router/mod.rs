//! Station 2. Comes from: inputs. Goes to: filters and the first matching output.
//!
//! The router must not know plugins by name, disk or sockets.

pub mod pattern;

use std::sync::Arc;

use futures_util::future::BoxFuture;

use crate::input::Arrival;

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

/// Something that takes events: a buffered output, a direct one, copy, relabel.
pub trait Sink: Send + Sync {
    /// Takes a batch; resolves when each arrival may be confirmed, one answer per arrival in order.
    /// The synchronous part (queueing) is done when this returns, so order is that of the calls.
    fn emit(&self, batch: Vec<Arrival>) -> BoxFuture<'static, Vec<Result<(), EmitError>>>;

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
    pub fn emit(&self, batch: Vec<Arrival>) -> BoxFuture<'static, Vec<Result<(), EmitError>>> {
        self.0.emit(batch)
    }

    /// See [`Sink::is_full`].
    pub fn is_full(&self) -> bool {
        self.0.is_full()
    }
}
