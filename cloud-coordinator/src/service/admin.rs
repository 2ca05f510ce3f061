//! The operators' service.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::oneshot;
use tonic::{Request, Response, Status};

use super::coordinator::{Answers, pieces};
use crate::driver::{Command, CreateError, JobView, PartialFiles, RollBackError, create_job};
use crate::federation::RoundReport;
use crate::hub::{Hub, JobHandle};
use crate::store::{PartialRecord, StoreError};
use crate::versions::{Metadata, name};
use wayside_domain::ids::{JobId, ModelVersion, RoundId};
use wayside_host::exit::{Exit, Failure};
use wayside_proto::convert::PartialAggregate;
use wayside_proto::wire;
use wayside_proto::wire::services::admin_server::Admin;

/// Header of an error that says which code the command ends with.
pub(crate) const EXIT_HEADER: &str = "wayside-exit";

/// The service.
#[derive(Debug)]
pub(super) struct AdminService(pub(super) Arc<Hub>);

type Reply<T> = Result<Response<T>, Status>;

impl AdminService {
    /// The job of this name, or the only one if the name is empty.
    fn job(&self, named: &str) -> Result<(JobId, JobHandle), Status> {
        let mut jobs = self.0.jobs();
        if !named.is_empty() {
            let id = JobId::new(named);
            let found = id.ok().and_then(|id| jobs.remove_entry(&id));
            return found
                .ok_or_else(|| refused(Exit::Job, format!("no job `{named}`: see `job list`")));
        }
        let known: Vec<_> = jobs.keys().map(ToString::to_string).collect();
        match (jobs.pop_first(), known.len()) {
            (Some(only), 1) => Ok(only),
            (None, _) => Err(refused(
                Exit::Job,
                "no job yet: create one with `job create`".to_owned(),
            )),
            _ => Err(refused(
                Exit::Job,
                format!("several jobs ({}): name one", known.join(", ")),
            )),
        }
    }

    /// A job and one of its versions.
    fn version(
        &self,
        request: &wire::ModelRequest,
    ) -> Result<(JobHandle, Arc<JobView>, Metadata), Status> {
        let (job, handle) = self.job(&request.job)?;
        let view = Arc::clone(&handle.view.borrow());
        let wanted = if request.latest {
            view.progress.released
        } else {
            ModelVersion(request.version)
        };
        let found = view.versions.get(&wanted).cloned();
        let found = found.ok_or_else(|| {
            let newest = view.progress.newest.0;
            refused(
                Exit::ModelVersion,
                format!(
                    "job `{job}` has no version {}, the newest is {newest}",
                    wanted.0
                ),
            )
        })?;
        Ok((handle, view, found))
    }

    async fn blocking<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Hub) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, Status> {
        let hub = Arc::clone(&self.0);
        let read = tokio::task::spawn_blocking(move || read(&hub)).await;
        let read = read.map_err(|error| Status::internal(error.to_string()))?;
        read.map_err(|error| {
            tracing::error!(%error, "store cannot be read");
            Status::unavailable(error.to_string())
        })
    }
}

#[tonic::async_trait]
impl Admin for AdminService {
    type ExportModelStream = Answers<wire::ModelPiece>;

    async fn create_job(&self, request: Request<wire::CreateJobRequest>) -> Reply<wire::JobInfo> {
        let request = request.into_inner();
        let base = PathBuf::from(request.base_dir);
        if !base.is_absolute() {
            return Err(refused(
                Exit::Usage,
                "base_dir is not an absolute path".to_owned(),
            ));
        }
        let hub = Arc::clone(&self.0);
        // A client that goes away does not leave half a job behind.
        let creation = tokio::spawn(async move { create_job(&hub, request.toml, base).await });
        let created = creation
            .await
            .map_err(|error| Status::internal(error.to_string()))?;
        let job = created.map_err(|error| {
            tracing::warn!(%error, "job not created");
            match error {
                CreateError::File(error) => {
                    let failure = Failure::from(error);
                    refused(failure.exit, failure.message)
                }
                CreateError::Exists(_) | CreateError::TooMany(_) | CreateError::Plan { .. } => {
                    refused(Exit::Job, error.to_string())
                }
                other => Status::unavailable(other.to_string()),
            }
        })?;
        let (_, handle) = self.job(job.as_str())?;
        Ok(Response::new(job_info(&handle.view.borrow())))
    }

