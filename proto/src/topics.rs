//! The only topic strings: Wayside's own, and those of `KubeEdge` that Wayside speaks.
//!
//! Wayside's topics begin with `wayside/v1/{roadside}`. None of them matches a filter that `KubeEdge` forwards
//! (`+/user/#`, `SYS/dis/upload_records`, `$hw/events/upload/#`): parameters never cross it. Numbers in topics are
//! decimal without leading zeros, so that one topic has one text.
//!
//! | topic | direction | payload |
//! | --- | --- | --- |
//! | `{job}/round` | to vehicles, retained | `Announcement` |
//! | `{job}/job` | to vehicles, retained | `JobSpec` |
//! | `{job}/model/{key}/{chunk}` | to vehicles, retained | `ModelPart` |
//! | `{job}/update/{vehicle}/{round}/{chunk}` | to roadside | `UpdatePart` |
//! | `{job}/receipt/{vehicle}` | to vehicle | `Receipt` |
//! | `{job}/need/{vehicle}` | to vehicle | `Need` |
//! | `fleet/presence/{vehicle}` | to roadside | `Presence` |
//! | `fleet/control/{vehicle}` | to vehicle | `Control` |

mod device;
mod filter;

pub use device::{DeviceEvent, NodeEvent};
pub use filter::matches;

use std::fmt;
use std::str::FromStr;
use wayside_domain::ids::{Digest, IdError, JobId, Namespace, RoadsideId, RoundId, VehicleId};
use wayside_domain::job::RESERVED_JOB_IDS;

/// Longest topic that is looked at, in bytes.
pub const MAX_TOPIC_BYTES: usize = 512;

/// Why a text is not one of our topics.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TopicError {
    /// No topic that Wayside speaks.
    #[error("topic {topic:?} is none of ours")]
    Unknown {
        /// The topic, cut to 128 characters.
        topic: String,
    },
    /// A level that should be an id is none.
    #[error("{level} in the topic: {source}")]
    Id {
        /// Which level.
        level: &'static str,
        /// What is wrong with it.
        #[source]
        source: IdError,
    },
    /// A level that should be a number or a digest is none.
    #[error("{level} in the topic is {got:?}")]
    Number {
        /// Which level.
        level: &'static str,
        /// The level, cut to 128 characters.
        got: String,
    },
}

/// First half of a model's digest, as it stands in topics (32 hexadecimal digits).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModelKey(pub [u8; 16]);

impl ModelKey {
    /// The key of a model frame with this digest.
    pub fn of(digest: &Digest) -> Self {
        let mut key = [0; 16];
        key.copy_from_slice(&digest.0[..16]);
        Self(key)
    }
}

impl fmt::Display for ModelKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A topic that some tier publishes to. `Display` writes it, [`Topic::parse`] reads it back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Topic {
    /// State of a job at a roadside unit, retained.
    Round {
        /// Whose broker it is on.
        roadside: RoadsideId,
        /// The job.
        job: JobId,
    },
    /// What the job is, retained.
    Job {
        /// Whose broker it is on.
        roadside: RoadsideId,
        /// The job.
        job: JobId,
    },
    /// A chunk of a model frame, retained.
    Model {
        /// Whose broker it is on.
        roadside: RoadsideId,
        /// The job.
        job: JobId,
        /// Which frame.
        key: ModelKey,
        /// Which chunk, from 0.
        chunk: u32,
    },
    /// A chunk of an update.
    Update {
        /// For whom it is sealed.
        roadside: RoadsideId,
        /// The job.
        job: JobId,
        /// The sender.
        vehicle: VehicleId,
        /// The round it is sealed for.
        round: RoundId,
        /// Which chunk, from 0.
        chunk: u32,
    },
    /// What became of an update.
    Receipt {
        /// The sender.
        roadside: RoadsideId,
        /// The job.
        job: JobId,
        /// For whom.
        vehicle: VehicleId,
    },
    /// Chunks that are missing.
    Need {
        /// The sender.
        roadside: RoadsideId,
        /// The job.
        job: JobId,
        /// For whom.
        vehicle: VehicleId,
    },
    /// A vehicle is there, or (as its last will) gone.
    Presence {
        /// Whose broker it is on.
        roadside: RoadsideId,
        /// The sender.
        vehicle: VehicleId,
    },
    /// A word from the roadside unit to one vehicle.
    Control {
        /// The sender.
        roadside: RoadsideId,
        /// For whom.
        vehicle: VehicleId,
    },
    /// A device topic of `KubeEdge`.
    Device {
        /// Kubernetes namespace of the device.
        namespace: Namespace,
        /// The device, which is a vehicle.
        vehicle: VehicleId,
        /// Which of its topics.
        event: DeviceEvent,
    },
    /// `KubeEdge`'s answer to a twin update that it could not read: it names no device.
    TwinRefused,
    /// A node topic of `KubeEdge`.
    Node {
        /// Kubernetes name of the node.
        node: String,
        /// Which of its topics.
        event: NodeEvent,
    },
}

