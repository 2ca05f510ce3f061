//! A scenario as it is written: one struct a section, defaults that work.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::engine::env::Attack;
use crate::world::WorldSpec;

/// A whole scenario.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ScenarioFile {
    /// Its name, in reports.
    pub name: String,
    /// Everything random is drawn from it. Default 1.
    #[serde(default = "one")]
    pub seed: u64,
    /// Vehicles, 1 to 10 million.
    pub vehicles: u32,
    /// Roadside units, 1 to 10 thousand. Default 1.
    #[serde(default = "one_unit")]
    pub units: u32,
    /// It ends after so many hours of simulated time, or as soon as the job is finished. Default 24.
    #[serde(default = "a_day")]
    pub hours: f64,
    /// The job: the path of a `job.toml`, or the same as a table. In a table, `classes` and `calibration` may be left
    /// out: they are those of the data.
    pub job: Job,
    /// The examples, and who has which.
    pub data: Data,
    /// Roads, coverage, mobility, links, power.
    #[serde(default)]
    pub world: WorldSpec,
    /// How the tiers are set up, as far as the job does not say.
    #[serde(default)]
    pub tiers: Tiers,
    /// Hostile vehicles; default none.
    #[serde(default)]
    pub attack: Option<AttackSpec>,
    /// What breaks; default nothing.
    #[serde(default)]
    pub faults: Vec<FaultSpec>,
    /// How energy is accounted for.
    #[serde(default)]
    pub energy: Energy,
    /// Every version is tested whose number is a multiple of this; the last one always is. Default 1.
    #[serde(default = "one")]
    pub evaluate_every: u64,
    /// What must come out; checked at the end.
    #[serde(default)]
    pub expect: Expect,
}

fn one() -> u64 {
    1
}

fn one_unit() -> u32 {
    1
}

fn a_day() -> f64 {
    24.0
}

/// Where the job is.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(untagged)]
pub enum Job {
    /// A file, relative to the scenario's folder.
    Path(PathBuf),
    /// The same as a table.
    Table(toml::Table),
}

/// `[data]`
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Data {
    /// `pictures` or `synthetic`. Default `pictures`.
    pub kind: DataKind,
    /// Folder of pictures: `train/CLASS/*.jpg` and `test/CLASS/*.jpg`, relative to the scenario. Default: the traffic
    /// lights of this project.
    pub folder: Option<PathBuf>,
    /// Weights of the extractor, for pictures. Default: those of this project.
    pub weights: Option<PathBuf>,
    /// `iid`, `dirichlet:ALPHA` or `classes:N`. Default `dirichlet:0.5`.
    pub partition: String,
    /// For fleets larger than the data: examples of a vehicle, a window of the shuffled set that others may have too. 0:
    /// all examples are dealt out by `partition`, each once. Default 0.
    pub rows: u32,
    /// Classes of synthetic data. Default 10.
    pub classes: u32,
    /// Features of a synthetic example. Default 64.
    pub features: u32,
    /// Synthetic examples to train on. Default 10000.
    pub train_examples: u32,
    /// Synthetic examples to test on. Default 2000.
    pub test_examples: u32,
    /// Mean distance of two synthetic classes in standard deviations. Default 6.
    pub distance: f64,
    /// Share of the examples that the cloud holds back for its gate and its statistics. Default 0.1.
    pub held_back: f64,
}

impl Default for Data {
    fn default() -> Self {
        Self {
            kind: DataKind::Pictures,
            folder: None,
            weights: None,
            partition: "dirichlet:0.5".to_owned(),
            rows: 0,
            classes: 10,
            features: 64,
            train_examples: 10_000,
            test_examples: 2000,
            distance: 6.0,
            held_back: 0.1,
        }
    }
}

/// What the examples are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DataKind {
    /// One folder a class, through the extractor.
    Pictures,
    /// Drawn from the seed.
    Synthetic,
}

