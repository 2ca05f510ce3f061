//! Updates and their chunks.

use super::check::{At, millis};
use super::{ConvertError, MIN_CHUNK_BYTES, Wire, chunk_count};
use crate::codec;
use crate::topics::Topic;
use crate::wire;
use std::time::Duration;
use wayside_domain::encoding::UpdateEncoding;
use wayside_domain::ids::{Digest, JobId, ModelVersion, RoadsideId, RoundId, UpdateId, VehicleId};
use wayside_domain::schema::Schema;

/// Most bytes of an encoded [`Update`] beside its frame.
const UPDATE_HEAD: usize = 512;

/// The most bytes that an encoded [`Update`] of this schema can have: the bound for a declared total.
pub fn max_update_bytes(schema: &Schema) -> usize {
    UPDATE_HEAD + codec::max_update_bytes(schema)
}

/// One chunk of an encoded [`Update`]; its topic says which.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpdatePart {
    /// Whose chunk.
    pub update_id: UpdateId,
    /// Bytes of the whole, at least 1.
    pub total_bytes: u32,
    /// Chunks of the whole, at least 1, no more than chunks of [`MIN_CHUNK_BYTES`] would be.
    pub total_chunks: u32,
    /// BLAKE3 of the whole.
    pub digest: Digest,
    /// The bytes, at least 1 and at most the total.
    pub data: Vec<u8>,
}

impl Wire for UpdatePart {
    type Message = wire::UpdatePart;
    const NAME: &'static str = "UpdatePart";
    const MAX_BYTES: usize = (1 << 20) + 256;
}

impl UpdatePart {
    /// Compares the declared total with what the schema allows, and the topic's chunk number with the declared chunks.
    pub fn check_totals(&self, chunk: u32, max_bytes: usize) -> Result<(), ConvertError> {
        let got = usize::try_from(self.total_bytes).unwrap_or(usize::MAX);
        if got > max_bytes {
            return Err(ConvertError::TooLarge {
                message: Update::NAME,
                got,
                limit: max_bytes,
            });
        }
        let at = At(Self::NAME, "chunk");
        at.range(chunk < self.total_chunks, chunk, "below total_chunks")
    }
}

impl From<&UpdatePart> for wire::UpdatePart {
    fn from(part: &UpdatePart) -> Self {
        Self {
            update_id: part.update_id.0.to_vec(),
            total_bytes: part.total_bytes,
            total_chunks: part.total_chunks,
            digest: part.digest.0.to_vec(),
            data: part.data.clone(),
        }
    }
}

impl TryFrom<wire::UpdatePart> for UpdatePart {
    type Error = ConvertError;

    fn try_from(part: wire::UpdatePart) -> Result<Self, ConvertError> {
        let at = |field| At(Self::NAME, field);
        let size = |n: u32| usize::try_from(n).unwrap_or(usize::MAX);
        let (bytes, chunks) = (part.total_bytes, part.total_chunks);
        at("total_bytes").range(bytes > 0, bytes, "1 or more")?;
        let most = chunk_count(size(bytes), MIN_CHUNK_BYTES);
        let fits = chunks > 0 && size(chunks) <= most;
        at("total_chunks").range(fits, chunks, "1 to one for each 256 bytes")?;
        let got = part.data.len();
        at("data").range(got > 0 && got <= size(bytes), got, "1 byte to total_bytes")?;
        Ok(Self {
            update_id: at("update_id").update_id(&part.update_id)?,
            total_bytes: bytes,
            total_chunks: chunks,
            digest: at("digest").digest(&part.digest)?,
            data: part.data,
        })
    }
}

/// What a vehicle says about its work and its link. Times are whole milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct UpdateMetrics {
    /// Mean training loss of the last pass in nats, finite.
    pub loss: Option<f64>,
    /// Time spent on training.
    pub train: Duration,
    /// Receipts since the vehicle's start.
    pub receipts: u64,
    /// Those that came within the latency budget.
    pub receipts_within_budget: u64,
    /// From "encoded" to "receipt in hand" of the previous update; zero if there was none.
    pub last_latency: Duration,
    /// How this update is written; `None` where the vehicle does not say.
    pub encoding: Option<UpdateEncoding>,
    /// What the link carried with the previous update, in bytes a second; 0 if that is not known.
    pub goodput_bytes_per_s: u64,
}

