//! Sums and curves from the event log: what reports show of a run.

use std::collections::BTreeMap;

use wayside_domain::ids::RoundId;
use wayside_domain::update::Verdict;

use super::event::{Actor, Millis};
use super::log::{Entry, Logged};

/// How a round went.
#[derive(Clone, Debug, PartialEq)]
pub struct RoundTally {
    /// The unit, by index.
    pub unit: u32,
    /// Its number there.
    pub round: RoundId,
    /// When it opened and closed.
    pub opened: Millis,
    /// When it closed; 0 while it is open.
    pub closed: Millis,
    /// Vehicles asked.
    pub cohort: usize,
    /// Updates wanted.
    pub target: usize,
    /// Milliseconds from opening to each accepted update, in order.
    pub waits: Vec<Millis>,
    /// Updates refused.
    pub refused: u32,
    /// Updates that came too late, for it or an earlier one.
    pub late: u32,
    /// Whether there was a result.
    pub aggregated: bool,
}

/// How a vehicle did; only those that were asked have one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct VehicleTally {
    /// Rounds that asked it.
    pub asked: u32,
    /// Its updates that count.
    pub accepted: u32,
    /// Those that do not.
    pub refused: u32,
    /// Times that it changed its unit.
    pub handovers: u32,
    /// Milliseconds with a link.
    pub connected: Millis,
    /// Examples behind its counted updates.
    pub weight: u64,
    since: Option<Millis>,
    last_weight: u64,
}

/// How a unit did.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct UnitTally {
    /// Rounds with a result.
    pub rounds: u64,
    /// Updates accepted.
    pub accepted: u64,
    /// Updates refused.
    pub refused: u64,
    /// Vehicles that came from another unit.
    pub handovers_in: u64,
    /// Bytes from vehicles, as its partial aggregates say.
    pub up_bytes: u64,
    /// Bytes to vehicles.
    pub down_bytes: u64,
}

/// Everything that was counted.
#[derive(Debug, Default)]
pub struct Tally {
    /// Closed rounds, in order.
    pub rounds: Vec<RoundTally>,
    /// Vehicles that were asked or moved, by index.
    pub vehicles: BTreeMap<u32, VehicleTally>,
    /// Units by index.
    pub units: BTreeMap<u32, UnitTally>,
    /// Trained updates.
    pub fits: u64,
    /// Milliseconds that vehicles trained, at their own speed.
    pub trained: Millis,
    /// Updates accepted.
    pub accepted: u64,
    /// Updates refused.
    pub refused: u64,
    /// Updates too late.
    pub stale: u64,
    /// Handovers.
    pub handovers: u64,
    /// Vehicle processes, units and clouds that ended without warning.
    pub crashes: u64,
    /// Connections that broke.
    pub disconnects: u64,
    /// Receipts and how many came within the budget.
    pub receipts: (u64, u64),
    /// Versions made.
    pub versions: u64,
    /// All sums were exact.
    pub exact: bool,
    /// The job has its last version.
    pub finished: bool,
    open: BTreeMap<u32, RoundTally>,
}

impl Tally {
    /// Nothing yet.
    pub fn new() -> Self {
        Self {
            exact: true,
            ..Self::default()
        }
    }

    /// Rounds with a result.
    pub fn rounds_with_result(&self) -> u64 {
        self.rounds.iter().filter(|round| round.aggregated).count() as u64
    }

    /// Takes in the next entry.
    pub fn follow(&mut self, logged: &Logged) {
        let at = logged.at;
        match logged.who {
            Actor::Vehicle(vehicle) => self.of_vehicle(at, vehicle, &logged.entry),
            Actor::Unit(unit) => self.of_unit(at, unit, &logged.entry),
            Actor::Cloud => self.of_cloud(&logged.entry),
        }
    }

