//! `edge-client quantize`: from weights in f32 and some pictures to weights in int8.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use clap::Args;
use serde_json::json;
use wayside_extractor::file::{self, Provenance};
use wayside_extractor::float::FloatNetwork;
use wayside_host::exit::{Exit, Failure, Format};
use wayside_host::files;

use super::{hex, print};
use crate::backbone::{MAX_WEIGHTS_BYTES, read_float_bytes};
use crate::config;
use crate::error::chain;
use crate::pictures::{self, InputSize, Picture};
use crate::quantize::{self, Agreement, FEW_PICTURES, QuantizeError, Report};

/// What `quantize` takes.
#[derive(Debug, Args)]
pub(super) struct QuantizeArgs {
    /// The weights in f32 or f16.
    #[arg(long, value_name = "FILE")]
    weights: PathBuf,
    /// Calibration pictures, such as the vehicle will see: a folder with sub-folders, or a safetensors file. 200 or
    /// more are recommended.
    #[arg(long, value_name = "PATH")]
    pictures: PathBuf,
    /// Pictures that are only compared afterwards.
    #[arg(long, value_name = "PATH")]
    check: Option<PathBuf>,
    /// Of a safetensors file: what stands before `images` and `labels` in its tensor names.
    #[arg(long, value_name = "TEXT", default_value = "")]
    prefix: String,
    /// The same for --check.
    #[arg(long, value_name = "TEXT", default_value = "")]
    check_prefix: String,
    /// Class names of a safetensors file; the default for a folder is its sub-folders by name.
    #[arg(long, value_name = "A,B,C", value_delimiter = ',')]
    classes: Vec<String>,
    /// Where the quantized weights go.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Most pictures to calibrate on, spread evenly over all of them.
    #[arg(long, default_value_t = 512)]
    max_pictures: usize,
    /// Height that pictures are brought to, in pixels.
    #[arg(long, default_value_t = InputSize::default().height)]
    height: usize,
    /// Width that pictures are brought to, in pixels.
    #[arg(long, default_value_t = InputSize::default().width)]
    width: usize,
    /// Mean cosine between features in int8 and in f32 below which nothing is written.
    #[arg(long, default_value_t = 0.98)]
    min_cosine: f64,
    /// Threads; 0 takes all cores but one.
    #[arg(long, default_value_t = 0)]
    threads: usize,
    /// How results and errors are printed: text or json.
    #[arg(long, default_value_t = Format::Text)]
    format: Format,
}

impl QuantizeArgs {
    pub(super) fn format(&self) -> Format {
        self.format
    }

    fn size(&self) -> InputSize {
        InputSize {
            height: self.height,
            width: self.width,
        }
    }
}

pub(super) fn quantize(args: &QuantizeArgs) -> Result<(), Failure> {
    if args.max_pictures == 0 || !(-1.0..=1.0).contains(&args.min_cosine) {
        let message = "--max-pictures must be at least 1, --min-cosine within -1 to 1";
        return Err(Failure::new(Exit::Usage, message));
    }
    let threads = config::threads(args.threads);
    let (float, mut provenance) = weights(&args.weights, args.size())?;
    let (calibration, digest) = load(args, &args.pictures, &args.prefix, args.max_pictures)?;
    provenance.calibration = digest;
    let check = match &args.check {
        Some(path) => Some(load(args, path, &args.check_prefix, usize::MAX)?.0),
        None => None,
    };
    if calibration.len() < FEW_PICTURES {
        let count = calibration.len();
        note(&format!(
            "warning: {count} calibration pictures; take 200 or more, or rare activations stay unseen"
        ));
    }
    let begun = std::time::Instant::now();
    // Whoever watches wants a line now and then, not one a picture.
    let shown = AtomicUsize::new(0);
    let progress = |done: usize, total: usize| {
        let tenth = done * 10 / total.max(1);
        if shown.fetch_max(tenth, Ordering::Relaxed) < tenth {
            note(&format!("calibrating: {} %", tenth * 10));
        }
    };
    let network = quantize::quantize(&float, &calibration, threads, &progress).map_err(failed)?;
    note("comparing with f32");
    let compare = |pictures: &[Picture]| {
        quantize::compare(&float, &network, pictures, threads).map_err(failed)
    };
    let report = Report {
        calibration: compare(&calibration)?,
        check: check.as_deref().map(compare).transpose()?,
        layers: quantize::layers(&float, &network, &calibration, threads).map_err(failed)?,
    };
    let judged = report.check.unwrap_or(report.calibration);
    if judged.mean.is_nan() || judged.mean < args.min_cosine {
        return Err(refused(args, &report, judged));
    }
    let bytes = file::write(&network, &provenance);
    files::write_atomic(&args.out, &bytes)
        .map_err(|error| Failure::new(Exit::Failed, chain(&error)))?;
    let seconds = begun.elapsed().as_secs_f64();
    print(summary(args, &report, &bytes, seconds))
}

