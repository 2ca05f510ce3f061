//! How well vehicles were connected, and who contributed.

use std::cmp::Reverse;
use std::fmt::Write as _;

use super::super::format;
use super::super::record::{RunRecord, VehicleRow};
use super::axis::{Axis, whole};
use super::plot::{EDGES, Frame, SIZE, figure, px, svg, table, thinned};

/// Vehicles in each of the two tables.
const ROWS: usize = 8;
/// Points of the Lorenz curve at most.
const MOST_POINTS: usize = 400;

/// Handovers and connected share as histograms.
pub(super) fn links(run: &RunRecord, suffix: &str) -> String {
    if run.vehicles.is_empty() {
        return String::new();
    }
    let connected: Vec<f64> = run
        .vehicles
        .iter()
        .map(|v| 100.0 * v.connected_share)
        .collect();
    let handovers: Vec<f64> = run.vehicles.iter().map(|v| v.handovers as f64).collect();
    let most = handovers.iter().copied().fold(0.0, f64::max);
    let width = ((most + 1.0) / 20.0).ceil().max(1.0);
    format!(
        "<section><h2>Connections</h2><div class=\"grid\">{}{}</div></section>",
        histogram(
            &format!("connected-share{suffix}"),
            "Share of the time with a link",
            &connected,
            (5.0, 100.0),
            "connected (%)",
        ),
        histogram(
            &format!("handovers{suffix}"),
            "Handovers of a vehicle",
            &handovers,
            (width, (most + 1.0).max(5.0)),
            "handovers",
        )
    )
}

/// How many vehicles have a value in each interval of `width` from 0 to `end`; the last one has its upper end, too.
fn histogram(
    id: &str,
    heading: &str,
    values: &[f64],
    (width, end): (f64, f64),
    axis: &str,
) -> String {
    let bins = whole((end / width).ceil()).max(1);
    let mut counts = vec![0u32; bins];
    for value in values {
        counts[whole(value / width).min(bins - 1)] += 1;
    }
    let highest = counts.iter().copied().max().unwrap_or(0);
    let frame = Frame {
        x: Axis::new(0.0, bins as f64 * width, 5, axis).whole(),
        y: Axis::new(0.0, f64::from(highest), 4, "vehicles")
            .whole()
            .rounded(),
    };
    let mut body = frame.axes();
    for (i, count) in counts.iter().enumerate() {
        let (from, to) = (i as f64 * width, (i + 1) as f64 * width);
        let words = format!(
            "{} to {}: {}",
            px(from),
            px(to),
            format::plural(u64::from(*count), "vehicle")
        );
        body += &frame.bar("one", (from, to), (0.0, f64::from(*count)), &words);
    }
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let median = sorted.get(sorted.len() / 2).copied().unwrap_or(0.0);
    let mean = values.iter().sum::<f64>() / values.len().max(1) as f64;
    let note = format!(
        "Median {}, mean {}, from {} to {}.",
        format::number(median),
        format::number(mean),
        format::number(sorted.first().copied().unwrap_or(0.0)),
        format::number(sorted.last().copied().unwrap_or(0.0))
    );
    let words = format!("Histogram over {} vehicles. {note}", values.len());
    figure(heading, &svg(id, SIZE, heading, &words, &body), &note)
}

/// Gini coefficient of values that are not negative, in ascending order: 0 if all are equal, nearly 1 if one has all.
fn gini(sorted: &[f64]) -> f64 {
    let (n, sum) = (sorted.len() as f64, sorted.iter().sum::<f64>());
    if sum <= 0.0 {
        return 0.0;
    }
    let ranked: f64 = sorted
        .iter()
        .zip(1u32..)
        .map(|(v, i)| f64::from(i) * v)
        .sum();
    2.0 * ranked / (n * sum) - (n + 1.0) / n
}

