//! What each encoding of updates costs and gives: bytes, rounds and accuracy of the head, and bytes of an update of a
//! whole small network.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

use ndarray::{Array1, Array2, Axis};
use rand::{RngCore as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use serde::Serialize;
use wayside_domain::aggregate::{RuleSpec, exponent_for};
use wayside_domain::encoding::UpdateEncoding;
use wayside_domain::schema::{Schema, TensorSpec};
use wayside_proto::codec;

use super::course::{Course, Outcome};
use super::fleet::{Fleet, Pictures};
use crate::baseline::Examples;
use crate::partition::Partition;

const VEHICLES: usize = 10;
const PARTITION: Partition = Partition::Dirichlet { alpha: 0.3 };
/// Accuracy that bytes are counted up to.
const GOAL: f64 = 0.93;
/// Widths of the small network's layers behind the features.
const HIDDEN: [usize; 2] = [1024, 512];

/// What is asked for.
#[derive(Clone, Debug)]
pub struct CodecOptions {
    /// One run each: split, shuffling, first head.
    pub seeds: Vec<u64>,
    /// Rounds of a run, at least 1.
    pub rounds: u64,
    /// Folder with `train` and `test`, each with one sub-folder a class.
    pub data: PathBuf,
    /// The backbone's weights.
    pub weights: PathBuf,
}

/// One encoding, mean over the seeds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CodecRow {
    /// The encoding, with topk's share.
    pub encoding: String,
    /// Whether what it takes goes into the next update.
    pub feeds_back: bool,
    /// Test accuracy, mean of the last five rounds.
    pub accuracy: f64,
    /// Bytes of an update of the head, a parameter.
    pub head_bytes_per_parameter: f64,
    /// Rounds until the goal was reached; `None` where a seed did not reach it.
    pub rounds_to_goal: Option<f64>,
    /// Bytes that one vehicle sent until then.
    pub bytes_to_goal: Option<f64>,
    /// Bytes of an update of the whole small network, a parameter.
    pub network_bytes_per_parameter: f64,
    /// What that encoding loses of it: L2 norm of the error over that of the delta.
    pub network_error: f64,
}

/// What the study found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CodecReport {
    /// Always true; errors have another shape.
    pub success: bool,
    /// Seeds of the runs.
    pub seeds: Vec<u64>,
    /// Rounds of a run.
    pub rounds: u64,
    /// Accuracy that bytes are counted up to.
    pub goal: f64,
    /// Parameters of the head.
    pub head_parameters: usize,
    /// Parameters of the whole small network.
    pub network_parameters: usize,
    /// One row an encoding.
    pub rows: Vec<CodecRow>,
}

/// Runs every encoding.
///
/// # Errors
/// Pictures or weights that cannot be read, or `cancel`.
pub fn run(options: &CodecOptions, cancel: &AtomicBool) -> anyhow::Result<CodecReport> {
    let pictures = Pictures::extract(&options.data, &options.weights, cancel)?;
    let mut fleets = Vec::new();
    for seed in &options.seeds {
        fleets.push(pictures.fleet(VEHICLES, PARTITION, *seed)?);
    }
    let network = NetworkUpdate::new(&fleets[0], options.seeds[0])?;
    let rule = RuleSpec::default();
    let ways = [
        (UpdateEncoding::Fp16, 0.01, false),
        (UpdateEncoding::Fp16, 0.01, true),
        (UpdateEncoding::Fp16Diff, 0.01, true),
        (UpdateEncoding::Int8, 0.01, false),
        (UpdateEncoding::Int8, 0.01, true),
        (UpdateEncoding::TopK, 0.1, true),
        (UpdateEncoding::TopK, 0.01, true),
        (UpdateEncoding::TopK, 0.01, false),
    ];
    let mut rows = Vec::new();
    for (encoding, topk_fraction, feeds_back) in ways {
        let mut outcomes = Vec::new();
        for (fleet, seed) in fleets.iter().zip(&options.seeds) {
            let course = Course {
                fleet,
                seed: *seed,
                rounds: options.rounds,
                rule: &rule,
                encoding,
                topk_fraction,
                feeds_back,
                hostile: None,
            };
            outcomes.push(course.run(cancel)?);
        }
        let (network_bytes, network_error) = network.encode(encoding, topk_fraction)?;
        rows.push(row(
            options,
            &fleets[0],
            (encoding, topk_fraction, feeds_back),
            &outcomes,
            (network_bytes, network_error),
        ));
    }
    Ok(CodecReport {
        success: true,
        seeds: options.seeds.clone(),
        rounds: options.rounds,
        goal: GOAL,
        head_parameters: fleets[0].schema.num_parameters(),
        network_parameters: network.delta.len(),
        rows,
    })
}

