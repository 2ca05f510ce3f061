//! The head of the page: what ran, the figures that matter, what was expected; and its foot: the particulars.

use std::fmt::Write as _;

use super::super::compare::{COLUMNS, Comparison, Group, by_name};
use super::super::format::{self, escape};
use super::super::record::{RunRecord, Summary};
use super::plot::table;

/// What the page is called.
pub(super) fn title(runs: &[RunRecord]) -> String {
    let names: Vec<&str> = by_name(runs).into_iter().map(|(name, _)| name).collect();
    match names.as_slice() {
        [] => "no runs".to_owned(),
        [name] => (*name).to_owned(),
        [first, second] => format!("{first} and {second}"),
        [first, rest @ ..] => format!("{first} and {} others", rest.len()),
    }
}

/// Heading, verdict and headline figures.
pub(super) fn section(runs: &[RunRecord]) -> String {
    let mut text = format!(
        "<header><p class=\"brand\">Wayside simulation</p><h1>{}</h1>",
        escape(&title(runs))
    );
    if let [run] = runs {
        let s = &run.summary;
        let _ = write!(
            text,
            "<p class=\"lead\">{}, {}, seed {}: {} simulated in {} on {}.</p>",
            format::plural(run.fleet, "vehicle"),
            format::plural(run.units.len() as u64, "roadside unit"),
            run.seed,
            format::seconds(s.simulated_s),
            format::seconds(s.wall_s),
            format::plural(u64::from(run.threads), "thread")
        );
    } else {
        let groups = by_name(runs).len() as u64;
        let _ = write!(
            text,
            "<p class=\"lead\">{} of {}.</p>",
            format::plural(runs.len() as u64, "run"),
            format::plural(groups, "scenario")
        );
    }
    text += &verdict(runs);
    text.push_str("</header>");
    match runs {
        [run] => text + &tiles(run) + &expectations(run),
        runs => text + &comparison(runs),
    }
}

/// Whether everything is as it should be, in one line.
fn verdict(runs: &[RunRecord]) -> String {
    let violations: u64 = runs.iter().map(|run| run.summary.violations).sum();
    let all: usize = runs.iter().map(|run| run.expectations.len()).sum();
    let holding: usize = runs.iter().map(RunRecord::holding).sum();
    let (class, words) = if violations > 0 {
        (
            "bad",
            format!(
                "✗ {} of invariants",
                format::plural(violations, "violation")
            ),
        )
    } else if holding < all {
        ("bad", format!("✗ {holding} of {all} expectations hold"))
    } else if all > 0 {
        (
            "good",
            "✓ every expectation holds, no invariant was violated".to_owned(),
        )
    } else {
        ("good", "✓ no invariant was violated".to_owned())
    };
    format!("<p class=\"verdict {class}\">{words}</p>")
}

fn tiles(run: &RunRecord) -> String {
    let s = &run.summary;
    let judged = s.accepted + s.refused + s.stale;
    let faster = if s.wall_s > 0.0 {
        format!(
            "{} × real time",
            format::number((s.simulated_s / s.wall_s).round())
        )
    } else {
        String::new()
    };
    let tiles = [
        (
            "accuracy",
            format::maybe_percent(s.accuracy),
            format!("macro recall {}", format::maybe_percent(s.macro_recall)),
        ),
        (
            "versions",
            format::count(s.versions),
            format!("from {}", format::plural(s.rounds, "round")),
        ),
        (
            "updates accepted",
            format::count(s.accepted),
            format!(
                "{}; {} refused, {} stale",
                format::share(s.accepted, judged),
                format::count(s.refused),
                format::count(s.stale)
            ),
        ),
        (
            "traffic",
            format::bytes(s.up_bytes as f64 + s.down_bytes as f64),
            format!(
                "{} up, {} down",
                format::bytes(s.up_bytes as f64),
                format::bytes(s.down_bytes as f64)
            ),
        ),
        ("energy", format::joules(s.energy_j), per_update(s)),
        (
            "handovers",
            format::count(s.handovers),
            format!(
                "{} connections dropped",
                format::count(s.dropped_connections)
            ),
        ),
        (
            "crashes",
            format::count(s.crashes),
            format::plural(s.violations, "violation"),
        ),
        (
            "fits a second",
            format::number(s.fits_per_s),
            if faster.is_empty() {
                format::plural(s.fits, "fit")
            } else {
                format!("{}; {faster}", format::plural(s.fits, "fit"))
            },
        ),
    ];
    let mut text = String::from("<dl class=\"tiles\">");
    for (name, value, more) in tiles {
        let _ = write!(
            text,
            "<div><dt>{name}</dt><dd>{}<small>{}</small></dd></div>",
            escape(&value),
            escape(&more)
        );
    }
    text + "</dl>"
}

fn per_update(s: &Summary) -> String {
    if s.accepted == 0 {
        return String::new();
    }
    format!(
        "{} an accepted update",
        format::joules(s.energy_j / s.accepted as f64)
    )
}

/// The comparison of several runs as a table.
fn comparison(runs: &[RunRecord]) -> String {
    let comparison = Comparison::new(runs, None);
    let rows = comparison.groups.iter().map(Group::cells);
    let at = comparison.target.map_or_else(String::new, |target| {
        format!(
            "<p class=\"note\">Versions, simulated time and bytes are those to an accuracy of {}, which all runs \
             reached. Several seeds: mean ± standard deviation.</p>",
            format::percent(target)
        )
    });
    format!(
        "<section><h2>Comparison</h2>{}{at}</section>",
        table("figures compare", COLUMNS, rows)
    )
}

/// What was expected, line by line.
pub(super) fn expectations(run: &RunRecord) -> String {
    if run.expectations.is_empty() {
        return String::new();
    }
    let mut text = String::from("<section><h2>Expectations</h2><ul class=\"expectations\">");
    for e in &run.expectations {
        let (class, mark, words) = if e.holds {
            ("good", "✓", "holds")
        } else {
            ("bad", "✗", "does not hold")
        };
        let _ = write!(
            text,
            "<li><span class=\"{class}\">{mark} {words}</span><b>{}</b><span>wanted {}, got {}</span></li>",
            escape(&e.name),
            escape(&e.wanted),
            escape(&e.got)
        );
    }
    text + "</ul></section>"
}

/// What is needed to run it again: the scenario, and the digests that must come out.
pub(super) fn particulars(run: &RunRecord) -> String {
    let s = &run.summary;
    let rows = [
        ("seed", run.seed.to_string()),
        ("model digest", s.model_digest.clone()),
        ("log digest", s.log_digest.clone()),
        ("threads", run.threads.to_string()),
        ("peak memory", format::bytes(s.peak_rss_bytes as f64)),
    ];
    let mut text = String::from("<section><h2>To run it again</h2><dl class=\"particulars\">");
    for (name, value) in rows {
        let _ = write!(text, "<dt>{name}</dt><dd>{}</dd>", escape(&value));
    }
    let _ = write!(
        text,
        "</dl><details><summary>The scenario</summary><pre>{}</pre></details></section>",
        escape(&run.scenario)
    );
    text
}
