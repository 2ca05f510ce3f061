//! Partial aggregates: what a roadside unit contributes to a merge, and how it came about.

use super::check::{At, millis};
use super::{ConvertError, Limit, MAX_COHORT, UpdateMetrics, Wire};
use crate::codec::{Encoding, max_frame_bytes};
use crate::wire;
use std::time::Duration;
use wayside_domain::ids::{JobId, ModelVersion, RoadsideId, RoundId, UpdateId, VehicleId};
use wayside_domain::schema::Schema;
use wayside_domain::time::Timestamp;
use wayside_domain::update::Verdict;

/// Most contributions that one partial aggregate lists.
pub const MAX_CONTRIBUTIONS: usize = 1_000_000;
/// Most rounds that one partial aggregate sums up.
pub const MAX_ROUND_SUMMARIES: usize = 10_000;
/// Most names in the cohorts of all these rounds together.
const MAX_COHORT_NAMES: usize = 2_000_000;
/// Most bytes of contributions and round summaries.
const MAX_RECORDS: usize = 256 << 20;

/// The most bytes that an encoded [`PartialAggregate`] of this schema can have: the bound for a declared total.
pub fn max_partial_bytes(schema: &Schema) -> usize {
    max_frame_bytes(schema, Encoding::F64Sum).saturating_add(MAX_RECORDS)
}

/// How one update fared at a roadside unit.
#[derive(Clone, Debug, PartialEq)]
pub struct Contribution {
    /// The sender.
    pub vehicle: VehicleId,
    /// The roadside unit's round.
    pub round: RoundId,
    /// Its identity.
    pub update_id: UpdateId,
    /// Examples behind it.
    pub num_examples: u64,
    /// What became of it.
    pub verdict: Verdict,
    /// L2 norm of its delta, parameter units; 0 where the values were not finite.
    pub l2_norm: f64,
    /// From first chunk to receipt, whole milliseconds.
    pub handling: Duration,
    /// What the vehicle said about its work.
    pub metrics: UpdateMetrics,
}

impl From<&Contribution> for wire::Contribution {
    fn from(contribution: &Contribution) -> Self {
        Self {
            vehicle: contribution.vehicle.to_string(),
            round: contribution.round.0,
            update_id: contribution.update_id.0.to_vec(),
            num_examples: contribution.num_examples,
            verdict: Some(contribution.verdict.into()),
            l2_norm: contribution.l2_norm,
            roadside_ms: millis(contribution.handling),
            metrics: Some((&contribution.metrics).into()),
        }
    }
}

impl TryFrom<wire::Contribution> for Contribution {
    type Error = ConvertError;

    fn try_from(contribution: wire::Contribution) -> Result<Self, ConvertError> {
        let at = |field| At("Contribution", field);
        Ok(Self {
            vehicle: at("vehicle").id(&contribution.vehicle)?,
            round: RoundId(contribution.round),
            update_id: at("update_id").update_id(&contribution.update_id)?,
            num_examples: contribution.num_examples,
            verdict: at("verdict").present(contribution.verdict)?.try_into()?,
            l2_norm: at("l2_norm").magnitude(contribution.l2_norm)?,
            handling: Duration::from_millis(contribution.roadside_ms.into()),
            metrics: contribution.metrics.unwrap_or_default().try_into()?,
        })
    }
}

/// One round of a roadside unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoundSummary {
    /// Its number there.
    pub round: RoundId,
    /// When it opened.
    pub opened: Timestamp,
    /// When it closed.
    pub closed: Timestamp,
    /// Who was asked to take part.
    pub cohort: Vec<VehicleId>,
    /// Updates wanted.
    pub target: u32,
    /// Fewest that may change the model.
    pub quorum: u32,
    /// Updates that counted.
    pub accepted: u32,
    /// False if it closed without a result.
    pub aggregated: bool,
}

impl From<&RoundSummary> for wire::RoundSummary {
    fn from(round: &RoundSummary) -> Self {
        Self {
            round: round.round.0,
            opened_ms: round.opened.0,
            closed_ms: round.closed.0,
            cohort: round.cohort.iter().map(ToString::to_string).collect(),
            target: round.target,
            quorum: round.quorum,
            accepted: round.accepted,
            aggregated: round.aggregated,
        }
    }
}

impl TryFrom<wire::RoundSummary> for RoundSummary {
    type Error = ConvertError;

    fn try_from(round: wire::RoundSummary) -> Result<Self, ConvertError> {
        let at = |field| At("RoundSummary", field);
        at("cohort").at_most(round.cohort.len(), MAX_COHORT)?;
        let cohort = round.cohort.iter().map(|v| at("cohort").id(v));
        Ok(Self {
            round: RoundId(round.round),
            opened: Timestamp(round.opened_ms),
            closed: Timestamp(round.closed_ms),
            cohort: cohort.collect::<Result<_, _>>()?,
            target: round.target,
            quorum: round.quorum,
            accepted: round.accepted,
            aggregated: round.aggregated,
        })
    }
}

