//! From MQTT messages to what they say, checked: topic and body agree, and both are meant for this vehicle.

use wayside_domain::ids::{Digest, JobId, RoadsideId, VehicleId};
use wayside_domain::job::JobSpec;
use wayside_proto::codec;
use wayside_proto::convert::{Announcement, Control, ConvertError, ModelPart, Need, Receipt, Wire};
use wayside_proto::topics::{ModelKey, Topic, TopicError};

use crate::machine::Announced;

/// A message from the roadside unit.
#[derive(Debug)]
pub enum Incoming {
    /// "Register."
    Register,
    /// "I know you."
    Registered,
    /// A job's state.
    Announcement {
        /// Which job's.
        job: JobId,
        /// Its state.
        announced: Announced,
        /// Sent now, not kept by the broker.
        live: bool,
    },
    /// What a job asks.
    JobSpec {
        /// Digest of what it was read from.
        digest: Digest,
        /// What it asks.
        spec: Box<JobSpec>,
        /// What it was read from.
        encoded: Vec<u8>,
    },
    /// A chunk of a model.
    ModelPart {
        /// Which job's.
        job: JobId,
        /// Which model.
        key: ModelKey,
        /// Its place in the whole.
        chunk: u32,
        /// Its bytes.
        data: Vec<u8>,
    },
    /// An answer to an update.
    Receipt {
        /// Which job's.
        job: JobId,
        /// The answer.
        receipt: Receipt,
    },
    /// Missing chunks of an update.
    Need {
        /// Which job's.
        job: JobId,
        /// Which chunks.
        need: Need,
    },
}

/// Why a message is refused.
#[derive(Debug, thiserror::Error)]
pub enum InboxError {
    /// No topic of ours.
    #[error(transparent)]
    Topic(#[from] TopicError),
    /// A body that cannot be read.
    #[error(transparent)]
    Body(#[from] ConvertError),
    /// Not meant for this vehicle, or no topic that a vehicle reads.
    #[error("not meant for this vehicle")]
    NotOurs,
}

/// Reads a message to `vehicle` at `roadside`; `retained` tells one that the broker kept from one that was sent now.
///
/// # Errors
/// [`InboxError`] if it makes no sense or is meant for others.
pub fn read(
    topic: &str,
    payload: &[u8],
    retained: bool,
    here: (&RoadsideId, &VehicleId),
) -> Result<Incoming, InboxError> {
    read_from(&Topic::parse(topic)?, payload, retained, here)
}

/// [`read`] with the topic read already.
///
/// # Errors
/// As [`read`].
pub fn read_from(
    topic: &Topic,
    payload: &[u8],
    retained: bool,
    (roadside, vehicle): (&RoadsideId, &VehicleId),
) -> Result<Incoming, InboxError> {
    let ours = |unit: &RoadsideId, to: &VehicleId| {
        let fits = unit == roadside && to == vehicle;
        fits.then_some(()).ok_or(InboxError::NotOurs)
    };
    let here = |unit: &RoadsideId| ours(unit, vehicle);
    match topic {
        Topic::Control {
            roadside: unit,
            vehicle: to,
        } => {
            ours(unit, to)?;
            Ok(match Control::decode(payload)? {
                Control::Register(_) => Incoming::Register,
                Control::Registered(_) => Incoming::Registered,
            })
        }
        Topic::Round {
            roadside: unit,
            job,
        } => {
            here(unit)?;
            let announcement = Announcement::decode(payload)?;
            announcement.check_topic(topic)?;
            Ok(Incoming::Announcement {
                job: job.clone(),
                announced: announced(announcement, vehicle),
                live: !retained,
            })
        }
        Topic::Job {
            roadside: unit,
            job,
        } => {
            here(unit)?;
            let spec = JobSpec::decode(payload)?;
            if spec.job != *job {
                return Err(InboxError::NotOurs);
            }
            Ok(Incoming::JobSpec {
                digest: codec::digest(payload),
                spec: Box::new(spec),
                encoded: payload.to_vec(),
            })
        }
        Topic::Model {
            roadside: unit,
            job,
            key,
            chunk,
        } => {
            here(unit)?;
            Ok(Incoming::ModelPart {
                job: job.clone(),
                key: *key,
                chunk: *chunk,
                data: ModelPart::decode(payload)?.data,
            })
        }
        Topic::Receipt {
            roadside: unit,
            job,
            vehicle: to,
        } => {
            ours(unit, to)?;
            let (job, receipt) = (job.clone(), Receipt::decode(payload)?);
            Ok(Incoming::Receipt { job, receipt })
        }
        Topic::Need {
            roadside: unit,
            job,
            vehicle: to,
        } => {
            ours(unit, to)?;
            let (job, need) = (job.clone(), Need::decode(payload)?);
            Ok(Incoming::Need { job, need })
        }
        _ => Err(InboxError::NotOurs),
    }
}

fn announced(announcement: Announcement, vehicle: &VehicleId) -> Announced {
    let size = |n: u32| usize::try_from(n).unwrap_or(usize::MAX);
    Announced {
        round: announcement.round,
        base_version: announcement.base_version,
        model: announcement.model,
        model_bytes: size(announcement.model_bytes),
        model_chunks: size(announcement.model_chunks),
        job_digest: announcement.job_digest,
        exponents: announcement.exponents,
        in_cohort: announcement.cohort.contains(vehicle),
        open: announcement.open,
    }
}
