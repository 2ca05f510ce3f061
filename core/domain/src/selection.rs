//! Who takes part in a round: a cohort drawn from those who are there, with spare members for stragglers.
//!
//! Invariants: the cohort holds only candidates, each once; `quorum <= target <= cohort`; the same seed and candidates
//! give the same cohort, whatever order they are told in.

use crate::job::RoundSpec;
use rand::seq::IndexedRandom;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use std::collections::{BTreeMap, BTreeSet};

/// A drawn cohort and what the round wants of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cohort<M: Ord> {
    /// Who is asked.
    pub members: BTreeSet<M>,
    /// Updates wanted.
    pub target: usize,
    /// The fewest that count.
    pub quorum: usize,
}

/// Draws the cohort of one round; `None` while fewer than `min_vehicles` candidates are there.
///
/// - `candidates`: who is there and may take part, with the share of its receipts that came within the latency budget,
///   `[0, 1]` (1 for a newcomer). Selection prefers those who keep the budget: chances are weighted by
///   `0.25 + 0.75 * share`, so nobody is shut out.
/// - `seed`: one number for this round.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a share of a count is a small count"
)]
pub fn draw_cohort<M: Ord + Clone>(
    spec: &RoundSpec,
    candidates: &BTreeMap<M, f64>,
    seed: u64,
) -> Option<Cohort<M>> {
    let available = candidates.len();
    let least = usize::try_from(spec.min_vehicles)
        .unwrap_or(usize::MAX)
        .max(1);
    if available < least {
        return None;
    }
    let target = ((spec.fraction_train * available as f64).ceil() as usize).clamp(least, available);
    let size = ((target as f64 * spec.over_selection).ceil() as usize).clamp(target, available);
    let quorum = quorum_of(spec, target);
    let members = if size == available {
        candidates.keys().cloned().collect()
    } else {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let pool: Vec<(&M, f64)> = candidates
            .iter()
            .map(|(member, share)| {
                (
                    member,
                    0.25 + 0.75
                        * if share.is_finite() {
                            share.clamp(0.0, 1.0)
                        } else {
                            0.0
                        },
                )
            })
            .collect();
        let drawn = pool.choose_multiple_weighted(&mut rng, size, |(_, weight)| *weight);
        drawn
            .expect("every weight is between 0.25 and 1")
            .map(|(member, _)| (*member).clone())
            .collect()
    };
    Some(Cohort {
        members,
        target,
        quorum,
    })
}

/// The fewest updates of so many wanted that may change the model.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a share of a count is a small count"
)]
pub fn quorum_of(spec: &RoundSpec, target: usize) -> usize {
    ((spec.quorum * target as f64).ceil() as usize).clamp(1, target.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::Duration;

    fn spec(fraction_train: f64, over_selection: f64, quorum: f64) -> RoundSpec {
        RoundSpec {
            fraction_train,
            min_vehicles: 2,
            over_selection,
            quorum,
            round_timeout: Duration::from_secs(10),
            min_window: Duration::ZERO,
            edge_rounds: 1,
            max_examples: 1000,
            max_norm: 1.0,
            max_norm_ratio: 0.0,
            latency_budget: Duration::from_millis(500),
        }
    }

    fn fleet(n: u32) -> BTreeMap<u32, f64> {
        (0..n).map(|i| (i, 1.0)).collect()
    }

    #[test]
    fn sizes_follow_the_spec() {
        let check = |n, fraction, over, quorum, expected: Option<(usize, usize, usize)>| {
            let cohort = draw_cohort(&spec(fraction, over, quorum), &fleet(n), 1);
            assert_eq!(
                cohort.map(|c| (c.members.len(), c.target, c.quorum)),
                expected
            );
        };
        check(1, 1.0, 1.3, 0.5, None);
        check(4, 1.0, 1.3, 0.5, Some((4, 4, 2)));
        check(10, 0.5, 1.3, 0.8, Some((7, 5, 4)));
        check(10, 0.01, 1.0, 1.0, Some((2, 2, 2)));
    }

    #[test]
    fn vehicles_that_miss_the_budget_are_asked_less_often_but_not_never() {
        let candidates: BTreeMap<u32, f64> = (0..10)
            .map(|i| (i, if i == 0 { 0.0 } else { 1.0 }))
            .collect();
        let times = (0..1000).filter(|seed| {
            draw_cohort(&spec(0.3, 1.0, 1.0), &candidates, *seed)
                .is_some_and(|c| c.members.contains(&0))
        });
        let times = times.count();
        assert!(
            (50..200).contains(&times),
            "asked {times} times of 1000, others about 320"
        );
    }

    proptest! {
        #[test]
        fn cohorts_are_within_the_candidates_and_repeat(
            n in 2u32..200, fraction in 0.01f64..1.0, over in 1.0f64..3.0, quorum in 0.01f64..1.0, seed: u64,
        ) {
            let cohort = draw_cohort(&spec(fraction, over, quorum), &fleet(n), seed).expect("enough vehicles");
            prop_assert!(cohort.members.iter().all(|member| *member < n));
            prop_assert!(1 <= cohort.quorum && cohort.quorum <= cohort.target);
            prop_assert!(cohort.target <= cohort.members.len());
            prop_assert_eq!(Some(cohort), draw_cohort(&spec(fraction, over, quorum), &fleet(n), seed));
        }
    }
}
