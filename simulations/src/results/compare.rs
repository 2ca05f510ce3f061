//! Several runs side by side: runs of one name are the seeds of one group.
//!
//! What a run costs is compared at one accuracy, which all of them are asked for: versions, simulated time and bytes
//! until the first released version that has it.

use std::fmt::Write as _;

use serde::Serialize;

use super::format;
use super::record::{Point, RunRecord};

/// Columns of the table.
pub(super) const COLUMNS: [&str; 8] = [
    "name",
    "seeds",
    "accuracy",
    "versions",
    "time",
    "bytes",
    "fits/s",
    "model digest",
];

/// Mean and sample standard deviation of so many values.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// Mean.
    pub mean: f64,
    /// Sample standard deviation (divided by n - 1); 0 for one value.
    pub deviation: f64,
    /// Values.
    pub n: usize,
}

impl Spread {
    /// Of these values; `None` of nothing.
    pub fn of(values: &[f64]) -> Option<Self> {
        let n = values.len();
        if n == 0 {
            return None;
        }
        let mean = values.iter().sum::<f64>() / n as f64;
        let squares: f64 = values.iter().map(|v| (v - mean) * (v - mean)).sum();
        let deviation = (squares / n.saturating_sub(1).max(1) as f64).sqrt();
        Some(Self { mean, deviation, n })
    }
}

/// Runs of one name.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Group {
    /// Their name.
    pub name: String,
    /// Their seeds, in the order in which they were given.
    pub seeds: Vec<u64>,
    /// Accuracy at the end, 0 to 1; seeds without one do not count.
    pub accuracy: Option<Spread>,
    /// Versions until the target, over the seeds that reached it.
    pub versions_to_target: Option<Spread>,
    /// Simulated seconds until then.
    pub seconds_to_target: Option<Spread>,
    /// Bytes up and down until then.
    pub bytes_to_target: Option<Spread>,
    /// Local trainings per second of wall time.
    pub fits_per_s: Option<Spread>,
    /// Digest of each seed's model.
    pub model_digests: Vec<String>,
    /// Seeds that occur more than once, with different models: the simulator is not deterministic.
    pub seeds_that_differ: Vec<u64>,
}

/// The comparison of several runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// The accuracy that costs are compared at, 0 to 1; `None` if no run has any.
    pub target: Option<f64>,
    /// One for each name, in the order in which they were given.
    pub groups: Vec<Group>,
}

impl Comparison {
    /// Compares runs at the accuracy `target` (0 to 1), or else at the highest whole percent that each run which was
    /// tested at all reached.
    pub fn new(runs: &[RunRecord], target: Option<f64>) -> Self {
        let common = || {
            let lowest = runs
                .iter()
                .filter_map(RunRecord::best_accuracy)
                .reduce(f64::min);
            // The small amount is for 0.29, of which a hundred times is less than 29.
            lowest.map(|lowest| (100.0 * lowest + 1e-9).floor() / 100.0)
        };
        let target = target.or_else(common);
        let groups = by_name(runs)
            .into_iter()
            .map(|(name, runs)| Group::new(name, &runs, target))
            .collect();
        Self { target, groups }
    }

    /// The table for people, with a line of names.
    pub fn to_text(&self) -> String {
        let at = self.target.map_or_else(|| "-".to_owned(), format::percent);
        let mut rows = vec![COLUMNS.map(str::to_owned)];
        rows.extend(self.groups.iter().map(Group::cells));
        let mut text =
            format!("versions, simulated time and bytes are those to an accuracy of {at}\n\n");
        aligned(&mut text, &rows);
        for group in &self.groups {
            for seed in &group.seeds_that_differ {
                let _ = writeln!(
                    text,
                    "\n{}: runs of seed {seed} ended with different models",
                    group.name
                );
            }
        }
        text
    }
}

/// Runs of each name, in the order in which names first occur.
pub(super) fn by_name(runs: &[RunRecord]) -> Vec<(&str, Vec<&RunRecord>)> {
    let mut groups: Vec<(&str, Vec<&RunRecord>)> = Vec::new();
    for run in runs {
        match groups.iter_mut().find(|(name, _)| *name == run.name) {
            Some((_, members)) => members.push(run),
            None => groups.push((&run.name, vec![run])),
        }
    }
    groups
}

