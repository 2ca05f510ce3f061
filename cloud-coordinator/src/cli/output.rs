//! Results as tables for people and as JSON for scripts; both hold the same figures.

use std::fmt::Write as _;
use std::path::Path;

use crate::config::Config;
use serde_json::{Value, json};
use wayside_domain::ids::UpdateId;
use wayside_domain::update::Verdict;
use wayside_host::exit::Format;
use wayside_proto::wire;

/// Rows under headings, columns padded to their widest cell.
fn table(headings: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows
            .iter()
            .filter_map(|row| row.get(column))
            .map(|cell| cell.chars().count());
        cells.chain([headings[column].len()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..headings.len()).map(width).collect();
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let padded = cells
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:width$}", width = *width));
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    let mut lines = vec![line(&mut headings.iter().copied())];
    lines.extend(
        rows.iter()
            .map(|row| line(&mut row.iter().map(String::as_str))),
    );
    lines.join("\n")
}

fn success(mut value: Value) -> String {
    if let Some(object) = value.as_object_mut() {
        object.insert("success".to_owned(), Value::Bool(true));
    }
    value.to_string()
}

/// Share in percent, or a dash where nothing was evaluated.
fn percent(evaluated: bool, share: f64) -> String {
    if evaluated {
        format!("{:.2} %", share * 100.0)
    } else {
        "-".to_owned()
    }
}

