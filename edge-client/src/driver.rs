//! Runs the vehicle's machine: tells it what happened, and does what it says, in order.
//!
//! Tasks: the link, the heartbeat, a watch over the stop file, one task for each update that is being handed to the
//! link, and this loop. Work goes on a thread of its own ([`crate::work`]); what touches the disk is awaited off the
//! async threads, so that nothing is visible before it is durable.

mod opening;
mod sending;

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;
use tracing::{Instrument as _, debug, info, info_span, warn};
use wayside_domain::ids::{Digest, Generation, JobId, UpdateId};
use wayside_domain::job::JobSpec;
use wayside_domain::outbox::OutboxEntry;
use wayside_domain::update::Verdict;
use wayside_host::clock::{Clock, sleep_until};
use wayside_host::shutdown::Shutdown;
use wayside_host::state_dir::StateDir;
use wayside_proto::codec::{self, Encoding};
use wayside_proto::convert::{Presence, UpdateMetrics, Wire};
use wayside_proto::topics::{DeviceEvent, ModelKey, Topic, model_filter, vehicle_filters};

use crate::backbone::Backbone;
use crate::config::{Config, Settings};
use crate::error::RunError;
use crate::event::{Event, Observer, TrafficCounter};
use crate::heartbeat::{self, Status};
use crate::inbox::{self, Incoming};
use crate::link::{self, INBOX, LinkEvent, LinkHandle, LinkOptions};
use crate::machine::{Effect, Encoded, Leaves, Order, Phase, Vehicle, WorkDone};
use crate::round;
use crate::spool::Spool;
use crate::work::{self, Finished, Task, Working, Workshop};
pub(crate) use opening::check_pictures;
use opening::{Opened, open};
use sending::{Handed, Sending};

/// Name of the tier, in its state folder and its logs.
pub(crate) const TIER: &str = "edge-client";
/// How often the stop file is looked for.
const STOP_FILE: Duration = Duration::from_millis(250);
/// Updates whose chunks were all handed over, waiting to be noted; bounded by the outbox.
const HANDED_OVER: usize = 64;

/// What vehicles of one process may share. The default shares nothing.
#[derive(Clone, Debug, Default)]
pub struct Resources {
    /// The backbone, if the caller has loaded it; it must be the file that `model.weights` names. Else each vehicle
    /// loads its own and lets go of it once its pictures have features.
    pub backbone: Option<Arc<Backbone>>,
    /// How many of the vehicles may extract or train at the same time; `None` sets no bound.
    pub compute: Option<Arc<Semaphore>>,
}

/// Runs a vehicle until `shutdown`.
///
/// # Errors
/// [`RunError`] for what a person must fix: configuration, files, disk. A link that is down is no error.
pub async fn run(config: Config, shutdown: Shutdown, observer: Observer) -> Result<(), RunError> {
    run_with(config, Resources::default(), shutdown, observer).await
}

/// [`run`] with what is shared between vehicles of one process.
///
/// # Errors
/// As [`run`].
pub async fn run_with(
    config: Config,
    resources: Resources,
    shutdown: Shutdown,
    observer: Observer,
) -> Result<(), RunError> {
    let settings = Arc::new(config.settings()?);
    let span = info_span!("vehicle", id = %settings.vehicle);
    let running = async move {
        let clock = Clock::system();
        let opened = open(
            Arc::clone(&settings),
            resources,
            clock.clone(),
            observer.clone(),
        )
        .await?;
        let ending = Shutdown::new();
        let mut tasks = JoinSet::new();
        let mut driver = Driver::new(&settings, opened, &ending, clock, observer, &mut tasks);
        let result = driver.run(&shutdown, &mut tasks).await;
        ending.trigger();
        // The link says goodbye while the driver still holds its other end.
        while tasks.join_next().await.is_some() {}
        drop(driver);
        info!("ended");
        result
    };
    running.instrument(span).await
}

