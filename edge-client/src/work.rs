//! The heavy work of a vehicle, on a thread of its own: features of its pictures, and training on them.
//!
//! One piece of work at a time; it looks at its cancel flag often and then ends without a result. The thread runs at a
//! higher niceness, so that link and heartbeats keep their rhythm.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, oneshot};
use tokio::time::Instant;
use tracing::{debug, info, warn};
use wayside_domain::encoding::UpdateEncoding;
use wayside_domain::head::LinearHead;
use wayside_domain::ids::{Digest, JobId, VehicleId};
use wayside_domain::job::JobSpec;
use wayside_domain::train::TrainError;
use wayside_host::clock::Clock;
use wayside_proto::codec;

use crate::backbone::Backbone;
use crate::error::chain;
use crate::event::{Event, Observer};
use crate::features::{Extraction, FeatureError, FeatureSet, extract_dataset};
use crate::machine::{Encoded, Order, WorkDone};
use crate::pictures::{InputSize, PictureSource, SkipCounts, Skipped};
use crate::round::{self, Ingredients, MakeError};
use crate::spool::Payloads;
use crate::survey::survey;

/// How long a thread sleeps before it asks for the machine again.
const ASK_AGAIN: Duration = Duration::from_millis(20);

/// What work needs and keeps.
#[derive(Debug)]
pub(crate) struct Workshop {
    pub(crate) vehicle: VehicleId,
    pub(crate) source: PictureSource,
    pub(crate) weights: PathBuf,
    pub(crate) backbone_digest: Digest,
    /// Shared with others, or loaded here and dropped once all pictures have features.
    pub(crate) backbone: Mutex<Held>,
    pub(crate) threads: usize,
    pub(crate) nice: i32,
    /// Bounds how many vehicles of one process work at once.
    pub(crate) compute: Option<Arc<Semaphore>>,
    pub(crate) payloads: Payloads,
    pub(crate) clock: Clock,
    pub(crate) observer: Observer,
    pub(crate) features: Mutex<BTreeMap<JobId, JobFeatures>>,
}

/// A backbone in memory.
#[derive(Debug)]
pub(crate) enum Held {
    Shared(Arc<Backbone>),
    Own(Option<Arc<Backbone>>),
}

/// A job's features, and what the pictures looked like when they were extracted.
#[derive(Debug)]
pub(crate) struct JobFeatures {
    classes: Vec<String>,
    size: InputSize,
    fingerprint: [u8; 32],
    set: Arc<FeatureSet>,
}

/// How work ended, for the driver.
#[derive(Debug)]
pub(crate) enum Finished {
    Done(WorkDone),
    /// The model on disk is damaged; the round can be trained once it is fetched again.
    ModelLost(Digest),
}

/// Work under way. Dropping it cancels the work.
#[derive(Debug)]
pub(crate) struct Working {
    cancel: Arc<AtomicBool>,
    done: oneshot::Receiver<Finished>,
}

impl Working {
    pub(crate) fn cancel(&self) {
        self.cancel.store(true, Ordering::Relaxed);
    }

    /// Waits for the end; safe to drop and call again.
    pub(crate) async fn finished(&mut self) -> Finished {
        // A thread that panicked has no result: a mistake of ours, and the round has failed.
        (&mut self.done)
            .await
            .unwrap_or(Finished::Done(WorkDone::Failed))
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        self.cancel();
    }
}

/// What is to be done.
#[derive(Debug)]
pub(crate) enum Task {
    Features { job: JobId, spec: Arc<JobSpec> },
    Train(Box<Order>),
}

