//! How long rounds waited, and for whom.

use super::super::format;
use super::super::record::{RoundRow, RunRecord};
use super::axis::{Axis, whole};
use super::plot::{Frame, SIZE, figure, legend, px, svg, table, thinned};

/// Bars of the second plot at most.
const MOST_BARS: usize = 48;
/// Steps of a distribution at most.
const MOST_STEPS: usize = 400;

/// Time from a round's opening to the median and to the last accepted update, and what became of those asked.
pub(super) fn section(run: &RunRecord, suffix: &str) -> String {
    if run.rounds.is_empty() {
        return String::new();
    }
    format!(
        "<section><h2>Rounds and stragglers</h2><div class=\"grid\">{}{}</div></section>",
        waits(run, suffix),
        bars(run, suffix)
    )
}

/// In ascending order.
fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

/// The smallest value that at least `share` of `sorted` do not exceed; 0 of nothing.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let rank = whole((share * sorted.len() as f64).ceil());
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(0.0)
}

fn waits(run: &RunRecord, suffix: &str) -> String {
    let median = sorted(run.rounds.iter().filter_map(|row| row.median_s));
    let slowest = sorted(run.rounds.iter().filter_map(|row| row.slowest_s));
    // One straggler of hours must not squeeze all others into the first pixel.
    let (most, nearly) = (quantile(&slowest, 1.0), quantile(&slowest, 0.99));
    let end = if most > 2.0 * nearly {
        1.2 * nearly
    } else {
        most
    };
    let (unit, size) = format::time_unit(end);
    let title = format!("from opening to acceptance ({unit})");
    let frame = Frame {
        x: Axis::new(0.0, end / size, 5, &title),
        y: Axis::new(0.0, 100.0, 5, "share of rounds").percent(),
    };
    let mut body = frame.axes();
    for (class, values) in [("s1", &slowest), ("s0", &median)] {
        let steps: Vec<(f64, f64)> = values
            .iter()
            .zip(1u32..)
            .map(|(value, rank)| (value / size, 100.0 * f64::from(rank) / values.len() as f64))
            .filter(|(value, _)| *value <= frame.x.to)
            .collect();
        let rest = steps.last().map(|(_, share)| (frame.x.to, *share));
        let steps = thinned(&steps, MOST_STEPS).copied().chain(rest);
        body += &frame.line(class, std::iter::once((0.0, 0.0)).chain(steps));
    }
    let row = |name: &str, values: &[f64]| {
        let at = |share| format::seconds(quantile(values, share));
        [name.to_owned(), at(0.5), at(0.9), at(0.99), at(1.0)]
    };
    let rows = [row("median update", &median), row("last update", &slowest)];
    let words = format!(
        "Share of rounds in which the median and the last accepted update had arrived after a time. The last one \
         took {} in half of the rounds and {} in nine of ten.",
        rows[1][1], rows[1][2]
    );
    let empty = run.rounds.len() - slowest.len();
    let note = match empty {
        0 => String::new(),
        n => format!(
            "Left out: {} without any accepted update.",
            format::plural(n as u64, "round")
        ),
    };
    let heading = "How long until an update was accepted";
    let keys = legend([
        ("line s0", "median update of a round".to_owned()),
        ("line s1", "last update of a round".to_owned()),
    ]);
    let drawing = svg(&format!("stragglers{suffix}"), SIZE, heading, &words, &body);
    let names = ["within", "half", "90 %", "99 %", "all rounds"];
    figure(
        heading,
        &(keys + &drawing + &table("figures", names, rows)),
        &note,
    )
}

/// Means over neighbouring rounds.
struct Bar {
    accepted: f64,
    refused: f64,
    late: f64,
    target: f64,
}

