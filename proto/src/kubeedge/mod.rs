//! JSON payloads of `KubeEdge` (device twin, state, membership) and its envelope.
//!
//! On MQTT the payloads stand bare; the envelope exists only between edge and cloud. Written texts are checked against
//! the edge's rules first, since the edge answers a refused text without naming its sender. Read texts may have
//! unknown fields, an empty `event_id` and nulls; a missing or non-text value, and a time that is not in milliseconds,
//! are refused with a reason. Times here are for people: nothing is ordered by them.

mod envelope;
mod heartbeat;
mod membership;
mod millis;
mod state;
mod twin;

pub use envelope::{Envelope, Header, Route};
pub use heartbeat::{Heartbeat, HeartbeatError, TrainState};
pub use membership::{Device, MembershipGet, MembershipList, MembershipUpdate};
pub use millis::EARLIEST;
pub use state::{DeviceState, StateResult, StateUpdate};
pub use twin::{
    MAX_KEY_BYTES, MAX_VALUE_BYTES, Metadata, Twin, TwinChange, TwinDelta, TwinDocument,
    TwinResult, TwinUpdate, TwinValue, TypeMetadata, Versions,
};

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Longest payload that is read, in bytes.
pub const MAX_PAYLOAD_BYTES: usize = 1 << 20;

/// Why a payload is refused, or may not be sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PayloadError {
    /// Longer than [`MAX_PAYLOAD_BYTES`].
    #[error("payload of {got} bytes, the limit is {limit}")]
    TooLarge {
        /// Its length.
        got: usize,
        /// The limit.
        limit: usize,
    },
    /// No JSON, or not of this shape; what the reader says, cut to 256 characters.
    #[error("payload is not readable: {0}")]
    Malformed(String),
    /// A twin without a value where one must be.
    #[error("twin {key:?} has no value")]
    MissingValue {
        /// The twin's key.
        key: String,
    },
    /// A key that the edge refuses.
    #[error(
        "twin key {key:?}: {MAX_KEY_BYTES} characters at most, of `A-Z a-z 0-9 - _ . , : / @ #`"
    )]
    Key {
        /// The key, cut to 128 characters.
        key: String,
    },
    /// A value that the edge refuses.
    #[error(
        "value of twin {key:?}: {got} characters, {MAX_VALUE_BYTES} at most, of `A-Z a-z 0-9 - _ . , : / @ #`"
    )]
    Value {
        /// The twin's key.
        key: String,
        /// Bytes of the value.
        got: usize,
    },
}

/// Reads one of the payloads here. Twin updates are read with [`TwinUpdate::parse`], which checks more.
pub fn read<T: DeserializeOwned>(payload: &[u8]) -> Result<T, PayloadError> {
    if payload.len() > MAX_PAYLOAD_BYTES {
        return Err(PayloadError::TooLarge {
            got: payload.len(),
            limit: MAX_PAYLOAD_BYTES,
        });
    }
    // The reader repeats the text that it did not expect, however long that is.
    serde_json::from_slice(payload)
        .map_err(|error| PayloadError::Malformed(error.to_string().chars().take(256).collect()))
}

/// Writes one of the payloads here. Twin updates are written with [`TwinUpdate::to_json`], which checks more.
pub fn write<T: Serialize>(payload: &T) -> Result<Vec<u8>, PayloadError> {
    serde_json::to_vec(payload).map_err(|error| PayloadError::Malformed(error.to_string()))
}
