//! `edge-client bench`: how long a picture takes on this machine.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use candle_core::{Device, Tensor};
use clap::{Args, ValueEnum};
use rustix::time::{ClockId, clock_gettime};
use serde_json::json;
use wayside_extractor::engine::Stage;
use wayside_extractor::float::FloatNetwork;
use wayside_extractor::kernels::Isa;
use wayside_extractor::quantized::QuantNetwork;
use wayside_extractor::topology::{Family, Padding};
use wayside_host::exit::{Exit, Failure, Format};
use wayside_host::usage::peak_rss_bytes;

use super::print;
use crate::backbone::{Backbone, Engine};
use crate::error::chain;
use crate::pictures::{self, InputSize, PictureSource};

/// What `bench` takes.
#[derive(Debug, Args)]
pub(super) struct BenchArgs {
    /// Which network, where no weights are given.
    #[arg(long, value_enum, default_value_t = Network::Small)]
    network: Network,
    /// Width multiplier, where no weights are given.
    #[arg(long, default_value_t = 1.0)]
    width: f32,
    /// Pictures' size in pixels: one number for a square, or `HEIGHTxWIDTH`.
    #[arg(long, default_value = "224", value_name = "SIZE", value_parser = size)]
    size: (usize, usize),
    /// Pictures that go through the network in one call.
    #[arg(long, default_value_t = 1)]
    batch: usize,
    /// Threads that each extract pictures of their own; 0 takes all cores but one.
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Instruction set of the int8 engine: scalar, avx2, avxvnni, avx512vnni, neon or `neon_dot`; the default is the
    /// fastest that this CPU has.
    #[arg(long)]
    isa: Option<Isa>,
    /// int8 or f32, where no weights are given; a file says itself what it is.
    #[arg(long, value_enum, default_value_t = Arithmetic::Int8)]
    engine: Arithmetic,
    /// A folder with one sub-folder a class, whose pictures are decoded and used instead of noise.
    #[arg(long, value_name = "DIR")]
    pictures: Option<PathBuf>,
    /// Says also how long each part of the network takes, with a clock around it (int8 only).
    #[arg(long)]
    stages: bool,
    /// How long to measure, in seconds.
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// A file of weights; the default is random numbers, which take as long.
    #[arg(long, value_name = "FILE")]
    weights: Option<PathBuf>,
    /// How results and errors are printed: text or json.
    #[arg(long, default_value_t = Format::Text)]
    pub(super) format: Format,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Network {
    Small,
    Large,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Arithmetic {
    Int8,
    F32,
}

/// Seed of random weights.
const SEED: u64 = 1;

/// Most pictures of a folder that are decoded.
const MOST_DECODED: usize = 512;

/// Calls before the first that counts.
const WARM_UP: usize = 3;

fn size(text: &str) -> Result<(usize, usize), String> {
    let number = |text: &str| {
        let number: usize = text.parse().ok()?;
        (1..=4096).contains(&number).then_some(number)
    };
    let parsed = match text.split_once('x') {
        Some((height, width)) => number(height).zip(number(width)),
        None => number(text).map(|side| (side, side)),
    };
    parsed.ok_or_else(|| "expected a number of 1 to 4096, or HEIGHTxWIDTH such as 128x64".into())
}

/// One call's time, in milliseconds a picture.
struct Sample {
    cpu: f64,
    wall: f64,
}

pub(super) fn bench(args: &BenchArgs) -> Result<(), Failure> {
    let usage = |message: &str| Err(Failure::new(Exit::Usage, message));
    if !(1..=4096).contains(&args.batch) {
        return usage("--batch must be 1 to 4096");
    }
    if !(0.01..=3600.0).contains(&args.seconds) {
        return usage("--seconds must be 0.01 to 3600");
    }
    if !(0.05..=4.0).contains(&args.width) {
        return usage("--width must be 0.05 to 4");
    }
    let backbone = backbone(args)?;
    let threads = crate::config::threads(args.threads);
    let failed = |error: candle_core::Error| Failure::new(Exit::Failed, chain(&error));
    let (pictures, decoding) = match &args.pictures {
        Some(folder) => decoded(folder, args)?,
        None => (noise(args.batch, args.size), Vec::new()),
    };
    let (height, width) = args.size;
    let shape = (args.batch, height, width, 3);
    let pictures = Tensor::from_vec(pictures, shape, &Device::Cpu).map_err(failed)?;
    let stages = if args.stages {
        Some(stages(&backbone, &pictures, args)?)
    } else {
        None
    };
    let begun = now(ClockId::Monotonic);
    let runs = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|_| scope.spawn(|| measure(&backbone, &pictures, args.seconds)))
            .collect();
        let joined = workers.into_iter().map(std::thread::ScopedJoinHandle::join);
        joined
            .map(|run| {
                run.unwrap_or_else(|_| Err(candle_core::Error::Msg("a worker panicked".into())))
            })
            .collect::<Result<Vec<_>, _>>()
    })
    .map_err(failed)?;
    let samples: Vec<Sample> = runs.into_iter().flatten().collect();
    let elapsed = now(ClockId::Monotonic) - begun;
    let measured = Measured {
        samples,
        decoding,
        stages,
        elapsed,
    };
    print(report(args, &backbone, threads, measured))
}

