//! From what is written to a city: reads the data, deals it out, makes the job and the world.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use cloud_coordinator::job::{self, Definition, Features, JobFileError};
use wayside_domain::head::LinearHead;
use wayside_domain::network::Network;
use wayside_domain::time::Timestamp;
use wayside_domain::train::Learner;
use wayside_host::config::{self, ConfigError};
use wayside_host::exit::{Exit, Failure};

use super::file::{DataKind, FaultKind, Job, ScenarioFile, Tiers};
use crate::baseline::Examples;
use crate::data::{Assignment, DataSet, Mixture, deal, synthetic, windows};
use crate::engine::env::{self, Env};
use crate::engine::event::{Actor, Millis, millis};
use crate::engine::{City, Fault};
use crate::partition::{Partition, hold_back, split};
use crate::study::fleet::Pictures;
use crate::world::{World, WorldError};

/// Time 0 of every simulation: midnight of 1 January 2026, UTC.
const EPOCH: Timestamp = Timestamp(1_767_225_600_000);

/// Why a scenario cannot be run, with a remedy.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// Not TOML, an unknown key or a wrong type.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The world cannot be.
    #[error("world.{0}: choose an allowed value")]
    World(WorldError),
    /// The job cannot be.
    #[error(transparent)]
    Job(#[from] JobFileError),
    /// The data cannot be used.
    #[error("data: {0}")]
    Data(String),
    /// A file cannot be read.
    #[error("{}: {source}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}

impl From<WorldError> for ScenarioError {
    fn from(error: WorldError) -> Self {
        Self::World(error)
    }
}

impl From<ScenarioError> for Failure {
    fn from(error: ScenarioError) -> Self {
        match error {
            ScenarioError::Config(error) => error.into(),
            ScenarioError::World(_) => Self::new(Exit::ConfigOutOfRange, error),
            ScenarioError::Job(error) => error.into(),
            ScenarioError::Data(_) => Self::new(Exit::Pictures, error),
            ScenarioError::File { .. } => Self::new(Exit::ConfigUnreadable, error),
        }
    }
}

/// A scenario that was read and checked.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// As it is written, overrides applied.
    pub file: ScenarioFile,
    /// Its text.
    pub text: String,
    /// Folder that relative paths start from.
    base: PathBuf,
}

impl Scenario {
    /// Reads a scenario; `overrides` are `key=value` with dotted keys.
    ///
    /// # Errors
    /// [`ScenarioError`] names file, key and remedy.
    pub fn read(path: &Path, overrides: &[String]) -> Result<Self, ScenarioError> {
        let text = std::fs::read_to_string(path).map_err(|source| ScenarioError::File {
            path: path.to_owned(),
            source,
        })?;
        let file: ScenarioFile = config::load(Some(path), overrides, std::iter::empty())?;
        let base = path.parent().map(Path::to_owned).unwrap_or_default();
        let scenario = Self { file, text, base };
        scenario.check()?;
        Ok(scenario)
    }