/// The loop around the machine.
struct Driver {
    settings: Arc<Settings>,
    generation: Generation,
    machine: Vehicle,
    spool: Arc<Mutex<Spool>>,
    workshop: Arc<Workshop>,
    link: LinkHandle,
    link_up: bool,
    inbox: mpsc::Receiver<LinkEvent>,
    status: watch::Sender<Status>,
    stop: watch::Receiver<bool>,
    working: Option<Working>,
    handed_over: (mpsc::Sender<Handed>, mpsc::Receiver<Handed>),
    senders: BTreeMap<UpdateId, AbortHandle>,
    fetches: BTreeMap<Digest, Instant>,
    specs: Vec<(Digest, Vec<u8>)>,
    traffic: Arc<TrafficCounter>,
    refused: u64,
    clock: Clock,
    observer: Observer,
    /// Held until the end.
    _state: StateDir,
}

impl Driver {
    fn new(
        settings: &Arc<Settings>,
        opened: Opened,
        ending: &Shutdown,
        clock: Clock,
        observer: Observer,
        tasks: &mut JoinSet<()>,
    ) -> Self {
        let (link, ends) = LinkHandle::new(settings.link.max_packet_bytes);
        let (inbox_end, inbox) = mpsc::channel(INBOX);
        let status = Status {
            link_up: false,
            state: train_state(opened.machine.phase()),
            round: None,
            model: None,
            num_examples: opened.machine.num_examples(),
        };
        let (status, status_end) = watch::channel(status);
        let (stop_end, stop) = watch::channel(false);
        let generation = opened.generation;
        let seed =
            |purpose| round::derive(&format!("{purpose}/{}/{}", settings.vehicle, generation.0));
        let driver = Self {
            settings: Arc::clone(settings),
            generation,
            machine: opened.machine,
            spool: Arc::new(Mutex::new(opened.spool)),
            workshop: opened.workshop,
            link: link.clone(),
            link_up: false,
            inbox,
            status,
            stop,
            working: None,
            handed_over: mpsc::channel(HANDED_OVER),
            senders: BTreeMap::new(),
            fetches: BTreeMap::new(),
            specs: opened.specs,
            traffic: Arc::default(),
            refused: 0,
            clock: clock.clone(),
            observer,
            _state: opened.state,
        };
        let options = driver.link_options(seed("link"));
        let kept = link::keep(options, ends, inbox_end, clock.clone(), ending.clone());
        tasks.spawn(kept.in_current_span());
        let beating = heartbeat::beat(
            settings.heartbeat,
            generation,
            seed("heartbeat"),
            status_end,
            link,
            clock,
            ending.clone(),
        );
        tasks.spawn(beating.in_current_span());
        if let Some(path) = settings.stop_file.clone() {
            tasks.spawn(watch_stop_file(path, stop_end, ending.clone()));
        }
        driver
    }

    fn link_options(&self, seed: u64) -> LinkOptions {
        let (settings, vehicle) = (&self.settings, &self.settings.vehicle);
        let presence = Topic::Presence {
            roadside: settings.roadside.clone(),
            vehicle: vehicle.clone(),
        };
        let heartbeat = Topic::Device {
            namespace: settings.namespace.clone(),
            vehicle: vehicle.clone(),
            event: DeviceEvent::TwinUpdate,
        };
        let filters = vehicle_filters(&settings.roadside, vehicle);
        LinkOptions {
            host: settings.host.clone(),
            port: settings.port,
            client_id: format!("wayside-{vehicle}"),
            link: settings.link.clone(),
            presence_topic: presence.to_string(),
            last_will: self.presence(false, 0),
            heartbeat_topic: heartbeat.to_string(),
            filters,
            seed,
        }
    }

