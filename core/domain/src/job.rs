//! What a job asks of every tier, checked once.

use crate::head::Standardisation;
use crate::ids::{Digest, JobId};
use crate::schema::{Schema, SchemaError};
use std::time::Duration;

/// Job ids that stand for something else in a topic.
pub const RESERVED_JOB_IDS: [&str; 1] = ["fleet"];

/// A value of a job that is out of its range.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum JobError {
    /// A number outside its range.
    #[error("{field} is {got}, allowed is {allowed}")]
    Range {
        /// Name as in `job.toml`, such as `training.lr`.
        field: &'static str,
        /// What was given.
        got: String,
        /// The range in words.
        allowed: &'static str,
    },
    /// A job id that has another meaning in topics.
    #[error("job id {0} is reserved")]
    Reserved(JobId),
    /// The class list is empty, too long, or names a class twice.
    #[error(
        "model.classes needs 2 to 255 different names of 1 to 64 characters without `/`, got {got:?}"
    )]
    Classes {
        /// The list as given.
        got: Vec<String>,
    },
    /// The head does not fit into a schema.
    #[error("model: {0}")]
    Schema(#[from] SchemaError),
    /// Feature statistics of another length.
    #[error("feature statistics have {got} values, the model has {expected} features")]
    Statistics {
        /// Values given.
        got: usize,
        /// Features of the model.
        expected: usize,
    },
}

/// Which pictures go into which network, and what the head says.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSpec {
    /// BLAKE3 of the backbone's weights file; `None` takes any backbone with the right number of features.
    pub backbone: Option<Digest>,
    /// Height of an input picture in pixels.
    pub input_height: u32,
    /// Width of an input picture in pixels.
    pub input_width: u32,
    /// Label `i` is `classes[i]`.
    pub classes: Vec<String>,
    /// Mean and standard deviation of each feature; its length is the number of features.
    pub standardisation: Standardisation,
}

impl ModelSpec {
    /// Length of a feature vector.
    pub fn features(&self) -> usize {
        self.standardisation.mean().len()
    }

    /// The schema of the trained part: a linear head.
    pub fn schema(&self) -> Result<Schema, SchemaError> {
        Schema::linear_head(self.features(), self.classes.len())
    }
}

/// How long a vehicle trains in one round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// Passes over all its examples.
    LocalEpochs(u32),
    /// Steps of one batch (kappa1 of hierarchical FedAvg).
    LocalSteps(u32),
}

/// What a vehicle does with the model.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainingSpec {
    /// Learning rate, above 0.
    pub lr: f32,
    /// Momentum of the local SGD, `[0, 1)`.
    pub momentum: f32,
    /// L2 penalty, `>= 0`.
    pub weight_decay: f32,
    /// Examples a step, `>= 1`.
    pub batch_size: u32,
    /// How long.
    pub effort: Effort,
    /// `FedProx` mu, `>= 0`; 0 is plain FedAvg.
    pub proximal_mu: f32,
    /// Weight of each class in the loss, one a class, finite and not negative; see [`crate::class_weights`].
    pub class_weights: Vec<f32>,
    /// Shuffling is drawn from (seed, vehicle, round).
    pub seed: u64,
}

/// How a roadside unit runs its rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RoundSpec {
    /// Share of the vehicles that are there which the round wants updates of, `(0, 1]`.
    pub fraction_train: f64,
    /// No round with fewer vehicles there, `>= 1`.
    pub min_vehicles: u32,
    /// Cohort over target, `>= 1`.
    pub over_selection: f64,
    /// Fewest accepted updates as a share of the target, `(0, 1]`.
    pub quorum: f64,
    /// A round that has not met its target ends here.
    pub round_timeout: Duration,
    /// A round stays open at least this long, so that fast vehicles do not crowd out slow ones.
    pub min_window: Duration,
    /// kappa2: roadside rounds for each contribution to the cloud, `>= 1`.
    pub edge_rounds: u32,
    /// Most examples one update may claim.
    pub max_examples: u64,
    /// Largest L2 norm of one delta, parameter units.
    pub max_norm: f64,
    /// Times the median norm of the last merge; 0 switches the relative bound off.
    pub max_norm_ratio: f64,
    /// From the update's first byte to its receipt.
    pub latency_budget: Duration,
}

/// A job as every tier knows it.
#[derive(Clone, Debug, PartialEq)]
pub struct JobSpec {
    /// Its name.
    pub job: JobId,
    /// Network and head.
    pub model: ModelSpec,
    /// Work of a vehicle.
    pub training: TrainingSpec,
    /// Rounds at a roadside unit.
    pub round: RoundSpec,
}

