//! The commands of the binary: what they take, do and print.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use serde_json::json;
use wayside_host::config::{digest, load, process_env};
use wayside_host::exit::{Exit, Failure, Format, fail_with, print_line};
use wayside_host::shutdown::Shutdown;
use wayside_host::telemetry;

use crate::bench::{self, BenchArgs};
use crate::config::{BrokerMode, Config};
use crate::event::Observer;
use crate::run::TIER;

/// The roadside unit of Wayside: runs rounds with vehicles over MQTT and averages what they learned.
#[derive(Debug, Parser)]
#[command(name = "roadside-aggregator", version, about)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs the unit until SIGINT or SIGTERM.
    Run(ConfigArgs),
    /// Checks the configuration and starts nothing.
    CheckConfig(ConfigArgs),
    /// Measures what a round's rule costs on this machine, with updates as vehicles send them.
    Bench(BenchArgs),
}

/// Where the configuration comes from.
#[derive(Debug, Args)]
struct ConfigArgs {
    /// The TOML file; without one, every key has its default or comes from the environment and -c.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Sets one key, such as `-c broker.listen=0.0.0.0:1883`; may be given many times and wins over all else.
    #[arg(short = 'c', value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// How results and errors are printed: text or json.
    #[arg(long, default_value_t = Format::Text)]
    format: Format,
}

/// Does what the command line says. Must be called within a tokio runtime.
pub async fn execute(cli: Cli) -> ExitCode {
    let (format, result) = match cli.command {
        Command::Run(args) => (args.format, run(&args).await),
        Command::CheckConfig(args) => (args.format, check_config(&args)),
        Command::Bench(args) => (args.format, bench::run(&args)),
    };
    match result {
        Ok(()) => Exit::Ok.into(),
        Err(failure) => fail_with(format, &failure),
    }
}

fn config(args: &ConfigArgs) -> Result<Config, Failure> {
    let config: Config = load(args.config.as_deref(), &args.set, process_env())?;
    config.validate()?;
    Ok(config)
}

async fn run(args: &ConfigArgs) -> Result<(), Failure> {
    let config = config(args)?;
    let version = env!("CARGO_PKG_VERSION");
    telemetry::start(&config.log, TIER, version, &digest(&config))?;
    let shutdown = Shutdown::on_signals()
        .map_err(|error| Failure::new(Exit::Failed, format_args!("signal handlers: {error}")))?;
    Ok(crate::run(config, shutdown, Observer::default()).await?)
}

fn check_config(args: &ConfigArgs) -> Result<(), Failure> {
    let config = config(args)?;
    let name = digest(&config);
    let (mode, broker) = match config.broker.mode {
        BrokerMode::Embedded => ("embedded", &config.broker.listen),
        BrokerMode::External => ("external", &config.broker.address),
    };
    let (roadside, cloud) = (&config.roadside.id, &config.cloud.address);
    let line = match args.format {
        Format::Text => format!(
            "configuration {name} is good: roadside unit {roadside}, {mode} broker {broker}, cloud {cloud}"
        ),
        Format::Json => json!({
            "success": true,
            "config": name,
            "roadside": roadside,
            "broker": { "mode": mode, "address": broker },
            "cloud": cloud,
        })
        .to_string(),
    };
    print_line(line).map_err(|error| Failure::new(Exit::Failed, error))
}
