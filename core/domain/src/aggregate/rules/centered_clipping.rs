//! Centered clipping: steps from a point towards updates, none longer than a bound.

use super::fedavg_clipped::shorten;
use super::{Param, Params, Rule, median_of};
use crate::aggregate::{AggregateError, Aggregator, Combined, Updates};

pub(super) const RULE: Rule = Rule {
    name: "centered-clipping",
    about: "repeated mean of steps from the last result, each shortened to clip_norm",
    params: &[Param::CLIP_NORM, Param::iterations(3.0)],
    build: |params: &Params| {
        Box::new(CenteredClipping {
            clip_norm: params.get("clip_norm"),
            iterations: params.count("iterations"),
        })
    },
};

/// `v <- v + mean((x_k - v) * min(1, tau / |x_k - v|))`, from `v = 0`. Unweighted, by definition.
///
/// # Source
/// Karimireddy, He and Jaggi 2021, "Learning from History for Byzantine Robust Optimization", algorithm 2. There `v`
/// begins at the last round's result; here at 0, since a delta that carries no momentum has no history.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CenteredClipping {
    /// `tau`, in parameter units; 0 takes the median distance in each step.
    pub clip_norm: f64,
    /// Steps.
    pub iterations: usize,
}

impl Aggregator for CenteredClipping {
    fn aggregate(&self, updates: &Updates<'_>) -> Result<Combined, AggregateError> {
        let n = updates.len() as f64;
        let mut center: Option<Vec<f64>> = None;
        for _ in 0..self.iterations {
            let squares = updates.squared_distances_to(center.as_deref())?;
            let distances: Vec<f64> = squares.into_iter().map(f64::sqrt).collect();
            let clip = if self.clip_norm > 0.0 {
                self.clip_norm
            } else {
                median_of(distances.clone())
            };
            let shares: Vec<f64> = distances
                .into_iter()
                .map(|d| shorten(d, clip) / n)
                .collect();
            let kept = 1.0 - shares.iter().sum::<f64>();
            let mut next = updates.linear(&shares)?;
            for (value, before) in next.iter_mut().zip(center.iter().flatten()) {
                *value += kept * before;
            }
            center = Some(next);
        }
        Ok(Combined::Delta(center.unwrap_or_default()))
    }
}
