//! What travels from an input through the router to the sinks.

use bytes::Bytes;

use crate::event::EventStream;

/// What one message brought: a stream and, when the sender asked for an ack, its chunk id.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// The events.
    pub stream: EventStream,
    /// The sender's chunk id, byte for byte (forward option `chunk`); stored with the events.
    pub sender_chunk: Option<Bytes>,
    /// Labels it has passed. Bounds the way, since labels may lead in a circle.
    pub labels_passed: u8,
}

impl Arrival {
    /// What an input brings: it has passed no label yet.
    pub fn new(stream: EventStream, sender_chunk: Option<Bytes>) -> Self {
        Self { stream, sender_chunk, labels_passed: 0 }
    }
}
