//! The gRPC client: the stream of plans, models, and partial aggregates.
//!
//! What is wanted stands in a [`Wanted`] that the unit changes; this task works it off whenever the cloud is there, and
//! a reconnect loses nothing. The channel is made anew after each failure of the link, with backoff; a cloud that is
//! not there yet is waited for.

mod work;

use std::path::PathBuf;
use std::time::Duration;

use rand_chacha::ChaCha8Rng;
use tokio::sync::{mpsc, watch};
use tonic::transport::{Channel, Endpoint};
use wayside_domain::backoff::Backoff;
use wayside_domain::ids::{Digest, Generation, JobId, RoadsideId};
use wayside_host::clock::Clock;
use wayside_host::shutdown::Shutdown;
use wayside_proto::convert::{Envelope, Hello, Plan, Wire as _, resource};
use wayside_proto::wire::services::coordinator_client::CoordinatorClient;

use crate::event::{Event, Observer};
use crate::region::Pending;
use crate::unit::Input;

/// Largest gRPC message, in and out; models and partial aggregates travel in pieces.
const MAX_MESSAGE_BYTES: usize = 64 << 20;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Everything but the stream of plans answers within this time, or is asked again.
const CALL_TIMEOUT: Duration = Duration::from_secs(20);
const PING_EVERY: Duration = Duration::from_secs(20);
const PING_TIMEOUT: Duration = Duration::from_secs(10);
const FIRST_RETRY: Duration = Duration::from_millis(500);
const LAST_RETRY: Duration = Duration::from_secs(20);
/// A link that held for this long is sound.
const SETTLED: Duration = Duration::from_secs(60);

/// What the unit wants of the cloud now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Models that are not here: job, digest, length.
    pub models: Vec<(JobId, Digest, u64)>,
    /// Partial aggregates that wait for an answer.
    pub partials: Vec<(JobId, Pending)>,
}

/// What the client is told once.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where the cloud is.
    pub endpoint: Endpoint,
    /// Who asks.
    pub roadside: RoadsideId,
    /// Which start of it.
    pub generation: Generation,
    /// Where models are put while they are not whole.
    pub parts: PathBuf,
}

/// Why a session ended, or a piece of work could not be done.
#[derive(Debug, thiserror::Error)]
enum Trouble {
    /// The link: the channel is made anew.
    #[error("{0}")]
    Link(String),
    /// The cloud refuses this; it is asked again much later.
    #[error("{0}")]
    Refused(String),
    /// Nobody listens any more.
    #[error("ended")]
    Ended,
}

impl Trouble {
    fn of(status: &tonic::Status) -> Self {
        let text = format!("{:?}: {}", status.code(), status.message());
        match status.code() {
            tonic::Code::InvalidArgument
            | tonic::Code::NotFound
            | tonic::Code::AlreadyExists
            | tonic::Code::PermissionDenied
            | tonic::Code::ResourceExhausted
            | tonic::Code::FailedPrecondition
            | tonic::Code::OutOfRange
            | tonic::Code::Unimplemented
            | tonic::Code::DataLoss
            | tonic::Code::Unauthenticated => Self::Refused(text),
            _ => Self::Link(text),
        }
    }
}

/// Waits for one call.
async fn within<T>(
    limit: Duration,
    call: impl Future<Output = Result<T, tonic::Status>>,
) -> Result<T, Trouble> {
    match tokio::time::timeout(limit, call).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(status)) => Err(Trouble::of(&status)),
        Err(_) => Err(Trouble::Link(format!(
            "no answer within {} s",
            limit.as_secs()
        ))),
    }
}

