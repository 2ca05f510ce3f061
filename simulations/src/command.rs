//! The commands around scenarios: `run`, `replay`, `compare`, `report`.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::Args;
use serde_json::json;
use wayside_host::exit::{Exit, Failure, Format};

use crate::engine::log::LogDigest;
use crate::results::compare::Comparison;
use crate::results::{RunRecord, page, read_all, summary, write};
use crate::run::{Outcome, Progress, RunOptions, record, run};
use crate::scenario::{Scenario, ScenarioError};

/// What `run` is told.
#[derive(Clone, Debug, Args)]
pub struct RunArguments {
    /// The scenario, a TOML file.
    pub scenario: PathBuf,
    /// Override a value, such as `-c vehicles=100` or `-c job.training.lr=0.1`; may be repeated.
    #[arg(short = 'c', long = "set", value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Seed, instead of the scenario's.
    #[arg(long)]
    pub seed: Option<u64>,
    /// Run so many seeds, counted from the first, and give mean and spread.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub seeds: u64,
    /// Threads; the result is the same for any number. Default: as many as there are cores.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: Option<u32>,
    /// Write the event log of the first seed into this file.
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,
    /// Write records, tables, event files and the report into this folder.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// What is printed at the end: a summary, or one JSON object.
    #[arg(long, default_value = "text")]
    pub format: Format,
    /// Show no progress.
    #[arg(long)]
    pub quiet: bool,
}

/// What `replay` is told.
#[derive(Clone, Debug, Args)]
pub struct ReplayArguments {
    /// The scenario, a TOML file.
    pub scenario: PathBuf,
    /// Override a value, as for `run`.
    #[arg(short = 'c', long = "set", value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// The seed to replay. Default: `WAYSIDE_SEED` of the environment, else the scenario's.
    #[arg(long, env = "WAYSIDE_SEED")]
    pub seed: Option<u64>,
    /// Digest that the event log must have.
    #[arg(long, value_name = "HEX")]
    pub expect: Option<String>,
    /// Write the event log into this file; `-` for standard output.
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,
    /// What is printed at the end.
    #[arg(long, default_value = "text")]
    pub format: Format,
}

/// What `compare` is told.
#[derive(Clone, Debug, Args)]
pub struct CompareArguments {
    /// Scenarios to run, or folders and records of runs.
    #[arg(required = true, num_args = 2..)]
    pub runs: Vec<PathBuf>,
    /// Override a value in each scenario, as for `run`.
    #[arg(short = 'c', long = "set", value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Seeds of each scenario.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub seeds: u64,
    /// Accuracy to compare at, 0 to 1. Default: the highest that all reached.
    #[arg(long)]
    pub target: Option<f64>,
    /// Write one page with the curves of all runs into this file.
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// What is printed at the end.
    #[arg(long, default_value = "text")]
    pub format: Format,
    /// Show no progress.
    #[arg(long)]
    pub quiet: bool,
}

/// What `report` is told.
#[derive(Clone, Debug, Args)]
pub struct ReportArguments {
    /// Folders or records of runs.
    #[arg(required = true)]
    pub runs: Vec<PathBuf>,
    /// The page. Default: `report.html` in the current folder.
    #[arg(long, default_value = "report.html", value_name = "FILE")]
    pub out: PathBuf,
    /// What is printed at the end.
    #[arg(long, default_value = "text")]
    pub format: Format,
}

/// What a command prints, and whether its answer is yes.
#[derive(Clone, Debug)]
pub struct Answer {
    /// For standard output.
    pub text: String,
    /// Everything that was expected holds.
    pub holds: bool,
}

