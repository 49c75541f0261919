//! Which of the usable upstreams takes the next chunk: smooth weighted round robin among the least loaded.
//!
//! The weights decide the shares as long as everybody confirms. An upstream that sits on its chunks is passed over
//! while another has fewer per weight, so a peer that accepts and never answers collects at most its fair part of
//! the chunks in flight and the rest of them go on circulating. Being passed over earns credit, bounded, so that
//! shares even out after a short pause.

use std::collections::BTreeMap;

/// An upstream that may be chosen.
#[derive(Clone, Copy, Debug)]
pub struct Candidate {
    /// Who.
    pub id: u64,
    /// Its share; 0 is never chosen.
    pub weight: u64,
    /// Chunks given to it and not finished.
    pub outstanding: usize,
}

/// Credit is kept within this many rounds, so that an upstream returning from a pause is not flooded.
const CREDIT_ROUNDS_MAX: i128 = 2;

/// The memory of the round robin. No chance and no clock: equal calls give equal answers.
#[derive(Debug, Default)]
pub struct Balancer {
    credits: BTreeMap<u64, i128>,
}

impl Balancer {
    /// Chooses among the candidates; `None` when none has weight. Upstreams that are no candidates keep their credit
    /// (they may only have been tried already for this chunk); [`Balancer::forget`] drops it.
    pub fn choose(&mut self, candidates: &[Candidate]) -> Option<u64> {
        let usable = || candidates.iter().filter(|candidate| candidate.weight > 0);
        let total: i128 = usable().map(|candidate| i128::from(candidate.weight)).sum();
        let least = usable().min_by(|a, b| load_order(a, b))?;
        let bound = total * CREDIT_ROUNDS_MAX;
        for candidate in usable() {
            let credit = self.credits.entry(candidate.id).or_insert(0);
            *credit = (*credit + i128::from(candidate.weight)).clamp(-bound, bound);
        }
        let credit = |id: u64| self.credits.get(&id).copied().unwrap_or(0);
        let chosen = usable()
            .filter(|candidate| load_order(candidate, least).is_eq())
            .max_by(|a, b| credit(a.id).cmp(&credit(b.id)).then(b.id.cmp(&a.id)))?
            .id;
        *self.credits.entry(chosen).or_insert(0) -= total;
        Some(chosen)
    }

    /// Drops what is remembered of an upstream: it is down or gone.
    pub fn forget(&mut self, id: u64) {
        self.credits.remove(&id);
    }
}

/// Compares outstanding per weight without dividing.
fn load_order(a: &Candidate, b: &Candidate) -> std::cmp::Ordering {
    (a.outstanding as u128 * u128::from(b.weight)).cmp(&(b.outstanding as u128 * u128::from(a.weight)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn idle(id: u64, weight: u64) -> Candidate {
        Candidate { id, weight, outstanding: 0 }
    }

    #[test]
    fn shares_follow_the_weights_smoothly() {
        let mut balancer = Balancer::default();
        let candidates = [idle(1, 5), idle(2, 1), idle(3, 1)];
        let order: Vec<u64> = (0..7).filter_map(|_| balancer.choose(&candidates)).collect();
        assert_eq!(order, [1, 1, 2, 1, 3, 1, 1]);
    }

    #[test]
    fn weight_zero_is_never_chosen() {
        let mut balancer = Balancer::default();
        assert_eq!(balancer.choose(&[idle(1, 0)]), None);
        for _ in 0..10 {
            assert_eq!(balancer.choose(&[idle(1, 0), idle(2, 1)]), Some(2));
        }
    }

    /// Four slots, three upstreams, the first never finishes: it holds at most two slots, the others go on.
    #[test]
    fn a_peer_that_sits_on_chunks_cannot_take_every_slot() {
        let mut balancer = Balancer::default();
        let (mut held, mut served) = (0, 0);
        for _ in 0..1000 {
            let mut busy = [held, 0, 0];
            for _ in held..4 {
                let candidates: Vec<Candidate> = (0..3)
                    .map(|index| Candidate { id: index as u64, weight: 60, outstanding: busy[index] })
                    .collect();
                let chosen = balancer.choose(&candidates).expect("somebody") as usize;
                busy[chosen] += 1;
            }
            held = busy[0];
            served += busy[1] + busy[2];
        }
        assert!(held <= 2, "holds {held} of 4 slots");
        assert!(served >= 1900, "only {served} chunks went to the others");
    }

    proptest! {
        #[test]
        fn shares_converge_exactly_each_round(weights in prop::collection::vec(0u64..20, 1..8)) {
            let total: u64 = weights.iter().sum();
            prop_assume!(total > 0);
            let candidates: Vec<Candidate> =
                weights.iter().enumerate().map(|(id, weight)| idle(id as u64, *weight)).collect();
            let mut balancer = Balancer::default();
            for _ in 0..3 {
                let mut taken = vec![0; weights.len()];
                for _ in 0..total {
                    taken[balancer.choose(&candidates).expect("somebody has weight") as usize] += 1;
                }
                prop_assert_eq!(&taken, &weights);
            }
        }

        /// With members that come and go, only candidates are chosen, and nobody who stays a candidate starves.
        #[test]
        fn only_candidates_and_no_starvation(
            weights in prop::collection::vec(1u64..20, 2..6),
            absent in prop::collection::vec(any::<u8>(), 50..200),
        ) {
            let total: u64 = weights.iter().sum();
            let mut balancer = Balancer::default();
            let mut since_chosen = vec![0u64; weights.len()];
            for mask in absent {
                // The first member is always there.
                let candidates: Vec<Candidate> = weights
                    .iter()
                    .enumerate()
                    .filter(|(id, _)| *id == 0 || mask & (1 << id) == 0)
                    .map(|(id, weight)| idle(id as u64, *weight))
                    .collect();
                let chosen = balancer.choose(&candidates).expect("the first is there");
                prop_assert!(candidates.iter().any(|candidate| candidate.id == chosen));
                since_chosen[0] += 1;
                if chosen == 0 {
                    since_chosen[0] = 0;
                }
                // Its own bound of debt, its round, and what others may have saved up.
                prop_assert!(since_chosen[0] <= total * 8, "the first waited {} turns", since_chosen[0]);
            }
        }
    }
}
