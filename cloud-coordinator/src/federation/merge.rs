//! From accepted partial aggregates to a version: merge, step, round, evaluate, gate.

use super::{MergeRule, Partial, Rules};
use crate::job::HeldBack;
use half::f16;
use rand::{RngCore as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeSet;
use wayside_domain::aggregate::rules::FlTrust;
use wayside_domain::aggregate::{
    AggregateError, Aggregator, InMemory, RuleError, Updates, Weighted, WeightedSum, combine,
    exponent_for,
};
use wayside_domain::head::Evaluation;
use wayside_domain::ids::{Digest, ModelVersion, RoundId};
use wayside_domain::time::Timestamp;
use wayside_domain::train::TrainError;
use wayside_proto::codec::{self, EncodeError};

/// Powers of two that a scale may be off in buffered rounds: fp16 has room for more on both sides.
const KEEP_WITHIN: u8 = 8;
/// Expected largest delta of one vehicle over the largest mean delta of the last merge.
const HEADROOM: f64 = 4.0;

/// Why a merged result cannot become a version.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Unusable {
    /// Sums that do not fit together.
    #[error("sums cannot be merged: {0}")]
    Sum(#[from] AggregateError),
    /// No examples behind the sum.
    #[error("no examples behind the merged sum")]
    NoExamples,
    /// NaN or infinity.
    #[error("parameter {index} of the {what} is not finite")]
    NotFinite {
        /// Mean delta or new model.
        what: &'static str,
        /// Index in the flat slice.
        index: usize,
    },
    /// The model cannot be framed.
    #[error("model cannot be framed: {0}")]
    Frame(#[from] EncodeError),
    /// The rule cannot be made, which the job's check rules out.
    #[error(transparent)]
    Rule(#[from] RuleError),
    /// The cloud's own update, which FLTrust compares with.
    #[error("no root update: {0}")]
    Root(#[from] TrainError),
}

/// What the next version starts from.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    /// Its number.
    pub version: ModelVersion,
    /// The unrounded parameters, length d: what rounding takes from the released values stays here.
    pub master: Vec<f64>,
    /// State of the server optimizer.
    pub optimizer: Vec<f64>,
    /// Accuracy of the released values on the held-back set.
    pub accuracy: Option<f64>,
    /// BLAKE3 of the frame.
    pub frame_digest: Digest,
    /// Bytes of the frame.
    pub frame_bytes: u64,
}

/// Whether a version goes to the fleet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Gate {
    /// It is what the fleet trains from next.
    Released,
    /// It is kept, and the next merge round starts again from the released one.
    KeptBack {
        /// Why, for people.
        reason: String,
    },
}

/// A version that was made, with everything that is kept of it.
#[derive(Clone, Debug, PartialEq)]
pub struct NewVersion {
    /// Its number.
    pub version: ModelVersion,
    /// The version that it was made from.
    pub parent: ModelVersion,
    /// The merge round that made it; 0 for the first.
    pub merge_round: RoundId,
    /// When.
    pub created: Timestamp,
    /// Unrounded parameters.
    pub master: Vec<f64>,
    /// State of the server optimizer.
    pub optimizer: Vec<f64>,
    /// The frame that travels.
    pub frame: Vec<u8>,
    /// BLAKE3 of the frame.
    pub frame_digest: Digest,
    /// What the frame decodes to: the released model.
    pub parameters: Vec<f32>,
    /// On the held-back set.
    pub evaluation: Option<Evaluation>,
    /// Whether it is released.
    pub gate: Gate,
    /// Examples behind it.
    pub num_examples: u64,
    /// Vehicles behind it.
    pub contributors: u32,
    /// The sums stayed within the exact range.
    pub exact: bool,
}

impl NewVersion {
    /// What the next version starts from, if this one is released.
    pub fn model(&self) -> Model {
        Model {
            version: self.version,
            master: self.master.clone(),
            optimizer: self.optimizer.clone(),
            accuracy: self.evaluation.as_ref().map(|e| e.accuracy),
            frame_digest: self.frame_digest,
            frame_bytes: self.frame.len() as u64,
        }
    }
}

/// Which version is made, where and when.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) version: ModelVersion,
    pub(super) merge_round: RoundId,
    pub(super) now: Timestamp,
}

/// What the next merge round is announced with.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Next {
    pub(super) exponents: Vec<i8>,
    pub(super) norm_bound: f64,
}

