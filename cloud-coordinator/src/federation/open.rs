//! The open merge round: the domain's round, and what the merge needs of each accepted partial aggregate.

use std::collections::{BTreeMap, BTreeSet};

use super::{Partial, Progress, Rules, outcome_of};
use wayside_domain::ids::{ModelVersion, RoadsideId, RoundId, UpdateId, VehicleId};
use wayside_domain::round::{Accepted, Guard, Outcome, Round, RoundTerms};
use wayside_domain::time::Timestamp;

/// Rounding to fp16 on the way may lengthen a mean delta a little beyond the bound that each update kept.
const NORM_SLACK: f64 = 1.01;

/// What arrived in a merge round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Vehicles' updates that counted at their roadside unit.
    pub accepted: u32,
    /// Vehicles' updates that did not.
    pub refused: u32,
    /// Bytes from vehicles to roadside units.
    pub up_bytes: u64,
    /// Bytes from roadside units to vehicles.
    pub down_bytes: u64,
}

impl Tally {
    /// Adds what arrived with one partial aggregate.
    pub fn add(&mut self, other: Self) {
        self.accepted = self.accepted.saturating_add(other.accepted);
        self.refused = self.refused.saturating_add(other.refused);
        self.up_bytes = self.up_bytes.saturating_add(other.up_bytes);
        self.down_bytes = self.down_bytes.saturating_add(other.down_bytes);
    }
}

/// Why a round closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closing {
    /// A version was made.
    Merged,
    /// Too few units contributed.
    BelowQuorum,
    /// The merged result could not be used.
    Unusable,
    /// An operator went back to an earlier version.
    RolledBack,
}

impl Closing {
    /// Short stable label.
    pub fn label(self) -> &'static str {
        match self {
            Self::Merged => "merged",
            Self::BelowQuorum => "below_quorum",
            Self::Unusable => "unusable",
            Self::RolledBack => "rolled_back",
        }
    }
}

/// A merge round as it is kept.
#[derive(Clone, Debug, PartialEq)]
pub struct RoundReport {
    /// Its number.
    pub merge_round: RoundId,
    /// The model that it started from.
    pub base_version: ModelVersion,
    /// When it opened.
    pub opened: Timestamp,
    /// It does not close before this time.
    pub earliest_close: Timestamp,
    /// It closes at this time at the latest.
    pub deadline: Timestamp,
    /// Units that were asked.
    pub cohort: BTreeSet<RoadsideId>,
    /// Units that contributed.
    pub accepted: BTreeMap<RoadsideId, Accepted>,
    /// What arrived.
    pub tally: Tally,
    /// When it closed, why, and what it made; `None` while it is open.
    pub closed: Option<(Timestamp, Closing, Option<ModelVersion>)>,
}

impl RoundReport {
    /// Examples behind the accepted partial aggregates.
    pub fn num_examples(&self) -> u64 {
        let each = self.accepted.values().map(|accepted| accepted.num_examples);
        each.fold(0, u64::saturating_add)
    }
}

/// The open round of a job.
#[derive(Clone, Debug)]
pub(super) struct OpenRound {
    pub(super) round: Round<RoadsideId>,
    pub(super) tally: Tally,
    counted: BTreeMap<RoadsideId, Partial>,
    /// Which unit's accepted partial aggregate an update came in.
    taken: BTreeMap<(VehicleId, UpdateId), RoadsideId>,
}

impl OpenRound {
    /// Opens a round with a cohort until the window ends.
    pub(super) fn open(
        rules: &Rules,
        progress: &Progress,
        cohort: BTreeSet<RoadsideId>,
        now: Timestamp,
        ends: Timestamp,
    ) -> Self {
        let earliest_close = if rules.merge_when_complete { now } else { ends };
        let terms = terms(rules, progress, cohort, now, earliest_close, ends);
        Self {
            round: Round::open(terms),
            tally: Tally::default(),
            counted: BTreeMap::new(),
            taken: BTreeMap::new(),
        }
    }

