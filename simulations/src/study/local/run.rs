//! One run: a fleet, a setting, some rounds.

use super::report::Curve;
use super::{Algorithm, LocalEffort, Setting, fednova, scaffold};
use crate::baseline::Examples;
use crate::study::fleet::Fleet;
use anyhow::Context;
use cloud_coordinator::strategy::ServerOptimizer;
use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use std::sync::atomic::AtomicBool;
use wayside_domain::aggregate::{WeightedSum, exponent_for};
use wayside_domain::job::{Effort, TrainingSpec};
use wayside_domain::train::{Start, TrainError, train_from};
use wayside_proto::codec::{self, Delta, EncodeError};

/// Room above the last mean value when a round's scale is fixed, as at the cloud.
const HEADROOM: f64 = 4.0;
/// What FedNova sends beside the delta: its effective steps, one f64.
const STEPS_BYTES: u64 = 8;

/// A vector that vehicles send deltas of: what a round sums, and by which scale.
#[derive(Debug)]
struct Channel {
    exponents: Vec<i8>,
    sum: WeightedSum,
    bytes: u64,
}

impl Channel {
    fn new(fleet: &Fleet) -> Self {
        let exponents = vec![0; fleet.schema.tensors().len()];
        Self {
            sum: WeightedSum::new(fleet.schema.num_parameters(), exponents.clone()),
            exponents,
            bytes: 0,
        }
    }

    /// Counts one vehicle's values as they travel, and gives back what they were rounded to.
    fn send(&mut self, fleet: &Fleet, examples: u64, values: &[f32]) -> anyhow::Result<Vec<f32>> {
        let rounded = Delta::quantise(&fleet.schema, values, &self.exponents)?;
        self.sum.add(examples, &self.exponents, rounded.values())?;
        let frame = codec::encode_delta(&fleet.schema, values, &self.exponents)?;
        self.bytes += frame.len() as u64;
        Ok(rounded.to_parameters())
    }

    /// The mean of the round; the next round's scales follow from it.
    fn close(&mut self, fleet: &Fleet) -> anyhow::Result<Vec<f64>> {
        let mean = self.sum.mean(fleet.schema.ranges());
        let mean = mean.context("a round without examples")?;
        self.exponents = fleet
            .schema
            .ranges()
            .map(|range| {
                exponent_for(HEADROOM * mean[range].iter().fold(0.0, |m, v| v.abs().max(m)))
            })
            .collect();
        self.sum = WeightedSum::new(mean.len(), self.exponents.clone());
        Ok(mean)
    }
}

/// Epochs of each vehicle.
fn efforts(effort: LocalEffort, vehicles: usize, seed: u64) -> Vec<u32> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed ^ 0x5eed);
    let mut draw = || match effort {
        LocalEffort::Epochs(epochs) => epochs,
        LocalEffort::Unequal => rng.random_range(1..=20),
    };
    (0..vehicles).map(|_| draw()).collect()
}

/// Trains for `rounds` rounds, all vehicles in each.
///
/// # Errors
/// Only for what is wrong with the study itself, or `cancel`; a run that diverges ends early and says so.
pub(super) fn run(
    fleet: &Fleet,
    setting: &Setting,
    rounds: u64,
    seed: u64,
    cancel: &AtomicBool,
) -> anyhow::Result<Curve> {
    let mut federation = Federation::new(fleet, setting, seed)?;
    let mut curve = Curve::new(seed);
    for round in 0..rounds {
        if let Err(error) = federation.round(round, cancel) {
            // A loss beyond reason, or values beyond what a frame holds.
            let diverged = matches!(error.downcast_ref(), Some(TrainError::Diverged { .. }))
                || error.is::<EncodeError>();
            if !diverged {
                return Err(error);
            }
            curve.diverged = true;
            break;
        }
        let of = |set: &Examples| {
            let parameters = &federation.released;
            fleet
                .head
                .evaluate(parameters, set.features.view(), &set.labels)
        };
        curve.push(&of(&fleet.test), &of(&fleet.held_back));
    }
    let ran = curve.accuracy.len().max(1) as f64;
    curve.up_bytes = federation.up_bytes() as f64 / (ran * fleet.vehicles.len() as f64);
    curve.down_bytes = federation.down_bytes as f64 / ran;
    Ok(curve)
}

