//! `bench`: what a round's rule costs on this machine.
//!
//! Updates are made, written with the codec and stored as a unit stores them; then the code that a round runs at its
//! close combines them. Nothing of an update stays in memory, but for `--codec none`, which measures the rule alone on
//! decoded updates.

use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use serde_json::json;
use wayside_domain::aggregate::rules::RULES;
use wayside_domain::aggregate::{
    InMemory, RuleSpec, Updates, Weighted, WeightedSum, combine, exponent_for,
};
use wayside_domain::encoding::UpdateEncoding;
use wayside_domain::ids::{JobId, RoundId, UpdateId, VehicleId};
use wayside_domain::kernels::Isa;
use wayside_domain::round::Accepted;
use wayside_domain::schema::{MAX_PARAMETERS, Schema, TensorSpec};
use wayside_host::exit::{Exit, Failure, Format, print_line};
use wayside_host::usage::{peak_rss_bytes, process_cpu};
use wayside_proto::codec::{self, Reference, f16};

use crate::aggregate::{self, Member, Order};
use crate::intake::Checked;
use crate::store::{Disk, Store as _, StoredUpdate, Write};

/// Largest value of an update, in parameter units.
const LARGEST: f32 = 0.05;

/// What `bench` takes.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// Parameters of an update.
    #[arg(long, default_value_t = 1_000_000)]
    params: usize,
    /// Updates of the round.
    #[arg(long, default_value_t = 100)]
    updates: usize,
    /// The rule, by its name in a job.
    #[arg(long, default_value = "fedavg")]
    rule: String,
    /// Sets one parameter of the rule, such as `-p num_malicious=2`; `num_malicious` is a fifth of the updates by default.
    #[arg(short = 'p', value_name = "PARAM=VALUE")]
    set: Vec<String>,
    /// How the updates are written; none measures the rule on decoded updates in memory.
    #[arg(long, value_enum, default_value_t = Codec::Fp16)]
    codec: Codec,
    /// Share of the values that topk sends.
    #[arg(long, default_value_t = 0.01)]
    topk_fraction: f64,
    /// Threads that the rule may use.
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// How often the rule is run; the quickest run counts.
    #[arg(long, default_value_t = 3)]
    repeat: usize,
    /// How the result is printed: text or json.
    #[arg(long, default_value_t = Format::Text)]
    pub(crate) format: Format,
}

/// How updates are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Codec {
    None,
    Fp16,
    #[value(name = "fp16-diff")]
    Fp16Diff,
    Int8,
    Topk,
}

impl Codec {
    fn encoding(self) -> Option<UpdateEncoding> {
        match self {
            Self::None => None,
            Self::Fp16 => Some(UpdateEncoding::Fp16),
            Self::Fp16Diff => Some(UpdateEncoding::Fp16Diff),
            Self::Int8 => Some(UpdateEncoding::Int8),
            Self::Topk => Some(UpdateEncoding::TopK),
        }
    }
}

/// What was measured.
struct Measured {
    cpu: Duration,
    wall: Duration,
    /// Checking an update on arrival.
    intake_cpu: Duration,
    bytes: u64,
    sum: WeightedSum,
}

/// Measures and prints.
///
/// # Errors
/// A [`Failure`] for arguments that make no sense, or a disk that is full.
pub fn run(args: &BenchArgs) -> Result<(), Failure> {
    let usage = |text: String| Failure::new(Exit::Usage, text);
    if !(1..=MAX_PARAMETERS).contains(&args.params) {
        let (got, most) = (args.params, MAX_PARAMETERS);
        return Err(usage(format!("--params is {got}, allowed is 1 to {most}")));
    }
    if !(1..=100_000).contains(&args.updates) || args.threads == 0 || args.repeat == 0 {
        return Err(usage(
            "--updates must be 1 to 100000, --threads and --repeat at least 1".to_owned(),
        ));
    }
    if !(args.topk_fraction > 0.0 && args.topk_fraction <= 1.0) {
        return Err(usage("--topk-fraction must be above 0 to 1".to_owned()));
    }
    let rule = rule(args)?;
    rule.check(args.updates)
        .map_err(|error| usage(format!("--rule: {error}")))?;
    let measured = match args.codec.encoding() {
        None => decoded(args, &rule)?,
        Some(encoding) => packed(args, &rule, encoding)?,
    };
    print_line(report(args, &rule, &measured)).map_err(|error| Failure::new(Exit::Failed, error))
}

