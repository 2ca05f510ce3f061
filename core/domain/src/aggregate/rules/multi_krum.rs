//! Multi-Krum: the mean of the updates that have the closest neighbours.

use super::{Param, Params, Rule, krum};
use crate::aggregate::{AggregateError, Aggregator, Combined, Updates};

pub(super) const RULE: Rule = Rule {
    name: "multi-krum",
    about: "mean of the updates with the closest neighbours",
    params: &[
        Param::NUM_MALICIOUS,
        Param {
            name: "num_selected",
            about: "updates that are kept; 0 keeps all but num_malicious",
            default: Some(0.0),
            allowed: "a whole number of 0 to 100000",
            fits: |value| super::whole(value, 0.0, 100_000.0),
        },
        Param::weighted(false),
    ],
    build: |params: &Params| {
        Box::new(MultiKrum {
            num_malicious: params.count("num_malicious"),
            num_selected: params.count("num_selected"),
            weighted: params.is("weighted"),
        })
    },
};

/// The mean of the `m` updates that Krum ranks first.
///
/// # Source
/// Blanchard et al. 2017, "Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent", section 5
/// (m-Krum), ranked once; the weighted form is ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MultiKrum {
    /// `f`: updates that may be bad.
    pub num_malicious: usize,
    /// `m`; 0 stands for `n - f`.
    pub num_selected: usize,
    /// Whether a kept update weighs by its examples.
    pub weighted: bool,
}

impl Aggregator for MultiKrum {
    fn least_updates(&self) -> usize {
        krum::least(self.num_malicious).max(self.num_selected)
    }

    fn aggregate(&self, updates: &Updates<'_>) -> Result<Combined, AggregateError> {
        let ranking = krum::ranking(updates, self.num_malicious)?;
        let kept = match self.num_selected {
            0 => updates.len() - self.num_malicious,
            kept => kept,
        };
        let weights = updates.weights(self.weighted);
        let total: f64 = ranking[..kept].iter().map(|k| weights[*k]).sum();
        let mut shares = vec![0.0; updates.len()];
        for k in &ranking[..kept] {
            shares[*k] = weights[*k] / total;
        }
        Ok(Combined::Delta(updates.linear(&shares)?))
    }
}
