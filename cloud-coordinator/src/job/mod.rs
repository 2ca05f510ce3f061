//! A job: read from `job.toml` and its files of features, checked as a whole, kept as a copy.
//!
//! At creation the text and the files are copied into `jobs/{job}/` of the state folder, and from then on only the
//! copies are read, so a job survives the removal of what it was made from.

mod features;
mod file;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

pub use features::{Features, FeaturesError, HeldBack, MAX_FILE_BYTES, RootSet};
pub use file::JobFile;

use crate::federation::{MergeRule, Rules};
use crate::strategy::{Adaptive, ServerOptimizer};
use wayside_domain::aggregate::RuleError;
use wayside_domain::class_weights::ClassWeights;
use wayside_domain::encoding::{CodecSpec, UpdateEncoding};
use wayside_domain::head::{Standardisation, StandardisationError};
use wayside_domain::ids::{Digest, JobId};
use wayside_domain::job::{
    AggregationSpec, Buffered, Effort, JobError, JobSpec, ModelSpec, RoundSpec, TrainingSpec,
};
use wayside_domain::network::Network;
use wayside_domain::train::Learner;
use wayside_host::config::{self, ConfigError};
use wayside_host::exit::{Exit, Failure};
use wayside_host::files::{self, FileError};
use wayside_proto::codec;

/// Largest `job.toml`, in bytes.
pub const MAX_TOML_BYTES: usize = 1 << 20;
const TOML: &str = "job.toml";
const CALIBRATION: &str = "calibration.safetensors";
const EVALUATION: &str = "evaluation.safetensors";

