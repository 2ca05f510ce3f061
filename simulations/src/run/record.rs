//! What came out of a run, as it is written down.

use super::Outcome;
use crate::engine::event::Millis;
use crate::engine::tally::RoundTally;
use crate::results::record::{
    Expectation, FORMAT, MAX_VEHICLES, Map, Point, RoundRow, RunRecord, Summary, UnitRow,
    VehicleRow,
};
use crate::scenario::Scenario;

/// Writes down a run of a scenario.
pub fn record(scenario: &Scenario, outcome: &Outcome, threads: usize) -> RunRecord {
    let file = &scenario.file;
    let env = outcome.city.env();
    let tally = &outcome.tally;
    let last = outcome
        .curve
        .iter()
        .rev()
        .find_map(|made| made.version.evaluation.as_ref());
    let (width_m, height_m) = env.world.extent();
    let mut curve = Vec::new();
    for point in &outcome.curve {
        let made = &point.version;
        let bytes = made.up_bytes + made.down_bytes;
        curve.push(Point {
            version: made.version.0,
            simulated_s: seconds(made.at),
            accuracy: made.evaluation.as_ref().map(|e| e.accuracy),
            macro_recall: made.evaluation.as_ref().map(|e| e.macro_recall),
            up_bytes: made.up_bytes,
            down_bytes: made.down_bytes,
            energy_j: file.energy.joules(point.trained, bytes),
            contributors: u64::from(made.contributors),
            num_examples: made.num_examples,
            released: made.released,
        });
    }
    let (up_bytes, down_bytes) = curve.last().map_or((0, 0), |p| (p.up_bytes, p.down_bytes));
    let wall_s = outcome.wall_s.max(1e-9);
    RunRecord {
        format: FORMAT,
        name: file.name.clone(),
        scenario: scenario.text.clone(),
        seed: outcome.seed,
        threads: u32::try_from(threads).unwrap_or(u32::MAX),
        fleet: u64::from(file.vehicles),
        summary: Summary {
            fits: tally.fits,
            fits_per_s: tally.fits as f64 / wall_s,
            rounds: tally.rounds_with_result(),
            versions: tally.versions,
            simulated_s: seconds(outcome.simulated),
            wall_s: outcome.wall_s,
            peak_rss_bytes: wayside_host::usage::peak_rss_bytes().unwrap_or(0),
            model_digest: outcome.model_digest.clone(),
            log_digest: outcome.log_digest.clone(),
            accuracy: last.map(|e| e.accuracy),
            macro_recall: last.map(|e| e.macro_recall),
            up_bytes,
            down_bytes,
            energy_j: file.energy.joules(tally.trained, up_bytes + down_bytes),
            accepted: tally.accepted,
            refused: tally.refused,
            stale: tally.stale,
            handovers: tally.handovers,
            crashes: tally.crashes,
            dropped_connections: tally.disconnects,
            violations: outcome.violations.len() as u64,
        },
        curve,
        rounds: tally.rounds.iter().map(round_row).collect(),
        units: units(outcome),
        vehicles: vehicles(outcome),
        map: Map {
            width_m: f64::from(width_m),
            height_m: f64::from(height_m),
            roads: Vec::new(),
        },
        expectations: expectations(scenario, outcome, last.map(|e| e.accuracy)),
    }
}

fn seconds(at: Millis) -> f64 {
    at as f64 / 1000.0
}

fn round_row(round: &RoundTally) -> RoundRow {
    let mut waits = round.waits.clone();
    waits.sort_unstable();
    RoundRow {
        unit: round.unit,
        round: round.round.0,
        opened_s: seconds(round.opened),
        closed_s: seconds(round.closed),
        cohort: round.cohort as u64,
        target: round.target as u64,
        accepted: round.waits.len() as u64,
        refused: u64::from(round.refused),
        late: u64::from(round.late),
        result: round.aggregated,
        slowest_s: waits.last().copied().map(seconds),
        median_s: waits.get(waits.len() / 2).copied().map(seconds),
    }
}

