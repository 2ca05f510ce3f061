//! Jobs and schemas.

use super::check::{At, count_numbers, count_repeated, millis};
use super::{ConvertError, Limit, Wire};
use crate::wire;
use prost::Message;
use std::time::Duration;
use wayside_domain::aggregate::RuleSpec;
use wayside_domain::aggregate::rules::{MAX_NAME, MAX_PARAMS};
use wayside_domain::encoding::{CodecSpec, UpdateEncoding};
use wayside_domain::head::Standardisation;
use wayside_domain::job::{
    AggregationSpec, Buffered, Effort, JobSpec, ModelSpec, RoundSpec, TrainingSpec,
};
use wayside_domain::network::Network;
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
        (&[2, 9], "personal", MAX_TENSORS),
        (&[5, 1, 2], "params", MAX_PARAMS),
    ];
    const NUMBERS: &'static [Limit] = &[(&[2, 8, 1, 2], "shape", MAX_RANK * MAX_TENSORS)];
}

impl From<&JobSpec> for wire::JobSpec {
    fn from(job: &JobSpec) -> Self {
        Self {
            job: job.job.to_string(),
            model: Some((&job.model).into()),
            training: Some((&job.training).into()),
            round: Some((&job.round).into()),
            aggregation: different(&job.aggregation),
            codec: different(&job.codec),
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
            aggregation: job
                .aggregation
                .map_or_else(|| Ok(AggregationSpec::default()), TryInto::try_into)?,
            codec: job
                .codec
                .map_or_else(|| Ok(CodecSpec::default()), TryInto::try_into)?,
        };
        job.check()?;
        Ok(job)
    }
}

/// A part of a job that is as jobs were before the part came to be is left out.
fn different<'a, T: Default + PartialEq, M: From<&'a T>>(part: &'a T) -> Option<M> {
    (*part != T::default()).then(|| part.into())
}

impl From<&AggregationSpec> for wire::AggregationSpec {
    fn from(spec: &AggregationSpec) -> Self {
        let param = |(name, value): (&String, &f64)| wire::RuleParam {
            name: name.clone(),
            value: *value,
        };
        Self {
            rule: Some(wire::Rule {
                name: spec.rule.name.clone(),
                params: spec.rule.params.iter().map(param).collect(),
            }),
            buffer_size: spec.buffered.map_or(0, |buffered| buffered.buffer_size),
            max_staleness: spec.buffered.map_or(0, |buffered| buffered.max_staleness),
            fp16_partials: spec.fp16_partials,
        }
    }
}

/// Whether there is such a rule is left to [`JobSpec::check`].
impl TryFrom<wire::AggregationSpec> for AggregationSpec {
    type Error = ConvertError;

    fn try_from(spec: wire::AggregationSpec) -> Result<Self, ConvertError> {
        let rule = spec.rule.map(|rule| {
            At("Rule", "params").at_most(rule.params.len(), MAX_PARAMS)?;
            let mut read = RuleSpec::named(&At("Rule", "name").label(rule.name, MAX_NAME)?);
            for param in rule.params {
                let name = At("RuleParam", "name").label(param.name, MAX_NAME)?;
                let value = At("RuleParam", "value").finite(param.value)?;
                read.params.insert(name, value);
            }
            Ok::<_, ConvertError>(read)
        });
        Ok(Self {
            rule: rule.transpose()?.unwrap_or_default(),
            buffered: (spec.buffer_size > 0).then_some(Buffered {
                buffer_size: spec.buffer_size,
                max_staleness: spec.max_staleness,
            }),
            fp16_partials: spec.fp16_partials,
        })
    }
}

impl From<&CodecSpec> for wire::CodecSpec {
    fn from(spec: &CodecSpec) -> Self {
        Self {
            best: spec.best.label().to_owned(),
            lowest: spec.lowest.label().to_owned(),
            topk_fraction: spec.topk_fraction,
        }
    }
}

/// The order of the two is left to [`JobSpec::check`].
impl TryFrom<wire::CodecSpec> for CodecSpec {
    type Error = ConvertError;

    fn try_from(spec: wire::CodecSpec) -> Result<Self, ConvertError> {
        let encoding = |field, label: &str| {
            let known = UpdateEncoding::parse(label);
            At("CodecSpec", field).range(
                known.is_some(),
                label,
                "fp16, fp16-diff, int8 or topk",
            )?;
            Ok::<_, ConvertError>(known.unwrap_or(UpdateEncoding::Fp16))
        };
        Ok(Self {
            best: encoding("best", &spec.best)?,
            lowest: encoding("lowest", &spec.lowest)?,
            topk_fraction: At("CodecSpec", "topk_fraction").finite(spec.topk_fraction)?,
        })
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
            personal: model.personal.clone(),
            network: match model.network {
                Network::LinearHead => String::new(),
                other => other.label().to_owned(),
            },
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
        let network = match model.network.as_str() {
            "" => Network::LinearHead,
            name => {
                let known = Network::parse(name);
                let got = name.chars().take(64).collect::<String>();
                at("network").range(known.is_some(), got, "two-nn, lenet, or empty")?;
                known.unwrap_or_default()
            }
        };
        let model = Self {
            backbone,
            input_height: model.input_height,
            input_width: model.input_width,
            classes: model.classes,
            standardisation: Standardisation::new(mean, std)?,
            personal: model.personal,
            network,
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
    count_repeated(message, bytes, &[(&[1], "tensors", MAX_TENSORS)])?;
    count_numbers(
        message,
        bytes,
        &[(&[1, 2], "shape", MAX_RANK * MAX_TENSORS)],
    )?;
    let schema = wire::Schema::decode(bytes).map_err(|error| ConvertError::Malformed {
        message,
        detail: error.to_string(),
    })?;
    schema.try_into()
}
