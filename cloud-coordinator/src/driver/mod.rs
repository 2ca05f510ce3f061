//! One task a job: owns the machine, keeps what it says durable, then makes it visible.
//!
//! The machine and all writing run off the async threads, one step after the other. Where something cannot be made
//! durable, nothing of it becomes visible: the machine is thrown away and rebuilt from what is durable.

mod create;
mod load;
mod partials;
mod refill;
mod tell;
mod view;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};

pub(crate) use create::{CreateError, create_job};
use load::LoadError;
pub(crate) use load::start_stored_jobs;
pub(crate) use partials::PartialFiles;
pub(crate) use view::JobView;

use crate::federation::{Effect, Federation, Model, Partial};
use crate::hub::{COMMANDS, Hub, JobHandle};
use crate::job::Definition;
use crate::store::{Change, JobRecord, PartialRecord, RoundRecord, StoreError};
use crate::versions::{Metadata, VersionsError};
use wayside_domain::ids::{ModelVersion, RoadsideId, RoundId};
use wayside_domain::time::Timestamp;
use wayside_domain::update::Verdict;
use wayside_host::clock::sleep_until;
use wayside_host::files::FileError;
use wayside_proto::convert::PartialAggregate;

/// The wall clock is looked at this often at least.
const LOOK: Duration = Duration::from_secs(60);
/// Wait before a job is rebuilt from its durable state once more.
const RETRY: Duration = Duration::from_secs(1);

/// What a job's driver is asked to do. An answer that never comes means that nothing was made durable: try again.
#[derive(Debug)]
pub(crate) enum Command {
    Hello(RoadsideId),
    Lost(RoadsideId),
    Submit {
        partial: Box<PartialAggregate>,
        bytes: u64,
        reply: oneshot::Sender<Verdict>,
    },
    SetPaused {
        paused: bool,
        reply: oneshot::Sender<()>,
    },
    RollBack {
        version: ModelVersion,
        reply: oneshot::Sender<Result<(), RollBackError>>,
    },
}

/// Why a version cannot become the released one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RollBackError {
    #[error("there is no version {0}")]
    Unknown(u64),
    #[error("version {0} did not pass the gate: {1}")]
    KeptBack(u64, String),
    #[error("version {0} is damaged: {1}")]
    Damaged(u64, String),
}

