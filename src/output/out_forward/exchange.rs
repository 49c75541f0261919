//! What is owed on one connection: which chunks are written, acknowledged, late. Pure: bytes counts and a `now` in,
//! verdicts out.
//!
//! `require_ack_response` decides who must acknowledge (docs/DELIVERY.md): unset means that a peer that has ever
//! acknowledged must, and a peer that never has is *asked* when its deadline passes: we end our writing side; if it
//! reads to the end and closes, it has the chunk.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

/// How long a peer may take to read to the end and close after it was asked. Within the second that a chunk of a
/// lost upstream may take beyond the ack deadline until it is delivered elsewhere; half of it is left for the resending.
pub const ASK_DEADLINE: Duration = Duration::from_millis(500);

/// `require_ack_response`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AckMode {
    /// Unset: peers that can acknowledge must.
    Auto,
    /// `true`: without an ack nothing is delivered.
    Required,
    /// `false`: a chunk that was handed to the kernel counts as delivered.
    Off,
}

/// What this run has seen of a peer's acks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerAcks {
    /// Nothing yet.
    Unknown,
    /// It has acknowledged, so it must.
    Acks,
    /// It read a chunk to the end and closed without an ack.
    Never,
}

/// The deadlines of an exchange.
#[derive(Clone, Copy, Debug)]
pub struct ExchangePolicy {
    /// `require_ack_response`.
    pub mode: AckMode,
    /// `ack_response_timeout`, from the last byte handed to the kernel.
    pub ack_deadline: Duration,
    /// How long the peer may acknowledge nothing of what was sent, or keep its window closed: TCP_USER_TIMEOUT.
    pub progress_deadline: Duration,
}

/// Progress deadlines after which we give up ourselves when the kernel takes no bytes. The kernel's own verdict comes
/// first and is the better one: a full send buffer on a slow line takes nothing for many seconds although the peer
/// acknowledges all the time (measured: 25 KB/s with 4 s of queue in the line).
const STALL_FACTOR: u32 = 6;

/// What the connection has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Wait for the socket, at most until then.
    Wait(Option<Instant>),
    /// End the writing side and wait for the peer to close; then call [`Exchange::asked`].
    Ask,
    /// The peer takes no bytes: give up.
    Stalled,
    /// No ack in time: give up.
    Unanswered,
}

/// The meaning of an ack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AckMeaning {
    /// This chunk is confirmed.
    Confirms(u64),
    /// It belongs to nothing that is waiting; nobody asked for acks.
    Ignored,
    /// It belongs to nothing that is waiting, although acks matter.
    Foreign,
}

#[derive(Debug)]
struct Flight {
    key: u64,
    ack: Bytes,
    end: u64,
    written_at: Option<Instant>,
}

/// The chunks on one connection.
#[derive(Debug)]
pub struct Exchange {
    policy: ExchangePolicy,
    flights: VecDeque<Flight>,
    enqueued: u64,
    written: u64,
    progress_at: Instant,
    asked: Option<Instant>,
    acks: u64,
}

impl Exchange {
    /// An exchange without chunks.
    pub fn new(policy: ExchangePolicy, now: Instant) -> Self {
        Self {
            policy,
            flights: VecDeque::new(),
            enqueued: 0,
            written: 0,
            progress_at: now,
            asked: None,
            acks: 0,
        }
    }

    /// A chunk of `length` bytes on the wire is to be written; `ack` is the text that confirms it.
    pub fn enqueue(&mut self, key: u64, ack: Bytes, length: u64, now: Instant) {
        if self.written == self.enqueued {
            self.progress_at = now;
        }
        self.enqueued += length;
        self.flights.push_back(Flight { key, ack, end: self.enqueued, written_at: None });
    }

    /// The kernel took so many bytes. Returns the chunks that are delivered by that alone (mode off).
    pub fn wrote(&mut self, length: u64, now: Instant) -> Vec<u64> {
        if length > 0 {
            self.progress_at = now;
        }
        self.written += length;
        for flight in &mut self.flights {
            if flight.end <= self.written && flight.written_at.is_none() {
                flight.written_at = Some(now);
            }
        }
        let mut delivered = Vec::new();
        if self.policy.mode == AckMode::Off {
            while self.flights.front().is_some_and(|flight| flight.written_at.is_some()) {
                delivered.extend(self.flights.pop_front().map(|flight| flight.key));
            }
        }
        delivered
    }