impl Group {
    fn new(name: &str, runs: &[&RunRecord], target: Option<f64>) -> Self {
        let spread = |figure: &dyn Fn(&RunRecord) -> Option<f64>| {
            let values: Vec<f64> = runs.iter().filter_map(|run| figure(run)).collect();
            Spread::of(&values)
        };
        let at_target = |figure: fn(&Point) -> f64| {
            spread(&|run| target.and_then(|target| run.reached(target)).map(figure))
        };
        let digest = |run: &RunRecord| run.summary.model_digest.clone();
        let mut differ: Vec<u64> = runs
            .iter()
            .enumerate()
            .filter(|(i, run)| {
                runs[..*i]
                    .iter()
                    .any(|other| other.seed == run.seed && digest(other) != digest(run))
            })
            .map(|(_, run)| run.seed)
            .collect();
        differ.sort_unstable();
        differ.dedup();
        Self {
            name: name.to_owned(),
            seeds: runs.iter().map(|run| run.seed).collect(),
            accuracy: spread(&|run| run.summary.accuracy),
            versions_to_target: at_target(|point| point.version as f64),
            seconds_to_target: at_target(|point| point.simulated_s),
            bytes_to_target: at_target(|point| point.bytes() as f64),
            fits_per_s: spread(&|run| Some(run.summary.fits_per_s)),
            model_digests: runs.iter().map(|run| digest(run)).collect(),
            seeds_that_differ: differ,
        }
    }

    /// The cells of its row in the table.
    pub(super) fn cells(&self) -> [String; 8] {
        let n = self.seeds.len();
        let cell = |spread: Option<Spread>, unit: &dyn Fn(f64) -> format::Unit| match spread {
            None => "-".to_owned(),
            Some(spread) => {
                let (name, size) = unit(spread.mean);
                let mut text = if spread.n > 1 {
                    format::spread(spread.mean / size, spread.deviation / size)
                } else {
                    format::number(spread.mean / size)
                };
                if !name.is_empty() {
                    let _ = write!(text, " {name}");
                }
                if spread.n < n {
                    let _ = write!(text, " ({} of {n})", spread.n);
                }
                text
            }
        };
        let seeds: Vec<String> = self.seeds.iter().map(u64::to_string).collect();
        let seeds = if n > 4 {
            format!("{}, .. ({n})", seeds[..3].join(", "))
        } else {
            seeds.join(", ")
        };
        let digest = match self.model_digests.as_slice() {
            [] => "-".to_owned(),
            [first, rest @ ..] if rest.iter().all(|digest| digest == first) => format::short(first),
            digests => format!("{} different", digests.len()),
        };
        [
            self.name.clone(),
            seeds,
            cell(self.accuracy, &|_| ("%", 0.01)),
            cell(self.versions_to_target, &|_| ("", 1.0)),
            cell(self.seconds_to_target, &format::time_unit),
            cell(self.bytes_to_target, &format::byte_unit),
            cell(self.fits_per_s, &|_| ("", 1.0)),
            digest,
        ]
    }
}

/// Columns as wide as their widest cell; names to the left, figures to the right.
fn aligned(text: &mut String, rows: &[[String; 8]]) {
    let width = |column: usize| {
        let widths = rows.iter().map(|row| row[column].chars().count());
        widths.max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..8).map(width).collect();
    for row in rows {
        let mut line = String::new();
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let _ = match column {
                0 | 1 | 7 => write!(line, "{cell:<width$}  "),
                _ => write!(line, "{cell:>width$}  "),
            };
        }
        let _ = writeln!(text, "{}", line.trim_end());
    }
}

/// The comparison as an aligned table, at the accuracy that all runs reached.
pub fn table(runs: &[RunRecord]) -> String {
    Comparison::new(runs, None).to_text()
}

