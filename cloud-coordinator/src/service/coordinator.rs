//! The roadside units' service: watch plans, submit partial aggregates, fetch models.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, oneshot};
use tonic::{Request, Response, Status, Streaming};

use super::assembly::{Assembly, AssemblyError};
use crate::driver::Command;
use crate::hub::{HelloError, Hub, Plans};
use crate::registry::ConnectError;
use crate::versions::name;
use futures_util::Stream;
use wayside_domain::ids::{ModelVersion, RoadsideId, RoundId, UpdateId};
use wayside_domain::update::{RejectReason, Verdict};
use wayside_proto::convert::{
    ConvertError, Envelope, FetchModel, Hello, ModelPiece, PartialAggregate, PartialPart,
    PartialReceipt, Plan, Wire as _, resource,
};
use wayside_proto::wire;
use wayside_proto::wire::services::coordinator_server::Coordinator;

/// Longest silence between two pieces of a partial aggregate.
const PIECE_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest time from the last piece to the receipt.
const JUDGE_TIMEOUT: Duration = Duration::from_secs(60);

/// What a stream of answers looks like to tonic.
pub(super) type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// The service.
#[derive(Debug)]
pub(super) struct CoordinatorService {
    hub: Arc<Hub>,
    /// Partial aggregates received at the same time; more wait for a place, and flow control holds their senders.
    submits: Semaphore,
}

impl CoordinatorService {
    pub(super) fn new(hub: Arc<Hub>) -> Self {
        let submits = Semaphore::new(hub.limits.max_submits);
        Self { hub, submits }
    }

    /// Receives one partial aggregate. `Err(Ok(..))` is a verdict on pieces that no retry can help.
    async fn receive(
        &self,
        parts: &mut Streaming<wire::PartialPart>,
    ) -> Result<Result<(UpdateId, Vec<u8>), (UpdateId, RejectReason)>, Status> {
        let limit = self.hub.limits.max_partial_bytes as u64;
        let mut assembly = Assembly::default();
        loop {
            let next = tokio::time::timeout(PIECE_TIMEOUT, parts.message()).await;
            let next = next.map_err(|_| Status::deadline_exceeded("no piece for 30 s"))??;
            let Some(part) = next else { break };
            let part = PartialPart::try_from(part).map_err(|error| invalid(&error))?;
            match assembly.push(&part, limit) {
                Ok(()) => {}
                Err(error @ AssemblyError::TooLarge { .. }) => {
                    tracing::warn!(partial = %part.partial_id, %error, "partial aggregate refused");
                    return Ok(Err((part.partial_id, RejectReason::TooLarge)));
                }
                Err(error) => return Err(Status::invalid_argument(error.to_string())),
            }
        }
        let partial_id = assembly.partial_id();
        assembly.finish().map(Ok).map_err(|error| {
            tracing::warn!(partial = ?partial_id, %error, "partial aggregate arrived damaged");
            Status::data_loss(error.to_string())
        })
    }

    /// Hands a partial aggregate to its job and waits for the durable verdict.
    async fn judge(&self, partial: PartialAggregate, bytes: u64) -> Result<PartialReceipt, Status> {
        let partial_id = partial.partial_id;
        let Some(handle) = self.hub.job(&partial.job) else {
            tracing::warn!(job = %partial.job, roadside = %partial.roadside, "partial aggregate for an unknown job");
            return Ok(receipt_without_job(partial_id, RejectReason::UnknownJob));
        };
        let (reply, answer) = oneshot::channel();
        let command = Command::Submit {
            partial: Box::new(partial),
            bytes,
            reply,
        };
        let judged = async {
            handle.commands.send(command).await.ok()?;
            answer.await.ok()
        };
        let judged = tokio::time::timeout(JUDGE_TIMEOUT, judged).await;
        let judged =
            judged.map_err(|_| Status::unavailable("not judged in time, send it again"))?;
        let verdict = judged.ok_or_else(|| Status::unavailable("not kept, send it again"))?;
        let view = handle.view.borrow();
        Ok(PartialReceipt {
            partial_id,
            verdict,
            current_merge_round: view.progress.merge_round,
            current_version: view.progress.released,
        })
    }
}

#[tonic::async_trait]
impl Coordinator for CoordinatorService {
    type WatchStream = Answers<wire::Envelope>;
    type FetchModelStream = Answers<wire::ModelPiece>;

    async fn watch(
        &self,
        request: Request<wire::Envelope>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let envelope = Envelope::try_from(request.into_inner()).map_err(|error| invalid(&error))?;
        let roadside = RoadsideId::new(envelope.source.clone())
            .map_err(|error| Status::invalid_argument(format!("source: {error}")))?;
        let hello: Hello = envelope
            .open(&resource::hello(&roadside))
            .map_err(|error| invalid(&error))?;
        if hello.roadside != roadside {
            return Err(Status::invalid_argument(
                "source and hello name different roadside units",
            ));
        }
        let connection = self.hub.connect(&hello).await.map_err(|error| {
            tracing::warn!(%roadside, %error, "hello refused");
            match error {
                HelloError::Connect(ConnectError::Older) => {
                    Status::already_exists(error.to_string())
                }
                HelloError::Connect(_) => Status::resource_exhausted(error.to_string()),
                HelloError::Store(_) => Status::unavailable("not kept, try again"),
            }
        })?;
        let hub = Arc::clone(&self.hub);
        let mut plans = hub.plans.subscribe();
        let stream = async_stream::stream! {
            let mut number = 0_u64;
            loop {
                let plan = plans.borrow_and_update().clone();
                yield Ok(plan_envelope(&hub, &roadside, &plan, number, &envelope.msg_id));
                number += 1;
                tokio::select! {
                    () = hub.shutdown.wait() => return,
                    changed = plans.changed() => if changed.is_err() { return },
                    () = replaced(&connection) => {
                        yield Err(Status::aborted("a later connection of this roadside unit replaced this one"));
                        return;
                    }
                }
            }
        };
        Ok(Response::new(Box::pin(stream)))
    }