fn yes(flag: bool) -> String {
    if flag { "yes" } else { "no" }.to_owned()
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// Length of a span in milliseconds, as people read it.
fn span(opened_ms: u64, closed_ms: u64) -> String {
    if closed_ms == 0 {
        return "open".to_owned();
    }
    format!(
        "{:.1} s",
        closed_ms.saturating_sub(opened_ms) as f64 / 1000.0
    )
}

pub(super) fn config(format: Format, config: &Config) -> String {
    match format {
        Format::Json => success(json!({ "config": config })),
        Format::Text => {
            toml::to_string(config).unwrap_or_default() + "# the configuration is valid"
        }
    }
}

fn job_json(job: &wire::JobInfo) -> Value {
    json!({
        "job": job.job,
        "state": job.state,
        "merge_round": job.merge_round,
        "released_version": job.released_version,
        "newest_version": job.newest_version,
        "max_versions": job.max_versions,
        "accuracy": job.accuracy,
    })
}

pub(super) fn jobs(format: Format, jobs: &[wire::JobInfo]) -> String {
    match format {
        Format::Json => success(json!({ "jobs": jobs.iter().map(job_json).collect::<Vec<_>>() })),
        Format::Text => {
            let row = |job: &wire::JobInfo| {
                let last = if job.max_versions == 0 {
                    String::new()
                } else {
                    format!(" of {}", job.max_versions)
                };
                vec![
                    job.job.clone(),
                    job.state.clone(),
                    job.merge_round.to_string(),
                    format!("v{}", job.released_version),
                    format!("v{}{last}", job.newest_version),
                    percent(true, job.accuracy),
                ]
            };
            let rows: Vec<_> = jobs.iter().map(row).collect();
            table(
                &[
                    "JOB",
                    "STATE",
                    "MERGE ROUND",
                    "RELEASED",
                    "NEWEST",
                    "ACCURACY",
                ],
                &rows,
            )
        }
    }
}

pub(super) fn job(format: Format, job: &wire::JobInfo) -> String {
    match format {
        Format::Json => {
            let mut value = job_json(job);
            value["toml"] = Value::String(job.toml.clone());
            success(value)
        }
        Format::Text => format!(
            "{}\n\n{}",
            jobs(format, std::slice::from_ref(job)),
            job.toml.trim_end()
        ),
    }
}

fn model_json(model: &wire::ModelInfo) -> Value {
    let figure = |value: f64| {
        if model.evaluated {
            json!(value)
        } else {
            Value::Null
        }
    };
    json!({
        "version": model.version,
        "parent": model.parent,
        "merge_round": model.merge_round,
        "created_ms": model.created_ms,
        "released": model.released,
        "current": model.current,
        "gate": model.gate,
        "digest": hex(&model.digest),
        "num_examples": model.num_examples,
        "contributors": model.contributors,
        "exact": model.exact,
        "accuracy": figure(model.accuracy),
        "macro_recall": figure(model.macro_recall),
        "loss": figure(model.loss),
        "metadata_uri": model.metadata_uri,
        "model_uri": model.model_uri,
    })
}

pub(super) fn models(format: Format, models: &[wire::ModelInfo]) -> String {
    match format {
        Format::Json => {
            success(json!({ "models": models.iter().map(model_json).collect::<Vec<_>>() }))
        }
        Format::Text => {
            let row = |model: &wire::ModelInfo| {
                let current = if model.current { " *" } else { "" };
                vec![
                    format!("v{}{current}", model.version),
                    format!("v{}", model.parent),
                    yes(model.released),
                    percent(model.evaluated, model.accuracy),
                    percent(model.evaluated, model.macro_recall),
                    model.num_examples.to_string(),
                    model.contributors.to_string(),
                    yes(model.exact),
                    model.gate.clone(),
                ]
            };
            let rows: Vec<_> = models.iter().map(row).collect();
            let headings = [
                "VERSION",
                "PARENT",
                "RELEASED",
                "ACCURACY",
                "RECALL",
                "EXAMPLES",
                "VEHICLES",
                "EXACT",
                "KEPT BACK",
            ];
            table(&headings, &rows)
        }
    }
}

pub(super) fn model(format: Format, model: &wire::ModelInfo) -> String {
    match format {
        Format::Json => success(model_json(model)),
        Format::Text => format!(
            "{}\n\ndigest    {}\nmodel     {}\nmetadata  {}",
            models(format, std::slice::from_ref(model)),
            hex(&model.digest),
            model.model_uri,
            model.metadata_uri
        ),
    }
}

pub(super) fn exported(format: Format, out: &Path, bytes: u64) -> String {
    match format {
        Format::Json => success(json!({ "file": out, "bytes": bytes })),
        Format::Text => format!("{} ({bytes} bytes)", out.display()),
    }
}

fn round_json(round: &wire::RoundInfo) -> Value {
    json!({
        "merge_round": round.merge_round,
        "base_version": round.base_version,
        "opened_ms": round.opened_ms,
        "closed_ms": round.closed_ms,
        "new_version": round.new_version,
        "roadside_units": round.roadside_units,
        "accepted": round.accepted,
        "refused": round.refused,
        "num_examples": round.num_examples,
        "up_bytes": round.up_bytes,
        "down_bytes": round.down_bytes,
    })
}

pub(super) fn rounds(format: Format, rounds: &[wire::RoundInfo]) -> String {
    match format {
        Format::Json => {
            success(json!({ "rounds": rounds.iter().map(round_json).collect::<Vec<_>>() }))
        }
        Format::Text => {
            let row = |round: &wire::RoundInfo| {
                let made = match (round.closed_ms, round.new_version) {
                    (0, _) => "open".to_owned(),
                    (_, 0) => "no result".to_owned(),
                    (_, version) => format!("v{version}"),
                };
                vec![
                    round.merge_round.to_string(),
                    format!("v{}", round.base_version),
                    made,
                    span(round.opened_ms, round.closed_ms),
                    round.roadside_units.to_string(),
                    round.accepted.to_string(),
                    round.refused.to_string(),
                    round.num_examples.to_string(),
                    round.up_bytes.to_string(),
                    round.down_bytes.to_string(),
                ]
            };
            let rows: Vec<_> = rounds.iter().map(row).collect();
            let headings = [
                "ROUND",
                "BASE",
                "MADE",
                "TOOK",
                "UNITS",
                "ACCEPTED",
                "REFUSED",
                "EXAMPLES",
                "UP BYTES",
                "DOWN BYTES",
            ];
            table(&headings, &rows)
        }
    }
}

/// A verdict as its stable label.
fn verdict(wire: Option<wire::Verdict>) -> String {
    let verdict = wire.map(Verdict::try_from);
    match verdict {
        None => "nothing received".to_owned(),
        Some(Ok(verdict)) => verdict.to_string(),
        Some(Err(_)) => "unknown".to_owned(),
    }
}

fn contribution_json(line: &wire::Contribution) -> Value {
    let metrics = line.metrics.clone().unwrap_or_default();
    json!({
        "vehicle": line.vehicle,
        "round": line.round,
        "update_id": hex(&line.update_id),
        "verdict": verdict(line.verdict),
        "num_examples": line.num_examples,
        "l2_norm": line.l2_norm,
        "roadside_ms": line.roadside_ms,
        "loss": metrics.loss,
        "train_ms": metrics.train_ms,
        "receipts": metrics.receipts,
        "receipts_within_budget": metrics.receipts_within_budget,
        "last_latency_ms": metrics.last_latency_ms,
        "encoding": metrics.encoding,
        "goodput_bytes_per_s": metrics.goodput_bytes_per_s,
    })
}

fn roadside_json(roadside: &wire::RoadsideExplanation) -> Value {
    let rounds = roadside.rounds.iter().map(|round| {
        json!({
            "round": round.round,
            "opened_ms": round.opened_ms,
            "closed_ms": round.closed_ms,
            "cohort": round.cohort,
            "target": round.target,
            "quorum": round.quorum,
            "accepted": round.accepted,
            "aggregated": round.aggregated,
        })
    });
    json!({
        "roadside": roadside.roadside,
        "verdict": verdict(roadside.verdict),
        "num_examples": roadside.num_examples,
        "rounds": rounds.collect::<Vec<_>>(),
        "contributions": roadside.contributions.iter().map(contribution_json).collect::<Vec<_>>(),
    })
}

/// Vehicles that were asked in some round and of whom no update arrived, with that round.
fn silent(roadside: &wire::RoadsideExplanation) -> impl Iterator<Item = (&str, u64)> {
    roadside.rounds.iter().flat_map(|round| {
        let came = |vehicle: &str| {
            let mut lines = roadside.contributions.iter();
            lines.any(|line| line.vehicle == vehicle && line.round == round.round)
        };
        let missing = round.cohort.iter().filter(move |vehicle| !came(vehicle));
        missing.map(|vehicle| (vehicle.as_str(), round.round))
    })
}

pub(super) fn explanation(format: Format, explanation: &wire::RoundExplanation) -> String {
    let round = explanation.round.unwrap_or_default();
    match format {
        Format::Json => {
            let mut value = round_json(&round);
            value["roadsides"] = explanation.roadsides.iter().map(roadside_json).collect();
            success(value)
        }
        Format::Text => {
            let mut rows = Vec::new();
            for unit in &explanation.roadsides {
                let blank = String::new;
                let counted = unit.num_examples.to_string();
                rows.push(vec![
                    unit.roadside.clone(),
                    blank(),
                    blank(),
                    verdict(unit.verdict),
                    counted,
                    blank(),
                    blank(),
                    blank(),
                ]);
                for line in &unit.contributions {
                    rows.push(vec![
                        blank(),
                        line.vehicle.clone(),
                        line.round.to_string(),
                        verdict(line.verdict),
                        line.num_examples.to_string(),
                        format!("{:.4}", line.l2_norm),
                        format!("{} ms", line.roadside_ms),
                        UpdateId::from_slice(&line.update_id)
                            .map_or_else(blank, |id| id.to_string()),
                    ]);
                }
                for (vehicle, round) in silent(unit) {
                    let nothing = "nothing received".to_owned();
                    rows.push(vec![
                        blank(),
                        vehicle.to_owned(),
                        round.to_string(),
                        nothing,
                        blank(),
                        blank(),
                        blank(),
                        blank(),
                    ]);
                }
            }
            let headings = [
                "ROADSIDE", "VEHICLE", "ROUND", "VERDICT", "EXAMPLES", "NORM", "LATENCY", "UPDATE",
            ];
            format!(
                "{}\n\n{}",
                rounds(format, std::slice::from_ref(&round)),
                table(&headings, &rows)
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn explained() -> wire::RoundExplanation {
        let accepted = wire::Verdict::from(Verdict::Accepted);
        let refused = Verdict::Rejected(wayside_domain::update::RejectReason::NotFinite);
        let line = |vehicle: &str, verdict: wire::Verdict| wire::Contribution {
            vehicle: vehicle.to_owned(),
            round: 7,
            update_id: vec![0xab; 16],
            num_examples: 40,
            verdict: Some(verdict),
            l2_norm: 0.25,
            roadside_ms: 31,
            metrics: None,
        };
        let round = wire::RoundSummary {
            round: 7,
            cohort: ["car-1", "car-2", "car-3"].map(str::to_owned).to_vec(),
            ..Default::default()
        };
        let north = wire::RoadsideExplanation {
            roadside: "north".to_owned(),
            verdict: Some(accepted),
            num_examples: 40,
            rounds: vec![round],
            contributions: vec![line("car-1", accepted), line("car-2", refused.into())],
        };
        let south = wire::RoadsideExplanation {
            roadside: "south".to_owned(),
            ..Default::default()
        };
        wire::RoundExplanation {
            round: Some(wire::RoundInfo {
                merge_round: 3,
                closed_ms: 1_500,
                new_version: 2,
                ..Default::default()
            }),
            roadsides: vec![north, south],
        }
    }

    #[test]
    fn an_explanation_names_everybody_with_verdict_and_reason() {
        let text = explanation(Format::Text, &explained());
        let lines: Vec<Vec<&str>> = text
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(lines[1][..5], ["3", "v0", "v2", "1.5", "s"]);
        assert_eq!(lines[4], ["north", "accepted", "40"]);
        assert_eq!(
            lines[5],
            [
                "car-1",
                "7",
                "accepted",
                "40",
                "0.2500",
                "31",
                "ms",
                "abababababab"
            ]
        );
        assert_eq!(lines[6][2], "rejected(not_finite)");
        assert_eq!(lines[7], ["car-3", "7", "nothing", "received"]);
        assert_eq!(lines[8], ["south", "nothing", "received", "0"]);
        let json: Value = serde_json::from_str(&explanation(Format::Json, &explained())).unwrap();
        assert_eq!(
            json["roadsides"][0]["contributions"][1]["verdict"],
            "rejected(not_finite)"
        );
        assert_eq!(
            (json["merge_round"].as_u64(), json["success"].as_bool()),
            (Some(3), Some(true))
        );
    }

    #[test]
    fn tables_stand_in_columns() {
        let rows = [
            vec!["é".to_owned(), "1".to_owned()],
            vec!["long".to_owned(), String::new()],
        ];
        assert_eq!(table(&["A", "B"], &rows), "A     B\né     1\nlong");
    }
}
