//! `wayside-sim`: the fleet on one machine.

use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use wayside_host::exit::{Exit, Failure, Format, fail, print_line};
use wayside_host::shutdown::Shutdown;
use wayside_host::telemetry::{self, LogConfig};
use wayside_sim::command::{
    Answer, CompareArguments, ReplayArguments, ReportArguments, RunArguments, compare_command,
    replay_command, report_command, run_command,
};
use wayside_sim::demo::{self, DemoOptions};
use wayside_sim::partition::Partition;
use wayside_sim::report::Report;
use wayside_sim::shipped;
use wayside_sim::study;
use wayside_sim::study::attacks::{AttackOptions, AttackReport};
use wayside_sim::study::codecs::{CodecOptions, CodecReport};
use wayside_sim::study::local::{LocalOptions, StudyReport};

/// Time that a finished or interrupted demo has to end its threads.
const LAST_CALL: Duration = Duration::from_millis(300);

/// Federated training of a vehicle fleet, all of it on this machine.
#[derive(Debug, Parser)]
#[command(name = "wayside-sim", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Train a small fleet on pictures of traffic lights: vehicles, roadside units and a cloud on loopback.
    ///
    /// Splits the pictures unevenly over the vehicles, starts all three tiers with real MQTT and gRPC, lets them train
    /// together, and compares the result with vehicles that train alone and with training on pooled pictures.
    Demo(DemoArguments),
    /// Run a scenario: a city of vehicles in virtual time, with real training.
    ///
    /// The vehicles, roadside units and the cloud are the production machines; roads, links, power and time are
    /// simulated. The same scenario and seed give the same bits, whatever the number of threads.
    Run(RunArguments),
    /// Run one seed of a scenario again, and give the digest of its event log.
    Replay(ReplayArguments),
    /// Compare runs: one table, and one page of curves. Scenarios are run first.
    Compare(CompareArguments),
    /// Make one self-contained page of runs that were written with `run --out`.
    Report(ReportArguments),
    /// Answer one question by measurement, in one process and without sockets.
    Study {
        #[command(subcommand)]
        study: Study,
    },
}

#[derive(Debug, Subcommand)]
enum Study {
    /// Which local algorithm makes up for skewed data: FedAvg, FedAvgM, FedProx, FedNova, SCAFFOLD.
    ///
    /// Ten vehicles with one class each or with `dirichlet:0.1`, several local efforts, every algorithm at the learning
    /// rate that suits it best on held-back pictures.
    Local(StudyArguments),
    /// What hostile vehicles can do to a model, by rule: sign flip, scaling by 1000, label flip, NaN.
    Attacks(StudyArguments),
    /// What each encoding of updates costs and gives: bytes, rounds and accuracy.
    Codecs(StudyArguments),
}

impl Study {
    fn arguments(&self) -> &StudyArguments {
        match self {
            Self::Local(arguments) | Self::Attacks(arguments) | Self::Codecs(arguments) => {
                arguments
            }
        }
    }
}

#[derive(Debug, Args)]
struct StudyArguments {
    /// Seeds of the runs, by comma.
    #[arg(long, value_delimiter = ',', default_value = "1,2,3")]
    seeds: Vec<u64>,
    /// Rounds of a run.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..))]
    rounds: u64,
    /// Folder of pictures: train/CLASS/*.jpg and test/CLASS/*.jpg. Default: the traffic lights of this project.
    #[arg(long)]
    data: Option<PathBuf>,
    /// The backbone's weights. Default: those of this project.
    #[arg(long)]
    weights: Option<PathBuf>,
    /// What is printed at the end: a table, or one JSON object with every curve.
    #[arg(long, default_value = "text")]
    format: Format,
}

#[derive(Debug, Args)]
struct DemoArguments {
    /// Seed of the split, the shuffling and the initial model; the same seed gives the same model.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Number of vehicles.
    #[arg(long, default_value_t = 12)]
    vehicles: usize,
    /// Number of roadside units; vehicle i works with unit i modulo this.
    #[arg(long, default_value_t = 3)]
    roadside_units: usize,
    /// Number of merge rounds.
    #[arg(long, default_value_t = 40)]
    rounds: u64,
    /// How the pictures of each class are spread: `iid`, `classes:N` or `dirichlet:ALPHA`.
    #[arg(long, default_value = "dirichlet:0.3")]
    partition: Partition,
    /// Folder of pictures: train/CLASS/*.jpg and test/CLASS/*.jpg. Default: the traffic lights of this project.
    #[arg(long)]
    data: Option<PathBuf>,
    /// The backbone's weights. Default: those of this project.
    #[arg(long)]
    weights: Option<PathBuf>,
    /// Keep all state, logs and models in this folder instead of a temporary one.
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// What is printed at the end: a table, or one JSON object.
    #[arg(long, default_value = "text")]
    format: Format,
    /// Show no progress.
    #[arg(long)]
    quiet: bool,
}

