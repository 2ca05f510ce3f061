//! One training round as a state machine without I/O.
//!
//! A round opens with a cohort, collects updates until `target` is met or the deadline passes, and closes once.
//! Members are vehicles at a roadside unit, roadside units at the cloud.
//!
//! Invariants: an update counts at most once however often it is delivered; a member counts at most once; nothing
//! counts after the close; below quorum the outcome is "no result"; a closed round has no deadline.

use crate::ids::{Digest, ModelVersion, RoundId, UpdateId};
use crate::time::Timestamp;
use crate::update::{RejectReason, Update, Verdict};
use std::collections::{BTreeMap, BTreeSet};

/// The terms on which a round is opened; stored, so that a restarted process goes on with the same round.
#[derive(Clone, Debug, PartialEq)]
pub struct RoundTerms<M: Ord> {
    /// Its number.
    pub round: RoundId,
    /// The model that members train from.
    pub base_version: ModelVersion,
    /// Who was asked.
    pub cohort: BTreeSet<M>,
    /// Updates wanted; the round closes when it has them and the minimum window is over.
    pub target: usize,
    /// The fewest updates that may change the model.
    pub quorum: usize,
    /// When it was opened.
    pub opened: Timestamp,
    /// It does not close at its target before this time.
    pub earliest_close: Timestamp,
    /// It closes at this time at the latest.
    pub deadline: Timestamp,
    /// What an update must fulfil.
    pub guard: Guard,
    /// Buffered rounds take updates that were made for one of so many earlier rounds, whoever made them; `None` takes
    /// those of the round's own cohort only.
    pub max_staleness: Option<u64>,
}

/// What every update must fulfil before any rule sees its values; fixed when the round opens, so that verdicts do not
/// depend on the order of arrival.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Guard {
    /// Digest of the round's schema.
    pub schema: Digest,
    /// Most examples of one update.
    pub max_examples: u64,
    /// Largest L2 norm of a delta, in parameter units.
    pub max_norm: f64,
}

impl Guard {
    /// The first thing wrong with the update's values and weight, if any.
    pub fn refuses<M>(&self, update: &Update<M>) -> Option<RejectReason> {
        if update.schema != self.schema {
            Some(RejectReason::WrongSchema)
        } else if !update.stats.finite {
            Some(RejectReason::NotFinite)
        } else if update.num_examples == 0 {
            Some(RejectReason::NoExamples)
        } else if update.num_examples > self.max_examples {
            Some(RejectReason::TooManyExamples)
        } else if update.stats.l2_norm > self.max_norm || update.stats.l2_norm.is_nan() {
            Some(RejectReason::NormTooLarge)
        } else {
            None
        }
    }
}

/// An update that counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// Its identity.
    pub update_id: UpdateId,
    /// Its weight.
    pub num_examples: u64,
}

/// How a round ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Enough updates; these members' updates make the result.
    Aggregated,
    /// Fewer than the quorum: the model does not change.
    NoResult,
}

/// What the caller must do next, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect<M> {
    /// Make the accepted update durable before anything that follows.
    Persist {
        /// Whose update.
        member: M,
        /// Which update.
        update_id: UpdateId,
    },
    /// Answer the sender.
    Reply {
        /// Who sent it.
        to: M,
        /// Which update.
        update_id: UpdateId,
        /// What became of it.
        verdict: Verdict,
    },
    /// The round is over; make that durable, then act on it.
    Close {
        /// How it ended.
        outcome: Outcome,
    },
}

/// One round; see the module's text for its invariants.
#[derive(Clone, Debug)]
pub struct Round<M: Ord> {
    terms: RoundTerms<M>,
    accepted: BTreeMap<M, Accepted>,
    outcome: Option<Outcome>,
}

impl<M: Ord + Clone> Round<M> {
    /// Opens a round. Target and quorum are brought into `1..=cohort` and `1..=target`.
    pub fn open(mut terms: RoundTerms<M>) -> Self {
        terms.target = terms.target.clamp(1, terms.cohort.len().max(1));
        terms.quorum = terms.quorum.clamp(1, terms.target);
        terms.earliest_close = terms.earliest_close.min(terms.deadline);
        Self {
            terms,
            accepted: BTreeMap::new(),
            outcome: None,
        }
    }

    /// Opens a stored round again with the updates that were durable. The deadline is where it was.
    pub fn restore(
        terms: RoundTerms<M>,
        accepted: impl IntoIterator<Item = (M, Accepted)>,
    ) -> Self {
        let mut round = Self::open(terms);
        round.accepted.extend(accepted);
        round
    }