    async fn run(&mut self, shutdown: &Shutdown, tasks: &mut JoinSet<()>) -> Result<(), RunError> {
        for (digest, encoded) in std::mem::take(&mut self.specs) {
            match JobSpec::decode(&encoded) {
                Ok(spec) => {
                    let effects = self.take_spec(digest, spec);
                    self.apply(effects).await?;
                }
                Err(error) => debug!(%error, "stored job specification is not understood"),
            }
        }
        loop {
            self.show_status();
            let deadline = self.machine.next_deadline();
            let effects = tokio::select! {
                biased;
                () = shutdown.wait() => break,
                finished = finished(self.working.as_mut()) => self.on_finished(finished),
                Some(Handed { update_id, lost }) = self.handed_over.1.recv() => {
                    self.senders.remove(&update_id);
                    let now = self.clock.now();
                    if lost {
                        self.machine.on_update_lost(now, update_id)
                    } else {
                        self.machine.on_handed_over(now, update_id)
                    }
                }
                Ok(()) = self.stop.changed() => {
                    let paused = *self.stop.borrow_and_update();
                    info!(paused, "stop file");
                    self.machine.on_paused(self.clock.now(), paused)
                }
                event = self.inbox.recv() => match event {
                    Some(event) => self.on_link_event(event).await?,
                    None => return Err(RunError::TaskEnded("the link")),
                },
                () = until(&self.clock, deadline) => self.machine.on_tick(self.clock.now()),
                Some(ended) = tasks.join_next() => {
                    let failed = ended.is_err();
                    debug!(failed, "a task ended");
                    return Err(RunError::TaskEnded("a task of the vehicle"));
                }
            };
            self.apply(effects).await?;
        }
        for sender in self.senders.values() {
            sender.abort();
        }
        if let Some(mut working) = self.working.take() {
            working.cancel();
            let _ = working.finished().await;
        }
        Ok(())
    }

    fn show_status(&self) {
        let current = self.machine.current().map(|(_, announced)| announced);
        let status = Status {
            link_up: self.link_up,
            state: train_state(self.machine.phase()),
            round: current.map(|announced| announced.round),
            model: current.map(|announced| announced.model),
            num_examples: self.machine.num_examples(),
        };
        self.status.send_if_modified(|old| {
            let changed = *old != status;
            *old = status;
            changed
        });
    }

    fn presence(&self, online: bool, num_examples: u64) -> Vec<u8> {
        let presence = Presence {
            vehicle: self.settings.vehicle.clone(),
            generation: self.generation,
            online,
            client_version: env!("CARGO_PKG_VERSION").to_owned(),
            backbone: Some(self.workshop.backbone_digest),
            num_examples,
        };
        presence.encode()
    }

    fn take_spec(&mut self, digest: Digest, spec: JobSpec) -> Vec<Effect> {
        let max = spec.model.schema().map_or(0, |schema| {
            codec::max_frame_bytes(&schema, Encoding::Fp16Model)
        });
        self.machine
            .on_job_spec(self.clock.now(), digest, Arc::new(spec), max)
    }

    fn on_finished(&mut self, finished: Finished) -> Vec<Effect> {
        self.working = None;
        let done = match finished {
            Finished::Done(done) => done,
            Finished::ModelLost(model) => {
                self.machine.on_model_lost(model);
                WorkDone::Cancelled
            }
        };
        self.machine.on_work_done(self.clock.now(), done)
    }

    async fn on_link_event(&mut self, event: LinkEvent) -> Result<Vec<Effect>, RunError> {
        match event {
            LinkEvent::Up | LinkEvent::Down => {
                self.link_up = matches!(event, LinkEvent::Up);
                self.stop_senders();
                self.observer.tell(if self.link_up {
                    Event::Connected
                } else {
                    Event::Disconnected
                });
                self.observer.tell(Event::Traffic(self.traffic.total()));
                Ok(self.machine.on_link(self.clock.now(), self.link_up))
            }
            LinkEvent::Message(message) => {
                self.traffic
                    .received(message.topic.len() + message.payload.len());
                let (roadside, vehicle) = (&self.settings.roadside, &self.settings.vehicle);
                let here = (roadside, vehicle);
                match inbox::read(&message.topic, &message.payload, message.retain, here) {
                    Ok(incoming) => self.on_incoming(incoming).await,
                    Err(error) => {
                        self.refused += 1;
                        // Someone who floods the topic does not flood the log.
                        if self.refused.is_power_of_two() {
                            let (topic, refused) = (message.topic.escape_debug(), self.refused);
                            warn!(%topic, %error, refused, "message refused");
                        }
                        Ok(Vec::new())
                    }
                }
            }
        }
    }

