//! `job.toml` as it is written: one struct a section, defaults that work.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use wayside_domain::aggregate::RuleSpec;
use wayside_domain::network::Network;

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
    /// How updates are written.
    #[serde(default)]
    pub codec: Codec,
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
    /// `linear-head`; `two-nn` and `lenet` are trained whole and for simulations only. Default `linear-head`.
    #[serde(default = "network")]
    pub network: String,
    /// Safetensors file with `features` (F32 `[n, d]`) and `labels` (U8 `[n]`); mean and standard deviation of the
    /// features are taken from it.
    pub calibration: String,
    /// BLAKE3 of the backbone's weights file in hexadecimal. Default: as the calibration file says; if that does not
    /// say either, any backbone with the right number of features.
    #[serde(default)]
    pub backbone: Option<String>,
    /// Tensors of the head that each vehicle trains and keeps for itself, of `head-weight` and `head-bias`; they are in
    /// no model and no update. Default: none.
    #[serde(default)]
    pub personal: Vec<String>,
}

fn input_height() -> u32 {
    128
}

fn network() -> String {
    Network::default().label().to_owned()
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
    /// How a roadside unit makes one delta of its vehicles' updates: a name such as `"median"`, or a name with
    /// parameters such as `{ name = "krum", num_malicious = 2 }`. Default `"fedavg"`.
    pub rule: Rule,
    /// Above 0: buffered rounds without cohorts (FedBuff), each of which closes with so many updates. Default 0.
    pub buffer_size: u32,
    /// Rounds that may have closed since the one that an update was made for, in buffered rounds. Default 4.
    pub max_staleness: u32,
    /// `exact`: sums travel to the cloud in f64. `fp16`: their means in fp16, a quarter of the bytes, with error
    /// feedback at the roadside unit. Default `exact`.
    pub partials: Partials,
}

/// A rule: its name, or its name with parameters.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(untagged)]
pub enum Rule {
    /// With its defaults.
    Name(String),
    /// With parameters.
    With {
        /// Its name.
        name: String,
        /// Its parameters.
        #[serde(flatten)]
        params: BTreeMap<String, RuleParam>,
    },
}

impl Default for Rule {
    fn default() -> Self {
        Self::Name("fedavg".to_owned())
    }
}

impl Rule {
    /// As the domain knows it; whether there is such a rule is left to its check.
    pub fn spec(&self) -> RuleSpec {
        match self {
            Self::Name(name) => RuleSpec::named(name),
            Self::With { name, params } => {
                let param = |(name, value): (&String, &RuleParam)| (name.clone(), value.number());
                RuleSpec {
                    name: name.clone(),
                    params: params.iter().map(param).collect(),
                }
            }
        }
    }
}

/// A parameter of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
#[serde(untagged)]
pub enum RuleParam {
    /// Yes or no.
    Is(bool),
    /// A whole number.
    Count(u32),
    /// Any other number.
    Number(f64),
}

impl RuleParam {
    fn number(self) -> f64 {
        match self {
            Self::Is(yes) => f64::from(u8::from(yes)),
            Self::Count(count) => f64::from(count),
            Self::Number(number) => number,
        }
    }
}

/// How partial aggregates travel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Partials {
    /// As sums in f64.
    #[default]
    Exact,
    /// As means in fp16.
    Fp16,
}

/// `[codec]`
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Codec {
    /// How a vehicle writes its updates at first: `fp16`, `fp16-diff`, `int8` or `topk`. Default `fp16`.
    pub encoding: String,
    /// As far as a vehicle may step down on that list while its link misses `strategy.latency_budget_ms`; the same as
    /// `encoding` keeps it there. Default `int8`, or `encoding` where that is lower.
    pub lowest: Option<String>,
    /// Share of the values that `topk` sends, above 0 to 1. Default 0.01.
    pub topk_fraction: f64,
}

impl Default for Codec {
    fn default() -> Self {
        Self {
            encoding: "fp16".to_owned(),
            lowest: None,
            topk_fraction: 0.01,
        }
    }
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
            rule: Rule::default(),
            buffer_size: 0,
            max_staleness: 4,
            partials: Partials::default(),
        }
    }
}

/// `[merge]`
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Merge {
    /// How the cloud makes one delta of the roadside units' partial aggregates: as `strategy.rule`, or `"fltrust"`,
    /// which trains an update of its own on `model.calibration`. Default `"fedavg"`.
    pub rule: Rule,
    /// `none`, `momentum` (FedAvgM), `adagrad`, `adam` or `yogi`. Default `none`.
    pub server_optimizer: Optimizer,
    /// Step size, above 0 to 10: on the mean delta, or with the adaptive three about how far a parameter moves in one
    /// merge, where 1 is far too much for most heads. Default 1.
    pub server_lr: f64,
    /// Momentum of `momentum`, 0 to below 1. Default 0.9.
    pub server_momentum: f64,
    /// Share of the first moment that `adagrad`, `adam` and `yogi` keep, 0 to below 1. Default 0.9.
    pub beta1: f64,
    /// Share of the second moment that `adam` and `yogi` keep, 0 to below 1. Default 0.99.
    pub beta2: f64,
    /// How little `adagrad`, `adam` and `yogi` adapt to, in parameter units, 1e-9 to 1. Default 0.001.
    pub tau: f64,
    /// Fewest roadside units that may change the model, as a share of those asked, above 0 to 1. Default 0.5.
    pub quorum: f64,
    /// The job begins once so many roadside units are connected. Default 1.
    pub min_roadsides: u32,
}

impl Default for Merge {
    fn default() -> Self {
        Self {
            rule: Rule::default(),
            server_optimizer: Optimizer::None,
            server_lr: 1.0,
            server_momentum: 0.9,
            beta1: 0.9,
            beta2: 0.99,
            tau: 1e-3,
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
    /// FedAdagrad.
    Adagrad,
    /// FedAdam.
    Adam,
    /// FedYogi.
    Yogi,
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
