//! One run of rounds in one process: what vehicles, a roadside unit and the cloud do, without their transport.

use std::io;
use std::ops::Range;
use std::sync::atomic::AtomicBool;

use cloud_coordinator::strategy::ServerOptimizer;
use roadside_aggregator::aggregate::{Frames, Member, Order, OrderError, run_over};
use roadside_aggregator::intake::Checked;
use roadside_aggregator::store::StoredUpdate;
use wayside_domain::aggregate::{AggregateError, RuleSpec, exponent_for};
use wayside_domain::encoding::UpdateEncoding;
use wayside_domain::ids::{Digest, JobId, ModelVersion, RoundId, UpdateId, VehicleId};
use wayside_domain::job::{Effort, TrainingSpec};
use wayside_domain::round::{Accepted, Guard};
use wayside_domain::train::train;
use wayside_domain::update::Update;
use wayside_proto::codec::{self, f16};

use super::fleet::Fleet;

/// Passes over a vehicle's pictures in one round.
const EPOCHS: u32 = 2;
/// Largest delta that a vehicle is expected to make over the largest mean delta of the last round.
const HEADROOM: f64 = 4.0;
/// Largest norm of a delta, as a job of this size would say.
const MAX_NORM: f64 = 10.0;
/// The same as a multiple of the median of the last round.
const MAX_NORM_RATIO: f64 = 4.0;

/// What a hostile vehicle does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hostile {
    /// Sends the negated delta.
    SignFlip,
    /// Sends a thousand times the delta.
    Scaling,
    /// Trains on wrong labels.
    LabelFlip,
    /// Puts a NaN into its delta.
    Nan,
}

impl Hostile {
    /// All of them.
    pub(super) const ALL: [Self; 4] = [Self::SignFlip, Self::Scaling, Self::LabelFlip, Self::Nan];

    /// Its name in tables.
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::SignFlip => "sign flip",
            Self::Scaling => "scaling 1000",
            Self::LabelFlip => "label flip",
            Self::Nan => "NaN",
        }
    }
}

/// How a run is set up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Course<'a> {
    /// Data and first head.
    pub(super) fleet: &'a Fleet,
    /// Shuffling is drawn from it.
    pub(super) seed: u64,
    /// Rounds.
    pub(super) rounds: u64,
    /// The roadside unit's rule.
    pub(super) rule: &'a RuleSpec,
    /// How updates are written.
    pub(super) encoding: UpdateEncoding,
    /// Share of the values that topk sends.
    pub(super) topk_fraction: f64,
    /// What an encoding takes goes into the next update.
    pub(super) feeds_back: bool,
    /// What the first so many vehicles do.
    pub(super) hostile: Option<(Hostile, usize)>,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Outcome {
    /// On the test pictures.
    pub(super) accuracy: f64,
    /// Mean recall of the classes.
    pub(super) macro_recall: f64,
    /// Updates that the guard refused.
    pub(super) refused: u64,
    /// Bytes of all frames that vehicles sent.
    pub(super) bytes: u64,
    /// Test accuracy after each round.
    pub(super) curve: Vec<f64>,
}

/// Frames of a round, in memory.
struct InMemory(Vec<Vec<u8>>);

impl Frames for InMemory {
    fn read(&self, member: &Member, bytes: Range<usize>, to: &mut Vec<u8>) -> io::Result<()> {
        let at = usize::from(member.update_id.0[0]);
        let found = self.0.get(at).and_then(|frame| frame.get(bytes));
        let found = found.ok_or(io::ErrorKind::UnexpectedEof)?;
        to.clear();
        to.extend_from_slice(found);
        Ok(())
    }
}