/// Runs a scenario.
///
/// # Errors
/// A scenario that cannot be read, data that cannot be used, a file that cannot be written.
pub fn run_command(arguments: &RunArguments, cancel: &Arc<AtomicBool>) -> anyhow::Result<Answer> {
    let scenario = read(&arguments.scenario, &arguments.set)?;
    let first = arguments.seed.unwrap_or(scenario.file.seed);
    let threads = threads(arguments.threads);
    let mut records = Vec::new();
    for seed in first..first.saturating_add(arguments.seeds) {
        let log = arguments.log.as_deref().filter(|_| seed == first);
        let outcome = run_one(&scenario, seed, threads, log, arguments.quiet, cancel)?;
        records.push(record(&scenario, &outcome, threads));
        if arguments.seeds > 1 && !arguments.quiet {
            let last = records.last().map(|record: &RunRecord| &record.summary);
            let accuracy = last.and_then(|summary| summary.accuracy);
            let accuracy = accuracy.map_or("-".to_owned(), |a| format!("{:.1} %", 100.0 * a));
            // Nobody reads it if this fails.
            let _ = writeln!(std::io::stderr(), "seed {seed}: accuracy {accuracy}");
        }
    }
    if let Some(folder) = &arguments.out {
        write(folder, &records)?;
    }
    let holds = records
        .iter()
        .all(|r| r.expectations.iter().all(|e| e.holds));
    let text = match arguments.format {
        Format::Json => run_json(&records, holds)?,
        Format::Text => run_text(&records),
    };
    Ok(Answer { text, holds })
}

/// The record's summary with what a script asks first; several seeds as a list with their comparison.
fn run_json(records: &[RunRecord], holds: bool) -> anyhow::Result<String> {
    let one = |record: &RunRecord| -> anyhow::Result<serde_json::Value> {
        let mut value = serde_json::to_value(&record.summary)?;
        value["name"] = json!(record.name);
        value["seed"] = json!(record.seed);
        value["threads"] = json!(record.threads);
        value["expectations"] = serde_json::to_value(&record.expectations)?;
        Ok(value)
    };
    let mut value = match records {
        [record] => one(record)?,
        many => {
            let runs: Vec<_> = many.iter().map(one).collect::<anyhow::Result<_>>()?;
            let comparison = serde_json::to_value(Comparison::new(many, None))?;
            json!({ "runs": runs, "comparison": comparison })
        }
    };
    value["success"] = json!(holds);
    Ok(value.to_string())
}

fn run_text(records: &[RunRecord]) -> String {
    match records {
        [record] => summary::text(record),
        many => {
            let mut text = Comparison::new(many, None).to_text();
            for record in many {
                for expectation in record.expectations.iter().filter(|e| !e.holds) {
                    let _ = writeln!(
                        text,
                        "seed {}: {} is {}, expected {}",
                        record.seed, expectation.name, expectation.got, expectation.wanted
                    );
                }
            }
            text
        }
    }
}

/// Runs one seed again and gives the digest of its event log.
///
/// # Errors
/// As [`run_command`].
pub fn replay_command(
    arguments: &ReplayArguments,
    cancel: &Arc<AtomicBool>,
) -> anyhow::Result<Answer> {
    let scenario = read(&arguments.scenario, &arguments.set)?;
    let seed = arguments.seed.unwrap_or(scenario.file.seed);
    let log = arguments.log.as_deref();
    let outcome = run_one(&scenario, seed, threads(None), log, true, cancel)?;
    let expected = arguments.expect.as_deref();
    let same = expected.is_none_or(|digest| outcome.log_digest.starts_with(digest));
    let violations: Vec<String> = (outcome.violations.iter())
        .map(|violation| format!("{} ms: {}", violation.at, violation.what))
        .collect();
    let holds = same && violations.is_empty();
    let text = match arguments.format {
        Format::Json => json!({
            "success": holds,
            "seed": seed,
            "log_digest": outcome.log_digest,
            "model_digest": outcome.model_digest,
            "violations": violations,
        })
        .to_string(),
        Format::Text => {
            let mut text = format!(
                "seed {seed}\nlog    {}\nmodel  {}\n",
                outcome.log_digest, outcome.model_digest
            );
            for violation in &violations {
                let _ = writeln!(text, "violation at {violation}");
            }
            if !same {
                let _ = writeln!(text, "expected log {}", expected.unwrap_or_default());
            }
            text
        }
    };
    Ok(Answer { text, holds })
}

