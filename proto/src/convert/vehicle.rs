//! What a roadside unit and its vehicles say to each other, updates aside.

use super::check::{At, wide};
use super::{ConvertError, Limit, Wire};
use crate::topics::Topic;
use crate::wire;
use wayside_domain::ids::{
    Digest, Generation, JobId, ModelVersion, RoadsideId, RoundId, VehicleId,
};
use wayside_domain::schema::MAX_TENSORS;
use wayside_domain::time::Timestamp;

/// Most vehicles of one cohort.
pub const MAX_COHORT: usize = 100_000;
/// Longest text of a software version, in characters.
pub const MAX_VERSION_CHARS: usize = 64;

/// A vehicle is there, or gone.
#[derive(Clone, Debug, PartialEq)]
pub struct Presence {
    /// The sender.
    pub vehicle: VehicleId,
    /// Which start of the vehicle; older ones are to be ignored.
    pub generation: Generation,
    /// False in the last will.
    pub online: bool,
    /// Version of its software, printable ASCII.
    pub client_version: String,
    /// BLAKE3 of the backbone it has; `None` if it has none.
    pub backbone: Option<Digest>,
    /// Pictures at hand, all classes.
    pub num_examples: u64,
}

impl Wire for Presence {
    type Message = wire::Presence;
    const NAME: &'static str = "Presence";
    const MAX_BYTES: usize = 1024;
}

impl Presence {
    /// Refuses a body that came on the topic of another vehicle.
    pub fn check_topic(&self, topic: &Topic) -> Result<(), ConvertError> {
        let at = At(Self::NAME, "vehicle");
        match topic {
            Topic::Presence { vehicle, .. } => at.agrees(&self.vehicle, "topic", vehicle),
            other => Err(at.wrong_topic(other)),
        }
    }
}

impl From<&Presence> for wire::Presence {
    fn from(presence: &Presence) -> Self {
        Self {
            vehicle: presence.vehicle.to_string(),
            generation: presence.generation.0,
            online: presence.online,
            client_version: presence.client_version.clone(),
            backbone_digest: presence.backbone.map(|d| d.0.to_vec()).unwrap_or_default(),
            num_examples: presence.num_examples,
        }
    }
}

impl TryFrom<wire::Presence> for Presence {
    type Error = ConvertError;

    fn try_from(presence: wire::Presence) -> Result<Self, ConvertError> {
        let at = |field| At(Self::NAME, field);
        Ok(Self {
            vehicle: at("vehicle").id(&presence.vehicle)?,
            generation: Generation(presence.generation),
            online: presence.online,
            client_version: at("client_version")
                .label(presence.client_version, MAX_VERSION_CHARS)?,
            backbone: match presence.backbone_digest.as_slice() {
                [] => None,
                bytes => Some(at("backbone_digest").digest(bytes)?),
            },
            num_examples: presence.num_examples,
        })
    }
}

/// A word from the roadside unit to one vehicle; the number is the roadside unit's generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// "I do not know you: register."
    Register(Generation),
    /// "I know you."
    Registered(Generation),
}

impl Wire for Control {
    type Message = wire::Control;
    const NAME: &'static str = "Control";
    const MAX_BYTES: usize = 256;
}

impl From<&Control> for wire::Control {
    fn from(control: &Control) -> Self {
        let (kind, generation) = match control {
            Control::Register(generation) => (wire::ControlKind::Register, generation),
            Control::Registered(generation) => (wire::ControlKind::Registered, generation),
        };
        Self {
            kind: kind.into(),
            generation: generation.0,
        }
    }
}

impl TryFrom<wire::Control> for Control {
    type Error = ConvertError;

    fn try_from(control: wire::Control) -> Result<Self, ConvertError> {
        let generation = Generation(control.generation);
        match wire::ControlKind::try_from(control.kind) {
            Ok(wire::ControlKind::Register) => Ok(Self::Register(generation)),
            Ok(wire::ControlKind::Registered) => Ok(Self::Registered(generation)),
            _ => Err(ConvertError::Range {
                message: Self::NAME,
                field: "kind",
                got: control.kind.to_string(),
                allowed: "1 and 2",
            }),
        }
    }
}

