//! What a job asks of every tier, checked once.

use crate::aggregate::{RuleError, RuleSpec};
use crate::encoding::{CodecSpec, CodecSpecError, UpdateEncoding};
use crate::head::Standardisation;
use crate::ids::{Digest, JobId};
use crate::network::Network;
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
        /// The first eight of the list, each cut to 64 characters.
        got: Vec<String>,
    },
    /// The head does not fit into a schema.
    #[error("model: {0}")]
    Schema(#[from] SchemaError),
    /// A rule that is not there or cannot work.
    #[error("strategy.rule: {0}")]
    Rule(#[from] RuleError),
    /// Encodings that make no ladder.
    #[error("codec: {0}")]
    Codec(#[from] CodecSpecError),
    /// Personal tensors that the head does not have, or all that it has.
    #[error("model.personal is {got:?}, allowed are some, not all, of {tensors:?}")]
    Personal {
        /// As given.
        got: Vec<String>,
        /// Tensors of the head.
        tensors: Vec<String>,
    },
    /// A network that does not take such examples.
    #[error("model.network {} does not take examples of {features} values: lenet takes 784", network.label())]
    Network {
        /// The network.
        network: Network,
        /// Values of an example.
        features: usize,
    },
    /// Feature statistics of another length.
    #[error("feature statistics have {got} values, the model has {expected} features")]
    Statistics {
        /// Values given.
        got: usize,
        /// Features of the model.
        expected: usize,
    },
}

/// Elements of a list that an error shows: it may come from outside and is logged.
const SHOWN: usize = 8;

fn show(values: &[f32]) -> String {
    match values.split_at_checked(SHOWN) {
        Some((first, [_, ..])) => format!("{first:?} and {} more", values.len() - SHOWN),
        _ => format!("{values:?}"),
    }
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
    /// What is trained. Vehicles train linear heads; whole networks are for simulations.
    pub network: Network,
    /// Mean and standard deviation of each feature; its length is the number of features.
    pub standardisation: Standardisation,
    /// Tensors of the head that each vehicle trains and keeps for itself: they are in no model and no update.
    pub personal: Vec<String>,
}

impl ModelSpec {
    /// Length of a feature vector.
    pub fn features(&self) -> usize {
        self.standardisation.mean().len()
    }

    /// The schema of all that a vehicle trains.
    ///
    /// # Errors
    /// [`SchemaError`] if it is too large.
    pub fn head_schema(&self) -> Result<Schema, SchemaError> {
        self.network.schema(self.features(), self.classes.len())
    }

    /// The schema of what travels: the head without its personal tensors.
    ///
    /// # Errors
    /// [`SchemaError`] if it is too large, or nothing is left.
    pub fn schema(&self) -> Result<Schema, SchemaError> {
        let head = self.head_schema()?;
        if self.personal.is_empty() {
            return Ok(head);
        }
        let shared = head.tensors().iter();
        let shared = shared.filter(|tensor| !self.personal.contains(&tensor.name));
        Schema::new(shared.cloned().collect())
    }

    /// The whole head of what travels and what a vehicle keeps for itself, in the order of [`ModelSpec::head_schema`].
    ///
    /// - `shared`: as of [`ModelSpec::schema`]; `personal`: the other tensors, 0 where there are too few values.
    pub fn join_head(&self, shared: &[f32], personal: &[f32]) -> Vec<f32> {
        if self.personal.is_empty() {
            return shared.to_vec();
        }
        let (mut shared, mut personal) = (shared.iter(), personal.iter());
        let mut head = Vec::new();
        for tensor in self.head_schema().iter().flat_map(Schema::tensors) {
            let from = if self.personal.contains(&tensor.name) {
                &mut personal
            } else {
                &mut shared
            };
            let len = tensor.shape.iter().product();
            head.extend((0..len).map(|_| from.next().copied().unwrap_or(0.0)));
        }
        head
    }

    /// Takes a whole head apart into what travels and what stays; the other way round of [`ModelSpec::join_head`].
    pub fn split_head(&self, head: Vec<f32>) -> (Vec<f32>, Vec<f32>) {
        if self.personal.is_empty() {
            return (head, Vec::new());
        }
        let (mut shared, mut personal) = (Vec::new(), Vec::new());
        if let Ok(schema) = self.head_schema() {
            for (tensor, range) in schema.tensors().iter().zip(schema.ranges()) {
                let to = if self.personal.contains(&tensor.name) {
                    &mut personal
                } else {
                    &mut shared
                };
                to.extend_from_slice(head.get(range).unwrap_or_default());
            }
        }
        (shared, personal)
    }

    fn check_personal(&self) -> Result<(), JobError> {
        let head = self.head_schema()?;
        let tensors: Vec<String> = head.tensors().iter().map(|t| t.name.clone()).collect();
        let known = self.personal.iter().all(|name| tensors.contains(name));
        let left = tensors.iter().any(|name| !self.personal.contains(name));
        if known && left {
            return Ok(());
        }
        let got = self.personal.clone();
        Err(JobError::Personal { got, tensors })
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

/// Rounds without cohorts: a round closes once it has enough updates, also of vehicles that began in an earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffered {
    /// `K`: updates that close a round, `>= 1`.
    pub buffer_size: u32,
    /// Rounds that may have closed since the one that an update was made for.
    pub max_staleness: u32,
}

/// How a roadside unit makes one delta of its vehicles' updates.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AggregationSpec {
    /// The rule.
    pub rule: RuleSpec,
    /// Asynchronous rounds (FedBuff), where they are wanted.
    pub buffered: Option<Buffered>,
    /// A partial aggregate travels as the mean in fp16, with error feedback at the roadside unit, instead of exactly.
    pub fp16_partials: bool,
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
    /// What becomes of the updates of a round.
    pub aggregation: AggregationSpec,
    /// How updates are written.
    pub codec: CodecSpec,
}

impl JobSpec {
    /// The fewest updates that a round of this job may close with a result on.
    pub fn fewest_updates(&self) -> usize {
        let round = &self.round;
        let wanted = match self.aggregation.buffered {
            Some(buffered) => buffered.buffer_size as usize,
            None => round.min_vehicles as usize,
        };
        share(round.quorum, wanted)
    }

    /// Rule, encodings and buffer, which depend on each other.
    fn check_aggregation(&self) -> Result<(), JobError> {
        self.codec.check()?;
        self.aggregation.rule.check(self.fewest_updates())?;
        if let Some(buffered) = self.aggregation.buffered {
            let fits =
                (1..=1_000_000).contains(&buffered.buffer_size) && buffered.max_staleness <= 1000;
            if !fits {
                return Err(JobError::Range {
                    field: "strategy.buffer_size and strategy.max_staleness",
                    got: format!("{} and {}", buffered.buffer_size, buffered.max_staleness),
                    allowed: "1 to 1000000 updates and 0 to 1000 rounds",
                });
            }
        }
        let differences = [self.codec.best, self.codec.lowest].contains(&UpdateEncoding::Fp16Diff);
        if self.aggregation.buffered.is_some() && differences {
            return Err(JobError::Range {
                field: "codec.encoding and codec.lowest",
                got: "fp16-diff in buffered rounds".to_owned(),
                allowed: "the others: a late update's base model is not at the roadside unit any more",
            });
        }
        Ok(())
    }

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
            let cut = |c: &String| c.chars().take(64).collect();
            return Err(JobError::Classes {
                got: classes.iter().take(SHOWN).map(cut).collect(),
            });
        }
        let (network, features) = (model.network, model.features());
        if !network.takes(features) {
            return Err(JobError::Network { network, features });
        }
        model.check_personal()?;
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
                show(weights),
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
        self.check_aggregation()
    }
}

/// `share` of `whole`, rounded up, at least 1.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "shares are 0 to 1 of a count"
)]
fn share(share: f64, whole: usize) -> usize {
    ((share * whole as f64).ceil() as usize).max(1)
}
