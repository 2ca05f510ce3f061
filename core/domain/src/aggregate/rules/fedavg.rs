//! FedAvg: the mean of the updates, by examples.

use super::{Param, Params, Rule};
use crate::aggregate::{AggregateError, Aggregator, Combined, Updates};

pub(super) const RULE: Rule = Rule {
    name: "fedavg",
    about: "mean of the updates by examples, exact; not robust",
    params: &[Param::weighted(true)],
    build: |params: &Params| {
        Box::new(FedAvg {
            weighted: params.is("weighted"),
        })
    },
};

/// `sum(n_k * x_k) / sum(n_k)`, or the plain mean.
///
/// # Source
/// McMahan et al. 2017, "Communication-Efficient Learning of Deep Networks from Decentralized Data", algorithm 1. Not
/// robust: one update can move the result anywhere within the guard's bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FedAvg {
    /// Whether an update weighs by its examples.
    pub weighted: bool,
}

impl Aggregator for FedAvg {
    fn aggregate(&self, updates: &Updates<'_>) -> Result<Combined, AggregateError> {
        if self.weighted {
            return Ok(Combined::Sum(updates.weighted_sum()?));
        }
        let count = updates.len() as f64;
        let shares: Vec<f64> = updates.weights(false).iter().map(|w| w / count).collect();
        Ok(Combined::Delta(updates.linear(&shares)?))
    }
}