    fn of_vehicle(&mut self, at: Millis, vehicle: u32, entry: &Entry) {
        match entry {
            Entry::Connected { .. } => {
                if let Some(known) = self.vehicles.get_mut(&vehicle) {
                    known.since = Some(at);
                }
            }
            Entry::Disconnected => {
                self.disconnects += 1;
                if let Some(known) = self.vehicles.get_mut(&vehicle) {
                    known.connected += at - known.since.take().unwrap_or(at);
                }
            }
            Entry::Stopped => self.crashes += 1,
            Entry::HandedOver { to, .. } => {
                self.handovers += 1;
                self.vehicles.entry(vehicle).or_default().handovers += 1;
                self.units.entry(*to).or_default().handovers_in += 1;
            }
            Entry::Sealed {
                num_examples,
                train_ms,
                ..
            } => {
                self.fits += 1;
                self.trained += train_ms;
                self.vehicles.entry(vehicle).or_default().last_weight = *num_examples;
            }
            Entry::Receipt { within_budget, .. } => {
                self.receipts.0 += 1;
                self.receipts.1 += u64::from(*within_budget);
            }
            _ => {}
        }
    }

    fn of_unit(&mut self, at: Millis, unit: u32, entry: &Entry) {
        match entry {
            Entry::RoundOpened {
                round,
                cohort,
                target,
                ..
            } => {
                for vehicle in cohort {
                    let known = self.vehicles.entry(*vehicle).or_default();
                    known.asked += 1;
                    known.since.get_or_insert(at);
                }
                let tally = RoundTally {
                    unit,
                    round: *round,
                    opened: at,
                    closed: 0,
                    cohort: cohort.len(),
                    target: *target,
                    waits: Vec::new(),
                    refused: 0,
                    late: 0,
                    aggregated: false,
                };
                self.open.insert(unit, tally);
            }
            Entry::Judged {
                vehicle,
                verdict,
                again: false,
                ..
            } => {
                let known = self.vehicles.entry(*vehicle).or_default();
                let of_unit = self.units.entry(unit).or_default();
                let open = self.open.get_mut(&unit);
                match verdict {
                    Verdict::Accepted => {
                        self.accepted += 1;
                        of_unit.accepted += 1;
                        known.accepted += 1;
                        known.weight += known.last_weight;
                        if let Some(open) = open {
                            open.waits.push(at - open.opened);
                        }
                    }
                    Verdict::Stale => {
                        self.stale += 1;
                        known.refused += 1;
                        if let Some(open) = open {
                            open.late += 1;
                        }
                    }
                    Verdict::Rejected(_) => {
                        self.refused += 1;
                        of_unit.refused += 1;
                        known.refused += 1;
                        if let Some(open) = open {
                            open.refused += 1;
                        }
                    }
                    Verdict::Duplicate => {}
                }
            }
            Entry::RoundClosed { aggregated, .. } => {
                if let Some(mut open) = self.open.remove(&unit) {
                    open.closed = at;
                    open.aggregated = *aggregated;
                    self.units.entry(unit).or_default().rounds += u64::from(*aggregated);
                    self.rounds.push(open);
                }
            }
            Entry::Power { on: false } => self.crashes += 1,
            _ => {}
        }
    }

    fn of_cloud(&mut self, entry: &Entry) {
        match entry {
            Entry::Partial {
                unit,
                up_bytes,
                down_bytes,
                ..
            } => {
                let known = self.units.entry(*unit).or_default();
                known.up_bytes += up_bytes;
                known.down_bytes += down_bytes;
            }
            Entry::Version { exact, .. } => {
                self.versions += 1;
                self.exact &= exact;
            }
            Entry::Power { on: false } => self.crashes += 1,
            Entry::Finished => self.finished = true,
            _ => {}
        }
    }

    /// Ends what is open, at the end of the run.
    pub fn finish(&mut self, at: Millis) {
        for vehicle in self.vehicles.values_mut() {
            vehicle.connected += at - vehicle.since.take().unwrap_or(at);
        }
    }
}
