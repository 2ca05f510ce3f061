//! The record of a run: what the engine fills in and everything that is shown is made of.
//!
//! It is stored as JSON, so it is a promise to other versions of this program: a change that older readers would
//! misunderstand raises [`FORMAT`]. All figures are finite; times are simulated unless a name says `wall`.

use serde::{Deserialize, Serialize};

/// The format that this build writes, and the newest that it reads.
pub const FORMAT: u32 = 1;

/// The most vehicles that a record names; of larger fleets the engine records a sample.
pub const MAX_VEHICLES: usize = 2000;

/// One run of one seed of one scenario.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunRecord {
    /// Always [`FORMAT`].
    pub format: u32,
    /// Name of the scenario; runs of one name and several seeds are shown as one.
    pub name: String,
    /// The scenario as it was written, in TOML.
    pub scenario: String,
    /// Everything random was drawn from it.
    pub seed: u64,
    /// Threads that worked; they change the wall time and nothing else.
    pub threads: u32,
    /// Vehicles in the fleet, of which `vehicles` may be a sample.
    pub fleet: u64,
    /// Sums over the whole run.
    pub summary: Summary,
    /// Version by version, version 0 first; versions never fall.
    pub curve: Vec<Point>,
    /// Rounds of roadside units, in the order in which they were closed.
    pub rounds: Vec<RoundRow>,
    /// Roadside units; [`RoundRow::unit`] counts from the first.
    pub units: Vec<UnitRow>,
    /// Vehicles, at most [`MAX_VEHICLES`].
    pub vehicles: Vec<VehicleRow>,
    /// What lies below units and vehicles.
    pub map: Map,
    /// What the scenario's `[expect]` table asked for, and what came out.
    pub expectations: Vec<Expectation>,
}

/// Sums over the whole run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Local trainings that vehicles carried out.
    pub fits: u64,
    /// Local trainings per second of wall time.
    pub fits_per_s: f64,
    /// Rounds that roadside units closed.
    pub rounds: u64,
    /// Versions that the cloud made, version 0 not counted.
    pub versions: u64,
    /// Simulated seconds.
    pub simulated_s: f64,
    /// Wall time in seconds, set-up left out.
    pub wall_s: f64,
    /// Largest resident memory of the process in bytes.
    pub peak_rss_bytes: u64,
    /// Digest of the last version's parameters, in hex.
    pub model_digest: String,
    /// Digest of the event log, in hex.
    pub log_digest: String,
    /// Share of correct answers of the last version that was tested, 0 to 1.
    pub accuracy: Option<f64>,
    /// Mean over the classes of the share found, 0 to 1.
    pub macro_recall: Option<f64>,
    /// Bytes from vehicles to roadside units.
    pub up_bytes: u64,
    /// Bytes from roadside units to vehicles.
    pub down_bytes: u64,
    /// Joules that vehicles spent on training and transfer.
    pub energy_j: f64,
    /// Updates that count.
    pub accepted: u64,
    /// Updates that were refused.
    pub refused: u64,
    /// Updates that came too late to count.
    pub stale: u64,
    /// Times that a vehicle went on with another roadside unit.
    pub handovers: u64,
    /// Processes that ended without warning.
    pub crashes: u64,
    /// Connections that broke.
    pub dropped_connections: u64,
    /// Invariants that did not hold; anything but 0 is a fault of the program.
    pub violations: u64,
}

/// One version of the global model. Bytes and energy are those spent up to it, since the start.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Its number.
    pub version: u64,
    /// When it was made, in seconds.
    pub simulated_s: f64,
    /// Share of correct answers on the test examples, 0 to 1; `None` where it was not tested.
    pub accuracy: Option<f64>,
    /// Mean over the classes of the share found, 0 to 1.
    pub macro_recall: Option<f64>,
    /// Bytes from vehicles to roadside units so far.
    pub up_bytes: u64,
    /// Bytes from roadside units to vehicles so far.
    pub down_bytes: u64,
    /// Joules so far.
    pub energy_j: f64,
    /// Vehicles whose updates are in it.
    pub contributors: u64,
    /// Examples behind those updates.
    pub num_examples: u64,
    /// It passed the cloud's gate.
    pub released: bool,
}