fn units(outcome: &Outcome) -> Vec<UnitRow> {
    let env = outcome.city.env();
    let rows = (0..).zip(env.world.units()).map(|(index, place)| {
        let tally = outcome.tally.units.get(&index).cloned().unwrap_or_default();
        UnitRow {
            name: env.units[index as usize].to_string(),
            x_m: f64::from(place.x_m),
            y_m: f64::from(place.y_m),
            radius_m: f64::from(place.radius_m),
            rounds: tally.rounds,
            accepted: tally.accepted,
            refused: tally.refused,
            handovers_in: tally.handovers_in,
            up_bytes: tally.up_bytes,
            down_bytes: tally.down_bytes,
        }
    });
    rows.collect()
}

/// Every vehicle of a small fleet; of a large one, evenly spread ones.
fn vehicles(outcome: &Outcome) -> Vec<VehicleRow> {
    let env = outcome.city.env();
    let fleet = env.vehicles.len();
    let step = fleet.div_ceil(MAX_VEHICLES).max(1);
    let total: u64 = outcome.tally.vehicles.values().map(|v| v.weight).sum();
    let rows = (0..fleet).step_by(step).filter_map(|index| {
        let number = u32::try_from(index).ok()?;
        let ((x_m, y_m), _) = outcome.city.whereabouts(number)?;
        let tally = outcome
            .tally
            .vehicles
            .get(&number)
            .cloned()
            .unwrap_or_default();
        Some(VehicleRow {
            name: env.vehicles[index].to_string(),
            x_m: f64::from(x_m),
            y_m: f64::from(y_m),
            speed: env.world.compute_speed(number),
            examples: u64::from(env.examples.shares.rows(number)),
            asked: u64::from(tally.asked),
            accepted: u64::from(tally.accepted),
            refused: u64::from(tally.refused),
            handovers: u64::from(tally.handovers),
            connected_share: tally.connected as f64 / outcome.simulated.max(1) as f64,
            weight_share: tally.weight as f64 / total.max(1) as f64,
        })
    });
    rows.collect()
}

fn expectations(scenario: &Scenario, outcome: &Outcome, accuracy: Option<f64>) -> Vec<Expectation> {
    let (expect, tally) = (&scenario.file.expect, &outcome.tally);
    let mut all = Vec::new();
    let mut say = |name: &str, wanted: String, got: String, holds: bool| {
        let name = name.to_owned();
        all.push(Expectation {
            name,
            wanted,
            got,
            holds,
        });
    };
    let percent =
        |share: Option<f64>| share.map_or("none".to_owned(), |s| format!("{:.1} %", 100.0 * s));
    if let Some(wanted) = expect.accuracy {
        let holds = accuracy.is_some_and(|got| got >= wanted);
        let wanted = format!("at least {}", percent(Some(wanted)));
        say("accuracy", wanted, percent(accuracy), holds);
    }
    if let Some(wanted) = expect.accuracy_below {
        let holds = accuracy.is_some_and(|got| got < wanted);
        let wanted = format!("below {}", percent(Some(wanted)));
        say("accuracy_below", wanted, percent(accuracy), holds);
    }
    for (name, wanted, got) in [
        ("versions", expect.versions, tally.versions),
        ("rounds", expect.rounds, tally.rounds_with_result()),
        ("accepted", expect.accepted, tally.accepted),
        ("refused", expect.refused, tally.refused),
        ("stale", expect.stale, tally.stale),
        ("handovers", expect.handovers, tally.handovers),
        ("disconnects", expect.disconnects, tally.disconnects),
        ("crashes", expect.crashes, tally.crashes),
    ] {
        if let Some(wanted) = wanted {
            let holds = got >= wanted;
            say(name, format!("at least {wanted}"), got.to_string(), holds);
        }
    }
    if let Some(wanted) = expect.within_budget {
        let (all, within) = tally.receipts;
        let got = within as f64 / all.max(1) as f64;
        let holds = got >= wanted;
        let wanted = format!("at least {}", percent(Some(wanted)));
        say("within_budget", wanted, percent(Some(got)), holds);
    }
    for (name, wanted, got) in [
        ("finished", expect.finished, tally.finished),
        ("exact", expect.exact, tally.exact),
    ] {
        if let Some(wanted) = wanted {
            say(name, wanted.to_string(), got.to_string(), got == wanted);
        }
    }
    let violations = outcome.violations.len();
    say(
        "invariants",
        "no violation".to_owned(),
        outcome
            .violations
            .first()
            .map_or("none".to_owned(), |first| {
                format!("{violations}, the first at {} ms: {}", first.at, first.what)
            }),
        violations == 0,
    );
    all
}
