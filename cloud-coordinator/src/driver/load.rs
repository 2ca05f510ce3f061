//! Jobs from what is durable: at the start, and after a write that failed.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{PartialFiles, refill};
use crate::federation::{Federation, KEEP_RECEIPTS, Model, Partial, Progress, RoundReport, Stored};
use crate::hub::Hub;
use crate::job::{self, Definition, JobFileError};
use crate::store::StoreError;
use crate::versions::{Metadata, VersionsError};
use wayside_domain::ids::{JobId, ModelVersion, RoundId, UpdateId};
use wayside_domain::update::Verdict;

/// Why a job cannot be started from what is durable.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoadError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Definition(#[from] JobFileError),
    #[error(transparent)]
    Versions(#[from] VersionsError),
    #[error("no released version can be read")]
    NoVersion,
    #[error("reading did not end: {0}")]
    Task(#[from] tokio::task::JoinError),
}

/// Versions of a job by number.
type VersionMap = Arc<BTreeMap<ModelVersion, Metadata>>;

/// Starts every stored job. One that cannot be started is named in the log, and the others run.
pub(crate) async fn start_stored_jobs(hub: &Arc<Hub>) -> Result<(), LoadError> {
    refill::refill(hub).await?;
    let store = Arc::clone(&hub.store);
    let records = tokio::task::spawn_blocking(move || store.jobs()).await??;
    for record in records {
        let (job, _) = record.read()?;
        if let Err(error) = start_one(hub, &job).await {
            tracing::error!(%job, %error, "job cannot be started");
        }
    }
    Ok(())
}

async fn start_one(hub: &Arc<Hub>, job: &JobId) -> Result<(), LoadError> {
    let folder = hub.jobs_dir.join(job.as_str());
    let definition = tokio::task::spawn_blocking(move || job::load(&folder)).await??;
    let definition = Arc::new(definition);
    let (machine, versions) = machine(hub, &definition).await?;
    let progress = machine.progress();
    tracing::info!(
        %job,
        state = %machine.state(),
        merge_round = %progress.merge_round,
        released = %progress.released,
        "job loaded"
    );
    super::start(hub, definition, machine, versions);
    Ok(())
}

/// A job's machine as it was when the last change became durable.
pub(super) async fn machine(
    hub: &Arc<Hub>,
    definition: &Arc<Definition>,
) -> Result<(Federation, VersionMap), LoadError> {
    let job = definition.spec.job.clone();
    let (shared, about) = (Arc::clone(hub), Arc::clone(definition));
    let records = tokio::task::spawn_blocking(move || Records::read(&shared, &about));
    let Records {
        mut progress,
        mut open,
        counted,
        receipts,
        versions,
    } = records.await??;
    let model = newest_usable(hub, definition, &progress, &versions).await?;
    if model.version != progress.released {
        tracing::error!(%job, wanted = %progress.released, got = %model.version, "released version damaged, going on from an earlier one");
        progress.released = model.version;
        open = None;
    }
    let stored = Stored {
        progress,
        model,
        open,
        counted,
        receipts,
        members: hub.registry().members(),
    };
    let (rules, held_back) = (definition.rules.clone(), definition.held_back.clone());
    let machine = Federation::restore(rules, held_back, stored, hub.clock.now());
    Ok((machine, Arc::new(versions)))
}

/// The released version, or the newest earlier one that passed the gate and can be read.
async fn newest_usable(
    hub: &Hub,
    definition: &Definition,
    progress: &Progress,
    versions: &BTreeMap<ModelVersion, Metadata>,
) -> Result<Model, LoadError> {
    let (job, schema) = (&definition.spec.job, &definition.rules.schema);
    let candidates = versions.range(..=progress.released).rev();
    for (version, metadata) in candidates.filter(|(_, metadata)| metadata.released) {
        match hub.versions.model(metadata, job, schema).await {
            Ok(model) => return Ok(model),
            Err(error) => tracing::warn!(%job, %version, %error, "version cannot be read"),
        }
    }
    Err(LoadError::NoVersion)
}

/// A job's records, read and checked.
struct Records {
    progress: Progress,
    open: Option<RoundReport>,
    counted: Vec<Partial>,
    receipts: Vec<(RoundId, UpdateId, Verdict)>,
    versions: BTreeMap<ModelVersion, Metadata>,
}

impl Records {
    /// Blocks.
    fn read(hub: &Hub, definition: &Definition) -> Result<Self, LoadError> {
        let (store, job) = (&hub.store, &definition.spec.job);
        let mut found = None;
        for record in store.jobs()? {
            let (id, progress) = record.read()?;
            if id == *job {
                found = Some(progress);
            }
        }
        let mut progress = found.ok_or(StoreError::Record { kind: "job" })?;
        let tensors = definition.rules.schema.tensors().len();
        if progress.exponents.len() != tensors {
            progress.exponents = vec![0; tensors];
        }
        let report = store.round(job, progress.merge_round)?;
        let report = report
            .map(|record| RoundReport::try_from(&record))
            .transpose()?;
        let open = report.filter(|report| report.closed.is_none());

        let last = progress.merge_round.0;
        let mut receipts = Vec::new();
        for round in last.saturating_sub(KEEP_RECEIPTS)..=last {
            for record in store.partials(job, RoundId(round))? {
                receipts.push(record.receipt()?);
            }
        }
        let files = PartialFiles::of(&hub.jobs_dir.join(job.as_str()));
        let mut counted = Vec::new();
        let accepted = open.iter().flat_map(|report| report.accepted.values());
        for accepted in accepted {
            let Some(wire) = files.read(progress.merge_round, accepted.update_id) else {
                tracing::warn!(%job, partial = %accepted.update_id, "accepted partial aggregate lost");
                continue;
            };
            counted.push(Partial::from_wire(&wire, &definition.rules.schema).0);
        }
        let versions = store.versions(job)?.into_iter();
        let versions = versions
            .map(|metadata| (ModelVersion(metadata.version), metadata))
            .collect();
        Ok(Self {
            progress,
            open,
            counted,
            receipts,
            versions,
        })
    }
}