    fn check(&self) -> Result<(), ConfigError> {
        let file = &self.file;
        let range = |key: &str, fits: bool, got: String, allowed: &str| {
            if fits {
                return Ok(());
            }
            let message = format!("is {got}, expected {allowed}");
            Err(ConfigError::out_of_range(key, &message))
        };
        let share = |value: f64| (0.0..=1.0).contains(&value);
        range(
            "vehicles",
            (1..=10_000_000).contains(&file.vehicles),
            file.vehicles.to_string(),
            "1 to 10000000",
        )?;
        range(
            "units",
            (1..=10_000).contains(&file.units),
            file.units.to_string(),
            "1 to 10000",
        )?;
        range(
            "hours",
            file.hours > 0.0 && file.hours <= 100_000.0,
            file.hours.to_string(),
            "above 0 to 100000",
        )?;
        let tiers = &file.tiers;
        range(
            "tiers.heartbeat_s",
            (0.1..=86_400.0).contains(&tiers.heartbeat_s),
            tiers.heartbeat_s.to_string(),
            "0.1 to 86400",
        )?;
        range(
            "tiers.keepalive_s",
            (0.1..=86_400.0).contains(&tiers.keepalive_s),
            tiers.keepalive_s.to_string(),
            "0.1 to 86400",
        )?;
        range(
            "tiers.step_ms",
            (0.0..=1e9).contains(&tiers.step_ms),
            tiers.step_ms.to_string(),
            "0 to 1000000000",
        )?;
        range(
            "tiers.chunk_bytes",
            (256..=1_048_576).contains(&tiers.chunk_bytes),
            tiers.chunk_bytes.to_string(),
            "256 to 1048576",
        )?;
        range(
            "tiers.backhaul_ms",
            (1..=3_600_000).contains(&tiers.backhaul_ms),
            tiers.backhaul_ms.to_string(),
            "1 to 3600000",
        )?;
        range(
            "tiers.backhaul_mbit_s",
            tiers.backhaul_mbit_s > 0.0 && tiers.backhaul_mbit_s.is_finite(),
            tiers.backhaul_mbit_s.to_string(),
            "above 0",
        )?;
        let data = &file.data;
        range(
            "data.classes",
            (2..=255).contains(&data.classes),
            data.classes.to_string(),
            "2 to 255",
        )?;
        range(
            "data.features",
            (1..=65_536).contains(&data.features),
            data.features.to_string(),
            "1 to 65536",
        )?;
        let most = 10_000_000;
        range(
            "data.train_examples and test_examples",
            (1..=most).contains(&data.train_examples) && (1..=most).contains(&data.test_examples),
            format!("{} and {}", data.train_examples, data.test_examples),
            "1 to 10000000",
        )?;
        range(
            "data.distance",
            (0.0..=1000.0).contains(&data.distance),
            data.distance.to_string(),
            "0 to 1000",
        )?;
        range(
            "data.held_back",
            file.data.held_back > 0.0 && file.data.held_back < 1.0,
            file.data.held_back.to_string(),
            "above 0, below 1",
        )?;
        if let Some(attack) = file.attack {
            let got = attack.share.to_string();
            range("attack.share", share(attack.share), got, "0 to 1")?;
        }
        for fault in &file.faults {
            let fits = fault.at_h >= 0.0 && fault.for_h > 0.0 && fault.at_h.is_finite();
            let got = format!("at {} for {}", fault.at_h, fault.for_h);
            range("faults.at_h and for_h", fits, got, "0 or more, above 0")?;
            let units = fault.units.iter().flatten();
            for unit in units {
                let fits = *unit < file.units;
                range(
                    "faults.units",
                    fits,
                    unit.to_string(),
                    "indexes below `units`",
                )?;
            }
        }
        Ok(())
    }

    /// When it ends at the latest.
    pub fn ends(&self) -> Millis {
        millis(self.file.hours * 3_600_000.0)
    }

    /// Makes the city of one seed. `threads` work on it; `cancel` ends it early.
    ///
    /// # Errors
    /// [`ScenarioError`] inside an [`anyhow::Error`], or what reading pictures says.
    pub fn city(
        &self,
        seed: u64,
        threads: usize,
        cancel: &Arc<AtomicBool>,
    ) -> anyhow::Result<City> {
        let env = Arc::new(self.env(seed, cancel)?);
        City::new(env, &self.faults(), self.file.evaluate_every, threads)
    }

    fn env(&self, seed: u64, cancel: &Arc<AtomicBool>) -> anyhow::Result<Env> {
        let file = &self.file;
        let world = World::new(
            &file.world,
            seed,
            file.vehicles,
            file.units,
            Some(&self.base),
        )
        .map_err(ScenarioError::from)?;
        let (train, test) = self.data(seed, cancel)?;
        let classes = train.classes.len();
        let (aside, left) = hold_back(&train.labels, classes, file.data.held_back, seed);
        let held_back = train.select(&aside);
        let (rest, shares) = self.deal(train.select(&left), seed)?;
        let job_toml = self.job_text(&train.classes, seed)?;
        let network = job::parse(&job_toml)
            .map_err(ScenarioError::from)?
            .1
            .model
            .network;
        let network = Network::parse(&network).unwrap_or_default();
        let learner: Arc<dyn Learner> = match network {
            Network::LinearHead => Arc::new(LinearHead {
                features: train.features.ncols(),
                classes,
            }),
            other => anyhow::bail!("no training for {}", other.label()),
        };
        let features = |set: &DataSet| Features {
            values: set.features.clone(),
            labels: set.labels.clone(),
            backbone: None,
        };
        let gate = job::parse(&job_toml)
            .map_err(ScenarioError::from)?
            .1
            .evaluation
            .is_some();
        let definition: Definition = job::assemble(
            &job_toml,
            features(&held_back),
            gate.then(|| features(&held_back)),
            Some(Arc::clone(&learner)),
        )
        .map_err(ScenarioError::from)?;
        let standardise = |mut set: DataSet| {
            definition
                .spec
                .model
                .standardisation
                .apply(set.features.view_mut());
            set
        };
        let (rest, test) = (standardise(rest), standardise(test));
        let examples = env::Examples {
            features: rest.features,
            labels: rest.labels,
            shares,
            test: (test.features, test.labels),
        };
        let mut env = Env::new(
            EPOCH,
            seed,
            world,
            file.vehicles,
            file.units,
            definition,
            learner,
            examples,
            tiers(&file.tiers),
        )?;
        env.attack = file.attack.map(|attack| (attack.kind, attack.share));
        env.eager = file.tiers.eager;
        env.cancel = Arc::clone(cancel);
        Ok(env)
    }

