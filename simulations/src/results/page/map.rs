//! Where units and vehicles are, and how often each vehicle's updates counted.

use std::fmt::Write as _;

use super::super::format;
use super::super::record::RunRecord;
use super::plot::{legend, px, svg, table};

/// Width of the map in SVG units.
const WIDTH: f64 = 720.0;
/// The most units that are drawn, and that have a row in the table.
const MOST_UNITS: (usize, usize) = (2000, 12);
/// Room for the scale below the map, in SVG units.
const FOOT: f64 = 22.0;
/// Shades for vehicles whose updates counted.
const SHADES: u64 = 5;

/// What part of the world is shown, and how large.
struct View {
    west: f64,
    north: f64,
    scale: f64,
    height: f64,
}

impl View {
    /// Everything, with a margin; neither too flat nor too tall to look at.
    fn of(run: &RunRecord) -> Option<Self> {
        let corners = [(0.0, 0.0), (run.map.width_m, run.map.height_m)];
        let corners = corners.into_iter().filter(|_| run.map.width_m > 0.0);
        let places: Vec<(f64, f64)> = corners
            .chain(run.units.iter().map(|unit| (unit.x_m, unit.y_m)))
            .chain(
                run.vehicles
                    .iter()
                    .map(|vehicle| (vehicle.x_m, vehicle.y_m)),
            )
            .filter(|(x, y)| x.is_finite() && y.is_finite())
            .collect();
        let first = *places.first()?;
        let ((west, south), (east, north)) =
            places.iter().fold((first, first), |(low, high), place| {
                (
                    (low.0.min(place.0), low.1.min(place.1)),
                    (high.0.max(place.0), high.1.max(place.1)),
                )
            });
        let (width, height) = (east - west, north - south);
        let margin = 0.03 * width.max(height).max(10.0);
        let (width, height) = (width + 2.0 * margin, height + 2.0 * margin);
        let shown = (height / width).clamp(0.3, 1.0) * WIDTH;
        let scale = (WIDTH / width).min(shown / height);
        Some(Self {
            west: west - margin - (WIDTH / scale - width) / 2.0,
            north: north + margin + (shown / scale - height) / 2.0,
            scale,
            height: shown + FOOT,
        })
    }

    fn place(&self, x_m: f64, y_m: f64) -> (String, String) {
        (
            px((x_m - self.west) * self.scale),
            px((self.north - y_m) * self.scale),
        )
    }
}

/// The map, its legend, and the units in a table.
pub(super) fn section(run: &RunRecord, suffix: &str) -> String {
    let Some(view) = View::of(run) else {
        return String::new();
    };
    let most = run.vehicles.iter().map(|v| v.accepted).max().unwrap_or(0);
    let width = most.div_ceil(SHADES).max(1);
    let body =
        roads(run, &view) + &units(run, &view) + &vehicles(run, &view, width) + &scale_bar(&view);
    let words = format!(
        "{} roadside units with their coverage and {} vehicles at the end of the run, coloured by how many of \
         their updates were accepted, from 0 to {most}.",
        run.units.len(),
        run.vehicles.len()
    );
    let title = "Fleet map";
    let drawing = svg(
        &format!("fleet-map{suffix}"),
        (WIDTH, view.height),
        title,
        &words,
        &body,
    );
    format!(
        "<section><h2>{title}</h2><p class=\"lead\">{}</p>{}<div class=\"map\"><figure>{drawing}</figure>{}</div>\
         </section>",
        lead(run),
        keys(most, width),
        unit_table(run)
    )
}

fn lead(run: &RunRecord) -> String {
    let shown = run.vehicles.len() as u64;
    let mut text = if shown < run.fleet {
        format!(
            "A sample of {} out of {}",
            format::count(shown),
            format::plural(run.fleet, "vehicle")
        )
    } else {
        format::plural(run.fleet, "vehicle")
    };
    let _ = write!(
        text,
        " and {} at the end of the run; circles are the units' coverage.",
        format::plural(run.units.len() as u64, "roadside unit")
    );
    if run.units.len() > MOST_UNITS.0 {
        let _ = write!(
            text,
            " The first {} units are drawn.",
            format::count(MOST_UNITS.0 as u64)
        );
    }
    text
}

fn roads(run: &RunRecord, view: &View) -> String {
    let mut path = String::new();
    for [x1, y1, x2, y2] in &run.map.roads {
        let (from, to) = (view.place(*x1, *y1), view.place(*x2, *y2));
        let _ = write!(path, "M{} {}L{} {}", from.0, from.1, to.0, to.1);
    }
    if path.is_empty() {
        return path;
    }
    format!("<path class=\"road\" d=\"{path}\"/>")
}

