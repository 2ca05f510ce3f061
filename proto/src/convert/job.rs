//! Jobs and schemas.

use super::check::{At, millis};
use super::{ConvertError, Limit, Wire};
use crate::wire;
use prost::Message;
use std::time::Duration;
use wayside_domain::head::Standardisation;
use wayside_domain::job::{Effort, JobSpec, ModelSpec, RoundSpec, TrainingSpec};
use wayside_domain::schema::{MAX_TENSORS, Schema, TensorSpec};

const MODEL: &str = "ModelSpec";
const TRAINING: &str = "TrainingSpec";
/// Most extents of one tensor.
const MAX_RANK: usize = 16;

/// Durations travel as whole milliseconds.
impl Wire for JobSpec {
    type Message = wire::JobSpec;
    const NAME: &'static str = "JobSpec";
    const MAX_BYTES: usize = 4 << 20;
    const REPEATED: &'static [Limit] = &[
        (&[2, 5], "classes", 255),
        (&[2, 8, 1], "tensors", MAX_TENSORS),
    ];
}

impl From<&JobSpec> for wire::JobSpec {
    fn from(job: &JobSpec) -> Self {
        Self {
            job: job.job.to_string(),
            model: Some((&job.model).into()),
            training: Some((&job.training).into()),
            round: Some((&job.round).into()),
        }
    }
}

impl TryFrom<wire::JobSpec> for JobSpec {
    type Error = ConvertError;

    fn try_from(job: wire::JobSpec) -> Result<Self, ConvertError> {
        let at = |field| At(Self::NAME, field);
        let job = Self {
            job: at("job").id(&job.job)?,
            model: at("model").present(job.model)?.try_into()?,
            training: at("training").present(job.training)?.try_into()?,
            round: at("round").present(job.round)?.into(),
        };
        job.check()?;
        Ok(job)
    }
}

impl From<&ModelSpec> for wire::ModelSpec {
    fn from(model: &ModelSpec) -> Self {
        let bytes = |values: &[f32]| values.iter().flat_map(|v| v.to_le_bytes()).collect();
        Self {
            backbone_digest: model.backbone.map(|d| d.0.to_vec()).unwrap_or_default(),
            features: u32::try_from(model.features()).unwrap_or(u32::MAX),
            input_height: model.input_height,
            input_width: model.input_width,
            classes: model.classes.clone(),
            feature_mean: bytes(model.standardisation.mean()),
            feature_std: bytes(model.standardisation.std()),
            // A checked job has one; without it, the reader refuses the message.
            schema: model.schema().ok().as_ref().map(Into::into),
        }
    }
}

impl TryFrom<wire::ModelSpec> for ModelSpec {
    type Error = ConvertError;

    fn try_from(model: wire::ModelSpec) -> Result<Self, ConvertError> {
        let at = |field| At(MODEL, field);
        let backbone = match model.backbone_digest.as_slice() {
            [] => None,
            bytes => Some(at("backbone_digest").digest(bytes)?),
        };
        at("classes").at_most(model.classes.len(), 255)?;
        let features = usize::try_from(model.features).unwrap_or(usize::MAX);
        let statistics = |field, bytes: &[u8]| {
            at(field).length(bytes.len(), features.saturating_mul(4))?;
            let values = bytes
                .chunks_exact(4)
                .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
            Ok::<_, ConvertError>(values.collect::<Vec<f32>>())
        };
        let mean = statistics("feature_mean", &model.feature_mean)?;
        let std = statistics("feature_std", &model.feature_std)?;
        let schema: Schema = at("schema").present(model.schema)?.try_into()?;
        let model = Self {
            backbone,
            input_height: model.input_height,
            input_width: model.input_width,
            classes: model.classes,
            standardisation: Standardisation::new(mean, std)?,
        };
        if schema != model.schema()? {
            let show = |s: &Schema| s.num_parameters().to_string() + " parameters";
            return Err(ConvertError::Disagree {
                message: MODEL,
                field: "schema",
                body: show(&schema),
                place: "head on these features and classes",
                other: show(&model.schema()?),
            });
        }
        Ok(model)
    }
}

