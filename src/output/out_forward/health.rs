//! Whether one upstream may be used: up -> suspect -> down -> probing, decided over evidence and a `now`.
//!
//! | evidence | up, suspect | down, unreachable | down, mute |
//! |---|---|---|---|
//! | a chunk was confirmed | up | up | up |
//! | a connect probe or datagram was answered | up | probing; up after `recover_wait` | stays: an accept proves nothing (F9) |
//! | an empty message was acknowledged | up | up | trial: one chunk at a time, up at its ack |
//! | a connect is slow, a connection ended with chunks on it | suspect | stays | stays |
//! | connect refused or timed out, probe unanswered | down, unreachable | stays, the wait begins again | unreachable; back as a trial |
//! | no ack in time, no send progress, nonsense | down, mute | down, mute | stays; a failed trial doubles the waits |
//!
//! Suspect: used only when nobody better is there.

use std::time::Duration;

use tokio::time::Instant;

/// First wait before a mute upstream is asked with an empty message; doubles with each failure.
const ASK_WAIT_MIN: Duration = Duration::from_secs(1);
/// Bound of that wait: a hung peer keeps each of our probe connections until it is killed (docs/RELIABILITY.md F9), so we
/// must not open one per second for ever.
const ASK_WAIT_MAX: Duration = Duration::from_secs(60);
/// A peer that acknowledges chunks but ignores empty messages would never come back by asking: after this wait one
/// real chunk is risked. Doubles with each failure.
const TRIAL_WAIT_MIN: Duration = Duration::from_secs(60);
/// Bound of that wait.
const TRIAL_WAIT_MAX: Duration = Duration::from_secs(600);
/// Connections that a peer ends with chunks on them, without one confirmation in between, until it counts as mute:
/// something accepts and closes (a balancer without backends), and connecting to it proves nothing.
const CLOSES_MAX: u32 = 3;

/// How upstreams are probed (`heartbeat_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeartbeatKind {
    /// Connect and close.
    Transport,
    /// One zero byte there, one datagram back.
    Udp,
    /// Nothing: only deliveries tell.
    None,
}

/// The settings that health depends on.
#[derive(Clone, Copy, Debug)]
pub struct HealthPolicy {
    /// `heartbeat_type`.
    pub heartbeat: HeartbeatKind,
    /// `heartbeat_interval`.
    pub heartbeat_interval: Duration,
    /// `recover_wait`: how long probes must succeed before an unreachable upstream is used again.
    pub recover_wait: Duration,
    /// A chunk that is not finished after this long makes its upstream suspect: nothing new while somebody better is
    /// there. Long before the ack deadline, so that a peer that hangs does not go on collecting chunks until then.
    pub suspect_after: Duration,
}

/// Something learned about an upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// A chunk was confirmed: acknowledged, or read to the end by a peer that never acknowledges.
    Confirmed,
    /// A connect succeeded, or a heartbeat datagram was answered.
    Reachable,
    /// An empty message was acknowledged.
    Answered,
    /// A connect takes longer than the hedge delay.
    Slow,
    /// The peer ended a connection while chunks were on it.
    Closed,
    /// A connect failed, or heartbeat datagrams stay unanswered.
    Unreachable,
    /// No ack in time, no send progress, or an answer that makes no sense.
    Mute,
}

/// A change that operators are told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Out of the rotation.
    Detached,
    /// Back in it.
    Recovered,
}

/// How far an upstream may be used now, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Standing {
    /// Takes its share.
    Up,
    /// Takes one chunk at a time until the first is confirmed.
    Trial,
    /// Only when nobody better is there.
    Suspect,
    /// Its probes succeed, but not for long enough yet.
    Probing,
    /// Not at all.
    Down,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Up,
    Suspect,
    Unreachable,
    Probing { since: Instant },
    Mute { ask_at: Instant, trial_at: Instant },
    Trial,
}

/// The health of one upstream.
#[derive(Clone, Debug)]
pub struct Health {
    state: State,
    ask_wait: Duration,
    trial_wait: Duration,
    closes: u32,
    /// It was mute and has confirmed nothing since: connects alone bring it back for a trial only.
    doubtful: bool,
    unreachable_since: Option<Instant>,
    confirmed_at: Option<Instant>,
}

