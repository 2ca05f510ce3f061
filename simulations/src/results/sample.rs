//! Made-up records for tests: a city of a few units, a fleet that learns.

use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use super::record::{
    Expectation, FORMAT, Map, Point, RoundRow, RunRecord, Summary, UnitRow, VehicleRow,
};

/// Three decimals, which JSON gives back exactly.
fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

/// 400 vehicles at 12 units, 40 versions in 20 hours.
pub(super) fn record(seed: u64) -> RunRecord {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let map = map();
    let units: Vec<UnitRow> = (0..12).map(unit).collect();
    let mut vehicles: Vec<VehicleRow> = (0..400).map(|i| vehicle(i, &map, &mut rng)).collect();
    let weight = |v: &VehicleRow| (v.accepted * v.examples) as f64;
    let total: f64 = vehicles.iter().map(weight).sum();
    for vehicle in &mut vehicles {
        vehicle.weight_share = (1e9 * weight(vehicle) / total).round() / 1e9;
    }
    let curve = curve(&mut rng);
    let rounds = rounds(&mut rng);
    let last = curve.last().cloned().unwrap_or_default();
    let sum = |figure: fn(&RoundRow) -> u64| rounds.iter().map(figure).sum::<u64>();
    let summary = Summary {
        fits: 41_250,
        fits_per_s: 8123.5,
        rounds: rounds.len() as u64,
        versions: last.version,
        simulated_s: 72_000.0,
        wall_s: 5.078,
        peak_rss_bytes: 412_000_000,
        model_digest: format!("{:016x}{:016x}", rng.random::<u64>(), rng.random::<u64>()),
        log_digest: format!("{:016x}{:016x}", rng.random::<u64>(), rng.random::<u64>()),
        accuracy: last.accuracy,
        macro_recall: last.macro_recall,
        up_bytes: last.up_bytes,
        down_bytes: last.down_bytes,
        energy_j: last.energy_j,
        accepted: sum(|r| r.accepted),
        refused: sum(|r| r.refused),
        stale: sum(|r| r.late) / 3,
        handovers: vehicles.iter().map(|v| v.handovers).sum(),
        crashes: 17,
        dropped_connections: 5210,
        violations: 0,
    };
    RunRecord {
        format: FORMAT,
        name: "rush-hour".into(),
        scenario: SCENARIO.into(),
        seed,
        threads: 2,
        fleet: 400,
        expectations: expectations(&summary),
        summary,
        curve,
        rounds,
        units,
        vehicles,
        map,
    }
}

fn map() -> Map {
    let (width_m, height_m) = (6000.0, 4000.0);
    let across = (0..=8).map(|i| f64::from(i) * 500.0);
    let down = (0..=12).map(|i| f64::from(i) * 500.0);
    Map {
        width_m,
        height_m,
        roads: across
            .map(|y| [0.0, y, width_m, y])
            .chain(down.map(|x| [x, 0.0, x, height_m]))
            .collect(),
    }
}

fn unit(i: u32) -> UnitRow {
    let (column, row) = (i % 4, i / 4);
    let busy = 1.0 + f64::from((i * 7) % 5);
    UnitRow {
        name: format!("unit-{i:02}"),
        x_m: 750.0 + 1500.0 * f64::from(column),
        y_m: 670.0 + 1330.0 * f64::from(row),
        radius_m: 620.0,
        rounds: 40,
        accepted: (busy * 180.0).round() as u64,
        refused: u64::from(i % 3) * 4,
        handovers_in: (busy * 90.0).round() as u64,
        up_bytes: (busy * 1.9e7).round() as u64,
        down_bytes: (busy * 3.1e7).round() as u64,
    }
}

