//! Reading a complete update: everything that can be said of its bytes before a round judges it.

use wayside_domain::ids::{Digest, ModelVersion, RoundId, UpdateId, VehicleId};
use wayside_domain::schema::Schema;
use wayside_domain::time::Timestamp;
use wayside_domain::update::RejectReason;
use wayside_proto::codec::{self, Delta};
use wayside_proto::convert::{Update, UpdateMetrics, Wire as _};
use wayside_proto::topics::Topic;

/// An update that is complete, or that was refused.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// The sender, as its topic says.
    pub vehicle: VehicleId,
    /// Its identity.
    pub update_id: UpdateId,
    /// The round it is sealed for.
    pub round: RoundId,
    /// When its first chunk came.
    pub first_chunk: Timestamp,
    /// Examples behind it; 0 where the body could not be read.
    pub num_examples: u64,
    /// What the vehicle says about its work.
    pub metrics: UpdateMetrics,
    /// What is in it, or why it does not count whatever its round says.
    pub content: Result<Content, RejectReason>,
}

/// What is in an update.
#[derive(Clone, Debug)]
pub struct Content {
    /// The model it was trained from.
    pub base_version: ModelVersion,
    /// Its values; `None` where its round is not the open one, so that nobody needs them.
    pub delta: Option<Delta>,
    /// The frame of its values.
    pub frame: Vec<u8>,
}

/// What the bytes of an update are to be.
#[derive(Clone, Copy, Debug)]
pub struct Expected<'a> {
    /// Where its chunks came.
    pub topic: &'a Topic,
    /// The id that its chunks name.
    pub update_id: UpdateId,
    /// What its chunks say that the whole hashes to.
    pub digest: Digest,
    /// The job's tensors.
    pub schema: &'a Schema,
    /// Scales that were announced.
    pub exponents: &'a [i8],
    /// The round that is open.
    pub open_round: Option<RoundId>,
}

/// Reads an update. Never fails: what is wrong with it is in the arrival.
pub fn read(
    vehicle: &VehicleId,
    round: RoundId,
    first_chunk: Timestamp,
    bytes: &[u8],
    expected: Expected<'_>,
) -> Arrival {
    let mut arrival = Arrival::refused(
        vehicle.clone(),
        expected.update_id,
        round,
        first_chunk,
        RejectReason::Damaged,
    );
    arrival.content = contents(&mut arrival, bytes, expected);
    arrival
}

fn contents(
    arrival: &mut Arrival,
    bytes: &[u8],
    expected: Expected<'_>,
) -> Result<Content, RejectReason> {
    let refuse = |error: &dyn std::fmt::Display, reason| {
        let vehicle = &arrival.vehicle;
        tracing::debug!(%vehicle, update = %expected.update_id, %error, "update refused");
        reason
    };
    if codec::digest(bytes) != expected.digest {
        return Err(refuse(
            &"digest of the whole differs",
            RejectReason::Damaged,
        ));
    }
    let update = Update::decode(bytes).map_err(|error| refuse(&error, error.reason()))?;
    update
        .check_topic(expected.topic)
        .and_then(|()| update.check_id(&expected.update_id))
        .map_err(|error| refuse(&error, error.reason()))?;
    let mut delta = None;
    if expected.open_round == Some(update.round) {
        let decoded = codec::decode_delta(&update.frame, expected.schema).and_then(|delta| {
            delta.check_exponents(expected.exponents)?;
            Ok(delta)
        });
        delta = Some(decoded.map_err(|error| refuse(&error, error.reason())));
    }
    arrival.num_examples = update.num_examples;
    arrival.metrics = update.metrics;
    Ok(Content {
        base_version: update.base_version,
        delta: delta.transpose()?,
        frame: update.frame,
    })
}