/// The first version: the parameters that the job gives, else small weights drawn from its seed.
pub(super) fn first_version(
    rules: &Rules,
    held_back: Option<&HeldBack>,
    seed: u64,
    now: Timestamp,
) -> Result<NewVersion, Unusable> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    // Evenly from [-0.01, 0.01) in steps of 2^-23 of it.
    let mut draw = || (f64::from(rng.next_u32() >> 8) / f64::from(1 << 23) - 1.0) * 0.01;
    let master: Vec<f64> = match &rules.initial {
        Some(given) => given.iter().copied().map(f64::from).collect(),
        None => (0..rules.schema.num_parameters()).map(|_| draw()).collect(),
    };
    let place = Place {
        version: ModelVersion(0),
        merge_round: RoundId(0),
        now,
    };
    let released = None;
    finish(rules, held_back, released, place, master, Vec::new())
}

/// Makes a version from the accepted partial aggregates, which must come in the order of the units' names.
///
/// With `ServerOptimizer::Plain { lr: 1 }` and exact sums the result is that of flat FedAvg, bit for bit: the sums of
/// sums are the flat sum, and division, step and rounding come once, here.
pub(super) fn make<'a>(
    rules: &Rules,
    held_back: Option<&HeldBack>,
    released: &Model,
    exponents: &[i8],
    counted: impl Iterator<Item = &'a Partial> + Clone,
    place: Place,
) -> Result<(NewVersion, Next), Unusable> {
    let total = combined(rules, released, exponents, counted.clone(), place.version)?;
    let mut vehicles = BTreeSet::new();
    let mut norms = Vec::new();
    for partial in counted {
        for line in partial.accepted() {
            vehicles.insert(&line.vehicle);
            norms.push(line.l2_norm);
        }
    }
    let mean = total
        .mean(rules.schema.ranges())
        .ok_or(Unusable::NoExamples)?;
    check_finite("mean delta", &mean)?;
    let (mut master, mut optimizer) = (released.master.clone(), released.optimizer.clone());
    rules.server.step(&mut master, &mut optimizer, &mean);
    check_finite("optimizer state", &optimizer)?;
    let mut version = finish(rules, held_back, Some(released), place, master, optimizer)?;
    version.num_examples = total.num_examples();
    version.contributors = u32::try_from(vehicles.len()).unwrap_or(u32::MAX);
    version.exact = total.is_exact();
    let largest =
        |range: std::ops::Range<usize>| mean[range].iter().fold(0.0, |m: f64, v| m.max(v.abs()));
    let next = Next {
        exponents: rules
            .schema
            .ranges()
            .zip(exponents)
            .map(|(range, before)| {
                let fitting = exponent_for(HEADROOM * largest(range));
                let near = before.abs_diff(fitting) <= KEEP_WITHIN;
                if rules.keeps_scales && near {
                    *before
                } else {
                    fitting
                }
            })
            .collect(),
        norm_bound: norm_bound(rules, norms),
    };
    Ok((version, next))
}

