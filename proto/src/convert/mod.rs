//! Messages as plain structs with typed ids, to and from bytes.
//!
//! [`Wire`] is implemented for each message and for the domain's [`JobSpec`](wayside_domain::job::JobSpec). What
//! `decode` gives has been checked: ids follow their pattern, floats are finite, lists are within their limits.
//! Whether it fits the sender, the round or the model is for the caller; `check_topic` compares a body with the topic
//! that it came on.
//!
//! Limits are checked before anything is allocated for the fields that they bound.

mod check;
mod chunks;
mod cloud;
mod error;
mod job;
mod partial;
mod receipt;
mod update;
mod vehicle;

pub use check::Limit;
pub use chunks::{MIN_CHUNK_BYTES, chunk_count, split};
pub use cloud::{Envelope, FetchModel, Hello, JobPlan, ModelPiece, PartialPart, Plan, resource};
pub use error::ConvertError;
pub use job::{decode_schema, encode_schema};
pub use partial::{
    Contribution, MAX_CONTRIBUTIONS, MAX_ROUND_SUMMARIES, PartialAggregate, PartialReceipt,
    RoundSummary, max_partial_bytes,
};
pub use receipt::{Need, Receipt};
pub use update::{Update, UpdateMetrics, UpdatePart, max_update_bytes};
pub use vehicle::{Announcement, Control, MAX_COHORT, MAX_VERSION_CHARS, ModelPart, Presence};

use prost::Message;

/// A message that crosses a wire.
pub trait Wire: Sized + TryFrom<Self::Message, Error = ConvertError> {
    /// Its generated form.
    type Message: Message + Default + for<'a> From<&'a Self>;
    /// Its name in the `.proto` files, for errors.
    const NAME: &'static str;
    /// The most bytes that are looked at.
    const MAX_BYTES: usize;
    /// Repeated fields that are counted before anything is decoded.
    const REPEATED: &'static [Limit] = &[];
    /// Repeated integers that are counted before anything is decoded.
    const NUMBERS: &'static [Limit] = &[];

    /// The message as bytes. The same value gives the same bytes.
    fn encode(&self) -> Vec<u8> {
        Self::Message::from(self).encode_to_vec()
    }

    /// Reads and checks a message from outside.
    fn decode(bytes: &[u8]) -> Result<Self, ConvertError> {
        let message = Self::NAME;
        if bytes.len() > Self::MAX_BYTES {
            return Err(ConvertError::TooLarge {
                message,
                got: bytes.len(),
                limit: Self::MAX_BYTES,
            });
        }
        check::count_repeated(message, bytes, Self::REPEATED)?;
        check::count_numbers(message, bytes, Self::NUMBERS)?;
        let decoded = Self::Message::decode(bytes).map_err(|error| ConvertError::Malformed {
            message,
            detail: error.to_string(),
        })?;
        Self::try_from(decoded)
    }
}
