//! What the machine is told, and what it says.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use wayside_domain::encoding::{Step, UpdateEncoding};
use wayside_domain::ids::{Digest, JobId, RoadsideId, RoundId, UpdateId};
use wayside_domain::job::JobSpec;
use wayside_domain::network::Network;
use wayside_domain::outbox::OutboxEntry;
use wayside_domain::time::Timestamp;
use wayside_domain::update::Verdict;

#[cfg(doc)]
use super::Vehicle;
use super::{Announced, Unfit};

/// What stays the same for the life of a process.
#[derive(Clone, Debug)]
pub struct Fixed {
    /// The roadside unit that it works with.
    pub roadside: RoadsideId,
    /// Digest of the backbone at hand.
    pub backbone: Digest,
    /// Length of its feature vectors.
    pub features: usize,
    /// What can be trained here.
    pub network: Network,
    /// First wait for a receipt.
    pub resend_after: Duration,
}

/// What a stored vehicle starts with.
#[derive(Clone, Debug, Default)]
pub struct Restored {
    /// Updates without a receipt.
    pub outbox: Vec<OutboxEntry>,
    /// The last round of each job that was finished at this roadside unit.
    pub done: BTreeMap<JobId, RoundId>,
    /// Models on disk.
    pub models: BTreeSet<Digest>,
    /// Pictures found, whatever their class.
    pub num_examples: u64,
}

/// A round to train.
#[derive(Clone, Debug, PartialEq)]
pub struct Order {
    /// Of which job.
    pub job: JobId,
    /// What the job asks.
    pub spec: Arc<JobSpec>,
    /// What the roadside unit announced.
    pub round: Announced,
    /// How the update is to be written.
    pub encoding: UpdateEncoding,
}

/// A trained and encoded round.
#[derive(Clone, Debug, PartialEq)]
pub struct Encoded {
    /// Of which job.
    pub job: JobId,
    /// Of which round.
    pub round: RoundId,
    /// Examples behind it.
    pub num_examples: u64,
    /// Mean loss in nats.
    pub loss: f64,
    /// Time that training and encoding took.
    pub train_ms: u64,
    /// When it was encoded: the latency budget runs from here.
    pub encoded: Timestamp,
    /// How the update is written.
    pub encoding: UpdateEncoding,
    /// The delta's frame.
    pub frame: Vec<u8>,
    /// What the encoding took from the delta, for the next update; `None` where nothing worth keeping.
    pub residual: Option<Vec<f32>>,
    /// The head's personal tensors as they were trained; empty where the job has none.
    pub personal: Vec<f32>,
}

/// How a piece of work ended.
#[derive(Clone, Debug, PartialEq)]
pub enum WorkDone {
    /// A job's features are at hand.
    Features {
        /// Which job's.
        job: JobId,
        /// How many examples there are.
        num_examples: u64,
    },
    /// A round was trained.
    Trained(Encoded),
    /// It was cancelled; nothing came of it.
    Cancelled,
    /// It failed; the caller has logged why.
    Failed,
}

/// Why an update leaves the outbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaves {
    /// A receipt named it.
    Receipt {
        /// What became of it.
        verdict: Verdict,
        /// From encoded to receipt in hand.
        latency: Duration,
        /// Whether that kept the job's latency budget.
        within_budget: bool,
    },
    /// It is too old to count anywhere.
    Expired,
    /// It made room for a newer one.
    MadeRoom,
    /// Its payload is gone.
    Lost,
}

/// What the caller must do next, in this order.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Tell the roadside unit that the vehicle is there.
    PublishPresence {
        /// Pictures at hand.
        num_examples: u64,
    },
    /// Extract a job's features off the async threads; answer with [`Vehicle::on_work_done`].
    LoadFeatures {
        /// The job.
        job: JobId,
        /// Its classes and input size.
        spec: Arc<JobSpec>,
    },
    /// Subscribe to the chunks of a model, anew if that was done before.
    FetchModel {
        /// The job.
        job: JobId,
        /// Its model.
        model: Digest,
    },
    /// Unsubscribe from the chunks of a model.
    LeaveModel {
        /// The job.
        job: JobId,
        /// Its model.
        model: Digest,
    },
    /// Check a model's digest and make it durable; answer with [`Vehicle::on_model_stored`].
    StoreModel {
        /// The job.
        job: JobId,
        /// What the bytes must hash to.
        model: Digest,
        /// The frame.
        bytes: Vec<u8>,
    },
    /// Delete models that no job needs.
    DropModels(Vec<Digest>),
    /// Train off the async threads; answer with [`Vehicle::on_work_done`].
    StartTraining(Box<Order>),
    /// Stop the work that goes on, soon; it still ends with [`Vehicle::on_work_done`].
    CancelWork,
    /// Give the update an id and make it durable; answer with [`Vehicle::on_sealed`].
    Seal(Box<(Order, Encoded)>),
    /// Hand chunks of a stored update to the link; answer with [`Vehicle::on_handed_over`].
    SendUpdate {
        /// Which update.
        update_id: UpdateId,
        /// Only these chunks; `None` sends all.
        chunks: Option<Vec<u32>>,
    },
    /// Delete an update.
    DropUpdate {
        /// Which one.
        entry: OutboxEntry,
        /// Why.
        why: Leaves,
    },
    /// Updates of this job are written in another way from now on; for the log.
    Stepped {
        /// The job.
        job: JobId,
        /// From what to what, and why.
        step: Step,
    },
    /// The vehicle cannot work on this job; for the log, once for each job specification.
    NotTakingPart {
        /// The job.
        job: JobId,
        /// Why.
        why: Unfit,
    },
}

/// What the vehicle does, for heartbeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Nothing to do.
    Idle,
    /// Getting features of its pictures.
    Preparing,
    /// Getting a model.
    Fetching,
    /// Training.
    Training,
    /// Waiting for a receipt.
    Uploading,
    /// Told to do no work.
    Paused,
    /// The last training failed.
    Failed,
}

/// What receipts said about the link since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkFigures {
    /// Receipts.
    pub receipts: u64,
    /// Those that came within their job's latency budget.
    pub within_budget: u64,
    /// Of the last one: encoded to receipt in hand.
    pub last_latency_ms: u64,
    /// Of the last one: bytes of the update over that time.
    pub goodput_bytes_per_s: u64,
}
