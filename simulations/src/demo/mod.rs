//! The demo: a cloud, roadside units and vehicles in one process, over real MQTT and gRPC on loopback, on real pictures.

mod fleet;
mod pictures;
mod progress;
mod tally;

use crate::baseline::{Examples, train_and_evaluate, without_rounds};
use crate::partition::Partition;
use crate::report::{BytesPerParameter, Evaluations, PhaseSeconds, Report};
use anyhow::{Context, bail};
use edge_client::backbone::Backbone;
use edge_client::features::{Extraction, FeatureSet, extract_dataset};
use edge_client::pictures::{InputSize, PictureSource};
use fleet::{Fleet, FleetPlan};
pub(crate) use pictures::{HELD_BACK, class_names};
use progress::Progress;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tally::Tally;
use wayside_domain::class_weights::ClassWeights;
use wayside_domain::head::{LinearHead, Standardisation};
use wayside_domain::job::{Effort, TrainingSpec};
use wayside_host::exit::{Exit, Failure};
use wayside_host::shutdown::Shutdown;

/// Size that pictures of traffic lights are brought to.
const SIZE: InputSize = InputSize {
    height: 128,
    width: 64,
};
/// From an encoded update to its receipt in hand.
const LATENCY_BUDGET_MS: u64 = 500;
/// No demo takes longer; a federation that stands still ends here with an error.
const PATIENCE: Duration = Duration::from_secs(600);
/// How often the progress is shown.
const SHOW_EVERY: Duration = Duration::from_millis(100);

/// What the demo is asked for.
#[derive(Clone, Debug)]
pub struct DemoOptions {
    /// Seed of the split, the shuffling and the initial head.
    pub seed: u64,
    /// Vehicles, at least one for each roadside unit.
    pub vehicles: usize,
    /// Roadside units, at least 1.
    pub roadside_units: usize,
    /// Merge rounds.
    pub rounds: u64,
    /// How the pictures are split.
    pub partition: Partition,
    /// Folder with `train` and `test`, each with one sub-folder a class.
    pub data: PathBuf,
    /// The backbone's weights.
    pub weights: PathBuf,
    /// Where everything is kept; `None` uses a temporary folder that is removed at the end.
    pub keep: Option<PathBuf>,
    /// Show no progress.
    pub quiet: bool,
}

/// Runs the demo; an error if `shutdown` comes first.
pub async fn run(options: DemoOptions, shutdown: Shutdown) -> anyhow::Result<Report> {
    check(&options)?;
    let began = Instant::now();
    let temporary = tempfile::Builder::new()
        .prefix("wayside-demo-")
        .tempdir()
        .context("cannot make a temporary folder")?;
    let work = options
        .keep
        .clone()
        .unwrap_or_else(|| temporary.path().to_owned());
    std::fs::create_dir_all(&work).with_context(|| format!("cannot make {}", work.display()))?;
    let mut progress = Progress::new(options.rounds, options.quiet);
    let prepared = {
        let (options, work, cancel) = (options.clone(), work.clone(), shutdown.flag());
        progress.phase(&format!(
            "splitting the pictures over {} vehicles ({}), seed {}",
            options.vehicles, options.partition, options.seed
        ));
        tokio::task::spawn_blocking(move || Prepared::new(&options, &work, &cancel)).await??
    };
    progress.expect(prepared.split.train_pictures);
    let prepare = began.elapsed();

    let tally = Arc::new(Mutex::new(Tally::new(options.vehicles)));
    let head = LinearHead {
        features: prepared.backbone.features(),
        classes: prepared.split.classes.len(),
    };
    progress.phase("starting a cloud, roadside units and vehicles on loopback");
    let plan = FleetPlan {
        work: &work,
        job_file: &prepared.job_file,
        pictures: &prepared.split.vehicles,
        roadside_units: options.roadside_units,
        weights: &options.weights,
        backbone: Arc::clone(&prepared.backbone),
    };
    // The tiers end by a signal of their own, so that what comes after them goes on.
    let mut fleet = Fleet::start(plan, &Shutdown::new(), &tally).await?;
    let mut features_ready = None;
    let outcome = loop {
        let seen = tally.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if features_ready.is_none() && seen.all_ready() {
            features_ready = Some(began.elapsed());
        }
        progress.show(&seen, head.num_parameters());
        if seen.finished {
            break Ok(seen);
        }
        if began.elapsed() > PATIENCE {
            break Err(anyhow::anyhow!(
                "no end after {} s, waiting for {}",
                PATIENCE.as_secs(),
                seen.waiting_text()
            ));
        }
        tokio::select! {
            () = shutdown.wait() => break Err(anyhow::anyhow!("interrupted")),
            failed = fleet.failed() => break Err(failed),
            () = tokio::time::sleep(SHOW_EVERY) => {}
        }
    };
    progress.finish();
    let (seen, models) = match outcome {
        Ok(seen) => {
            let models = fleet.models().await;
            fleet.stop().await;
            (seen, models?)
        }
        Err(error) => {
            fleet.stop().await;
            return Err(error);
        }
    };
    let federated = began.elapsed();
    progress.phase("training each vehicle alone and all pictures centrally, for comparison");
    let cancel = shutdown.flag();
    let rounds = options.rounds;
    let (prepared, evaluations) = tokio::task::spawn_blocking(move || {
        let evaluations =
            prepared.compare(&head, &models.initial, &models.released, rounds, &cancel)?;
        anyhow::Ok((prepared, evaluations))
    })
    .await??;
    let ready = features_ready.unwrap_or(federated);
    let phases_s = PhaseSeconds {
        prepare: prepare.as_secs_f64(),
        features: ready.saturating_sub(prepare).as_secs_f64(),
        federation: federated.saturating_sub(ready).as_secs_f64(),
        baselines: began.elapsed().saturating_sub(federated).as_secs_f64(),
    };
    Ok(report(
        &options,
        &prepared,
        &seen,
        &evaluations,
        &head,
        phases_s,
        began.elapsed(),
    ))
}