struct Federation<'a> {
    fleet: &'a Fleet,
    algorithm: Algorithm,
    specs: Vec<TrainingSpec>,
    seed: u64,
    server: ServerOptimizer,
    state: Vec<f64>,
    master: Vec<f64>,
    released: Vec<f32>,
    released_bytes: u64,
    deltas: Channel,
    controls: Channel,
    control: Vec<f64>,
    own_controls: Vec<Vec<f32>>,
    steps_bytes: u64,
    down_bytes: u64,
}

impl<'a> Federation<'a> {
    fn new(fleet: &'a Fleet, setting: &Setting, seed: u64) -> anyhow::Result<Self> {
        let vehicles = fleet.vehicles.len();
        let spec = |epochs| TrainingSpec {
            lr: setting.lr,
            momentum: 0.0,
            weight_decay: 0.0,
            batch_size: 32,
            effort: Effort::LocalEpochs(epochs),
            proximal_mu: match setting.algorithm {
                Algorithm::FedProx { mu } => mu,
                _ => 0.0,
            },
            class_weights: fleet.class_weights.clone(),
            seed,
        };
        let master: Vec<f64> = fleet.initial.iter().copied().map(f64::from).collect();
        let (released_bytes, released) = frame(fleet, &master)?;
        Ok(Self {
            fleet,
            algorithm: setting.algorithm,
            specs: efforts(setting.effort, vehicles, seed)
                .into_iter()
                .map(spec)
                .collect(),
            seed,
            server: match setting.algorithm {
                Algorithm::FedAvgM => ServerOptimizer::Momentum { lr: 1.0, beta: 0.9 },
                _ => ServerOptimizer::Plain { lr: 1.0 },
            },
            state: Vec::new(),
            control: vec![0.0; master.len()],
            own_controls: vec![vec![0.0; master.len()]; vehicles],
            master,
            released,
            released_bytes,
            deltas: Channel::new(fleet),
            controls: Channel::new(fleet),
            steps_bytes: 0,
            down_bytes: 0,
        })
    }

    fn up_bytes(&self) -> u64 {
        self.deltas.bytes + self.controls.bytes + self.steps_bytes
    }

    fn round(&mut self, round: u64, cancel: &AtomicBool) -> anyhow::Result<()> {
        let fleet = self.fleet;
        let base = std::mem::take(&mut self.released);
        self.down_bytes += self.released_bytes;
        let is_scaffold = self.algorithm == Algorithm::Scaffold;
        let control = if is_scaffold {
            let (bytes, control) = frame(fleet, &self.control)?;
            self.down_bytes += bytes;
            control
        } else {
            Vec::new()
        };
        let mut taken = Vec::new();
        for (vehicle, examples) in fleet.vehicles.iter().enumerate() {
            let spec = &self.specs[vehicle];
            let correction =
                is_scaffold.then(|| scaffold::correction(&control, &self.own_controls[vehicle]));
            let start = Start {
                base: &base,
                correction: correction.as_deref(),
            };
            // Vehicle and round decide the shuffling, the algorithm does not.
            let seed = (self.seed << 32) + (round << 8) + vehicle as u64;
            let trained = train_from(
                &fleet.head,
                start,
                examples.features.view(),
                &examples.labels,
                spec,
                seed,
                cancel,
            )?;
            let mut delta = trained.parameters;
            for (value, base) in delta.iter_mut().zip(&base) {
                *value -= base;
            }
            let shrink = f64::from(spec.lr * spec.proximal_mu);
            let steps = fednova::effective_steps(trained.steps, f64::from(spec.momentum), shrink);
            taken.push((trained.num_examples, steps));
            if is_scaffold {
                let change = scaffold::control_change(&control, &delta, steps, spec.lr);
                // The vehicle keeps what the cloud gets, so that the mean of all stays the cloud's.
                let change = self.controls.send(fleet, trained.num_examples, &change)?;
                for (own, change) in self.own_controls[vehicle].iter_mut().zip(change) {
                    *own += change;
                }
            }
            if self.algorithm == Algorithm::FedNova {
                fednova::normalise(&mut delta, steps);
                self.steps_bytes += STEPS_BYTES;
            }
            self.deltas.send(fleet, trained.num_examples, &delta)?;
        }
        let mut mean = self.deltas.close(fleet)?;
        if self.algorithm == Algorithm::FedNova {
            let tau = fednova::mean_steps(taken);
            for value in &mut mean {
                *value *= tau;
            }
        }
        if is_scaffold {
            scaffold::move_control(&mut self.control, &self.controls.close(fleet)?, 1.0);
        }
        self.server.step(&mut self.master, &mut self.state, &mean);
        (self.released_bytes, self.released) = frame(fleet, &self.master)?;
        Ok(())
    }
}

