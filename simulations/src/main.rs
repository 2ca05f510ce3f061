//! `wayside-sim`: the fleet on one machine.

use clap::{Args, Parser, Subcommand};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use wayside_host::exit::{Exit, Failure, Format, fail, print_line};
use wayside_host::shutdown::Shutdown;
use wayside_host::telemetry::{self, LogConfig};
use wayside_sim::demo::{self, DemoOptions};
use wayside_sim::partition::Partition;

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
    /// How the pictures of each class are spread: `iid` or `dirichlet:ALPHA`.
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
    let Cli {
        command: Command::Demo(arguments),
    } = Cli::parse();
    let format = arguments.format;
    let log = LogConfig {
        level: "warn".to_owned(),
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
        demo::run(options(arguments), shutdown).await
    });
    runtime.shutdown_timeout(LAST_CALL);
    let report = match outcome {
        Ok(report) => report,
        Err(error) => {
            let known = error.downcast_ref::<Failure>();
            let exit = known.map_or(Exit::Failed, |failure| failure.exit);
            return fail(format, exit, format!("{error:#}"));
        }
    };
    let printed = match format {
        Format::Json => serde_json::to_string(&report)
            .map_err(std::io::Error::from)
            .and_then(print_line),
        Format::Text => print_line(report.to_text()),
    };
    printed.map_or_else(
        |error| fail(Format::Text, Exit::Failed, error),
        |()| ExitCode::SUCCESS,
    )
}

fn options(arguments: DemoArguments) -> DemoOptions {
    DemoOptions {
        seed: arguments.seed,
        vehicles: arguments.vehicles,
        roadside_units: arguments.roadside_units,
        rounds: arguments.rounds,
        partition: arguments.partition,
        data: arguments
            .data
            .unwrap_or_else(|| shipped("simulations/data/traffic_lights")),
        weights: arguments.weights.unwrap_or_else(|| {
            shipped("edge-client/models/mobilenet_v3_large_075_coco.int8.safetensors")
        }),
        keep: arguments.keep,
        quiet: arguments.quiet,
    }
}

/// A file of the project: below the current folder if it is there, else where the project was built.
fn shipped(path: &str) -> PathBuf {
    let here = PathBuf::from(path);
    if here.exists() {
        here
    } else {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
    }
}