fn rule(args: &BenchArgs) -> Result<RuleSpec, Failure> {
    let mut rule = RuleSpec::named(&args.rule);
    let known = RULES.iter().find(|known| known.name == args.rule);
    let params = known.map_or(&[][..], |known| known.params);
    if params.iter().any(|param| param.name == "num_malicious") {
        let bad = (args.updates / 5).min(args.updates.saturating_sub(3) / 2);
        rule = rule.with("num_malicious", bad as f64);
    }
    for set in &args.set {
        let (name, value) = set.split_once('=').unwrap_or((set, ""));
        let value = value.parse::<f64>().or(match value {
            "true" => Ok(1.0),
            "false" => Ok(0.0),
            _ => Err(Failure::new(
                Exit::Usage,
                format!("-p {set}: write it as parameter=number"),
            )),
        })?;
        rule = rule.with(name, value);
    }
    Ok(rule)
}

/// Draws updates like those of a round: most values small, the largest near [`LARGEST`].
struct Draws(u64);

impl Draws {
    /// Evenly from [-1, 1).
    fn next(&mut self) -> f32 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let bits = u16::try_from(self.0 >> 48).unwrap_or_default();
        f32::from(bits) / 32_768.0 - 1.0
    }

    fn delta(&mut self, params: usize) -> Vec<f32> {
        let mut value = || LARGEST * self.next() * self.next() * self.next();
        (0..params).map(|_| value()).collect()
    }
}

fn num_examples(k: usize) -> u64 {
    20 + (k as u64 * 7) % 300
}

fn decoded(args: &BenchArgs, rule: &RuleSpec) -> Result<Measured, Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::new(Exit::Failed, error.to_string());
    let exponents = [exponent_for(f64::from(LARGEST))];
    let unit = f32::from(exponents[0]).exp2();
    let (mut source, mut known, mut draws) = (InMemory::default(), Vec::new(), Draws(1));
    for k in 0..args.updates {
        let delta = draws.delta(args.params);
        let values: Vec<f16> = delta.iter().map(|v| f16::from_f32(v / unit)).collect();
        source.push(&values);
        known.push(Weighted {
            num_examples: num_examples(k),
            largest: values.iter().map(|v| v.to_f64().abs()).fold(0.0, f64::max),
            staleness: 0,
        });
    }
    let built = rule.build().map_err(|error| failed(&error))?;
    let updates = Updates::new(&source, &known, [0..args.params], &exponents, args.threads);
    let mut measured = quickest(args.repeat, || {
        combine(built.as_ref(), &updates).map_err(|error| failed(&error))
    })?;
    measured.bytes = 2 * (args.params * args.updates) as u64;
    Ok(measured)
}

