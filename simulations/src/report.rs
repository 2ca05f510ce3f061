//! What the demo found, for people and for programs.

use serde::Serialize;
use std::fmt::Write as _;
use wayside_domain::head::Evaluation;

/// One figure of each way to train, as a fraction of 1.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Comparison {
    /// The head before any training.
    pub untrained: f64,
    /// Vehicles that train alone for as many epochs: their mean.
    pub local_mean: f64,
    /// The worst of them.
    pub local_worst: f64,
    /// The model that the cloud released last.
    pub federated: f64,
    /// One head trained on everybody's features, with the same loss and as many epochs.
    pub central: f64,
}

/// What each way to train came to on the test pictures.
#[derive(Clone, Debug)]
pub struct Evaluations {
    /// Version 0.
    pub untrained: Evaluation,
    /// Each vehicle alone.
    pub local: Vec<Evaluation>,
    /// The last released version.
    pub federated: Evaluation,
    /// All features in one place.
    pub central: Evaluation,
}

impl Evaluations {
    /// Compares one figure.
    pub fn compare(&self, figure: impl Fn(&Evaluation) -> f64) -> Comparison {
        let local: Vec<f64> = self.local.iter().map(&figure).collect();
        Comparison {
            untrained: figure(&self.untrained),
            local_mean: local.iter().sum::<f64>() / local.len().max(1) as f64,
            local_worst: local.iter().copied().fold(f64::INFINITY, f64::min),
            federated: figure(&self.federated),
            central: figure(&self.central),
        }
    }
}

/// Bytes for each trained parameter, vehicle and round: topics and payloads of everything but heartbeats.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct BytesPerParameter {
    /// Vehicle to roadside unit: updates.
    pub up: f64,
    /// Roadside unit to vehicle: job, models, announcements, receipts.
    pub down: f64,
}

/// Wall time of each phase in seconds.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct PhaseSeconds {
    /// Splitting the pictures, features of held-back and test pictures.
    pub prepare: f64,
    /// From the start of the tiers until every vehicle has its features.
    pub features: f64,
    /// From then to the last version.
    pub federation: f64,
    /// Training alone and centrally, for comparison.
    pub baselines: f64,
}

/// The report; its JSON form is what `--format json` prints.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Always true: a demo that fails prints an error instead.
    pub success: bool,
    /// Seed of split, shuffling and initial head.
    pub seed: u64,
    /// How the pictures were split, such as `dirichlet:0.3`.
    pub partition: String,
    /// Vehicles that took part.
    pub vehicles: usize,
    /// Roadside units.
    pub roadside_units: usize,
    /// Merge rounds that ended with a version.
    pub rounds: u64,
    /// Versions made, the initial one not counted.
    pub versions: u64,
    /// Versions that the gate kept back.
    pub versions_kept_back: u64,
    /// Trained parameters.
    pub parameters: usize,
    /// Pictures of all vehicles.
    pub train_pictures: usize,
    /// Pictures that the figures are of.
    pub test_pictures: usize,
    /// Pictures that were left out, by all readers together.
    pub skipped_pictures: usize,
    /// Every sum was exact.
    pub exact: bool,
    /// Share of correct answers.
    pub accuracy: Comparison,
    /// Mean over the classes of the share found.
    pub macro_recall: Comparison,
    /// Traffic.
    pub bytes_per_parameter: BytesPerParameter,
    /// Share of receipts that arrived within the budget.
    pub within_budget_share: f64,
    /// The budget in milliseconds: from the encoded update to its receipt in hand.
    pub latency_budget_ms: u64,
    /// Receipts that vehicles got.
    pub receipts: u64,
    /// Updates that counted.
    pub updates_accepted: u64,
    /// Wall time of everything in seconds.
    pub wall_s: f64,
    /// Wall time of each phase in seconds.
    pub phases_s: PhaseSeconds,
}

impl Report {
    /// The table for people.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        let line = |text: &mut String, name: &str, c: fn(&Comparison) -> f64| {
            let _ = writeln!(
                text,
                "  {name:<28}{:>9.1} %{:>13.1} %",
                100.0 * c(&self.accuracy),
                100.0 * c(&self.macro_recall)
            );
        };
        let _ = writeln!(text, "  {:<28}{:>11}{:>15}", "", "accuracy", "macro recall");
        line(&mut text, "untrained head", |c| c.untrained);
        line(&mut text, "a vehicle alone, mean", |c| c.local_mean);
        line(&mut text, "a vehicle alone, worst", |c| c.local_worst);
        line(&mut text, "federated", |c| c.federated);
        line(&mut text, "central (pictures pooled)", |c| c.central);
        let bytes = self.bytes_per_parameter;
        let phases = self.phases_s;
        let _ = write!(
            text,
            "\n  {} vehicles at {} roadside units, {} pictures, split {}, seed {}; {} test pictures\n  \
             {} rounds, {} versions ({} kept back by the gate), {} updates counted, sums exact: {}\n  \
             bytes a parameter, round and vehicle: {:.2} up, {:.2} down (f32 both ways: 4 and 4)\n  \
             receipts within {} ms: {:.1} % of {}\n  \
             wall time: prepare {:.1} s, features {:.1} s, federation {:.1} s, baselines {:.1} s, all {:.1} s\n",
            self.vehicles,
            self.roadside_units,
            self.train_pictures,
            self.partition,
            self.seed,
            self.test_pictures,
            self.rounds,
            self.versions,
            self.versions_kept_back,
            self.updates_accepted,
            if self.exact { "yes" } else { "no" },
            bytes.up,
            bytes.down,
            self.latency_budget_ms,
            100.0 * self.within_budget_share,
            self.receipts,
            phases.prepare,
            phases.features,
            phases.federation,
            phases.baselines,
            self.wall_s,
        );
        text
    }
}
