//! How the model got better: accuracy over versions, simulated time, bytes and energy.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::super::compare::by_name;
use super::super::format;
use super::super::record::{Point, RunRecord};
use super::axis::Axis;
use super::plot::{EDGES, Frame, SIZE, figure, legend, px, svg, table, thinned};

/// Points of a run that are drawn; more cannot be told apart.
const MOST_POINTS: usize = 500;
/// Runs up to which macro recall is drawn, too, and versions that were kept back are marked.
const MOST_DETAILED: usize = 3;
/// Colours, as in the style sheet; further names have them again, dashed.
const COLOURS: usize = 8;

/// One way to look at a curve.
struct View {
    id: &'static str,
    heading: &'static str,
    /// What the horizontal axis is called, less its unit.
    axis: &'static str,
    value: fn(&Point) -> f64,
    unit: fn(f64) -> format::Unit,
}

const VIEWS: [View; 4] = [
    View {
        id: "accuracy-by-version",
        heading: "by version",
        axis: "version",
        value: |point| point.version as f64,
        unit: |_| ("", 1.0),
    },
    View {
        id: "accuracy-by-time",
        heading: "by simulated time",
        axis: "simulated time",
        value: |point| point.simulated_s,
        unit: format::time_unit,
    },
    View {
        id: "accuracy-by-bytes",
        heading: "by traffic",
        axis: "bytes up and down",
        value: |point| point.bytes() as f64,
        unit: format::byte_unit,
    },
    View {
        id: "accuracy-by-energy",
        heading: "by energy",
        axis: "energy of vehicles",
        value: |point| point.energy_j,
        unit: format::joule_unit,
    },
];

/// The four plots with their legend, the figures of a single run as a table, and what the script needs to point at them.
pub(super) fn section(runs: &[RunRecord]) -> (String, Value) {
    if !runs.iter().any(|run| run.curve.iter().any(is_tested)) {
        let text = "<section><h2>Learning</h2><p>No version was tested.</p></section>";
        return (text.to_owned(), json!({"plots": [], "runs": []}));
    }
    let classes = classes(runs);
    let y = y_axis(runs);
    let (mut figures, mut plots) = (String::new(), Vec::new());
    for view in &VIEWS {
        let (frame, (unit, size)) = frame(view, runs, y.clone());
        let words = words(view, runs);
        let body = frame.axes() + &lines(view, &frame, size, runs, &classes);
        let title = format!("Accuracy {}", view.heading);
        figures += &figure(&title, &svg(view.id, SIZE, &title, &words, &body), "");
        plots.push(json!({
            "id": view.id, "axis": view.axis, "unit": unit, "size": size,
            "x": [frame.x.from, frame.x.to], "y": [frame.y.from, frame.y.to],
        }));
    }
    let html = format!(
        "<section><h2>Learning</h2>{}<div class=\"grid\">{figures}</div>{}</section>",
        keys(runs, &classes),
        if let [run] = runs {
            numbers(run)
        } else {
            String::new()
        }
    );
    let data = json!({
        "plots": plots, "size": [SIZE.0, SIZE.1], "edges": EDGES, "runs": runs_data(runs, &classes),
    });
    (html, data)
}

fn is_tested(point: &Point) -> bool {
    point.accuracy.is_some() || point.macro_recall.is_some()
}

/// The tested points that are drawn.
fn drawn(run: &RunRecord) -> Vec<&Point> {
    let tested: Vec<&Point> = run.curve.iter().filter(|point| is_tested(point)).collect();
    thinned(&tested, MOST_POINTS).copied().collect()
}

/// Class of each run's line: runs of one name share a colour.
fn classes(runs: &[RunRecord]) -> Vec<String> {
    let names: Vec<&str> = by_name(runs).into_iter().map(|(name, _)| name).collect();
    runs.iter()
        .map(|run| {
            let index = names.iter().position(|name| *name == run.name).unwrap_or(0);
            let again = if index < COLOURS { "" } else { " again" };
            let many = if runs.len() > MOST_DETAILED {
                " thin"
            } else {
                ""
            };
            format!("s{}{again}{many}", index % COLOURS)
        })
        .collect()
}

fn y_axis(runs: &[RunRecord]) -> Axis {
    let shown = |point: &Point| {
        let recall = point.macro_recall.filter(|_| runs.len() <= MOST_DETAILED);
        [point.accuracy, recall]
    };
    let values = || {
        runs.iter()
            .flat_map(|run| &run.curve)
            .flat_map(shown)
            .flatten()
    };
    let (low, high) = (
        values().reduce(f64::min).unwrap_or(0.0),
        values().reduce(f64::max).unwrap_or(1.0),
    );
    Axis::new(100.0 * low, 100.0 * high, 5, "on the test examples")
        .rounded()
        .percent()
}

fn frame(view: &View, runs: &[RunRecord], y: Axis) -> (Frame, format::Unit) {
    let values = runs.iter().flat_map(|run| drawn(run)).map(view.value);
    let largest = values.fold(0.0, f64::max);
    let (unit, size) = (view.unit)(largest);
    let title = match unit {
        "" => view.axis.to_owned(),
        unit => format!("{} ({unit})", view.axis),
    };
    let mut x = Axis::new(0.0, largest / size, 5, &title);
    if unit.is_empty() {
        x = x.whole();
    }
    (Frame { x, y }, (unit, size))
}