fn row(
    options: &CodecOptions,
    fleet: &Fleet,
    (encoding, topk_fraction, feeds_back): (UpdateEncoding, f64, bool),
    outcomes: &[Outcome],
    (network_bytes_per_parameter, network_error): (f64, f64),
) -> CodecRow {
    let runs = outcomes.len() as f64;
    let last = |outcome: &Outcome| {
        let curve = &outcome.curve[outcome.curve.len().saturating_sub(5)..];
        curve.iter().sum::<f64>() / curve.len() as f64
    };
    let updates = options.rounds as f64 * fleet.vehicles.len() as f64;
    let update_bytes = outcomes
        .iter()
        .map(|o| o.bytes as f64 / updates)
        .sum::<f64>()
        / runs;
    let reached = |outcome: &Outcome| outcome.curve.iter().position(|a| *a >= GOAL);
    let rounds: Option<Vec<usize>> = outcomes.iter().map(reached).collect();
    let rounds = rounds.map(|all| all.iter().map(|r| (r + 1) as f64).sum::<f64>() / runs);
    let name = match encoding {
        UpdateEncoding::TopK => format!("topk {}%", 100.0 * topk_fraction),
        other => other.label().to_owned(),
    };
    CodecRow {
        encoding: name,
        feeds_back,
        accuracy: outcomes.iter().map(last).sum::<f64>() / runs,
        head_bytes_per_parameter: update_bytes / fleet.schema.num_parameters() as f64,
        rounds_to_goal: rounds,
        bytes_to_goal: rounds.map(|rounds| rounds * update_bytes),
        network_bytes_per_parameter,
        network_error,
    }
}

/// An update of a network of two hidden layers on the features, as a vehicle would make it.
struct NetworkUpdate {
    schema: Schema,
    base: Vec<f32>,
    delta: Vec<f32>,
}

impl NetworkUpdate {
    /// Trains the network on the cloud's pictures first, then on one vehicle's: the delta is of the latter.
    fn new(fleet: &Fleet, seed: u64) -> anyhow::Result<Self> {
        let widths = [
            fleet.head.features,
            HIDDEN[0],
            HIDDEN[1],
            fleet.head.classes,
        ];
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut layers = Vec::new();
        for pair in widths.windows(2) {
            let reach = (6.0 / pair[0] as f32).sqrt();
            let mut draw = || (rng.next_u32() as f32 / u32::MAX as f32 * 2.0 - 1.0) * reach;
            let weight = Array2::from_shape_simple_fn((pair[0], pair[1]), &mut draw);
            layers.push((weight, Array1::<f32>::zeros(pair[1])));
        }
        let vehicle = fleet.vehicles.iter().max_by_key(|data| data.labels.len());
        let vehicle = vehicle.unwrap_or(&fleet.held_back);
        for _ in 0..20 {
            step_all(&mut layers, &fleet.held_back);
        }
        let base = flat(&layers);
        step_all(&mut layers, vehicle);
        let after = flat(&layers);
        let mut tensors = Vec::new();
        for (i, pair) in widths.windows(2).enumerate() {
            tensors.push(TensorSpec {
                name: format!("weight-{i}"),
                shape: pair.to_vec(),
            });
            tensors.push(TensorSpec {
                name: format!("bias-{i}"),
                shape: vec![pair[1]],
            });
        }
        Ok(Self {
            schema: Schema::new(tensors)?,
            delta: after
                .iter()
                .zip(&base)
                .map(|(to, from)| to - from)
                .collect(),
            base,
        })
    }

