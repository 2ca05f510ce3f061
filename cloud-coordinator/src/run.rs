//! A coordinator from its configuration to its end.

use std::sync::{Arc, PoisonError};

use crate::config::Config;
use crate::driver::start_stored_jobs;
use crate::hub::{Hub, Kept};
use crate::observer::{Event, Observer};
use crate::service;
use crate::store::Store;
use crate::versions::{Versions, VersionsError};
use wayside_host::clock::Clock;
use wayside_host::exit::{Exit, Failure};
use wayside_host::shutdown::Shutdown;
use wayside_host::state_dir::StateDir;

/// Why a coordinator could not run: one line, and the code that a process ends with.
pub type RunError = Failure;

/// The tier's name in the state folder.
const TIER: &str = "cloud-coordinator";

/// Runs a coordinator until the shutdown. Everything it opened is closed when this returns.
///
/// # Errors
/// [`RunError`] names what could not be opened, with a remedy.
pub async fn run(config: Config, shutdown: Shutdown, observer: Observer) -> Result<(), RunError> {
    run_with_clock(config, shutdown, observer, Clock::system()).await
}

/// [`run`] by another clock.
///
/// # Errors
/// As [`run`].
pub async fn run_with_clock(
    config: Config,
    shutdown: Shutdown,
    observer: Observer,
    clock: Clock,
) -> Result<(), RunError> {
    config.validate()?;
    // The port comes first: one that is in use is told before anything is written.
    let (listener, addr) = service::bind(config.server.listen).await?;
    let opened = config.clone();
    let opening = tokio::task::spawn_blocking(move || open(&opened)).await;
    let (state, parts) = opening.map_err(ended)??;
    let (limits, ending) = (config.limits.clone(), shutdown.clone());
    let shared = observer.clone();
    let hub =
        tokio::task::spawn_blocking(move || Hub::new(limits, clock, parts, shared, ending)).await;
    let hub = hub.map_err(ended)?.map_err(damaged)?;
    let hub = Arc::new(hub);
    tracing::info!(address = %addr, state = %state.path().display(), versions = %config.versions_dir().display(), "listening");
    start_stored_jobs(&hub).await.map_err(damaged)?;
    observer.tell(Event::Listening { addr });

    let served = service::serve(Arc::clone(&hub), listener).await;
    shutdown.trigger();
    let mut tasks = std::mem::take(&mut *hub.tasks.lock().unwrap_or_else(PoisonError::into_inner));
    while tasks.join_next().await.is_some() {}
    // The store and then the folder's lock go last, off the async threads.
    let closing = tokio::task::spawn_blocking(move || {
        drop(hub);
        drop(state);
    });
    closing.await.map_err(ended)?;
    tracing::info!(address = %addr, "stopped");
    served
}

/// Opens everything on disk. Blocks.
fn open(config: &Config) -> Result<(StateDir, Kept), Failure> {
    let state = StateDir::open(&config.state.dir, TIER)?;
    let jobs = state.path().join("jobs");
    let unwritable = |error: &dyn std::fmt::Display| {
        let message = format!(
            "state folder {}: {error}: fix its owner and permissions",
            state.path().display()
        );
        Failure::new(Exit::StateNotWritable, message)
    };
    std::fs::create_dir_all(&jobs).map_err(|error| unwritable(&error))?;
    let store = Store::open(&state.path().join("store")).map_err(|error| unwritable(&error))?;
    let versions = Versions::open(&config.versions_dir()).map_err(|error| match &error {
        VersionsError::Folder { .. } => Failure::new(Exit::StateNotWritable, &error),
        _ => Failure::new(Exit::Failed, &error),
    })?;
    let store = Arc::new(store);
    let jobs_dir = jobs;
    Ok((
        state,
        Kept {
            store,
            versions,
            jobs_dir,
        },
    ))
}

fn ended(error: tokio::task::JoinError) -> Failure {
    Failure::new(
        Exit::Failed,
        format!("start or end did not finish: {error}"),
    )
}

fn damaged(error: impl std::fmt::Display) -> Failure {
    Failure::new(Exit::StateDamaged, format!("state cannot be read: {error}"))
}