impl Default for Health {
    fn default() -> Self {
        Self {
            state: State::Up,
            ask_wait: ASK_WAIT_MIN,
            trial_wait: TRIAL_WAIT_MIN,
            closes: 0,
            doubtful: false,
            unreachable_since: None,
            confirmed_at: None,
        }
    }
}

impl Health {
    /// Takes evidence in. `alone`: no other upstream is up, so the first good sign is enough.
    pub fn observe(
        &mut self,
        evidence: Evidence,
        now: Instant,
        alone: bool,
        policy: &HealthPolicy,
    ) -> Option<Change> {
        let was_in_rotation = self.in_rotation();
        match evidence {
            Evidence::Confirmed => self.confirmed(now),
            Evidence::Answered => self.answered(),
            Evidence::Reachable => self.reachable(now, alone, policy),
            Evidence::Slow => self.suspect(),
            Evidence::Closed => self.closed(now, policy),
            Evidence::Unreachable => self.unreachable(now),
            Evidence::Mute => self.mute(now, policy),
        }
        match (was_in_rotation, self.in_rotation()) {
            (true, false) => Some(Change::Detached),
            (false, true) => Some(Change::Recovered),
            _ => None,
        }
    }

    /// How far it may be used. `alone` as in [`Health::observe`].
    pub fn standing(&self, now: Instant, alone: bool, policy: &HealthPolicy) -> Standing {
        match self.state {
            State::Up => Standing::Up,
            State::Suspect => Standing::Suspect,
            State::Trial => Standing::Trial,
            State::Probing { .. } => Standing::Probing,
            State::Mute { trial_at, .. } if alone || now >= trial_at => Standing::Trial,
            State::Mute { .. } => Standing::Down,
            State::Unreachable if policy.heartbeat == HeartbeatKind::None => {
                let due = self.unreachable_since.is_none_or(|since| now >= since + policy.recover_wait);
                // Nobody probes, so a chunk has to; with no better upstream there is nothing to lose.
                if alone || due { Standing::Trial } else { Standing::Down }
            }
            State::Unreachable => Standing::Down,
        }
    }

    /// Whether it is counted as healthy.
    pub fn in_rotation(&self) -> bool {
        matches!(self.state, State::Up | State::Suspect | State::Trial)
    }

    /// Whether it is up without doubts.
    pub fn is_up(&self) -> bool {
        self.state == State::Up
    }

    /// Whether an empty message should be sent to it now, because connecting proves nothing any more.
    pub fn ask_due(&self, now: Instant) -> bool {
        matches!(self.state, State::Mute { ask_at, .. } if now >= ask_at)
    }

    /// Whether it is down in a way in which connect probes are no evidence.
    pub fn is_mute(&self) -> bool {
        matches!(self.state, State::Mute { .. })
    }

    /// When a chunk was last confirmed: stronger than any probe sent before.
    pub fn confirmed_at(&self) -> Option<Instant> {
        self.confirmed_at
    }

    fn confirmed(&mut self, now: Instant) {
        *self = Self { confirmed_at: Some(now), ..Self::default() };
    }

    fn answered(&mut self) {
        match self.state {
            State::Mute { .. } => self.state = State::Trial,
            State::Trial => {}
            _ => self.state = State::Up,
        }
    }

    fn reachable(&mut self, now: Instant, alone: bool, policy: &HealthPolicy) {
        match self.state {
            State::Suspect => self.state = State::Up,
            State::Unreachable => self.state = State::Probing { since: now },
            _ => {}
        }
        if let State::Probing { since } = self.state {
            // One interval earlier, because the peer may have been back for that long before the first probe saw it.
            if alone || now + policy.heartbeat_interval >= since + policy.recover_wait {
                self.state = if self.doubtful { State::Trial } else { State::Up };
            }
        }
    }

    fn suspect(&mut self) {
        if self.state == State::Up {
            self.state = State::Suspect;
        }
    }

    fn closed(&mut self, now: Instant, policy: &HealthPolicy) {
        self.closes += 1;
        if self.closes >= CLOSES_MAX || self.state == State::Trial {
            self.mute(now, policy);
        } else {
            self.suspect();
        }
    }

    fn unreachable(&mut self, now: Instant) {
        // Also when it was mute: whatever hung is gone, so what answers next is something else, or the same for which
        // `doubtful` allows a trial only.
        self.unreachable_since = Some(now);
        self.state = State::Unreachable;
    }