impl From<&UpdateMetrics> for wire::UpdateMetrics {
    fn from(metrics: &UpdateMetrics) -> Self {
        Self {
            loss: metrics.loss,
            train_ms: millis(metrics.train),
            receipts: metrics.receipts,
            receipts_within_budget: metrics.receipts_within_budget,
            last_latency_ms: millis(metrics.last_latency),
            encoding: metrics
                .encoding
                .map(|encoding| encoding.label().to_owned())
                .unwrap_or_default(),
            goodput_bytes_per_s: metrics.goodput_bytes_per_s,
        }
    }
}

impl TryFrom<wire::UpdateMetrics> for UpdateMetrics {
    type Error = ConvertError;

    fn try_from(metrics: wire::UpdateMetrics) -> Result<Self, ConvertError> {
        let at = At("UpdateMetrics", "loss");
        Ok(Self {
            loss: metrics.loss.map(|loss| at.finite(loss)).transpose()?,
            train: Duration::from_millis(metrics.train_ms),
            receipts: metrics.receipts,
            receipts_within_budget: metrics.receipts_within_budget,
            last_latency: Duration::from_millis(metrics.last_latency_ms),
            // A label of a newer version says nothing here; the frame has its own.
            encoding: UpdateEncoding::parse(&metrics.encoding),
            goodput_bytes_per_s: metrics.goodput_bytes_per_s,
        })
    }
}

/// One update, sealed once for (job, roadside, round). Its frame has not been looked at.
#[derive(Clone, Debug, PartialEq)]
pub struct Update {
    /// The job.
    pub job: JobId,
    /// For whom it is sealed.
    pub roadside: RoadsideId,
    /// The sender.
    pub vehicle: VehicleId,
    /// The round it is sealed for.
    pub round: RoundId,
    /// The model it was trained from.
    pub base_version: ModelVersion,
    /// The same in every delivery.
    pub update_id: UpdateId,
    /// Examples behind it.
    pub num_examples: u64,
    /// Frame of the delta, for [`crate::codec::decode_delta`].
    pub frame: Vec<u8>,
    /// What the vehicle says about its work.
    pub metrics: UpdateMetrics,
}

/// The bound here is for any schema; [`max_update_bytes`] is the one that holds for a job.
impl Wire for Update {
    type Message = wire::Update;
    const NAME: &'static str = "Update";
    const MAX_BYTES: usize = 160 << 20;
}

impl Update {
    /// Refuses a body that came on the topic of another vehicle, roadside unit, job or round.
    pub fn check_topic(&self, topic: &Topic) -> Result<(), ConvertError> {
        let at = |field| At(Self::NAME, field);
        match topic {
            Topic::Update {
                roadside,
                job,
                vehicle,
                round,
                ..
            } => {
                at("roadside").agrees(&self.roadside, "topic", roadside)?;
                at("job").agrees(&self.job, "topic", job)?;
                at("vehicle").agrees(&self.vehicle, "topic", vehicle)?;
                at("round").agrees(&self.round, "topic", round)
            }
            other => Err(at("vehicle").wrong_topic(other)),
        }
    }

    /// Refuses a body under another id than that of its chunks.
    pub fn check_id(&self, chunks: &UpdateId) -> Result<(), ConvertError> {
        At(Self::NAME, "update_id").agrees(&self.update_id, "UpdatePart", chunks)
    }
}

impl From<&Update> for wire::Update {
    fn from(update: &Update) -> Self {
        Self {
            job: update.job.to_string(),
            roadside: update.roadside.to_string(),
            vehicle: update.vehicle.to_string(),
            round: update.round.0,
            base_version: update.base_version.0,
            update_id: update.update_id.0.to_vec(),
            num_examples: update.num_examples,
            frame: update.frame.clone(),
            metrics: Some((&update.metrics).into()),
        }
    }
}

impl TryFrom<wire::Update> for Update {
    type Error = ConvertError;

    fn try_from(update: wire::Update) -> Result<Self, ConvertError> {
        let at = |field| At(Self::NAME, field);
        Ok(Self {
            job: at("job").id(&update.job)?,
            roadside: at("roadside").id(&update.roadside)?,
            vehicle: at("vehicle").id(&update.vehicle)?,
            round: RoundId(update.round),
            base_version: ModelVersion(update.base_version),
            update_id: at("update_id").update_id(&update.update_id)?,
            num_examples: update.num_examples,
            frame: update.frame,
            metrics: update.metrics.unwrap_or_default().try_into()?,
        })
    }
}
