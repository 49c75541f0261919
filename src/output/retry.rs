//! When to try again: pure, over a monotonic `now` that the caller hands in.
//!
//! The state belongs to the destination (one per output), as in Fluentd's `plugin_helper/retry_state.rb`: it begins at
//! the first failure and ends with any success. A chunk that the destination itself refused is counted apart by the
//! runner, so that one poisoned chunk does not stop the others.

use std::time::Duration;

/// How the pause between two tries grows (`retry_type`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RetryKind {
    /// `retry_wait × base^n`.
    ExponentialBackoff {
        /// `retry_exponential_backoff_base`.
        base: f64,
    },
    /// Always `retry_wait`.
    Periodic,
}

/// The `retry_*` parameters of `<buffer>`.
#[derive(Clone, Debug, PartialEq)]
pub struct RetryPolicy {
    /// `retry_forever`: no limit at all.
    pub forever: bool,
    /// `retry_timeout`: how long after the first failure the last try is made.
    pub timeout: Duration,
    /// `retry_max_times`: tries after the first failure.
    pub max_times: Option<u32>,
    /// `retry_type`.
    pub kind: RetryKind,
    /// `retry_wait`.
    pub wait: Duration,
    /// `retry_max_interval`.
    pub max_interval: Option<Duration>,
    /// `retry_randomize`: ± 12.5 % of the pause.
    pub randomize: bool,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            forever: false,
            timeout: Duration::from_secs(72 * 3600),
            max_times: None,
            kind: RetryKind::ExponentialBackoff { base: 2.0 },
            wait: Duration::from_secs(1),
            max_interval: None,
            randomize: true,
        }
    }
}

/// What follows from a failure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verdict {
    /// Try again at this time.
    RetryAt(Duration),
    /// The limit is reached: what is queued goes aside.
    GiveUp,
}

#[derive(Clone, Copy, Debug)]
struct Outage {
    start: Duration,
    steps: u32,
    next: Duration,
    /// The next try was brought forward: its failure is no further step.
    hastened: bool,
}

/// The retry state of one destination.
#[derive(Debug)]
pub struct Retry {
    policy: RetryPolicy,
    outage: Option<Outage>,
}

/// An exponent above this overflows any pause that makes sense (2^64 s); the pause is capped far below it.
const EXPONENT_MAX: u32 = 64;
/// A pause is never longer than this, whatever base and step say: one year.
const PAUSE_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

impl Retry {
    /// A destination that is well.
    pub fn new(policy: RetryPolicy) -> Self {
        Self { policy, outage: None }
    }

    /// The destination confirmed a chunk. True when this ended an outage ("retry succeeded").
    pub fn on_success(&mut self) -> bool {
        self.outage.take().is_some()
    }

    /// A try failed at `now`. `random` in 0..1 decides the jitter.
    pub fn on_failure(&mut self, now: Duration, random: f64) -> Verdict {
        let Some(mut outage) = self.outage else {
            let next = self.cap(now, now + self.policy.wait);
            self.outage = Some(Outage { start: now, steps: 0, next, hastened: false });
            if !self.policy.forever && self.policy.max_times == Some(0) {
                return Verdict::GiveUp;
            }
            return Verdict::RetryAt(next);
        };
        if now < outage.next {
            // A concurrent flush that began before the pause: it says nothing new.
            return Verdict::RetryAt(outage.next);
        }
        if !std::mem::take(&mut outage.hastened) {
            outage.steps = outage.steps.saturating_add(1);
        }
        if !self.policy.forever {
            let tries_spent = self.policy.max_times.is_some_and(|max| outage.steps >= max);
            if tries_spent || now >= outage.start + self.policy.timeout {
                self.outage = Some(outage);
                return Verdict::GiveUp;
            }
        }
        outage.next = self.cap(outage.start, now + self.pause(outage.steps, random));
        self.outage = Some(outage);
        Verdict::RetryAt(outage.next)
    }

    /// The destination is seen to be well again: the next try need not wait. Costs no step, so a destination that only
    /// looks well does not use up the retries.
    pub fn hasten(&mut self, now: Duration) {
        if let Some(outage) = &mut self.outage {
            outage.hastened |= outage.next > now;
            outage.next = outage.next.min(now);
        }
    }

    /// The time before which no try should be made, while the destination is unwell.
    pub fn next(&self) -> Option<Duration> {
        self.outage.map(|outage| outage.next)
    }

    /// Number of retries made in this outage, and its start; for monitor_agent.
    pub fn progress(&self) -> Option<(u32, Duration)> {
        self.outage.map(|outage| (outage.steps, outage.start))
    }

    /// After giving up: the queue is gone, the next failure begins a new outage.
    pub fn reset(&mut self) {
        self.outage = None;
    }

