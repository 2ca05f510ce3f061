//! Starts the three tiers in this process and stops them again.

use super::tally::Tally;
use anyhow::{Context, anyhow};
use cloud_coordinator::admin_client::{AdminClient, Which};
use edge_client::backbone::Backbone;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use wayside_host::config;
use wayside_host::shutdown::Shutdown;

/// Time that the tiers have to end after they were told to.
const STOP_WITHIN: Duration = Duration::from_millis(1500);
/// Time that a tier has to say where it listens.
const START_WITHIN: Duration = Duration::from_secs(20);
/// Heartbeats of the demo's vehicles.
const HEARTBEAT_MS: u64 = 2000;

/// What is to be started.
#[derive(Debug)]
pub(super) struct FleetPlan<'a> {
    /// Where each member has its state.
    pub work: &'a Path,
    /// The job.
    pub job_file: &'a Path,
    /// Pictures of each vehicle.
    pub pictures: &'a [PathBuf],
    /// How many roadside units.
    pub roadside_units: usize,
    /// The backbone's weights file.
    pub weights: &'a Path,
    /// The same, loaded once for all vehicles.
    pub backbone: Arc<Backbone>,
}

/// Heads as the cloud released them, flat.
#[derive(Debug)]
pub(super) struct Models {
    /// Version 0.
    pub initial: Vec<f32>,
    /// The last released version.
    pub released: Vec<f32>,
}

/// The running tiers.
#[derive(Debug)]
pub(super) struct Fleet {
    members: JoinSet<anyhow::Result<()>>,
    shutdown: Shutdown,
    admin: AdminClient,
}

impl Fleet {
    /// Starts a cloud, creates the job, starts roadside units with their brokers and then vehicles.
    pub(super) async fn start(
        plan: FleetPlan<'_>,
        shutdown: &Shutdown,
        tally: &Arc<Mutex<Tally>>,
    ) -> anyhow::Result<Self> {
        let mut members = JoinSet::new();
        let cloud = start_cloud(&plan, &mut members, shutdown, tally).await?;
        let mut admin = AdminClient::connect(&format!("http://{cloud}")).await?;
        let job = std::fs::read_to_string(plan.job_file)?;
        let folder =
            std::path::absolute(plan.job_file.parent().context("the job lies in a folder")?)?;
        admin.create_job(job, &folder).await?;
        let mut brokers = Vec::new();
        for number in 0..plan.roadside_units {
            brokers
                .push(start_roadside(&plan, number, cloud, &mut members, shutdown, tally).await?);
        }
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let resources = edge_client::Resources {
            backbone: Some(Arc::clone(&plan.backbone)),
            compute: Some(Arc::new(Semaphore::new(cores))),
        };
        for number in 0..plan.pictures.len() {
            let broker = brokers[number % brokers.len()];
            start_vehicle(
                &plan,
                number,
                broker,
                &resources,
                &mut members,
                shutdown,
                tally,
            )?;
        }
        Ok(Self {
            members,
            shutdown: shutdown.clone(),
            admin,
        })
    }

    /// Waits until a member ends, which none should; why it did.
    pub(super) async fn failed(&mut self) -> anyhow::Error {
        match self.members.join_next().await {
            Some(Ok(Ok(()))) => anyhow!("a tier ended early"),
            Some(Ok(Err(error))) => error,
            Some(Err(error)) => anyhow!("a tier ended early: {error}"),
            None => anyhow!("no tier runs"),
        }
    }

    /// Fetches the initial and the released head from the cloud.
    pub(super) async fn models(&mut self) -> anyhow::Result<Models> {
        let initial = self.admin.export_model("demo", Which::Version(0)).await?;
        let released = self.admin.export_model("demo", Which::Latest).await?;
        Ok(Models {
            initial: head_parameters(&initial)?,
            released: head_parameters(&released)?,
        })
    }

    /// Tells all members to end and waits a moment for them.
    pub(super) async fn stop(mut self) {
        self.shutdown.trigger();
        let all = async { while self.members.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(STOP_WITHIN, all).await;
    }
}

/// `head-weight`, then `head-bias`, as one flat vector.
fn head_parameters(file: &[u8]) -> anyhow::Result<Vec<f32>> {
    let tensors = safetensors::SafeTensors::deserialize(file)?;
    let mut parameters = Vec::new();
    for name in ["head-weight", "head-bias"] {
        let tensor = tensors
            .tensor(name)
            .with_context(|| format!("the exported model has no {name}"))?;
        let values = tensor.data().chunks_exact(4);
        parameters.extend(
            values.map(|bytes| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])),
        );
    }
    Ok(parameters)
}

fn update(tally: &Mutex<Tally>, change: impl FnOnce(&mut Tally)) {
    change(&mut tally.lock().unwrap_or_else(PoisonError::into_inner));
}