    async fn on_incoming(&mut self, incoming: Incoming) -> Result<Vec<Effect>, RunError> {
        let now = self.clock.now();
        Ok(match incoming {
            Incoming::Register => {
                debug!("asked to register");
                self.machine.on_register()
            }
            Incoming::Registered => {
                debug!("registered");
                Vec::new()
            }
            Incoming::Announcement {
                job,
                announced,
                live,
            } => {
                info!(
                    %job, round = %announced.round, version = %announced.base_version, open = announced.open,
                    in_cohort = announced.in_cohort, "announced"
                );
                self.machine.on_announcement(now, &job, announced, live)
            }
            Incoming::JobSpec {
                digest,
                spec,
                encoded,
            } => {
                let (roadside, job) = (self.settings.roadside.clone(), spec.job.clone());
                let stored = self
                    .on_disk(move |spool| spool.remember_job(&roadside, &job, digest, &encoded))
                    .await?;
                if let Err(error) = stored {
                    warn!(job = %spec.job, %error, "job specification cannot be stored");
                }
                self.take_spec(digest, *spec)
            }
            Incoming::ModelPart {
                job,
                key,
                chunk,
                data,
            } => {
                let chunk = usize::try_from(chunk).unwrap_or(usize::MAX);
                self.machine.on_model_part(&job, key, chunk, data)
            }
            Incoming::Receipt { job, receipt } => self.machine.on_receipt(
                now,
                &job,
                receipt.update_id,
                receipt.verdict,
                receipt.current_round,
            ),
            Incoming::Need { job, need } => {
                debug!(%job, update_id = %need.update_id, missing = need.missing.len(), "chunks are missing");
                self.machine.on_need(&job, need.update_id, need.missing)
            }
        })
    }

    /// Carries out effects, and what follows from them, in order.
    async fn apply(&mut self, effects: Vec<Effect>) -> Result<(), RunError> {
        let mut queue = VecDeque::from(effects);
        while let Some(effect) = queue.pop_front() {
            queue.extend(self.apply_one(effect).await?);
        }
        Ok(())
    }

    async fn apply_one(&mut self, effect: Effect) -> Result<Vec<Effect>, RunError> {
        match effect {
            Effect::PublishPresence { num_examples } => {
                self.link.presence(self.presence(true, num_examples));
            }
            Effect::LoadFeatures { job, spec } => self.start(Task::Features { job, spec }),
            Effect::StartTraining(order) => self.start(Task::Train(order)),
            Effect::CancelWork => {
                if let Some(working) = &self.working {
                    working.cancel();
                }
            }
            Effect::FetchModel { job, model } => {
                self.fetches.entry(model).or_insert_with(Instant::now);
                debug!(%job, %model, "fetching model");
                self.link.subscribe(self.model_filter(&job, model));
            }
            Effect::LeaveModel { job, model } => {
                self.fetches.remove(&model);
                self.link.unsubscribe(self.model_filter(&job, model));
            }
            Effect::StoreModel { job, model, bytes } => {
                return self.store_model(job, model, bytes).await;
            }
            Effect::DropModels(models) => {
                self.on_disk(move |spool| spool.payloads().drop_models(&models))
                    .await?;
            }
            Effect::Seal(sealing) => return self.seal(sealing.0, sealing.1).await,
            Effect::SendUpdate { update_id, chunks } => self.send(update_id, chunks),
            Effect::DropUpdate { entry, why } => self.drop_update(entry, why).await?,
            Effect::Stepped { job, step } => info!(
                %job, from = %step.from, to = %step.to,
                goodput_bytes_per_s = step.goodput_bytes_per_s.round(), "updates are written in another way"
            ),
            Effect::NotTakingPart { job, why } => warn!(%job, reason = %why, "not taking part"),
        }
        Ok(Vec::new())
    }

