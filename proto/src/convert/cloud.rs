//! What a roadside unit and the cloud say to each other, partial aggregates aside.

use super::check::{At, wide};
use super::{ConvertError, Limit, MAX_VERSION_CHARS, Wire};
use crate::wire;
use wayside_domain::ids::{Digest, Generation, JobId, ModelVersion, RoadsideId, RoundId, UpdateId};
use wayside_domain::job::JobSpec;
use wayside_domain::schema::MAX_TENSORS;
use wayside_domain::time::Timestamp;

/// Most jobs in one plan.
const MAX_JOBS: usize = 1024;
/// Longest text field of an envelope, in characters.
const MAX_LABEL: usize = 256;

/// Resources of envelopes.
pub mod resource {
    use wayside_domain::ids::RoadsideId;

    /// A [`Hello`](super::Hello) of this roadside unit.
    pub fn hello(roadside: &RoadsideId) -> String {
        format!("wayside/{roadside}/hello")
    }

    /// A [`Plan`](super::Plan) for this roadside unit.
    pub fn plan(roadside: &RoadsideId) -> String {
        format!("wayside/{roadside}/plan")
    }
}

/// The fields of `KubeEdge`'s message around an encoded message of ours; `resource` says which.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Envelope {
    /// Id of this message, made by the sender.
    pub msg_id: String,
    /// Id of the message answered, or empty.
    pub parent_msg_id: String,
    /// When it was sent, by the sender's clock.
    pub sent: Timestamp,
    /// The sender waits for an answer.
    pub sync: bool,
    /// Roadside id, or `cloud`.
    pub source: String,
    /// `user`.
    pub group: String,
    /// `get`, `update`, `upload`, `response`.
    pub operation: String,
    /// See [`resource`].
    pub resource: String,
    /// An encoded message.
    pub content: Vec<u8>,
}

impl Wire for Envelope {
    type Message = wire::Envelope;
    const NAME: &'static str = "Envelope";
    const MAX_BYTES: usize = (16 << 20) + 4096;
}

impl Envelope {
    /// Reads the content, after checking that the envelope is about this resource.
    pub fn open<T: Wire>(&self, resource: &str) -> Result<T, ConvertError> {
        let at = At(Self::NAME, "resource");
        at.agrees(&self.resource.as_str(), "caller", &resource)?;
        T::decode(&self.content)
    }
}

impl From<&Envelope> for wire::Envelope {
    fn from(envelope: &Envelope) -> Self {
        Self {
            msg_id: envelope.msg_id.clone(),
            parent_msg_id: envelope.parent_msg_id.clone(),
            timestamp_ms: envelope.sent.0,
            sync: envelope.sync,
            source: envelope.source.clone(),
            group: envelope.group.clone(),
            operation: envelope.operation.clone(),
            resource: envelope.resource.clone(),
            content: envelope.content.clone(),
        }
    }
}

impl TryFrom<wire::Envelope> for Envelope {
    type Error = ConvertError;

    fn try_from(envelope: wire::Envelope) -> Result<Self, ConvertError> {
        let label = |field, text| At(Self::NAME, field).label(text, MAX_LABEL);
        Ok(Self {
            msg_id: label("msg_id", envelope.msg_id)?,
            parent_msg_id: label("parent_msg_id", envelope.parent_msg_id)?,
            sent: Timestamp(envelope.timestamp_ms),
            sync: envelope.sync,
            source: label("source", envelope.source)?,
            group: label("group", envelope.group)?,
            operation: label("operation", envelope.operation)?,
            resource: label("resource", envelope.resource)?,
            content: envelope.content,
        })
    }
}

/// A roadside unit introduces itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The sender.
    pub roadside: RoadsideId,
    /// Which start of it.
    pub generation: Generation,
    /// Version of its software, printable ASCII.
    pub version: String,
}

impl Wire for Hello {
    type Message = wire::Hello;
    const NAME: &'static str = "Hello";
    const MAX_BYTES: usize = 1024;
}

impl From<&Hello> for wire::Hello {
    fn from(hello: &Hello) -> Self {
        Self {
            roadside: hello.roadside.to_string(),
            generation: hello.generation.0,
            version: hello.version.clone(),
        }
    }
}

