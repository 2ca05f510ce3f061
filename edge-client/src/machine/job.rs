//! What the vehicle knows of one job.

use std::fmt;
use std::sync::Arc;

use wayside_domain::encoding::{Ladder, UpdateEncoding};
use wayside_domain::ids::{Digest, ModelVersion, RoundId};
use wayside_domain::job::JobSpec;
use wayside_domain::network::Network;
use wayside_domain::time::Timestamp;

use super::Download;

/// What a roadside unit announced of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announced {
    /// The round.
    pub round: RoundId,
    /// Version of the model to train from.
    pub base_version: ModelVersion,
    /// Digest of that model's frame.
    pub model: Digest,
    /// Bytes of the frame.
    pub model_bytes: usize,
    /// Chunks that the frame is published in.
    pub model_chunks: usize,
    /// Digest of the job specification that the round follows.
    pub job_digest: Digest,
    /// Scale exponent of each tensor.
    pub exponents: Vec<i8>,
    /// Whether this vehicle is asked to take part.
    pub in_cohort: bool,
    /// Whether updates are taken.
    pub open: bool,
}

impl Announced {
    /// Whether an update made for `other`, at most `late` rounds ago, is what this announcement asks for.
    pub(super) fn takes(&self, other: &Self, late: u64) -> bool {
        let rounds = self.round.0.checked_sub(other.round.0);
        if rounds.is_some_and(|rounds| rounds > 0 && rounds <= late) {
            return self.job_digest == other.job_digest && self.exponents == other.exponents;
        }
        self.open
            && self.in_cohort
            && self.round == other.round
            && self.base_version == other.base_version
            && self.model == other.model
            && self.job_digest == other.job_digest
            && self.exponents == other.exponents
    }
}

/// Why a vehicle cannot work on a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfit {
    /// The job wants another backbone.
    Backbone {
        /// The one it wants.
        asked: Digest,
        /// The one at hand.
        here: Digest,
    },
    /// The backbone gives another number of features.
    Features {
        /// How many the job wants.
        asked: usize,
        /// How many there are.
        here: usize,
    },
    /// The job trains another network.
    Network {
        /// The one it trains.
        asked: Network,
        /// The one that can be trained here.
        here: Network,
    },
    /// No usable picture of the job's classes.
    NoExamples,
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Backbone { asked, here } => {
                write!(f, "the job wants backbone {asked}, here is {here}")
            }
            Self::Features { asked, here } => {
                write!(
                    f,
                    "the job wants {asked} features, the backbone gives {here}"
                )
            }
            Self::Network { asked, here } => write!(
                f,
                "the job trains {}, here {} can be trained",
                asked.label(),
                here.label()
            ),
            Self::NoExamples => f.write_str("no usable picture of the job's classes"),
        }
    }
}

/// A job's specification as it was last received.
#[derive(Clone, Debug)]
pub(super) struct Spec {
    pub(super) digest: Digest,
    pub(super) asks: Arc<JobSpec>,
    pub(super) max_model_bytes: usize,
    /// Whether this vehicle has what the job needs.
    pub(super) fits: bool,
}

/// Whether the job's features are at hand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Features {
    #[default]
    Missing,
    Ready {
        num_examples: u64,
    },
    Failed {
        again: Timestamp,
    },
}

/// A model on its way.
#[derive(Clone, Debug)]
pub(super) struct Fetch {
    pub(super) model: Digest,
    pub(super) download: Download,
    /// When it is asked for again.
    pub(super) again: Timestamp,
    /// Complete, and with the caller.
    pub(super) storing: bool,
}

/// One job.
#[derive(Clone, Debug, Default)]
pub(super) struct Job {
    pub(super) announced: Option<Announced>,
    pub(super) spec: Option<Spec>,
    pub(super) features: Features,
    pub(super) fetch: Option<Fetch>,
    /// The round in which training failed last.
    pub(super) failed: Option<RoundId>,
    pub(super) last_trained: Timestamp,
    /// How its updates are written.
    pub(super) ladder: Option<Ladder>,
}

impl Job {
    /// How the next update is written. Buffered rounds take updates of models that are no longer at the roadside unit,
    /// which differences to a model would need.
    pub(super) fn encoding(&self) -> UpdateEncoding {
        let rung = self
            .ladder
            .as_ref()
            .map_or(UpdateEncoding::Fp16, Ladder::rung);
        if rung == UpdateEncoding::Fp16Diff && self.max_staleness().is_some() {
            return UpdateEncoding::Int8;
        }
        rung
    }

    /// Rounds that an update may be late, in buffered rounds.
    pub(super) fn max_staleness(&self) -> Option<u64> {
        let buffered = self.spec.as_ref()?.asks.aggregation.buffered?;
        Some(u64::from(buffered.max_staleness))
    }

    /// An open round that asks for this vehicle, if it follows the specification at hand and the vehicle fits.
    pub(super) fn wanted(&self) -> Option<(&Announced, &Spec)> {
        let announced = self
            .announced
            .as_ref()
            .filter(|now| now.open && now.in_cohort)?;
        let spec = self.spec.as_ref()?;
        (spec.fits && spec.digest == announced.job_digest).then_some((announced, spec))
    }

    pub(super) fn is_open(&self) -> bool {
        self.announced
            .as_ref()
            .is_some_and(|announced| announced.open)
    }

    /// Whether training failed in the round that is announced.
    pub(super) fn has_failed(&self) -> bool {
        self.failed.is_some() && self.failed == self.announced.as_ref().map(|now| now.round)
    }
}