fn backbone(args: &BenchArgs) -> Result<Backbone, Failure> {
    if let Some(path) = &args.weights {
        return super::load_backbone(path.clone(), args.isa).map_err(Failure::from);
    }
    let family = match args.network {
        Network::Small => Family::Small,
        Network::Large => Family::Large,
    };
    match args.engine {
        Arithmetic::F32 => {
            let network = FloatNetwork::random(family, args.width, SEED, Padding::Symmetric);
            Ok(Backbone::from_float(network))
        }
        Arithmetic::Int8 => {
            let network = QuantNetwork::random(family, args.width, SEED, Padding::Symmetric);
            let isa = args.isa.unwrap_or_else(Isa::detect);
            Backbone::from_quantized(network, isa)
                .map_err(|error| Failure::new(Exit::Usage, chain(&error)))
        }
    }
}

/// Pictures with noise in them, all different.
fn noise(batch: usize, (height, width): (usize, usize)) -> Vec<u8> {
    let mut state = 0x2545_F491_4F6C_DD1D_u64;
    (0..batch * height * width * 3)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()[4]
        })
        .collect()
}

/// Decodes and resizes a folder's pictures; returns the bytes of a batch, and CPU milliseconds for each picture.
fn decoded(folder: &Path, args: &BenchArgs) -> Result<(Vec<u8>, Vec<f64>), Failure> {
    let refused = |message: String| Failure::new(Exit::Pictures, message);
    let source = PictureSource::Folder(folder.to_owned());
    let classes = super::classes_of(&source)?;
    let dataset = pictures::load(&source, &classes).map_err(|error| refused(chain(&error)))?;
    let (height, width) = args.size;
    let (mut bytes, mut times) = (Vec::new(), Vec::new());
    for index in 0..dataset.samples().len().min(MOST_DECODED) {
        let cpu = now(ClockId::ThreadCPUTime);
        let picture = dataset.decode(index, InputSize { height, width });
        times.push((now(ClockId::ThreadCPUTime) - cpu) * 1e3);
        if let Ok(picture) = picture
            && bytes.len() < args.batch * height * width * 3
        {
            bytes.extend_from_slice(picture.rgb());
        }
    }
    if bytes.len() < args.batch * height * width * 3 {
        let folder = folder.display();
        let batch = args.batch;
        return Err(refused(format!(
            "{folder}: fewer than {batch} usable pictures: name another folder or a smaller --batch"
        )));
    }
    Ok((bytes, times))
}

/// Seconds of a clock.
fn now(clock: ClockId) -> f64 {
    let time = clock_gettime(clock);
    Duration::try_from(time).unwrap_or_default().as_secs_f64()
}

fn measure(
    backbone: &Backbone,
    pictures: &Tensor,
    seconds: f64,
) -> candle_core::Result<Vec<Sample>> {
    let batch = pictures.dim(0)? as f64;
    let mut samples = Vec::new();
    let end = now(ClockId::Monotonic) + seconds;
    for call in 0.. {
        let (cpu, wall) = (now(ClockId::ThreadCPUTime), now(ClockId::Monotonic));
        if call > WARM_UP && wall > end {
            break;
        }
        std::hint::black_box(backbone.forward(pictures)?);
        let sample = Sample {
            cpu: (now(ClockId::ThreadCPUTime) - cpu) * 1e3 / batch,
            wall: (now(ClockId::Monotonic) - wall) * 1e3 / batch,
        };
        if call >= WARM_UP {
            samples.push(sample);
        }
    }
    Ok(samples)
}

/// Microseconds of each part of the network, the least of many runs; the clock adds some 2 %.
fn stages(
    backbone: &Backbone,
    pictures: &Tensor,
    args: &BenchArgs,
) -> Result<BTreeMap<&'static str, f64>, Failure> {
    let failed = |error: candle_core::Error| Failure::new(Exit::Failed, chain(&error));
    let first = pictures.get(0).and_then(|picture| picture.flatten_all());
    let rgb = first
        .and_then(|picture| picture.to_vec1::<u8>())
        .map_err(failed)?;
    let mut best = BTreeMap::new();
    let end = now(ClockId::Monotonic) + args.seconds;
    while now(ClockId::Monotonic) < end {
        let mut spent: BTreeMap<Stage, f64> = BTreeMap::new();
        let mut before = now(ClockId::Monotonic);
        let tell = |stage| {
            let time = now(ClockId::Monotonic);
            *spent.entry(stage).or_default() += (time - before) * 1e6;
            before = time;
        };
        backbone
            .watch(&rgb, args.size, tell)
            .map_err(|error| Failure::new(Exit::Usage, chain(&error)))?;
        for (stage, time) in spent {
            let name = match stage {
                Stage::Stem => "stem",
                Stage::Expand => "expand",
                Stage::Depthwise { kernel: 3 } => "depthwise_3x3",
                Stage::Depthwise { .. } => "depthwise_5x5",
                Stage::Gate => "gate",
                Stage::Project => "project",
                Stage::Pool => "pool",
            };
            let least = best.entry(name).or_insert(f64::INFINITY);
            *least = time.min(*least);
        }
    }
    Ok(best)
}