/// Why a step could not be made durable.
#[derive(Debug, thiserror::Error)]
enum Trouble {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Versions(#[from] VersionsError),
    #[error(transparent)]
    File(#[from] FileError),
    #[error("step did not end: {0}")]
    Step(#[from] tokio::task::JoinError),
}

/// One job's driver.
struct Driver {
    hub: Arc<Hub>,
    definition: Arc<Definition>,
    files: PartialFiles,
    /// `None` while a step runs, and after one that did not end.
    machine: Option<Federation>,
    versions: Arc<BTreeMap<ModelVersion, Metadata>>,
    view: watch::Sender<Arc<JobView>>,
    commands: mpsc::Receiver<Command>,
}

/// Starts a job's driver and makes the job visible.
fn start(
    hub: &Arc<Hub>,
    definition: Arc<Definition>,
    machine: Federation,
    versions: Arc<BTreeMap<ModelVersion, Metadata>>,
) {
    let job = definition.spec.job.clone();
    let view = Arc::new(JobView::of(&definition, &machine, &versions));
    let (commands, inbox) = mpsc::channel(COMMANDS);
    let view = watch::Sender::new(view);
    let handle = JobHandle {
        commands,
        view: view.subscribe(),
    };
    let driver = Driver {
        files: PartialFiles::of(&hub.jobs_dir.join(job.as_str())),
        hub: Arc::clone(hub),
        definition,
        machine: Some(machine),
        versions,
        view,
        commands: inbox,
    };
    hub.add_job(job, handle);
    driver.publish();
    hub.spawn(driver.run());
}

impl Driver {
    async fn run(mut self) {
        let mut members: Vec<_> = self.hub.registry().members().into_iter().collect();
        members.retain(|(_, member)| member.connected);
        for (roadside, _) in members {
            self.handle(Command::Hello(roadside)).await;
        }
        self.tick().await;
        let shutdown = self.hub.shutdown.clone();
        loop {
            let now = self.hub.clock.now();
            let due = self.machine.as_ref().and_then(Federation::next_deadline);
            let wake = due.unwrap_or(now + LOOK).min(now + LOOK);
            tokio::select! {
                biased;
                () = shutdown.wait() => return,
                command = self.commands.recv() => match command {
                    Some(command) => self.handle(command).await,
                    None => return,
                },
                () = sleep_until(&self.hub.clock, wake) => self.tick().await,
            }
        }
    }

    async fn tick(&mut self) {
        let outcome = self
            .step(None, super::federation::Federation::on_tick)
            .await;
        self.settle(outcome).await;
    }

    async fn handle(&mut self, command: Command) {
        match command {
            Command::Hello(roadside) => {
                let outcome = self
                    .step(None, move |machine, now| machine.on_hello(now, &roadside))
                    .await;
                self.settle(outcome).await;
            }
            Command::Lost(roadside) => {
                // A unit that is back already: its hello may have overtaken this word.
                let back = self
                    .hub
                    .registry()
                    .members()
                    .get(&roadside)
                    .is_some_and(|m| m.connected);
                if let Some(machine) = self.machine.as_mut().filter(|_| !back) {
                    machine.on_lost(self.hub.clock.now(), &roadside);
                }
            }
            Command::Submit {
                partial,
                bytes,
                reply,
            } => {
                let submitted = Submitted {
                    wire: Arc::new(*partial),
                    bytes,
                };
                let (wire, definition) =
                    (Arc::clone(&submitted.wire), Arc::clone(&self.definition));
                let input = move |machine: &mut Federation, now| {
                    let (partial, fault) = Partial::from_wire(&wire, &definition.rules.schema);
                    if let Some(error) = fault {
                        tracing::warn!(roadside = %wire.roadside, partial = %wire.partial_id, %error, "sum cannot be read");
                    }
                    machine.on_partial(now, partial)
                };
                let outcome = self.step(Some(submitted), input).await;
                if let Some(Some(verdict)) = self.settle(outcome).await {
                    // The peer may have gone; it sends again and gets the same answer.
                    let _ = reply.send(verdict);
                }
            }
            Command::SetPaused { paused, reply } => {
                let outcome = self
                    .step(None, move |machine, now| machine.set_paused(now, paused))
                    .await;
                if self.settle(outcome).await.is_some() {
                    let _ = reply.send(());
                }
            }
            Command::RollBack { version, reply } => {
                let model = match self.stored_model(version).await {
                    Ok(model) => model,
                    Err(error) => {
                        let _ = reply.send(Err(error));
                        return;
                    }
                };
                let outcome = self
                    .step(None, move |machine, now| machine.roll_back(now, model))
                    .await;
                if self.settle(outcome).await.is_some() {
                    let _ = reply.send(Ok(()));
                }
            }
        }
    }

    async fn stored_model(&self, version: ModelVersion) -> Result<Model, RollBackError> {
        let Some(metadata) = self.versions.get(&version) else {
            return Err(RollBackError::Unknown(version.0));
        };
        if !metadata.released {
            return Err(RollBackError::KeptBack(version.0, metadata.gate.clone()));
        }
        let (job, schema) = (&self.definition.spec.job, &self.definition.rules.schema);
        let model = self.hub.versions.model(metadata, job, schema).await;
        model.map_err(|error| RollBackError::Damaged(version.0, error.to_string()))
    }

    /// One input to the machine and everything that follows from it: durable first, then visible.
    async fn step(
        &mut self,
        submitted: Option<Submitted>,
        input: impl FnOnce(&mut Federation, Timestamp) -> Vec<Effect> + Send + 'static,
    ) -> Result<Option<Verdict>, Trouble> {
        let Some(mut machine) = self.machine.take() else {
            return Ok(None);
        };
        let now = self.hub.clock.now();
        let (machine, effects) = tokio::task::spawn_blocking(move || {
            let effects = input(&mut machine, now);
            (machine, effects)
        })
        .await?;
        let made = self
            .keep(now, &machine, &effects, submitted.as_ref())
            .await?;
        if let Some(metadata) = made {
            Arc::make_mut(&mut self.versions).insert(ModelVersion(metadata.version), metadata);
        }
        self.machine = Some(machine);
        if effects.iter().any(changes_state) {
            self.publish();
        }
        let mut verdict = None;
        let job = &self.definition.spec.job;
        for effect in effects {
            if let Effect::Reply {
                verdict: answer, ..
            } = &effect
            {
                verdict = Some(*answer);
            }
            let bytes = submitted.as_ref().map_or(0, |submitted| submitted.bytes);
            tell::tell(job, &self.hub.observer, effect, bytes);
        }
        Ok(verdict)
    }

    /// Makes the effects durable; gives the metadata of a version that was made.
    async fn keep(
        &self,
        now: Timestamp,
        machine: &Federation,
        effects: &[Effect],
        submitted: Option<&Submitted>,
    ) -> Result<Option<Metadata>, Trouble> {
        if !effects.iter().any(changes_state) {
            return Ok(None);
        }
        let spec = &self.definition.spec;
        let job = spec.job.clone();
        let (mut changes, mut made, mut partial, mut old) = (Vec::new(), None, None, None);
        for effect in effects {
            match effect {
                Effect::Version(version) => {
                    let parent = self.versions.get(&version.parent);
                    let schema = &self.definition.rules.schema;
                    let metadata = self
                        .hub
                        .versions
                        .write(spec, schema, version, parent)
                        .await?;
                    changes.push(Change::Version(job.clone(), Box::new(metadata.clone())));
                    made = Some(metadata);
                }
                Effect::Judged(judged) if judged.record => {
                    changes.push(Change::Partial(
                        job.clone(),
                        PartialRecord::new(judged, now),
                    ));
                    let wire = submitted.map(|submitted| Arc::clone(&submitted.wire));
                    partial = wire.map(|wire| (judged.judged_in, judged.verdict, wire));
                }
                Effect::Closed(report) => {
                    changes.push(Change::Round(job.clone(), RoundRecord::from(report)));
                    let round = report
                        .merge_round
                        .0
                        .checked_sub(self.hub.limits.keep_rounds);
                    if let Some(round) = round.map(RoundId) {
                        changes.push(Change::DropPartials(job.clone(), round));
                        old = Some(round);
                    }
                }
                _ => {}
            }
        }
        if let Some(open) = machine.open_round() {
            changes.push(Change::Round(job.clone(), RoundRecord::from(&open)));
        }
        changes.push(Change::Job(
            job.clone(),
            JobRecord::new(&job, machine.progress()),
        ));
        let (store, files) = (Arc::clone(&self.hub.store), self.files.clone());
        let write = move || {
            if let Some((judged_in, verdict, wire)) = partial {
                files.write(judged_in, verdict, &wire)?;
            }
            store.commit(&changes)?;
            if let Some(round) = old {
                files.drop_round(round);
            }
            Ok::<_, Trouble>(())
        };
        tokio::task::spawn_blocking(write).await??;
        Ok(made)
    }

    /// Shows the job as it is now durable.
    fn publish(&self) {
        let Some(machine) = &self.machine else { return };
        let view = Arc::new(JobView::of(&self.definition, machine, &self.versions));
        // The view first: whoever sees the plan fetches its model at once.
        self.view.send_replace(Arc::clone(&view));
        self.hub.plans.send_if_modified(|plans| {
            let changed = plans.get(view.job()) != Some(&view.plan);
            if changed {
                Arc::make_mut(plans).insert(view.job().clone(), view.plan.clone());
            }
            changed
        });
    }

    /// The step's answer; where it could not be made durable, `None` after the machine was rebuilt.
    async fn settle(
        &mut self,
        outcome: Result<Option<Verdict>, Trouble>,
    ) -> Option<Option<Verdict>> {
        let job = self.definition.spec.job.clone();
        match outcome {
            Ok(verdict) => return Some(verdict),
            Err(error) => {
                tracing::error!(%job, %error, "change not kept, going back to what is durable");
            }
        }
        self.machine = None;
        loop {
            tokio::select! {
                biased;
                () = self.hub.shutdown.wait() => return None,
                () = tokio::time::sleep(RETRY) => {}
            }
            match load::machine(&self.hub, &self.definition).await {
                Ok((machine, versions)) => {
                    self.machine = Some(machine);
                    self.versions = versions;
                    self.publish();
                    tracing::info!(%job, "job goes on");
                    return None;
                }
                Err(error) => tracing::warn!(%job, %error, "job cannot be read yet"),
            }
        }
    }
}

/// A partial aggregate as it arrived.
#[derive(Clone, Debug)]
struct Submitted {
    wire: Arc<PartialAggregate>,
    bytes: u64,
}

/// Whether an effect is more than an answer.
fn changes_state(effect: &Effect) -> bool {
    match effect {
        Effect::Reply { .. } => false,
        Effect::Judged(judged) => judged.record,
        _ => true,
    }
}

#[cfg(test)]
mod tests;