/// `[tiers]`
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tiers {
    /// Seconds between heartbeats. Default 30.
    pub heartbeat_s: f64,
    /// Heartbeats that must fail to come before a vehicle is lost. Default 3.
    pub misses: u32,
    /// Seconds of keep-alive of a connection. Default 30.
    pub keepalive_s: f64,
    /// First wait for a receipt in milliseconds. Default 5000.
    pub resend_after_ms: u64,
    /// How long a round waits for further vehicles in milliseconds. Default 1000.
    pub settle_ms: u64,
    /// Bytes of one chunk of a model or an update. Default 65536.
    pub chunk_bytes: usize,
    /// Milliseconds of one training step at speed 1. Default 5.
    pub step_ms: f64,
    /// Milliseconds until a vehicle has the features of its pictures. Default 1.
    pub features_ms: u64,
    /// Milliseconds to make something durable. Default 5.
    pub flush_ms: u64,
    /// Milliseconds that a vehicle's process takes to start. Default 500.
    pub restart_ms: u64,
    /// Seconds over which vehicles come up at the beginning. Default 10.
    pub spread_s: f64,
    /// Milliseconds from a roadside unit to the cloud. Default 25.
    pub backhaul_ms: u64,
    /// Rate of that line in Mbit/s. Default 100.
    pub backhaul_mbit_s: f64,
    /// Deliver to every vehicle also what none would act on. Slow, and gives the same models. Default false.
    pub eager: bool,
}

impl Default for Tiers {
    fn default() -> Self {
        Self {
            heartbeat_s: 30.0,
            misses: 3,
            keepalive_s: 30.0,
            resend_after_ms: 5000,
            settle_ms: 1000,
            chunk_bytes: 65_536,
            step_ms: 5.0,
            features_ms: 1,
            flush_ms: 5,
            restart_ms: 500,
            spread_s: 10.0,
            backhaul_ms: 25,
            backhaul_mbit_s: 100.0,
            eager: false,
        }
    }
}

/// `[attack]`
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct AttackSpec {
    /// `sign_flip`, `scaling`, `label_flip` or `nan`.
    pub kind: Attack,
    /// Share of the vehicles that are hostile, 0 to 1.
    pub share: f64,
}

/// `[[faults]]`
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct FaultSpec {
    /// `roadside_outage`, `cloud_outage` or `backhaul_outage`.
    pub kind: FaultKind,
    /// Which roadside units, by index; default all.
    #[serde(default)]
    pub units: Option<Vec<u32>>,
    /// When it begins, in hours.
    pub at_h: f64,
    /// How long it lasts, in hours.
    pub for_h: f64,
}

/// What breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultKind {
    /// Roadside units lose power as if they crashed.
    RoadsideOutage,
    /// The cloud is away.
    CloudOutage,
    /// The line between units and the cloud.
    BackhaulOutage,
}

/// `[energy]`
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Energy {
    /// Watts of a vehicle's computer while it trains. Default 10.
    pub train_w: f64,
    /// Joules of a megabyte over a vehicle's link. Default 5.
    pub megabyte_j: f64,
}

impl Default for Energy {
    fn default() -> Self {
        Self {
            train_w: 10.0,
            megabyte_j: 5.0,
        }
    }
}

impl Energy {
    /// Joules of so many milliseconds of training and bytes over links.
    pub fn joules(&self, trained_ms: u64, bytes: u64) -> f64 {
        self.train_w * trained_ms as f64 / 1000.0 + self.megabyte_j * bytes as f64 / 1e6
    }
}

/// `[expect]`: each line that is there must hold at the end. Violations of invariants never hold.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Expect {
    /// Test accuracy of the last version, at least.
    pub accuracy: Option<f64>,
    /// The same, at most: for what must not work.
    pub accuracy_below: Option<f64>,
    /// Versions that were made, at least.
    pub versions: Option<u64>,
    /// Rounds with a result, at least.
    pub rounds: Option<u64>,
    /// Updates that count, at least.
    pub accepted: Option<u64>,
    /// Updates that were refused, at least.
    pub refused: Option<u64>,
    /// Updates that came too late, at least.
    pub stale: Option<u64>,
    /// Handovers, at least.
    pub handovers: Option<u64>,
    /// Processes that ended without warning, at least.
    pub crashes: Option<u64>,
    /// Connections that broke, at least.
    pub disconnects: Option<u64>,
    /// Share of receipts within the latency budget, at least.
    pub within_budget: Option<f64>,
    /// The job must be finished before the hours are over.
    pub finished: Option<bool>,
    /// Every sum was exact.
    pub exact: Option<bool>,
}