    async fn list_jobs(&self, _: Request<wire::ListJobsRequest>) -> Reply<wire::ListJobsReply> {
        let jobs = self.0.jobs();
        let jobs = jobs
            .values()
            .map(|handle| job_info(&handle.view.borrow()))
            .collect();
        Ok(Response::new(wire::ListJobsReply { jobs }))
    }

    async fn show_job(&self, request: Request<wire::JobRequest>) -> Reply<wire::JobInfo> {
        let (_, handle) = self.job(&request.into_inner().job)?;
        Ok(Response::new(job_info(&handle.view.borrow())))
    }

    async fn set_job_paused(
        &self,
        request: Request<wire::SetJobPausedRequest>,
    ) -> Reply<wire::JobInfo> {
        let request = request.into_inner();
        let (_, handle) = self.job(&request.job)?;
        let (reply, done) = oneshot::channel();
        let command = Command::SetPaused {
            paused: request.paused,
            reply,
        };
        let _ = handle.commands.send(command).await;
        done.await
            .map_err(|_| Status::unavailable("not kept, try again"))?;
        Ok(Response::new(job_info(&handle.view.borrow())))
    }

    async fn list_models(
        &self,
        request: Request<wire::JobRequest>,
    ) -> Reply<wire::ListModelsReply> {
        let (_, handle) = self.job(&request.into_inner().job)?;
        let view = handle.view.borrow();
        let models = view
            .versions
            .values()
            .map(|metadata| model_info(&view, metadata))
            .collect();
        Ok(Response::new(wire::ListModelsReply { models }))
    }

    async fn show_model(&self, request: Request<wire::ModelRequest>) -> Reply<wire::ModelInfo> {
        let (_, view, metadata) = self.version(&request.into_inner())?;
        Ok(Response::new(model_info(&view, &metadata)))
    }

    async fn rollback(&self, request: Request<wire::ModelRequest>) -> Reply<wire::ModelInfo> {
        let (handle, _, metadata) = self.version(&request.into_inner())?;
        let (reply, done) = oneshot::channel();
        let version = ModelVersion(metadata.version);
        let _ = handle
            .commands
            .send(Command::RollBack { version, reply })
            .await;
        let outcome = done
            .await
            .map_err(|_| Status::unavailable("not kept, try again"))?;
        outcome.map_err(|error: RollBackError| refused(Exit::ModelVersion, error.to_string()))?;
        let view = handle.view.borrow();
        Ok(Response::new(model_info(&view, &metadata)))
    }

    async fn export_model(
        &self,
        request: Request<wire::ModelRequest>,
    ) -> Reply<Self::ExportModelStream> {
        let (_, view, metadata) = self.version(&request.into_inner())?;
        let file = self
            .0
            .versions
            .read(&metadata, view.job(), name::MODEL)
            .await;
        let file = file.map_err(|error| {
            tracing::error!(job = %view.job(), version = metadata.version, %error, "model cannot be read");
            refused(Exit::StateDamaged, error.to_string())
        })?;
        Ok(Response::new(pieces(file, 0, self.0.limits.piece_bytes)))
    }

    async fn list_rounds(
        &self,
        request: Request<wire::JobRequest>,
    ) -> Reply<wire::ListRoundsReply> {
        let (job, _) = self.job(&request.into_inner().job)?;
        let read = move |hub: &Hub| -> Result<Vec<_>, StoreError> {
            let rounds = hub.store.rounds(&job)?;
            rounds
                .iter()
                .map(|record| Ok(round_info(&RoundReport::try_from(record)?)))
                .collect()
        };
        let rounds = self.blocking(read).await?;
        Ok(Response::new(wire::ListRoundsReply { rounds }))
    }

    async fn explain_round(
        &self,
        request: Request<wire::RoundRequest>,
    ) -> Reply<wire::RoundExplanation> {
        let request = request.into_inner();
        let (job, _) = self.job(&request.job)?;
        let (id, round) = (job.clone(), RoundId(request.merge_round));
        let explanation = self.blocking(move |hub| explain(hub, &id, round)).await?;
        let missing = || {
            refused(
                Exit::Failed,
                format!(
                    "job `{job}` has no merge round {}: see `round list`",
                    round.0
                ),
            )
        };
        explanation.map(Response::new).ok_or_else(missing)
    }
}