/// The f32 network, and what is known of it.
fn weights(path: &Path, size: InputSize) -> Result<(FloatNetwork, Provenance), Failure> {
    let unfit =
        |reason: String| Failure::new(Exit::Weights, format_args!("{}: {reason}", path.display()));
    let bytes = files::read_bounded(path, MAX_WEIGHTS_BYTES)
        .map_err(|error| Failure::new(Exit::Weights, chain(&error)))?;
    let float = read_float_bytes(&bytes).map_err(|error| unfit(chain(&error)))?;
    let (_, header) = safetensors::SafeTensors::read_metadata(&bytes)
        .map_err(|error| unfit(error.to_string()))?;
    let metadata = header.metadata().as_ref();
    let text = |key: &str| metadata.and_then(|metadata| metadata.get(key).cloned());
    let provenance = Provenance {
        input_size: (size.height, size.width),
        calibration: [0; 32],
        source: *blake3::hash(&bytes).as_bytes(),
        origin: text("source").or_else(|| text("training")),
        licence: text("license").or_else(|| text("licence")),
    };
    Ok((float, provenance))
}

/// Decodes some of a source's pictures; returns them with a digest over theirs.
fn load(
    args: &QuantizeArgs,
    path: &Path,
    prefix: &str,
    most: usize,
) -> Result<(Vec<Picture>, [u8; 32]), Failure> {
    let unusable = |reason: String| Failure::new(Exit::Pictures, reason);
    let source = config::source(path, prefix);
    let classes = if args.classes.is_empty() {
        super::classes_of(&source)?
    } else {
        args.classes.clone()
    };
    pictures::check_size(args.size()).map_err(|error| unusable(chain(&error)))?;
    let dataset = pictures::load(&source, &classes).map_err(|error| unusable(chain(&error)))?;
    let samples = dataset.samples();
    let count = samples.len().min(most);
    let mut hasher = blake3::Hasher::new();
    let mut pictures = Vec::with_capacity(count);
    for number in 0..count {
        let index = number * samples.len() / count;
        match dataset.decode(index, args.size()) {
            Ok(picture) => {
                hasher.update(&samples[index].digest);
                pictures.push(picture);
            }
            Err(reason) => note(&format!(
                "skipped {}: {reason}",
                samples[index].name.escape_debug()
            )),
        }
    }
    if pictures.is_empty() {
        let message = format!("{}: no usable picture", path.display());
        return Err(unusable(message));
    }
    Ok((pictures, *hasher.finalize().as_bytes()))
}

fn failed(error: QuantizeError) -> Failure {
    Failure::new(Exit::Weights, chain(&error))
}

fn refused(args: &QuantizeArgs, report: &Report, judged: Agreement) -> Failure {
    let mut layers: Vec<_> = report.layers.iter().collect();
    layers.sort_by(|a, b| a.cosine.total_cmp(&b.cosine));
    let worst: Vec<String> = layers
        .iter()
        .take(3)
        .map(|layer| format!("{} {:.4}", layer.name, layer.cosine))
        .collect();
    Failure::new(
        Exit::Accuracy,
        format_args!(
            "mean cosine {:.4} between features in int8 and f32 is below {}; worst layers: {}: calibrate on more pictures, or lower --min-cosine; nothing was written",
            judged.mean,
            args.min_cosine,
            worst.join(", ")
        ),
    )
}

fn summary(args: &QuantizeArgs, report: &Report, bytes: &[u8], seconds: f64) -> String {
    let out = args.out.display();
    match args.format {
        Format::Text => {
            let mut text = format!("{out}: {} bytes, {seconds:.1} s", bytes.len());
            let agreements = [
                ("calibration", Some(report.calibration)),
                ("check", report.check),
            ];
            for (name, agreement) in agreements {
                if let Some(Agreement {
                    pictures,
                    mean,
                    worst,
                }) = agreement
                {
                    let _ = write!(
                        text,
                        "\n{name}: mean cosine {mean:.4}, worst {worst:.4} over {pictures} pictures"
                    );
                }
            }
            for layer in &report.layers {
                let _ = write!(
                    text,
                    "\n  {:<20} cosine {:.4}  range {:.3} to {:.3}  saturated {:.2} %",
                    layer.name,
                    layer.cosine,
                    layer.low,
                    layer.high,
                    layer.saturated * 100.0
                );
            }
            text
        }
        Format::Json => {
            let agreement = |agreement: Agreement| {
                json!({
                    "pictures": agreement.pictures,
                    "mean_cosine": agreement.mean,
                    "worst_cosine": agreement.worst,
                })
            };
            json!({
                "success": true,
                "out": out.to_string(),
                "bytes": bytes.len(),
                "backbone": hex(*blake3::hash(bytes).as_bytes()),
                "input_size": args.size().to_string(),
                "seconds": seconds,
                "calibration": agreement(report.calibration),
                "check": report.check.map(agreement),
                "layers": report.layers.iter().map(|layer| json!({
                    "name": layer.name,
                    "cosine": layer.cosine,
                    "low": layer.low,
                    "high": layer.high,
                    "saturated": layer.saturated,
                })).collect::<Vec<_>>(),
            })
            .to_string()
        }
    }
}

/// A line for whoever watches; results go to standard output.
fn note(line: &str) {
    use std::io::Write as _;
    // Nobody is left to tell when the stream is closed.
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}
