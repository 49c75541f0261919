//! Receipts that are awaited and acks that are owed, of one connection, in order.

use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesOrdered, StreamExt};
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::batch::{Batch, Owed};
use super::{Counters, Shared};
use crate::forward::ack;
use crate::net::budget::Reserved;
use crate::router::EmitError;

/// Acks that a client leaves unread beyond what the sockets hold. One that never reads them sends them for nothing
/// (Node's logger with acks off), but may go on for hours: a million events' worth, then it is reset.
pub(super) const ACK_BACKLOG_BYTES: usize = 1024 * 1024;

/// How long acks may wait without the client taking a byte.
const ACK_WRITE_LIMIT: Duration = Duration::from_secs(60);

/// Why a connection has to be reset by what happened behind it.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReplyError {
    /// A buffer or output did not take events.
    #[error(transparent)]
    Emit(#[from] EmitError),
    /// The socket failed while acks were written.
    #[error("writing an ack failed: {0}")]
    Write(#[from] io::Error),
    /// The client does not read.
    #[error("the client does not read its acks ({backlog_bytes} bytes wait)")]
    Unread {
        /// Acks not taken.
        backlog_bytes: usize,
    },
}

type Results = Vec<Result<(), EmitError>>;

/// What is left to do when a batch was taken.
struct Settlement {
    owed: Vec<Owed>,
    records: usize,
    streams: usize,
    bytes: usize,
    /// Given back to the budget with the settlement.
    _reserved: Option<Reserved>,
}

/// A batch on its way.
struct Pending {
    receipt: BoxFuture<'static, Results>,
    settlement: Option<Settlement>,
}

impl Future for Pending {
    type Output = (Results, Option<Settlement>);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let results = ready!(self.receipt.as_mut().poll(context));
        Poll::Ready((results, self.settlement.take()))
    }
}

/// See the module.
pub(super) struct Replies {
    pending: FuturesOrdered<Pending>,
    in_flight_bytes: usize,
    out: Vec<u8>,
    /// When the client last took a byte of the acks in `out`.
    waiting_since: Instant,
}

impl Replies {
    pub(super) fn new() -> Self {
        Self {
            pending: FuturesOrdered::new(),
            in_flight_bytes: 0,
            out: Vec::new(),
            waiting_since: Instant::now(),
        }
    }

    /// Bytes of events handed over and not yet taken.
    pub(super) fn in_flight_bytes(&self) -> usize {
        self.in_flight_bytes
    }

    /// Nothing is awaited and nothing is owed.
    pub(super) fn is_settled(&self) -> bool {
        self.pending.is_empty() && self.out.is_empty()
    }

    /// Sends a batch through the entrance.
    pub(super) fn hand_over(&mut self, batch: Batch, reserved: Option<Reserved>, shared: &Shared) {
        let Batch { arrivals, owed, bytes, .. } = batch;
        let records = arrivals.iter().map(|arrival| arrival.stream.count).sum();
        let streams = arrivals.len();
        self.in_flight_bytes += bytes;
        let receipt = if arrivals.is_empty() {
            std::future::ready(Vec::new()).boxed()
        } else {
            shared.entrance.emit(arrivals)
        };
        let settlement = Settlement { owed, records, streams, bytes, _reserved: reserved };
        self.pending.push_back(Pending { receipt, settlement: Some(settlement) });
    }

    /// Waits for receipts and for the client to take acks, and deals with one of either. Waits for ever when
    /// there is nothing to wait for. Cancel safe.
    pub(super) async fn progress(&mut self, stream: &TcpStream, shared: &Shared) -> Result<(), ReplyError> {
        let (awaiting, owing) = (!self.pending.is_empty(), !self.out.is_empty());
        let deadline = self.waiting_since + ACK_WRITE_LIMIT;
        tokio::select! {
            biased;
            Some((results, settlement)) = self.pending.next(), if awaiting => {
                let mut outcome = self.settle(results, settlement, shared);
                // Whatever else is ready goes out with the same write.
                while outcome.is_ok()
                    && let Some(Some((results, settlement))) = self.pending.next().now_or_never()
                {
                    outcome = self.settle(results, settlement, shared);
                }
                // The acks owed go out before the connection ends.
                let written = self.write(stream);
                outcome.and(written)
            }
            ready = tokio::time::timeout_at(deadline, stream.writable()), if owing => match ready {
                Ok(ready) => {
                    ready?;
                    self.write(stream)
                }
                Err(_) => Err(ReplyError::Unread { backlog_bytes: self.out.len() }),
            },
            else => std::future::pending().await,
        }
    }

    fn settle(
        &mut self,
        results: Results,
        settlement: Option<Settlement>,
        shared: &Shared,
    ) -> Result<(), ReplyError> {
        let Some(settlement) = settlement else { return Ok(()) };
        self.in_flight_bytes = self.in_flight_bytes.saturating_sub(settlement.bytes);
        let was_empty = self.out.is_empty();
        for owed in &settlement.owed {
            let taken = owed.arrival.is_none_or(|at| matches!(results.get(at), Some(Ok(()))));
            if taken {
                ack::write_ack(&mut self.out, &owed.chunk);
                Counters::add(&shared.counters.acks, 1);
            }
        }
        if was_empty {
            self.waiting_since = Instant::now();
        }
        if let Some(error) = results.into_iter().find_map(Result::err) {
            shared.metrics.errors.fetch_add(1, Ordering::Relaxed);
            return Err(error.into());
        }
        Counters::add(&shared.metrics.emit_records, settlement.records);
        Counters::add(&shared.metrics.emit_count, settlement.streams);
        Counters::add(&shared.metrics.emit_bytes, settlement.bytes);
        Ok(())
    }

    /// One write for all that is owed: some senders take an ack only whole.
    fn write(&mut self, stream: &TcpStream) -> Result<(), ReplyError> {
        if self.out.is_empty() {
            return Ok(());
        }
        match stream.try_write(&self.out) {
            Ok(written) => {
                self.out.drain(..written);
                self.waiting_since = Instant::now();
                if self.out.is_empty() {
                    self.out = Vec::new();
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
        if self.out.len() > ACK_BACKLOG_BYTES {
            return Err(ReplyError::Unread { backlog_bytes: self.out.len() });
        }
        Ok(())
    }

    /// Waits for something else while receipts and acks make progress.
    pub(super) async fn meanwhile<F: Future>(
        &mut self,
        stream: &TcpStream,
        shared: &Shared,
        future: F,
    ) -> Result<F::Output, ReplyError> {
        let mut future = pin!(future);
        loop {
            tokio::select! {
                biased;
                output = &mut future => return Ok(output),
                progress = self.progress(stream, shared) => progress?,
            }
        }
    }

    /// Waits until nothing is awaited or owed any more.
    pub(super) async fn finish(&mut self, stream: &TcpStream, shared: &Shared) -> Result<(), ReplyError> {
        while !self.is_settled() {
            self.progress(stream, shared).await?;
        }
        Ok(())
    }
}
