//! What may stand on the command line.

use std::path::PathBuf;

use crate::admin_client::Which;
use clap::{Args, Parser, Subcommand};
use wayside_host::exit::Format;

/// The cloud of a Wayside fleet: jobs, merge window, evaluation gate, model versions.
#[derive(Debug, Parser)]
#[command(name = "cloud-coordinator", version, propagate_version = true)]
pub(super) struct Cli {
    /// How results and failures are printed: text or json.
    #[arg(long, global = true, default_value_t = Format::Text, value_name = "FORMAT")]
    pub(super) format: Format,
    /// What to do.
    #[command(subcommand)]
    pub(super) command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Runs the coordinator until SIGINT or SIGTERM.
    Run(ConfigArgs),
    /// Checks a configuration and says what would take effect; opens nothing.
    CheckConfig(ConfigArgs),
    /// Creates, lists, shows, pauses and resumes jobs.
    #[command(subcommand)]
    Job(JobCommand),
    /// Lists, shows, exports model versions, and goes back to earlier ones.
    #[command(subcommand)]
    Model(ModelCommand),
    /// Lists merge rounds and explains one: who took part, with what verdict.
    #[command(subcommand)]
    Round(RoundCommand),
}

/// Where the configuration is.
#[derive(Debug, Args)]
pub(super) struct ConfigArgs {
    /// TOML file; without one the defaults, the environment (`WAYSIDE__SECTION__KEY`) and -c stand alone.
    #[arg(long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
    /// Overrides one key, such as server.listen=0.0.0.0:7443; may be repeated.
    #[arg(short = 'c', value_name = "KEY=VALUE")]
    pub(super) overrides: Vec<String>,
}

/// Which coordinator.
#[derive(Debug, Args)]
pub(super) struct ServerArgs {
    /// Address of the coordinator.
    #[arg(long, default_value = "http://127.0.0.1:7443", value_name = "ADDR")]
    pub(super) server: String,
}

/// Which coordinator and job.
#[derive(Debug, Args)]
pub(super) struct OfJob {
    /// Name of the job; may be left out if there is only one.
    #[arg(
        long,
        default_value = "",
        hide_default_value = true,
        value_name = "JOB"
    )]
    pub(super) job: String,
    #[command(flatten)]
    pub(super) server: ServerArgs,
}

/// `job ...`
#[derive(Debug, Subcommand)]
pub(super) enum JobCommand {
    /// Creates a job from a job.toml.
    ///
    /// Relative paths in it start from its folder. The coordinator itself reads the files it names, so they must be
    /// readable for it, on its machine and under the same path; it keeps copies.
    Create {
        /// The job.toml.
        file: PathBuf,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Lists all jobs.
    List(ServerArgs),
    /// Shows one job.
    Show {
        /// Name of the job; may be left out if there is only one.
        #[arg(default_value = "", hide_default_value = true)]
        job: String,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Asks for nothing new; the open merge round still takes what arrives and closes.
    Pause {
        /// Name of the job; may be left out if there is only one.
        #[arg(default_value = "", hide_default_value = true)]
        job: String,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Goes on with a paused job.
    Resume {
        /// Name of the job; may be left out if there is only one.
        #[arg(default_value = "", hide_default_value = true)]
        job: String,
        #[command(flatten)]
        server: ServerArgs,
    },
}

/// `model ...`
#[derive(Debug, Subcommand)]
pub(super) enum ModelCommand {
    /// Lists all versions.
    List(OfJob),
    /// Shows one version.
    Show {
        /// A version's number, or latest for the released one.
        #[arg(default_value = "latest", value_parser = which)]
        version: Which,
        #[command(flatten)]
        of: OfJob,
    },
    /// Makes a version that passed the gate the released one; the open merge round closes without a result.
    Rollback {
        /// The version's number.
        version: u64,
        #[command(flatten)]
        of: OfJob,
    },
    /// Writes a version as a safetensors file, as a whole or not at all.
    Export {
        /// A version's number, or latest for the released one.
        #[arg(default_value = "latest", value_parser = which)]
        version: Which,
        /// The file to write.
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
        #[command(flatten)]
        of: OfJob,
    },
}

/// `round ...`
#[derive(Debug, Subcommand)]
pub(super) enum RoundCommand {
    /// Lists all merge rounds.
    List(OfJob),
    /// Names each roadside unit and each vehicle of a merge round with verdict, examples, norm and latency.
    Explain {
        /// The merge round's number.
        merge_round: u64,
        #[command(flatten)]
        of: OfJob,
    },
}

fn which(text: &str) -> Result<Which, String> {
    text.parse()
}
