//! The command line: parses, calls, prints. Results go to standard output, logs to standard error.

mod args;
mod output;

use std::io;
use std::path::Path;
use std::process::ExitCode;

use crate::admin_client::AdminClient;
use crate::config::Config;
use crate::job;
use crate::observer::Observer;
use args::{Cli, Command, ConfigArgs, JobCommand, ModelCommand, RoundCommand};
use clap::Parser as _;
use wayside_host::config;
use wayside_host::exit::{self, Exit, Failure, Format};
use wayside_host::files;
use wayside_host::shutdown::Shutdown;
use wayside_host::telemetry;

/// What the process does; its exit code is one of [`Exit`].
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    let format = cli.format;
    match dispatch(cli) {
        Ok(()) => Exit::Ok.into(),
        Err(failure) => exit::fail_with(format, &failure),
    }
}

/// Help and version are answers; anything else is told as clap tells it, or in one JSON object if that was asked for.
fn usage(error: &clap::Error) -> ExitCode {
    let asked_for_json = || {
        let args: Vec<_> = std::env::args().collect();
        let pair = args
            .windows(2)
            .any(|pair| pair[0] == "--format" && pair[1] == "json");
        pair || args.iter().any(|arg| arg == "--format=json")
    };
    if error.use_stderr() && asked_for_json() {
        return exit::fail(Format::Json, Exit::Usage, error);
    }
    // Nobody is left to tell when the stream itself is closed.
    let _ = error.print();
    if error.use_stderr() {
        Exit::Usage.into()
    } else {
        Exit::Ok.into()
    }
}

fn dispatch(cli: Cli) -> Result<(), Failure> {
    let format = cli.format;
    match cli.command {
        Command::Run(args) => run(&args),
        Command::CheckConfig(args) => {
            let config = load(&args)?;
            print(output::config(format, &config))
        }
        Command::Job(command) => block_on(job_command(format, command))?,
        Command::Model(command) => block_on(model_command(format, command))?,
        Command::Round(command) => block_on(round_command(format, command))?,
    }
}

fn load(args: &ConfigArgs) -> Result<Config, Failure> {
    Ok(Config::load(args.config.as_deref(), &args.overrides)?)
}

fn run(args: &ConfigArgs) -> Result<(), Failure> {
    let config = load(args)?;
    telemetry::start(
        &config.log,
        "cloud-coordinator",
        env!("CARGO_PKG_VERSION"),
        &config::digest(&config),
    )?;
    block_on(async {
        let shutdown = Shutdown::on_signals()
            .map_err(|error| Failure::new(Exit::Failed, format!("signals: {error}")))?;
        crate::run(config, shutdown, Observer::default()).await
    })?
}

fn block_on<T>(task: impl Future<Output = T>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    let runtime = runtime.map_err(|error| {
        Failure::new(Exit::Failed, format!("threads cannot be started: {error}"))
    })?;
    Ok(runtime.block_on(task))
}

async fn job_command(format: Format, command: JobCommand) -> Result<(), Failure> {
    let text = match command {
        JobCommand::Create { file, server } => {
            let (toml, folder) = read_job(&file)?;
            let mut client = AdminClient::connect(&server.server).await?;
            output::job(format, &client.create_job(toml, &folder).await?)
        }
        JobCommand::List(server) => {
            let mut client = AdminClient::connect(&server.server).await?;
            output::jobs(format, &client.list_jobs().await?)
        }
        JobCommand::Show { job, server } => {
            let mut client = AdminClient::connect(&server.server).await?;
            output::job(format, &client.show_job(&job).await?)
        }
        JobCommand::Pause { job, server } => {
            let mut client = AdminClient::connect(&server.server).await?;
            output::job(format, &client.set_job_paused(&job, true).await?)
        }
        JobCommand::Resume { job, server } => {
            let mut client = AdminClient::connect(&server.server).await?;
            output::job(format, &client.set_job_paused(&job, false).await?)
        }
    };
    print(text)
}

/// Text of a job file and the absolute folder it is in; mistakes that the text alone shows are told with its path.
fn read_job(file: &Path) -> Result<(String, std::path::PathBuf), Failure> {
    let unreadable = |error: &dyn std::fmt::Display| {
        Failure::new(
            Exit::ConfigUnreadable,
            format!("{error}: name a readable job.toml"),
        )
    };
    let bytes = files::read_bounded(file, job::MAX_TOML_BYTES as u64)
        .map_err(|error| unreadable(&error))?;
    let toml = String::from_utf8(bytes).map_err(|_| {
        Failure::new(
            Exit::ConfigInvalid,
            format!("{}: not UTF-8 text: correct the file", file.display()),
        )
    })?;
    config::parse::<job::JobFile>(file, &toml)?;
    let whole = std::fs::canonicalize(file).map_err(|error: io::Error| unreadable(&error))?;
    let folder = whole.parent().unwrap_or(Path::new("/")).to_owned();
    Ok((toml, folder))
}

async fn model_command(format: Format, command: ModelCommand) -> Result<(), Failure> {
    let text = match command {
        ModelCommand::List(of) => {
            let mut client = AdminClient::connect(&of.server.server).await?;
            output::models(format, &client.list_models(&of.job).await?)
        }
        ModelCommand::Show { version, of } => {
            let mut client = AdminClient::connect(&of.server.server).await?;
            output::model(format, &client.show_model(&of.job, version).await?)
        }
        ModelCommand::Rollback { version, of } => {
            let mut client = AdminClient::connect(&of.server.server).await?;
            output::model(format, &client.rollback(&of.job, version).await?)
        }
        ModelCommand::Export { version, out, of } => {
            let mut client = AdminClient::connect(&of.server.server).await?;
            let bytes = client.export_model_to(&of.job, version, &out).await?;
            output::exported(format, &out, bytes)
        }
    };
    print(text)
}

async fn round_command(format: Format, command: RoundCommand) -> Result<(), Failure> {
    let text = match command {
        RoundCommand::List(of) => {
            let mut client = AdminClient::connect(&of.server.server).await?;
            output::rounds(format, &client.list_rounds(&of.job).await?)
        }
        RoundCommand::Explain { merge_round, of } => {
            let mut client = AdminClient::connect(&of.server.server).await?;
            output::explanation(format, &client.explain_round(&of.job, merge_round).await?)
        }
    };
    print(text)
}

fn print(text: String) -> Result<(), Failure> {
    exit::print_line(text)
        .map_err(|error| Failure::new(Exit::Failed, format!("standard output: {error}")))
}
