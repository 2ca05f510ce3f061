//! Fetching models and submitting partial aggregates over one channel.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tonic::transport::Channel;
use wayside_domain::ids::{Digest, JobId};
use wayside_proto::codec;
use wayside_proto::convert::{FetchModel, ModelPiece, PartialPart, PartialReceipt, split};
use wayside_proto::wire;
use wayside_proto::wire::services::coordinator_client::CoordinatorClient;

use super::{CALL_TIMEOUT, Settings, Trouble, Wanted, within};
use crate::region::Pending;
use crate::unit::Input;

/// Bytes of one piece of a partial aggregate.
const PIECE_BYTES: usize = 256 << 10;
/// The slowest uplink that a submission is waited for on.
const SLOWEST_BYTES_PER_S: usize = 32 << 10;
/// Work that the cloud refused is tried again after this time.
const REFUSED_RETRY: Duration = Duration::from_secs(10);

/// A piece of work: a model or a partial aggregate, by name.
type Name = (JobId, Vec<u8>);

/// Works off what is wanted until the link fails.
pub(super) async fn run(
    settings: &Settings,
    mut client: CoordinatorClient<Channel>,
    mut wanted: watch::Receiver<Wanted>,
    inputs: &mpsc::Sender<Input>,
) -> Trouble {
    // When each piece may be tried again; `None`: done in this session, and the unit will say so soon.
    let mut tried: BTreeMap<Name, Option<Instant>> = BTreeMap::new();
    loop {
        let now = wanted.borrow_and_update().clone();
        let model_name = |job: &JobId, digest: &Digest| (job.clone(), digest.0.to_vec());
        let partial_name = |job: &JobId, p: &Pending| (job.clone(), p.partial_id.0.to_vec());
        let models = now
            .models
            .iter()
            .map(|(job, digest, _)| model_name(job, digest));
        let partials = now
            .partials
            .iter()
            .map(|(job, pending)| partial_name(job, pending));
        let names: Vec<Name> = models.chain(partials).collect();
        tried.retain(|name, _| names.contains(name));
        let due = |tried: &BTreeMap<Name, Option<Instant>>, name: &Name| match tried.get(name) {
            None => true,
            Some(again) => again.is_some_and(|again| again <= Instant::now()),
        };
        for (job, pending) in &now.partials {
            let name = partial_name(job, pending);
            if due(&tried, &name) {
                let done = submit(&mut client, job, pending).await;
                match settle(name, done, inputs, &mut tried).await {
                    Ok(()) => {}
                    Err(trouble) => return trouble,
                }
            }
        }
        for (job, digest, bytes) in &now.models {
            let name = model_name(job, digest);
            if due(&tried, &name) {
                let done = fetch(settings, &mut client, job, *digest, *bytes).await;
                match settle(name, done, inputs, &mut tried).await {
                    Ok(()) => {}
                    Err(trouble) => return trouble,
                }
            }
        }
        let next = tried.values().flatten().min().copied();
        let next = next.unwrap_or_else(|| Instant::now() + REFUSED_RETRY);
        tokio::select! {
            changed = wanted.changed() => if changed.is_err() { return Trouble::Ended },
            () = tokio::time::sleep_until(next) => {}
        }
    }
}

/// Hands over what was done, or notes when to try again.
async fn settle(
    name: Name,
    done: Result<Input, Trouble>,
    inputs: &mpsc::Sender<Input>,
    tried: &mut BTreeMap<Name, Option<Instant>>,
) -> Result<(), Trouble> {
    match done {
        Ok(input) => {
            tried.insert(name, None);
            inputs.send(input).await.map_err(|_| Trouble::Ended)
        }
        Err(Trouble::Refused(reason)) => {
            let retry_s = REFUSED_RETRY.as_secs();
            tracing::error!(job = %name.0, %reason, retry_s, "the cloud refuses");
            tried.insert(name, Some(Instant::now() + REFUSED_RETRY));
            Ok(())
        }
        Err(trouble) => Err(trouble),
    }
}

