//! Curve and rounds as comma-separated values: one line of names, then one line a row; what is missing is empty.

use super::record::RunRecord;

/// `curve.csv`: one line a version, times in simulated seconds, bytes and joules since the start.
pub fn curve(run: &RunRecord) -> String {
    let mut text = String::from(
        "version,simulated_s,accuracy,macro_recall,up_bytes,down_bytes,energy_j,contributors,num_examples,released\n",
    );
    for point in &run.curve {
        line(
            &mut text,
            &[
                point.version.to_string(),
                point.simulated_s.to_string(),
                maybe(point.accuracy),
                maybe(point.macro_recall),
                point.up_bytes.to_string(),
                point.down_bytes.to_string(),
                point.energy_j.to_string(),
                point.contributors.to_string(),
                point.num_examples.to_string(),
                point.released.to_string(),
            ],
        );
    }
    text
}

/// `rounds.csv`: one line a round, times in simulated seconds; the unit is named.
pub fn rounds(run: &RunRecord) -> String {
    let mut text = String::from(
        "unit,round,opened_s,closed_s,cohort,target,accepted,refused,late,result,slowest_s,median_s\n",
    );
    for row in &run.rounds {
        let unit = usize::try_from(row.unit)
            .ok()
            .and_then(|index| run.units.get(index))
            .map_or_else(|| row.unit.to_string(), |unit| quoted(&unit.name));
        line(
            &mut text,
            &[
                unit,
                row.round.to_string(),
                row.opened_s.to_string(),
                row.closed_s.to_string(),
                row.cohort.to_string(),
                row.target.to_string(),
                row.accepted.to_string(),
                row.refused.to_string(),
                row.late.to_string(),
                row.result.to_string(),
                maybe(row.slowest_s),
                maybe(row.median_s),
            ],
        );
    }
    text
}

fn line(text: &mut String, fields: &[String]) {
    text.push_str(&fields.join(","));
    text.push('\n');
}

fn maybe(value: Option<f64>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}

/// In quotes where it has to be (RFC 4180).
fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::{Point, RoundRow, UnitRow};
    use super::super::sample::record;
    use super::*;

    #[test]
    fn a_missing_figure_is_empty_and_a_name_is_quoted() {
        let run = RunRecord {
            curve: vec![Point {
                version: 3,
                simulated_s: 1.5,
                accuracy: Some(0.25),
                released: true,
                ..Point::default()
            }],
            units: vec![UnitRow {
                name: "north, \"A\"".into(),
                ..UnitRow::default()
            }],
            rounds: vec![
                RoundRow::default(),
                RoundRow {
                    unit: 9,
                    slowest_s: Some(2.25),
                    ..RoundRow::default()
                },
            ],
            ..RunRecord::default()
        };
        assert_eq!(
            curve(&run).lines().nth(1),
            Some("3,1.5,0.25,,0,0,0,0,0,true")
        );
        let text = rounds(&run);
        let mut lines = text.lines().skip(1);
        assert_eq!(
            lines.next(),
            Some("\"north, \"\"A\"\"\",0,0,0,0,0,0,0,0,false,,")
        );
        assert_eq!(lines.next(), Some("9,0,0,0,0,0,0,0,0,false,2.25,"));
    }

    #[test]
    fn every_line_has_every_field() {
        let run = record(1);
        for (text, rows) in [
            (curve(&run), run.curve.len()),
            (rounds(&run), run.rounds.len()),
        ] {
            let fields = text.lines().next().unwrap().split(',').count();
            assert!(text.lines().all(|line| line.split(',').count() == fields));
            assert_eq!(text.lines().count(), rows + 1);
        }
    }
}
