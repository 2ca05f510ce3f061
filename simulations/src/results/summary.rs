//! One run in a few lines of text.

use std::fmt::Write as _;

use super::format;
use super::record::RunRecord;

/// What came out of a run, for a terminal and for `summary.txt`.
pub fn text(run: &RunRecord) -> String {
    let s = &run.summary;
    let judged = s.accepted + s.refused + s.stale;
    let lines = [
        (
            "accuracy",
            format!(
                "{} (macro recall {})",
                format::maybe_percent(s.accuracy),
                format::maybe_percent(s.macro_recall)
            ),
        ),
        (
            "fleet",
            format!(
                "{}, {}",
                format::plural(run.fleet, "vehicle"),
                format::plural(run.units.len() as u64, "roadside unit")
            ),
        ),
        (
            "versions",
            format!(
                "{} from {}",
                format::count(s.versions),
                format::plural(s.rounds, "round")
            ),
        ),
        (
            "updates",
            format!(
                "{} accepted ({}), {} refused, {} stale",
                format::count(s.accepted),
                format::share(s.accepted, judged),
                format::count(s.refused),
                format::count(s.stale)
            ),
        ),
        (
            "traffic",
            format!(
                "{} up, {} down",
                format::bytes(s.up_bytes as f64),
                format::bytes(s.down_bytes as f64)
            ),
        ),
        ("energy", format::joules(s.energy_j)),
        (
            "world",
            format!(
                "{}, {}, {}",
                format::plural(s.handovers, "handover"),
                format::plural(s.dropped_connections, "dropped connection"),
                format::plural(s.crashes, "crash").replace("crashs", "crashes")
            ),
        ),
        (
            "time",
            format!(
                "{} simulated in {}",
                format::seconds(s.simulated_s),
                format::seconds(s.wall_s)
            ),
        ),
        (
            "speed",
            format!(
                "{} fits, {} fits/s on {}, {} of memory",
                format::count(s.fits),
                format::number(s.fits_per_s),
                format::plural(u64::from(run.threads), "thread"),
                format::bytes(s.peak_rss_bytes as f64)
            ),
        ),
        ("model digest", s.model_digest.clone()),
        ("log digest", s.log_digest.clone()),
        ("violations", format::count(s.violations)),
    ];
    let mut text = format!("{}, seed {}\n\n", run.name, run.seed);
    for (name, value) in lines {
        let _ = writeln!(text, "  {name:<14}{value}");
    }
    if !run.expectations.is_empty() {
        let _ = writeln!(
            text,
            "\n  {} of {} expectations hold",
            run.holding(),
            run.expectations.len()
        );
    }
    for e in &run.expectations {
        let mark = if e.holds { "holds" } else { "DOES NOT HOLD" };
        let _ = writeln!(
            text,
            "    {}: wanted {}, got {}: {mark}",
            e.name, e.wanted, e.got
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::record::{Expectation, Summary};
    use super::*;

    #[test]
    fn says_what_does_not_hold() {
        let run = RunRecord {
            name: "tunnel".into(),
            seed: 7,
            summary: Summary {
                accuracy: Some(0.5),
                accepted: 3,
                refused: 1,
                crashes: 2,
                ..Summary::default()
            },
            expectations: vec![Expectation {
                name: "accuracy".into(),
                wanted: "at least 0.8".into(),
                got: "0.5".into(),
                holds: false,
            }],
            ..RunRecord::default()
        };
        let text = text(&run);
        for part in [
            "tunnel, seed 7",
            "50.0 % (macro recall -)",
            "3 accepted (75.0 %)",
            "2 crashes",
            "0 of 1 expectations hold",
            "accuracy: wanted at least 0.8, got 0.5: DOES NOT HOLD",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
    }
}
