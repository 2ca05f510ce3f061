//! Krum: the one update that has the closest neighbours.

use super::{Param, Params, Rule};
use crate::aggregate::{AggregateError, Aggregator, Combined, Updates};

pub(super) const RULE: Rule = Rule {
    name: "krum",
    about: "the one update with the closest neighbours",
    params: &[Param::NUM_MALICIOUS],
    build: |params: &Params| {
        Box::new(Krum {
            num_malicious: params.count("num_malicious"),
        })
    },
};

/// The update whose squared distances to its `n - f - 2` closest neighbours have the least sum. Unweighted, by
/// definition. Of equals the first in the order of the members' names.
///
/// # Source
/// Blanchard et al. 2017, "Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent", section 4, for
/// `2f + 2 < n`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Krum {
    /// `f`: updates that may be bad.
    pub num_malicious: usize,
}

impl Aggregator for Krum {
    fn least_updates(&self) -> usize {
        least(self.num_malicious)
    }

    fn aggregate(&self, updates: &Updates<'_>) -> Result<Combined, AggregateError> {
        let ranking = ranking(updates, self.num_malicious)?;
        let mut shares = vec![0.0; updates.len()];
        if let Some(best) = ranking.first() {
            shares[*best] = 1.0;
        }
        Ok(Combined::Delta(updates.linear(&shares)?))
    }
}

/// Fewest updates among which so many may be bad.
pub(super) fn least(num_malicious: usize) -> usize {
    2 * num_malicious + 3
}

/// Indices of the updates, those with the least sum of distances first.
pub(super) fn ranking(
    updates: &Updates<'_>,
    num_malicious: usize,
) -> Result<Vec<usize>, AggregateError> {
    let distances = updates.distances()?;
    let neighbours = updates.len().saturating_sub(num_malicious + 2);
    let score = |k: usize| {
        let mut others = distances.of(k).to_vec();
        others.swap_remove(k);
        others.sort_by(f64::total_cmp);
        others[..neighbours.min(others.len())].iter().sum::<f64>()
    };
    let scores: Vec<f64> = (0..updates.len()).map(score).collect();
    let mut ranking: Vec<usize> = (0..updates.len()).collect();
    ranking.sort_by(|a, b| scores[*a].total_cmp(&scores[*b]));
    Ok(ranking)
}
