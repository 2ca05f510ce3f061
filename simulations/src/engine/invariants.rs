//! What must hold whatever happens, checked on the event log alone, apart from the code that made it.
//!
//! - An update counts at most once in all accepted partial aggregates, and only if its vehicle sealed it, with the
//!   weight it was sealed with.
//! - A vehicle counts at most once in a round, and nobody counts who was not asked (buffered rounds take anybody).
//! - A unit's round numbers only grow; one round is open at a time; nothing counts after the deadline.
//! - Versions only grow, and the examples behind a version are those of the partial aggregates it was made of.
//! - A vehicle gets one verdict for an update, and an update with an accepted receipt is in the partial aggregate that
//!   its round went into.
//! - Every round ends: by its deadline and a little more, unless its unit is switched off.

use std::collections::BTreeMap;

use wayside_domain::ids::{RoundId, UpdateId};
use wayside_domain::update::Verdict;

use super::event::{Actor, Millis};
use super::log::{Entry, Logged};

/// A round may be closed by a tick after its deadline.
const GRACE: Millis = 2;

/// Something that must not be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// When.
    pub at: Millis,
    /// What, for people.
    pub what: String,
}

#[derive(Debug)]
struct OpenRound {
    round: RoundId,
    cohort: Vec<u32>,
    deadline: Millis,
    accepted: Vec<u32>,
}

/// Follows a log.
#[derive(Debug, Default)]
pub struct Invariants {
    buffered: bool,
    open: BTreeMap<u32, OpenRound>,
    last_round: BTreeMap<u32, RoundId>,
    /// Weight of each sealed update that has not been accounted for, by vehicle.
    sealed: BTreeMap<(u32, UpdateId), u64>,
    verdicts: BTreeMap<(u32, UpdateId), Verdict>,
    /// Where an update counts.
    counted: BTreeMap<(u32, UpdateId), u32>,
    /// Examples of accepted partial aggregates by merge round.
    merged: BTreeMap<RoundId, u64>,
    version: Option<u64>,
    violations: Vec<Violation>,
}

impl Invariants {
    /// Follows a job whose rounds are buffered, or not.
    pub fn new(buffered: bool) -> Self {
        Self {
            buffered,
            ..Self::default()
        }
    }

    /// What was found.
    pub fn violations(&self) -> &[Violation] {
        &self.violations
    }

    fn check(&mut self, holds: bool, at: Millis, what: impl FnOnce() -> String) {
        if !holds {
            self.violations.push(Violation { at, what: what() });
        }
    }

    /// Takes in the next entry.
    pub fn follow(&mut self, logged: &Logged) {
        let at = logged.at;
        match (logged.who, &logged.entry) {
            (Actor::Vehicle(vehicle), entry) => self.of_vehicle(at, vehicle, entry),
            (Actor::Unit(unit), entry) => self.of_unit(at, unit, entry),
            (Actor::Cloud, entry) => self.of_cloud(at, entry),
        }
    }

    fn of_vehicle(&mut self, at: Millis, vehicle: u32, entry: &Entry) {
        match entry {
            Entry::Sealed {
                update_id,
                num_examples,
                ..
            } => {
                let before = self.sealed.insert((vehicle, *update_id), *num_examples);
                self.check(before.is_none(), at, || {
                    format!("vehicle {vehicle} sealed {update_id} twice")
                });
            }
            Entry::Receipt {
                update_id, verdict, ..
            } => {
                let key = (vehicle, *update_id);
                let known = self.sealed.contains_key(&key);
                self.check(known, at, || {
                    format!(
                        "vehicle {vehicle} has a receipt for {update_id}, which it did not seal"
                    )
                });
                let before = self.verdicts.insert(key, *verdict);
                let same = before.is_none_or(|before| before.counts() == verdict.counts());
                self.check(same, at, || {
                    format!("vehicle {vehicle} was told {before:?} and {verdict:?} of {update_id}")
                });
            }
            _ => {}
        }
    }