    /// Bytes a parameter, and the relative error.
    fn encode(&self, encoding: UpdateEncoding, fraction: f64) -> anyhow::Result<(f64, f64)> {
        let (model, _) = codec::encode_model(&self.schema, &self.base)?;
        let reference = codec::decode_reference(&model, &self.schema)?;
        let largest = |range: std::ops::Range<usize>| {
            self.delta[range]
                .iter()
                .fold(0.0_f32, |most, v| most.max(v.abs()))
        };
        let ranges = self.schema.ranges();
        let exponents: Vec<i8> = ranges
            .map(|r| exponent_for(f64::from(largest(r))))
            .collect();
        let encoded = codec::encode_update(
            &self.schema,
            encoding,
            fraction,
            &self.delta,
            &exponents,
            Some(&reference),
        )?;
        let square = |v: f32| f64::from(v) * f64::from(v);
        let norm: f64 = self.delta.iter().map(|v| square(*v)).sum();
        let pairs = self.delta.iter().zip(&encoded.decoded);
        let error: f64 = pairs.map(|(all, sent)| square(all - sent)).sum();
        let bytes = encoded.frame.len() as f64 / self.delta.len() as f64;
        Ok((bytes, (error / norm).sqrt()))
    }
}

type Layer = (Array2<f32>, Array1<f32>);

fn flat(layers: &[Layer]) -> Vec<f32> {
    let of = |(weight, bias): &Layer| weight.iter().chain(bias).copied().collect::<Vec<_>>();
    layers.iter().flat_map(of).collect()
}

/// One pass over the examples in batches of 32, plain SGD on the cross-entropy.
fn step_all(layers: &mut [Layer], data: &Examples) {
    const RATE: f32 = 0.01;
    let all: Vec<usize> = (0..data.labels.len()).collect();
    for batch in all.chunks(32) {
        let mut activations = vec![data.features.select(Axis(0), batch)];
        for (i, (weight, bias)) in layers.iter().enumerate() {
            let mut out = activations[i].dot(weight) + bias;
            if i + 1 < layers.len() {
                out.mapv_inplace(|v| v.max(0.0));
            }
            activations.push(out);
        }
        let mut slope = activations.pop().unwrap_or_default();
        for (mut row, at) in slope.rows_mut().into_iter().zip(batch) {
            let most = row.fold(f32::NEG_INFINITY, |most, v| most.max(*v));
            row.mapv_inplace(|v| (v - most).exp());
            let sum = row.sum();
            row.mapv_inplace(|v| v / sum / batch.len() as f32);
            row[usize::from(data.labels[*at])] -= 1.0 / batch.len() as f32;
        }
        for (i, (weight, bias)) in layers.iter_mut().enumerate().rev() {
            let input = &activations[i];
            let mut back = slope.dot(&weight.t());
            back.zip_mut_with(input, |slope, input| {
                if *input <= 0.0 {
                    *slope = 0.0;
                }
            });
            weight.scaled_add(-RATE, &input.t().dot(&slope));
            bias.scaled_add(-RATE, &slope.sum_axis(Axis(0)));
            slope = back;
        }
    }
}

impl CodecReport {
    /// The table for people.
    pub fn to_text(&self) -> String {
        let mut text = format!(
            "{} vehicles, {PARTITION}, {} rounds, seeds {:?}; head of {} parameters, network of {}\n\n\
             {:<12}{:>9}{:>10}{:>11}{:>11}{:>11}{:>12}{:>11}\n",
            VEHICLES,
            self.rounds,
            self.seeds,
            self.head_parameters,
            self.network_parameters,
            "encoding",
            "feedback",
            "accuracy",
            "B/p, head",
            "rounds",
            "bytes",
            "B/p, network",
            "error"
        );
        for row in &self.rows {
            let or_none = |value: Option<f64>| value.map_or("-".to_owned(), |v| format!("{v:.1}"));
            let _ = writeln!(
                text,
                "{:<12}{:>9}{:>10.2}{:>11.3}{:>11}{:>11}{:>12.4}{:>11.5}",
                row.encoding,
                if row.feeds_back { "yes" } else { "no" },
                100.0 * row.accuracy,
                row.head_bytes_per_parameter,
                or_none(row.rounds_to_goal),
                or_none(row.bytes_to_goal),
                row.network_bytes_per_parameter,
                row.network_error
            );
        }
        let _ = writeln!(
            text,
            "\nrounds and bytes: of one vehicle until the test accuracy was {:.0} %; error: of the network's delta",
            100.0 * self.goal
        );
        text
    }
}
