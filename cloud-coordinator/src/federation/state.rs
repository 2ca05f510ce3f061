//! What of a job survives a restart, as plain values.

use std::collections::BTreeMap;
use std::fmt;

use super::{Model, Partial, RoundReport};
use wayside_domain::ids::{ModelVersion, RoadsideId, RoundId, UpdateId};
use wayside_domain::time::Timestamp;
use wayside_domain::update::Verdict;

/// Where a job stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobState {
    /// Too few roadside units have been there for the first merge round.
    Pending,
    /// Merge rounds follow one another.
    Running,
    /// Nothing new is asked for.
    Paused,
    /// It has its last version.
    Finished,
}

impl fmt::Display for JobState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pending => "pending",
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Finished => "finished",
        })
    }
}

/// A roadside unit as a job sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its watch stream is open.
    pub connected: bool,
    /// When it connected or was lost last.
    pub last_seen: Timestamp,
}

/// What changes over a job's life, rounds and versions aside.
#[derive(Clone, Debug, PartialEq)]
pub struct Progress {
    /// When the job was created.
    pub created: Timestamp,
    /// An operator paused it.
    pub paused: bool,
    /// The open merge round or the last one; 0 before the first.
    pub merge_round: RoundId,
    /// What the fleet trains from.
    pub released: ModelVersion,
    /// The last version made, released or not.
    pub newest: ModelVersion,
    /// Scale exponents of the merge round, one a tensor.
    pub exponents: Vec<i8>,
    /// Largest L2 norm of an update in the merge round, parameter units.
    pub norm_bound: f64,
    /// When the last window ended.
    pub last_merge: Option<Timestamp>,
}

/// A stored job.
#[derive(Clone, Debug)]
pub struct Stored {
    /// As [`Federation::progress`](super::Federation::progress) gave it.
    pub progress: Progress,
    /// The released model.
    pub model: Model,
    /// The open round.
    pub open: Option<RoundReport>,
    /// Its accepted partial aggregates.
    pub counted: Vec<Partial>,
    /// Receipts of the last rounds: judged in, id, verdict.
    pub receipts: Vec<(RoundId, UpdateId, Verdict)>,
    /// Every unit that ever said hello.
    pub members: BTreeMap<RoadsideId, Member>,
}