/// Keeps the link up until shutdown. Answers go to `inputs`; when that queue is full, this task waits.
pub async fn run(
    settings: Settings,
    clock: Clock,
    wanted: watch::Receiver<Wanted>,
    inputs: mpsc::Sender<Input>,
    mut rng: ChaCha8Rng,
    observer: Observer,
    shutdown: Shutdown,
) {
    let mut backoff = Backoff::new(FIRST_RETRY, LAST_RETRY, SETTLED);
    loop {
        let begun = tokio::time::Instant::now();
        let mut connected = false;
        let trouble = tokio::select! {
            biased; // a cloud that ends together with this unit is no trouble
            () = shutdown.wait() => return,
            trouble = session(&settings, &clock, &wanted, &inputs, &observer, &mut connected) => trouble,
        };
        if matches!(trouble, Trouble::Ended) {
            return;
        }
        if connected {
            backoff.held(begun.elapsed());
        }
        let reason = trouble.to_string();
        let wait = backoff.next_wait(&mut rng);
        let (failures, wait_ms) = (backoff.failures(), wait.as_millis());
        if failures <= 1 || connected || failures.is_power_of_two() {
            tracing::warn!(%reason, failures, wait_ms, "no link to the cloud");
        }
        if failures <= 1 || connected {
            observer.tell(Event::CloudLost { reason });
        }
        tokio::select! {
            () = shutdown.wait() => return,
            () = tokio::time::sleep(wait) => {}
        }
    }
}

async fn session(
    settings: &Settings,
    clock: &Clock,
    wanted: &watch::Receiver<Wanted>,
    inputs: &mpsc::Sender<Input>,
    observer: &Observer,
    connected: &mut bool,
) -> Trouble {
    let endpoint = settings
        .endpoint
        .clone()
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_TIMEOUT)
        .keep_alive_while_idle(true);
    let channel = match tokio::time::timeout(CONNECT_TIMEOUT * 2, endpoint.connect()).await {
        Ok(Ok(channel)) => channel,
        Ok(Err(error)) => return Trouble::Link(chain(&error)),
        Err(_) => return Trouble::Link("connecting took too long".to_owned()),
    };
    let client = CoordinatorClient::new(channel)
        .max_decoding_message_size(MAX_MESSAGE_BYTES)
        .max_encoding_message_size(MAX_MESSAGE_BYTES);
    let mut plans = match watch_plans(settings, clock, client.clone()).await {
        Ok(plans) => plans,
        Err(trouble) => return trouble,
    };
    *connected = true;
    tracing::info!(cloud = %settings.endpoint.uri(), "connected to the cloud");
    observer.tell(Event::CloudConnected);
    let reading = async {
        loop {
            let envelope = match plans.message().await {
                Ok(Some(envelope)) => envelope,
                Ok(None) => return Trouble::Link("the cloud ended the stream of plans".to_owned()),
                Err(status) => return Trouble::of(&status),
            };
            let read = Envelope::try_from(envelope)
                .and_then(|envelope| envelope.open::<Plan>(&resource::plan(&settings.roadside)));
            match read {
                Ok(plan) => {
                    if inputs.send(Input::Plan(plan)).await.is_err() {
                        return Trouble::Ended;
                    }
                }
                Err(error) => tracing::error!(%error, "plan cannot be read and is passed over"),
            }
        }
    };
    tokio::select! {
        trouble = reading => trouble,
        trouble = work::run(settings, client, wanted.clone(), inputs) => trouble,
    }
}

async fn watch_plans(
    settings: &Settings,
    clock: &Clock,
    mut client: CoordinatorClient<Channel>,
) -> Result<tonic::Streaming<wayside_proto::wire::Envelope>, Trouble> {
    let hello = Hello {
        roadside: settings.roadside.clone(),
        generation: settings.generation,
        version: env!("CARGO_PKG_VERSION").to_owned(),
    };
    let now = clock.now();
    let envelope = Envelope {
        msg_id: format!("{}-{}", settings.roadside, now.0),
        sent: now,
        sync: true,
        source: settings.roadside.to_string(),
        group: "user".to_owned(),
        operation: "get".to_owned(),
        resource: resource::hello(&settings.roadside),
        content: hello.encode(),
        ..Envelope::default()
    };
    let call = client.watch(wayside_proto::wire::Envelope::from(&envelope));
    Ok(within(CALL_TIMEOUT, call).await?.into_inner())
}

/// An error with its sources, in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}
