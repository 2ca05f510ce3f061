//! The cloud's part of one job as a state machine without I/O: merge rounds, versions, gate.
//!
//! A merge round opens with the roadside units that are there, takes one partial aggregate of each, and closes once: at
//! the window's end by the wall clock, or when all have contributed. The sums are merged, the server optimizer moves the
//! released model, the result is evaluated, and it becomes the released model unless it is worse.
//!
//! Invariants: a partial aggregate counts at most once, also after a restart, and its id always gets the same answer; a
//! vehicle's update counts at most once in a merge round; a bad partial aggregate changes nothing; below quorum the model
//! does not change; nothing that is not finite becomes a version; the order of arrival does not matter bit for bit.
//!
//! Memory: one sum for each roadside unit that has contributed to the open round, since sums are merged in the order of
//! the units' names. Left to the driver: making effects durable, in order, before anything is visible.

mod effect;
mod merge;
mod open;
mod partial;
mod state;

use std::collections::BTreeMap;
use std::sync::Arc;

pub use effect::{Effect, Judged, MergeRule, Rules};
pub use merge::{Gate, Model, NewVersion, Unusable};
pub use open::{Closing, RoundReport, Tally};
pub use partial::{Line, Partial};
pub use state::{JobState, Member, Progress, Stored};

use crate::job::HeldBack;
use open::OpenRound;
use wayside_domain::ids::{RoadsideId, RoundId, UpdateId, VehicleId};
use wayside_domain::job::JobSpec;
use wayside_domain::merge_window::MergeWindow;
use wayside_domain::receipts::ReceiptBook;
use wayside_domain::round::{self, Outcome};
use wayside_domain::time::Timestamp;
use wayside_domain::update::{RejectReason, Verdict};
use wayside_proto::convert::JobPlan;

/// Merge rounds whose receipts are kept.
pub const KEEP_RECEIPTS: u64 = 64;
/// Most receipts kept at a time.
const MAX_RECEIPTS: usize = 100_000;
/// Refused partial aggregates of one unit that are written down in one merge round; more are judged each time anew.
const MAX_REFUSED: u32 = 32;

/// One job at the cloud; see the module's text for its invariants.
#[derive(Clone, Debug)]
pub struct Federation {
    rules: Rules,
    held_back: Option<Arc<HeldBack>>,
    progress: Progress,
    model: Model,
    members: BTreeMap<RoadsideId, Member>,
    window: Option<MergeWindow>,
    open: Option<OpenRound>,
    receipts: ReceiptBook,
    refused: BTreeMap<RoadsideId, u32>,
}

impl Federation {
    /// A new job: makes version 0 from `seed`. The version, then [`Federation::progress`], must become durable.
    ///
    /// # Errors
    /// [`Unusable`] if the first head cannot be framed, which only a lack of memory explains.
    pub fn begin(
        rules: Rules,
        held_back: Option<Arc<HeldBack>>,
        seed: u64,
        now: Timestamp,
    ) -> Result<(Self, NewVersion), Unusable> {
        let first = merge::first_version(&rules, held_back.as_deref(), seed, now)?;
        let progress = Progress {
            created: now,
            paused: false,
            merge_round: RoundId(0),
            released: first.version,
            newest: first.version,
            exponents: vec![0; rules.schema.tensors().len()],
            norm_bound: rules.max_norm,
            last_merge: None,
        };
        let stored = Stored {
            progress,
            model: first.model(),
            open: None,
            counted: Vec::new(),
            receipts: Vec::new(),
            members: BTreeMap::new(),
        };
        Ok((Self::restore(rules, held_back, stored, now), first))
    }