fn check(options: &DemoOptions) -> Result<(), Failure> {
    let (vehicles, units) = (options.vehicles, options.roadside_units);
    if units == 0 || vehicles < units {
        let message = format!(
            "{vehicles} vehicles at {units} roadside units: every roadside unit needs a vehicle, and there must be one"
        );
        return Err(Failure::new(Exit::Usage, message));
    }
    if options.rounds == 0 {
        return Err(Failure::new(
            Exit::Usage,
            "--rounds is 0, at least 1 is needed",
        ));
    }
    Ok(())
}

/// Everything that is ready before the tiers start.
#[derive(Debug)]
struct Prepared {
    split: pictures::Split,
    backbone: Arc<Backbone>,
    standardisation: Standardisation,
    training: TrainingSpec,
    test: Examples,
    job_file: PathBuf,
    skipped: usize,
}

impl Prepared {
    fn new(options: &DemoOptions, work: &Path, cancel: &AtomicBool) -> anyhow::Result<Self> {
        let split = pictures::prepare(
            &options.data,
            work,
            options.vehicles,
            options.partition,
            options.seed,
        )
        .map_err(|error| Failure::new(Exit::Pictures, format!("{error:#}")))?;
        let backbone = Backbone::load(&options.weights).map_err(|error| {
            Failure::new(
                Exit::Weights,
                format!("{error}: name the file with --weights"),
            )
        })?;
        let backbone = Arc::new(backbone);
        let held_back = extract(&backbone, &split.held_back, &split.classes, None, cancel)?;
        let test = extract(&backbone, &split.test, &split.classes, None, cancel)?;
        let standardisation = Standardisation::of(held_back.features.view())?;
        held_back.write_safetensors(&work.join("cloud").join("held-back.safetensors"))?;
        let job_file = work.join("cloud").join("job.toml");
        let training = training(options.seed, &held_back.labels, split.classes.len());
        let job = job_text(options, &split.classes, &training)?;
        std::fs::write(&job_file, job)
            .with_context(|| format!("cannot write {}", job_file.display()))?;
        let skipped = held_back.skipped.len() + test.skipped.len();
        let test = standardised(test, &standardisation);
        Ok(Self {
            split,
            backbone,
            standardisation,
            training,
            test,
            job_file,
            skipped,
        })
    }

    /// Trains alone and centrally from the features that the vehicles left in their caches.
    fn compare(
        &self,
        head: &LinearHead,
        initial: &[f32],
        released: &[f32],
        rounds: u64,
        cancel: &AtomicBool,
    ) -> anyhow::Result<Evaluations> {
        let spec = without_rounds(&self.training, rounds);
        let mut parts = Vec::new();
        for folder in &self.split.vehicles {
            let cache = folder.with_file_name("state").join("features");
            let features = extract(
                &self.backbone,
                folder,
                &self.split.classes,
                Some(&cache),
                cancel,
            )?;
            parts.push(standardised(features, &self.standardisation));
        }
        let mut local = Vec::new();
        for part in &parts {
            local.push(train_and_evaluate(
                head, initial, part, &self.test, &spec, cancel,
            )?);
        }
        let central = train_and_evaluate(
            head,
            initial,
            &Examples::concat(&parts),
            &self.test,
            &spec,
            cancel,
        )?;
        let evaluate = |parameters: &[f32]| {
            head.evaluate(parameters, self.test.features.view(), &self.test.labels)
        };
        Ok(Evaluations {
            untrained: evaluate(initial),
            local,
            federated: evaluate(released),
            central,
        })
    }
}

