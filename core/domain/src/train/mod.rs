//! Local training of the head: stochastic gradient descent on cached features.
//!
//! Invariants: the same input, settings and seed give the same bits on every CPU; training that went wrong gives an
//! error and no parameters, so that nothing wrong can be sent; momentum starts from nothing in each call. Everything
//! runs on the thread that calls.
//!
//! Here because vehicle, cloud and simulator all train. Left to others: where features and seed come from, and threads.

use crate::head::{Evaluation, LinearHead};
use crate::job::{Effort, TrainingSpec};
use std::sync::atomic::{AtomicBool, Ordering};

use ndarray::{ArrayView2, Axis};
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

/// What training gave.
#[derive(Clone, Debug, PartialEq)]
pub struct Trained {
    /// The head's parameters, all finite.
    pub parameters: Vec<f32>,
    /// Examples behind them.
    pub num_examples: u64,
    /// Class-weighted mean cross-entropy of the trained head on the examples, in nats.
    pub loss: f64,
    /// Steps that were taken.
    pub steps: u64,
}

/// Why training gave nothing. None of these goes away by itself, but [`TrainError::Cancelled`] may be tried again.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum TrainError {
    /// A setting out of its range.
    #[error("{name} is {got}, expected {expected}")]
    Setting {
        /// The setting.
        name: &'static str,
        /// Its value.
        got: f64,
        /// The range, in words.
        expected: &'static str,
    },
    /// Nothing to learn from.
    #[error("no examples")]
    NoExamples,
    /// Parts of the input do not fit each other.
    #[error("{got} {what}, expected {expected}")]
    Shape {
        /// What there are too many or too few of.
        what: &'static str,
        /// How many there are.
        got: usize,
        /// How many are needed.
        expected: usize,
    },
    /// A label without a class.
    #[error("label {got} of example {example}, expected less than {classes}")]
    Label {
        /// The example's index.
        example: usize,
        /// Its label.
        got: u8,
        /// How many classes the head has.
        classes: usize,
    },
    /// NaN or infinity in what training starts from.
    #[error("{what} hold a value that is not finite")]
    NotFinite {
        /// The base parameters or the features.
        what: &'static str,
    },
    /// The loss grew beyond reason or stopped being a number.
    #[error("training diverged: loss {got} after {steps} steps, expected at most {limit}")]
    Diverged {
        /// The loss, in nats.
        got: f64,
        /// Steps up to then.
        steps: u64,
        /// The largest loss that is taken for a success.
        limit: f64,
    },
    /// The caller asked to stop.
    #[error("training cancelled")]
    Cancelled,
}

/// Training ends as diverged if the loss grows by more than this factor, counted from at least the loss of guessing.
///
/// A vehicle with few pictures may well raise its loss tenfold in a round before it falls (seen at a rate of 0.05 on
/// the demo's pictures); a learning rate gone wrong raises it a thousandfold.
const DIVERGENCE_FACTOR: f64 = 100.0;

/// A network that can be trained locally: the head on features, or a whole small network in a simulation.
pub trait Learner: std::fmt::Debug + Send + Sync {
    /// Trains from `base`, on the calling thread; see [`train`] for the arguments.
    ///
    /// # Errors
    /// [`TrainError`]; there are no parameters then.
    fn train(
        &self,
        base: &[f32],
        features: ArrayView2<'_, f32>,
        labels: &[u8],
        settings: &TrainingSpec,
        seed: u64,
        cancel: &AtomicBool,
    ) -> Result<Trained, TrainError>;

    /// How these parameters do on examples; see [`LinearHead::evaluate`] for the arguments.
    fn evaluate(
        &self,
        parameters: &[f32],
        features: ArrayView2<'_, f32>,
        labels: &[u8],
    ) -> Evaluation;
}

impl Learner for LinearHead {
    fn train(
        &self,
        base: &[f32],
        features: ArrayView2<'_, f32>,
        labels: &[u8],
        settings: &TrainingSpec,
        seed: u64,
        cancel: &AtomicBool,
    ) -> Result<Trained, TrainError> {
        train(self, base, features, labels, settings, seed, cancel)
    }

    fn evaluate(
        &self,
        parameters: &[f32],
        features: ArrayView2<'_, f32>,
        labels: &[u8],
    ) -> Evaluation {
        LinearHead::evaluate(self, parameters, features, labels)
    }
}

