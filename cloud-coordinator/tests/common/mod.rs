//! A coordinator within the test's process, and a roadside unit that speaks to it over real gRPC.

#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    reason = "each test binary uses its part, and a helper of tests may fail where it stands"
)]

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cloud_coordinator::admin_client::AdminClient;
use cloud_coordinator::{Config, Event, Observer, RunError, run_with_clock};
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use tokio::task::JoinHandle;
use tonic::Streaming;
use tonic::transport::Channel;
use wayside_domain::aggregate::WeightedSum;
use wayside_domain::ids::{Generation, RoadsideId, RoundId, UpdateId, VehicleId};
use wayside_domain::update::Verdict;
use wayside_host::clock::Clock;
use wayside_host::shutdown::Shutdown;
use wayside_proto::codec;
use wayside_proto::convert::{
    Contribution, Envelope, FetchModel, Hello, JobPlan, PartialAggregate, PartialPart,
    PartialReceipt, Plan, UpdateMetrics, Wire as _, resource,
};
use wayside_proto::wire;
use wayside_proto::wire::services::coordinator_client::CoordinatorClient;

pub const LIMIT: Duration = Duration::from_secs(20);

/// A running coordinator.
pub struct Cloud {
    pub address: String,
    pub events: Arc<Mutex<Vec<Event>>>,
    shutdown: Shutdown,
    task: JoinHandle<Result<(), RunError>>,
}

pub fn config(dir: &Path) -> Config {
    let mut config = Config::default();
    config.server.listen = "127.0.0.1:0".parse().unwrap();
    config.state.dir = dir.join("state");
    config
}

impl Cloud {
    pub async fn start(dir: &Path) -> Self {
        Self::start_with(config(dir), Clock::system()).await
    }