fn units(run: &RunRecord, view: &View) -> String {
    let (mut circles, mut marks) = (String::new(), String::new());
    for unit in run.units.iter().take(MOST_UNITS.0) {
        let (x, y) = view.place(unit.x_m, unit.y_m);
        let _ = write!(
            circles,
            "<circle class=\"cover\" cx=\"{x}\" cy=\"{y}\" r=\"{}\"/>",
            px(unit.radius_m * view.scale)
        );
        let _ = write!(
            marks,
            "<path class=\"unit\" d=\"M{x} {y}m-5 0l5 -5l5 5l-5 5z\"><title>{}: {} accepted in {}</title></path>",
            format::escape(&unit.name),
            format::count(unit.accepted),
            format::plural(unit.rounds, "round")
        );
    }
    circles + &marks
}

/// The shade of a vehicle with so many updates that counted.
fn shade(accepted: u64, width: u64) -> String {
    match accepted {
        0 => "never".to_owned(),
        n => format!("q{}", n.div_ceil(width).min(SHADES)),
    }
}

fn vehicles(run: &RunRecord, view: &View, width: u64) -> String {
    let radius = if run.vehicles.len() > 800 {
        "2.2"
    } else {
        "3.2"
    };
    let mut text = String::from("<g class=\"vehicles\">");
    // Those that count most are drawn last, so that nothing hides them.
    let mut order: Vec<_> = run.vehicles.iter().collect();
    order.sort_by_key(|vehicle| vehicle.accepted);
    for vehicle in order {
        let (x, y) = view.place(vehicle.x_m, vehicle.y_m);
        let _ = write!(
            text,
            "<circle class=\"{}\" cx=\"{x}\" cy=\"{y}\" r=\"{radius}\"><title>{}: {} of {} accepted</title></circle>",
            shade(vehicle.accepted, width),
            format::escape(&vehicle.name),
            format::count(vehicle.accepted),
            format::count(vehicle.asked)
        );
    }
    text + "</g>"
}

/// A line as long as a round figure of metres.
fn scale_bar(view: &View) -> String {
    let fits = |metres: &&f64| **metres * view.scale <= 0.2 * WIDTH;
    let lengths = [
        10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5,
    ];
    let metres = lengths.iter().rev().find(fits).copied().unwrap_or(10.0);
    let label = if metres < 1000.0 {
        format!("{metres} m")
    } else {
        format!("{} km", metres / 1000.0)
    };
    let (length, y) = (metres * view.scale, view.height - 10.0);
    format!(
        "<g class=\"scale\"><path d=\"M12 {}v5h{}v-5\"/><text class=\"over\" x=\"{}\" y=\"{}\">{label}</text></g>",
        px(y - 5.0),
        px(length),
        px(length + 19.0),
        px(y)
    )
}

fn keys(most: u64, width: u64) -> String {
    let mut entries = vec![("never".to_owned(), "no update accepted".to_owned())];
    for i in 0..SHADES {
        let (low, high) = (i * width + 1, ((i + 1) * width).min(most));
        if low > most {
            break;
        }
        let range = if low == high {
            low.to_string()
        } else {
            format!("{low} to {high}")
        };
        entries.push((format!("q{}", i + 1), range));
    }
    entries.push(("line cover".to_owned(), "coverage".to_owned()));
    legend(
        entries
            .iter()
            .map(|(class, words)| (class.as_str(), words.clone())),
    )
}

fn unit_table(run: &RunRecord) -> String {
    let mut order: Vec<_> = run.units.iter().collect();
    order.sort_by_key(|unit| std::cmp::Reverse(unit.accepted));
    let rows = order.iter().take(MOST_UNITS.1).map(|unit| {
        [
            unit.name.clone(),
            format::count(unit.rounds),
            format::count(unit.accepted),
            format::count(unit.refused),
            format::count(unit.handovers_in),
            format::bytes((unit.up_bytes + unit.down_bytes) as f64),
        ]
    });
    let names = [
        "unit",
        "rounds",
        "accepted",
        "refused",
        "handed over",
        "traffic",
    ];
    let more = order.len().saturating_sub(MOST_UNITS.1);
    let note = if more > 0 {
        format!(
            "<p class=\"note\">The busiest; {} in record.json.</p>",
            format::plural(more as u64, "more unit")
        )
    } else {
        String::new()
    };
    format!("<div>{}{note}</div>", table("figures", names, rows))
}
