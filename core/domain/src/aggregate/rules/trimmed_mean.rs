//! The coordinate-wise trimmed mean.

use super::{Param, Params, Rule};
use crate::aggregate::{AggregateError, Aggregator, Combined, Updates};

pub(super) const RULE: Rule = Rule {
    name: "trimmed-mean",
    about: "mean of each coordinate without its smallest and largest values",
    params: &[
        Param {
            name: "trim_ratio",
            about: "share of the updates that is cut off at each end",
            default: Some(0.2),
            allowed: "0 to below 0.5",
            fits: |value| (0.0..0.5).contains(&value),
        },
        Param {
            name: "num_trimmed",
            about: "updates that are cut off at each end, instead of a share; 0 takes trim_ratio",
            default: Some(0.0),
            allowed: "a whole number of 0 to 100000",
            fits: |value| super::whole(value, 0.0, 100_000.0),
        },
    ],
    build: |params: &Params| {
        Box::new(TrimmedMean {
            trim_ratio: params.get("trim_ratio"),
            num_trimmed: params.count("num_trimmed"),
        })
    },
};

/// Drops the `k` smallest and `k` largest values of each coordinate and takes the mean of the rest. Unweighted, by
/// definition.
///
/// # Source
/// Yin et al. 2018, "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates", definition 2; there
/// `k` is a share of the updates, here it may be a count too.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TrimmedMean {
    /// `k` is this share of the updates, rounded down; below 0.5.
    pub trim_ratio: f64,
    /// `k`, where it is above 0.
    pub num_trimmed: usize,
}

impl Aggregator for TrimmedMean {
    fn least_updates(&self) -> usize {
        2 * self.num_trimmed + 1
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a share below 0.5 of a length"
    )]
    fn aggregate(&self, updates: &Updates<'_>) -> Result<Combined, AggregateError> {
        let n = updates.len();
        let k = match self.num_trimmed {
            0 => (self.trim_ratio * n as f64) as usize,
            k => k,
        };
        Ok(Combined::Delta(updates.mean_of_ranks(k..n - k)?))
    }
}