impl Topic {
    /// Reads a topic; every id in it is checked.
    pub fn parse(topic: &str) -> Result<Self, TopicError> {
        let unknown = || TopicError::Unknown { topic: cut(topic) };
        if topic.len() > MAX_TOPIC_BYTES {
            return Err(unknown());
        }
        if let Some(rest) = topic.strip_prefix(device::PREFIX) {
            return device::parse(rest).unwrap_or_else(|| Err(unknown()));
        }
        let levels: Vec<&str> = topic.split('/').collect();
        let ["wayside", "v1", roadside, rest @ ..] = levels.as_slice() else {
            return Err(unknown());
        };
        let roadside: RoadsideId = id("roadside", roadside)?;
        match rest {
            ["fleet", "presence", vehicle] => Ok(Self::Presence {
                roadside,
                vehicle: id("vehicle", vehicle)?,
            }),
            ["fleet", "control", vehicle] => Ok(Self::Control {
                roadside,
                vehicle: id("vehicle", vehicle)?,
            }),
            [job, ..] if RESERVED_JOB_IDS.contains(job) => Err(unknown()),
            [job, rest @ ..] => {
                Self::of_job(roadside, id("job", job)?, rest).unwrap_or_else(|| Err(unknown()))
            }
            [] => Err(unknown()),
        }
    }

    /// The levels behind the job; `None` if they are none of ours.
    fn of_job(roadside: RoadsideId, job: JobId, rest: &[&str]) -> Option<Result<Self, TopicError>> {
        Some(match rest {
            ["round"] => Ok(Self::Round { roadside, job }),
            ["job"] => Ok(Self::Job { roadside, job }),
            ["model", key, chunk] => model_key(key).and_then(|key| {
                Ok(Self::Model {
                    roadside,
                    job,
                    key,
                    chunk: number("chunk", chunk)?,
                })
            }),
            ["update", vehicle, round, chunk] => id("vehicle", vehicle).and_then(|vehicle| {
                Ok(Self::Update {
                    roadside,
                    job,
                    vehicle,
                    round: RoundId(number("round", round)?),
                    chunk: number("chunk", chunk)?,
                })
            }),
            ["receipt", vehicle] => id("vehicle", vehicle).map(|vehicle| Self::Receipt {
                roadside,
                job,
                vehicle,
            }),
            ["need", vehicle] => id("vehicle", vehicle).map(|vehicle| Self::Need {
                roadside,
                job,
                vehicle,
            }),
            _ => return None,
        })
    }
}

impl fmt::Display for Topic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Round { roadside, job } => write!(f, "wayside/v1/{roadside}/{job}/round"),
            Self::Job { roadside, job } => write!(f, "wayside/v1/{roadside}/{job}/job"),
            Self::Model {
                roadside,
                job,
                key,
                chunk,
            } => write!(f, "wayside/v1/{roadside}/{job}/model/{key}/{chunk}"),
            Self::Update {
                roadside,
                job,
                vehicle,
                round,
                chunk,
            } => {
                let round = round.0;
                write!(
                    f,
                    "wayside/v1/{roadside}/{job}/update/{vehicle}/{round}/{chunk}"
                )
            }
            Self::Receipt {
                roadside,
                job,
                vehicle,
            } => write!(f, "wayside/v1/{roadside}/{job}/receipt/{vehicle}"),
            Self::Need {
                roadside,
                job,
                vehicle,
            } => write!(f, "wayside/v1/{roadside}/{job}/need/{vehicle}"),
            Self::Presence { roadside, vehicle } => {
                write!(f, "wayside/v1/{roadside}/fleet/presence/{vehicle}")
            }
            Self::Control { roadside, vehicle } => {
                write!(f, "wayside/v1/{roadside}/fleet/control/{vehicle}")
            }
            Self::Device {
                namespace,
                vehicle,
                event,
            } => device::write_device(f, namespace, vehicle, *event),
            Self::TwinRefused => f.write_str(device::TWIN_REFUSED),
            Self::Node { node, event } => device::write_node(f, node, *event),
        }
    }
}

/// Everything that a vehicle is always subscribed to at a roadside unit; models come by [`model_filter`].
pub fn vehicle_filters(roadside: &RoadsideId, vehicle: &VehicleId) -> Vec<String> {
    vec![
        format!("wayside/v1/{roadside}/+/round"),
        format!("wayside/v1/{roadside}/+/job"),
        format!("wayside/v1/{roadside}/+/receipt/{vehicle}"),
        format!("wayside/v1/{roadside}/+/need/{vehicle}"),
        format!("wayside/v1/{roadside}/fleet/control/{vehicle}"),
    ]
}

/// The chunks of one model, subscribed while it is missing.
pub fn model_filter(roadside: &RoadsideId, job: &JobId, key: ModelKey) -> String {
    format!("wayside/v1/{roadside}/{job}/model/{key}/+")
}

/// Everything that a roadside unit subscribes to on its own broker.
pub fn roadside_filters(roadside: &RoadsideId) -> Vec<String> {
    vec![
        format!("wayside/v1/{roadside}/+/update/+/+/+"),
        format!("wayside/v1/{roadside}/fleet/presence/+"),
        device::TWIN_UPDATE_FILTER.to_owned(),
    ]
}

fn cut(text: &str) -> String {
    text.chars().take(128).collect()
}

fn id<T: FromStr<Err = IdError>>(level: &'static str, text: &str) -> Result<T, TopicError> {
    text.parse()
        .map_err(|source| TopicError::Id { level, source })
}

/// A decimal number in its one form.
fn number<T: FromStr + ToString>(level: &'static str, text: &str) -> Result<T, TopicError> {
    text.parse()
        .ok()
        .filter(|number: &T| number.to_string() == text)
        .ok_or_else(|| TopicError::Number {
            level,
            got: cut(text),
        })
}

fn model_key(text: &str) -> Result<ModelKey, TopicError> {
    // An update id is 16 bytes as well and reads hexadecimal; only the lower-case form is a key.
    wayside_domain::ids::UpdateId::from_hex(text)
        .map(|bytes| ModelKey(bytes.0))
        .filter(|key| key.to_string() == text)
        .ok_or_else(|| TopicError::Number {
            level: "model",
            got: cut(text),
        })
}

#[cfg(test)]
mod tests;