async fn start_cloud(
    plan: &FleetPlan<'_>,
    members: &mut JoinSet<anyhow::Result<()>>,
    shutdown: &Shutdown,
    tally: &Arc<Mutex<Tally>>,
) -> anyhow::Result<SocketAddr> {
    let text = format!(
        "[server]\nlisten = \"127.0.0.1:0\"\n[state]\ndir = {}\n",
        quoted(&plan.work.join("cloud").join("state"))
    );
    let config = config::parse(Path::new("the demo's cloud"), &text)?;
    let (listening, address) = mpsc::channel(1);
    let tally = Arc::clone(tally);
    let observer = cloud_coordinator::Observer::new(move |event| {
        if let cloud_coordinator::Event::Listening { addr } = event {
            let _ = listening.try_send(addr);
        }
        update(&tally, |tally| tally.on_cloud(event));
    });
    let run = cloud_coordinator::run(config, shutdown.clone(), observer);
    members.spawn(async move { run.await.context("cloud") });
    started("cloud", members, address).await
}

async fn start_roadside(
    plan: &FleetPlan<'_>,
    number: usize,
    cloud: SocketAddr,
    members: &mut JoinSet<anyhow::Result<()>>,
    shutdown: &Shutdown,
    tally: &Arc<Mutex<Tally>>,
) -> anyhow::Result<SocketAddr> {
    let name = roadside_name(number);
    let text = format!(
        "[roadside]\nid = \"{name}\"\n[broker]\nlisten = \"127.0.0.1:0\"\n[cloud]\naddress = \"http://{cloud}\"\n\
         [state]\ndir = {}\n[heartbeat]\ninterval_ms = {HEARTBEAT_MS}\n",
        quoted(&plan.work.join(&name).join("state"))
    );
    let config = config::parse(Path::new("the demo's roadside unit"), &text)?;
    let (listening, address) = mpsc::channel(1);
    let tally = Arc::clone(tally);
    let observer = roadside_aggregator::Observer::new(move |event| {
        if let roadside_aggregator::Event::Listening { broker } = event {
            let _ = listening.try_send(broker);
        }
        update(&tally, |tally| tally.on_roadside(number, event));
    });
    let run = roadside_aggregator::run(config, shutdown.clone(), observer);
    let label = name.clone();
    members.spawn(async move { run.await.context(label) });
    started(&name, members, address).await
}

fn start_vehicle(
    plan: &FleetPlan<'_>,
    number: usize,
    broker: SocketAddr,
    resources: &edge_client::Resources,
    members: &mut JoinSet<anyhow::Result<()>>,
    shutdown: &Shutdown,
    tally: &Arc<Mutex<Tally>>,
) -> anyhow::Result<()> {
    let pictures = &plan.pictures[number];
    let name = format!("v{:02}", number + 1);
    let text = format!(
        "[vehicle]\nid = \"{name}\"\n[roadside]\nid = \"{}\"\naddress = \"{broker}\"\n[data]\npictures = {}\n\
         [model]\nweights = {}\n[state]\ndir = {}\n[heartbeat]\ninterval_ms = {HEARTBEAT_MS}\n\
         [link]\nreconnect_ms = 500\nreconnect_max_ms = 2000\n[training]\nthreads = 1\nnice = 0\n",
        roadside_name(number % plan.roadside_units),
        quoted(pictures),
        quoted(plan.weights),
        quoted(&pictures.with_file_name("state")),
    );
    let config = config::parse(Path::new("the demo's vehicle"), &text)?;
    let tally = Arc::clone(tally);
    let observer = edge_client::Observer::new(move |event| {
        update(&tally, |tally| tally.on_vehicle(number, event));
    });
    let run = edge_client::run_with(config, resources.clone(), shutdown.clone(), observer);
    members.spawn(async move { run.await.context(name) });
    Ok(())
}

/// A path as a TOML string; JSON's strings are a part of TOML's.
fn quoted(path: &Path) -> String {
    serde_json::Value::from(path.to_string_lossy()).to_string()
}

fn roadside_name(number: usize) -> String {
    format!("rsu-{}", number + 1)
}

/// Waits until a tier says where it listens, or ends with an error.
async fn started(
    name: &str,
    members: &mut JoinSet<anyhow::Result<()>>,
    mut address: mpsc::Receiver<SocketAddr>,
) -> anyhow::Result<SocketAddr> {
    tokio::select! {
        Some(address) = address.recv() => Ok(address),
        Some(ended) = members.join_next() => {
            ended.unwrap_or_else(|error| Err(error.into()))?;
            Err(anyhow!("{name} ended early"))
        }
        () = tokio::time::sleep(START_WITHIN) => Err(anyhow!("{name} does not say where it listens")),
    }
}