    async fn submit(
        &self,
        request: Request<Streaming<wire::PartialPart>>,
    ) -> Result<Response<wire::PartialReceipt>, Status> {
        let _place = self
            .submits
            .acquire()
            .await
            .map_err(|_| Status::unavailable("shutting down"))?;
        let mut parts = request.into_inner();
        let receipt = match self.receive(&mut parts).await? {
            Err((partial_id, reason)) => receipt_without_job(partial_id, reason),
            Ok((partial_id, bytes)) => {
                let length = bytes.len() as u64;
                let decode = move || {
                    let partial = PartialAggregate::decode(&bytes)?;
                    partial.check_id(&partial_id)?;
                    Ok::<_, ConvertError>(partial)
                };
                let decoded = tokio::task::spawn_blocking(decode).await;
                match decoded.map_err(|error| Status::internal(error.to_string()))? {
                    Ok(partial) => self.judge(partial, length).await?,
                    Err(error) => {
                        tracing::warn!(partial = %partial_id, %error, "partial aggregate refused");
                        receipt_without_job(partial_id, error.reason())
                    }
                }
            }
        };
        Ok(Response::new((&receipt).into()))
    }

    async fn fetch_model(
        &self,
        request: Request<wire::FetchModelRequest>,
    ) -> Result<Response<Self::FetchModelStream>, Status> {
        let fetch = FetchModel::try_from(request.into_inner()).map_err(|error| invalid(&error))?;
        let handle = self
            .hub
            .job(&fetch.job)
            .ok_or_else(|| Status::not_found(format!("no job `{}`", fetch.job)))?;
        let found = handle.view.borrow().by_frame(fetch.digest).cloned();
        let metadata = found.ok_or_else(|| Status::not_found("no model with this digest"))?;
        let frame = self
            .hub
            .versions
            .read(&metadata, &fetch.job, name::FRAME)
            .await;
        let frame = frame.map_err(|error| {
            tracing::error!(job = %fetch.job, version = metadata.version, %error, "model cannot be read");
            Status::data_loss("the model cannot be read")
        })?;
        let offset = usize::try_from(fetch.offset)
            .ok()
            .filter(|offset| *offset <= frame.len());
        let offset = offset
            .ok_or_else(|| Status::out_of_range(format!("the model has {} bytes", frame.len())))?;
        tracing::debug!(job = %fetch.job, roadside = %fetch.roadside, version = metadata.version, offset, "model fetched");
        Ok(Response::new(pieces(
            frame,
            offset,
            self.hub.limits.piece_bytes,
        )))
    }
}

/// Some bytes in pieces, from an offset on; read as fast as the peer takes them.
pub(super) fn pieces(
    bytes: Vec<u8>,
    offset: usize,
    piece_bytes: usize,
) -> Answers<wire::ModelPiece> {
    Box::pin(async_stream::stream! {
        let mut at = offset;
        while at < bytes.len() {
            let end = bytes.len().min(at + piece_bytes);
            let piece = ModelPiece { offset: at as u64, data: bytes[at..end].to_vec() };
            at = end;
            yield Ok((&piece).into());
        }
    })
}

/// Returns once a later connection of the same unit took this one's place.
async fn replaced(connection: &crate::hub::Connection) {
    while connection.is_live() {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

fn plan_envelope(
    hub: &Hub,
    roadside: &RoadsideId,
    plans: &Plans,
    number: u64,
    hello: &str,
) -> wire::Envelope {
    let plan = Plan {
        jobs: plans.values().cloned().collect(),
    };
    let sent = hub.clock.now();
    let envelope = Envelope {
        msg_id: format!("cloud-{}-{number}", sent.0),
        parent_msg_id: if number == 0 {
            hello.to_owned()
        } else {
            String::new()
        },
        sent,
        sync: false,
        source: "cloud".to_owned(),
        group: "user".to_owned(),
        operation: if number == 0 { "response" } else { "update" }.to_owned(),
        resource: resource::plan(roadside),
        content: plan.encode(),
    };
    (&envelope).into()
}

fn receipt_without_job(partial_id: UpdateId, reason: RejectReason) -> PartialReceipt {
    PartialReceipt {
        partial_id,
        verdict: Verdict::Rejected(reason),
        current_merge_round: RoundId(0),
        current_version: ModelVersion(0),
    }
}

fn invalid(error: &ConvertError) -> Status {
    tracing::warn!(%error, "message refused");
    Status::invalid_argument(error.to_string())
}
