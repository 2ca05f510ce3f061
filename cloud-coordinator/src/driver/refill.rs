//! A store that was lost, or came up older than it was, is refilled from the jobs' copies and the versions' metadata.
//!
//! A damaged store is moved aside and starts empty; sled may also cut off what it cannot read and come up as it was some
//! time ago. The versions tell: there is one that no record knows of, beyond the one whose record a crash may have cost.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::LoadError;
use crate::federation::Progress;
use crate::hub::Hub;
use crate::job;
use crate::store::{Change, JobRecord, StoreError};
use crate::versions::Metadata;
use wayside_domain::ids::{JobId, ModelVersion, RoundId};
use wayside_domain::time::Timestamp;

/// Merge rounds that are skipped: rounds without a result leave no trace in the versions, and a number must never be
/// used twice.
const SKIPPED_ROUNDS: u64 = 1_000;

/// Brings records up to what the versions show. Also finishes the creation of a job that a crash cut short.
pub(super) async fn refill(hub: &Arc<Hub>) -> Result<(), LoadError> {
    let shared = Arc::clone(hub);
    let jobs = tokio::task::spawn_blocking(move || with_copies(&shared)).await??;
    for (job, progress) in jobs {
        let versions = hub.versions.scan(&job).await?;
        if let Some(changes) = changes(hub, &job, progress.as_ref(), versions).await? {
            hub.commit(changes).await?;
        }
    }
    Ok(())
}

/// What has to be written for one job, if anything.
async fn changes(
    hub: &Hub,
    job: &JobId,
    known: Option<&Progress>,
    versions: BTreeMap<ModelVersion, Metadata>,
) -> Result<Option<Vec<Change>>, LoadError> {
    let Some((&newest, last)) = versions.last_key_value() else {
        return Ok(None); // never complete: `job create` writes it anew
    };
    if known.is_some_and(|known| !is_behind(known, &versions)) {
        return Ok(None);
    }
    let folder = hub.jobs_dir.join(job.as_str());
    let definition = match tokio::task::spawn_blocking(move || job::load(&folder)).await? {
        Ok(definition) => definition,
        Err(error) => {
            tracing::warn!(%job, %error, "copy of a job cannot be read");
            return Ok(None);
        }
    };
    let rounds = versions.values().map(|metadata| metadata.completed_rounds);
    let rounds = rounds.chain(known.map(|known| known.merge_round.0)).max();
    let merge_round = match rounds {
        Some(0) | None => RoundId(0),
        Some(round) => RoundId(round.saturating_add(SKIPPED_ROUNDS)),
    };
    let released = versions
        .iter()
        .rev()
        .find(|(_, metadata)| metadata.released);
    let first = versions.values().next();
    let progress = Progress {
        created: first.map_or(hub.clock.now(), |first| Timestamp(first.created_ms)),
        paused: known.is_some_and(|known| known.paused),
        merge_round,
        released: released.map_or(newest, |(version, _)| *version),
        newest,
        exponents: vec![0; definition.rules.schema.tensors().len()],
        norm_bound: definition.rules.max_norm,
        last_merge: Some(Timestamp(last.created_ms)),
    };
    tracing::warn!(%job, released = %progress.released, %merge_round, "records of the job were lost, going on from its versions");
    let mut changes = vec![Change::Job(job.clone(), JobRecord::new(job, &progress))];
    let versions = versions.into_values().map(Box::new);
    changes.extend(versions.map(|metadata| Change::Version(job.clone(), metadata)));
    Ok(Some(changes))
}

/// Whether versions exist that these records do not know of. One that the open merge round made and whose record a crash
/// cost does not count: the round is still open, and makes it again.
fn is_behind(known: &Progress, versions: &BTreeMap<ModelVersion, Metadata>) -> bool {
    let mut beyond = versions
        .iter()
        .filter(|(version, _)| **version > known.newest);
    let made_again = |(version, metadata): (&ModelVersion, &Metadata)| {
        *version == known.newest.next() && metadata.completed_rounds == known.merge_round.0
    };
    !beyond.all(made_again)
}

/// Jobs that have a copy, with what the records say about them. Blocks.
fn with_copies(hub: &Hub) -> Result<Vec<(JobId, Option<Progress>)>, StoreError> {
    let records = hub.store.jobs()?;
    let mut known: BTreeMap<JobId, Progress> = BTreeMap::new();
    for record in records {
        let (job, progress) = record.read()?;
        known.insert(job, progress);
    }
    let Ok(folders) = std::fs::read_dir(&hub.jobs_dir) else {
        return Ok(Vec::new());
    };
    let named = folders.filter_map(|entry| {
        let entry = entry.ok()?;
        let job = JobId::new(entry.file_name().into_string().ok()?).ok()?;
        job::is_copy(&entry.path()).then_some(job)
    });
    Ok(named.map(|job| (job.clone(), known.remove(&job))).collect())
}