/// The state of a job at a roadside unit: the round that is open, or the model to begin from.
#[derive(Clone, Debug, PartialEq)]
pub struct Announcement {
    /// The sender.
    pub roadside: RoadsideId,
    /// The job.
    pub job: JobId,
    /// The round that is open, or the last one.
    pub round: RoundId,
    /// Version of the model behind `model`, which updates start from.
    pub base_version: ModelVersion,
    /// BLAKE3 of the model's frame.
    pub model: Digest,
    /// Bytes of that frame, at least 1.
    pub model_bytes: u32,
    /// Chunks that it is published in, 1 to `model_bytes`.
    pub model_chunks: u32,
    /// BLAKE3 of the encoded job.
    pub job_digest: Digest,
    /// When the round ends.
    pub deadline: Timestamp,
    /// Scale exponent of each tensor, for deltas of this round.
    pub exponents: Vec<i8>,
    /// Who is asked to take part, at most [`MAX_COHORT`].
    pub cohort: Vec<VehicleId>,
    /// False between rounds: do not train.
    pub open: bool,
}

impl Wire for Announcement {
    type Message = wire::Announcement;
    const NAME: &'static str = "Announcement";
    const MAX_BYTES: usize = 8 << 20;
    const REPEATED: &'static [Limit] = &[(&[11], "cohort", MAX_COHORT)];
    const NUMBERS: &'static [Limit] = &[(&[10], "scale_exponents", MAX_TENSORS)];
}

impl Announcement {
    /// Refuses a body that came on the topic of another roadside unit or job.
    pub fn check_topic(&self, topic: &Topic) -> Result<(), ConvertError> {
        let at = |field| At(Self::NAME, field);
        match topic {
            Topic::Round { roadside, job } => {
                at("roadside").agrees(&self.roadside, "topic", roadside)?;
                at("job").agrees(&self.job, "topic", job)
            }
            other => Err(at("job").wrong_topic(other)),
        }
    }
}

impl From<&Announcement> for wire::Announcement {
    fn from(announcement: &Announcement) -> Self {
        Self {
            roadside: announcement.roadside.to_string(),
            job: announcement.job.to_string(),
            round: announcement.round.0,
            base_version: announcement.base_version.0,
            model_digest: announcement.model.0.to_vec(),
            model_bytes: announcement.model_bytes,
            model_chunks: announcement.model_chunks,
            job_digest: announcement.job_digest.0.to_vec(),
            deadline_ms: announcement.deadline.0,
            scale_exponents: wide(&announcement.exponents),
            cohort: announcement
                .cohort
                .iter()
                .map(ToString::to_string)
                .collect(),
            open: announcement.open,
        }
    }
}

impl TryFrom<wire::Announcement> for Announcement {
    type Error = ConvertError;

    fn try_from(announcement: wire::Announcement) -> Result<Self, ConvertError> {
        let at = |field| At(Self::NAME, field);
        let (bytes, chunks) = (announcement.model_bytes, announcement.model_chunks);
        at("model_bytes").range(bytes > 0, bytes, "1 or more")?;
        at("model_chunks").range(chunks > 0 && chunks <= bytes, chunks, "1 to model_bytes")?;
        at("cohort").at_most(announcement.cohort.len(), MAX_COHORT)?;
        let cohort = announcement.cohort.iter().map(|v| at("cohort").id(v));
        Ok(Self {
            roadside: at("roadside").id(&announcement.roadside)?,
            job: at("job").id(&announcement.job)?,
            round: RoundId(announcement.round),
            base_version: ModelVersion(announcement.base_version),
            model: at("model_digest").digest(&announcement.model_digest)?,
            model_bytes: bytes,
            model_chunks: chunks,
            job_digest: at("job_digest").digest(&announcement.job_digest)?,
            deadline: Timestamp(announcement.deadline_ms),
            exponents: at("scale_exponents").exponents(&announcement.scale_exponents)?,
            cohort: cohort.collect::<Result<_, _>>()?,
            open: announcement.open,
        })
    }
}

/// One chunk of a model's frame; its topic says which.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelPart {
    /// The bytes, at least one.
    pub data: Vec<u8>,
}

impl Wire for ModelPart {
    type Message = wire::ModelPart;
    const NAME: &'static str = "ModelPart";
    const MAX_BYTES: usize = (1 << 20) + 256;
}

impl From<&ModelPart> for wire::ModelPart {
    fn from(part: &ModelPart) -> Self {
        Self {
            data: part.data.clone(),
        }
    }
}

impl TryFrom<wire::ModelPart> for ModelPart {
    type Error = ConvertError;

    fn try_from(part: wire::ModelPart) -> Result<Self, ConvertError> {
        let at = At(Self::NAME, "data");
        at.range(!part.data.is_empty(), "empty", "1 byte or more")?;
        Ok(Self { data: part.data })
    }
}