/// Frames a vector as the cloud sends it down: its bytes, and what it decodes to, which is what vehicles use.
fn frame(fleet: &Fleet, values: &[f64]) -> anyhow::Result<(u64, Vec<f32>)> {
    #[expect(clippy::cast_possible_truncation, reason = "as the cloud rounds")]
    let narrow: Vec<f32> = values.iter().map(|value| *value as f32).collect();
    let (frame, released) = codec::encode_model(&fleet.schema, &narrow)?;
    Ok((frame.len() as u64, released))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::partition::Partition;
    use ndarray::Array2;
    use wayside_domain::head::LinearHead;
    use wayside_domain::schema::Schema;

    /// Three vehicles with one class each, told apart by one feature a class.
    fn fleet() -> Fleet {
        let head = LinearHead {
            features: 8,
            classes: 3,
        };
        let examples = |class: u8, count: usize| Examples {
            features: Array2::from_shape_fn((count, 8), |(row, column)| {
                let own = if column == usize::from(class) {
                    1.5
                } else {
                    0.0
                };
                own + [0.3, -0.2, 0.1, -0.4, 0.2][(row + column) % 5]
            }),
            labels: vec![class; count],
        };
        let vehicles: Vec<_> = (0..3).map(|class| examples(class, 40)).collect();
        Fleet {
            head,
            schema: Schema::linear_head(8, 3).expect("a small head"),
            class_weights: vec![1.0; 3],
            held_back: Examples::concat(&vehicles),
            test: Examples::concat(&vehicles),
            vehicles,
            initial: vec![0.0; head.num_parameters()],
        }
    }

    fn curve(algorithm: Algorithm, effort: LocalEffort) -> Curve {
        let setting = Setting {
            partition: Partition::Classes { each: 1 },
            effort,
            algorithm,
            lr: 0.1,
        };
        run(&fleet(), &setting, 8, 1, &AtomicBool::new(false)).expect("a run")
    }

    #[test]
    fn every_algorithm_learns_and_a_run_repeats() {
        for algorithm in [
            Algorithm::FedAvg,
            Algorithm::FedAvgM,
            Algorithm::FedProx { mu: 0.1 },
            Algorithm::FedNova,
            Algorithm::Scaffold,
        ] {
            let one = curve(algorithm, LocalEffort::Unequal);
            let again = curve(algorithm, LocalEffort::Unequal);
            assert_eq!(one.accuracy, again.accuracy, "{algorithm:?}");
            let last = one.accuracy.last().copied().unwrap_or(0.0);
            assert!(last > 0.9, "{algorithm:?}: {:?}", one.accuracy);
        }
    }

    #[test]
    fn with_equal_steps_fednova_is_fedavg_and_scaffold_sends_twice_as_much() {
        let effort = LocalEffort::Epochs(2);
        let plain = curve(Algorithm::FedAvg, effort);
        let nova = curve(Algorithm::FedNova, effort);
        assert_eq!(plain.accuracy, nova.accuracy);
        let scaffold = curve(Algorithm::Scaffold, effort);
        assert!(scaffold.up_bytes > 1.7 * plain.up_bytes);
        assert!(scaffold.down_bytes > 1.5 * plain.down_bytes);
    }
}