/// A refusal that a command turns into an exit code.
fn refused(exit: Exit, message: String) -> Status {
    let mut status = match exit {
        Exit::Job | Exit::ModelVersion | Exit::Failed => Status::failed_precondition(message),
        Exit::StateDamaged => Status::data_loss(message),
        _ => Status::invalid_argument(message),
    };
    status
        .metadata_mut()
        .insert(EXIT_HEADER, u64::from(exit.code()).into());
    status
}

fn job_info(view: &JobView) -> wire::JobInfo {
    wire::JobInfo {
        job: view.job().to_string(),
        state: view.state.to_string(),
        merge_round: view.progress.merge_round.0,
        released_version: view.progress.released.0,
        newest_version: view.progress.newest.0,
        max_versions: view.definition.rules.merges,
        accuracy: view.accuracy.unwrap_or_default(),
        toml: view.definition.toml.clone(),
    }
}

fn model_info(view: &JobView, metadata: &Metadata) -> wire::ModelInfo {
    wire::ModelInfo {
        version: metadata.version,
        parent: metadata.parent,
        merge_round: metadata.completed_rounds,
        created_ms: metadata.created_ms,
        released: metadata.released,
        current: view.progress.released.0 == metadata.version,
        gate: metadata.gate.clone(),
        digest: metadata
            .digest(name::FRAME)
            .map(|digest| digest.0.to_vec())
            .unwrap_or_default(),
        num_examples: metadata.num_examples,
        contributors: metadata.contributors,
        evaluated: metadata.val_accuracy.is_some(),
        accuracy: metadata.val_accuracy.unwrap_or_default(),
        macro_recall: metadata.macro_recall.unwrap_or_default(),
        loss: metadata.loss.unwrap_or_default(),
        metadata_uri: metadata.uri(name::METADATA).to_owned(),
        model_uri: metadata.uri(name::MODEL).to_owned(),
        exact: metadata.exact,
    }
}

fn round_info(report: &RoundReport) -> wire::RoundInfo {
    wire::RoundInfo {
        merge_round: report.merge_round.0,
        base_version: report.base_version.0,
        opened_ms: report.opened.0,
        closed_ms: report.closed.map_or(0, |(at, _, _)| at.0),
        new_version: report
            .closed
            .and_then(|(_, _, made)| made)
            .map_or(0, |version| version.0),
        roadside_units: u32::try_from(report.cohort.len()).unwrap_or(u32::MAX),
        accepted: report.tally.accepted,
        refused: report.tally.refused,
        num_examples: report.num_examples(),
        up_bytes: report.tally.up_bytes,
        down_bytes: report.tally.down_bytes,
    }
}

/// Who took part in a merge round and how it went; `None` if there was no such round. Blocks.
fn explain(
    hub: &Hub,
    job: &JobId,
    round: RoundId,
) -> Result<Option<wire::RoundExplanation>, StoreError> {
    let Some(record) = hub.store.round(job, round)? else {
        return Ok(None);
    };
    let report = RoundReport::try_from(&record)?;
    let files = PartialFiles::of(&hub.jobs_dir.join(job.as_str()));
    let mut records = hub.store.partials(job, round)?;
    records.sort_by(|a, b| (&a.roadside, a.received_ms).cmp(&(&b.roadside, b.received_ms)));
    let mut roadsides = Vec::with_capacity(records.len());
    let mut silent: BTreeSet<_> = report.cohort.iter().map(ToString::to_string).collect();
    for record in records {
        silent.remove(&record.roadside);
        let (judged_in, id, _) = record.receipt()?;
        roadsides.push(explain_partial(
            &record,
            files.read(judged_in, id).as_ref(),
        )?);
    }
    roadsides.extend(
        silent
            .into_iter()
            .map(|roadside| wire::RoadsideExplanation {
                roadside,
                ..Default::default()
            }),
    );
    Ok(Some(wire::RoundExplanation {
        round: Some(round_info(&report)),
        roadsides,
    }))
}

fn explain_partial(
    record: &PartialRecord,
    content: Option<&PartialAggregate>,
) -> Result<wire::RoadsideExplanation, StoreError> {
    let (_, _, verdict) = record.receipt()?;
    let rounds = content.map(|content| content.rounds.iter().map(Into::into).collect());
    let contributions =
        content.map(|content| content.contributions.iter().map(Into::into).collect());
    Ok(wire::RoadsideExplanation {
        roadside: record.roadside.clone(),
        verdict: Some(verdict.into()),
        num_examples: record.num_examples,
        rounds: rounds.unwrap_or_default(),
        contributions: contributions.unwrap_or_default(),
    })
}
