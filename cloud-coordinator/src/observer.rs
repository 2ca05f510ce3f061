//! What a coordinator tells whoever embeds it: the simulator, the demo, tests. Logs say more.

use std::net::SocketAddr;

use wayside_domain::ids::{JobId, ModelVersion, RoadsideId, RoundId};
use wayside_domain::update::Verdict;

/// Something that happened and is durable.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The port is open.
    Listening {
        /// The bound address, also where port 0 was configured.
        addr: SocketAddr,
    },
    /// A roadside unit's watch stream began.
    RoadsideConnected {
        /// Which.
        roadside: RoadsideId,
    },
    /// A roadside unit's watch stream ended.
    RoadsideLost {
        /// Which.
        roadside: RoadsideId,
    },
    /// A job was created.
    JobCreated {
        /// Which.
        job: JobId,
    },
    /// A merge round was opened.
    MergeOpened {
        /// The job.
        job: JobId,
        /// Its number.
        merge_round: RoundId,
        /// The model that it starts from.
        base: ModelVersion,
    },
    /// A partial aggregate was judged for the first time; redeliveries are not told.
    PartialJudged {
        /// The job.
        job: JobId,
        /// The merge round in which it was judged.
        merge_round: RoundId,
        /// The sender.
        roadside: RoadsideId,
        /// What became of it.
        verdict: Verdict,
        /// Examples that it claims.
        num_examples: u64,
        /// Vehicles' updates that counted at the roadside unit.
        accepted: u32,
        /// Vehicles' updates that did not.
        refused: u32,
        /// Bytes from vehicles since its last one.
        up_bytes: u64,
        /// Bytes to vehicles in the same time.
        down_bytes: u64,
        /// Bytes of the partial aggregate itself, roadside unit to cloud.
        partial_bytes: u64,
    },
    /// A merge round closed without a version.
    NoResult {
        /// The job.
        job: JobId,
        /// Its number.
        merge_round: RoundId,
        /// Why: `below_quorum`, `unusable`, `rolled_back`.
        reason: &'static str,
    },
    /// A version was made.
    VersionMade {
        /// The job.
        job: JobId,
        /// Its number; 0 is the initial model.
        version: ModelVersion,
        /// The gate let it through.
        released: bool,
        /// On the held-back set, if the job has one.
        accuracy: Option<f64>,
        /// Mean recall of the classes there.
        macro_recall: Option<f64>,
        /// Examples behind it.
        num_examples: u64,
        /// Vehicles behind it.
        contributors: u32,
        /// The sums stayed within the exact range.
        exact: bool,
    },
    /// An earlier version became the released one.
    RolledBack {
        /// The job.
        job: JobId,
        /// Which version.
        to: ModelVersion,
    },
    /// The job has its last version.
    JobFinished {
        /// Which.
        job: JobId,
    },
}

/// Is told every [`Event`].
pub type Observer = wayside_host::observer::Observer<Event>;