/// Why a job cannot be made, in one line with a remedy.
#[derive(Debug, thiserror::Error)]
pub enum JobFileError {
    /// Not TOML, an unknown or missing key, or a value of the wrong type.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The text is larger than any job.
    #[error("job.toml of {got} bytes: keep it below {MAX_TOML_BYTES} bytes")]
    TooLarge {
        /// Its bytes.
        got: usize,
    },
    /// A value that is not allowed.
    #[error("job.toml: {field} {message}: choose an allowed value")]
    Value {
        /// Dotted key.
        field: &'static str,
        /// Got and expected.
        message: String,
    },
    /// A value that the domain does not allow.
    #[error("job.toml: {0}: choose an allowed value")]
    Domain(#[from] JobError),
    /// A file that cannot be read.
    #[error("job.toml: {field}: {error}: name a file that the coordinator can read")]
    File {
        /// Dotted key.
        field: &'static str,
        /// What the system said.
        error: FileError,
    },
    /// A file with the wrong content.
    #[error("job.toml: {field}: {}: {error}", path.display())]
    Features {
        /// Dotted key.
        field: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong.
        error: FeaturesError,
    },
    /// Features that cannot be standardised by.
    #[error("job.toml: model.calibration: {0}: use another calibration file")]
    Statistics(#[from] StandardisationError),
}

impl From<JobFileError> for Failure {
    fn from(error: JobFileError) -> Self {
        match error {
            JobFileError::Config(error) => error.into(),
            other => Self::new(Exit::Job, other),
        }
    }
}

/// A job, checked, with everything that the coordinator needs to run it.
#[derive(Clone, Debug)]
pub struct Definition {
    /// What every tier knows.
    pub spec: JobSpec,
    /// What only the cloud needs.
    pub rules: Rules,
    /// The gate's examples, if the job has a gate.
    pub held_back: Option<Arc<HeldBack>>,
    /// Text of `job.toml`.
    pub toml: String,
}

/// The files behind a definition, as they are copied.
#[derive(Debug)]
pub struct Sources {
    calibration: Vec<u8>,
    evaluation: Option<Vec<u8>>,
}

/// Checks a text alone, before anything else is read.
///
/// # Errors
/// [`JobFileError`] names the key and the remedy.
pub fn parse(text: &str) -> Result<(JobId, JobFile), JobFileError> {
    if text.len() > MAX_TOML_BYTES {
        return Err(JobFileError::TooLarge { got: text.len() });
    }
    let file: JobFile = config::parse(Path::new(TOML), text)?;
    let job = JobId::new(file.job.clone())
        .map_err(|error| value("job", format!("is {:?}: {error}", file.job)))?;
    Ok((job, file))
}

/// Reads a job whose relative paths start from `base`.
///
/// # Errors
/// [`JobFileError`] names the key and the remedy.
pub fn read(text: &str, base: &Path) -> Result<(Definition, Sources), JobFileError> {
    let (job, file) = parse(text)?;
    let calibration = base.join(&file.model.calibration);
    let evaluation = file.evaluation.as_ref().map(|e| base.join(&e.features));
    build(job, &file, text, &calibration, evaluation.as_deref())
}

/// Reads a job from its copy.
///
/// # Errors
/// [`JobFileError`], which for a copy means damage or another version of this software.
pub fn load(folder: &Path) -> Result<Definition, JobFileError> {
    let text = files::read_bounded(&folder.join(TOML), MAX_TOML_BYTES as u64);
    let text = text.map_err(|error| JobFileError::File {
        field: "job.toml",
        error,
    })?;
    let text = String::from_utf8_lossy(&text);
    let (job, file) = parse(&text)?;
    let (calibration, evaluation) = (folder.join(CALIBRATION), folder.join(EVALUATION));
    let evaluation = file.evaluation.is_some().then_some(evaluation);
    let (definition, _) = build(job, &file, &text, &calibration, evaluation.as_deref())?;
    Ok(definition)
}

/// Copies a job's text and files into `folder`, durably; the text comes last and makes the copy complete.
///
/// # Errors
/// What the system said.
pub fn copy(folder: &Path, definition: &Definition, sources: &Sources) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let write = |name: &str, bytes: &[u8]| {
        files::write_atomic(&folder.join(name), bytes).map_err(io::Error::other)
    };
    write(CALIBRATION, &sources.calibration)?;
    if let Some(evaluation) = &sources.evaluation {
        write(EVALUATION, evaluation)?;
    }
    write(TOML, definition.toml.as_bytes())?;
    if let Some(parent) = folder.parent() {
        fs::File::open(parent)?.sync_all()?;
    }
    Ok(())
}

/// Whether `folder` holds a complete copy.
pub fn is_copy(folder: &Path) -> bool {
    folder.join(TOML).is_file()
}

fn value(field: &'static str, message: impl Into<String>) -> JobFileError {
    let message = message.into();
    JobFileError::Value { field, message }
}

fn build(
    job: JobId,
    file: &JobFile,
    text: &str,
    calibration_path: &Path,
    evaluation_path: Option<&Path>,
) -> Result<(Definition, Sources), JobFileError> {
    let classes = &file.model.classes;
    let size = (file.model.input_height, file.model.input_width);
    let open = |field: &'static str, path: &Path| {
        let bytes = files::read_bounded(path, MAX_FILE_BYTES)
            .map_err(|error| JobFileError::File { field, error })?;
        let features = Features::read(&bytes, classes, size).map_err(|error| {
            let path = path.to_owned();
            JobFileError::Features { field, path, error }
        })?;
        Ok::<_, JobFileError>((features, bytes))
    };
    // Classes and sizes are judged before the files are read against them.
    let head = spec(job.clone(), file, Standardisation::identity(1))?;
    if head.model.network != Network::LinearHead {
        let message = format!(
            "is {}, which no vehicle trains: it is for simulations",
            head.model.network.label()
        );
        return Err(value("model.network", message));
    }
    head.check()?;
    let (calibration, calibration_bytes) = open("model.calibration", calibration_path)?;
    let (mut evaluation, mut evaluation_bytes) = (None, None);
    if let Some(path) = evaluation_path {
        let (features, bytes) = open("evaluation.features", path)?;
        (evaluation, evaluation_bytes) = (Some(features), Some(bytes));
    }
    let definition = define(job, file, text, calibration, evaluation, None)?;
    let sources = Sources {
        calibration: calibration_bytes,
        evaluation: evaluation_bytes,
    };
    Ok((definition, sources))
}

/// A job from its text and features that are at hand, for simulations. The files that the text names are not looked at.
///
/// - `learner`: evaluates `model.network`; `None`, a linear head.
///
/// # Errors
/// [`JobFileError`] names the key and the remedy.
pub fn assemble(
    text: &str,
    calibration: Features,
    evaluation: Option<Features>,
    learner: Option<Arc<dyn Learner>>,
) -> Result<Definition, JobFileError> {
    let (job, file) = parse(text)?;
    define(job, &file, text, calibration, evaluation, learner)
}

fn define(
    job: JobId,
    file: &JobFile,
    text: &str,
    calibration: Features,
    evaluation: Option<Features>,
    learner: Option<Arc<dyn Learner>>,
) -> Result<Definition, JobFileError> {
    let classes = &file.model.classes;
    // Whole networks take examples as they are.
    let standardisation = match Network::parse(&file.model.network) {
        Some(Network::LinearHead) => Standardisation::of(calibration.values.view())?,
        _ => Standardisation::identity(calibration.values.ncols()),
    };
    let mut spec = spec(job, file, standardisation)?;
    spec.model.backbone = backbone(file, calibration.backbone)?;
    spec.training.class_weights =
        weighting(file.training.class_weights).of(&calibration.labels, classes.len());
    spec.check()?;
    let rules = rules(&spec, file, calibration)?;

    let mut held_back = None;
    if let Some(features) = evaluation {
        let (got, expected) = (features.values.ncols(), spec.model.features());
        if got != expected {
            let message =
                format!("has {got} features an example, model.calibration has {expected}");
            return Err(value("evaluation.features", message));
        }
        let differs = |made_with: Digest| spec.model.backbone.is_some_and(|ours| ours != made_with);
        if let Some(other) = features.backbone.filter(|other| differs(*other)) {
            let message = format!("was made with backbone {other:#}, the job's is another");
            return Err(value("evaluation.features", message));
        }
        let set = match learner {
            Some(learner) => HeldBack::with_learner(features, &spec.model, learner),
            None => HeldBack::new(features, &spec.model),
        };
        held_back = Some(Arc::new(set));
    }
    Ok(Definition {
        spec,
        rules,
        held_back,
        toml: text.to_owned(),
    })
}