impl JobSpec {
    /// Checks every range; a job that came over a wire or out of a file goes through here first.
    pub fn check(&self) -> Result<(), JobError> {
        if RESERVED_JOB_IDS.contains(&self.job.as_str()) {
            return Err(JobError::Reserved(self.job.clone()));
        }
        let (model, training, round) = (&self.model, &self.training, &self.round);
        let classes = &model.classes;
        let named = |c: &String| {
            !c.is_empty() && c.len() <= 64 && !c.contains(['/', '\\', '\0']) && !c.starts_with('.')
        };
        let different = (1..classes.len()).all(|i| !classes[..i].contains(&classes[i]));
        if classes.len() < 2 || classes.len() > 255 || !classes.iter().all(named) || !different {
            return Err(JobError::Classes {
                got: classes.clone(),
            });
        }
        model.schema()?;
        let sides = 8..=2048;
        let weights = &training.class_weights;
        let balanced =
            weights.len() == classes.len() && weights.iter().all(|w| (0.0..=1e6).contains(w));
        let share = |v: f64| v > 0.0 && v <= 1.0;
        let checks: [(&'static str, bool, String, &'static str); 17] = [
            (
                "training.class_weights",
                balanced,
                format!("{weights:?}"),
                "one a class, 0 to 1000000",
            ),
            (
                "model.input_height",
                sides.contains(&model.input_height),
                model.input_height.to_string(),
                "8 to 2048",
            ),
            (
                "model.input_width",
                sides.contains(&model.input_width),
                model.input_width.to_string(),
                "8 to 2048",
            ),
            (
                "training.lr",
                training.lr > 0.0 && training.lr.is_finite(),
                training.lr.to_string(),
                "above 0",
            ),
            (
                "training.momentum",
                (0.0..1.0).contains(&training.momentum),
                training.momentum.to_string(),
                "0 to below 1",
            ),
            (
                "training.weight_decay",
                (0.0..=1.0).contains(&training.weight_decay),
                training.weight_decay.to_string(),
                "0 to 1",
            ),
            (
                "training.batch_size",
                (1..=65_536).contains(&training.batch_size),
                training.batch_size.to_string(),
                "1 to 65536",
            ),
            (
                "training.local_epochs or training.local_steps",
                matches!(
                    training.effort,
                    Effort::LocalEpochs(1..=1000) | Effort::LocalSteps(1..=1_000_000)
                ),
                format!("{:?}", training.effort),
                "1 to 1000 epochs or 1 to 1000000 steps",
            ),
            (
                "training.proximal_mu",
                (0.0..=1000.0).contains(&training.proximal_mu),
                training.proximal_mu.to_string(),
                "0 to 1000",
            ),
            (
                "strategy.fraction_train",
                share(round.fraction_train),
                round.fraction_train.to_string(),
                "above 0 to 1",
            ),
            (
                "strategy.min_vehicles",
                round.min_vehicles >= 1,
                round.min_vehicles.to_string(),
                "1 or more",
            ),
            (
                "strategy.over_selection",
                (1.0..=10.0).contains(&round.over_selection),
                round.over_selection.to_string(),
                "1 to 10",
            ),
            (
                "strategy.quorum",
                share(round.quorum),
                round.quorum.to_string(),
                "above 0 to 1",
            ),
            (
                "strategy.min_window_ms",
                !round.round_timeout.is_zero() && round.min_window <= round.round_timeout,
                round.min_window.as_millis().to_string(),
                "at most round_timeout_ms, which is above 0",
            ),
            (
                "strategy.edge_rounds",
                round.edge_rounds >= 1,
                round.edge_rounds.to_string(),
                "1 or more",
            ),
            (
                "strategy.max_examples",
                (1..=1_000_000_000).contains(&round.max_examples),
                round.max_examples.to_string(),
                "1 to 1000000000",
            ),
            (
                "strategy.max_norm",
                round.max_norm > 0.0
                    && round.max_norm.is_finite()
                    && (0.0..=1e6).contains(&round.max_norm_ratio),
                format!(
                    "{} with max_norm_ratio {}",
                    round.max_norm, round.max_norm_ratio
                ),
                "above 0, and a ratio of 0 to 1000000",
            ),
        ];
        for (field, fits, got, allowed) in checks {
            if !fits {
                return Err(JobError::Range {
                    field,
                    got,
                    allowed,
                });
            }
        }
        Ok(())
    }
}