    /// The peer acknowledged this text.
    pub fn acknowledged(&mut self, text: &[u8]) -> AckMeaning {
        let position = self.flights.iter().position(|flight| flight.ack == text);
        match position.and_then(|index| self.flights.remove(index)) {
            Some(flight) => {
                self.acks += 1;
                AckMeaning::Confirms(flight.key)
            }
            None if self.policy.mode == AckMode::Off => {
                self.acks += 1;
                AckMeaning::Ignored
            }
            None => AckMeaning::Foreign,
        }
    }

    /// What to do now.
    pub fn verdict(&self, now: Instant, peer: PeerAcks) -> Verdict {
        if self.written < self.enqueued {
            let deadline = self.progress_at + self.policy.progress_deadline.saturating_mul(STALL_FACTOR);
            return if now >= deadline { Verdict::Stalled } else { self.wait_at_most(deadline, now, peer) };
        }
        if let (AckMode::Auto, PeerAcks::Never, false, None) =
            (self.policy.mode, peer, self.flights.is_empty(), self.asked)
        {
            // It is known to give no acks: its closing is the only confirmation, so no time is lost.
            return Verdict::Ask;
        }
        match self.answer_deadline(peer) {
            None => Verdict::Wait(None),
            Some(deadline) if now < deadline => Verdict::Wait(Some(deadline)),
            Some(_) if self.may_ask(peer) => Verdict::Ask,
            Some(_) => Verdict::Unanswered,
        }
    }

    /// The writing side is ended.
    pub fn asked(&mut self, now: Instant) {
        self.asked = Some(now);
    }

    /// The peer closed in good order. Returns whether what is in flight counts as delivered, unconfirmed.
    pub fn end_confirms(&self) -> bool {
        self.policy.mode == AckMode::Auto && self.asked.is_some() && self.written == self.enqueued
    }

    /// The chunks that are still in flight, oldest first.
    pub fn drain(&mut self) -> Vec<u64> {
        self.flights.drain(..).map(|flight| flight.key).collect()
    }

    /// Whether nothing is in flight.
    pub fn is_idle(&self) -> bool {
        self.flights.is_empty() && self.written == self.enqueued
    }

    /// Acks on this connection.
    pub fn acks(&self) -> u64 {
        self.acks
    }

    fn may_ask(&self, peer: PeerAcks) -> bool {
        self.policy.mode == AckMode::Auto && peer == PeerAcks::Unknown && self.asked.is_none()
    }

    /// When the oldest written chunk has to be answered.
    fn answer_deadline(&self, peer: PeerAcks) -> Option<Instant> {
        if self.policy.mode == AckMode::Off {
            return None;
        }
        let written_at = self.flights.iter().find_map(|flight| flight.written_at)?;
        match self.asked {
            // Asked at once, so it has the whole deadline to read to the end.
            Some(asked) if peer == PeerAcks::Never => Some(asked + self.policy.ack_deadline),
            Some(asked) => Some(asked + ASK_DEADLINE),
            None => Some(written_at + self.policy.ack_deadline),
        }
    }

