//! What a roadside unit tells whoever watches it, such as the demo.

use std::net::SocketAddr;

use wayside_domain::ids::{JobId, ModelVersion, RoundId, VehicleId};
use wayside_domain::time::Timestamp;
use wayside_domain::update::Verdict;

/// Something happened. Events are told after what they tell of is durable.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The embedded broker takes connections.
    Listening {
        /// Where.
        broker: SocketAddr,
    },
    /// The link to the broker is up and all filters are subscribed.
    BrokerConnected,
    /// The link to the broker was lost; it is tried again.
    BrokerLost {
        /// Why.
        reason: String,
    },
    /// The stream of plans is open.
    CloudConnected,
    /// The link to the cloud was lost, or could not be made; it is tried again.
    CloudLost {
        /// Why.
        reason: String,
    },
    /// A merge round begins here.
    PlanAdopted {
        /// The job.
        job: JobId,
        /// The cloud's round.
        merge_round: RoundId,
        /// The model to start from.
        base_version: ModelVersion,
        /// The job takes no updates.
        paused: bool,
    },
    /// A model is complete, verified, on disk and published.
    ModelReady {
        /// The job.
        job: JobId,
        /// Its version; a regional model has the version that it started from.
        version: ModelVersion,
        /// Bytes of its frame.
        bytes: usize,
    },
    /// A vehicle came, or came back.
    VehicleOnline {
        /// Which.
        vehicle: VehicleId,
    },
    /// A vehicle said goodbye or went silent.
    VehicleLost {
        /// Which.
        vehicle: VehicleId,
    },
    /// A round is announced.
    RoundOpened {
        /// The job.
        job: JobId,
        /// Its number.
        round: RoundId,
        /// Who is asked.
        cohort: Vec<VehicleId>,
        /// Updates wanted.
        target: usize,
        /// When it ends at the latest.
        deadline: Timestamp,
    },
    /// An update got its receipt.
    UpdateJudged {
        /// The job.
        job: JobId,
        /// The round that it was sealed for.
        round: RoundId,
        /// The sender.
        vehicle: VehicleId,
        /// What became of it.
        verdict: Verdict,
        /// From first chunk to receipt, in milliseconds.
        roadside_ms: u64,
        /// It was judged before; this is the same receipt again.
        again: bool,
    },
    /// A round is over.
    RoundClosed {
        /// The job.
        job: JobId,
        /// Its number.
        round: RoundId,
        /// Updates that count.
        accepted: usize,
        /// It has a result; else the model does not change.
        aggregated: bool,
        /// Cohort members whose update did not come.
        waiting_for: Vec<VehicleId>,
    },
    /// Bytes between this unit and its vehicles since the last such event of the job.
    Traffic {
        /// The job.
        job: JobId,
        /// From vehicles, topics included.
        up_bytes: u64,
        /// To vehicles, topics included; a retained message counts once for each vehicle that needs it.
        down_bytes: u64,
    },
    /// The cloud answered a partial aggregate.
    PartialSubmitted {
        /// The job.
        job: JobId,
        /// The cloud's round.
        merge_round: RoundId,
        /// What became of it.
        verdict: Verdict,
    },
}

/// Is told every [`Event`].
pub type Observer = wayside_host::observer::Observer<Event>;
