//! What the study found: the curves, the table, and how a setting was chosen.

use super::{LocalOptions, Setting, VEHICLES};
use crate::study::local::Algorithm;
use serde::Serialize;
use std::fmt::Write as _;
use std::time::Duration;
use wayside_domain::head::Evaluation;

/// Rounds at the end that final figures are the mean of, so that one lucky round does not count.
const LAST: usize = 5;

/// One run, round by round.
#[derive(Clone, Debug, Serialize)]
pub struct Curve {
    /// Its seed.
    pub seed: u64,
    /// Accuracy on the test pictures after each round.
    pub accuracy: Vec<f64>,
    /// Mean over the classes of the share found, on the test pictures.
    pub macro_recall: Vec<f64>,
    /// Macro recall on the held-back pictures: what settings are chosen by.
    pub held_back: Vec<f64>,
    /// It ended early because a vehicle's loss grew beyond reason.
    pub diverged: bool,
    /// Bytes that one vehicle sends in a round.
    pub up_bytes: f64,
    /// Bytes that one vehicle fetches in a round.
    pub down_bytes: f64,
}

impl Curve {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            seed,
            accuracy: Vec::new(),
            macro_recall: Vec::new(),
            held_back: Vec::new(),
            diverged: false,
            up_bytes: 0.0,
            down_bytes: 0.0,
        }
    }

    pub(super) fn push(&mut self, test: &Evaluation, held_back: &Evaluation) {
        self.accuracy.push(test.accuracy);
        self.macro_recall.push(test.macro_recall);
        self.held_back.push(held_back.macro_recall);
    }

    /// The first round after which the accuracy was at least this, counted from 1.
    fn reaches(&self, accuracy: f64) -> Option<u64> {
        let at = self.accuracy.iter().position(|got| *got >= accuracy)?;
        Some(at as u64 + 1)
    }
}

/// One algorithm on one split with one effort, at the settings that did best on the held-back pictures.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Such as `classes:1`.
    pub partition: String,
    /// Local epochs in a round.
    pub effort: String,
    /// The algorithm's name.
    pub algorithm: &'static str,
    /// FedProx's mu.
    pub mu: Option<f32>,
    /// Local learning rate.
    pub lr: f32,
    /// Rounds until the test accuracy was 90 %, mean over the seeds; absent if a seed never got there.
    pub rounds_to_90: Option<f64>,
    /// The same for 94 %.
    pub rounds_to_94: Option<f64>,
    /// Mean of the last five rounds and the seeds.
    pub accuracy: f64,
    /// The worst seed's.
    pub accuracy_worst: f64,
    /// Mean over the classes of the share found, in the last five rounds.
    pub macro_recall: f64,
    /// Bytes of a vehicle and round, up and down, over those of FedAvg on the same split and effort.
    pub bytes: f64,
    /// Runs that diverged.
    pub diverged: usize,
    /// Every run at these settings.
    pub curves: Vec<Curve>,
}

/// The report; its JSON form is what `--format json` prints.
#[derive(Clone, Debug, Serialize)]
pub struct StudyReport {
    /// Always true: a study that fails prints an error instead.
    pub success: bool,
    /// What was compared.
    pub study: &'static str,
    /// Vehicles, all of them in every round.
    pub vehicles: usize,
    /// Rounds of a run.
    pub rounds: u64,
    /// Seeds of the runs.
    pub seeds: Vec<u64>,
    /// Split by split, effort by effort.
    pub rows: Vec<Row>,
    /// Wall time in seconds.
    pub wall_s: f64,
}

pub(super) fn report(
    options: &LocalOptions,
    grid: &[Setting],
    curves: Vec<Vec<Curve>>,
    wall: Duration,
) -> StudyReport {
    let mut rows: Vec<Row> = Vec::new();
    let mut scores: Vec<f64> = Vec::new();
    for (setting, curves) in grid.iter().zip(curves) {
        let score = score(&curves, options.rounds);
        let row = row(setting, curves);
        let same = |other: &Row| {
            (&other.partition, &other.effort, other.algorithm)
                == (&row.partition, &row.effort, row.algorithm)
        };
        match rows.iter().position(same) {
            Some(at) if score > scores[at] => (rows[at], scores[at]) = (row, score),
            Some(_) => {}
            None => {
                rows.push(row);
                scores.push(score);
            }
        }
    }
    // FedAvg comes first in each cell of the grid.
    let mut plain = 1.0;
    for row in &mut rows {
        if row.algorithm == Algorithm::FedAvg.name() {
            plain = row.bytes;
        }
        row.bytes /= plain;
    }
    StudyReport {
        success: true,
        study: "local",
        vehicles: VEHICLES,
        rounds: options.rounds,
        seeds: options.seeds.clone(),
        rows,
        wall_s: wall.as_secs_f64(),
    }
}