    fn start(&mut self, task: Task) {
        self.working = Some(work::start(&self.workshop, task));
    }

    fn model_filter(&self, job: &JobId, model: Digest) -> String {
        model_filter(&self.settings.roadside, job, ModelKey::of(&model))
    }

    async fn store_model(
        &mut self,
        job: JobId,
        model: Digest,
        frame: Vec<u8>,
    ) -> Result<Vec<Effect>, RunError> {
        let bytes = frame.len();
        let written = self
            .on_disk(move |spool| spool.payloads().write_model(model, &frame))
            .await?;
        let good = match written {
            Ok(true) => {
                let begun = self.fetches.get(&model).map(Instant::elapsed);
                let wall_ms = begun.map_or(0, |span| {
                    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
                });
                info!(%job, %model, bytes, wall_ms, "model fetched");
                let job = job.clone();
                self.observer.tell(Event::ModelFetched {
                    job,
                    bytes,
                    wall_ms,
                });
                true
            }
            Ok(false) => {
                warn!(%job, %model, bytes, "chunks do not make up the announced model, fetching again");
                false
            }
            Err(error) => {
                warn!(%job, %model, %error, "model cannot be stored");
                false
            }
        };
        Ok(self
            .machine
            .on_model_stored(self.clock.now(), &job, model, good))
    }

    async fn seal(&mut self, order: Order, encoded: Encoded) -> Result<Vec<Effect>, RunError> {
        let figures = self.machine.figures();
        let metrics = UpdateMetrics {
            loss: Some(encoded.loss).filter(|loss| loss.is_finite()),
            train: Duration::from_millis(encoded.train_ms),
            receipts: figures.receipts,
            receipts_within_budget: figures.within_budget,
            last_latency: Duration::from_millis(figures.last_latency_ms),
            encoding: Some(encoded.encoding),
            goodput_bytes_per_s: figures.goodput_bytes_per_s,
        };
        let (settings, generation) = (Arc::clone(&self.settings), self.generation);
        let (job, round) = (order.job.clone(), encoded.round);
        let sealed = self
            .on_disk(move |spool| {
                let sender = (&settings.vehicle, &settings.roadside, generation);
                spool.seal(sender, &order, &encoded, metrics)
            })
            .await?;
        let entry = match sealed {
            Ok((entry, bytes)) => {
                info!(%job, %round, update_id = %entry.update_id, bytes, "update sealed");
                Some((entry, bytes))
            }
            Err(error) => {
                warn!(%job, %round, %error, "update cannot be stored, so it is not sent");
                None
            }
        };
        Ok(self.machine.on_sealed(self.clock.now(), entry))
    }

    /// Hands an update's chunks to the link in a task of its own, which ends with the connection.
    fn send(&mut self, update_id: UpdateId, chunks: Option<Vec<u32>>) {
        let Some(entry) = self.machine.outbox().get(update_id).cloned() else {
            return;
        };
        let sending = Sending {
            settings: Arc::clone(&self.settings),
            workshop: Arc::clone(&self.workshop),
            link: self.link.clone(),
            traffic: Arc::clone(&self.traffic),
            observer: self.observer.clone(),
        };
        let done = self.handed_over.0.clone();
        let task = async move {
            let lost = sending.send(&entry, chunks).await.is_err();
            // If nobody listens the driver has ended, and nothing is left to note.
            let _ = done.send(Handed { update_id, lost }).await;
        };
        let handle = tokio::spawn(task.in_current_span()).abort_handle();
        self.senders.insert(update_id, handle);
    }

