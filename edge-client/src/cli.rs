//! The commands of the binary: what they take, do and print.

mod bench;
mod quantize;

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;

use clap::{Args, Parser, Subcommand};
use serde_json::json;
use wayside_extractor::kernels::Isa;
use wayside_host::config::{digest, process_env};
use wayside_host::exit::{Exit, Failure, Format, fail_with, print_line};
use wayside_host::shutdown::Shutdown;
use wayside_host::telemetry;

use crate::backbone::Backbone;
use crate::config::{self, Config};
use crate::driver::{TIER, check_pictures};
use crate::error::{RunError, chain};
use crate::event::Observer;
use crate::features::{Extraction, FeatureSet, extract_dataset};
use crate::pictures::{InputSize, PictureSource, SkipCounts};

/// The vehicle's part of Wayside: trains on its own pictures and sends what it learned, never the pictures.
#[derive(Debug, Parser)]
#[command(name = "edge-client", version, about)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs the vehicle until SIGINT or SIGTERM.
    Run(ConfigArgs),
    /// Extracts the features of labelled pictures into one file, such as the cloud's held-back set.
    Features(FeaturesArgs),
    /// Turns pretrained weights into the int8 weights that vehicles run.
    Quantize(quantize::QuantizeArgs),
    /// Measures how long the feature extractor takes on this machine.
    Bench(bench::BenchArgs),
    /// Checks the configuration and the files it names, and starts nothing.
    CheckConfig(ConfigArgs),
}

/// Where the configuration comes from.
#[derive(Debug, Args)]
struct ConfigArgs {
    /// The TOML file; without one, every key comes from the environment and -c.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Sets one key, such as `-c roadside.address=10.0.0.7:1883`; may be given many times and wins over all else.
    #[arg(short = 'c', value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// How results and errors are printed: text or json.
    #[arg(long, default_value_t = Format::Text)]
    format: Format,
}

#[derive(Debug, Args)]
struct FeaturesArgs {
    /// A folder with one sub-folder a class, or a safetensors file.
    #[arg(long, value_name = "PATH")]
    pictures: PathBuf,
    /// Of a safetensors file: what stands before `images` and `labels` in its tensor names.
    #[arg(long, value_name = "TEXT", default_value = "")]
    prefix: String,
    /// The backbone's weights, quantized or f32: the file says which engine runs.
    #[arg(long, value_name = "FILE")]
    weights: PathBuf,
    /// Where the features go: CSV where the name ends in .csv, else safetensors.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Class names in the job's order; the default is the folder's sub-folders by name.
    #[arg(long, value_name = "A,B,C", value_delimiter = ',')]
    classes: Vec<String>,
    /// Height that pictures are brought to, in pixels.
    #[arg(long, default_value_t = InputSize::default().height)]
    height: usize,
    /// Width that pictures are brought to, in pixels.
    #[arg(long, default_value_t = InputSize::default().width)]
    width: usize,
    /// Threads; 0 takes all cores but one.
    #[arg(long, default_value_t = 0)]
    threads: usize,
    /// Instruction set for quantized weights: scalar, avx2, avxvnni, avx512vnni, neon or `neon_dot`; the default is the
    /// fastest that this CPU has. Features have the same bits on all of them.
    #[arg(long)]
    isa: Option<Isa>,
    /// How results and errors are printed: text or json.
    #[arg(long, default_value_t = Format::Text)]
    format: Format,
}

/// Does what the command line says. Must be called within a tokio runtime.
pub async fn execute(cli: Cli) -> ExitCode {
    let (format, result) = match cli.command {
        Command::Run(args) => (args.format, run(&args).await),
        Command::CheckConfig(args) => (args.format, check_config(&args)),
        Command::Features(args) => (args.format, features(&args)),
        Command::Quantize(args) => (args.format(), quantize::quantize(&args)),
        Command::Bench(args) => (args.format, bench::bench(&args)),
    };
    match result {
        Ok(()) => Exit::Ok.into(),
        Err(failure) => fail_with(format, &failure),
    }
}

async fn run(args: &ConfigArgs) -> Result<(), Failure> {
    let config = Config::load(args.config.as_deref(), &args.set, process_env())?;
    telemetry::start(
        &config.log,
        TIER,
        env!("CARGO_PKG_VERSION"),
        &digest(&config),
    )?;
    let shutdown = Shutdown::on_signals()
        .map_err(|error| Failure::new(Exit::Failed, format_args!("signal handlers: {error}")))?;
    Ok(crate::run(config, shutdown, Observer::default()).await?)
}