/// The backbone that the job names, or that its calibration file was made with.
fn backbone(file: &JobFile, made_with: Option<Digest>) -> Result<Option<Digest>, JobFileError> {
    let Some(text) = &file.model.backbone else {
        return Ok(made_with);
    };
    let named = Digest::from_hex(text)
        .ok_or_else(|| value("model.backbone", "is not 64 hexadecimal digits"))?;
    match made_with {
        Some(other) if other != named => {
            let message = format!("is {named:#}, model.calibration was made with {other:#}");
            Err(value("model.backbone", message))
        }
        _ => Ok(Some(named)),
    }
}

fn weighting(weights: file::Weights) -> ClassWeights {
    match weights {
        file::Weights::None => ClassWeights::None,
        file::Weights::InverseRoot => ClassWeights::InverseRoot,
        file::Weights::Inverse => ClassWeights::Inverse,
    }
}

fn spec(
    job: JobId,
    file: &JobFile,
    standardisation: Standardisation,
) -> Result<JobSpec, JobFileError> {
    let (training, strategy) = (&file.training, &file.strategy);
    let effort = match (training.local_epochs, training.local_steps) {
        (Some(_), Some(_)) => {
            return Err(value(
                "training.local_steps",
                "stands beside local_epochs, give one of them",
            ));
        }
        (None, Some(steps)) => Effort::LocalSteps(steps),
        (epochs, None) => Effort::LocalEpochs(epochs.unwrap_or(2)),
    };
    Ok(JobSpec {
        job,
        model: ModelSpec {
            backbone: None,
            input_height: file.model.input_height,
            input_width: file.model.input_width,
            classes: file.model.classes.clone(),
            standardisation,
            network: Network::parse(&file.model.network).ok_or_else(|| {
                let names = Network::ALL.map(Network::label).join(", ");
                let message = format!("is {:?}, there are {names}", file.model.network);
                value("model.network", message)
            })?,
            personal: file.model.personal.clone(),
        },
        training: TrainingSpec {
            lr: training.lr,
            momentum: training.momentum,
            weight_decay: training.weight_decay,
            batch_size: training.batch_size,
            effort,
            proximal_mu: training.proximal_mu,
            class_weights: vec![1.0; file.model.classes.len()], // until the calibration file is read
            seed: training.seed,
        },
        round: RoundSpec {
            fraction_train: strategy.fraction_train,
            min_vehicles: strategy.min_vehicles,
            over_selection: strategy.over_selection,
            quorum: strategy.quorum,
            round_timeout: Duration::from_millis(strategy.round_timeout_ms),
            min_window: Duration::from_millis(strategy.min_window_ms),
            edge_rounds: strategy.edge_rounds,
            max_examples: strategy.max_examples,
            max_norm: strategy.max_norm,
            max_norm_ratio: strategy.max_norm_ratio,
            latency_budget: Duration::from_millis(strategy.latency_budget_ms),
        },
        aggregation: AggregationSpec {
            rule: strategy.rule.spec(),
            buffered: (strategy.buffer_size > 0).then_some(Buffered {
                buffer_size: strategy.buffer_size,
                max_staleness: strategy.max_staleness,
            }),
            fp16_partials: strategy.partials == file::Partials::Fp16,
        },
        codec: codec(&file.codec)?,
    })
}

fn codec(codec: &file::Codec) -> Result<CodecSpec, JobFileError> {
    let encoding = |field, label: &str| {
        UpdateEncoding::parse(label).ok_or_else(|| {
            let message = format!("is {label:?}, allowed is fp16, fp16-diff, int8 or topk");
            value(field, message)
        })
    };
    let best = encoding("codec.encoding", &codec.encoding)?;
    let lowest = match &codec.lowest {
        Some(label) => encoding("codec.lowest", label)?,
        None => best.max(UpdateEncoding::Int8),
    };
    Ok(CodecSpec {
        best,
        lowest,
        topk_fraction: codec.topk_fraction,
    })
}

/// The name of FLTrust in `merge.rule`; it needs the cloud's own examples, so it is no rule of a roadside unit.
const FLTRUST: &str = "fltrust";

