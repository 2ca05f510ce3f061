//! `job.toml` as it is written: one struct a section, defaults that work.

use serde::{Deserialize, Serialize};

/// A whole `job.toml`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct JobFile {
    /// Name of the job: letters, digits, `_` and `-`, 64 at most; not `fleet`.
    pub job: String,
    /// Network and head.
    pub model: Model,
    /// Work of a vehicle.
    #[serde(default)]
    pub training: Training,
    /// Rounds at a roadside unit.
    #[serde(default)]
    pub strategy: Strategy,
    /// The cloud's merge.
    #[serde(default)]
    pub merge: Merge,
    /// When the cloud merges.
    #[serde(default)]
    pub schedule: Schedule,
    /// The gate before release; without this section every version is released.
    #[serde(default)]
    pub evaluation: Option<Evaluation>,
}

/// `[model]`
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// Label `i` is `classes[i]`; 2 to 255 names.
    pub classes: Vec<String>,
    /// Height of an input picture in pixels. Default 128.
    #[serde(default = "input_height")]
    pub input_height: u32,
    /// Width of an input picture in pixels. Default 64.
    #[serde(default = "input_width")]
    pub input_width: u32,
    /// Safetensors file with `features` (F32 `[n, d]`) and `labels` (U8 `[n]`); mean and standard deviation of the
    /// features are taken from it.
    pub calibration: String,
    /// BLAKE3 of the backbone's weights file in hexadecimal. Default: as the calibration file says; if that does not
    /// say either, any backbone with the right number of features.
    #[serde(default)]
    pub backbone: Option<String>,
}

fn input_height() -> u32 {
    128
}

fn input_width() -> u32 {
    64
}

/// `[training]`
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Training {
    /// Learning rate, above 0. Default 0.05.
    pub lr: f32,
    /// Momentum, 0 to below 1. Default 0.9.
    pub momentum: f32,
    /// L2 penalty, 0 to 1. Default 0.0001.
    pub weight_decay: f32,
    /// Examples a step. Default 32.
    pub batch_size: u32,
    /// Passes over all examples in one round. Default 2, unless `local_steps` is given.
    pub local_epochs: Option<u32>,
    /// Steps of one batch in one round, instead of `local_epochs`.
    pub local_steps: Option<u32>,
    /// FedProx mu; 0 is plain FedAvg. Default 0.
    pub proximal_mu: f32,
    /// `none`, `inverse_root` or `inverse`, by the labels of `model.calibration`. Default `none`.
    pub class_weights: Weights,
    /// Shuffling and the first head are drawn from it. Default 1.
    pub seed: u64,
}

impl Default for Training {
    fn default() -> Self {
        Self {
            lr: 0.05,
            momentum: 0.9,
            weight_decay: 1e-4,
            batch_size: 32,
            local_epochs: None,
            local_steps: None,
            proximal_mu: 0.0,
            class_weights: Weights::None,
            seed: 1,
        }
    }
}

/// Balance between classes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Weights {
    /// Every example weighs the same.
    #[default]
    None,
    /// `1 / sqrt(n_c)`.
    InverseRoot,
    /// `1 / n_c`.
    Inverse,
}

/// `[strategy]`
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Strategy {
    /// Share of the vehicles that are there which a round wants updates of, above 0 to 1. Default 1.
    pub fraction_train: f64,
    /// No round with fewer vehicles. Default 2.
    pub min_vehicles: u32,
    /// Vehicles asked for each update wanted, 1 to 10. Default 1.3.
    pub over_selection: f64,
    /// Fewest accepted updates as a share of those wanted, above 0 to 1. Default 0.5.
    pub quorum: f64,
    /// A round ends after this many milliseconds at the latest. Default 60000.
    pub round_timeout_ms: u64,
    /// A round stays open at least this many milliseconds, so that fast vehicles do not crowd out slow ones. Default 0.
    pub min_window_ms: u64,
    /// Roadside rounds for each contribution to the cloud. Default 1.
    pub edge_rounds: u32,
    /// Most examples of one update. Default 100000.
    pub max_examples: u64,
    /// Largest L2 norm of one update's delta. Default 100.
    pub max_norm: f64,
    /// Times the median norm of the last merge; 0 switches the relative bound off. Default 0.
    pub max_norm_ratio: f64,
    /// Milliseconds from an update's first byte to its receipt that are within budget. Default 500.
    pub latency_budget_ms: u64,
}

impl Default for Strategy {
    fn default() -> Self {
        Self {
            fraction_train: 1.0,
            min_vehicles: 2,
            over_selection: 1.3,
            quorum: 0.5,
            round_timeout_ms: 60_000,
            min_window_ms: 0,
            edge_rounds: 1,
            max_examples: 100_000,
            max_norm: 100.0,
            max_norm_ratio: 0.0,
            latency_budget_ms: 500,
        }
    }
}

/// `[merge]`
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Merge {
    /// `none` or `momentum` (FedAvgM). Default `none`.
    pub server_optimizer: Optimizer,
    /// Step size on the mean delta, above 0 to 10. Default 1.
    pub server_lr: f64,
    /// Momentum of `momentum`, 0 to below 1. Default 0.9.
    pub server_momentum: f64,
    /// Fewest roadside units that may change the model, as a share of those asked, above 0 to 1. Default 0.5.
    pub quorum: f64,
    /// The job begins once so many roadside units are connected. Default 1.
    pub min_roadsides: u32,
}

impl Default for Merge {
    fn default() -> Self {
        Self {
            server_optimizer: Optimizer::None,
            server_lr: 1.0,
            server_momentum: 0.9,
            quorum: 0.5,
            min_roadsides: 1,
        }
    }
}

/// How a mean delta moves the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Optimizer {
    /// The mean delta times `server_lr`.
    #[default]
    None,
    /// FedAvgM.
    Momentum,
}

/// `[schedule]`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Schedule {
    /// Milliseconds of one merge window, by the wall clock. Default 86400000 (24 h).
    pub period_ms: u64,
    /// Merge as soon as every roadside unit that was asked has contributed. Default false.
    pub merge_when_complete: bool,
    /// Versions after which the job is finished; 0: no end. Default 0.
    pub merges: u64,
}

impl Default for Schedule {
    fn default() -> Self {
        Self {
            period_ms: 86_400_000,
            merge_when_complete: false,
            merges: 0,
        }
    }
}

/// `[evaluation]`
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Evaluation {
    /// Held-back set, the same kind of file as `model.calibration`.
    pub features: String,
    /// A version whose accuracy is more than this below the released version's is not released, 0 to 1. Default 0.02.
    #[serde(default = "max_regression")]
    pub max_regression: f64,
}

fn max_regression() -> f64 {
    0.02
}