/// The partial aggregates as one, by the job's rule: their sum, or what the rule makes of their mean deltas.
fn combined<'a>(
    rules: &Rules,
    released: &Model,
    exponents: &[i8],
    counted: impl Iterator<Item = &'a Partial>,
    version: ModelVersion,
) -> Result<WeightedSum, Unusable> {
    let sums = counted.filter_map(|partial| partial.sum.as_ref().ok());
    let rule: Box<dyn Aggregator> = match &rules.merge {
        MergeRule::Sum => {
            let mut total = WeightedSum::new(rules.schema.num_parameters(), exponents.to_vec());
            for sum in sums {
                total.merge(sum)?;
            }
            return Ok(total);
        }
        MergeRule::Rule(spec) => spec.build()?,
        MergeRule::FlTrust(root) => {
            let base: Vec<f32> = released.master.iter().copied().map(narrow).collect();
            let update = root.update(&base, version)?;
            let root_norm = update.iter().map(|v| v * v).sum::<f64>().sqrt();
            let mut root = update;
            for (range, exponent) in rules.schema.ranges().zip(exponents) {
                let unit = f64::from(*exponent).exp2();
                root[range].iter_mut().for_each(|value| *value /= unit);
            }
            Box::new(FlTrust { root, root_norm })
        }
    };
    // Mean deltas in units of the scales, as the fp16 values that rules are made for.
    let (mut means, mut known) = (InMemory::default(), Vec::new());
    for sum in sums.filter(|sum| sum.num_examples() > 0) {
        let examples = sum.num_examples() as f64;
        let mean: Vec<f16> = sum
            .values()
            .iter()
            .map(|v| f16::from_f64(v / examples))
            .collect();
        let largest = mean.iter().map(|v| v.to_f64().abs()).fold(0.0, f64::max);
        means.push(&mean);
        known.push(Weighted {
            num_examples: sum.num_examples(),
            largest,
            staleness: 0,
        });
    }
    let updates = Updates::new(&means, &known, rules.schema.ranges(), exponents, 1);
    Ok(combine(rule.as_ref(), &updates)?)
}

/// Rounds the master to what is released, evaluates that, and holds it against the released version.
fn finish(
    rules: &Rules,
    held_back: Option<&HeldBack>,
    released: Option<&Model>,
    place: Place,
    master: Vec<f64>,
    optimizer: Vec<f64>,
) -> Result<NewVersion, Unusable> {
    check_finite("new model", &master)?;
    let narrow: Vec<f32> = master.iter().copied().map(narrow).collect();
    let (frame, parameters) = codec::encode_model(&rules.schema, &narrow)?;
    let evaluation = held_back.map(|set| set.evaluate(&parameters));
    let gate = gate(rules, released, evaluation.as_ref());
    Ok(NewVersion {
        version: place.version,
        parent: released.map_or(place.version, |model| model.version),
        merge_round: place.merge_round,
        created: place.now,
        master,
        optimizer,
        frame_digest: codec::digest(&frame),
        frame,
        parameters,
        evaluation,
        gate,
        num_examples: 0,
        contributors: 0,
        exact: true,
    })
}

fn gate(rules: &Rules, released: Option<&Model>, evaluation: Option<&Evaluation>) -> Gate {
    let (Some(before), Some(now)) = (released.and_then(|model| model.accuracy), evaluation) else {
        return Gate::Released;
    };
    if now.accuracy >= before - rules.max_regression {
        return Gate::Released;
    }
    Gate::KeptBack {
        reason: format!(
            "accuracy {:.4} is more than {} below the released version's {before:.4}",
            now.accuracy, rules.max_regression
        ),
    }
}

/// The absolute bound, or the relative one where that is on, known and smaller.
fn norm_bound(rules: &Rules, mut norms: Vec<f64>) -> f64 {
    norms.sort_by(f64::total_cmp);
    let median = norms.get(norms.len() / 2).copied().unwrap_or(0.0);
    let relative = rules.max_norm_ratio * median;
    if relative > 0.0 {
        relative.min(rules.max_norm)
    } else {
        rules.max_norm
    }
}

fn check_finite(what: &'static str, values: &[f64]) -> Result<(), Unusable> {
    match values.iter().position(|value| !value.is_finite()) {
        Some(index) => Err(Unusable::NotFinite { what, index }),
        None => Ok(()),
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "what rounding takes stays in the master; what overflows is refused when the model is framed"
)]
fn narrow(value: f64) -> f32 {
    value as f32
}