    /// Goes on with a stored job. An open round goes on where it was: same number, same deadline, the same partial
    /// aggregates counted once. Call [`Federation::on_tick`] next, which catches up with what was missed.
    pub fn restore(
        rules: Rules,
        held_back: Option<Arc<HeldBack>>,
        stored: Stored,
        now: Timestamp,
    ) -> Self {
        let progress = stored.progress;
        let mut receipts = ReceiptBook::new(KEEP_RECEIPTS, MAX_RECEIPTS);
        for (judged_in, partial_id, verdict) in stored.receipts {
            receipts.record(judged_in, partial_id, verdict);
        }
        let started = progress.merge_round > RoundId(0);
        let window = started.then(|| MergeWindow::new(rules.period, progress.last_merge, now));
        let open = stored
            .open
            .map(|report| OpenRound::restore(&rules, &progress, report, stored.counted));
        Self {
            rules,
            held_back,
            progress,
            model: stored.model,
            members: stored.members,
            window,
            open,
            receipts,
            refused: BTreeMap::new(),
        }
    }

    /// What must survive a restart beside rounds and versions.
    pub fn progress(&self) -> &Progress {
        &self.progress
    }

    /// The released model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// What roadside units are to do now.
    pub fn plan(&self, spec: &JobSpec) -> JobPlan {
        let (progress, model) = (&self.progress, &self.model);
        JobPlan {
            spec: spec.clone(),
            merge_round: progress.merge_round,
            base_version: progress.released,
            model: model.frame_digest,
            model_bytes: model.frame_bytes,
            exponents: progress.exponents.clone(),
            norm_bound: progress.norm_bound,
            window_ends: self.window_ends(),
            paused: self.state() != JobState::Running,
        }
    }

    /// The open round, as it is kept.
    pub fn open_round(&self) -> Option<RoundReport> {
        self.open.as_ref().map(OpenRound::report)
    }

    /// Where the job stands.
    pub fn state(&self) -> JobState {
        if self.is_finished() {
            JobState::Finished
        } else if self.progress.paused {
            JobState::Paused
        } else if self.progress.merge_round == RoundId(0) {
            JobState::Pending
        } else {
            JobState::Running
        }
    }

    /// When contributions must be in; before the first round, when that would be if it opened at once.
    pub fn window_ends(&self) -> Timestamp {
        self.window
            .as_ref()
            .map_or(self.progress.created + self.rules.period, MergeWindow::ends)
    }

