//! What hostile vehicles can do to a model, by rule: accuracy with and without them.
//!
//! Every run is the product's own: local training, encoded frames, the guard of a round, the rule over frames, the
//! server optimizer, the released model as its frame decodes to. Only the transport is left out.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use anyhow::Context as _;
use serde::Serialize;
use wayside_domain::aggregate::RuleSpec;
use wayside_domain::encoding::UpdateEncoding;

use super::course::{Course, Hostile};
use super::fleet::Pictures;
use crate::partition::Partition;

/// Vehicles of the study.
pub const VEHICLES: usize = 10;
/// How many of them are hostile.
pub const HOSTILE: usize = 2;
/// How the pictures are split.
const PARTITION: Partition = Partition::Dirichlet { alpha: 1.0 };

/// What is asked for.
#[derive(Clone, Debug)]
pub struct AttackOptions {
    /// One run each: split, shuffling, first head.
    pub seeds: Vec<u64>,
    /// Rounds of a run, at least 1.
    pub rounds: u64,
    /// Folder with `train` and `test`, each with one sub-folder a class.
    pub data: PathBuf,
    /// The backbone's weights.
    pub weights: PathBuf,
}

/// Accuracy of one rule, mean over the seeds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RuleRow {
    /// The rule.
    pub rule: String,
    /// Test accuracy without hostile vehicles.
    pub clean: f64,
    /// Test accuracy by attack.
    pub under_attack: BTreeMap<&'static str, f64>,
    /// The largest loss against `clean` in any run of any attack.
    pub worst_loss: f64,
    /// Updates of all vehicles that the guard refused, by attack; its relative bound meets honest ones too.
    pub refused: BTreeMap<&'static str, u64>,
}

/// What the study found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AttackReport {
    /// Always true; errors have another shape.
    pub success: bool,
    /// Seeds of the runs.
    pub seeds: Vec<u64>,
    /// Rounds of a run.
    pub rounds: u64,
    /// Vehicles, hostile ones included.
    pub vehicles: usize,
    /// Hostile ones.
    pub hostile: usize,
    /// How the pictures were split.
    pub partition: String,
    /// One row a rule.
    pub rows: Vec<RuleRow>,
}

/// The rules that are compared; two of ten may be bad.
fn rules() -> Vec<RuleSpec> {
    vec![
        RuleSpec::named("fedavg"),
        RuleSpec::named("fedavg-clipped"),
        RuleSpec::named("median"),
        RuleSpec::named("trimmed-mean"),
        RuleSpec::named("krum").with("num_malicious", 2.0),
        RuleSpec::named("multi-krum").with("num_malicious", 2.0),
        RuleSpec::named("centered-clipping"),
        RuleSpec::named("geometric-median"),
    ]
}

/// Runs every rule without and under every attack.
///
/// # Errors
/// Pictures or weights that cannot be read, or `cancel`.
pub fn run(options: &AttackOptions, cancel: &AtomicBool) -> anyhow::Result<AttackReport> {
    let pictures = Pictures::extract(&options.data, &options.weights, cancel)?;
    let mut fleets = Vec::new();
    for seed in &options.seeds {
        fleets.push(pictures.fleet(VEHICLES, PARTITION, *seed)?);
    }
    let attacks: Vec<Option<Hostile>> = std::iter::once(None)
        .chain(Hostile::ALL.map(Some))
        .collect();
    let rules = rules();
    let mut work = Vec::new();
    for rule in 0..rules.len() {
        for attack in &attacks {
            work.extend((0..fleets.len()).map(|fleet| (rule, *attack, fleet)));
        }
    }
    let (next, all) = (AtomicUsize::new(0), work.len());
    let found = Mutex::new((0..all).map(|_| None).collect::<Vec<_>>());
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some((rule, attack, fleet)) = work.get(at).copied() else {
                        return;
                    };
                    let course = Course {
                        fleet: &fleets[fleet],
                        seed: options.seeds[fleet],
                        rounds: options.rounds,
                        rule: &rules[rule],
                        encoding: UpdateEncoding::Fp16,
                        topk_fraction: 0.01,
                        feeds_back: false,
                        hostile: attack.map(|attack| (attack, HOSTILE)),
                    };
                    let outcome = course.run(cancel);
                    let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
                    found[at] = Some(outcome);
                }
            });
        }
    });
    let found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    let mut outcomes = Vec::new();
    for outcome in found {
        outcomes.push(outcome.context("a run is missing")??);
    }
    let runs = fleets.len();
    let rows = rules.iter().zip(outcomes.chunks(attacks.len() * runs));
    let rows = rows.map(|(rule, outcomes)| {
        let mean = |outcomes: &[super::course::Outcome]| {
            outcomes.iter().map(|o| o.accuracy).sum::<f64>() / runs as f64
        };
        let (clean, attacked) = outcomes.split_at(runs);
        let mut row = RuleRow {
            rule: rule.name.clone(),
            clean: mean(clean),
            under_attack: BTreeMap::new(),
            worst_loss: f64::NEG_INFINITY,
            refused: BTreeMap::new(),
        };
        for (attack, outcomes) in Hostile::ALL.iter().zip(attacked.chunks(runs)) {
            row.under_attack.insert(attack.label(), mean(outcomes));
            let refused = outcomes.iter().map(|o| o.refused).sum();
            row.refused.insert(attack.label(), refused);
            for (outcome, clean) in outcomes.iter().zip(clean) {
                row.worst_loss = row.worst_loss.max(clean.accuracy - outcome.accuracy);
            }
        }
        row
    });
    Ok(AttackReport {
        success: true,
        seeds: options.seeds.clone(),
        rounds: options.rounds,
        vehicles: VEHICLES,
        hostile: HOSTILE,
        partition: PARTITION.to_string(),
        rows: rows.collect(),
    })
}

impl AttackReport {
    /// The table for people: accuracies in percent, losses in points.
    pub fn to_text(&self) -> String {
        let mut text = format!(
            "{} of {} vehicles hostile, {}, {} rounds, seeds {:?}; test accuracy in percent\n\n{:<18}{:>7}",
            self.hostile, self.vehicles, self.partition, self.rounds, self.seeds, "rule", "clean"
        );
        for attack in Hostile::ALL {
            let _ = write!(text, "{:>13}", attack.label());
        }
        text.push_str("   worst loss\n");
        for row in &self.rows {
            let _ = write!(text, "{:<18}{:>7.1}", row.rule, 100.0 * row.clean);
            for accuracy in Hostile::ALL.iter().map(|a| row.under_attack[a.label()]) {
                let _ = write!(text, "{:>13.1}", 100.0 * accuracy);
            }
            let _ = writeln!(text, "{:>13.1}", 100.0 * row.worst_loss);
        }
        text
    }
}
