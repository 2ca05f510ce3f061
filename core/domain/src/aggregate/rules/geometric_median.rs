//! The geometric median, by the smoothed Weiszfeld algorithm (RFA).

use super::{Param, Params, Rule};
use crate::aggregate::{AggregateError, Aggregator, Combined, Updates};

pub(super) const RULE: Rule = Rule {
    name: "geometric-median",
    about: "the point with the least weighted distance to all updates (RFA)",
    params: &[
        Param::iterations(8.0),
        Param {
            name: "smoothing",
            about: "distances below it count as it, in parameter units",
            default: Some(1e-6),
            allowed: "above 0 to 1",
            fits: |value| value > 0.0 && value <= 1.0,
        },
        Param::weighted(true),
    ],
    build: |params: &Params| {
        Box::new(GeometricMedian {
            iterations: params.count("iterations"),
            smoothing: params.get("smoothing"),
            weighted: params.is("weighted"),
        })
    },
};

/// `v <- sum(beta_k * x_k) / sum(beta_k)` with `beta_k = alpha_k / max(smoothing, |v - x_k|)`, from the weighted mean.
///
/// # Source
/// Pillutla, Kakade and Harchaoui 2022, "Robust Aggregation for Federated Learning", algorithm 2.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GeometricMedian {
    /// Steps.
    pub iterations: usize,
    /// Distances below it count as it, in parameter units; above 0.
    pub smoothing: f64,
    /// Whether `alpha_k` are the examples.
    pub weighted: bool,
}

impl Aggregator for GeometricMedian {
    fn aggregate(&self, updates: &Updates<'_>) -> Result<Combined, AggregateError> {
        let alphas = updates.weights(self.weighted);
        let mut center = mean(updates, &alphas)?;
        for _ in 0..self.iterations {
            let squares = updates.squared_distances_to(Some(&center))?;
            let near = squares.iter().map(|d| d.sqrt().max(self.smoothing));
            let betas: Vec<f64> = alphas.iter().zip(near).map(|(a, d)| a / d).collect();
            center = mean(updates, &betas)?;
        }
        Ok(Combined::Delta(center))
    }
}

fn mean(updates: &Updates<'_>, weights: &[f64]) -> Result<Vec<f64>, AggregateError> {
    let total: f64 = weights.iter().sum();
    let shares: Vec<f64> = weights.iter().map(|weight| weight / total).collect();
    updates.linear(&shares)
}
