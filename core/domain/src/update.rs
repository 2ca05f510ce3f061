//! What a member sends, and what became of it.

use crate::ids::{Digest, ModelVersion, RoundId, UpdateId};
use std::fmt;

/// What was measured on a decoded payload before any rule sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PayloadStats {
    /// No element is NaN or infinite.
    pub finite: bool,
    /// L2 norm of the delta, in parameter units; not meaningful unless `finite`.
    pub l2_norm: f64,
}

/// An update as the round machine sees it: everything but the values.
#[derive(Clone, Debug, PartialEq)]
pub struct Update<M> {
    /// Who sent it.
    pub member: M,
    /// Its identity, the same in every delivery.
    pub update_id: UpdateId,
    /// The round it was sealed for.
    pub round: RoundId,
    /// The model it was trained from.
    pub base_version: ModelVersion,
    /// Digest of the schema that its tensors follow.
    pub schema: Digest,
    /// Examples behind it, its weight.
    pub num_examples: u64,
    /// What was measured on its values.
    pub stats: PayloadStats,
}

/// Why an update does not count. The label is stable: metrics, wire and logs use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RejectReason {
    /// The sender was not asked to take part in this round.
    NotInCohort,
    /// The sender already has another update in this round.
    AlreadyContributed,
    /// Tensors are missing, extra, or of another shape.
    WrongSchema,
    /// Trained from another model than the round's.
    WrongBase,
    /// A round that has not been opened here.
    UnknownRound,
    /// NaN or infinity among the values.
    NotFinite,
    /// No examples stand behind it.
    NoExamples,
    /// More examples than the job allows for one update.
    TooManyExamples,
    /// Its norm is above the round's bound.
    NormTooLarge,
    /// The frame is damaged: length, checksum, digest or encoding.
    Damaged,
    /// Larger than the schema allows.
    TooLarge,
    /// Topic and body, or two chunks of one upload, do not agree.
    Inconsistent,
    /// The job is not known here or is paused.
    UnknownJob,
}

impl RejectReason {
    /// Every reason, in the order of the wire numbers (from 1).
    pub const ALL: [Self; 13] = [
        Self::NotInCohort,
        Self::AlreadyContributed,
        Self::WrongSchema,
        Self::WrongBase,
        Self::UnknownRound,
        Self::NotFinite,
        Self::NoExamples,
        Self::TooManyExamples,
        Self::NormTooLarge,
        Self::Damaged,
        Self::TooLarge,
        Self::Inconsistent,
        Self::UnknownJob,
    ];

    /// Short stable label.
    pub fn label(self) -> &'static str {
        match self {
            Self::NotInCohort => "not_in_cohort",
            Self::AlreadyContributed => "already_contributed",
            Self::WrongSchema => "wrong_schema",
            Self::WrongBase => "wrong_base",
            Self::UnknownRound => "unknown_round",
            Self::NotFinite => "not_finite",
            Self::NoExamples => "no_examples",
            Self::TooManyExamples => "too_many_examples",
            Self::NormTooLarge => "norm_too_large",
            Self::Damaged => "damaged",
            Self::TooLarge => "too_large",
            Self::Inconsistent => "inconsistent",
            Self::UnknownJob => "unknown_job",
        }
    }
}

/// What became of one update. A verdict is an answer, not an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Counted, durably.
    Accepted,
    /// Counted before; the sender may forget it.
    Duplicate,
    /// Too late: its round is closed.
    Stale,
    /// Not counted, and sending it again will not help.
    Rejected(RejectReason),
}

impl Verdict {
    /// Short stable label: `accepted`, `duplicate`, `stale`, or the reason's own label.
    pub fn label(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::Duplicate => "duplicate",
            Self::Stale => "stale",
            Self::Rejected(reason) => reason.label(),
        }
    }

    /// The update counts, now or from an earlier delivery.
    pub fn counts(self) -> bool {
        matches!(self, Self::Accepted | Self::Duplicate)
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rejected(reason) => write!(f, "rejected({})", reason.label()),
            other => f.write_str(other.label()),
        }
    }
}
