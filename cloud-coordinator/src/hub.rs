//! What the services and the jobs' drivers share within one coordinator.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::config::LimitsConfig;
use crate::driver::{Command, JobView};
use crate::observer::{Event, Observer};
use crate::registry::{ConnectError, ConnectionId, Registry};
use crate::store::{Change, Store, StoreError};
use crate::versions::Versions;
use wayside_domain::ids::{JobId, RoadsideId};
use wayside_host::clock::Clock;
use wayside_host::shutdown::Shutdown;
use wayside_proto::convert::{Hello, JobPlan};

/// Every job's plan, replaced as a whole at each change; slow readers see the latest only.
pub(crate) type Plans = Arc<BTreeMap<JobId, JobPlan>>;

/// How to reach a job's driver.
#[derive(Clone, Debug)]
pub(crate) struct JobHandle {
    /// At most [`COMMANDS`] wait; whoever sends more waits too, and so does the peer behind it.
    pub(crate) commands: mpsc::Sender<Command>,
    pub(crate) view: watch::Receiver<Arc<JobView>>,
}

/// Commands that wait for one job.
pub(crate) const COMMANDS: usize = 64;

/// Where a coordinator keeps things.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) store: Arc<Store>,
    pub(crate) versions: Versions,
    pub(crate) jobs_dir: PathBuf,
}

/// One coordinator's shared parts.
#[derive(Debug)]
pub(crate) struct Hub {
    pub(crate) limits: LimitsConfig,
    pub(crate) clock: Clock,
    pub(crate) store: Arc<Store>,
    pub(crate) versions: Versions,
    /// Folder with one folder a job.
    pub(crate) jobs_dir: PathBuf,
    pub(crate) observer: Observer,
    pub(crate) shutdown: Shutdown,
    pub(crate) plans: watch::Sender<Plans>,
    /// One creation at a time.
    pub(crate) creating: tokio::sync::Mutex<()>,
    pub(crate) tasks: Mutex<JoinSet<()>>,
    registry: Mutex<Registry>,
    jobs: RwLock<BTreeMap<JobId, JobHandle>>,
}

impl Hub {
    pub(crate) fn new(
        limits: LimitsConfig,
        clock: Clock,
        kept: Kept,
        observer: Observer,
        shutdown: Shutdown,
    ) -> Result<Self, StoreError> {
        let Kept {
            store,
            versions,
            jobs_dir,
        } = kept;
        let registry = Registry::restore(limits.max_roadsides, store.roadsides()?);
        Ok(Self {
            limits,
            clock,
            store,
            versions,
            jobs_dir,
            observer,
            shutdown,
            plans: watch::Sender::new(Plans::default()),
            creating: tokio::sync::Mutex::new(()),
            tasks: Mutex::new(JoinSet::new()),
            registry: Mutex::new(registry),
            jobs: RwLock::new(BTreeMap::new()),
        })
    }

    pub(crate) fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn jobs(&self) -> BTreeMap<JobId, JobHandle> {
        self.jobs
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub(crate) fn job(&self, job: &JobId) -> Option<JobHandle> {
        self.jobs
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(job)
            .cloned()
    }

    pub(crate) fn add_job(&self, job: JobId, handle: JobHandle) {
        let mut jobs = self.jobs.write().unwrap_or_else(PoisonError::into_inner);
        jobs.insert(job, handle);
    }

    /// Runs a task that ends by itself after the shutdown.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        while tasks.try_join_next().is_some() {}
        tasks.spawn(task);
    }

    /// Commits off the async threads.
    pub(crate) async fn commit(&self, changes: Vec<Change>) -> Result<(), StoreError> {
        let store = Arc::clone(&self.store);
        let written = tokio::task::spawn_blocking(move || store.commit(&changes)).await;
        written.unwrap_or_else(|error| Err(StoreError::Io(error.to_string())))
    }

    /// Takes in a hello: durable, then every job hears of it.
    pub(crate) async fn connect(self: &Arc<Self>, hello: &Hello) -> Result<Connection, HelloError> {
        let roadside = &hello.roadside;
        let (connection, record) = {
            let mut registry = self.registry();
            let (now, software) = (self.clock.now(), hello.version.clone());
            let id = registry.connect(now, roadside, hello.generation, software)?;
            let connection = Connection {
                hub: Arc::clone(self),
                roadside: roadside.clone(),
                id,
            };
            (connection, registry.record(roadside))
        };
        self.commit(record.into_iter().map(Change::Roadside).collect())
            .await?;
        tracing::info!(%roadside, generation = %hello.generation, software = hello.version, "roadside unit connected");
        self.observer.tell(Event::RoadsideConnected {
            roadside: roadside.clone(),
        });
        for handle in self.jobs().values() {
            // A job that ends in this moment needs no hello.
            let _ = handle.commands.send(Command::Hello(roadside.clone())).await;
        }
        Ok(connection)
    }

    /// The watch stream of a connection ended.
    async fn disconnect(&self, roadside: RoadsideId, connection: ConnectionId) {
        let now = self.clock.now();
        let record = {
            let mut registry = self.registry();
            if !registry.disconnect(now, &roadside, connection) {
                return;
            }
            registry.record(&roadside)
        };
        tracing::info!(%roadside, "roadside unit lost");
        if let Err(error) = self
            .commit(record.into_iter().map(Change::Roadside).collect())
            .await
        {
            tracing::warn!(%roadside, %error, "when the roadside unit was lost could not be kept");
        }
        for handle in self.jobs().values() {
            let _ = handle.commands.send(Command::Lost(roadside.clone())).await;
        }
        self.observer.tell(Event::RoadsideLost { roadside });
    }
}

/// A watch stream that is open; dropping it tells every job that its unit is lost, unless another one replaced it.
#[derive(Debug)]
pub(crate) struct Connection {
    hub: Arc<Hub>,
    roadside: RoadsideId,
    id: ConnectionId,
}

impl Connection {
    /// Whether no later connection of the same unit replaced this one.
    pub(crate) fn is_live(&self) -> bool {
        self.hub.registry().is_live(&self.roadside, self.id)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // Without a runtime the process is ending, and there is nobody left to tell.
        if tokio::runtime::Handle::try_current().is_ok() {
            let (hub, roadside, id) = (Arc::clone(&self.hub), self.roadside.clone(), self.id);
            self.hub
                .spawn(async move { hub.disconnect(roadside, id).await });
        }
    }
}

/// Why a hello was not taken.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HelloError {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Store(#[from] StoreError),
}