/// Lorenz curve of weight, and who has most and least of it.
pub(super) fn contributions(run: &RunRecord, suffix: &str) -> String {
    let mut shares: Vec<f64> = run
        .vehicles
        .iter()
        .map(|v| v.weight_share.max(0.0))
        .collect();
    shares.sort_by(f64::total_cmp);
    let total: f64 = shares.iter().sum();
    let head = "<section><h2>Who contributed</h2>";
    if total <= 0.0 {
        return format!(
            "{head}<p id=\"contributions{suffix}\">No update was accepted.</p></section>"
        );
    }
    let frame = Frame {
        x: Axis::new(0.0, 100.0, 5, "vehicles, least weight first").percent(),
        y: Axis::new(0.0, 100.0, 5, "share of all examples counted").percent(),
    };
    let mut sum = 0.0;
    let curve: Vec<(f64, f64)> = shares
        .iter()
        .zip(1u32..)
        .map(|(share, rank)| {
            sum += share;
            (
                100.0 * f64::from(rank) / shares.len() as f64,
                100.0 * sum / total,
            )
        })
        .collect();
    let points: Vec<(f64, f64)> = std::iter::once((0.0, 0.0))
        .chain(thinned(&curve, MOST_POINTS).copied())
        .collect();
    let gini = gini(&shares);
    let mut body = frame.axes();
    body += &frame.line("between", points.iter().copied());
    body += &frame.line("equal", [(0.0, 0.0), (100.0, 100.0)].into_iter());
    body += &frame.line("s0", points.iter().copied());
    let _ = write!(
        body,
        "<text class=\"over mark\" x=\"{}\" y=\"{}\">Gini {gini:.2}</text>",
        px(EDGES[0] + 14.0),
        px(EDGES[2] + 34.0)
    );
    let none = shares.iter().filter(|share| **share <= 0.0).count() as u64;
    let tenth = shares.len().div_ceil(10);
    let upper = shares.iter().rev().take(tenth).sum::<f64>() / total;
    let words = format!(
        "The tenth with most weight has {} of it. {} of {} had no update accepted.",
        format::percent(upper),
        format::count(none),
        format::plural(shares.len() as u64, "vehicle")
    );
    let heading = "Lorenz curve of weight";
    let drawing = svg(
        &format!("contributions{suffix}"),
        SIZE,
        heading,
        &format!("Gini coefficient {gini:.2}. {words}"),
        &body,
    );
    format!(
        "{head}<div class=\"grid uneven\">{}<div>{}</div></div></section>",
        figure(heading, &drawing, &words),
        tables(run)
    )
}

fn tables(run: &RunRecord) -> String {
    let mut order: Vec<&VehicleRow> = run.vehicles.iter().collect();
    order.sort_by(|a, b| b.weight_share.total_cmp(&a.weight_share));
    let top = order.iter().take(ROWS).copied().collect::<Vec<_>>();
    // Of those with equally little, whom was asked most often in vain?
    order.sort_by(|a, b| a.weight_share.total_cmp(&b.weight_share));
    order.sort_by_key(|v| {
        (
            v.accepted > 0,
            Reverse(if v.accepted == 0 { v.asked } else { 0 }),
        )
    });
    let bottom = order.into_iter().take(ROWS).collect::<Vec<_>>();
    format!(
        "<h3>Most weight</h3>{}<h3>Least weight, most often asked</h3>{}",
        vehicle_table(&top),
        vehicle_table(&bottom)
    )
}

fn vehicle_table(vehicles: &[&VehicleRow]) -> String {
    let names = [
        "vehicle",
        "weight",
        "accepted",
        "asked",
        "examples",
        "speed",
        "connected",
    ];
    let rows = vehicles.iter().map(|v| {
        [
            v.name.clone(),
            format!("{:.2} %", 100.0 * v.weight_share),
            format::count(v.accepted),
            format::count(v.asked),
            format::count(v.examples),
            format::number(v.speed),
            format!("{:.0} %", 100.0 * v.connected_share),
        ]
    });
    table("figures", names, rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn gini_is_0_for_all_alike_and_nearly_1_for_one() {
        for (values, expected) in [
            (&[1.0, 1.0, 1.0][..], 0.0),
            (&[0.0, 0.0, 0.0, 8.0], 0.75),
            (&[1.0, 3.0], 0.25),
            (&[0.0], 0.0),
            (&[], 0.0),
        ] {
            assert!((gini(values) - expected).abs() < 1e-12, "{values:?}");
        }
    }

    proptest! {
        #[test]
        fn gini_lies_between_0_and_1(mut values in prop::collection::vec(0.0..1e6, 1..50)) {
            values.sort_by(f64::total_cmp);
            prop_assert!((-1e-9..1.0).contains(&gini(&values)));
        }
    }
}