/// Trains a head from `base` on the vehicle's own examples.
///
/// One step on a batch: `v = momentum * v + gradient + weight_decay * w + proximal_mu * (w - base)`, then
/// `w = w - lr * v`. Examples are shuffled anew for each pass.
///
/// - `base`: the global model's parameters, laid out as [`LinearHead`] says.
/// - `features`: standardised, shape `[n, head.features]`; `labels`: length n.
/// - `seed`: decides the order of the examples, and nothing else.
/// - `cancel`: looked at before each step.
///
/// # Errors
/// [`TrainError`] for bad input, cancellation, or a loss that diverges; there are no parameters then.
///
/// # Source
/// Momentum and weight decay as in `PyTorch`'s SGD; the proximal term is equation 2 of Li et al. 2020, "Federated
/// Optimization in Heterogeneous Networks".
pub fn train(
    head: &LinearHead,
    base: &[f32],
    features: ArrayView2<'_, f32>,
    labels: &[u8],
    settings: &TrainingSpec,
    seed: u64,
    cancel: &AtomicBool,
) -> Result<Trained, TrainError> {
    let start = Start {
        base,
        correction: None,
    };
    train_from(head, start, features, labels, settings, seed, cancel)
}

/// Where local training begins, and what steers it.
#[derive(Clone, Copy, Debug)]
pub struct Start<'a> {
    /// The global model's parameters, laid out as [`LinearHead`] says.
    pub base: &'a [f32],
    /// Added to the gradient of every step, as long as `base`: control variates, for example.
    pub correction: Option<&'a [f32]>,
}

/// [`train`] with a correction of the gradient; without one it is the same, bit for bit.
///
/// # Errors
/// As [`train`], and [`TrainError::Shape`] or [`TrainError::NotFinite`] for a correction that cannot be used.
pub fn train_from(
    head: &LinearHead,
    start: Start<'_>,
    features: ArrayView2<'_, f32>,
    labels: &[u8],
    settings: &TrainingSpec,
    seed: u64,
    cancel: &AtomicBool,
) -> Result<Trained, TrainError> {
    let Start { base, correction } = start;
    check_settings(head, settings)?;
    check_examples(head, base, features, labels)?;
    if let Some(correction) = correction {
        equal("corrections", correction.len(), head.num_parameters())?;
        if correction.iter().any(|value| !value.is_finite()) {
            return Err(TrainError::NotFinite {
                what: "corrections",
            });
        }
    }
    let class_weights = &settings.class_weights;
    let batch_size = usize::try_from(settings.batch_size).unwrap_or(usize::MAX);
    let whole_loss =
        |parameters: &[f32]| f64::from(head.loss(parameters, features, labels, class_weights));
    let mut gradient = vec![0.0; base.len()];
    let guessing = (head.classes as f64).ln();
    let limit = || DIVERGENCE_FACTOR * whole_loss(base).max(guessing);
    let steps = steps(settings, labels.len());

    let mut parameters = base.to_vec();
    let mut velocity = vec![0.0_f32; base.len()];
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut order: Vec<usize> = (0..labels.len()).collect();
    let mut batch_labels = Vec::with_capacity(batch_size.min(labels.len()));
    let mut taken = 0;
    while taken < steps {
        order.shuffle(&mut rng);
        for batch in order.chunks(batch_size) {
            if taken == steps {
                break;
            }
            if cancel.load(Ordering::Relaxed) {
                return Err(TrainError::Cancelled);
            }
            batch_labels.clear();
            batch_labels.extend(batch.iter().map(|&index| labels[index]));
            let x = features.select(Axis(0), batch);
            let loss = head.loss_and_gradient(
                &parameters,
                x.view(),
                &batch_labels,
                class_weights,
                &mut gradient,
            );
            taken += 1;
            if !loss.is_finite() {
                return Err(TrainError::Diverged {
                    got: f64::from(loss),
                    steps: taken,
                    limit: limit(),
                });
            }
            for (value, extra) in gradient.iter_mut().zip(correction.unwrap_or_default()) {
                *value += extra;
            }
            step(settings, base, &gradient, &mut velocity, &mut parameters);
        }
    }
    let loss = whole_loss(&parameters);
    // The loss of the base is only looked at where guessing alone would not let it pass. Not `loss > limit`: a NaN must
    // not pass. Nor may parameters that overflowed where no feature shows it.
    let bearable = loss <= DIVERGENCE_FACTOR * guessing || loss <= limit();
    if !(bearable && all_finite(&parameters)) {
        return Err(TrainError::Diverged {
            got: loss,
            steps: taken,
            limit: limit(),
        });
    }
    Ok(Trained {
        parameters,
        num_examples: labels.len() as u64,
        loss,
        steps: taken,
    })
}