/// What a roadside unit contributes to one merge. Its frame has not been looked at.
#[derive(Clone, Debug, PartialEq)]
pub struct PartialAggregate {
    /// The job.
    pub job: JobId,
    /// The sender.
    pub roadside: RoadsideId,
    /// The merge that it goes into.
    pub merge_round: RoundId,
    /// The model that the deltas start from.
    pub base_version: ModelVersion,
    /// The same in every delivery.
    pub partial_id: UpdateId,
    /// Examples behind the sum; the frame says the same.
    pub num_examples: u64,
    /// Frame of the sum, for [`crate::codec::decode_sum`]; empty if no round had a result.
    pub sum_frame: Vec<u8>,
    /// Every update that arrived since the last partial aggregate, at most [`MAX_CONTRIBUTIONS`].
    pub contributions: Vec<Contribution>,
    /// The rounds behind it, at most [`MAX_ROUND_SUMMARIES`].
    pub rounds: Vec<RoundSummary>,
    /// Bytes from vehicles since the last partial aggregate, topics included.
    pub up_bytes: u64,
    /// Bytes to vehicles in the same time.
    pub down_bytes: u64,
    /// Vehicles that are there now.
    pub vehicles_online: u32,
}

/// The bound here is for any schema; [`max_partial_bytes`] is the one that holds for a job.
impl Wire for PartialAggregate {
    type Message = wire::PartialAggregate;
    const NAME: &'static str = "PartialAggregate";
    const MAX_BYTES: usize = 1 << 30;
    const REPEATED: &'static [Limit] = &[
        (&[8], "contributions", MAX_CONTRIBUTIONS),
        (&[9], "rounds", MAX_ROUND_SUMMARIES),
        (&[9, 4], "cohorts", MAX_COHORT_NAMES),
    ];
}

impl PartialAggregate {
    /// Refuses a body under another id than that of its pieces.
    pub fn check_id(&self, pieces: &UpdateId) -> Result<(), ConvertError> {
        At(Self::NAME, "partial_id").agrees(&self.partial_id, "PartialPart", pieces)
    }

    /// Refuses a body that a peer of another name sent.
    pub fn check_sender(&self, sender: &RoadsideId) -> Result<(), ConvertError> {
        At(Self::NAME, "roadside").agrees(&self.roadside, "sender", sender)
    }
}

impl From<&PartialAggregate> for wire::PartialAggregate {
    fn from(partial: &PartialAggregate) -> Self {
        Self {
            job: partial.job.to_string(),
            roadside: partial.roadside.to_string(),
            merge_round: partial.merge_round.0,
            base_version: partial.base_version.0,
            partial_id: partial.partial_id.0.to_vec(),
            num_examples: partial.num_examples,
            sum_frame: partial.sum_frame.clone(),
            contributions: partial.contributions.iter().map(Into::into).collect(),
            rounds: partial.rounds.iter().map(Into::into).collect(),
            up_bytes: partial.up_bytes,
            down_bytes: partial.down_bytes,
            vehicles_online: partial.vehicles_online,
        }
    }
}

impl TryFrom<wire::PartialAggregate> for PartialAggregate {
    type Error = ConvertError;

    fn try_from(partial: wire::PartialAggregate) -> Result<Self, ConvertError> {
        let at = |field| At(Self::NAME, field);
        let contributions = partial.contributions.into_iter().map(TryInto::try_into);
        let rounds = partial.rounds.into_iter().map(TryInto::try_into);
        Ok(Self {
            job: at("job").id(&partial.job)?,
            roadside: at("roadside").id(&partial.roadside)?,
            merge_round: RoundId(partial.merge_round),
            base_version: ModelVersion(partial.base_version),
            partial_id: at("partial_id").update_id(&partial.partial_id)?,
            num_examples: partial.num_examples,
            sum_frame: partial.sum_frame,
            contributions: contributions.collect::<Result<_, _>>()?,
            rounds: rounds.collect::<Result<_, _>>()?,
            up_bytes: partial.up_bytes,
            down_bytes: partial.down_bytes,
            vehicles_online: partial.vehicles_online,
        })
    }
}

/// What became of a partial aggregate, and where the job stands now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartialReceipt {
    /// Of which.
    pub partial_id: UpdateId,
    /// What became of it.
    pub verdict: Verdict,
    /// The cloud's round now.
    pub current_merge_round: RoundId,
    /// The model that it starts from.
    pub current_version: ModelVersion,
}

impl Wire for PartialReceipt {
    type Message = wire::PartialReceipt;
    const NAME: &'static str = "PartialReceipt";
    const MAX_BYTES: usize = 512;
}

impl From<&PartialReceipt> for wire::PartialReceipt {
    fn from(receipt: &PartialReceipt) -> Self {
        Self {
            partial_id: receipt.partial_id.0.to_vec(),
            verdict: Some(receipt.verdict.into()),
            current_merge_round: receipt.current_merge_round.0,
            current_version: receipt.current_version.0,
        }
    }
}

impl TryFrom<wire::PartialReceipt> for PartialReceipt {
    type Error = ConvertError;

    fn try_from(receipt: wire::PartialReceipt) -> Result<Self, ConvertError> {
        let at = |field| At(Self::NAME, field);
        Ok(Self {
            partial_id: at("partial_id").update_id(&receipt.partial_id)?,
            verdict: at("verdict").present(receipt.verdict)?.try_into()?,
            current_merge_round: RoundId(receipt.current_merge_round),
            current_version: ModelVersion(receipt.current_version),
        })
    }
}