fn merge_rule(
    spec: &JobSpec,
    rule: &file::Rule,
    fewest: usize,
    calibration: Features,
) -> Result<MergeRule, JobFileError> {
    let named = rule.spec();
    if named.name == FLTRUST {
        if !named.params.is_empty() {
            return Err(value("merge.rule", "fltrust has no parameters"));
        }
        return Ok(MergeRule::FlTrust(Arc::new(RootSet::new(
            calibration,
            spec,
        ))));
    }
    named.check(fewest).map_err(|error| {
        let known = matches!(error, RuleError::Unknown { .. });
        let also = if known { ", and fltrust" } else { "" };
        value("merge.rule", format!("cannot be used: {error}{also}"))
    })?;
    if named.is_fedavg() {
        return Ok(MergeRule::Sum);
    }
    Ok(MergeRule::Rule(named))
}

/// `share` of `whole`, rounded up, at least 1.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a share of 0 to 1 of a count"
)]
fn share_of(share: f64, whole: u32) -> usize {
    ((share * f64::from(whole)).ceil() as usize).max(1)
}

fn rules(spec: &JobSpec, file: &JobFile, calibration: Features) -> Result<Rules, JobFileError> {
    let (merge, schedule) = (&file.merge, &file.schedule);
    let range = |field, fits: bool, got: String, allowed: &str| {
        if fits {
            Ok(())
        } else {
            Err(value(field, format!("is {got}, allowed is {allowed}")))
        }
    };
    let lr = merge.server_lr;
    range(
        "merge.server_lr",
        lr > 0.0 && lr <= 10.0,
        lr.to_string(),
        "above 0 to 10",
    )?;
    for (field, share) in [
        ("merge.server_momentum", merge.server_momentum),
        ("merge.beta1", merge.beta1),
        ("merge.beta2", merge.beta2),
    ] {
        let fits = (0.0..1.0).contains(&share);
        range(field, fits, share.to_string(), "0 to below 1")?;
    }
    let tau = merge.tau;
    range(
        "merge.tau",
        (1e-9..=1.0).contains(&tau),
        tau.to_string(),
        "0.000000001 to 1",
    )?;
    let quorum = merge.quorum;
    range(
        "merge.quorum",
        quorum > 0.0 && quorum <= 1.0,
        quorum.to_string(),
        "above 0 to 1",
    )?;
    let least = merge.min_roadsides;
    range(
        "merge.min_roadsides",
        (1..=1_000_000).contains(&least),
        least.to_string(),
        "1 to 1000000",
    )?;
    let period = schedule.period_ms;
    range(
        "schedule.period_ms",
        (10..=31_622_400_000).contains(&period),
        period.to_string(),
        "10 to 31622400000 (366 days)",
    )?;
    if let Some(evaluation) = &file.evaluation {
        let got = evaluation.max_regression;
        range(
            "evaluation.max_regression",
            (0.0..=1.0).contains(&got),
            got.to_string(),
            "0 to 1",
        )?;
    }
    let schema = spec.model.schema().map_err(JobError::Schema)?;
    // The first round may open with so many units, and close with this share of them.
    let fewest = share_of(quorum, least);
    Ok(Rules {
        initial: None,
        merge: merge_rule(spec, &merge.rule, fewest, calibration)?,
        keeps_scales: spec.aggregation.buffered.is_some(),
        job: spec.job.clone(),
        schema_digest: codec::schema_digest(&schema),
        schema,
        server: server_optimizer(merge),
        quorum,
        min_roadsides: usize::try_from(least).unwrap_or(usize::MAX),
        period: Duration::from_millis(period),
        merge_when_complete: schedule.merge_when_complete,
        merges: schedule.merges,
        edge_rounds: spec.round.edge_rounds,
        max_examples: spec.round.max_examples,
        max_norm: spec.round.max_norm,
        max_norm_ratio: spec.round.max_norm_ratio,
        max_regression: file.evaluation.as_ref().map_or(1.0, |e| e.max_regression),
    })
}

fn server_optimizer(merge: &file::Merge) -> ServerOptimizer {
    let lr = merge.server_lr;
    let adaptive = Adaptive {
        lr,
        beta1: merge.beta1,
        beta2: merge.beta2,
        tau: merge.tau,
    };
    match merge.server_optimizer {
        file::Optimizer::None => ServerOptimizer::Plain { lr },
        file::Optimizer::Momentum => ServerOptimizer::Momentum {
            lr,
            beta: merge.server_momentum,
        },
        file::Optimizer::Adagrad => ServerOptimizer::Adagrad(adaptive),
        file::Optimizer::Adam => ServerOptimizer::Adam(adaptive),
        file::Optimizer::Yogi => ServerOptimizer::Yogi(adaptive),
    }
}

#[cfg(test)]
mod tests;