    fn mute(&mut self, now: Instant, policy: &HealthPolicy) {
        if matches!(self.state, State::Mute { trial_at, .. } if now < trial_at) {
            // Another connection that was open at the same time: the same failure, not a further one.
            return;
        }
        if policy.heartbeat == HeartbeatKind::None {
            // Nobody asks either: the trial is all there is, so it comes sooner.
            self.trial_wait = self.trial_wait.min(policy.recover_wait.max(ASK_WAIT_MIN));
        }
        self.doubtful = true;
        self.state = State::Mute { ask_at: now + self.ask_wait, trial_at: now + self.trial_wait };
        self.ask_wait = (self.ask_wait * 2).min(ASK_WAIT_MAX);
        self.trial_wait = (self.trial_wait * 2).min(TRIAL_WAIT_MAX);
    }

    /// An empty message was not acknowledged: asked again after twice the wait. The trial is not put off by that.
    pub fn ask_failed(&mut self, now: Instant) {
        if let State::Mute { trial_at, .. } = self.state {
            self.state = State::Mute { ask_at: now + self.ask_wait, trial_at };
            self.ask_wait = (self.ask_wait * 2).min(ASK_WAIT_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn policy() -> HealthPolicy {
        HealthPolicy {
            heartbeat: HeartbeatKind::Transport,
            heartbeat_interval: SECOND,
            recover_wait: 10 * SECOND,
            suspect_after: SECOND,
        }
    }

    #[test]
    fn unreachable_upstream_returns_after_recover_wait_of_good_probes() {
        let (mut health, start, policy) = (Health::default(), Instant::now(), policy());
        assert_eq!(health.observe(Evidence::Unreachable, start, false, &policy), Some(Change::Detached));
        assert_eq!(health.standing(start, false, &policy), Standing::Down);
        for second in 1..10 {
            let now = start + second * SECOND;
            assert_eq!(health.observe(Evidence::Reachable, now, false, &policy), None, "second {second}");
            assert_eq!(health.standing(now, false, &policy), Standing::Probing);
        }
        let now = start + 10 * SECOND;
        assert_eq!(health.observe(Evidence::Reachable, now, false, &policy), Some(Change::Recovered));
        assert_eq!(health.standing(now, false, &policy), Standing::Up);
    }

    #[test]
    fn a_failed_probe_begins_the_wait_again() {
        let (mut health, start, policy) = (Health::default(), Instant::now(), policy());
        health.observe(Evidence::Unreachable, start, false, &policy);
        health.observe(Evidence::Reachable, start + SECOND, false, &policy);
        health.observe(Evidence::Unreachable, start + 9 * SECOND, false, &policy);
        assert_eq!(health.observe(Evidence::Reachable, start + 10 * SECOND, false, &policy), None);
        assert_eq!(health.observe(Evidence::Reachable, start + 18 * SECOND, false, &policy), None);
        let back = health.observe(Evidence::Reachable, start + 19 * SECOND, false, &policy);
        assert_eq!(back, Some(Change::Recovered));
    }

    #[test]
    fn the_only_upstream_returns_with_the_first_good_probe() {
        let (mut health, start, policy) = (Health::default(), Instant::now(), policy());
        health.observe(Evidence::Unreachable, start, true, &policy);
        assert_eq!(
            health.observe(Evidence::Reachable, start + SECOND, true, &policy),
            Some(Change::Recovered)
        );
    }

    #[test]
    fn a_mute_peer_does_not_return_on_connect_probes() {
        let (mut health, start, policy) = (Health::default(), Instant::now(), policy());
        assert_eq!(health.observe(Evidence::Mute, start, false, &policy), Some(Change::Detached));
        for second in 1..59 {
            let now = start + second * SECOND;
            assert_eq!(health.observe(Evidence::Reachable, now, false, &policy), None);
            assert_eq!(health.standing(now, false, &policy), Standing::Down);
        }
    }

    #[test]
    fn a_mute_peer_is_asked_with_doubling_waits() {
        let (mut health, start, policy) = (Health::default(), Instant::now(), policy());
        health.observe(Evidence::Mute, start, false, &policy);
        let mut asked = Vec::new();
        for second in 0..400 {
            let now = start + second * SECOND;
            if health.ask_due(now) {
                asked.push(second);
                health.ask_failed(now);
            }
        }
        assert_eq!(asked, [1, 3, 7, 15, 31, 63, 123, 183, 243, 303, 363]);
    }

    #[test]
    fn an_answer_opens_a_trial_and_its_ack_ends_it() {
        let (mut health, start, policy) = (Health::default(), Instant::now(), policy());
        health.observe(Evidence::Mute, start, false, &policy);
        let answered = health.observe(Evidence::Answered, start + SECOND, false, &policy);
        assert_eq!(answered, Some(Change::Recovered));
        assert_eq!(health.standing(start + SECOND, false, &policy), Standing::Trial);
        assert_eq!(health.observe(Evidence::Confirmed, start + 2 * SECOND, false, &policy), None);
        assert_eq!(health.standing(start + 2 * SECOND, false, &policy), Standing::Up);
    }

    #[test]
    fn a_failed_trial_doubles_the_waits() {
        let (mut health, start, policy) = (Health::default(), Instant::now(), policy());
        health.observe(Evidence::Mute, start, false, &policy);
        health.observe(Evidence::Answered, start + SECOND, false, &policy);
        health.observe(Evidence::Mute, start + 31 * SECOND, false, &policy);
        assert!(!health.ask_due(start + 32 * SECOND));
        assert!(health.ask_due(start + 33 * SECOND));
        assert_eq!(health.standing(start + 150 * SECOND, false, &policy), Standing::Down);
        assert_eq!(health.standing(start + 151 * SECOND, false, &policy), Standing::Trial);
    }

    #[test]
    fn a_mute_peer_that_became_unreachable_returns_for_a_trial() {
        let (mut health, start, policy) = (Health::default(), Instant::now(), policy());
        health.observe(Evidence::Mute, start, false, &policy);
        health.observe(Evidence::Unreachable, start + SECOND, false, &policy);
        health.observe(Evidence::Reachable, start + 2 * SECOND, false, &policy);
        let back = start + 11 * SECOND;
        assert_eq!(health.observe(Evidence::Reachable, back, false, &policy), Some(Change::Recovered));
        assert_eq!(health.standing(back, false, &policy), Standing::Trial);
        health.observe(Evidence::Confirmed, back, false, &policy);
        assert_eq!(health.standing(back, false, &policy), Standing::Up);
    }

    #[test]
    fn connections_that_fail_together_count_once() {
        let (mut health, start, policy) = (Health::default(), Instant::now(), policy());
        for _ in 0..8 {
            health.observe(Evidence::Mute, start, false, &policy);
        }
        assert!(health.ask_due(start + SECOND));
        health.observe(Evidence::Mute, start + 60 * SECOND, false, &policy);
        assert_eq!(health.standing(start + 179 * SECOND, false, &policy), Standing::Down, "the trial failed");
        assert_eq!(health.standing(start + 180 * SECOND, false, &policy), Standing::Trial);
    }

    #[test]
    fn one_close_is_a_suspicion_and_three_without_a_confirmation_a_failure() {
        let (mut health, now, policy) = (Health::default(), Instant::now(), policy());
        assert_eq!(health.observe(Evidence::Closed, now, false, &policy), None);
        assert_eq!(health.standing(now, false, &policy), Standing::Suspect);
        health.observe(Evidence::Reachable, now, false, &policy);
        assert_eq!(health.standing(now, false, &policy), Standing::Up);
        health.observe(Evidence::Closed, now, false, &policy);
        health.observe(Evidence::Reachable, now, false, &policy);
        assert_eq!(health.observe(Evidence::Closed, now, false, &policy), Some(Change::Detached));
        assert!(health.is_mute());
        health.observe(Evidence::Confirmed, now, false, &policy);
        health.observe(Evidence::Closed, now, false, &policy);
        assert!(health.in_rotation(), "a confirmation starts the count again");
    }

    #[test]
    fn without_heartbeats_a_chunk_is_the_probe() {
        let policy = HealthPolicy { heartbeat: HeartbeatKind::None, ..policy() };
        let (mut health, start) = (Health::default(), Instant::now());
        health.observe(Evidence::Unreachable, start, false, &policy);
        assert_eq!(health.standing(start + 9 * SECOND, false, &policy), Standing::Down);
        assert_eq!(health.standing(start + 9 * SECOND, true, &policy), Standing::Trial);
        assert_eq!(health.standing(start + 10 * SECOND, false, &policy), Standing::Trial);
    }
}