fn main() -> ExitCode {
    let Cli { command } = Cli::parse();
    let format = match &command {
        Command::Demo(arguments) => arguments.format,
        Command::Run(arguments) => arguments.format,
        Command::Replay(arguments) => arguments.format,
        Command::Compare(arguments) => arguments.format,
        Command::Report(arguments) => arguments.format,
        Command::Study { study } => study.arguments().format,
    };
    // What simulated vehicles have to say goes into the event log.
    let simulated = matches!(
        command,
        Command::Run(_) | Command::Replay(_) | Command::Compare(_)
    );
    let log = LogConfig {
        level: if simulated { "error" } else { "warn" }.to_owned(),
        ..LogConfig::default()
    };
    if let Err(error) = telemetry::start(&log, "wayside-sim", env!("CARGO_PKG_VERSION"), "-") {
        return fail(format, error.exit_code(), error);
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => return fail(format, Exit::Failed, error),
    };
    let outcome = runtime.block_on(async {
        let shutdown = Shutdown::on_signals()?;
        match command {
            Command::Demo(arguments) => {
                let report = demo::run(options(arguments), shutdown).await?;
                yes(printable(format, &report, Report::to_text)?)
            }
            Command::Run(arguments) => {
                let cancel = shutdown.flag();
                blocking(move || run_command(&arguments, &cancel)).await
            }
            Command::Replay(arguments) => {
                let cancel = shutdown.flag();
                blocking(move || replay_command(&arguments, &cancel)).await
            }
            Command::Compare(arguments) => {
                let cancel = shutdown.flag();
                blocking(move || compare_command(&arguments, &cancel)).await
            }
            Command::Report(arguments) => blocking(move || report_command(&arguments)).await,
            Command::Study { study } => {
                let cancel = shutdown.flag();
                blocking(move || yes(run_study(study, format, &cancel)?)).await
            }
        }
    });
    runtime.shutdown_timeout(LAST_CALL);
    let answer = match outcome {
        Ok(answer) => answer,
        Err(error) => {
            let known = error.downcast_ref::<Failure>();
            let exit = known.map_or(Exit::Failed, |failure| failure.exit);
            return fail(format, exit, format!("{error:#}"));
        }
    };
    let exit = if answer.holds { Exit::Ok } else { Exit::Failed };
    print_line(answer.text.trim_end()).map_or_else(
        |error| fail(Format::Text, Exit::Failed, error),
        |()| exit.into(),
    )
}

/// An answer that expects nothing.
#[expect(clippy::unnecessary_wraps, reason = "at the end of what may fail")]
fn yes(text: String) -> anyhow::Result<Answer> {
    Ok(Answer { text, holds: true })
}

/// Off the async threads.
async fn blocking(
    command: impl FnOnce() -> anyhow::Result<Answer> + Send + 'static,
) -> anyhow::Result<Answer> {
    tokio::task::spawn_blocking(command).await?
}

fn printable<R: serde::Serialize>(
    format: Format,
    report: &R,
    to_text: fn(&R) -> String,
) -> anyhow::Result<String> {
    Ok(match format {
        Format::Json => serde_json::to_string(report)?,
        Format::Text => to_text(report),
    })
}

fn run_study(study: Study, format: Format, cancel: &AtomicBool) -> anyhow::Result<String> {
    let (Study::Local(arguments) | Study::Attacks(arguments) | Study::Codecs(arguments)) = &study;
    let (seeds, rounds) = (arguments.seeds.clone(), arguments.rounds);
    let data = arguments.data.clone().unwrap_or_else(shipped::pictures);
    let weights = arguments.weights.clone().unwrap_or_else(shipped::weights);
    match study {
        Study::Local(_) => {
            let options = LocalOptions {
                seeds,
                rounds,
                data,
                weights,
            };
            let report = study::local::run(&options, cancel)?;
            printable(format, &report, StudyReport::to_text)
        }
        Study::Attacks(_) => {
            let options = AttackOptions {
                seeds,
                rounds,
                data,
                weights,
            };
            let report = study::attacks::run(&options, cancel)?;
            printable(format, &report, AttackReport::to_text)
        }
        Study::Codecs(_) => {
            let options = CodecOptions {
                seeds,
                rounds,
                data,
                weights,
            };
            let report = study::codecs::run(&options, cancel)?;
            printable(format, &report, CodecReport::to_text)
        }
    }
}

fn options(arguments: DemoArguments) -> DemoOptions {
    DemoOptions {
        seed: arguments.seed,
        vehicles: arguments.vehicles,
        roadside_units: arguments.roadside_units,
        rounds: arguments.rounds,
        partition: arguments.partition,
        data: arguments.data.unwrap_or_else(shipped::pictures),
        weights: arguments.weights.unwrap_or_else(shipped::weights),
        keep: arguments.keep,
        quiet: arguments.quiet,
    }
}