/// Features of a folder with one sub-folder a class, on all CPUs.
pub(crate) fn extract(
    backbone: &Backbone,
    folder: &Path,
    classes: &[String],
    cache_dir: Option<&Path>,
    cancel: &AtomicBool,
) -> anyhow::Result<FeatureSet> {
    let source = PictureSource::Folder(folder.to_owned());
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let extraction = Extraction {
        source: &source,
        classes,
        size: SIZE,
        cache_dir,
        threads,
    };
    Ok(extract_dataset(backbone, &extraction, &|_, _| {}, cancel)?)
}

fn standardised(mut set: FeatureSet, standardisation: &Standardisation) -> Examples {
    standardisation.apply(set.features.view_mut());
    Examples {
        features: set.features,
        labels: set.labels,
    }
}

/// What a vehicle does in a round of the demo. The cloud weighs the classes by the pictures that it holds back.
fn training(seed: u64, held_back: &[u8], classes: usize) -> TrainingSpec {
    TrainingSpec {
        lr: 0.01,
        momentum: 0.0,
        weight_decay: 0.0,
        batch_size: 32,
        effort: Effort::LocalEpochs(2),
        proximal_mu: 0.0,
        class_weights: ClassWeights::InverseRoot.of(held_back, classes),
        seed,
    }
}

fn job_text(
    options: &DemoOptions,
    classes: &[String],
    training: &TrainingSpec,
) -> anyhow::Result<String> {
    let mut text = String::new();
    let Effort::LocalEpochs(epochs) = training.effort else {
        bail!("the demo trains by epochs")
    };
    let _ = write!(
        text,
        "job = \"demo\"\n\n\
         [model]\nclasses = {classes:?}\ninput_height = {}\ninput_width = {}\ncalibration = \"held-back.safetensors\"\n\n\
         [training]\nlr = {:?}\nmomentum = 0.0\nweight_decay = 0.0\nbatch_size = {}\nlocal_epochs = {epochs}\nclass_weights = \"inverse_root\"\nseed = {}\n\n\
         [strategy]\nfraction_train = 1.0\nmin_vehicles = {}\nround_timeout_ms = 20000\n\
         latency_budget_ms = {LATENCY_BUDGET_MS}\n\n\
         [codec]\nlowest = \"fp16\"\n\n\
         [merge]\nserver_optimizer = \"momentum\"\nserver_lr = 4.0\nserver_momentum = 0.9\nmin_roadsides = {}\n\n\
         [schedule]\nperiod_ms = 60000\nmerge_when_complete = true\nmerges = {}\n\n\
         [evaluation]\nfeatures = \"held-back.safetensors\"\nmax_regression = 0.05\n",
        SIZE.height,
        SIZE.width,
        training.lr,
        training.batch_size,
        options.seed,
        options.vehicles / options.roadside_units,
        options.roadside_units,
        options.rounds,
    );
    Ok(text)
}

fn report(
    options: &DemoOptions,
    prepared: &Prepared,
    seen: &Tally,
    evaluations: &Evaluations,
    head: &LinearHead,
    phases_s: PhaseSeconds,
    wall: Duration,
) -> Report {
    let parameters = head.num_parameters();
    let updates = seen.sum(|v| v.accepted);
    let per = |bytes: u64| bytes as f64 / (updates.max(1) as f64 * parameters as f64);
    let made: Vec<_> = seen.versions.iter().filter(|v| v.version.0 > 0).collect();
    let receipts = seen.sum(|v| v.receipts);
    Report {
        success: true,
        seed: options.seed,
        partition: options.partition.to_string(),
        vehicles: options.vehicles,
        roadside_units: options.roadside_units,
        rounds: options.rounds,
        versions: made.len() as u64,
        versions_kept_back: made.iter().filter(|v| !v.released).count() as u64,
        parameters,
        train_pictures: prepared.split.train_pictures,
        test_pictures: prepared.test.labels.len(),
        skipped_pictures: prepared.skipped
            + seen
                .vehicles
                .iter()
                .filter_map(|v| v.skipped)
                .sum::<usize>(),
        exact: made.iter().all(|v| v.exact),
        accuracy: evaluations.compare(|e| e.accuracy),
        macro_recall: evaluations.compare(|e| e.macro_recall),
        bytes_per_parameter: BytesPerParameter {
            up: per(seen.sum(|v| v.up_bytes)),
            down: per(seen.sum(|v| v.down_bytes)),
        },
        within_budget_share: seen.sum(|v| v.within_budget) as f64 / receipts.max(1) as f64,
        latency_budget_ms: LATENCY_BUDGET_MS,
        receipts,
        updates_accepted: updates,
        wall_s: wall.as_secs_f64(),
        phases_s,
    }
}