    /// While bytes are still to be written, the deadline of an older chunk counts too, unless its peer would be
    /// asked: that needs everything written.
    fn wait_at_most(&self, deadline: Instant, now: Instant, peer: PeerAcks) -> Verdict {
        match self.answer_deadline(peer) {
            Some(answer) if self.may_ask(peer) || peer == PeerAcks::Never || answer > deadline => {
                Verdict::Wait(Some(deadline))
            }
            Some(answer) if now >= answer => Verdict::Unanswered,
            Some(answer) => Verdict::Wait(Some(answer)),
            None => Verdict::Wait(Some(deadline)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn exchange(mode: AckMode, now: Instant) -> Exchange {
        let policy = ExchangePolicy { mode, ack_deadline: 30 * SECOND, progress_deadline: 5 * SECOND };
        Exchange::new(policy, now)
    }

    fn id(text: &'static str) -> Bytes {
        Bytes::from_static(text.as_bytes())
    }

    #[test]
    fn acks_confirm_in_any_order() {
        let now = Instant::now();
        let mut exchange = exchange(AckMode::Required, now);
        for (key, text) in [(1, "a"), (2, "b"), (3, "c")] {
            exchange.enqueue(key, id(text), 10, now);
        }
        assert!(exchange.wrote(30, now).is_empty());
        assert_eq!(exchange.acknowledged(b"b"), AckMeaning::Confirms(2));
        assert_eq!(exchange.acknowledged(b"b"), AckMeaning::Foreign);
        assert_eq!(exchange.acknowledged(b"a"), AckMeaning::Confirms(1));
        assert_eq!(exchange.drain(), [3]);
        assert!(exchange.is_idle());
    }

    #[test]
    fn the_ack_deadline_runs_from_the_last_byte() {
        let start = Instant::now();
        let mut exchange = exchange(AckMode::Required, start);
        exchange.enqueue(1, id("a"), 10, start);
        exchange.wrote(9, start);
        assert_eq!(exchange.verdict(start, PeerAcks::Unknown), Verdict::Wait(Some(start + 30 * SECOND)));
        exchange.wrote(1, start + 4 * SECOND);
        let deadline = start + 34 * SECOND;
        assert_eq!(exchange.verdict(start + 33 * SECOND, PeerAcks::Unknown), Verdict::Wait(Some(deadline)));
        assert_eq!(exchange.verdict(deadline, PeerAcks::Unknown), Verdict::Unanswered);
    }

    #[test]
    fn a_peer_that_takes_no_bytes_is_stalled() {
        let start = Instant::now();
        let mut exchange = exchange(AckMode::Auto, start);
        exchange.enqueue(1, id("a"), 10, start + 60 * SECOND);
        let now = start + 89 * SECOND;
        assert_eq!(exchange.verdict(now, PeerAcks::Unknown), Verdict::Wait(Some(now + SECOND)));
        assert_eq!(exchange.verdict(now + SECOND, PeerAcks::Unknown), Verdict::Stalled);
        exchange.wrote(5, now);
        assert_eq!(exchange.verdict(now + SECOND, PeerAcks::Unknown), Verdict::Wait(Some(now + 30 * SECOND)));
    }

    #[test]
    fn auto_asks_a_peer_that_never_acknowledged() {
        let start = Instant::now();
        let mut exchange = exchange(AckMode::Auto, start);
        exchange.enqueue(1, id("a"), 10, start);
        exchange.wrote(10, start);
        let late = start + 30 * SECOND;
        assert_eq!(exchange.verdict(late, PeerAcks::Acks), Verdict::Unanswered);
        assert_eq!(exchange.verdict(late, PeerAcks::Unknown), Verdict::Ask);
        assert!(!exchange.end_confirms(), "an end that nobody asked for confirms nothing");
        exchange.asked(late);
        assert_eq!(exchange.verdict(late, PeerAcks::Unknown), Verdict::Wait(Some(late + ASK_DEADLINE)));
        assert!(exchange.end_confirms());
        assert_eq!(exchange.verdict(late + ASK_DEADLINE, PeerAcks::Unknown), Verdict::Unanswered);
    }

    #[test]
    fn a_known_non_acking_peer_is_asked_at_once_and_has_the_whole_deadline() {
        let start = Instant::now();
        let mut exchange = exchange(AckMode::Auto, start);
        exchange.enqueue(1, id("a"), 10, start);
        assert_eq!(exchange.verdict(start, PeerAcks::Never), Verdict::Wait(Some(start + 30 * SECOND)));
        exchange.wrote(10, start);
        assert_eq!(exchange.verdict(start, PeerAcks::Never), Verdict::Ask);
        exchange.asked(start);
        let deadline = start + 30 * SECOND;
        assert_eq!(exchange.verdict(start, PeerAcks::Never), Verdict::Wait(Some(deadline)));
        assert_eq!(exchange.verdict(deadline, PeerAcks::Never), Verdict::Unanswered);
    }

    #[test]
    fn required_never_asks() {
        let start = Instant::now();
        let mut exchange = exchange(AckMode::Required, start);
        exchange.enqueue(1, id("a"), 10, start);
        exchange.wrote(10, start);
        assert_eq!(exchange.verdict(start + 30 * SECOND, PeerAcks::Never), Verdict::Unanswered);
        assert!(!exchange.end_confirms());
    }

    #[test]
    fn off_is_delivered_when_written_and_never_waits_for_answers() {
        let start = Instant::now();
        let mut exchange = exchange(AckMode::Off, start);
        exchange.enqueue(1, id("a"), 10, start);
        exchange.enqueue(2, id("b"), 10, start);
        assert_eq!(exchange.wrote(15, start), [1]);
        assert_eq!(exchange.wrote(5, start), [2]);
        assert_eq!(exchange.acknowledged(b"a"), AckMeaning::Ignored);
        assert_eq!(exchange.verdict(start + 600 * SECOND, PeerAcks::Unknown), Verdict::Wait(None));
    }

    #[test]
    fn an_old_unanswered_chunk_counts_while_a_newer_one_is_written() {
        let start = Instant::now();
        let mut exchange = exchange(AckMode::Required, start);
        exchange.enqueue(1, id("a"), 10, start);
        exchange.wrote(10, start);
        exchange.enqueue(2, id("b"), 1000, start + 29 * SECOND);
        exchange.wrote(1, start + 30 * SECOND);
        assert_eq!(exchange.verdict(start + 30 * SECOND, PeerAcks::Acks), Verdict::Unanswered);
    }
}