fn vehicle(i: u32, map: &Map, rng: &mut ChaCha8Rng) -> VehicleRow {
    let along = rng.random_range(0.0..1.0);
    let (x_m, y_m) = if rng.random() {
        (
            along * map.width_m,
            f64::from(rng.random_range(0..=8)) * 500.0,
        )
    } else {
        (
            f64::from(rng.random_range(0..=12)) * 500.0,
            along * map.height_m,
        )
    };
    let connected: f64 = (rng.random::<f64>() + rng.random::<f64>() + rng.random::<f64>()) / 3.0;
    let asked = rng.random_range(4..40u32);
    let keen: f64 = rng.random();
    let accepted = (f64::from(asked) * keen * connected * 1.4).min(f64::from(asked)) as u64;
    VehicleRow {
        name: format!("car-{i:04}"),
        x_m: rounded(x_m),
        y_m: rounded(y_m),
        speed: [1.0, 0.5, 0.2]
            [usize::from(rng.random_range(0..10u8) > 5) + usize::from(i.is_multiple_of(9))],
        examples: (20.0 + 400.0 * keen * keen) as u64,
        asked: u64::from(asked),
        accepted,
        refused: u64::from(rng.random_range(0..20u8) == 0),
        handovers: (rng.random::<f64>() * rng.random::<f64>() * 40.0) as u64,
        connected_share: rounded(connected),
        weight_share: 0.0,
    }
}

fn curve(rng: &mut ChaCha8Rng) -> Vec<Point> {
    let mut curve = Vec::new();
    let (mut up, mut down, mut energy, mut time) = (0, 0, 0.0, 0.0);
    let best = 0.86 + 0.03 * rng.random::<f64>();
    for version in 0..=40 {
        let progress = version as f64 / 7.0;
        let noise = 0.03 * (rng.random::<f64>() - 0.5) / (1.0 + progress);
        let accuracy = 0.06 + (best - 0.06) * progress / (0.8 + progress) + noise;
        let contributors = if version == 0 {
            0
        } else {
            rng.random_range(60..140)
        };
        curve.push(Point {
            version,
            simulated_s: rounded(time),
            accuracy: (version % 5 != 3).then(|| rounded(accuracy)),
            macro_recall: (version % 5 != 3).then(|| rounded(accuracy * 0.93 - 0.01)),
            up_bytes: up,
            down_bytes: down,
            energy_j: rounded(energy),
            contributors,
            num_examples: contributors * 210,
            released: version % 17 != 11,
        });
        up += 24_768 * (contributors + 20);
        down += 51_200 * (contributors + 40);
        energy += 420.0 * (contributors + 10) as f64;
        time += rng.random_range(1500.0..2000.0);
    }
    curve
}

fn rounds(rng: &mut ChaCha8Rng) -> Vec<RoundRow> {
    let mut rounds = Vec::new();
    for round in 1..=40u32 {
        for unit in 0..12 {
            let opened_s = f64::from(round - 1) * 1790.0 + rng.random_range(0.0..30.0);
            let rush = if (12..20).contains(&round) { 2 } else { 1 };
            let cohort = rng.random_range(6..14) * rush;
            let late = rng.random_range(0..=cohort / 3);
            let refused = u64::from(rng.random_range(0..6u8) == 0);
            let accepted = cohort - late - refused;
            let median = 8.0 + 30.0 * rng.random::<f64>() * rng.random::<f64>();
            let slowest = median * (1.5 + 6.0 * rng.random::<f64>() * rng.random::<f64>());
            rounds.push(RoundRow {
                unit,
                round: u64::from(round),
                opened_s: rounded(opened_s),
                closed_s: rounded(opened_s + slowest + 60.0),
                cohort,
                target: 8 * rush,
                accepted,
                refused,
                late,
                result: accepted >= 3,
                slowest_s: (accepted > 0).then(|| rounded(slowest)),
                median_s: (accepted > 0).then(|| rounded(median)),
            });
        }
    }
    rounds
}

fn expectations(summary: &Summary) -> Vec<Expectation> {
    let line = |name: &str, wanted: &str, got: String, holds: bool| Expectation {
        name: name.into(),
        wanted: wanted.into(),
        got,
        holds,
    };
    vec![
        line(
            "accuracy",
            "at least 0.75",
            format!("{:?}", summary.accuracy.unwrap_or(0.0)),
            true,
        ),
        line(
            "versions",
            "at least 40",
            summary.versions.to_string(),
            true,
        ),
        line(
            "handovers",
            "at least 10000",
            summary.handovers.to_string(),
            false,
        ),
    ]
}

const SCENARIO: &str = r#"# Rush hour: everybody is on the road at once, links are bad below the bridge.
name = "rush-hour"
vehicles = 400
units = 12
hours = 20

[job.strategy]
fraction_train = 0.25 # </script><b> & more

[expect]
accuracy = 0.75
versions = 40
handovers = 10000
"#;