    /// When [`Federation::on_tick`] is next worth calling.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        let open = self.open.as_ref()?;
        let close = open.round.next_deadline()?;
        Some(close.min(self.window_ends()))
    }

    /// A roadside unit is connected.
    pub fn on_hello(&mut self, now: Timestamp, roadside: &RoadsideId) -> Vec<Effect> {
        let mut effects = Vec::new();
        let member = Member {
            connected: true,
            last_seen: now,
        };
        self.members.insert(roadside.clone(), member);
        self.admit(roadside, &mut effects);
        self.open_next(now, &mut effects);
        effects
    }

    /// A roadside unit's connection is gone. It stays in the cohort of the open round.
    pub fn on_lost(&mut self, now: Timestamp, roadside: &RoadsideId) {
        if let Some(member) = self.members.get_mut(roadside) {
            *member = Member {
                connected: false,
                last_seen: now,
            };
        }
    }

    /// Takes in one partial aggregate; never fails.
    pub fn on_partial(&mut self, now: Timestamp, partial: Partial) -> Vec<Effect> {
        let partial_id = partial.partial_id;
        if let Some(verdict) = self.receipts.find(partial_id) {
            return vec![Effect::Reply {
                partial_id,
                verdict,
            }];
        }
        let mut effects = Vec::new();
        let is_current = self.progress.merge_round == partial.merge_round;
        if is_current && self.members.contains_key(&partial.roadside) {
            self.admit(&partial.roadside.clone(), &mut effects);
        }
        let (verdict, conflict) = self.judge(now, &partial);
        let judged_in = self.progress.merge_round;
        let record = self.may_record(&partial.roadside, verdict);
        let tally = partial.tally();
        effects.push(Effect::Judged(Judged {
            judged_in,
            roadside: partial.roadside.clone(),
            partial_id,
            verdict,
            num_examples: partial.num_examples,
            tally,
            record,
            conflict,
        }));
        if record {
            self.receipts.record(judged_in, partial_id, verdict);
        }
        let mut outcome = None;
        if let Some(open) = self.open.as_mut().filter(|_| is_current) {
            open.tally.add(tally);
            if verdict == Verdict::Accepted {
                outcome = open.count(now, &self.rules, partial);
            }
        }
        effects.push(Effect::Reply {
            partial_id,
            verdict,
        });
        if let Some(outcome) = outcome {
            self.finish_round(now, &outcome, &mut effects);
        }
        effects
    }

    /// Looks at the clock; to be called at least once a minute, since timers do not count time asleep.
    pub fn on_tick(&mut self, now: Timestamp) -> Vec<Effect> {
        let mut effects = Vec::new();
        let ended = self.window.as_mut().and_then(|window| window.on_tick(now));
        let mut closing = Vec::new();
        if let Some(open) = self.open.as_mut() {
            if let Some(end) = ended {
                if end.missed > 0 {
                    effects.push(Effect::Missed {
                        windows: end.missed,
                    });
                }
                closing = open.round.close();
            } else {
                closing = open.round.on_tick(now);
            }
        }
        if let Some(outcome) = outcome_of(closing) {
            self.finish_round(now, &outcome, &mut effects);
        }
        self.open_next(now, &mut effects);
        effects
    }

    /// Pauses or resumes. While paused nothing new is asked for; what arrives for the open merge round still counts, and
    /// that round still closes, but the next one opens only after the job was resumed.
    pub fn set_paused(&mut self, now: Timestamp, paused: bool) -> Vec<Effect> {
        if self.progress.paused == paused || self.is_finished() {
            return Vec::new();
        }
        self.progress.paused = paused;
        let mut effects = vec![Effect::Paused(paused)];
        if self.open.is_none() {
            self.restart_window(now);
        }
        self.open_next(now, &mut effects);
        effects
    }

    /// Makes an earlier version the released one: the open round closes without a result, a new one starts from it.
    pub fn roll_back(&mut self, now: Timestamp, model: Model) -> Vec<Effect> {
        let mut effects = Vec::new();
        if let Some(open) = self.open.take() {
            effects.push(Effect::Closed(open.closed(now, None, Closing::RolledBack)));
        }
        effects.push(Effect::RolledBack { to: model.version });
        self.progress.released = model.version;
        // From another place, other norms are to be expected.
        self.progress.norm_bound = self.rules.max_norm;
        self.model = model;
        self.restart_window(now);
        self.open_next(now, &mut effects);
        effects
    }

    fn is_finished(&self) -> bool {
        self.rules.merges > 0 && self.progress.newest.0 >= self.rules.merges
    }

    /// Every check, in the order that gives the most telling answer; nothing changes here.
    fn judge(
        &self,
        now: Timestamp,
        partial: &Partial,
    ) -> (Verdict, Option<(VehicleId, UpdateId, RoadsideId)>) {
        let rejected = |reason| (Verdict::Rejected(reason), None);
        if !self.members.contains_key(&partial.roadside) {
            return rejected(RejectReason::NotInCohort);
        }
        let Some(open) = &self.open else {
            return if partial.merge_round <= self.progress.merge_round {
                (Verdict::Stale, None)
            } else {
                rejected(RejectReason::UnknownRound)
            };
        };
        let update = partial.as_update(&self.rules);
        let verdict = open.round.judge(now, &update);
        if verdict != Verdict::Accepted {
            return (verdict, None);
        }
        if let Some(reason) = partial.fault(&self.rules, &self.progress.exponents) {
            return rejected(reason);
        }
        match open.conflict(partial) {
            Some(conflict) => {
                let verdict = Verdict::Rejected(RejectReason::AlreadyContributed);
                (verdict, Some(conflict))
            }
            None => (verdict, None),
        }
    }

    fn may_record(&mut self, roadside: &RoadsideId, verdict: Verdict) -> bool {
        if verdict == Verdict::Accepted {
            return true;
        }
        if !self.members.contains_key(roadside) {
            return false;
        }
        let refused = self.refused.entry(roadside.clone()).or_default();
        *refused = refused.saturating_add(1);
        *refused <= MAX_REFUSED
    }

    fn admit(&mut self, roadside: &RoadsideId, effects: &mut Vec<Effect>) {
        let quorum = self.rules.quorum;
        if self
            .open
            .as_mut()
            .is_some_and(|open| open.admit(roadside, quorum))
        {
            effects.push(Effect::Admitted(roadside.clone()));
        }
    }

    fn restart_window(&mut self, now: Timestamp) {
        if let Some(window) = &mut self.window {
            window.merged_early(now);
            self.progress.last_merge = Some(now);
        }
    }

    /// Opens the next round if the job runs and none is open.
    fn open_next(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        if self.open.is_some() || self.progress.paused || self.is_finished() {
            return;
        }
        let recently =
            |member: &Member| member.connected || member.last_seen + self.rules.period >= now;
        let present = self.members.iter().filter(|(_, member)| recently(member));
        let cohort: std::collections::BTreeSet<_> = present.map(|(id, _)| id.clone()).collect();
        let started = self.progress.merge_round > RoundId(0);
        if !started && cohort.len() < self.rules.min_roadsides {
            return;
        }
        let window = self
            .window
            .get_or_insert_with(|| MergeWindow::new(self.rules.period, None, now));
        let ends = window.ends();
        self.progress.last_merge = Some(window.last_merge());
        self.progress.merge_round = self.progress.merge_round.next();
        self.refused.clear();
        self.open = Some(OpenRound::open(
            &self.rules,
            &self.progress,
            cohort,
            now,
            ends,
        ));
        effects.push(Effect::Opened {
            merge_round: self.progress.merge_round,
            base: self.progress.released,
        });
    }

    /// Acts on the end of the open round.
    fn finish_round(&mut self, now: Timestamp, outcome: &Outcome, effects: &mut Vec<Effect>) {
        let Some(open) = self.open.take() else { return };
        self.restart_window(now);
        let made = match outcome {
            Outcome::NoResult => {
                // A bound that looks back at smaller norms may be what kept everybody out.
                self.progress.norm_bound = self.rules.max_norm;
                Err(Closing::BelowQuorum)
            }
            Outcome::Aggregated => {
                let place = merge::Place {
                    version: self.progress.newest.next(),
                    merge_round: self.progress.merge_round,
                    now,
                };
                let exponents = &self.progress.exponents;
                merge::make(
                    &self.rules,
                    self.held_back.as_deref(),
                    &self.model,
                    exponents,
                    open.counted(),
                    place,
                )
                .map_err(|unusable| {
                    effects.push(Effect::Unusable(unusable));
                    Closing::Unusable
                })
            }
        };
        match made {
            Err(closing) => effects.push(Effect::Closed(open.closed(now, None, closing))),
            Ok((version, next)) => {
                self.progress.newest = version.version;
                self.progress.exponents = next.exponents;
                self.progress.norm_bound = next.norm_bound;
                if version.gate == Gate::Released {
                    self.progress.released = version.version;
                    self.model = version.model();
                }
                let report = open.closed(now, Some(version.version), Closing::Merged);
                effects.push(Effect::Version(Box::new(version)));
                effects.push(Effect::Closed(report));
                if self.is_finished() {
                    effects.push(Effect::Finished);
                }
            }
        }
        self.open_next(now, effects);
    }
}

/// How a round ended, if these effects say so.
fn outcome_of(effects: Vec<round::Effect<RoadsideId>>) -> Option<Outcome> {
    effects.into_iter().find_map(|effect| match effect {
        round::Effect::Close { outcome } => Some(outcome),
        _ => None,
    })
}

#[cfg(test)]
mod tests;
