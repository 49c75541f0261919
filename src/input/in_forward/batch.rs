//! What one read brought, on its way to the entrance.

use std::net::IpAddr;
use std::sync::LazyLock;

use bytes::{BufMut, BytesMut};

use super::{Counters, Shared};
use crate::event::Tag;
use crate::forward::{ChunkOption, Message, Mode};
use crate::router::Arrival;
use crate::telemetry::rate::LimitedBy;

/// Lines a minute and peer about events that were left out: one broken client must not fill the log.
const LINES_PER_MINUTE: u32 = 10;

static INVALID: LazyLock<LimitedBy<IpAddr>> = LazyLock::new(|| LimitedBy::per_minute(LINES_PER_MINUTE));
static TORN: LazyLock<LimitedBy<IpAddr>> = LazyLock::new(|| LimitedBy::per_minute(LINES_PER_MINUTE));
static SIZE: LazyLock<LimitedBy<IpAddr>> = LazyLock::new(|| LimitedBy::per_minute(LINES_PER_MINUTE));
static ODD: LazyLock<LimitedBy<IpAddr>> = LazyLock::new(|| LimitedBy::per_minute(LINES_PER_MINUTE));
/// Fluent Bit sends its metrics every few seconds: that is no news.
static SIGNAL: LazyLock<LimitedBy<IpAddr>> = LazyLock::new(|| LimitedBy::per_minute(1));

/// An ack that is owed once its arrival (an index into the batch) is taken; at once if the message had no events.
#[derive(Debug)]
pub(super) struct Owed {
    pub(super) chunk: ChunkOption,
    pub(super) arrival: Option<usize>,
}

/// Messages that go to the entrance together.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) arrivals: Vec<Arrival>,
    pub(super) owed: Vec<Owed>,
    /// Bytes that these events hold in memory.
    pub(super) bytes: usize,
    /// Messages in it, those without events and acks too.
    pub(super) messages: usize,
}

impl Batch {
    pub(super) fn is_empty(&self) -> bool {
        self.arrivals.is_empty() && self.owed.is_empty()
    }

    /// Takes a message in, with the words that Fluentd has for what is wrong with it.
    pub(super) fn add(&mut self, mut message: Message, peer: IpAddr, shared: &Shared) {
        let settings = &shared.settings;
        self.messages += message.messages;
        Counters::add(&shared.counters.messages, message.messages);
        Counters::add(&shared.counters.received_bytes, message.wire_bytes);
        if let Some(limit) = settings.chunk_size_warn_limit.filter(|limit| message.wire_bytes > *limit)
            && message.messages == 1
        {
            warn_size(&message.stream.tag, message.wire_bytes, limit, peer, shared);
        }
        note_left_out(&message, peer, shared);
        if let Some(tag) = &settings.tag {
            message.stream.tag = tag.clone();
        }
        if let Some(prefix) = &settings.tag_prefix {
            message.stream.tag = prefixed(prefix, &message.stream.tag);
        }
        let arrival = (message.stream.count > 0).then_some(self.arrivals.len());
        let chunk = message.options.chunk;
        if arrival.is_some() {
            self.bytes += message.stream.entries.len();
            let sender_chunk = chunk.as_ref().map(|chunk| chunk.bytes.clone());
            self.arrivals.push(Arrival::new(message.stream, sender_chunk));
        }
        self.owed.extend(chunk.map(|chunk| Owed { chunk, arrival }));
    }
}

fn prefixed(prefix: &[u8], tag: &Tag) -> Tag {
    let mut bytes = BytesMut::with_capacity(prefix.len() + tag.as_bytes().len());
    bytes.put_slice(prefix);
    bytes.put_slice(tag.as_bytes());
    Tag::new(bytes.freeze())
}

fn note_left_out(message: &Message, peer: IpAddr, shared: &Shared) {
    let (dropped, tag) = (&message.dropped, &message.stream.tag);
    if message.options.fluent_signal != 0 {
        Counters::add(&shared.counters.signals, 1);
        if let Some(repeated) = SIGNAL.admit(&peer) {
            tracing::info!(
                plugin_id = %shared.plugin_id, host = %peer, tag = %tag, fluent_signal = message.options.fluent_signal,
                repeated, "metrics, traces and profiles are acknowledged and dropped, only logs are taken"
            );
        }
        return;
    }
    if dropped.total() > 0 {
        Counters::add(&shared.metrics.dropped_records, dropped.total());
    }
    if let Some(first) = &dropped.first
        && let Some(repeated) = INVALID.admit(&peer)
    {
        let (id, time, record, skipped) = (&shared.plugin_id, &first.time, &first.record, dropped.invalid);
        if message.mode == Mode::Message {
            tracing::warn!(
                plugin_id = %id, host = %peer, tag = %tag, %time, %record, repeated,
                "got invalid event and drop it:"
            );
        } else {
            tracing::warn!(
                plugin_id = %id, host = %peer, tag = %tag, %time, %record, skipped, repeated,
                "skip invalid event:"
            );
        }
    }
    if message.torn_bytes > 0 {
        Counters::add(&shared.counters.torn_bytes, message.torn_bytes);
        if let Some(repeated) = TORN.admit(&peer) {
            tracing::warn!(
                plugin_id = %shared.plugin_id, host = %peer, tag = %tag, bytes = message.torn_bytes, repeated,
                "packed entries end inside a record, the part is dropped:"
            );
        }
    }
}

fn warn_size(tag: &Tag, size: usize, limit: usize, peer: IpAddr, shared: &Shared) {
    if let Some(repeated) = SIZE.admit(&peer) {
        tracing::warn!(
            plugin_id = %shared.plugin_id, tag = %tag, host = %peer, limit, size, repeated,
            "Input chunk size is larger than 'chunk_size_warn_limit':"
        );
    }
}

/// A message over `chunk_size_limit` was dropped.
pub(super) fn note_oversize(tag: &Tag, size: usize, peer: IpAddr, shared: &Shared) {
    Counters::add(&shared.counters.received_bytes, size);
    if let Some(repeated) = SIZE.admit(&peer) {
        let limit = shared.settings.reader.chunk_size_limit;
        tracing::warn!(
            plugin_id = %shared.plugin_id, tag = %tag, host = %peer, limit, size, repeated,
            "Input chunk size is larger than 'chunk_size_limit', dropped:"
        );
    }
}

/// Something came that is no message.
pub(super) fn note_odd(text: &str, peer: IpAddr, shared: &Shared) {
    if let Some(repeated) = ODD.admit(&peer) {
        tracing::warn!(plugin_id = %shared.plugin_id, host = %peer, msg = text, repeated, "incoming chunk is broken:");
    }
}