    fn stop_senders(&mut self) {
        for sender in std::mem::take(&mut self.senders).into_values() {
            sender.abort();
        }
    }

    async fn drop_update(&mut self, entry: OutboxEntry, why: Leaves) -> Result<(), RunError> {
        if let Some(sender) = self.senders.remove(&entry.update_id) {
            sender.abort();
        }
        let (job, round, update_id) = (entry.job.clone(), entry.round, entry.update_id);
        let counts = matches!(why, Leaves::Receipt { verdict, .. } if verdict.counts());
        match why {
            Leaves::Receipt {
                verdict,
                latency,
                within_budget,
            } => {
                let latency_ms = u64::try_from(latency.as_millis()).unwrap_or(u64::MAX);
                if let Verdict::Rejected(_) = verdict {
                    warn!(%job, %round, %update_id, %verdict, latency_ms, "update refused");
                } else {
                    info!(%job, %round, %update_id, %verdict, latency_ms, within_budget, "receipt");
                }
                let traffic = self.traffic.total();
                self.observer.tell(Event::ReceiptReceived {
                    job,
                    round,
                    verdict,
                    latency_ms,
                    within_budget,
                    traffic,
                });
            }
            Leaves::Lost => warn!(%job, %round, %update_id, "update lost"),
            Leaves::Expired => warn!(%job, %round, %update_id, "update expired without a receipt"),
            Leaves::MadeRoom => {
                warn!(%job, %round, %update_id, "outbox full, oldest update dropped");
            }
        }
        let forgotten = self
            .on_disk(move |spool| spool.forget_update(&entry, counts))
            .await?;
        if let Err(error) = forgotten {
            warn!(%update_id, %error, "update cannot be deleted, it may be sent again after a restart");
        }
        Ok(())
    }

    /// Does something with the disk, off the async threads, and waits for it.
    async fn on_disk<T: Send + 'static>(
        &self,
        act: impl FnOnce(&mut Spool) -> T + Send + 'static,
    ) -> Result<T, RunError> {
        let spool = Arc::clone(&self.spool);
        blocking(move || act(&mut spool.lock().unwrap_or_else(PoisonError::into_inner))).await
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.stop_senders();
    }
}

fn train_state(phase: Phase) -> wayside_proto::kubeedge::TrainState {
    use wayside_proto::kubeedge::TrainState;
    match phase {
        Phase::Idle => TrainState::Idle,
        Phase::Preparing | Phase::Fetching => TrainState::Fetching,
        Phase::Training => TrainState::Training,
        Phase::Uploading => TrainState::Uploading,
        Phase::Paused => TrainState::Paused,
        Phase::Failed => TrainState::Failed,
    }
}

/// Runs something that blocks off the async threads.
pub(crate) async fn blocking<T: Send + 'static>(
    act: impl FnOnce() -> T + Send + 'static,
) -> Result<T, RunError> {
    let ended = tokio::task::spawn_blocking(act).await;
    ended.map_err(|_| RunError::TaskEnded("work on the disk"))
}

async fn finished(working: Option<&mut Working>) -> Finished {
    match working {
        Some(working) => working.finished().await,
        None => std::future::pending().await,
    }
}

async fn until(clock: &Clock, deadline: Option<wayside_domain::time::Timestamp>) {
    match deadline {
        Some(deadline) => sleep_until(clock, deadline).await,
        None => std::future::pending().await,
    }
}

async fn watch_stop_file(path: PathBuf, stop: watch::Sender<bool>, shutdown: Shutdown) {
    loop {
        let looked_for = path.clone();
        let there = tokio::task::spawn_blocking(move || looked_for.exists()).await;
        stop.send_if_modified(|old| {
            let now = there.unwrap_or(*old);
            std::mem::replace(old, now) != now
        });
        tokio::select! {
            () = shutdown.wait() => return,
            () = tokio::time::sleep(STOP_FILE) => {}
        }
    }
}
