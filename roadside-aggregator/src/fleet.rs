//! The vehicles of one unit: who they are, who is there, who may take part.
//!
//! Pure: told the time, it returns what changed. What vehicles said last survives a restart; whether they are there
//! does not, so a restarted unit counts them as absent until they give a sign of life.

use std::collections::BTreeMap;
use std::time::Duration;

use wayside_domain::ids::{Digest, Generation, VehicleId};
use wayside_domain::liveness::{Liveness, Seen};
use wayside_domain::time::Timestamp;
use wayside_proto::convert::{Presence, UpdateMetrics};

/// Most vehicles that are known at a time; further ones are not registered.
pub const MAX_VEHICLES: usize = 100_000;
/// A vehicle that was silent for this long is forgotten.
const FORGET_AFTER: Duration = Duration::from_secs(7 * 24 * 3600);
/// The longest wait for further vehicles, in settling times.
const MOST_SETTLES: u32 = 5;

/// What a vehicle said about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vehicle {
    /// Which start of it.
    pub generation: Generation,
    /// The backbone it has.
    pub backbone: Option<Digest>,
    /// Pictures at hand.
    pub num_examples: u64,
    /// Receipts since its start.
    pub receipts: u64,
    /// Those within the latency budget.
    pub receipts_within_budget: u64,
}

impl Vehicle {
    /// Share of receipts within the latency budget, 1 for a newcomer.
    fn share(&self) -> f64 {
        if self.receipts == 0 {
            return 1.0;
        }
        self.receipts_within_budget.min(self.receipts) as f64 / self.receipts as f64
    }
}

/// What a presence or heartbeat led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Nothing to tell.
    None,
    /// It came, or came back.
    Online,
    /// It said goodbye.
    Lost,
}

/// All vehicles of one unit.
#[derive(Debug)]
pub struct Fleet {
    liveness: Liveness<VehicleId>,
    vehicles: BTreeMap<VehicleId, Vehicle>,
    settle: Duration,
    /// Since when vehicles keep coming, and until when the next round waits for more.
    hold: (Timestamp, Timestamp),
}

impl Fleet {
    /// With the vehicles that were known before; they are absent until they give a sign of life.
    pub fn new(
        now: Timestamp,
        interval: Duration,
        misses: u32,
        settle: Duration,
        known: BTreeMap<VehicleId, Vehicle>,
    ) -> Self {
        let mut liveness = Liveness::new(interval, misses);
        for (id, vehicle) in &known {
            liveness.register(now, id.clone(), vehicle.generation);
            liveness.offline(id, vehicle.generation);
        }
        Self {
            liveness,
            vehicles: known,
            settle,
            hold: (now, now),
        }
    }

    /// A vehicle registers or says goodbye. The answer says what changed, and whether there is something to store and
    /// to confirm; `None` for a message to be ignored.
    pub fn on_presence(&mut self, now: Timestamp, presence: &Presence) -> Option<Change> {
        let (id, generation) = (&presence.vehicle, presence.generation);
        if !presence.online {
            let was_online = self.liveness.is_online(id);
            let gone = self.liveness.offline(id, generation) == Seen::Alive && was_online;
            return gone.then_some(Change::Lost);
        }
        if !self.vehicles.contains_key(id) && self.vehicles.len() >= MAX_VEHICLES {
            return None;
        }
        let seen = self.liveness.register(now, id.clone(), generation);
        if seen == Seen::Outdated {
            return None;
        }
        let known = self.vehicles.get(id).filter(|v| v.generation == generation);
        let (receipts, receipts_within_budget) =
            known.map_or((0, 0), |v| (v.receipts, v.receipts_within_budget));
        let vehicle = Vehicle {
            generation,
            backbone: presence.backbone,
            num_examples: presence.num_examples,
            receipts,
            receipts_within_budget,
        };
        self.vehicles.insert(id.clone(), vehicle);
        Some(self.came(now, seen))
    }

    /// A heartbeat arrived. `None`: ask the vehicle to register.
    pub fn on_heartbeat(
        &mut self,
        now: Timestamp,
        id: &VehicleId,
        generation: Generation,
        num_examples: u64,
    ) -> Option<Change> {
        let seen = self.liveness.heartbeat(now, id, generation);
        if let (Seen::Alive | Seen::Revived, Some(vehicle)) = (seen, self.vehicles.get_mut(id)) {
            vehicle.num_examples = num_examples;
        }
        (seen != Seen::Unknown).then(|| self.came(now, seen))
    }

    fn came(&mut self, now: Timestamp, seen: Seen) -> Change {
        if seen != Seen::Revived {
            return Change::None;
        }
        if now >= self.hold.1 {
            self.hold.0 = now;
        }
        let longest = self.hold.0 + self.settle.saturating_mul(MOST_SETTLES);
        self.hold.1 = (now + self.settle).min(longest);
        Change::Online
    }