/// One round of one roadside unit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RoundRow {
    /// The unit's place in [`RunRecord::units`], from 0.
    pub unit: u32,
    /// Number of the round.
    pub round: u64,
    /// When it was opened, in seconds.
    pub opened_s: f64,
    /// When it was closed, in seconds.
    pub closed_s: f64,
    /// Vehicles that were asked.
    pub cohort: u64,
    /// Updates wanted.
    pub target: u64,
    /// Updates that count.
    pub accepted: u64,
    /// Updates that were refused.
    pub refused: u64,
    /// Vehicles whose update had not come when it was closed.
    pub late: u64,
    /// It gave a partial aggregate.
    pub result: bool,
    /// Seconds from its opening until the last update was accepted; `None` without any.
    pub slowest_s: Option<f64>,
    /// Seconds from its opening until half of the updates were accepted; `None` without any.
    pub median_s: Option<f64>,
}

/// One roadside unit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct UnitRow {
    /// Its name.
    pub name: String,
    /// Metres to the east.
    pub x_m: f64,
    /// Metres to the north.
    pub y_m: f64,
    /// How far it reaches, in metres.
    pub radius_m: f64,
    /// Rounds that it closed.
    pub rounds: u64,
    /// Updates that count.
    pub accepted: u64,
    /// Updates that it refused.
    pub refused: u64,
    /// Vehicles that came to it from another unit.
    pub handovers_in: u64,
    /// Bytes from vehicles.
    pub up_bytes: u64,
    /// Bytes to vehicles.
    pub down_bytes: u64,
}

/// One vehicle.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct VehicleRow {
    /// Its name.
    pub name: String,
    /// Metres to the east, at the end of the run.
    pub x_m: f64,
    /// Metres to the north, at the end of the run.
    pub y_m: f64,
    /// How fast it computes; 1 is the reference.
    pub speed: f64,
    /// Examples that it trains on.
    pub examples: u64,
    /// Rounds that asked it.
    pub asked: u64,
    /// Its updates that count.
    pub accepted: u64,
    /// Its updates that were refused.
    pub refused: u64,
    /// Times that it went on with another unit.
    pub handovers: u64,
    /// Share of the simulated time with a link to a unit, 0 to 1.
    pub connected_share: f64,
    /// Its share of all examples that were counted into versions, 0 to 1; over the whole fleet they add up to 1.
    pub weight_share: f64,
}

/// What lies below units and vehicles; everything may be empty.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Map {
    /// Metres from west to east.
    pub width_m: f64,
    /// Metres from south to north.
    pub height_m: f64,
    /// Straight pieces of road: from x, y to x, y in metres.
    pub roads: Vec<[f64; 4]>,
}

/// One line of the scenario's `[expect]` table.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Expectation {
    /// What it is about, such as `accuracy`.
    pub name: String,
    /// What was wanted, in words for people, such as `at least 0.8`.
    pub wanted: String,
    /// What came out.
    pub got: String,
    /// Whether that is as wanted.
    pub holds: bool,
}

impl RunRecord {
    /// The first released version whose accuracy is at least `target` (0 to 1).
    pub fn reached(&self, target: f64) -> Option<&Point> {
        self.curve
            .iter()
            .find(|point| point.released && point.accuracy.is_some_and(|got| got >= target))
    }

    /// The best accuracy of a released version.
    pub fn best_accuracy(&self) -> Option<f64> {
        self.curve
            .iter()
            .filter(|point| point.released)
            .filter_map(|point| point.accuracy)
            .reduce(f64::max)
    }

    /// Expectations that hold.
    pub fn holding(&self) -> usize {
        self.expectations.iter().filter(|e| e.holds).count()
    }
}

impl Point {
    /// Bytes in both directions.
    pub fn bytes(&self) -> u64 {
        self.up_bytes.saturating_add(self.down_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample::record;
    use super::*;

    #[test]
    fn is_read_back_as_written() {
        let record = record(1);
        let text = serde_json::to_string(&record).unwrap();
        assert_eq!(serde_json::from_str::<RunRecord>(&text).unwrap(), record);
    }

    #[test]
    fn a_version_that_was_kept_back_reaches_nothing() {
        let point = |version, accuracy, released| Point {
            version,
            accuracy: Some(accuracy),
            released,
            ..Point::default()
        };
        let run = RunRecord {
            curve: vec![
                point(0, 0.1, true),
                point(1, 0.9, false),
                point(2, 0.5, true),
            ],
            ..RunRecord::default()
        };
        assert_eq!(run.reached(0.5).map(|p| p.version), Some(2));
        assert_eq!(run.reached(0.6), None);
        assert_eq!(run.best_accuracy(), Some(0.5));
    }
}