async fn submit(
    client: &mut CoordinatorClient<Channel>,
    job: &JobId,
    pending: &Pending,
) -> Result<Input, Trouble> {
    let (digest, total) = (codec::digest(&pending.bytes), pending.bytes.len());
    let mut offset = 0;
    let parts: Vec<wire::PartialPart> = split(&pending.bytes, PIECE_BYTES)
        .map(|data| {
            let part = PartialPart {
                partial_id: pending.partial_id,
                total_bytes: total as u64,
                digest,
                offset,
                data: data.to_vec(),
            };
            offset += data.len() as u64;
            wire::PartialPart::from(&part)
        })
        .collect();
    let seconds = u64::try_from(total / SLOWEST_BYTES_PER_S).unwrap_or(u64::MAX);
    let limit = CALL_TIMEOUT.saturating_add(Duration::from_secs(seconds));
    let answer = within(limit, client.submit(tokio_stream::iter(parts))).await?;
    let receipt = PartialReceipt::try_from(answer.into_inner())
        .map_err(|error| Trouble::Refused(error.to_string()))?;
    if receipt.partial_id != pending.partial_id {
        return Err(Trouble::Refused(
            "the receipt is of another partial aggregate".to_owned(),
        ));
    }
    tracing::info!(%job, merge_round = %pending.merge_round, verdict = %receipt.verdict, bytes = total, "partial aggregate answered");
    Ok(Input::PartialAnswer {
        job: job.clone(),
        partial_id: receipt.partial_id,
        verdict: receipt.verdict,
    })
}

/// Fetches a model, going on where an earlier try ended.
async fn fetch(
    settings: &Settings,
    client: &mut CoordinatorClient<Channel>,
    job: &JobId,
    digest: Digest,
    total: u64,
) -> Result<Input, Trouble> {
    let mut part = PartFile::open(&settings.parts, digest, total)?;
    if part.held < total {
        let request = FetchModel {
            roadside: settings.roadside.clone(),
            job: job.clone(),
            digest,
            offset: part.held,
        };
        let call = client.fetch_model(wire::FetchModelRequest::from(&request));
        let mut pieces = within(CALL_TIMEOUT, call).await?.into_inner();
        while let Some(piece) = within(CALL_TIMEOUT, pieces.message()).await? {
            let piece = ModelPiece::try_from(piece).map_err(|e| Trouble::Refused(e.to_string()))?;
            part.append(&piece, total)?;
        }
    }
    let frame = part.finish(total)?;
    if codec::digest(&frame) != digest {
        return Err(Trouble::Refused(format!(
            "model {digest} came with other bytes"
        )));
    }
    Ok(Input::Model { digest, frame })
}

/// A model that is not whole yet. It is only a cache: what it holds is checked against the digest at the end.
struct PartFile {
    path: PathBuf,
    file: File,
    held: u64,
}

impl PartFile {
    /// Opens the part of this model and removes those of others.
    fn open(folder: &Path, digest: Digest, total: u64) -> Result<Self, Trouble> {
        let name = format!("{}.part", digest.to_hex());
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let other = entry.path();
            if other.extension().is_some_and(|kind| kind == "part") && entry.file_name() != *name {
                let _ = fs::remove_file(other);
            }
        }
        let path = folder.join(name);
        let failed =
            |error: std::io::Error| Trouble::Refused(format!("{}: {error}", path.display()));
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .map_err(failed)?;
        let mut held = file.metadata().map_err(failed)?.len();
        if held > total {
            file.set_len(0).map_err(failed)?;
            held = 0;
        }
        Ok(Self { path, file, held })
    }

    fn append(&mut self, piece: &ModelPiece, total: u64) -> Result<(), Trouble> {
        let end = self.held.saturating_add(piece.data.len() as u64);
        if piece.offset != self.held || end > total {
            let (got, expected) = (piece.offset, self.held);
            return Err(Trouble::Refused(format!(
                "piece of a model at {got} up to {end}, expected at {expected} and at most {total}"
            )));
        }
        // Into the page cache, which does not take long; nothing relies on it being durable.
        let failed = |error| Trouble::Refused(format!("{}: {error}", self.path.display()));
        self.file.write_all(&piece.data).map_err(failed)?;
        self.held = end;
        Ok(())
    }

    /// The whole. The part is removed: either it becomes a model, or it is of no use.
    fn finish(self, total: u64) -> Result<Vec<u8>, Trouble> {
        if self.held < total {
            return Err(Trouble::Link(format!(
                "model ended at {} of {total} bytes",
                self.held
            )));
        }
        let read = wayside_host::files::read_bounded(&self.path, total);
        let _ = fs::remove_file(&self.path);
        read.map_err(|error| Trouble::Refused(error.to_string()))
    }
}
