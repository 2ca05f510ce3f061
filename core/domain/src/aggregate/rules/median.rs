//! The coordinate-wise median.

use super::{Params, Rule};
use crate::aggregate::{AggregateError, Aggregator, Combined, Updates};

pub(super) const RULE: Rule = Rule {
    name: "median",
    about: "median of each coordinate; bears just under half bad updates",
    params: &[],
    build: |_: &Params| Box::new(Median),
};

/// The median of each coordinate; of an even number of updates the mean of the two middle values. Unweighted, by
/// definition.
///
/// # Source
/// Yin et al. 2018, "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates", definition 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Median;

impl Aggregator for Median {
    fn aggregate(&self, updates: &Updates<'_>) -> Result<Combined, AggregateError> {
        let n = updates.len();
        Ok(Combined::Delta(
            updates.mean_of_ranks((n - 1) / 2..n / 2 + 1)?,
        ))
    }
}
