//! FedAvg of updates that are cut to a norm.

use super::{Param, Params, Rule, median_of};
use crate::aggregate::{AggregateError, Aggregator, Combined, Updates};

pub(super) const RULE: Rule = Rule {
    name: "fedavg-clipped",
    about: "FedAvg of updates that are shortened to clip_norm",
    params: &[Param::CLIP_NORM, Param::weighted(true)],
    build: |params: &Params| {
        Box::new(FedAvgClipped {
            clip_norm: params.get("clip_norm"),
            weighted: params.is("weighted"),
        })
    },
};

/// The mean of `x_k * min(1, clip_norm / |x_k|)`, by examples or plain.
///
/// # Source
/// Sun et al. 2019, "Can You Really Backdoor Federated Learning?", norm thresholding; McMahan et al. 2018, "Learning
/// Differentially Private Recurrent Language Models", flat clipping.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FedAvgClipped {
    /// Longest that an update is taken for, in parameter units; 0 takes the median norm of the round.
    pub clip_norm: f64,
    /// Whether an update weighs by its examples.
    pub weighted: bool,
}

impl Aggregator for FedAvgClipped {
    fn aggregate(&self, updates: &Updates<'_>) -> Result<Combined, AggregateError> {
        let squares = updates.squared_distances_to(None)?;
        let norms: Vec<f64> = squares.into_iter().map(f64::sqrt).collect();
        let clip = if self.clip_norm > 0.0 {
            self.clip_norm
        } else {
            median_of(norms.clone())
        };
        let total = if self.weighted {
            updates.total_examples()? as f64
        } else {
            updates.len() as f64
        };
        let weights = updates.weights(self.weighted).into_iter().zip(norms);
        let shares: Vec<f64> = weights
            .map(|(weight, norm)| weight / total * shorten(norm, clip))
            .collect();
        Ok(Combined::Delta(updates.linear(&shares)?))
    }
}

/// What a vector of this norm is multiplied with to be no longer than `clip`.
pub(super) fn shorten(norm: f64, clip: f64) -> f64 {
    if norm > clip { clip / norm } else { 1.0 }
}