    /// What vehicles and cloud share among them, and what nobody trains on.
    fn data(&self, seed: u64, cancel: &AtomicBool) -> anyhow::Result<(DataSet, DataSet)> {
        let data = &self.file.data;
        match data.kind {
            DataKind::Pictures => {
                let path = |named: &Option<PathBuf>, shipped: fn() -> PathBuf| match named {
                    Some(path) => self.base.join(path),
                    None => shipped(),
                };
                let folder = path(&data.folder, crate::shipped::pictures);
                let weights = path(&data.weights, crate::shipped::weights);
                let pictures = Pictures::extract(&folder, &weights, cancel)?;
                let set = |examples: Examples| DataSet {
                    features: examples.features,
                    labels: examples.labels,
                    classes: pictures.classes.clone(),
                };
                Ok((set(pictures.train), set(pictures.test)))
            }
            DataKind::Synthetic => {
                let mixture = Mixture {
                    classes: data.classes as usize,
                    features: data.features as usize,
                    distance: data.distance,
                    seed,
                };
                let train = synthetic(&mixture, data.train_examples as usize, 0);
                Ok((train, synthetic(&mixture, data.test_examples as usize, 1)))
            }
        }
    }

    /// The examples in the order in which vehicles have them, and who has which.
    fn deal(&self, rest: DataSet, seed: u64) -> anyhow::Result<(DataSet, Assignment)> {
        let data = &self.file.data;
        if data.rows > 0 {
            let shares = windows(&rest, data.rows, seed);
            return Ok((rest, shares));
        }
        let partition: Partition = data.partition.parse()?;
        let vehicles = self.file.vehicles as usize;
        let parts = split(&rest.labels, rest.classes.len(), vehicles, partition, seed)?;
        Ok(deal(&rest, &parts))
    }

    /// The job's text, with what the data say filled in.
    fn job_text(&self, classes: &[String], seed: u64) -> Result<String, ScenarioError> {
        let table = match &self.file.job {
            Job::Path(path) => {
                let path = self.base.join(path);
                return std::fs::read_to_string(&path)
                    .map_err(|source| ScenarioError::File { path, source });
            }
            Job::Table(table) => table,
        };
        let mut table = table.clone();
        table
            .entry("job")
            .or_insert_with(|| toml::Value::String("simulation".to_owned()));
        let model = table
            .entry("model")
            .or_insert_with(|| toml::Value::Table(toml::Table::new()));
        if let Some(model) = model.as_table_mut() {
            model.entry("classes").or_insert_with(|| {
                let names = classes.iter().cloned().map(toml::Value::String);
                toml::Value::Array(names.collect())
            });
            model
                .entry("calibration")
                .or_insert_with(|| toml::Value::String("held back".to_owned()));
        }
        let training = table
            .entry("training")
            .or_insert_with(|| toml::Value::Table(toml::Table::new()));
        if let Some(training) = training.as_table_mut() {
            let seed = i64::try_from(seed).unwrap_or(i64::MAX);
            training.entry("seed").or_insert(toml::Value::Integer(seed));
        }
        Ok(table.to_string())
    }

    fn faults(&self) -> Vec<Fault> {
        let mut all = Vec::new();
        for fault in &self.file.faults {
            let from = millis(fault.at_h * 3_600_000.0);
            let until = from + millis(fault.for_h * 3_600_000.0).max(1);
            let units = fault.units.clone();
            let units = units.unwrap_or_else(|| (0..self.file.units).collect());
            let actors: Vec<Actor> = match fault.kind {
                FaultKind::CloudOutage => vec![Actor::Cloud],
                _ => units.into_iter().map(Actor::Unit).collect(),
            };
            let power = fault.kind != FaultKind::BackhaulOutage;
            for to in actors {
                for (at, on) in [(from, false), (until, true)] {
                    all.push(Fault { at, to, power, on });
                }
            }
        }
        all
    }
}

fn tiers(file: &Tiers) -> env::Tiers {
    env::Tiers {
        heartbeat: Duration::from_millis(millis(file.heartbeat_s * 1000.0)),
        misses: file.misses,
        keepalive_ms: millis(file.keepalive_s * 1000.0),
        resend_after: Duration::from_millis(file.resend_after_ms),
        settle: Duration::from_millis(file.settle_ms),
        chunk_bytes: file.chunk_bytes,
        step_ms: file.step_ms,
        features_ms: file.features_ms,
        flush_ms: file.flush_ms,
        restart_ms: file.restart_ms,
        spread_ms: millis(file.spread_s * 1000.0),
        backhaul_ms: file.backhaul_ms,
        backhaul_bytes_per_ms: millis(file.backhaul_mbit_s * 125.0).max(1),
    }
}