fn check_config(args: &ConfigArgs) -> Result<(), Failure> {
    let config = Config::load(args.config.as_deref(), &args.set, process_env())?;
    let settings = config.settings()?;
    let backbone = load_backbone(settings.weights.clone(), None)?;
    let pictures = check_pictures(&settings)?;
    let (name, features) = (digest(&config), backbone.features());
    let engine = backbone.engine();
    let line = match args.format {
        Format::Text => format!(
            "configuration {name} is good: vehicle {}, roadside unit {} at {}:{}, {pictures} pictures, {features} features ({engine})",
            settings.vehicle, settings.roadside, settings.host, settings.port
        ),
        Format::Json => json!({
            "success": true,
            "config": name,
            "vehicle": settings.vehicle.as_str(),
            "roadside": settings.roadside.as_str(),
            "address": config.roadside.address,
            "pictures": pictures,
            "features": features,
            "engine": engine.to_string(),
            "backbone": hex(backbone.digest()),
        })
        .to_string(),
    };
    print(line)
}

fn features(args: &FeaturesArgs) -> Result<(), Failure> {
    let source = config::source(&args.pictures, &args.prefix);
    let backbone = load_backbone(args.weights.clone(), args.isa)?;
    let classes = classes(args, &source)?;
    let extraction = Extraction {
        source: &source,
        classes: &classes,
        size: InputSize {
            height: args.height,
            width: args.width,
        },
        cache_dir: None,
        threads: config::threads(args.threads),
    };
    let begun = tokio::time::Instant::now();
    let set = extract_dataset(&backbone, &extraction, &|_, _| {}, &AtomicBool::new(false))
        .map_err(|error| Failure::new(Exit::Pictures, chain(&error)))?;
    if set.labels.is_empty() {
        let path = args.pictures.display();
        let reasons = SkipCounts::of(&set.skipped);
        let message = format!(
            "{path}: no usable picture (skipped: {reasons}): name a folder with one sub-folder a class"
        );
        return Err(Failure::new(Exit::Pictures, message));
    }
    let csv = args
        .out
        .extension()
        .is_some_and(|ext| ext.eq_ignore_ascii_case("csv"));
    let written = if csv {
        set.write_csv(&args.out)
    } else {
        set.write_safetensors(&args.out)
    };
    written.map_err(|error| Failure::new(Exit::Failed, chain(&error)))?;
    print(summary(args, &set, begun.elapsed().as_secs_f64()))
}

fn summary(args: &FeaturesArgs, set: &FeatureSet, seconds: f64) -> String {
    let count = |label: usize| {
        set.labels
            .iter()
            .filter(|l| usize::from(**l) == label)
            .count()
    };
    let counts = set
        .classes
        .iter()
        .enumerate()
        .map(|(label, class)| (class, count(label)));
    let (pictures, out) = (set.labels.len(), args.out.display());
    match args.format {
        Format::Text => {
            let per_class: Vec<String> = counts.map(|(class, n)| format!("{n} {class}")).collect();
            let mut text = format!(
                "{pictures} pictures ({}), {} features each, {seconds:.1} s, in {out}\nskipped: {}",
                per_class.join(", "),
                set.features.ncols(),
                SkipCounts::of(&set.skipped)
            );
            for one in &set.skipped {
                let _ = write!(text, "\n  {}: {}", one.name.escape_debug(), one.reason);
            }
            text
        }
        Format::Json => json!({
            "success": true,
            "out": out.to_string(),
            "pictures": pictures,
            "classes": counts.map(|(class, n)| json!({ "name": class, "pictures": n })).collect::<Vec<_>>(),
            "features": set.features.ncols(),
            "backbone": hex(set.backbone),
            "input_size": set.size.to_string(),
            "seconds": seconds,
            "skipped": set.skipped.iter()
                .map(|one| json!({ "name": one.name, "reason": one.reason.to_string() }))
                .collect::<Vec<_>>(),
        })
        .to_string(),
    }
}

/// The class names as given, or else the names of the sub-folders in order.
fn classes(args: &FeaturesArgs, source: &PictureSource) -> Result<Vec<String>, Failure> {
    if !args.classes.is_empty() {
        return Ok(args.classes.clone());
    }
    classes_of(source)
}

/// The names of a folder's sub-folders in order.
fn classes_of(source: &PictureSource) -> Result<Vec<String>, Failure> {
    let PictureSource::Folder(root) = source else {
        let message = "a file of pictures does not say the job's order of classes: give --classes";
        return Err(Failure::new(Exit::Usage, message));
    };
    let refused = |error: std::io::Error| {
        let message = format!(
            "{}: {error}: name a folder with one sub-folder a class",
            root.display()
        );
        Failure::new(Exit::Pictures, message)
    };
    let mut names = Vec::new();
    for entry in std::fs::read_dir(root).map_err(refused)? {
        let entry = entry.map_err(refused)?;
        if entry.path().is_dir() {
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}

/// - `isa`: of a quantized file; `None` takes the fastest.
fn load_backbone(path: PathBuf, isa: Option<Isa>) -> Result<Backbone, RunError> {
    Backbone::load_for(&path, isa.unwrap_or_else(Isa::detect))
        .map_err(|source| RunError::Weights { path, source })
}

fn hex(digest: [u8; 32]) -> String {
    wayside_domain::ids::Digest(digest).to_hex()
}

fn print(line: String) -> Result<(), Failure> {
    print_line(line).map_err(|error| Failure::new(Exit::Failed, format_args!("output: {error}")))
}