/// Why a round gave no update.
#[derive(Debug, thiserror::Error)]
enum RoundError {
    #[error(transparent)]
    Features(#[from] FeatureError),
    #[error("backbone: {0}")]
    Backbone(String),
    #[error("model on disk: {0}")]
    Model(#[from] wayside_host::files::SealedError),
    #[error("model frame: {0}")]
    Frame(#[from] codec::DecodeError),
    #[error(transparent)]
    Schema(#[from] wayside_domain::schema::SchemaError),
    #[error(transparent)]
    Make(#[from] MakeError),
}

impl RoundError {
    fn is_cancelled(&self) -> bool {
        matches!(
            self,
            Self::Features(FeatureError::Cancelled)
                | Self::Make(MakeError::Train(TrainError::Cancelled))
        )
    }
}

/// Starts a piece of work on a thread of its own.
pub(crate) fn start(workshop: &Arc<Workshop>, task: Task) -> Working {
    let cancel = Arc::new(AtomicBool::new(false));
    let (sender, done) = oneshot::channel();
    let (workshop, flag) = (Arc::clone(workshop), Arc::clone(&cancel));
    let span = tracing::Span::current();
    let spawned = std::thread::Builder::new()
        .name("wayside-work".to_owned())
        .spawn(move || {
            let _entered = span.entered();
            let finished = workshop.perform(task, &flag);
            // Nobody is left to tell when the vehicle has ended.
            let _ = sender.send(finished);
        });
    if let Err(error) = spawned {
        // The sender is gone with the closure, which reads as a failure.
        warn!(%error, "no thread for work");
    }
    Working { cancel, done }
}

impl Workshop {
    fn perform(&self, task: Task, cancel: &AtomicBool) -> Finished {
        be_nice(self.nice);
        let _permit = match self.wait_for_turn(cancel) {
            Ok(permit) => permit,
            Err(Cancelled) => return Finished::Done(WorkDone::Cancelled),
        };
        match task {
            Task::Features { job, spec } => Finished::Done(self.load_features(job, &spec, cancel)),
            Task::Train(order) => self.train_round(&order, cancel),
        }
    }

    fn wait_for_turn(
        &self,
        cancel: &AtomicBool,
    ) -> Result<Option<tokio::sync::OwnedSemaphorePermit>, Cancelled> {
        let Some(compute) = &self.compute else {
            return Ok(None);
        };
        loop {
            if cancel.load(Ordering::Relaxed) {
                return Err(Cancelled);
            }
            if let Ok(permit) = Arc::clone(compute).try_acquire_owned() {
                return Ok(Some(permit));
            }
            std::thread::sleep(ASK_AGAIN);
        }
    }

    fn load_features(&self, job: JobId, spec: &JobSpec, cancel: &AtomicBool) -> WorkDone {
        match self.features_of(&job, spec, cancel) {
            Ok(set) => WorkDone::Features {
                num_examples: set.labels.len() as u64,
                job,
            },
            Err(error) if error.is_cancelled() => WorkDone::Cancelled,
            Err(error) => {
                warn!(%job, error = chain(&error), "no features, trying again later");
                WorkDone::Failed
            }
        }
    }

    fn train_round(&self, order: &Order, cancel: &AtomicBool) -> Finished {
        let (job, round) = (order.job.clone(), order.round.round);
        self.observer.tell(Event::RoundStarted {
            job: job.clone(),
            round,
        });
        info!(%job, %round, version = %order.round.base_version, "training");
        match self.try_train(order, cancel) {
            Ok(encoded) => {
                info!(
                    %job, %round, num_examples = encoded.num_examples, loss = encoded.loss,
                    train_ms = encoded.train_ms, "trained"
                );
                self.observer.tell(Event::Trained {
                    job,
                    round,
                    num_examples: encoded.num_examples,
                    loss: encoded.loss,
                    train_ms: encoded.train_ms,
                });
                Finished::Done(WorkDone::Trained(encoded))
            }
            Err(error) if error.is_cancelled() => {
                info!(%job, %round, "training cancelled");
                Finished::Done(WorkDone::Cancelled)
            }
            Err(RoundError::Model(error)) => {
                warn!(%job, %round, %error, "model on disk unusable, fetching it again");
                Finished::ModelLost(order.round.model)
            }
            Err(error) => {
                let reason = chain(&error);
                warn!(%job, %round, %reason, "training failed, nothing is sent in this round");
                self.observer
                    .tell(Event::TrainingFailed { job, round, reason });
                Finished::Done(WorkDone::Failed)
            }
        }
    }

    fn try_train(&self, order: &Order, cancel: &AtomicBool) -> Result<Encoded, RoundError> {
        let spec = &order.spec;
        let set = self.features_of(&order.job, spec, cancel)?;
        let schema = spec.model.schema()?;
        let model = self.payloads.read_model(order.round.model)?;
        let shared = codec::decode_model(&model, &schema)?;
        let reference = match order.encoding {
            UpdateEncoding::Fp16Diff => Some(codec::decode_reference(&model, &schema)?),
            _ => None,
        };
        let begun = Instant::now();
        let mut features = set.features.clone();
        spec.model.standardisation.apply(features.view_mut());
        let head = LinearHead {
            features: spec.model.features(),
            classes: spec.model.classes.len(),
        };
        let ingredients = Ingredients {
            learner: &head,
            vehicle: &self.vehicle,
            schema: &schema,
            model: &shared,
            reference: reference.as_ref(),
            features: features.view(),
            labels: &set.labels,
            personal: &self.payloads.personal(&order.job),
            residual: &self.payloads.residual(&order.job),
        };
        let made = round::make(order, ingredients, cancel)?;
        Ok(Encoded {
            job: order.job.clone(),
            round: order.round.round,
            num_examples: made.num_examples,
            loss: made.loss,
            train_ms: millis(begun.elapsed()),
            encoded: self.clock.now(),
            encoding: order.encoding,
            frame: made.frame,
            residual: made.residual,
            personal: made.personal,
        })
    }

    /// The features of all pictures as they are now; nothing is read again while no file has changed.
    fn features_of(
        &self,
        job: &JobId,
        spec: &JobSpec,
        cancel: &AtomicBool,
    ) -> Result<Arc<FeatureSet>, RoundError> {
        let pixels = |count: u32| usize::try_from(count).unwrap_or(usize::MAX);
        let size = InputSize {
            height: pixels(spec.model.input_height),
            width: pixels(spec.model.input_width),
        };
        let classes = &spec.model.classes;
        let fingerprint = survey(&self.source).map_or([0; 32], |found| found.fingerprint);
        let mut all = self.features.lock().unwrap_or_else(PoisonError::into_inner);
        let known = (all.get(job)).filter(|known| known.classes == *classes && known.size == size);
        if let Some(known) = known.filter(|known| known.fingerprint == fingerprint) {
            return Ok(Arc::clone(&known.set));
        }
        let set = Arc::new(self.extract(classes, size, cancel)?);
        if known.is_none_or(|known| known.set.skipped != set.skipped) {
            tell_skipped(job, &set.skipped);
        }
        let features = JobFeatures {
            classes: classes.clone(),
            size,
            fingerprint,
            set: Arc::clone(&set),
        };
        all.insert(job.clone(), features);
        Ok(set)
    }

    fn extract(
        &self,
        classes: &[String],
        size: InputSize,
        cancel: &AtomicBool,
    ) -> Result<FeatureSet, RoundError> {
        let begun = Instant::now();
        let cache = self.payloads.features();
        let extraction = Extraction {
            source: &self.source,
            classes,
            size,
            cache_dir: cache.as_deref(),
            threads: self.threads,
        };
        let progress = |done, total| self.observer.tell(Event::FeatureProgress { done, total });
        let backbone = self.backbone()?;
        let set = extract_dataset(&backbone, &extraction, &progress, cancel)?;
        drop(backbone);
        self.let_go();
        let wall_ms = millis(begun.elapsed());
        info!(
            pictures = set.labels.len(),
            skipped = set.skipped.len(),
            cached = set.cached,
            extracted = set.extracted,
            wall_ms,
            "features ready"
        );
        self.observer.tell(Event::FeaturesReady {
            pictures: set.labels.len(),
            skipped: set.skipped.len(),
            cached: set.cached,
            extracted: set.extracted,
            wall_ms,
        });
        Ok(set)
    }

    /// The backbone, loaded again if it was let go. It must still be the one that was announced.
    fn backbone(&self) -> Result<Arc<Backbone>, RoundError> {
        let mut held = self.held();
        match &mut *held {
            Held::Shared(backbone) | Held::Own(Some(backbone)) => Ok(Arc::clone(backbone)),
            Held::Own(place) => {
                let loaded =
                    Backbone::load(&self.weights).map_err(|e| RoundError::Backbone(chain(&e)))?;
                if Digest(loaded.digest()) != self.backbone_digest {
                    let path = self.weights.display();
                    return Err(RoundError::Backbone(format!(
                        "{path} is another file than at the start"
                    )));
                }
                debug!("backbone loaded again");
                Ok(Arc::clone(place.insert(Arc::new(loaded))))
            }
        }
    }

    /// Frees the memory of a backbone that is not shared.
    fn let_go(&self) {
        if let Held::Own(place) = &mut *self.held() {
            *place = None;
        }
    }

    fn held(&self) -> std::sync::MutexGuard<'_, Held> {
        self.backbone.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
struct Cancelled;

/// Counts at WARN, names at INFO.
fn tell_skipped(job: &JobId, skipped: &[Skipped]) {
    if skipped.is_empty() {
        return;
    }
    warn!(%job, skipped = skipped.len(), reasons = %SkipCounts::of(skipped), "pictures skipped");
    for one in skipped {
        info!(%job, picture = %one.name.escape_debug(), reason = %one.reason, "picture skipped");
    }
}

/// Makes the calling thread nicer, and threads that it starts; on Linux each thread has its own niceness.
fn be_nice(nice: i32) {
    if nice > 0
        && let Err(error) = rustix::process::nice(nice)
    {
        debug!(%error, nice, "niceness stays as it is");
    }
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_os = "linux")]
    fn niceness() -> i32 {
        let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
        let (_, behind_name) = stat.rsplit_once(')').unwrap();
        let field = behind_name.split_whitespace().nth(16).unwrap();
        field.parse().unwrap()
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn only_the_working_thread_is_nice() {
        let before = niceness();
        let worker = std::thread::spawn(|| {
            be_nice(3);
            (niceness(), std::thread::spawn(niceness).join().unwrap())
        });
        let (worker, child) = worker.join().unwrap();
        let nicer = before + 3;
        assert_eq!((worker, child, niceness()), (nicer, nicer, before));
    }
}
