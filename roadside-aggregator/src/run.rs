//! The library's door: broker, links, store and machine together.

use std::time::Duration;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng as _;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use wayside_domain::ids::Generation;
use wayside_domain::time::Timestamp;
use wayside_host::clock::{Clock, sleep_until};
use wayside_host::config::ConfigError;
use wayside_host::exit::{Exit, Failure};
use wayside_host::shutdown::Shutdown;
use wayside_host::state_dir::{StateDir, StateDirError};
use wayside_proto::codec;
use wayside_proto::topics::{Topic, roadside_filters};

use crate::broker::{BrokerError, Embedded};
use crate::config::Config;
use crate::downlink::{self, Inbox, Outgoing};
use crate::engine::{Arrived, Engine, Outside};
use crate::event::{Event, Observer};
use crate::region::Site;
use crate::store::{Disk, StoreError};
use crate::unit::{Input, Settings, Unit};
use crate::uplink::{self, Wanted};

/// Name of this tier in state folders and logs.
pub(crate) const TIER: &str = "roadside-aggregator";
/// Answers of the cloud that wait; the client waits when it is full.
const ANSWERS: usize = 64;
/// Messages that are handled with one flush.
const BATCH: usize = 256;

/// Why a unit ended, or could not start.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A configured value is not allowed.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The state folder cannot be used.
    #[error(transparent)]
    StateDir(#[from] StateDirError),
    /// The state cannot be read or written.
    #[error("{0}: make room on the disk or fix the folder's permissions, then start again")]
    Store(#[from] StoreError),
    /// The embedded broker did not start.
    #[error(transparent)]
    Broker(#[from] BrokerError),
    /// A part of this process ended that should not.
    #[error("internal: {0}")]
    Internal(String),
}

impl RunError {
    /// The code the process ends with.
    pub fn exit_code(&self) -> Exit {
        match self {
            Self::Config(error) => error.exit_code(),
            Self::StateDir(error) => error.exit_code(),
            Self::Store(_) => Exit::StateNotWritable,
            Self::Broker(BrokerError::Bind { .. }) => Exit::AddressInUse,
            Self::Broker(BrokerError::Start(_)) | Self::Internal(_) => Exit::Failed,
        }
    }
}

impl From<RunError> for Failure {
    fn from(error: RunError) -> Self {
        Self::new(error.exit_code(), error)
    }
}

/// Runs a roadside unit until shutdown. May be called many times within one process, each with its own state folder.
pub async fn run(config: Config, shutdown: Shutdown, observer: Observer) -> Result<(), RunError> {
    let checked = config.validate()?;
    let folder = config.state.dir.clone();
    let opened = blocking(move || {
        let state = StateDir::open(&folder, TIER)?;
        let store = Disk::open(state.path())?;
        Ok::<_, RunError>((state, store))
    });
    // Held until the end.
    let (state, store) = opened.await??;
    let broker = match checked.listen {
        Some(listen) => Some(Embedded::start_closed(listen, config.broker.max_packet_bytes).await?),
        None => None,
    };
    let address = match &broker {
        Some(broker) => broker.inner().into(),
        None => checked.broker,
    };
    let clock = Clock::system();
    let max_packet_bytes = usize::try_from(config.broker.max_packet_bytes).unwrap_or(usize::MAX);
    let (outgoing, inbox) = (Outgoing::new(max_packet_bytes), Inbox::new(clock.clone()));
    let (wanted, wants) = watch::channel(Wanted::default());
    let generation = Generation(clock.now().0);
    let settings = Settings {
        site: Site {
            roadside: checked.roadside.clone(),
            chunk_bytes: config.limits.chunk_bytes,
            generation,
        },
        namespace: checked.namespace,
        heartbeat: Duration::from_millis(config.heartbeat.interval_ms),
        misses: config.heartbeat.misses,
        settle: Duration::from_millis(config.limits.settle_ms),
        uploads: checked.uploads,
    };
    let parts = state.path().join("models");
    let shell = Shell {
        clock: clock.clone(),
        outgoing: outgoing.clone(),
        observer: observer.clone(),
        wanted,
    };
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let start = move || Engine::start(settings, Box::new(store), shell, threads);
    let engine = blocking(start).await??;
    let seed = |purpose: &str| {
        let text = format!("{}/{}/{purpose}", checked.roadside, generation.0);
        ChaCha8Rng::from_seed(codec::digest(text.as_bytes()).0)
    };
    let mut tasks = JoinSet::new();
    let (up, subscribed) = watch::channel(false);
    tasks.spawn(downlink::run(
        downlink::Settings {
            broker: address,
            client_id: format!("wayside-roadside-{}", checked.roadside),
            keepalive: Duration::from_secs(config.broker.keepalive_s.into()),
            max_packet_bytes,
            filters: roadside_filters(&checked.roadside),
        },
        outgoing,
        inbox.clone(),
        up,
        seed("downlink"),
        observer.clone(),
        shutdown.clone(),
    ));
    let (answers, answered) = mpsc::channel(ANSWERS);
    tasks.spawn(uplink::run(
        uplink::Settings {
            endpoint: checked.cloud,
            roadside: checked.roadside.clone(),
            generation,
            parts,
        },
        clock.clone(),
        wants,
        answers,
        seed("uplink"),
        observer.clone(),
        shutdown.clone(),
    ));
    // Vehicles are let in once this unit hears them. The broker lives until the end.
    let opening = async {
        let mut broker = broker;
        let mut subscribed = subscribed;
        if let Some(broker) = &mut broker
            && subscribed.wait_for(|up| *up).await.is_ok()
        {
            broker.open();
            tracing::info!(broker = %broker.address(), "embedded broker listens");
            observer.tell(Event::Listening {
                broker: broker.address(),
            });
        }
        std::future::pending::<()>().await;
        drop(broker);
    };
    let result = tokio::select! {
        result = drive(engine, &clock, &inbox, answered, &shutdown) => result,
        () = opening => Ok(()),
        // Both links go on until they are told to end; one that panicked ends the unit, to be started again.
        Some(Err(error)) = tasks.join_next() => Err(RunError::Internal(error.to_string())),
    };
    tasks.shutdown().await;
    drop(state);
    result
}

/// What surrounds the machine in a process: the wall clock and both links.
#[derive(Debug)]
struct Shell {
    clock: Clock,
    outgoing: Outgoing,
    observer: Observer,
    wanted: watch::Sender<Wanted>,
}

impl Outside for Shell {
    fn now(&self) -> Timestamp {
        self.clock.now()
    }

    fn publish(&mut self, topic: Topic, payload: Vec<u8>, retain: bool) {
        self.outgoing.publish(topic.to_string(), payload, retain);
    }

    fn tell(&mut self, event: Event) {
        self.observer.tell(event);
    }

    fn turned(&mut self, unit: &Unit) {
        let models = unit.wanted_models();
        let partials = unit.pending();
        let ids: Vec<_> = partials
            .map(|(job, pending)| (job, pending.partial_id))
            .collect();
        self.wanted.send_if_modified(|wanted| {
            let known = wanted
                .partials
                .iter()
                .map(|(job, pending)| (job, pending.partial_id));
            if wanted.models == models && known.eq(ids.iter().copied()) {
                return false;
            }
            wanted.models = models;
            wanted.partials = unit
                .pending()
                .map(|(j, p)| (j.clone(), p.clone()))
                .collect();
            true
        });
    }
}

/// Feeds the machine until shutdown.
async fn drive(
    mut engine: Engine<Shell>,
    clock: &Clock,
    inbox: &Inbox,
    mut answered: mpsc::Receiver<Input>,
    shutdown: &Shutdown,
) -> Result<(), RunError> {
    let mut told = 0;
    loop {
        let mut arrived: Vec<Arrived> = Vec::new();
        let deadline = engine.next_deadline();
        tokio::select! {
            biased;
            () = shutdown.wait() => break,
            Some(input) = answered.recv() => arrived.push((clock.now(), input)),
            () = inbox.wait() => {}
            () = sleep_until(clock, deadline) => {}
        }
        let messages = inbox.drain(BATCH).into_iter();
        arrived.extend(messages.map(|message| {
            let (topic, payload) = (message.topic, message.payload);
            (message.arrived, Input::Message { topic, payload })
        }));
        engine = blocking(move || engine.turn(arrived).map(|()| engine)).await??;
        let dropped =
            inbox.dropped() + engine.outside().outgoing.dropped() + engine.unit().turned_away();
        if dropped > told * 2 {
            told = dropped;
            tracing::warn!(dropped, "messages dropped since the start for want of room");
        }
    }
    blocking(move || engine.finish())
        .await?
        .map_err(RunError::from)
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, RunError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| RunError::Internal(error.to_string()))
}