    /// The terms it was opened on.
    pub fn terms(&self) -> &RoundTerms<M> {
        &self.terms
    }

    /// Its number.
    pub fn id(&self) -> RoundId {
        self.terms.round
    }

    /// The updates that count, by member.
    pub fn accepted(&self) -> &BTreeMap<M, Accepted> {
        &self.accepted
    }

    /// How it ended; `None` while it is open.
    pub fn outcome(&self) -> Option<&Outcome> {
        self.outcome.as_ref()
    }

    /// Examples behind the accepted updates.
    pub fn num_examples(&self) -> u64 {
        self.accepted
            .values()
            .map(|update| update.num_examples)
            .sum()
    }

    /// Cohort members without an accepted update.
    pub fn missing(&self) -> impl Iterator<Item = &M> {
        self.terms
            .cohort
            .iter()
            .filter(|member| !self.accepted.contains_key(member))
    }

    /// Takes in one update; never blocks and never fails.
    pub fn on_update(&mut self, now: Timestamp, update: &Update<M>) -> Vec<Effect<M>> {
        let verdict = self.judge(now, update);
        let (member, update_id) = (update.member.clone(), update.update_id);
        let mut effects = Vec::new();
        if verdict == Verdict::Accepted {
            self.accepted.insert(
                member.clone(),
                Accepted {
                    update_id,
                    num_examples: update.num_examples,
                },
            );
            effects.push(Effect::Persist {
                member: member.clone(),
                update_id,
            });
        }
        effects.push(Effect::Reply {
            to: member,
            update_id,
            verdict,
        });
        effects.extend(self.on_tick(now));
        effects
    }

    /// What would become of the update now; every check, in the order that gives the most telling answer.
    pub fn judge(&self, now: Timestamp, update: &Update<M>) -> Verdict {
        let terms = &self.terms;
        let Some(staleness) = terms.round.0.checked_sub(update.round.0) else {
            return Verdict::Rejected(RejectReason::UnknownRound);
        };
        if staleness > terms.max_staleness.unwrap_or(0) {
            return Verdict::Stale;
        }
        match self.accepted.get(&update.member) {
            Some(earlier) if earlier.update_id == update.update_id => return Verdict::Duplicate,
            Some(_) => return Verdict::Rejected(RejectReason::AlreadyContributed),
            None => {}
        }
        if self.outcome.is_some() || now >= terms.deadline {
            return Verdict::Stale;
        }
        let buffered = terms.max_staleness.is_some();
        if !buffered && !terms.cohort.contains(&update.member) {
            return Verdict::Rejected(RejectReason::NotInCohort);
        }
        let known_base = update.base_version == terms.base_version
            || (staleness > 0 && update.base_version < terms.base_version);
        if !known_base {
            return Verdict::Rejected(RejectReason::WrongBase);
        }
        terms
            .guard
            .refuses(update)
            .map_or(Verdict::Accepted, Verdict::Rejected)
    }

    /// Takes a newcomer into the cohort of an open round; where everybody was wanted, the newcomer is wanted too.
    pub fn admit(&mut self, member: M) {
        let everybody = self.terms.target == self.terms.cohort.len();
        if self.outcome.is_none() && self.terms.cohort.insert(member) && everybody {
            self.terms.target += 1;
        }
    }

    /// When [`Round::on_tick`] is next worth calling; `None` once closed.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        if self.outcome.is_some() {
            None
        } else if self.accepted.len() >= self.terms.target {
            Some(self.terms.earliest_close)
        } else {
            Some(self.terms.deadline)
        }
    }

    /// Closes the round if its time has come.
    pub fn on_tick(&mut self, now: Timestamp) -> Vec<Effect<M>> {
        match self.next_deadline() {
            Some(due) if now >= due => self.close(),
            _ => Vec::new(),
        }
    }

    /// Closes the round now, at the deadline or because a larger window ends; once.
    pub fn close(&mut self) -> Vec<Effect<M>> {
        if self.outcome.is_some() {
            return Vec::new();
        }
        let enough = self.accepted.len() >= self.terms.quorum;
        let outcome = if enough {
            Outcome::Aggregated
        } else {
            Outcome::NoResult
        };
        self.outcome = Some(outcome.clone());
        vec![Effect::Close { outcome }]
    }
}

#[cfg(test)]
mod tests;