    fn of_unit(&mut self, at: Millis, unit: u32, entry: &Entry) {
        match entry {
            Entry::RoundOpened {
                round,
                cohort,
                deadline,
                ..
            } => {
                let last = self.last_round.insert(unit, *round);
                self.check(last.is_none_or(|last| last < *round), at, || {
                    format!("unit {unit} opened round {round:?} after {last:?}")
                });
                let open = OpenRound {
                    round: *round,
                    cohort: cohort.clone(),
                    deadline: *deadline,
                    accepted: Vec::new(),
                };
                let before = self.open.insert(unit, open);
                self.check(before.is_none(), at, || {
                    format!("unit {unit} opened {round:?} while {before:?} was open")
                });
            }
            Entry::Judged {
                round,
                vehicle,
                verdict: Verdict::Accepted,
                again: false,
            } => self.accepted(at, unit, *round, *vehicle),
            Entry::RoundClosed {
                round, accepted, ..
            } => {
                let Some(open) = self.open.remove(&unit) else {
                    self.check(false, at, || {
                        format!("unit {unit} closed {round:?}, which was not open")
                    });
                    return;
                };
                self.check(open.round == *round, at, || {
                    format!(
                        "unit {unit} closed {round:?} while {:?} was open",
                        open.round
                    )
                });
                let late = at > open.deadline + GRACE;
                self.check(!late, at, || {
                    format!(
                        "unit {unit} closed {round:?} after its deadline {}",
                        open.deadline
                    )
                });
                // Those that a crash took before they were durable were never accepted.
                self.check(*accepted == open.accepted.len(), at, || {
                    format!(
                        "unit {unit} closed {round:?} with {accepted} updates, {} were accepted",
                        open.accepted.len()
                    )
                });
            }
            Entry::Power { on: false } => {
                // An open round goes on after the crash: its deadline may pass meanwhile.
                if let Some(open) = self.open.get_mut(&unit) {
                    open.deadline = Millis::MAX - GRACE;
                }
            }
            _ => {}
        }
    }

    fn accepted(&mut self, at: Millis, unit: u32, round: RoundId, vehicle: u32) {
        let buffered = self.buffered;
        // A buffered round takes updates that were made for earlier ones.
        let found = self.open.get_mut(&unit);
        let found = found.filter(|open| open.round == round || (buffered && open.round > round));
        let Some(open) = found else {
            self.check(buffered, at, || {
                format!("unit {unit} accepted {vehicle} in {round:?}, which is not open")
            });
            return;
        };
        let twice = open.accepted.contains(&vehicle);
        let asked = buffered || open.cohort.binary_search(&vehicle).is_ok();
        let in_time = at <= open.deadline.saturating_add(GRACE);
        open.accepted.push(vehicle);
        self.check(!twice, at, || {
            format!("unit {unit} accepted vehicle {vehicle} twice in {round:?}")
        });
        self.check(asked, at, || {
            format!("unit {unit} accepted vehicle {vehicle} in {round:?}, which it did not ask")
        });
        self.check(in_time, at, || {
            format!("unit {unit} accepted vehicle {vehicle} after the deadline of {round:?}")
        });
    }

    fn of_cloud(&mut self, at: Millis, entry: &Entry) {
        match entry {
            Entry::Partial {
                unit,
                merge_round,
                verdict: Verdict::Accepted,
                num_examples,
                lines,
                ..
            } => {
                let mut total = 0;
                for (vehicle, update_id, weight, verdict) in lines {
                    if !verdict.counts() || *verdict == Verdict::Duplicate {
                        continue;
                    }
                    total += weight;
                    let key = (*vehicle, *update_id);
                    let sealed = self.sealed.get(&key).copied();
                    self.check(sealed == Some(*weight), at, || {
                        format!(
                            "update {update_id} of {vehicle} counts {weight}, sealed {sealed:?}"
                        )
                    });
                    let before = self.counted.insert(key, *unit);
                    self.check(before.is_none(), at, || {
                        format!("update {update_id} of {vehicle} counts at {unit} and {before:?}")
                    });
                }
                self.check(total == *num_examples, at, || {
                    format!("partial of {unit} claims {num_examples}, its updates are {total}")
                });
                *self.merged.entry(*merge_round).or_default() += num_examples;
            }
            Entry::Version {
                version,
                merge_round,
                num_examples,
                ..
            } => {
                let last = self.version.replace(version.0);
                self.check(last.is_none_or(|last| last < version.0), at, || {
                    format!("version {version:?} after {last:?}")
                });
                let merged = self.merged.remove(merge_round).unwrap_or(0);
                self.check(merged == *num_examples, at, || {
                    format!("version {version:?} says {num_examples} examples, merged {merged}")
                });
            }
            _ => {}
        }
    }
}