impl TryFrom<wire::Hello> for Hello {
    type Error = ConvertError;

    fn try_from(hello: wire::Hello) -> Result<Self, ConvertError> {
        let at = |field| At(Self::NAME, field);
        Ok(Self {
            roadside: at("roadside").id(&hello.roadside)?,
            generation: Generation(hello.generation),
            version: at("version").label(hello.version, MAX_VERSION_CHARS)?,
        })
    }
}

/// All jobs as they stand at the cloud.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// One entry a job, each job once.
    pub jobs: Vec<JobPlan>,
}

impl Wire for Plan {
    type Message = wire::Plan;
    const NAME: &'static str = "Plan";
    const MAX_BYTES: usize = 16 << 20;
    const REPEATED: &'static [Limit] = &[
        (&[1], "jobs", MAX_JOBS),
        (&[1, 1, 2, 5], "classes", 255 * MAX_JOBS),
        (&[1, 1, 2, 8, 1], "tensors", MAX_TENSORS * MAX_JOBS),
    ];
    const NUMBERS: &'static [Limit] = &[(&[1, 6], "scale_exponents", MAX_TENSORS * MAX_JOBS)];
}

impl From<&Plan> for wire::Plan {
    fn from(plan: &Plan) -> Self {
        Self {
            jobs: plan.jobs.iter().map(Into::into).collect(),
        }
    }
}

impl TryFrom<wire::Plan> for Plan {
    type Error = ConvertError;

    fn try_from(plan: wire::Plan) -> Result<Self, ConvertError> {
        let jobs = plan.jobs.into_iter().map(TryInto::try_into);
        let jobs: Vec<JobPlan> = jobs.collect::<Result<_, _>>()?;
        for (i, job) in jobs.iter().enumerate() {
            let name = &job.spec.job;
            let twice = jobs[..i].iter().any(|earlier| earlier.spec.job == *name);
            At(Self::NAME, "jobs").range(!twice, name, "each job once")?;
        }
        Ok(Self { jobs })
    }
}

/// One job as it stands at the cloud.
#[derive(Clone, Debug, PartialEq)]
pub struct JobPlan {
    /// What it is.
    pub spec: JobSpec,
    /// The cloud's round that contributions go into.
    pub merge_round: RoundId,
    /// Version of the model behind `model`.
    pub base_version: ModelVersion,
    /// BLAKE3 of the model's frame.
    pub model: Digest,
    /// Bytes of that frame, at least 1.
    pub model_bytes: u64,
    /// Scale exponent of each tensor, one for each of the job's schema.
    pub exponents: Vec<i8>,
    /// Bound on an update's L2 norm in this merge round, parameter units, above 0.
    pub norm_bound: f64,
    /// Contribute before.
    pub window_ends: Timestamp,
    /// No new rounds; also true once the job has its last version.
    pub paused: bool,
}

impl From<&JobPlan> for wire::JobPlan {
    fn from(plan: &JobPlan) -> Self {
        Self {
            spec: Some((&plan.spec).into()),
            merge_round: plan.merge_round.0,
            base_version: plan.base_version.0,
            model_digest: plan.model.0.to_vec(),
            model_bytes: plan.model_bytes,
            scale_exponents: wide(&plan.exponents),
            norm_bound: plan.norm_bound,
            window_ends_ms: plan.window_ends.0,
            paused: plan.paused,
        }
    }
}

impl TryFrom<wire::JobPlan> for JobPlan {
    type Error = ConvertError;

    fn try_from(plan: wire::JobPlan) -> Result<Self, ConvertError> {
        let at = |field| At("JobPlan", field);
        let spec: JobSpec = at("spec").present(plan.spec)?.try_into()?;
        let exponents = at("scale_exponents").exponents(&plan.scale_exponents)?;
        let tensors = spec.model.schema()?.tensors().len();
        at("scale_exponents").length(exponents.len(), tensors)?;
        let norm_bound = at("norm_bound").finite(plan.norm_bound)?;
        at("norm_bound").range(norm_bound > 0.0, norm_bound, "above 0")?;
        at("model_bytes").range(plan.model_bytes > 0, plan.model_bytes, "1 or more")?;
        Ok(Self {
            spec,
            merge_round: RoundId(plan.merge_round),
            base_version: ModelVersion(plan.base_version),
            model: at("model_digest").digest(&plan.model_digest)?,
            model_bytes: plan.model_bytes,
            exponents,
            norm_bound,
            window_ends: Timestamp(plan.window_ends_ms),
            paused: plan.paused,
        })
    }
}