/// The ranges are [`crate::job::JobSpec::check`]'s, but for the learning rate, which has an upper end here.
fn check_settings(head: &LinearHead, settings: &TrainingSpec) -> Result<(), TrainError> {
    let (lr, weights) = (settings.lr, &settings.class_weights);
    let wrong = |name, got: f64, expected| {
        Err(TrainError::Setting {
            name,
            got,
            expected,
        })
    };
    if !(lr > 0.0 && lr <= 10.0) {
        return wrong("lr", f64::from(lr), "more than 0, at most 10");
    }
    for (name, got, most, expected) in [
        ("momentum", settings.momentum, 0.999, "0 to 0.999"),
        ("weight_decay", settings.weight_decay, 1.0, "0 to 1"),
        ("proximal_mu", settings.proximal_mu, 1000.0, "0 to 1000"),
    ] {
        if !(0.0..=most).contains(&got) {
            return wrong(name, f64::from(got), expected);
        }
    }
    if settings.batch_size == 0 {
        return wrong("batch_size", 0.0, "at least 1");
    }
    match settings.effort {
        Effort::LocalEpochs(0) => return wrong("local_epochs", 0.0, "at least 1"),
        Effort::LocalSteps(0) => return wrong("local_steps", 0.0, "at least 1"),
        Effort::LocalEpochs(_) | Effort::LocalSteps(_) => {}
    }
    if weights.len() != head.classes {
        return Err(TrainError::Shape {
            what: "class weights",
            got: weights.len(),
            expected: head.classes,
        });
    }
    match weights
        .iter()
        .find(|weight| !(weight.is_finite() && **weight >= 0.0))
    {
        Some(weight) => wrong("class_weights", f64::from(*weight), "finite, not negative"),
        None => Ok(()),
    }
}

/// Steps that the effort comes to with so many examples.
fn steps(settings: &TrainingSpec, examples: usize) -> u64 {
    match settings.effort {
        Effort::LocalEpochs(epochs) => {
            u64::from(epochs) * (examples as u64).div_ceil(u64::from(settings.batch_size))
        }
        Effort::LocalSteps(steps) => u64::from(steps),
    }
}

fn step(
    settings: &TrainingSpec,
    base: &[f32],
    gradient: &[f32],
    velocity: &mut [f32],
    parameters: &mut [f32],
) {
    let plain = settings.momentum == 0.0 && settings.weight_decay == 0.0;
    if plain && settings.proximal_mu == 0.0 {
        // The same without what is all 0.
        for (value, gradient) in parameters.iter_mut().zip(gradient) {
            *value -= settings.lr * gradient;
        }
        return;
    }
    let towards = gradient.iter().zip(base);
    for ((value, v), (gradient, base)) in parameters.iter_mut().zip(velocity).zip(towards) {
        let slope =
            gradient + settings.weight_decay * *value + settings.proximal_mu * (*value - base);
        *v = settings.momentum * *v + slope;
        *value -= settings.lr * *v;
    }
}

fn equal(what: &'static str, got: usize, expected: usize) -> Result<(), TrainError> {
    if got == expected {
        return Ok(());
    }
    Err(TrainError::Shape {
        what,
        got,
        expected,
    })
}

/// Looks at many values at a time before it branches.
fn all_finite(values: &[f32]) -> bool {
    let block = |values: &[f32]| values.iter().fold(true, |all, v| all & v.is_finite());
    values.chunks(256).all(block)
}

fn check_examples(
    head: &LinearHead,
    base: &[f32],
    features: ArrayView2<'_, f32>,
    labels: &[u8],
) -> Result<(), TrainError> {
    equal("parameters", base.len(), head.num_parameters())?;
    equal("features", features.ncols(), head.features)?;
    equal("labels", labels.len(), features.nrows())?;
    if labels.is_empty() {
        return Err(TrainError::NoExamples);
    }
    let out_of_range = |label: &u8| usize::from(*label) >= head.classes;
    if let Some(example) = labels.iter().position(out_of_range) {
        return Err(TrainError::Label {
            example,
            got: labels[example],
            classes: head.classes,
        });
    }
    if !all_finite(base) {
        return Err(TrainError::NotFinite {
            what: "base parameters",
        });
    }
    let finite = match features.to_slice() {
        Some(values) => all_finite(values),
        None => features.iter().all(|value| value.is_finite()),
    };
    if !finite {
        return Err(TrainError::NotFinite { what: "features" });
    }
    Ok(())
}

#[cfg(test)]
mod tests;