fn packed(
    args: &BenchArgs,
    rule: &RuleSpec,
    encoding: UpdateEncoding,
) -> Result<Measured, Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::new(Exit::Failed, error.to_string());
    let folder = tempfile::Builder::new()
        .prefix("wayside-bench-")
        .tempdir()
        .map_err(|error| failed(&error))?;
    let mut store = Disk::open(folder.path()).map_err(|error| failed(&error))?;
    let schema = Schema::new(vec![TensorSpec {
        name: "values".to_owned(),
        shape: vec![args.params],
    }])
    .map_err(|error| failed(&error))?;
    let job = JobId::new("bench").map_err(|error| failed(&error))?;
    let exponents = vec![exponent_for(f64::from(LARGEST))];
    let mut draws = Draws(1);
    let reference = (encoding == UpdateEncoding::Fp16Diff)
        .then(|| base_model(&schema, &mut draws))
        .transpose()?;
    let mut order = Order {
        job: job.clone(),
        round: RoundId(1),
        rule: rule.clone(),
        schema: schema.clone(),
        exponents: exponents.clone(),
        reference,
        members: Vec::new(),
    };
    let (mut bytes, mut intake_cpu) = (0, Duration::ZERO);
    for k in 0..args.updates {
        let delta = draws.delta(args.params);
        let reference = order.reference.as_ref();
        let fraction = args.topk_fraction;
        let update =
            codec::encode_update(&schema, encoding, fraction, &delta, &exponents, reference)
                .map_err(|error| failed(&error))?;
        drop(delta);
        bytes += update.frame.len() as u64;
        let begun = process_cpu();
        let checked = Checked::read(&update.frame, &schema, &exponents, reference)
            .map_err(|error| failed(&error))?;
        intake_cpu += process_cpu().saturating_sub(begun);
        let stored = StoredUpdate {
            vehicle: VehicleId::new(format!("v{k:06}")).map_err(|error| failed(&error))?,
            round: order.round,
            accepted: Accepted {
                update_id: UpdateId((k as u128).to_be_bytes()),
                num_examples: num_examples(k),
            },
            staleness: 0,
        };
        order.members.push(Member::new(&stored, checked));
        let write = Write::Update(job.clone(), stored, update.frame);
        store.commit(vec![write]).map_err(|error| failed(&error))?;
    }
    let mut measured = quickest(args.repeat, || {
        aggregate::run(&order, &store, args.threads).map_err(|error| failed(&error))
    })?;
    measured.bytes = bytes;
    measured.intake_cpu = intake_cpu / u32::try_from(args.updates).unwrap_or(u32::MAX);
    Ok(measured)
}

/// A base model for differences to it.
fn base_model(schema: &Schema, draws: &mut Draws) -> Result<Reference, Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::new(Exit::Failed, error.to_string());
    let model = draws.delta(schema.num_parameters());
    let (frame, _) = codec::encode_model(schema, &model).map_err(|error| failed(&error))?;
    codec::decode_reference(&frame, schema).map_err(|error| failed(&error))
}

fn quickest(
    repeat: usize,
    mut run: impl FnMut() -> Result<WeightedSum, Failure>,
) -> Result<Measured, Failure> {
    let mut best: Option<Measured> = None;
    for _ in 0..repeat {
        let (cpu, wall) = (process_cpu(), Instant::now());
        let sum = run()?;
        let (cpu, wall) = (process_cpu().saturating_sub(cpu), wall.elapsed());
        let quicker = best.as_ref().is_none_or(|best| cpu < best.cpu);
        let measured = Measured {
            cpu,
            wall,
            intake_cpu: Duration::ZERO,
            bytes: 0,
            sum,
        };
        if quicker {
            best = Some(measured);
        }
    }
    best.ok_or_else(|| Failure::new(Exit::Usage, "--repeat must be at least 1"))
}

fn report(args: &BenchArgs, rule: &RuleSpec, measured: &Measured) -> String {
    let ms = |span: Duration| span.as_secs_f64() * 1e3;
    let (cpu, wall, intake) = (ms(measured.cpu), ms(measured.wall), ms(measured.intake_cpu));
    let (rss, isa) = (peak_rss_bytes(), Isa::best().label());
    let per_parameter = measured.bytes as f64 / (args.params * args.updates) as f64;
    let codec = args.codec.encoding().map_or("none", UpdateEncoding::label);
    let exact = measured.sum.is_exact();
    match args.format {
        Format::Text => {
            let memory = rss.map_or("unknown".to_owned(), |rss| {
                format!("{:.1} MB", rss as f64 / 1e6)
            });
            let sums = if exact { "exact" } else { "rounded" };
            format!(
                "{} of {} updates of {} parameters on {isa}, codec {codec}, {} thread(s): {cpu:.2} ms of CPU, {wall:.2} ms \
                 of time\nchecking an update on arrival: {intake:.3} ms of CPU; {per_parameter:.3} bytes a parameter; \
                 peak memory {memory}; result {sums}",
                rule.name, args.updates, args.params, args.threads
            )
        }
        Format::Json => json!({
            "success": true,
            "rule": rule.name,
            "rule_params": rule.params,
            "params": args.params,
            "updates": args.updates,
            "codec": codec,
            "threads": args.threads,
            "isa": isa,
            "cpu_ms": cpu,
            "wall_ms": wall,
            "intake_cpu_ms": intake,
            "peak_rss_bytes": rss,
            "exact": exact,
            "bytes_per_parameter": per_parameter,
        })
        .to_string(),
    }
}