/// Compares runs: records that are there, and scenarios that are run now.
///
/// # Errors
/// As [`run_command`], and records that cannot be read.
pub fn compare_command(
    arguments: &CompareArguments,
    cancel: &Arc<AtomicBool>,
) -> anyhow::Result<Answer> {
    let mut records = Vec::new();
    for path in &arguments.runs {
        if path.extension().is_none_or(|end| end != "toml") {
            records.extend(read_all(path)?);
            continue;
        }
        let scenario = read(path, &arguments.set)?;
        let first = scenario.file.seed;
        for seed in first..first.saturating_add(arguments.seeds) {
            let threads = threads(None);
            let outcome = run_one(&scenario, seed, threads, None, arguments.quiet, cancel)?;
            records.push(record(&scenario, &outcome, threads));
        }
    }
    if let Some(path) = &arguments.out {
        write_page(path, &records)?;
    }
    let comparison = Comparison::new(&records, arguments.target);
    let text = match arguments.format {
        Format::Json => serde_json::to_string(&comparison)?,
        Format::Text => comparison.to_text(),
    };
    Ok(Answer { text, holds: true })
}

/// Makes one page of runs.
///
/// # Errors
/// Records that cannot be read, a file that cannot be written.
pub fn report_command(arguments: &ReportArguments) -> anyhow::Result<Answer> {
    let mut records = Vec::new();
    for path in &arguments.runs {
        records.extend(read_all(path)?);
    }
    write_page(&arguments.out, &records)?;
    let text = match arguments.format {
        Format::Json => json!({ "success": true, "page": arguments.out }).to_string(),
        Format::Text => format!("{}", arguments.out.display()),
    };
    Ok(Answer { text, holds: true })
}

fn write_page(path: &Path, records: &[RunRecord]) -> anyhow::Result<()> {
    let written = wayside_host::files::write_atomic(path, page::html(records).as_bytes());
    Ok(written.map_err(|error| Failure::new(Exit::Failed, error))?)
}

fn read(path: &Path, set: &[String]) -> anyhow::Result<Scenario> {
    Ok(Scenario::read(path, set).map_err(Failure::from)?)
}

fn threads(asked: Option<u32>) -> usize {
    let here = || std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    asked.map_or_else(here, |asked| usize::try_from(asked).unwrap_or(1))
}

fn run_one(
    scenario: &Scenario,
    seed: u64,
    threads: usize,
    log: Option<&Path>,
    quiet: bool,
    cancel: &Arc<AtomicBool>,
) -> anyhow::Result<Outcome> {
    let mut log: Option<Box<dyn std::io::Write>> = match log {
        None => None,
        Some(path) if path == Path::new("-") => Some(Box::new(std::io::stdout().lock())),
        Some(path) => {
            let file = File::create(path).map_err(|error| {
                let reason = format!(
                    "{}: {error}: name a file that can be written",
                    path.display()
                );
                Failure::new(Exit::Failed, reason)
            })?;
            Some(Box::new(BufWriter::new(file)))
        }
    };
    let mut lines = LogDigest::default();
    let mut failed = None;
    let mut progress = Progress::new(scenario.ends(), quiet);
    let options = RunOptions { seed, threads };
    let outcome = run(scenario, &options, cancel, &mut |now, tally, window| {
        if let Some(to) = log.as_mut().filter(|_| failed.is_none()) {
            for logged in &window.log {
                if let Err(error) = to.write_all(lines.add(logged).as_bytes()) {
                    failed = Some(error);
                    break;
                }
            }
        }
        progress.show(now, tally, window);
    });
    progress.finish();
    if let Some(mut log) = log {
        let flushed = log.flush();
        if let Some(error) = failed.or(flushed.err()) {
            return Err(error.into());
        }
    }
    outcome.map_err(|error| match error.downcast::<ScenarioError>() {
        Ok(error) => Failure::from(error).into(),
        Err(error) => error,
    })
}
