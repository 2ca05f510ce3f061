//! Which local algorithm makes up for skewed data: FedAvg, FedProx, FedNova and SCAFFOLD side by side.
//!
//! Every run is the product's own arithmetic (local training, fp16 deltas, exact sums, server optimizer) without its
//! transport. Each algorithm gets the same grid of learning rates, FedProx its mu beside; what does best on the pictures
//! that the cloud holds back is what the table shows, and the figures are of the test pictures.

mod fednova;
mod report;
mod run;
mod scaffold;

use super::fleet::Pictures;
use crate::partition::Partition;
pub use report::{Curve, Row, StudyReport};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Vehicles of the study.
pub const VEHICLES: usize = 10;
/// Learning rates that every algorithm may choose from.
pub const RATES: [f32; 4] = [0.01, 0.05, 0.2, 1.0];
/// What FedProx may choose from beside.
pub const MUS: [f32; 3] = [0.01, 0.1, 1.0];

/// What is asked for.
#[derive(Clone, Debug)]
pub struct LocalOptions {
    /// One run each: split, shuffling, first head.
    pub seeds: Vec<u64>,
    /// Rounds of a run, at least 1.
    pub rounds: u64,
    /// Folder with `train` and `test`, each with one sub-folder a class.
    pub data: PathBuf,
    /// The backbone's weights.
    pub weights: PathBuf,
}

/// What vehicles and cloud do beside plain steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Algorithm {
    /// The mean of the deltas.
    FedAvg,
    /// FedAvg with momentum 0.9 at the cloud, which the product has already.
    FedAvgM,
    /// Steps pulled back to the base.
    FedProx {
        /// Strength of the pull.
        mu: f32,
    },
    /// Deltas by direction, not by steps.
    FedNova,
    /// Control variates, option II.
    Scaffold,
}

impl Algorithm {
    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::FedAvg => "FedAvg",
            Self::FedAvgM => "FedAvgM",
            Self::FedProx { .. } => "FedProx",
            Self::FedNova => "FedNova",
            Self::Scaffold => "SCAFFOLD",
        }
    }
}

/// How much each vehicle trains in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalEffort {
    /// The same number of epochs everywhere.
    Epochs(u32),
    /// 1 to 20 epochs, drawn once for each vehicle: a slow one stays slow.
    Unequal,
}

impl LocalEffort {
    fn name(self) -> String {
        match self {
            Self::Epochs(1) => "1 epoch".to_owned(),
            Self::Epochs(epochs) => format!("{epochs} epochs"),
            Self::Unequal => "unequal, 1 to 20".to_owned(),
        }
    }
}

/// One run's place in the grid.
#[derive(Clone, Copy, Debug)]
struct Setting {
    partition: Partition,
    effort: LocalEffort,
    algorithm: Algorithm,
    lr: f32,
}

fn grid() -> Vec<Setting> {
    let splits = [
        Partition::Classes { each: 1 },
        Partition::Dirichlet { alpha: 0.1 },
    ];
    let efforts = [1, 5, 20].map(LocalEffort::Epochs);
    let efforts = [&efforts[..], &[LocalEffort::Unequal]].concat();
    let mut algorithms = vec![Algorithm::FedAvg, Algorithm::FedAvgM];
    algorithms.extend(MUS.map(|mu| Algorithm::FedProx { mu }));
    algorithms.extend([Algorithm::FedNova, Algorithm::Scaffold]);
    let mut grid = Vec::new();
    for partition in splits {
        for &effort in &efforts {
            for &algorithm in &algorithms {
                grid.extend(RATES.map(|lr| Setting {
                    partition,
                    effort,
                    algorithm,
                    lr,
                }));
            }
        }
    }
    grid
}

/// Runs the whole grid, on all CPUs; the result does not depend on how many there are.
///
/// # Errors
/// Pictures, weights or splits that cannot be used, or `cancel`. A run that diverges is a result, not an error.
pub fn run(options: &LocalOptions, cancel: &AtomicBool) -> anyhow::Result<StudyReport> {
    let began = Instant::now();
    let pictures = Pictures::extract(&options.data, &options.weights, cancel)?;
    let grid = grid();
    let mut tasks = Vec::new();
    for (index, setting) in grid.iter().enumerate() {
        tasks.extend(options.seeds.iter().map(|seed| (index, *setting, *seed)));
    }
    let (next, curves) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || -> anyhow::Result<()> {
        while let Some((index, setting, seed)) = tasks.get(next.fetch_add(1, Ordering::Relaxed)) {
            let fleet = pictures.fleet(VEHICLES, setting.partition, *seed)?;
            let curve = run::run(&fleet, setting, options.rounds, *seed, cancel)?;
            let mut curves = curves.lock().unwrap_or_else(PoisonError::into_inner);
            curves.push((*index, *seed, curve));
        }
        Ok(())
    };
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| {
            worker
                .join()
                .unwrap_or_else(|_| Err(anyhow::anyhow!("a worker of the study panicked")))
        })
    })?;
    let mut curves = curves.into_inner().unwrap_or_else(PoisonError::into_inner);
    curves.sort_by_key(|(index, seed, _)| (*index, *seed));
    let mut by_setting: Vec<Vec<Curve>> = vec![Vec::new(); grid.len()];
    for (index, _, curve) in curves {
        by_setting[index].push(curve);
    }
    Ok(report::report(options, &grid, by_setting, began.elapsed()))
}
