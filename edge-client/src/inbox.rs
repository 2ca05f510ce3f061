//! From MQTT messages to what they say, checked: topic and body agree, and both are meant for this vehicle.

use rumqttc::Publish;
use wayside_domain::ids::{Digest, JobId, RoadsideId, VehicleId};
use wayside_domain::job::JobSpec;
use wayside_proto::codec;
use wayside_proto::convert::{Announcement, Control, ConvertError, ModelPart, Need, Receipt, Wire};
use wayside_proto::topics::{ModelKey, Topic, TopicError};

use crate::machine::Announced;

/// A message from the roadside unit.
#[derive(Debug)]
pub(crate) enum Incoming {
    /// "Register."
    Register,
    /// "I know you."
    Registered,
    /// A job's state.
    Announcement {
        job: JobId,
        announced: Announced,
        /// Sent now, not kept by the broker.
        live: bool,
    },
    /// What a job asks.
    JobSpec {
        digest: Digest,
        spec: Box<JobSpec>,
        encoded: Vec<u8>,
    },
    /// A chunk of a model.
    ModelPart {
        job: JobId,
        key: ModelKey,
        chunk: u32,
        data: Vec<u8>,
    },
    /// An answer to an update.
    Receipt { job: JobId, receipt: Receipt },
    /// Missing chunks of an update.
    Need { job: JobId, need: Need },
}

/// Why a message is refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InboxError {
    #[error(transparent)]
    Topic(#[from] TopicError),
    #[error(transparent)]
    Body(#[from] ConvertError),
    /// Not meant for this vehicle, or no topic that a vehicle reads.
    #[error("not meant for this vehicle")]
    NotOurs,
}

/// Reads a message.
pub(crate) fn read(
    message: &Publish,
    roadside: &RoadsideId,
    vehicle: &VehicleId,
) -> Result<Incoming, InboxError> {
    let topic = Topic::parse(&message.topic)?;
    let payload: &[u8] = &message.payload;
    let ours = |unit: &RoadsideId, to: &VehicleId| {
        let fits = unit == roadside && to == vehicle;
        fits.then_some(()).ok_or(InboxError::NotOurs)
    };
    let here = |unit: &RoadsideId| ours(unit, vehicle);
    match &topic {
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
            announcement.check_topic(&topic)?;
            Ok(Incoming::Announcement {
                job: job.clone(),
                announced: announced(announcement, vehicle),
                live: !message.retain,
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