fn lines(view: &View, frame: &Frame, size: f64, runs: &[RunRecord], classes: &[String]) -> String {
    let detailed = runs.len() <= MOST_DETAILED;
    let mut text = String::new();
    for (run, class) in runs.iter().zip(classes) {
        let points = drawn(run);
        let at = |figure: fn(&Point) -> Option<f64>| {
            points
                .iter()
                .filter_map(move |point| Some(((view.value)(point) / size, 100.0 * figure(point)?)))
        };
        if detailed {
            text += &frame.line(&format!("{class} recall"), at(|point| point.macro_recall));
        }
        text += &frame.line(class, at(|point| point.accuracy));
        if detailed {
            for (x, y) in at(|point| point.accuracy.filter(|_| !point.released)) {
                let _ = write!(
                    text,
                    "<circle class=\"kept {class}\" cx=\"{}\" cy=\"{}\" r=\"3.5\"/>",
                    px(frame.x(x)),
                    px(frame.y(y))
                );
            }
        }
        if let Some((x, y)) = at(|point| point.accuracy).next_back() {
            let _ = write!(
                text,
                "<circle class=\"end {class}\" cx=\"{}\" cy=\"{}\" r=\"3.5\"/>",
                px(frame.x(x)),
                px(frame.y(y))
            );
        }
    }
    text
}

/// What the plot shows, in a sentence for each run.
fn words(view: &View, runs: &[RunRecord]) -> String {
    let mut text = String::new();
    for run in runs.iter().take(COLOURS) {
        let points = drawn(run);
        let (Some(first), Some(last)) = (points.first(), points.last()) else {
            continue;
        };
        let value = (view.value)(last);
        let (unit, size) = (view.unit)(value);
        let _ = write!(
            text,
            "{}, seed {}: accuracy from {} to {} at {} {} {unit}. ",
            run.name,
            run.seed,
            format::maybe_percent(first.accuracy),
            format::maybe_percent(last.accuracy),
            view.axis,
            format::number(value / size)
        );
    }
    text.trim_end().to_owned()
}

fn keys(runs: &[RunRecord], classes: &[String]) -> String {
    let detailed = runs.len() <= MOST_DETAILED;
    let groups = by_name(runs);
    let mut entries: Vec<(String, String)> = Vec::new();
    for (name, members) in &groups {
        let first = runs.iter().position(|run| run.name == *name).unwrap_or(0);
        let words = match (groups.len(), members.len()) {
            (1, 1) => "accuracy".to_owned(),
            (_, 1) => (*name).to_owned(),
            (_, n) => format!("{name}, {n} seeds"),
        };
        entries.push((format!("line {}", classes[first]), words));
    }
    let class = if groups.len() == 1 { "s0" } else { "plain" };
    let points = || runs.iter().flat_map(|run| &run.curve);
    if detailed && points().any(|point| point.macro_recall.is_some()) {
        entries.push((format!("line {class} recall"), "macro recall".to_owned()));
    }
    if detailed && points().any(|point| is_tested(point) && !point.released) {
        entries.push((format!("kept {class}"), "kept back by the gate".to_owned()));
    }
    legend(
        entries
            .iter()
            .map(|(class, words)| (class.as_str(), words.clone())),
    )
}

/// The figures of a run, folded away.
pub(super) fn numbers(run: &RunRecord) -> String {
    let points = drawn(run);
    if points.is_empty() {
        return String::new();
    }
    let rows = points.into_iter().map(|point| {
        [
            point.version.to_string(),
            format::seconds(point.simulated_s),
            format::maybe_percent(point.accuracy),
            format::maybe_percent(point.macro_recall),
            format::bytes(point.up_bytes as f64),
            format::bytes(point.down_bytes as f64),
            format::joules(point.energy_j),
            format::count(point.contributors),
            format::count(point.num_examples),
            if point.released { "yes" } else { "no" }.to_owned(),
        ]
    });
    let names = [
        "version",
        "time",
        "accuracy",
        "macro recall",
        "up",
        "down",
        "energy",
        "vehicles",
        "examples",
        "released",
    ];
    format!(
        "<details><summary>The curve as a table</summary>{}</details>",
        table("figures", names, rows)
    )
}

/// Points as lists: one value for each view, then accuracy, macro recall, and whether it was released.
fn runs_data(runs: &[RunRecord], classes: &[String]) -> Vec<Value> {
    runs.iter()
        .zip(classes)
        .map(|(run, class)| {
            let points: Vec<Value> = drawn(run)
                .into_iter()
                .map(|point| {
                    let [version, time, bytes, energy] = VIEWS.each_ref().map(|view| (view.value)(point));
                    json!([
                        version, time, bytes, energy, point.accuracy, point.macro_recall, point.released
                    ])
                })
                .collect();
            json!({
                "name": run.name, "seed": run.seed, "class": class, "summary": run.summary, "points": points,
            })
        })
        .collect()
}