impl From<&TrainingSpec> for wire::TrainingSpec {
    fn from(training: &TrainingSpec) -> Self {
        Self {
            lr: training.lr,
            momentum: training.momentum,
            weight_decay: training.weight_decay,
            batch_size: training.batch_size,
            effort: Some(match training.effort {
                Effort::LocalEpochs(n) => wire::training_spec::Effort::LocalEpochs(n),
                Effort::LocalSteps(n) => wire::training_spec::Effort::LocalSteps(n),
            }),
            proximal_mu: training.proximal_mu,
            class_weights: training.class_weights.clone(),
            seed: training.seed,
        }
    }
}

/// The numbers' ranges are left to [`JobSpec::check`].
impl TryFrom<wire::TrainingSpec> for TrainingSpec {
    type Error = ConvertError;

    fn try_from(training: wire::TrainingSpec) -> Result<Self, ConvertError> {
        let at = |field| At(TRAINING, field);
        Ok(Self {
            lr: training.lr,
            momentum: training.momentum,
            weight_decay: training.weight_decay,
            batch_size: training.batch_size,
            effort: match at("effort").present(training.effort)? {
                wire::training_spec::Effort::LocalEpochs(n) => Effort::LocalEpochs(n),
                wire::training_spec::Effort::LocalSteps(n) => Effort::LocalSteps(n),
            },
            proximal_mu: training.proximal_mu,
            class_weights: training.class_weights,
            seed: training.seed,
        })
    }
}

impl From<&RoundSpec> for wire::RoundSpec {
    fn from(round: &RoundSpec) -> Self {
        Self {
            fraction_train: round.fraction_train,
            min_vehicles: round.min_vehicles,
            over_selection: round.over_selection,
            quorum: round.quorum,
            round_timeout_ms: millis(round.round_timeout),
            min_window_ms: millis(round.min_window),
            edge_rounds: round.edge_rounds,
            max_examples: round.max_examples,
            max_norm: round.max_norm,
            max_norm_ratio: round.max_norm_ratio,
            latency_budget_ms: millis(round.latency_budget),
        }
    }
}

/// The numbers' ranges are left to [`JobSpec::check`].
impl From<wire::RoundSpec> for RoundSpec {
    fn from(round: wire::RoundSpec) -> Self {
        Self {
            fraction_train: round.fraction_train,
            min_vehicles: round.min_vehicles,
            over_selection: round.over_selection,
            quorum: round.quorum,
            round_timeout: Duration::from_millis(round.round_timeout_ms),
            min_window: Duration::from_millis(round.min_window_ms),
            edge_rounds: round.edge_rounds,
            max_examples: round.max_examples,
            max_norm: round.max_norm,
            max_norm_ratio: round.max_norm_ratio,
            latency_budget: Duration::from_millis(round.latency_budget_ms),
        }
    }
}

impl From<&Schema> for wire::Schema {
    fn from(schema: &Schema) -> Self {
        let tensors = schema.tensors().iter().map(|tensor| wire::Tensor {
            name: tensor.name.clone(),
            shape: tensor.shape.iter().map(|extent| *extent as u64).collect(),
        });
        Self {
            tensors: tensors.collect(),
        }
    }
}

impl TryFrom<wire::Schema> for Schema {
    type Error = ConvertError;

    fn try_from(schema: wire::Schema) -> Result<Self, ConvertError> {
        At("Schema", "tensors").at_most(schema.tensors.len(), MAX_TENSORS)?;
        let tensors = schema.tensors.into_iter().map(|tensor| {
            At("Tensor", "shape").at_most(tensor.shape.len(), MAX_RANK)?;
            // An extent that does not fit is one that no schema allows.
            let extent = |e: u64| usize::try_from(e).unwrap_or(usize::MAX);
            Ok(TensorSpec {
                name: tensor.name,
                shape: tensor.shape.into_iter().map(extent).collect(),
            })
        });
        Ok(Self::new(tensors.collect::<Result<_, ConvertError>>()?)?)
    }
}

/// A schema as bytes, to be stored beside frames of it.
pub fn encode_schema(schema: &Schema) -> Vec<u8> {
    wire::Schema::from(schema).encode_to_vec()
}

/// Reads and checks a schema.
pub fn decode_schema(bytes: &[u8]) -> Result<Schema, ConvertError> {
    let limit = 1 << 20;
    let message = "Schema";
    if bytes.len() > limit {
        let got = bytes.len();
        return Err(ConvertError::TooLarge {
            message,
            got,
            limit,
        });
    }
    let schema = wire::Schema::decode(bytes).map_err(|error| ConvertError::Malformed {
        message,
        detail: error.to_string(),
    })?;
    schema.try_into()
}