/// What is reported.
struct Measured {
    samples: Vec<Sample>,
    /// CPU milliseconds of each decoded picture.
    decoding: Vec<f64>,
    /// Microseconds of each part.
    stages: Option<BTreeMap<&'static str, f64>>,
    /// Seconds that the samples took.
    elapsed: f64,
}

/// The sample at a share of the sorted whole.
fn quantile(mut values: Vec<f64>, share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "an index within the vector"
    )]
    let index = ((values.len().saturating_sub(1)) as f64 * share) as usize;
    values.get(index).copied().unwrap_or(f64::NAN)
}

fn report(args: &BenchArgs, backbone: &Backbone, threads: usize, measured: Measured) -> String {
    let Measured {
        samples,
        decoding,
        stages,
        elapsed,
    } = measured;
    let cpu = |share| quantile(samples.iter().map(|one| one.cpu).collect(), share);
    let wall = quantile(samples.iter().map(|one| one.wall).collect(), 0.5);
    let (minimum, low, median) = (cpu(0.0), cpu(0.1), cpu(0.5));
    let rate = ((samples.len() + WARM_UP * threads) * args.batch) as f64 / elapsed;
    let (height, width) = args.size;
    let (engine, isa) = match backbone.engine() {
        Engine::Int8 { isa } => ("int8", isa.name()),
        Engine::F32 => ("f32", "generic"),
    };
    let arena = backbone.arena_bytes(height, width);
    let rss = peak_rss_bytes();
    let decode = (!decoding.is_empty()).then(|| quantile(decoding, 0.5));
    match args.format {
        Format::Text => {
            let memory = rss.map_or("unknown".into(), |rss| {
                format!("{:.1} MB", rss as f64 / 1e6)
            });
            let arena = arena.map_or(String::new(), |arena| {
                format!(", {:.0} kB a thread in the engine", arena as f64 / 1e3)
            });
            let decode = decode.map_or(String::new(), |ms| {
                format!("\ndecoding and resizing: {ms:.3} ms of CPU a picture in the median")
            });
            let stages = stages.map_or(String::new(), |stages| {
                let parts = stages
                    .iter()
                    .map(|(name, time)| format!("{name} {time:.0}"));
                let parts: Vec<String> = parts.collect();
                format!("\nmicroseconds: {}", parts.join(", "))
            });
            format!(
                "{engine} on {isa}, {height}x{width}, batch {}, {threads} thread(s): {minimum:.3} ms of CPU a picture \
                 at best, {low:.3} at the tenth percentile, {median:.3} in the median\n\
                 wall {wall:.3} ms in the median, {rate:.1} pictures a second; peak memory {memory}{arena}{decode}{stages}",
                args.batch
            )
        }
        Format::Json => json!({
            "success": true,
            "network": backbone.family().name(),
            "weights": args.weights.as_ref().map(|path| path.display().to_string()),
            "width": args.weights.is_none().then_some(args.width),
            "size": format!("{height}x{width}"),
            "batch": args.batch,
            "threads": threads,
            "engine": engine,
            "isa": isa,
            "cpu_ms_min": minimum,
            "cpu_ms_p10": low,
            "cpu_ms_median": median,
            "wall_ms_median": wall,
            "decode_cpu_ms_median": decode,
            "stages_us": stages,
            "pictures_per_s": rate,
            "arena_bytes": arena,
            "peak_rss_bytes": rss,
        })
        .to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        assert_eq!(size("224"), Ok((224, 224)));
        assert_eq!(size("128x64"), Ok((128, 64)));
        for bad in ["", "0", "x", "12x", "5000", "-1", "64x64x3"] {
            assert!(size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn quantiles_of_few() {
        let values = vec![3.0, 1.0, 2.0];
        assert!((quantile(values.clone(), 0.0) - 1.0).abs() < f64::EPSILON);
        assert!((quantile(values.clone(), 0.5) - 2.0).abs() < f64::EPSILON);
        assert!(quantile(Vec::new(), 0.5).is_nan());
    }
}
