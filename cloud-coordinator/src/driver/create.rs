//! A new job: checked as a whole, copied, version 0 made, durable, then visible.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use super::{JobView, tell};
use crate::federation::{Federation, Unusable};
use crate::hub::Hub;
use crate::job::{self, JobFileError};
use crate::observer::Event;
use crate::store::{Change, JobRecord, StoreError};
use crate::versions::VersionsError;
use wayside_domain::ids::JobId;
use wayside_proto::convert::{JobPlan, Plan, Wire as _};

/// Bytes of an envelope around a plan, rounded up.
const ENVELOPE_BYTES: usize = 4096;

/// Why a job was not created; nothing of it is visible then.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CreateError {
    #[error("job `{0}` exists: choose another name")]
    Exists(JobId),
    #[error("{0} jobs exist, more are not allowed: raise limits.max_jobs")]
    TooMany(usize),
    #[error(transparent)]
    File(#[from] JobFileError),
    #[error(
        "the plan of all jobs would have {got} bytes, at most {limit} fit a message: raise limits.max_message_bytes at the cloud"
    )]
    Plan { got: usize, limit: usize },
    #[error("first version: {0}")]
    Unusable(#[from] Unusable),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Versions(#[from] VersionsError),
    #[error("copy of the job: {0}")]
    Copy(#[from] std::io::Error),
    #[error("creation did not end: {0}")]
    Task(#[from] tokio::task::JoinError),
}

/// Creates a job from the text of a `job.toml` whose relative paths start from `base`.
pub(crate) async fn create_job(
    hub: &Arc<Hub>,
    text: String,
    base: PathBuf,
) -> Result<JobId, CreateError> {
    let (job, _) = job::parse(&text)?;
    let _one_at_a_time = hub.creating.lock().await;
    if hub.job(&job).is_some() {
        return Err(CreateError::Exists(job));
    }
    let (id, shared) = (job.clone(), Arc::clone(hub));
    let folder = hub.jobs_dir.join(job.as_str());
    let make = move || {
        let jobs = shared.store.jobs()?;
        if jobs
            .iter()
            .any(|record| record.read().is_ok_and(|(known, _)| known == id))
        {
            // Stored but not running: its copy is damaged, and making it anew would lose its versions.
            return Err(CreateError::Exists(id));
        }
        if jobs.len() >= shared.limits.max_jobs {
            return Err(CreateError::TooMany(jobs.len()));
        }
        let (definition, sources) = job::read(&text, &base)?;
        job::copy(&folder, &definition, &sources)?;
        let (rules, held_back) = (definition.rules.clone(), definition.held_back.clone());
        let seed = definition.spec.training.seed;
        let (machine, first) = Federation::begin(rules, held_back, seed, shared.clock.now())?;
        Ok((Arc::new(definition), machine, first))
    };
    let (definition, machine, first) = tokio::task::spawn_blocking(make).await??;
    check_plan(
        hub,
        &JobView::of(&definition, &machine, &Arc::default()).plan,
    )?;
    let schema = &definition.rules.schema;
    let metadata = hub
        .versions
        .write(&definition.spec, schema, &first, None)
        .await?;
    let changes = vec![
        Change::Job(job.clone(), JobRecord::new(&job, machine.progress())),
        Change::Version(job.clone(), Box::new(metadata.clone())),
    ];
    hub.commit(changes).await?;
    tracing::info!(%job, parameters = schema.num_parameters(), "job created");
    hub.observer.tell(Event::JobCreated { job: job.clone() });
    tell::version_made(&job, &hub.observer, &first);
    let versions = Arc::new(BTreeMap::from([(first.version, metadata)]));
    super::start(hub, definition, machine, versions);
    Ok(job)
}

/// Refuses a job with which the plan of all jobs would no longer fit a message.
fn check_plan(hub: &Hub, plan: &JobPlan) -> Result<(), CreateError> {
    let mut jobs: Vec<_> = hub.plans.borrow().values().cloned().collect();
    jobs.push(plan.clone());
    let got = Plan { jobs }.encode().len() + ENVELOPE_BYTES;
    let limit = hub.limits.max_message_bytes;
    if got > limit {
        return Err(CreateError::Plan { got, limit });
    }
    Ok(())
}
