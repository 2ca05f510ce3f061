//! What goes into the machine once, and what comes out of it at each step.

use std::time::Duration;

use super::{NewVersion, RoundReport, Tally, Unusable};
use std::sync::Arc;

use crate::job::RootSet;
use crate::strategy::ServerOptimizer;
use wayside_domain::aggregate::RuleSpec;
use wayside_domain::ids::{Digest, JobId, ModelVersion, RoadsideId, RoundId, UpdateId, VehicleId};
use wayside_domain::schema::Schema;
use wayside_domain::update::Verdict;

/// What the job says about merging.
#[derive(Clone, Debug, PartialEq)]
pub struct Rules {
    /// The job.
    pub job: JobId,
    /// Tensors of the trained part.
    pub schema: Schema,
    /// Digest of that schema.
    pub schema_digest: Digest,
    /// The first parameters; drawn from the job's seed where there are none.
    pub initial: Option<Arc<[f32]>>,
    /// How one delta is made of the roadside units' partial aggregates.
    pub merge: MergeRule,
    /// How a mean delta moves the model.
    pub server: ServerOptimizer,
    /// Fewest roadside units that may change the model, as a share of those asked, `(0, 1]`.
    pub quorum: f64,
    /// The first merge round opens once so many units are there.
    pub min_roadsides: usize,
    /// Length of a merge window.
    pub period: Duration,
    /// Merge as soon as every unit has contributed.
    pub merge_when_complete: bool,
    /// Versions after which the job is finished; 0: no end.
    pub merges: u64,
    /// Roadside rounds behind one contribution.
    pub edge_rounds: u32,
    /// Most examples of one update.
    pub max_examples: u64,
    /// Largest L2 norm of one update, parameter units.
    pub max_norm: f64,
    /// Times the median norm of the last merge; 0: off.
    pub max_norm_ratio: f64,
    /// Accuracy that a version may lose against the released one.
    pub max_regression: f64,
    /// Scales change only where they must: updates of earlier rounds count too.
    pub keeps_scales: bool,
}

/// How the cloud makes one delta of partial aggregates.
#[derive(Clone, Debug)]
pub enum MergeRule {
    /// Their exact sum: what flat FedAvg gives.
    Sum,
    /// A rule over their mean deltas.
    Rule(RuleSpec),
    /// FLTrust: the mean deltas by their direction against an update that the cloud trains itself.
    FlTrust(Arc<RootSet>),
}

impl PartialEq for MergeRule {
    /// Root sets are of one job and so the same.
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Sum, Self::Sum) | (Self::FlTrust(_), Self::FlTrust(_)) => true,
            (Self::Rule(a), Self::Rule(b)) => a == b,
            _ => false,
        }
    }
}

/// What became of one partial aggregate, for the records.
#[derive(Clone, Debug, PartialEq)]
pub struct Judged {
    /// The merge round in which it was judged.
    pub judged_in: RoundId,
    /// The sender.
    pub roadside: RoadsideId,
    /// Its identity.
    pub partial_id: UpdateId,
    /// What became of it.
    pub verdict: Verdict,
    /// Examples that it claims.
    pub num_examples: u64,
    /// Its updates, bytes up and down.
    pub tally: Tally,
    /// Whether it is to be written down.
    pub record: bool,
    /// An update that counts already in another unit's partial aggregate.
    pub conflict: Option<(VehicleId, UpdateId, RoadsideId)>,
}

/// What the caller must do next, in this order; all that is to be kept must be durable before anything is visible.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Keep the partial aggregate and its verdict.
    Judged(Judged),
    /// A unit was taken into the open round.
    Admitted(RoadsideId),
    /// Whole windows passed unnoticed: the machine slept.
    Missed {
        /// How many.
        windows: u64,
    },
    /// Keep the version.
    Version(Box<NewVersion>),
    /// The merged result could not be used; the model does not change.
    Unusable(Unusable),
    /// Keep the closed round.
    Closed(RoundReport),
    /// A merge round was opened.
    Opened {
        /// Its number.
        merge_round: RoundId,
        /// The model that it starts from.
        base: ModelVersion,
    },
    /// The job was paused or resumed.
    Paused(bool),
    /// An earlier version is the released one again.
    RolledBack {
        /// Which.
        to: ModelVersion,
    },
    /// The job has its last version.
    Finished,
    /// Answer the sender.
    Reply {
        /// Of which partial aggregate.
        partial_id: UpdateId,
        /// What became of it.
        verdict: Verdict,
    },
}