/// Mean over all rounds of the held-back macro recall, which rewards both speed and the end; a run that diverged counts
/// 0 from there.
fn score(curves: &[Curve], rounds: u64) -> f64 {
    let sum: f64 = curves.iter().flat_map(|curve| &curve.held_back).sum();
    sum / (curves.len().max(1) as u64 * rounds) as f64
}

/// The row of one setting; `bytes` is absolute still.
fn row(setting: &Setting, curves: Vec<Curve>) -> Row {
    let runs = curves.len().max(1) as f64;
    let last = |values: &[f64]| {
        let tail = &values[values.len().saturating_sub(LAST)..];
        tail.iter().sum::<f64>() / tail.len().max(1) as f64
    };
    let ends: Vec<f64> = curves.iter().map(|curve| last(&curve.accuracy)).collect();
    let rounds_to = |accuracy: f64| {
        let reached: Option<Vec<u64>> = curves.iter().map(|c| c.reaches(accuracy)).collect();
        reached.map(|rounds| rounds.iter().sum::<u64>() as f64 / runs)
    };
    Row {
        partition: setting.partition.to_string(),
        effort: setting.effort.name(),
        algorithm: setting.algorithm.name(),
        mu: match setting.algorithm {
            Algorithm::FedProx { mu } => Some(mu),
            _ => None,
        },
        lr: setting.lr,
        rounds_to_90: rounds_to(0.90),
        rounds_to_94: rounds_to(0.94),
        accuracy: ends.iter().sum::<f64>() / runs,
        accuracy_worst: ends.iter().copied().fold(f64::INFINITY, f64::min),
        macro_recall: curves.iter().map(|c| last(&c.macro_recall)).sum::<f64>() / runs,
        bytes: curves
            .iter()
            .map(|c| c.up_bytes + c.down_bytes)
            .sum::<f64>()
            / runs,
        diverged: curves.iter().filter(|curve| curve.diverged).count(),
        curves,
    }
}

impl StudyReport {
    /// The table for people.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        let mut under = (String::new(), String::new());
        for row in &self.rows {
            let place = (row.partition.clone(), row.effort.clone());
            if place != under {
                let _ = writeln!(
                    text,
                    "{}  {}, {}\n  {:<10}{:>6}{:>6}{:>8}{:>8}{:>11}{:>8}{:>14}{:>8}",
                    if text.is_empty() { "" } else { "\n" },
                    row.partition,
                    row.effort,
                    "",
                    "lr",
                    "mu",
                    "to 90%",
                    "to 94%",
                    "accuracy",
                    "worst",
                    "macro recall",
                    "bytes"
                );
                under = place;
            }
            let rounds = |rounds: Option<f64>| rounds.map_or("-".to_owned(), |r| format!("{r:.1}"));
            let _ = writeln!(
                text,
                "  {:<10}{:>6}{:>6}{:>8}{:>8}{:>9.1} %{:>6.1} %{:>12.1} %{:>7.2}x{}",
                row.algorithm,
                row.lr,
                row.mu.map_or(String::new(), |mu| mu.to_string()),
                rounds(row.rounds_to_90),
                rounds(row.rounds_to_94),
                100.0 * row.accuracy,
                100.0 * row.accuracy_worst,
                100.0 * row.macro_recall,
                row.bytes,
                if row.diverged > 0 { "  diverged" } else { "" },
            );
        }
        let _ = write!(
            text,
            "\n  {} vehicles, {} rounds, seeds {:?}; final figures are means of the last {LAST} rounds; learning rate and mu \
             by the held-back pictures\n  wall time {:.0} s\n",
            self.vehicles, self.rounds, self.seeds, self.wall_s
        );
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_reaches_what_it_reaches_first() {
        let mut curve = Curve::new(1);
        curve.accuracy = vec![0.5, 0.91, 0.89, 0.94];
        assert_eq!(curve.reaches(0.90), Some(2));
        assert_eq!(curve.reaches(0.94), Some(4));
        assert_eq!(curve.reaches(0.95), None);
    }
}
