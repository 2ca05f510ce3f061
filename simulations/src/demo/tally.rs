//! What the tiers told while the demo ran.

use std::collections::{BTreeMap, BTreeSet};
use wayside_domain::ids::{ModelVersion, RoundId, VehicleId};
use wayside_domain::update::Verdict;

/// One version as the cloud told of it.
#[derive(Clone, Debug)]
pub(super) struct VersionSeen {
    /// Its number.
    pub version: ModelVersion,
    /// It passed the gate.
    pub released: bool,
    /// On the held-back pictures.
    pub accuracy: f64,
    /// All its sums were exact.
    pub exact: bool,
}

/// What one vehicle told.
#[derive(Clone, Debug, Default)]
pub(super) struct VehicleTally {
    /// Pictures with features.
    pub features_done: usize,
    /// Features are complete; so many pictures were left out.
    pub skipped: Option<usize>,
    /// Bytes of updates, topics included.
    pub up_bytes: u64,
    /// Bytes received, topics included.
    pub down_bytes: u64,
    /// Receipts.
    pub receipts: u64,
    /// Receipts within the budget.
    pub within_budget: u64,
    /// Updates that count.
    pub accepted: u64,
    /// The largest latency seen, in milliseconds.
    pub slowest_ms: u64,
}

/// Everything that was told, added up.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    /// By vehicle number from 0.
    pub vehicles: Vec<VehicleTally>,
    /// Roadside rounds opened.
    pub roadside_rounds: u64,
    /// Whom the roadside units wait for.
    pub waiting: BTreeMap<usize, BTreeSet<VehicleId>>,
    /// Times that a vehicle's update was missing when its round closed.
    pub late: u64,
    /// The merge round that is open.
    pub merge_round: RoundId,
    /// Versions in order.
    pub versions: Vec<VersionSeen>,
    /// The job has its last version.
    pub finished: bool,
}

impl Tally {
    /// For so many vehicles.
    pub(super) fn new(vehicles: usize) -> Self {
        Self {
            vehicles: vec![VehicleTally::default(); vehicles],
            ..Self::default()
        }
    }

    /// Pictures with features, of all vehicles.
    pub(super) fn features_done(&self) -> usize {
        self.vehicles
            .iter()
            .map(|vehicle| vehicle.features_done)
            .sum()
    }

    /// Every vehicle has its features.
    pub(super) fn all_ready(&self) -> bool {
        self.vehicles.iter().all(|v| v.skipped.is_some())
    }

    /// Sum of one figure over all vehicles.
    pub(super) fn sum(&self, figure: impl Fn(&VehicleTally) -> u64) -> u64 {
        self.vehicles.iter().map(figure).sum()
    }

    /// Takes in one event of a vehicle.
    pub(super) fn on_vehicle(&mut self, number: usize, event: edge_client::Event) {
        use edge_client::Event;
        let Some(vehicle) = self.vehicles.get_mut(number) else {
            return;
        };
        match event {
            Event::FeatureProgress { done, .. } => vehicle.features_done = done,
            Event::FeaturesReady {
                pictures, skipped, ..
            } => {
                vehicle.features_done = pictures;
                vehicle.skipped = Some(skipped);
            }
            Event::ReceiptReceived {
                verdict,
                latency_ms,
                within_budget,
                traffic,
                ..
            } => {
                vehicle.receipts += 1;
                vehicle.within_budget += u64::from(within_budget);
                vehicle.accepted += u64::from(verdict == Verdict::Accepted);
                vehicle.slowest_ms = vehicle.slowest_ms.max(latency_ms);
                (vehicle.up_bytes, vehicle.down_bytes) = (traffic.up_bytes, traffic.down_bytes);
            }
            Event::Traffic(traffic) => {
                (vehicle.up_bytes, vehicle.down_bytes) = (traffic.up_bytes, traffic.down_bytes);
            }
            _ => {}
        }
    }

    /// Takes in one event of a roadside unit.
    pub(super) fn on_roadside(&mut self, number: usize, event: roadside_aggregator::Event) {
        use roadside_aggregator::Event;
        match event {
            Event::RoundOpened { cohort, .. } => {
                self.roadside_rounds += 1;
                self.waiting.insert(number, cohort.into_iter().collect());
            }
            Event::UpdateJudged { vehicle, .. } => {
                if let Some(waiting) = self.waiting.get_mut(&number) {
                    waiting.remove(&vehicle);
                }
            }
            Event::RoundClosed { waiting_for, .. } => {
                self.late += waiting_for.len() as u64;
                self.waiting.remove(&number);
            }
            _ => {}
        }
    }

    /// Takes in one event of the cloud.
    pub(super) fn on_cloud(&mut self, event: cloud_coordinator::Event) {
        use cloud_coordinator::Event;
        match event {
            Event::MergeOpened { merge_round, .. } => self.merge_round = merge_round,
            Event::VersionMade {
                version,
                released,
                accuracy,
                exact,
                ..
            } => {
                self.versions.push(VersionSeen {
                    version,
                    released,
                    accuracy: accuracy.unwrap_or(0.0),
                    exact,
                });
            }
            Event::JobFinished { .. } => self.finished = true,
            _ => {}
        }
    }

    /// Whom roadside units wait for, in one short text.
    pub(super) fn waiting_text(&self) -> String {
        let names: Vec<&str> = self
            .waiting
            .values()
            .flatten()
            .map(VehicleId::as_str)
            .collect();
        match names.len() {
            0 => "nobody".to_owned(),
            1..=3 => names.join(", "),
            n => format!("{n} vehicles"),
        }
    }
}