    /// Opens a stored round again. Accepted partial aggregates that are not at hand any more do not count.
    pub(super) fn restore(
        rules: &Rules,
        progress: &Progress,
        report: RoundReport,
        counted: Vec<Partial>,
    ) -> Self {
        let RoundReport {
            cohort,
            opened,
            earliest_close,
            deadline,
            ..
        } = report;
        let mut terms = terms(rules, progress, cohort, opened, earliest_close, deadline);
        terms.round = report.merge_round;
        terms.base_version = report.base_version;
        let at_hand = |roadside: &RoadsideId, accepted: &Accepted| {
            let id = accepted.update_id;
            counted
                .iter()
                .any(|p| p.roadside == *roadside && p.partial_id == id)
        };
        let accepted: Vec<_> = report
            .accepted
            .into_iter()
            .filter(|(roadside, accepted)| at_hand(roadside, accepted))
            .collect();
        let mut open = Self {
            round: Round::restore(terms, accepted.iter().cloned()),
            tally: report.tally,
            counted: BTreeMap::new(),
            taken: BTreeMap::new(),
        };
        for (roadside, accepted) in accepted {
            let matches =
                |p: &&Partial| p.roadside == roadside && p.partial_id == accepted.update_id;
            if let Some(partial) = counted.iter().find(matches) {
                open.keep(partial.clone());
            }
        }
        open
    }

    /// Takes a newcomer into the cohort: it is wanted too, and the quorum is a share of all. True if it was not there.
    ///
    /// The round is built anew, because a round keeps the quorum that it was opened with, and the first one opens with
    /// whoever happens to connect first.
    pub(super) fn admit(&mut self, roadside: &RoadsideId, quorum: f64) -> bool {
        let terms = self.round.terms();
        if self.round.outcome().is_some() || terms.cohort.contains(roadside) {
            return false;
        }
        let mut terms = terms.clone();
        terms.cohort.insert(roadside.clone());
        terms.target = terms.cohort.len();
        terms.quorum = share(quorum, terms.target);
        self.round = Round::restore(terms, self.round.accepted().clone());
        true
    }

    /// An update of this partial aggregate that counts already in another one.
    pub(super) fn conflict(&self, partial: &Partial) -> Option<(VehicleId, UpdateId, RoadsideId)> {
        partial.accepted().find_map(|line| {
            let key = (line.vehicle.clone(), line.update_id);
            let other = self.taken.get(&key)?;
            Some((key.0, key.1, other.clone()))
        })
    }

    /// Counts a partial aggregate that was judged as accepted; tells how the round ended if it was the last one.
    pub(super) fn count(
        &mut self,
        now: Timestamp,
        rules: &Rules,
        partial: Partial,
    ) -> Option<Outcome> {
        let effects = self.round.on_update(now, &partial.as_update(rules));
        self.keep(partial);
        outcome_of(effects)
    }

    fn keep(&mut self, partial: Partial) {
        for line in partial.accepted() {
            let key = (line.vehicle.clone(), line.update_id);
            self.taken.insert(key, partial.roadside.clone());
        }
        self.counted.insert(partial.roadside.clone(), partial);
    }

    /// The accepted partial aggregates in the order of the units' names.
    pub(super) fn counted(&self) -> impl Iterator<Item = &Partial> + Clone {
        self.counted.values()
    }

    /// The round as it is kept while it is open.
    pub(super) fn report(&self) -> RoundReport {
        let terms = self.round.terms();
        RoundReport {
            merge_round: terms.round,
            base_version: terms.base_version,
            opened: terms.opened,
            earliest_close: terms.earliest_close,
            deadline: terms.deadline,
            cohort: terms.cohort.clone(),
            accepted: self.round.accepted().clone(),
            tally: self.tally,
            closed: None,
        }
    }

    /// The round as it is kept for good.
    pub(super) fn closed(
        &self,
        now: Timestamp,
        made: Option<ModelVersion>,
        closing: Closing,
    ) -> RoundReport {
        RoundReport {
            closed: Some((now, closing, made)),
            ..self.report()
        }
    }
}

fn terms(
    rules: &Rules,
    progress: &Progress,
    cohort: BTreeSet<RoadsideId>,
    opened: Timestamp,
    earliest_close: Timestamp,
    deadline: Timestamp,
) -> RoundTerms<RoadsideId> {
    RoundTerms {
        round: progress.merge_round,
        base_version: progress.released,
        target: cohort.len(),
        quorum: share(rules.quorum, cohort.len()),
        cohort,
        opened,
        earliest_close,
        deadline,
        guard: Guard {
            schema: rules.schema_digest,
            // A sum's weight has no cap of its own: each of its updates has one.
            max_examples: u64::MAX,
            // The mean of vectors within a bound is within it; a regional delta is a sum of such means.
            max_norm: progress.norm_bound * f64::from(rules.edge_rounds) * NORM_SLACK,
        },
        max_staleness: None,
    }
}

/// `share` of `whole`, rounded up, at least 1.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a share of 0 to 1 of a length is a length"
)]
fn share(share: f64, whole: usize) -> usize {
    ((share * whole as f64).ceil() as usize).max(1)
}