    /// An update told how the vehicle's link does; the record to store, if the vehicle is known.
    pub fn on_metrics(&mut self, id: &VehicleId, metrics: &UpdateMetrics) -> Option<Vehicle> {
        let vehicle = self.vehicles.get_mut(id)?;
        vehicle.receipts = metrics.receipts;
        vehicle.receipts_within_budget = metrics.receipts_within_budget;
        Some(*vehicle)
    }

    /// Vehicles that are lost as of now, each told once.
    pub fn on_tick(&mut self, now: Timestamp) -> Vec<VehicleId> {
        self.liveness.on_tick(now)
    }

    /// Forgets vehicles that have been silent for a week.
    pub fn forget(&mut self, now: Timestamp) -> Vec<VehicleId> {
        let gone = self.liveness.forget_silent_since(now - FORGET_AFTER);
        for id in &gone {
            self.vehicles.remove(id);
        }
        gone
    }

    /// When [`Fleet::on_tick`] is next worth calling.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        self.liveness.next_deadline()
    }

    /// No round is to be opened before: vehicles are still coming.
    pub fn hold_until(&self) -> Timestamp {
        self.hold.1
    }

    /// Vehicles that may take part in a round of a job with this backbone, and their share within the latency budget.
    pub fn candidates(&self, backbone: Option<Digest>) -> BTreeMap<VehicleId, f64> {
        self.liveness
            .online()
            .filter_map(|id| {
                let vehicle = self.vehicles.get(id)?;
                let fits = backbone.is_none() || backbone == vehicle.backbone;
                (fits && vehicle.num_examples > 0).then(|| (id.clone(), vehicle.share()))
            })
            .collect()
    }

    /// What is known of a vehicle.
    pub fn get(&self, id: &VehicleId) -> Option<Vehicle> {
        self.vehicles.get(id).copied()
    }

    /// Every known vehicle.
    pub fn known(&self) -> impl Iterator<Item = &VehicleId> {
        self.vehicles.keys()
    }

    /// How many are there.
    pub fn online(&self) -> usize {
        self.liveness.online().count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn id(text: &str) -> VehicleId {
        VehicleId::new(text).expect("an id")
    }

    fn presence(vehicle: &str, generation: u64, online: bool, num_examples: u64) -> Presence {
        Presence {
            vehicle: id(vehicle),
            generation: Generation(generation),
            online,
            client_version: "0".into(),
            backbone: Some(Digest([1; 32])),
            num_examples,
        }
    }

    fn fleet(known: BTreeMap<VehicleId, Vehicle>) -> Fleet {
        Fleet::new(Timestamp(0), 30 * SECOND, 3, SECOND, known)
    }

    #[test]
    fn candidates_are_there_have_examples_and_the_backbone() {
        let mut fleet = fleet(BTreeMap::new());
        for (vehicle, examples) in [("a", 5), ("b", 0), ("c", 7)] {
            fleet.on_presence(Timestamp(0), &presence(vehicle, 1, true, examples));
        }
        let names = |fleet: &Fleet, backbone| -> Vec<String> {
            fleet
                .candidates(backbone)
                .keys()
                .map(ToString::to_string)
                .collect()
        };
        assert_eq!(names(&fleet, None), ["a", "c"]);
        assert_eq!(names(&fleet, Some(Digest([1; 32]))), ["a", "c"]);
        assert!(names(&fleet, Some(Digest([2; 32]))).is_empty());
        let gone = fleet.on_presence(Timestamp(1), &presence("a", 1, false, 5));
        assert_eq!(gone, Some(Change::Lost));
        assert_eq!(names(&fleet, None), ["c"]);
        fleet.on_heartbeat(Timestamp(2), &id("c"), Generation(1), 0);
        assert!(
            names(&fleet, None).is_empty(),
            "the heartbeat says how many there are now"
        );
    }

    #[test]
    fn a_restarted_unit_waits_for_a_sign_of_life() {
        let mut first = fleet(BTreeMap::new());
        first.on_presence(Timestamp(0), &presence("a", 3, true, 5));
        let known = first.get(&id("a")).expect("known");
        let mut fleet = fleet([(id("a"), known)].into());
        assert_eq!(fleet.online(), 0);
        let back = fleet.on_heartbeat(Timestamp(9), &id("a"), Generation(3), 5);
        assert_eq!(back, Some(Change::Online));
        assert_eq!(
            fleet.on_heartbeat(Timestamp(9), &id("a"), Generation(4), 5),
            None
        );
        assert_eq!(
            fleet.on_heartbeat(Timestamp(9), &id("b"), Generation(1), 5),
            None
        );
    }

    #[test]
    fn rounds_wait_for_vehicles_that_come_together_but_not_for_ever() {
        let mut fleet = fleet(BTreeMap::new());
        let mut holds = Vec::new();
        for n in 0..10_u64 {
            let now = Timestamp(n * 900);
            fleet.on_presence(now, &presence(&format!("v{n}"), 1, true, 1));
            holds.push(fleet.hold_until().0);
        }
        assert_eq!(holds[0], 1000);
        assert_eq!(holds[3], 3700);
        assert_eq!(holds[5], 5000, "five times as long at most");
        assert_eq!(holds[6], 6400, "then from the start");
    }
}