/// Asks for a model's frame from an offset on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchModel {
    /// Who asks.
    pub roadside: RoadsideId,
    /// The job.
    pub job: JobId,
    /// BLAKE3 of the frame.
    pub digest: Digest,
    /// Bytes that the sender has already.
    pub offset: u64,
}

impl Wire for FetchModel {
    type Message = wire::FetchModelRequest;
    const NAME: &'static str = "FetchModelRequest";
    const MAX_BYTES: usize = 1024;
}

impl From<&FetchModel> for wire::FetchModelRequest {
    fn from(fetch: &FetchModel) -> Self {
        Self {
            roadside: fetch.roadside.to_string(),
            job: fetch.job.to_string(),
            digest: fetch.digest.0.to_vec(),
            offset: fetch.offset,
        }
    }
}

impl TryFrom<wire::FetchModelRequest> for FetchModel {
    type Error = ConvertError;

    fn try_from(fetch: wire::FetchModelRequest) -> Result<Self, ConvertError> {
        let at = |field| At(Self::NAME, field);
        Ok(Self {
            roadside: at("roadside").id(&fetch.roadside)?,
            job: at("job").id(&fetch.job)?,
            digest: at("digest").digest(&fetch.digest)?,
            offset: fetch.offset,
        })
    }
}

/// A piece of a model's frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelPiece {
    /// Where it belongs.
    pub offset: u64,
    /// The bytes, at least 1.
    pub data: Vec<u8>,
}

impl Wire for ModelPiece {
    type Message = wire::ModelPiece;
    const NAME: &'static str = "ModelPiece";
    const MAX_BYTES: usize = 4 << 20;
}

impl From<&ModelPiece> for wire::ModelPiece {
    fn from(piece: &ModelPiece) -> Self {
        Self {
            offset: piece.offset,
            data: piece.data.clone(),
        }
    }
}

impl TryFrom<wire::ModelPiece> for ModelPiece {
    type Error = ConvertError;

    fn try_from(piece: wire::ModelPiece) -> Result<Self, ConvertError> {
        let at = At(Self::NAME, "data");
        at.range(!piece.data.is_empty(), "empty", "1 byte or more")?;
        Ok(Self {
            offset: piece.offset,
            data: piece.data,
        })
    }
}

/// A piece of an encoded [`PartialAggregate`](super::PartialAggregate).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartialPart {
    /// Whose piece.
    pub partial_id: UpdateId,
    /// Bytes of the whole, at least 1.
    pub total_bytes: u64,
    /// BLAKE3 of the whole.
    pub digest: Digest,
    /// Where it belongs.
    pub offset: u64,
    /// The bytes, at least 1; they end within the whole.
    pub data: Vec<u8>,
}

impl Wire for PartialPart {
    type Message = wire::PartialPart;
    const NAME: &'static str = "PartialPart";
    const MAX_BYTES: usize = 4 << 20;
}

impl From<&PartialPart> for wire::PartialPart {
    fn from(part: &PartialPart) -> Self {
        Self {
            partial_id: part.partial_id.0.to_vec(),
            total_bytes: part.total_bytes,
            digest: part.digest.0.to_vec(),
            offset: part.offset,
            data: part.data.clone(),
        }
    }
}

impl TryFrom<wire::PartialPart> for PartialPart {
    type Error = ConvertError;

    fn try_from(part: wire::PartialPart) -> Result<Self, ConvertError> {
        let at = |field| At(Self::NAME, field);
        let end = part.offset.checked_add(part.data.len() as u64);
        let fits = !part.data.is_empty() && end.is_some_and(|end| end <= part.total_bytes);
        at("data").range(
            fits,
            part.data.len(),
            "1 byte to what is left of total_bytes",
        )?;
        Ok(Self {
            partial_id: at("partial_id").update_id(&part.partial_id)?,
            total_bytes: part.total_bytes,
            digest: at("digest").digest(&part.digest)?,
            offset: part.offset,
            data: part.data,
        })
    }
}