impl Course<'_> {
    /// Runs it.
    ///
    /// # Errors
    /// Training that diverges without an attacker, a rule that has no result, or `cancel`.
    pub(super) fn run(&self, cancel: &AtomicBool) -> anyhow::Result<Outcome> {
        let fleet = self.fleet;
        let schema = &fleet.schema;
        let optimizer = ServerOptimizer::Momentum { lr: 4.0, beta: 0.9 };
        let mut master: Vec<f64> = fleet.initial.iter().copied().map(f64::from).collect();
        let mut state = Vec::new();
        let mut exponents = vec![0; schema.tensors().len()];
        let mut max_norm = MAX_NORM;
        let mut residuals = vec![vec![0.0_f32; schema.num_parameters()]; fleet.vehicles.len()];
        let mut outcome = Outcome {
            accuracy: 0.0,
            macro_recall: 0.0,
            refused: 0,
            bytes: 0,
            curve: Vec::new(),
        };
        for round in 1..=self.rounds {
            let current: Vec<f32> = master.iter().copied().map(narrow).collect();
            let (model, released) = codec::encode_model(schema, &current)?;
            let reference = codec::decode_reference(&model, schema)?;
            let guard = Guard {
                schema: Digest([0; 32]),
                max_examples: 100_000,
                max_norm,
            };
            let (mut frames, mut members, mut norms) = (Vec::new(), Vec::new(), Vec::new());
            for (vehicle, residual) in residuals.iter_mut().enumerate() {
                let Some(frame) = self.update(
                    round, vehicle, &released, &exponents, &reference, residual, cancel,
                )?
                else {
                    continue;
                };
                outcome.bytes += frame.len() as u64;
                let num_examples = fleet.vehicles[vehicle].labels.len() as u64;
                let checked = Checked::read(&frame, schema, &exponents, Some(&reference))?;
                let id = u8::try_from(frames.len())?;
                let update = Update {
                    member: vehicle,
                    update_id: UpdateId([id; 16]),
                    round: RoundId(round),
                    base_version: ModelVersion(round),
                    schema: guard.schema,
                    num_examples,
                    stats: checked.stats.stats,
                };
                frames.push(frame);
                if guard.refuses(&update).is_some() {
                    outcome.refused += 1;
                    continue;
                }
                norms.push(update.stats.l2_norm);
                let stored = StoredUpdate {
                    vehicle: VehicleId::new(format!("v{vehicle:03}"))?,
                    round: RoundId(round),
                    accepted: Accepted {
                        update_id: update.update_id,
                        num_examples,
                    },
                    staleness: 0,
                };
                members.push(Member::new(&stored, checked));
            }
            let order = Order {
                job: JobId::new("study")?,
                round: RoundId(round),
                rule: self.rule.clone(),
                schema: schema.clone(),
                exponents: exponents.clone(),
                reference: Some(reference),
                members,
            };
            let sum = match run_over(&order, &InMemory(frames), 1) {
                Ok(sum) => Some(sum),
                // A round without enough updates has no result.
                Err(OrderError::Aggregate(AggregateError::TooFew { .. })) => None,
                Err(error) => return Err(error.into()),
            };
            if let Some(mean) = sum.and_then(|sum| sum.mean(schema.ranges())) {
                optimizer.step(&mut master, &mut state, &mean);
                let largest = |range: Range<usize>| {
                    mean[range]
                        .iter()
                        .fold(0.0_f64, |most, v| most.max(v.abs()))
                };
                let ranges = schema.ranges();
                exponents = ranges
                    .map(|r| exponent_for(HEADROOM * largest(r)))
                    .collect();
                norms.sort_by(f64::total_cmp);
                let median = norms.get(norms.len() / 2).copied().unwrap_or(MAX_NORM);
                max_norm = MAX_NORM.min(MAX_NORM_RATIO * median);
            }
            let now: Vec<f32> = master.iter().copied().map(narrow).collect();
            let evaluation = self.evaluate(&now);
            outcome.curve.push(evaluation.accuracy);
            outcome.accuracy = evaluation.accuracy;
            outcome.macro_recall = evaluation.macro_recall;
        }
        Ok(outcome)
    }

    fn evaluate(&self, parameters: &[f32]) -> wayside_domain::head::Evaluation {
        let test = &self.fleet.test;
        let (head, x) = (&self.fleet.head, test.features.view());
        head.evaluate(parameters, x, &test.labels)
    }

    /// What a vehicle sends; nothing where its training failed or its delta does not fit.
    #[expect(clippy::too_many_arguments, reason = "one round of one vehicle")]
    fn update(
        &self,
        round: u64,
        vehicle: usize,
        base: &[f32],
        exponents: &[i8],
        reference: &codec::Reference,
        residual: &mut [f32],
        cancel: &AtomicBool,
    ) -> anyhow::Result<Option<Vec<u8>>> {
        let fleet = self.fleet;
        let data = &fleet.vehicles[vehicle];
        if data.labels.is_empty() {
            return Ok(None);
        }
        let attack = self
            .hostile
            .filter(|(_, n)| vehicle < *n)
            .map(|(what, _)| what);
        let mut labels = data.labels.clone();
        if attack == Some(Hostile::LabelFlip) {
            let last = u8::try_from(fleet.head.classes - 1)?;
            for label in &mut labels {
                *label = last - *label;
            }
        }
        let spec = TrainingSpec {
            lr: 0.01,
            momentum: 0.0,
            weight_decay: 0.0,
            batch_size: 32,
            effort: Effort::LocalEpochs(EPOCHS),
            proximal_mu: 0.0,
            class_weights: fleet.class_weights.clone(),
            seed: self.seed,
        };
        let seed = self.seed ^ (round << 16) ^ ((vehicle as u64) << 40);
        let x = data.features.view();
        let trained = match train(&fleet.head, base, x, &labels, &spec, seed, cancel) {
            Ok(trained) => trained,
            // A model that an attacker has ruined.
            Err(wayside_domain::train::TrainError::Diverged { .. }) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let pairs = trained.parameters.iter().zip(base);
        let mut delta: Vec<f32> = pairs.map(|(to, from)| to - from).collect();
        if self.feeds_back {
            for (value, left) in delta.iter_mut().zip(&*residual) {
                *value += left;
            }
        }
        match attack {
            Some(Hostile::SignFlip) => delta.iter_mut().for_each(|v| *v = -*v),
            Some(Hostile::Scaling) => {
                // As far as fp16 goes: more would not be sent by anybody's encoder.
                for (range, exponent) in fleet.schema.ranges().zip(exponents) {
                    let most = 65_000.0 * f32::from(*exponent).exp2();
                    for value in &mut delta[range] {
                        *value = (1000.0 * *value).clamp(-most, most);
                    }
                }
            }
            Some(Hostile::Nan) => {
                let mut values: Vec<f16> = delta.iter().map(|v| f16::from_f32(*v)).collect();
                values[delta.len() / 2] = f16::NAN;
                let frame = codec::encode_delta_values(&fleet.schema, &values, exponents)?;
                return Ok(Some(frame));
            }
            Some(Hostile::LabelFlip) | None => {}
        }
        let encoded = codec::encode_update(
            &fleet.schema,
            self.encoding,
            self.topk_fraction,
            &delta,
            exponents,
            Some(reference),
        );
        let encoded = match encoded {
            Ok(encoded) => encoded,
            // A vehicle whose delta does not fit sends nothing in this round.
            Err(codec::EncodeError::OutOfRange { .. }) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        if self.feeds_back {
            for ((left, all), sent) in residual.iter_mut().zip(&delta).zip(&encoded.decoded) {
                *left = all - sent;
            }
        }
        Ok(Some(encoded.frame))
    }
}

#[expect(clippy::cast_possible_truncation, reason = "as the cloud releases it")]
fn narrow(value: f64) -> f32 {
    value as f32
}
