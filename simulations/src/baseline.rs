//! What the federation is compared with: each vehicle alone, and everybody's features in one place.

use ndarray::{Array2, Axis};
use std::sync::atomic::AtomicBool;
use wayside_domain::head::{Evaluation, LinearHead};
use wayside_domain::job::{Effort, TrainingSpec};
use wayside_domain::train::{TrainError, train};

/// Standardised features with their labels.
#[derive(Clone, Debug)]
pub struct Examples {
    /// Shape `[n, features]`.
    pub features: Array2<f32>,
    /// Class of each, length n.
    pub labels: Vec<u8>,
}

impl Examples {
    /// All parts below each other.
    pub fn concat(parts: &[Self]) -> Self {
        let views: Vec<_> = parts.iter().map(|part| part.features.view()).collect();
        let features =
            ndarray::concatenate(Axis(0), &views).unwrap_or_else(|_| Array2::zeros((0, 0)));
        Self {
            features,
            labels: parts
                .iter()
                .flat_map(|part| part.labels.iter().copied())
                .collect(),
        }
    }
}

/// The settings of the federation stretched to all its rounds, for one who trains without stopping.
pub fn without_rounds(spec: &TrainingSpec, rounds: u64) -> TrainingSpec {
    let rounds = u32::try_from(rounds).unwrap_or(u32::MAX);
    let effort = match spec.effort {
        Effort::LocalEpochs(epochs) => Effort::LocalEpochs(epochs.saturating_mul(rounds)),
        Effort::LocalSteps(steps) => Effort::LocalSteps(steps.saturating_mul(rounds)),
    };
    TrainingSpec {
        effort,
        proximal_mu: 0.0,
        ..spec.clone()
    }
}

/// Trains from `start` on `examples` and evaluates on `test`.
pub fn train_and_evaluate(
    head: &LinearHead,
    start: &[f32],
    examples: &Examples,
    test: &Examples,
    spec: &TrainingSpec,
    cancel: &AtomicBool,
) -> Result<Evaluation, TrainError> {
    let trained = train(
        head,
        start,
        examples.features.view(),
        &examples.labels,
        spec,
        spec.seed,
        cancel,
    )?;
    Ok(head.evaluate(&trained.parameters, test.features.view(), &test.labels))
}