    pub async fn start_with(config: Config, clock: Clock) -> Self {
        let events = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&events);
        let observer = Observer::new(move |event| seen.lock().unwrap().push(event));
        let shutdown = Shutdown::new();
        let task = tokio::spawn(run_with_clock(config, shutdown.clone(), observer, clock));
        let mut cloud = Self {
            address: String::new(),
            events,
            shutdown,
            task,
        };
        let listening = |event: &Event| match event {
            Event::Listening { addr } => Some(format!("http://{addr}")),
            _ => None,
        };
        cloud.address = cloud.wait(listening).await;
        cloud
    }

    /// Waits for an event; panics after [`LIMIT`] or when the coordinator ended.
    pub async fn wait<T>(&self, find: impl Fn(&Event) -> Option<T>) -> T {
        let looking = async {
            loop {
                if let Some(found) = self.events.lock().unwrap().iter().find_map(&find) {
                    return found;
                }
                assert!(!self.task.is_finished(), "coordinator ended");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(LIMIT, looking)
            .await
            .expect("event in time")
    }

    pub async fn admin(&self) -> AdminClient {
        AdminClient::connect(&self.address).await.unwrap()
    }

    pub async fn stop(self) {
        self.shutdown.trigger();
        tokio::time::timeout(LIMIT, self.task)
            .await
            .expect("ends in time")
            .unwrap()
            .unwrap();
    }
}

/// A held-back set with two features and two classes: class 0 where the first feature is positive.
pub fn write_features(path: &Path) {
    let rows: [([f32; 2], u8); 8] = [
        ([2.0, 0.1], 0),
        ([1.0, -0.5], 0),
        ([1.5, 0.3], 0),
        ([0.5, 0.2], 0),
        ([-1.0, 0.2], 1),
        ([-2.0, -0.3], 1),
        ([-0.5, 0.4], 1),
        ([-1.5, -0.1], 1),
    ];
    let values: Vec<u8> = rows
        .iter()
        .flat_map(|(x, _)| x.iter().flat_map(|v| v.to_le_bytes()))
        .collect();
    let labels: Vec<u8> = rows.iter().map(|(_, label)| *label).collect();
    let tensors = [
        (
            "features",
            TensorView::new(Dtype::F32, vec![8, 2], &values).unwrap(),
        ),
        (
            "labels",
            TensorView::new(Dtype::U8, vec![8], &labels).unwrap(),
        ),
    ];
    let metadata = HashMap::from([("backbone".to_owned(), "ab".repeat(32))]);
    std::fs::write(
        path,
        safetensors::serialize(tensors, Some(metadata)).unwrap(),
    )
    .unwrap();
}

/// Writes a job and its files; gives the path of the job file.
pub fn write_job(dir: &Path, name: &str, more: &str) -> PathBuf {
    write_features(&dir.join("holdback.safetensors"));
    let text = format!(
        "job = '{name}'\n[model]\nclasses = ['red', 'green']\ncalibration = 'holdback.safetensors'\n\
         [evaluation]\nfeatures = 'holdback.safetensors'\n{more}"
    );
    let path = dir.join(format!("{name}.toml"));
    std::fs::write(&path, text).unwrap();
    path
}

pub async fn create(cloud: &Cloud, dir: &Path, name: &str, more: &str) {
    let text = std::fs::read_to_string(write_job(dir, name, more)).unwrap();
    cloud.admin().await.create_job(text, dir).await.unwrap();
}

pub const WHEN_COMPLETE: &str = "[schedule]\nmerge_when_complete = true\n";

/// A roadside unit.
pub struct Unit {
    pub id: RoadsideId,
    client: CoordinatorClient<Channel>,
    watch: Streaming<wire::Envelope>,
}

impl Unit {
    pub async fn connect(cloud: &Cloud, name: &str) -> Self {
        let id = RoadsideId::new(name).unwrap();
        let channel = tonic::transport::Endpoint::from_shared(cloud.address.clone())
            .unwrap()
            .connect()
            .await
            .unwrap();
        let mut client = CoordinatorClient::new(channel);
        let hello = Hello {
            roadside: id.clone(),
            generation: Generation(1),
            version: "test".to_owned(),
        };
        let envelope = Envelope {
            msg_id: "m1".to_owned(),
            source: name.to_owned(),
            group: "user".to_owned(),
            operation: "get".to_owned(),
            resource: resource::hello(&id),
            content: hello.encode(),
            ..Envelope::default()
        };
        let watch = client
            .watch(wire::Envelope::from(&envelope))
            .await
            .unwrap()
            .into_inner();
        Self { id, client, watch }
    }

    /// The next plan for a job that fits; plans that do not are passed over.
    pub async fn plan(&mut self, job: &str, fits: impl Fn(&JobPlan) -> bool) -> JobPlan {
        let reading = async {
            loop {
                let envelope = self
                    .watch
                    .message()
                    .await
                    .unwrap()
                    .expect("the stream stays open");
                let envelope = Envelope::try_from(envelope).unwrap();
                let plan: Plan = envelope.open(&resource::plan(&self.id)).unwrap();
                let mut jobs = plan.jobs.into_iter();
                if let Some(plan) = jobs.find(|plan| plan.spec.job.as_str() == job && fits(plan)) {
                    return plan;
                }
            }
        };
        tokio::time::timeout(LIMIT, reading)
            .await
            .expect("a plan in time")
    }

    /// The model of a plan, from an offset on.
    pub async fn fetch(&mut self, plan: &JobPlan, offset: u64) -> Result<Vec<u8>, tonic::Status> {
        let fetch = FetchModel {
            roadside: self.id.clone(),
            job: plan.spec.job.clone(),
            digest: plan.model,
            offset,
        };
        let mut pieces = self
            .client
            .fetch_model(wire::FetchModelRequest::from(&fetch))
            .await?
            .into_inner();
        let mut bytes = Vec::new();
        while let Some(piece) = pieces.message().await? {
            assert_eq!(piece.offset, offset + bytes.len() as u64);
            bytes.extend(piece.data);
        }
        Ok(bytes)
    }

    /// A partial aggregate of one vehicle's update for a plan.
    pub fn partial(&self, plan: &JobPlan, id: u8, delta: &[f32]) -> PartialAggregate {
        let schema = plan.spec.model.schema().unwrap();
        let delta = codec::Delta::quantise(&schema, delta, &plan.exponents).unwrap();
        let mut sum = WeightedSum::new(schema.num_parameters(), plan.exponents.clone());
        sum.add(10, &plan.exponents, delta.values()).unwrap();
        let frame = codec::Sum {
            exponents: plan.exponents.clone(),
            values: sum.values().to_vec(),
            num_examples: 10,
            bound: sum.bound(),
        };
        let line = Contribution {
            vehicle: VehicleId::new(format!("car-of-{}", self.id)).unwrap(),
            round: RoundId(1),
            update_id: UpdateId([id; 16]),
            num_examples: 10,
            verdict: Verdict::Accepted,
            l2_norm: delta.stats().l2_norm,
            handling: Duration::from_millis(12),
            metrics: UpdateMetrics {
                loss: Some(0.5),
                train: Duration::from_millis(100),
                receipts: 1,
                receipts_within_budget: 1,
                last_latency: Duration::from_millis(20),
                encoding: None,
                goodput_bytes_per_s: 0,
            },
        };
        PartialAggregate {
            job: plan.spec.job.clone(),
            roadside: self.id.clone(),
            merge_round: plan.merge_round,
            base_version: plan.base_version,
            partial_id: UpdateId([id; 16]),
            num_examples: 10,
            sum_frame: codec::encode_sum(&schema, &frame).unwrap(),
            contributions: vec![line],
            rounds: Vec::new(),
            up_bytes: 100,
            down_bytes: 200,
            vehicles_online: 1,
        }
    }

    /// Sends in pieces of 100 bytes, after a change to the pieces.
    pub async fn submit_changed(
        &mut self,
        partial: &PartialAggregate,
        change: impl Fn(&mut Vec<wire::PartialPart>),
    ) -> Result<PartialReceipt, tonic::Status> {
        let whole = partial.encode();
        let part = |(n, data): (usize, &[u8])| {
            wire::PartialPart::from(&PartialPart {
                partial_id: partial.partial_id,
                total_bytes: whole.len() as u64,
                digest: codec::digest(&whole),
                offset: (n * 100) as u64,
                data: data.to_vec(),
            })
        };
        let mut parts: Vec<_> = whole.chunks(100).enumerate().map(part).collect();
        change(&mut parts);
        let reply = self.client.submit(tokio_stream::iter(parts)).await?;
        Ok(PartialReceipt::try_from(reply.into_inner()).unwrap())
    }

    pub async fn submit(&mut self, partial: &PartialAggregate) -> PartialReceipt {
        self.submit_changed(partial, |_| {}).await.unwrap()
    }
}

/// Moves the head towards what the held-back set wants, times a factor.
pub fn step(factor: f32) -> Vec<f32> {
    [1.0, -1.0, 0.0, 0.0, 0.0, 0.0].map(|v| v * factor).to_vec()
}

pub fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_folder(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}
