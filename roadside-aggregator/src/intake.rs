//! Reading a complete update: everything that can be said of its bytes before a round judges it.

use wayside_domain::ids::{Digest, ModelVersion, RoundId, UpdateId, VehicleId};
use wayside_domain::schema::Schema;
use wayside_domain::time::Timestamp;
use wayside_domain::update::RejectReason;
use wayside_proto::codec::{self, Reference, Unpacker, UpdateFrame, UpdateStats};
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
    /// What was read of its values; `None` where no open round takes it, so that nobody needs them.
    pub checked: Option<Checked>,
    /// The frame of its values.
    pub frame: Vec<u8>,
}

/// A frame that was read once, from its first to its last block.
#[derive(Clone, Debug)]
pub struct Checked {
    /// Where its blocks are.
    pub index: UpdateFrame,
    /// What was measured on its values.
    pub stats: UpdateStats,
}

impl Checked {
    /// Reads a frame with memory for one block of it.
    ///
    /// # Errors
    /// What is wrong with the frame, or that its scales are not those announced.
    pub fn read(
        frame: &[u8],
        schema: &Schema,
        exponents: &[i8],
        reference: Option<&Reference>,
    ) -> Result<Self, codec::DecodeError> {
        let index = UpdateFrame::parse(frame, schema)?;
        index.check_exponents(exponents)?;
        let stats = index.verify(frame, reference, &mut Unpacker::new())?;
        Ok(Self { index, stats })
    }
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
    /// The oldest and the newest round whose updates the open round takes.
    pub open_rounds: Option<(RoundId, RoundId)>,
    /// The model that the open round started from, for encodings that need it.
    pub reference: Option<&'a Reference>,
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
    let wanted = expected
        .open_rounds
        .is_some_and(|(oldest, newest)| (oldest..=newest).contains(&update.round));
    let checked = wanted.then(|| {
        let Expected {
            schema,
            exponents,
            reference,
            ..
        } = expected;
        Checked::read(&update.frame, schema, exponents, reference)
            .map_err(|error| refuse(&error, error.reason()))
    });
    arrival.num_examples = update.num_examples;
    arrival.metrics = update.metrics;
    Ok(Content {
        base_version: update.base_version,
        checked: checked.transpose()?,
        frame: update.frame,
    })
}
