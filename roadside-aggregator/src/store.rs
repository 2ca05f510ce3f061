//! What a roadside unit must not forget, as a few domain verbs.
//!
//! A commit is all or nothing, and durable when it returns: the unit answers a vehicle only afterwards. Small records
//! live in sled, frames and partial aggregates as sealed files beside it ([`Disk`]); [`Memory`] keeps everything in
//! memory for tests and simulations that crash a unit between two commits.

mod disk;
mod memory;
mod records;

pub use disk::Disk;
pub use memory::Memory;

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;

use wayside_domain::ids::{Digest, Generation, JobId, RoundId, UpdateId, VehicleId};
use wayside_domain::round::Accepted;
use wayside_domain::update::Verdict;
use wayside_proto::convert::Contribution;

use crate::fleet::Vehicle;
use crate::region::{Ledger, Pending};

/// One change of what is kept.
#[derive(Clone, Debug, PartialEq)]
pub enum Write {
    /// Which start of this unit it is.
    Generation(Generation),
    /// What a vehicle said about itself.
    Vehicle(VehicleId, Vehicle),
    /// A vehicle that is gone for good.
    ForgetVehicle(VehicleId),
    /// Where a job stands, its open round included.
    Ledger(JobId, Box<Ledger>),
    /// An update that counts in the open round, and its frame.
    Update(JobId, StoredUpdate, Vec<u8>),
    /// The round is over: its updates are not needed any more.
    DropUpdates(JobId),
    /// What became of an update; the key is of update and sender.
    Receipt(JobId, UpdateId, RoundId, Verdict),
    /// Receipts that are too old.
    ForgetReceipts(JobId, Vec<UpdateId>),
    /// How an update fared, for the next partial aggregate.
    Line(JobId, u64, Contribution),
    /// The lines went into a partial aggregate.
    DropLines(JobId),
    /// A model's frame.
    Model(Digest, Vec<u8>),
    /// A partial aggregate that the cloud has not answered; there is one a job.
    Partial(JobId, Pending),
    /// The cloud has answered.
    DropPartial(JobId),
    /// What rounding took from the last fp16 contribution of a job.
    Residual(JobId, Vec<f32>),
}

/// An accepted update as it is kept until its round closes.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredUpdate {
    /// The sender.
    pub vehicle: VehicleId,
    /// The round it counts in.
    pub round: RoundId,
    /// Its identity and weight.
    pub accepted: Accepted,
    /// Rounds that closed between the one it was made for and the one it counts in.
    pub staleness: u64,
}

impl StoredUpdate {
    /// Which frame is its.
    pub fn key(&self) -> FrameKey<'_> {
        (&self.vehicle, self.accepted.update_id)
    }
}

/// Names an accepted update's frame within its job: sender and update.
pub type FrameKey<'a> = (&'a VehicleId, UpdateId);

/// One job as it was kept.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StoredJob {
    /// Where it stands; a job without is not there.
    pub ledger: Option<Ledger>,
    /// Updates of the open round.
    pub updates: Vec<StoredUpdate>,
    /// What became of updates lately.
    pub receipts: Vec<(UpdateId, RoundId, Verdict)>,
    /// Lines for the next partial aggregate, in order.
    pub lines: Vec<Contribution>,
    /// The partial aggregate that waits for the cloud.
    pub pending: Option<Pending>,
    /// What rounding took from the last fp16 contribution; empty where there was none.
    pub residual: Vec<f32>,
}

/// Everything that was kept.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stored {
    /// The last start of this unit; 0 at the first one.
    pub generation: Generation,
    /// Vehicles that were known.
    pub vehicles: BTreeMap<VehicleId, Vehicle>,
    /// Jobs that were known.
    pub jobs: BTreeMap<JobId, StoredJob>,
    /// Something was damaged and moved aside: numbers may have been given before that are not known now.
    pub damaged: bool,
}

/// Why the state could not be read or written. No retry can help.
#[derive(Debug, thiserror::Error)]
#[error("state: {0}")]
pub struct StoreError(pub String);

/// Keeps what a unit must not forget.
pub trait Store: Send + Sync {
    /// Reads everything. What is damaged is moved aside and left out.
    fn load(&mut self) -> Result<Stored, StoreError>;

    /// Makes all of these changes, in order, and returns when they are durable; on an error none can be relied on.
    fn commit(&mut self, writes: Vec<Write>) -> Result<(), StoreError>;

    /// The frame of a model; `None` if it is not here or damaged.
    fn model(&self, digest: Digest) -> Option<Vec<u8>>;

    /// The whole frame of an accepted update; `None` if it is not here or damaged.
    fn frame(&self, job: &JobId, key: FrameKey<'_>) -> Option<Vec<u8>>;

    /// Puts some bytes of the frame of an accepted update into `to`, and leaves it to zstd's checksums to find damage.
    ///
    /// # Errors
    /// If they are not there.
    fn read_frame(
        &self,
        job: &JobId,
        key: FrameKey<'_>,
        bytes: Range<usize>,
        to: &mut Vec<u8>,
    ) -> io::Result<()>;

    /// Removes the models that are not among these.
    fn keep_models(&mut self, wanted: &[Digest]);
}