    fn cap(&self, start: Duration, next: Duration) -> Duration {
        if self.policy.forever { next } else { next.min(start + self.policy.timeout) }
    }

    fn pause(&self, steps: u32, random: f64) -> Duration {
        let seconds = match self.policy.kind {
            RetryKind::Periodic => self.policy.wait.as_secs_f64(),
            RetryKind::ExponentialBackoff { base } => {
                self.policy.wait.as_secs_f64() * base.powi(steps.min(EXPONENT_MAX) as i32)
            }
        };
        let limit = self.policy.max_interval.unwrap_or(PAUSE_MAX).min(PAUSE_MAX).as_secs_f64();
        let seconds = if seconds.is_finite() { seconds.clamp(0.0, limit) } else { limit };
        let jitter = if self.policy.randomize { seconds * 0.125 * (2.0 * random - 1.0) } else { 0.0 };
        Duration::from_secs_f64((seconds + jitter).max(0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    fn policy() -> RetryPolicy {
        RetryPolicy { randomize: false, ..RetryPolicy::default() }
    }

    /// Fails at every due time and lists the pauses until the verdict is to give up.
    fn pauses(policy: RetryPolicy, most: usize) -> Vec<f64> {
        let mut retry = Retry::new(policy);
        let mut now = seconds(100);
        let mut list = Vec::new();
        while let Verdict::RetryAt(next) = retry.on_failure(now, 0.5) {
            list.push((next - now).as_secs_f64());
            now = next;
            if list.len() == most {
                break;
            }
        }
        list
    }

    #[test]
    fn defaults_double_until_72_hours() {
        let list = pauses(policy(), 100);
        assert_eq!(&list[..5], &[1.0, 2.0, 4.0, 8.0, 16.0]);
        assert_eq!(list.len(), 18, "17 steps and the last try at the timeout: {list:?}");
        assert_eq!(list.iter().sum::<f64>(), 72.0 * 3600.0);
    }

    #[test]
    fn max_times_counts_tries_after_the_first_failure() {
        for times in 0..5 {
            let list = pauses(RetryPolicy { max_times: Some(times), ..policy() }, 100);
            assert_eq!(list.len(), times as usize);
        }
    }

    #[test]
    fn max_interval_caps_and_forever_never_ends() {
        let list = pauses(RetryPolicy { forever: true, max_interval: Some(seconds(30)), ..policy() }, 10_000);
        assert_eq!(list.len(), 10_000);
        assert_eq!(list[9_999], 30.0);
    }

    #[test]
    fn periodic_keeps_the_pause() {
        let list = pauses(
            RetryPolicy { kind: RetryKind::Periodic, wait: seconds(7), timeout: seconds(30), ..policy() },
            100,
        );
        assert_eq!(list, vec![7.0, 7.0, 7.0, 7.0, 2.0]);
    }

    #[test]
    fn a_concurrent_failure_does_not_step() {
        let mut retry = Retry::new(policy());
        assert_eq!(retry.on_failure(seconds(0), 0.5), Verdict::RetryAt(seconds(1)));
        assert_eq!(retry.on_failure(Duration::from_millis(10), 0.5), Verdict::RetryAt(seconds(1)));
        assert_eq!(retry.on_failure(seconds(1), 0.5), Verdict::RetryAt(seconds(3)));
        assert!(retry.on_success());
        assert!(!retry.on_success());
        assert_eq!(retry.on_failure(seconds(50), 0.5), Verdict::RetryAt(seconds(51)));
    }

    #[test]
    fn a_recovered_destination_is_tried_at_once_without_a_step() {
        let mut retry = Retry::new(policy());
        retry.hasten(seconds(0));
        assert_eq!(retry.next(), None);
        retry.on_failure(seconds(0), 0.5);
        retry.on_failure(seconds(1), 0.5);
        assert_eq!(retry.on_failure(seconds(3), 0.5), Verdict::RetryAt(seconds(7)));
        retry.hasten(seconds(4));
        assert_eq!(retry.next(), Some(seconds(4)));
        assert_eq!(retry.on_failure(seconds(4), 0.5), Verdict::RetryAt(seconds(8)), "no further step");
        assert_eq!(retry.on_failure(seconds(8), 0.5), Verdict::RetryAt(seconds(16)));
        retry.hasten(seconds(20));
        assert_eq!(retry.next(), Some(seconds(16)), "what is due stays due");
    }

    #[test]
    fn jitter_stays_within_an_eighth() {
        for random in [0.0, 0.25, 0.999] {
            let mut retry = Retry::new(RetryPolicy { randomize: true, ..policy() });
            retry.on_failure(seconds(0), random);
            let Verdict::RetryAt(next) = retry.on_failure(seconds(1), random) else { panic!("gave up") };
            let pause = (next - seconds(1)).as_secs_f64();
            assert!((1.75..=2.25).contains(&pause), "{pause}");
        }
    }
}