/// The same as JSON, for programs: a [`Comparison`].
pub fn json(runs: &[RunRecord]) -> String {
    serde_json::to_string_pretty(&Comparison::new(runs, None))
        .expect("numbers, strings and lists can always be written as JSON")
}

#[cfg(test)]
mod tests {
    use super::super::record::Summary;
    use super::super::sample::record;
    use super::*;
    use proptest::prelude::*;

    fn run(name: &str, seed: u64, accuracies: &[f64]) -> RunRecord {
        let curve = accuracies.iter().zip(0..).map(|(accuracy, version)| Point {
            version,
            simulated_s: 60.0 * version as f64,
            accuracy: Some(*accuracy),
            up_bytes: 1000 * version,
            released: true,
            ..Point::default()
        });
        RunRecord {
            name: name.into(),
            seed,
            curve: curve.collect(),
            summary: Summary {
                accuracy: accuracies.last().copied(),
                fits_per_s: 100.0,
                model_digest: format!("{name}{seed}"),
                ..Summary::default()
            },
            ..RunRecord::default()
        }
    }

    #[test]
    fn costs_are_compared_at_the_highest_percent_that_all_reach() {
        let runs = [
            run("slow", 1, &[0.1, 0.2, 0.3, 0.4, 0.62]),
            run("fast", 1, &[0.1, 0.7]),
            run("fast", 2, &[0.1, 0.3, 0.29, 0.9]),
            run("untested", 1, &[]),
        ];
        let comparison = Comparison::new(&runs, None);
        assert_eq!(comparison.target, Some(0.62));
        let versions = |i: usize| comparison.groups[i].versions_to_target;
        assert_eq!(versions(0), Spread::of(&[4.0]));
        assert_eq!(versions(1), Spread::of(&[1.0, 3.0]));
        assert_eq!(versions(2), None);
        let asked = Comparison::new(&runs, Some(0.8));
        assert_eq!(asked.groups[1].versions_to_target, Spread::of(&[3.0]));
        assert!(asked.to_text().contains("(1 of 2)"));
        assert_eq!(
            Comparison::new(&[run("a", 1, &[0.29])], None).target,
            Some(0.29)
        );
    }

    #[test]
    fn the_table_is_aligned() {
        let text = table(&[
            run("a long name", 1, &[0.1, 0.6]),
            run("b", 1, &[0.1, 0.8]),
            run("b", 2, &[0.1, 0.9]),
        ]);
        let expected = "\
versions, simulated time and bytes are those to an accuracy of 60.0 %

name         seeds      accuracy     versions          time           bytes   fits/s  model digest
a long name  1              60 %            1          60 s            1 kB      100  a long name1
b            1, 2   85.0 ± 7.1 %  1.00 ± 0.00  60.0 ± 0.0 s  1.00 ± 0.00 kB  100 ± 0  2 different
";
        assert_eq!(text, expected);
    }

    #[test]
    fn one_seed_with_two_models_is_told() {
        let mut other = run("a", 1, &[0.5]);
        assert!(!table(&[other.clone(), other.clone()]).contains("different"));
        other.summary.model_digest = "else".into();
        let text = table(&[run("a", 1, &[0.5]), other]);
        assert!(text.contains("a: runs of seed 1 ended with different models"));
    }

    #[test]
    fn nothing_can_be_compared() {
        assert_eq!(Comparison::new(&[], None).groups, []);
        assert!(json(&[record(1), record(2)]).contains("\"target\""));
        assert!(json(&[run("untested", 1, &[])]).contains("\"target\": null"));
    }

    proptest! {
        #[test]
        fn a_spread_moves_with_its_values(values in prop::collection::vec(-1e3..1e3f64, 1..9), shift in -1e3..1e3f64) {
            let shifted: Vec<f64> = values.iter().map(|v| v + shift).collect();
            let (a, b) = (Spread::of(&values).unwrap(), Spread::of(&shifted).unwrap());
            prop_assert!((a.mean + shift - b.mean).abs() < 1e-9);
            prop_assert!((a.deviation - b.deviation).abs() < 1e-6);
        }
    }
}
