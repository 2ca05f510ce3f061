//! Where a job stands, small enough to be stored at each change.

use std::time::Duration;

use wayside_domain::ids::{Digest, RoundId, UpdateId, VehicleId};
use wayside_domain::round::RoundTerms;
use wayside_domain::time::Timestamp;
use wayside_proto::convert::{JobPlan, RoundSummary};
use wayside_proto::topics::ModelKey;

/// Rounds that wait for the next partial aggregate; older ones are left out of it.
pub const MAX_SUMMARIES: usize = 1000;
/// What is kept free at the end of a window for the way to the cloud, as a share of what is left and at most.
const RESERVE_SHARE: u32 = 20;
const MOST_RESERVE: Duration = Duration::from_secs(30);

/// A model whose chunks the broker retains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Published {
    /// Its key in topics.
    pub key: ModelKey,
    /// How many chunks.
    pub chunks: u32,
}

/// A partial aggregate on its way to the cloud.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pending {
    /// The cloud's round.
    pub merge_round: RoundId,
    /// The same in every delivery.
    pub partial_id: UpdateId,
    /// The encoded partial aggregate.
    pub bytes: Vec<u8>,
}

/// Where a job stands.
#[derive(Clone, Debug, PartialEq)]
pub struct Ledger {
    /// The cloud's plan.
    pub plan: JobPlan,
    /// Contribute at this time at the latest: a little before the window ends.
    pub contribute_by: Timestamp,
    /// Number of the next round that opens.
    pub next_round: RoundId,
    /// The contribution of this merge round is made, or there is none.
    pub done: bool,
    /// Rounds with a result in this merge round: those whose updates the contribution holds.
    pub counted: Vec<RoundId>,
    /// Examples behind them.
    pub edge_examples: u64,
    /// The model that rounds start from: the plan's, or the regional one.
    pub model: Digest,
    /// The open round.
    pub terms: Option<RoundTerms<VehicleId>>,
    /// Closed rounds that no partial aggregate has told of.
    pub summaries: Vec<RoundSummary>,
    /// Models that the broker retains, the present one last.
    pub published: Vec<Published>,
    /// Bytes from vehicles since the last partial aggregate.
    pub up_bytes: u64,
    /// Bytes to vehicles since then.
    pub down_bytes: u64,
    /// Number of the next line; not stored, lines are numbered anew after a start.
    pub next_line: u64,
}

impl Ledger {
    pub(super) fn new(now: Timestamp, plan: JobPlan, next_round: RoundId) -> Self {
        Self {
            contribute_by: contribute_by(now, plan.window_ends),
            next_round,
            done: false,
            counted: Vec::new(),
            edge_examples: 0,
            model: plan.model,
            terms: None,
            summaries: Vec::new(),
            published: Vec::new(),
            up_bytes: 0,
            down_bytes: 0,
            next_line: 0,
            plan,
        }
    }

    /// The plan is about the same merge round, model and job: an open round may go on.
    pub(super) fn same_basis(&self, plan: &JobPlan) -> bool {
        let known = &self.plan;
        known.merge_round == plan.merge_round
            && known.base_version == plan.base_version
            && known.model == plan.model
            && known.exponents == plan.exponents
            && known.spec == plan.spec
    }

    /// Takes in a plan of the same basis: pause, window and bound may have changed.
    pub(super) fn amend(&mut self, now: Timestamp, plan: JobPlan) {
        if plan.window_ends != self.plan.window_ends {
            self.contribute_by = contribute_by(now, plan.window_ends);
        }
        self.plan = plan;
    }

    /// What goes on from one merge round to the next.
    pub(super) fn take_over(&mut self, earlier: &mut Self) {
        self.summaries = std::mem::take(&mut earlier.summaries);
        self.published = std::mem::take(&mut earlier.published);
        self.up_bytes = earlier.up_bytes;
        self.down_bytes = earlier.down_bytes;
        self.next_line = earlier.next_line;
    }

    /// Starts the merge round over from the global model.
    pub(super) fn forget_rounds(&mut self) {
        self.counted.clear();
        self.edge_examples = 0;
        self.model = self.plan.model;
        self.terms = None;
    }

    pub(super) fn add_summary(&mut self, summary: RoundSummary) {
        self.summaries.push(summary);
        let extra = self.summaries.len().saturating_sub(MAX_SUMMARIES);
        self.summaries.drain(..extra);
    }
}

/// The window's end less a twentieth of what is left of it, at most 30 s.
fn contribute_by(now: Timestamp, window_ends: Timestamp) -> Timestamp {
    window_ends - (window_ends.since(now) / RESERVE_SHARE).min(MOST_RESERVE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_twentieth_is_kept_free_and_half_a_minute_at_most() {
        assert_eq!(
            contribute_by(Timestamp(0), Timestamp(10_000)),
            Timestamp(9500)
        );
        let day = Timestamp(86_400_000);
        assert_eq!(contribute_by(Timestamp(0), day), Timestamp(86_370_000));
        assert_eq!(
            contribute_by(day, Timestamp(5)),
            Timestamp(5),
            "a window of the past"
        );
    }
}