impl Bar {
    fn of(rows: &[&RoundRow]) -> Self {
        let mean = |figure: fn(&RoundRow) -> u64| {
            let sum: f64 = rows.iter().map(|row| figure(row) as f64).sum();
            sum / rows.len() as f64
        };
        Self {
            accepted: mean(|row| row.accepted),
            refused: mean(|row| row.refused),
            late: mean(|row| row.late),
            target: mean(|row| row.target),
        }
    }

    fn height(&self) -> f64 {
        self.accepted + self.refused + self.late
    }
}

fn bars(run: &RunRecord, suffix: &str) -> String {
    let mut order: Vec<&RoundRow> = run.rounds.iter().collect();
    order.sort_by(|a, b| a.opened_s.total_cmp(&b.opened_s));
    let each = order.len().div_ceil(MOST_BARS);
    let bars: Vec<Bar> = order.chunks(each).map(Bar::of).collect();
    let highest = bars
        .iter()
        .map(|bar| bar.height().max(bar.target))
        .fold(0.0, f64::max);
    let frame = Frame {
        x: Axis::new(
            0.0,
            order.len() as f64,
            5,
            "rounds of all units, as they were opened",
        )
        .whole(),
        y: Axis::new(0.0, highest, 5, "updates a round").rounded(),
    };
    let mut body = frame.axes();
    let mut target = Vec::new();
    for (i, bar) in bars.iter().enumerate() {
        let from = (i * each) as f64;
        let to = ((i + 1) * each).min(order.len()) as f64;
        let words = format!(
            "rounds {} to {}: {} accepted, {} refused, {} late, {} wanted",
            i * each + 1,
            ((i + 1) * each).min(order.len()),
            format::number(bar.accepted),
            format::number(bar.refused),
            format::number(bar.late),
            format::number(bar.target)
        );
        let mut low = 0.0;
        for (class, value) in [
            ("accepted", bar.accepted),
            ("refused", bar.refused),
            ("late", bar.late),
        ] {
            body += &frame.bar(class, (from, to), (low, low + value), &words);
            low += value;
        }
        target.extend([(from, bar.target), (to, bar.target)]);
    }
    body += &frame.line("target", target.into_iter());
    let sum = |figure: fn(&RoundRow) -> u64| order.iter().map(|row| figure(row)).sum::<u64>();
    let (accepted, refused, late) = (sum(|r| r.accepted), sum(|r| r.refused), sum(|r| r.late));
    let results = order.iter().filter(|row| row.result).count() as u64;
    let words = format!(
        "Stacked bars over {}. In all {accepted} updates were accepted, {refused} refused, and {late} late.",
        format::plural(order.len() as u64, "round")
    );
    let heading = "What became of those asked";
    let keys = legend([
        ("bar accepted", "accepted".to_owned()),
        ("bar refused", "refused".to_owned()),
        ("bar late", "late".to_owned()),
        ("line target", "wanted".to_owned()),
    ]);
    let note = format!(
        "{} of {} gave a result. {}",
        format::count(results),
        format::plural(order.len() as u64, "round"),
        if each > 1 {
            format!("Each bar is the mean of {} rounds.", px(each as f64))
        } else {
            String::new()
        }
    );
    let drawing = svg(&format!("rounds{suffix}"), SIZE, heading, &words, &body);
    let total = accepted + refused + late;
    let part = |name: &str, value| {
        [
            name.to_owned(),
            format::count(value),
            format::share(value, total),
        ]
    };
    let rows = [
        part("accepted", accepted),
        part("refused", refused),
        part("late", late),
    ];
    let numbers = table("figures", ["", "updates", "share"], rows);
    figure(heading, &(keys + &drawing + &numbers), note.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_a_value_that_was_seen() {
        let values = [1.0, 2.0, 3.0, 4.0];
        for (share, expected) in [(0.0, 1.0), (0.25, 1.0), (0.5, 2.0), (0.9, 4.0), (1.0, 4.0)] {
            assert!((quantile(&values, share) - expected).abs() < 1e-12);
        }
        assert!(quantile(&[], 0.5).abs() < 1e-12);
    }
}
