//! A cloud that plans and collects, and a vehicle that speaks the protocol, both over real sockets.

#![allow(dead_code, reason = "each test binary uses its part")]
#![allow(clippy::unwrap_used, reason = "in a test a failure is a panic")]

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use roadside_aggregator::config::Config;
use rumqttc::{AsyncClient, Event, EventLoop, LastWill, MqttOptions, NetworkOptions, Packet, QoS};
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::{Request, Response, Status, Streaming};
use wayside_domain::encoding::CodecSpec;
use wayside_domain::head::Standardisation;
use wayside_domain::ids::{
    Digest, Generation, JobId, ModelVersion, Namespace, RoadsideId, RoundId, UpdateId, VehicleId,
};
use wayside_domain::job::{AggregationSpec, Effort, JobSpec, ModelSpec, RoundSpec, TrainingSpec};
use wayside_domain::time::Timestamp;
use wayside_domain::update::Verdict;
use wayside_host::clock::Clock;
use wayside_proto::codec;
use wayside_proto::convert::{
    Announcement, Control, Envelope, FetchModel, Hello, JobPlan, ModelPart, ModelPiece, Need,
    PartialAggregate, PartialPart, PartialReceipt, Plan, Presence, Receipt, Update, UpdateMetrics,
    UpdatePart, Wire as _, resource, split,
};
use wayside_proto::kubeedge::{Heartbeat, TrainState};
use wayside_proto::topics::{DeviceEvent, Topic, vehicle_filters};
use wayside_proto::wire;
use wayside_proto::wire::services::coordinator_server::{Coordinator, CoordinatorServer};

pub(crate) const FEATURES: usize = 480;
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) fn roadside() -> RoadsideId {
    RoadsideId::new("r1").unwrap()
}

pub(crate) fn job() -> JobId {
    JobId::new("lights").unwrap()
}

pub(crate) fn spec(min_vehicles: u32) -> JobSpec {
    JobSpec {
        job: job(),
        model: ModelSpec {
            backbone: None,
            input_height: 32,
            input_width: 32,
            classes: vec!["green".into(), "red".into(), "yellow".into()],
            standardisation: Standardisation::new(vec![0.0; FEATURES], vec![1.0; FEATURES])
                .unwrap(),
            network: wayside_domain::network::Network::LinearHead,
            personal: Vec::new(),
        },
        training: TrainingSpec {
            lr: 0.1,
            momentum: 0.0,
            weight_decay: 0.0,
            batch_size: 8,
            effort: Effort::LocalEpochs(1),
            proximal_mu: 0.0,
            class_weights: vec![1.0; 3],
            seed: 7,
        },
        round: RoundSpec {
            fraction_train: 1.0,
            min_vehicles,
            over_selection: 1.0,
            quorum: 0.5,
            round_timeout: Duration::from_secs(60),
            min_window: Duration::ZERO,
            edge_rounds: 1,
            max_examples: 1_000_000,
            max_norm: 1000.0,
            max_norm_ratio: 0.0,
            latency_budget: Duration::from_millis(500),
        },
        aggregation: AggregationSpec::default(),
        codec: CodecSpec::default(),
    }
}

pub(crate) fn model() -> (Digest, Vec<u8>) {
    let schema = spec(1).model.schema().unwrap();
    let values: Vec<f32> = (0..schema.num_parameters())
        .map(|i| (i as f32).sin())
        .collect();
    let (frame, _) = codec::encode_model(&schema, &values).unwrap();
    (codec::digest(&frame), frame)
}

pub(crate) fn plan(merge_round: u64, min_vehicles: u32) -> Plan {
    let (digest, frame) = model();
    let plan = JobPlan {
        spec: spec(min_vehicles),
        merge_round: RoundId(merge_round),
        base_version: ModelVersion(0),
        model: digest,
        model_bytes: frame.len() as u64,
        exponents: vec![0, 0],
        norm_bound: 1000.0,
        window_ends: Clock::system().now() + Duration::from_secs(600),
        paused: false,
    };
    Plan { jobs: vec![plan] }
}

/// A cloud: its plan may be changed, and what it got may be looked at.
#[derive(Clone)]
pub(crate) struct Cloud {
    pub(crate) address: SocketAddr,
    pub(crate) plan: watch::Sender<Plan>,
    pub(crate) partials: Arc<Mutex<Vec<PartialAggregate>>>,
    pub(crate) hellos: Arc<Mutex<Vec<Hello>>>,
    pub(crate) fetches: Arc<Mutex<Vec<FetchModel>>>,
    /// Cut the first fetch short after so many bytes.
    pub(crate) cut: Arc<Mutex<Option<usize>>>,
}

struct Service(Cloud);

impl Cloud {
    pub(crate) async fn start(plan: Plan) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let cloud = Self {
            address: listener.local_addr().unwrap(),
            plan: watch::Sender::new(plan),
            partials: Arc::default(),
            hellos: Arc::default(),
            fetches: Arc::default(),
            cut: Arc::default(),
        };
        let service = CoordinatorServer::new(Service(cloud.clone()));
        let server = tonic::transport::Server::builder().add_service(service);
        tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
        cloud
    }

    pub(crate) async fn partial(&self, n: usize) -> PartialAggregate {
        until("a partial aggregate", || {
            self.partials.lock().unwrap().get(n).cloned()
        })
        .await
    }
}

#[tonic::async_trait]
impl Coordinator for Service {
    type WatchStream = ReceiverStream<Result<wire::Envelope, Status>>;
    type FetchModelStream = ReceiverStream<Result<wire::ModelPiece, Status>>;

    async fn watch(
        &self,
        request: Request<wire::Envelope>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let envelope = Envelope::try_from(request.into_inner()).unwrap();
        let hello: Hello = envelope.open(&resource::hello(&roadside())).unwrap();
        self.0.hellos.lock().unwrap().push(hello);
        let mut plans = self.0.plan.subscribe();
        plans.mark_changed();
        let (send, receive) = mpsc::channel(4);
        tokio::spawn(async move {
            while plans.changed().await.is_ok() {
                let envelope = Envelope {
                    resource: resource::plan(&roadside()),
                    content: plans.borrow_and_update().encode(),
                    ..Envelope::default()
                };
                if send
                    .send(Ok(wire::Envelope::from(&envelope)))
                    .await
                    .is_err()
                {
                    return;
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(receive)))
    }

    async fn submit(
        &self,
        request: Request<Streaming<wire::PartialPart>>,
    ) -> Result<Response<wire::PartialReceipt>, Status> {
        let mut parts = request.into_inner();
        let (mut bytes, mut id, mut digest) = (Vec::new(), UpdateId([0; 16]), Digest([0; 32]));
        while let Some(part) = parts.message().await? {
            let part = PartialPart::try_from(part).unwrap();
            assert_eq!(part.offset, bytes.len() as u64);
            bytes.extend(part.data);
            (id, digest) = (part.partial_id, part.digest);
        }
        assert_eq!(codec::digest(&bytes), digest);
        let partial = PartialAggregate::decode(&bytes).unwrap();
        partial.check_id(&id).unwrap();
        let mut partials = self.0.partials.lock().unwrap();
        let known = partials.iter().any(|p| p.partial_id == id);
        if !known {
            partials.push(partial);
        }
        let receipt = PartialReceipt {
            partial_id: id,
            verdict: if known {
                Verdict::Duplicate
            } else {
                Verdict::Accepted
            },
            current_merge_round: RoundId(1),
            current_version: ModelVersion(0),
        };
        Ok(Response::new(wire::PartialReceipt::from(&receipt)))
    }

    async fn fetch_model(
        &self,
        request: Request<wire::FetchModelRequest>,
    ) -> Result<Response<Self::FetchModelStream>, Status> {
        let fetch = FetchModel::try_from(request.into_inner()).unwrap();
        let offset = usize::try_from(fetch.offset).unwrap();
        self.0.fetches.lock().unwrap().push(fetch);
        let (_, frame) = model();
        let cut = self.0.cut.lock().unwrap().take();
        let (send, receive) = mpsc::channel(100);
        tokio::spawn(async move {
            let mut at = offset;
            for data in split(&frame[offset..cut.unwrap_or(frame.len())], 500) {
                let piece = ModelPiece {
                    offset: at as u64,
                    data: data.to_vec(),
                };
                at += data.len();
                let _ = send.send(Ok(wire::ModelPiece::from(&piece))).await;
            }
            if cut.is_some() {
                let _ = send.send(Err(Status::unavailable("cut"))).await;
            }
        });
        Ok(Response::new(ReceiverStream::new(receive)))
    }
}

/// Asks again and again until there is an answer.
pub(crate) async fn until<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let asking = async {
        loop {
            if let Some(answer) = ask() {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, asking)
        .await
        .unwrap_or_else(|_| panic!("no {what}"))
}

pub(crate) fn config(folder: &std::path::Path, cloud: SocketAddr) -> Config {
    let mut config = Config::default();
    config.roadside.id = "r1".into();
    config.broker.listen = "127.0.0.1:0".into();
    config.cloud.address = format!("http://{cloud}");
    config.state.dir = folder.join("state");
    config.limits.chunk_bytes = 1000;
    config.limits.settle_ms = 100;
    config.limits.need_after_ms = 100;
    config
}

/// A vehicle that does what it is told by the test.
pub(crate) struct Vehicle {
    pub(crate) id: VehicleId,
    client: AsyncClient,
    events: EventLoop,
    generation: u64,
    /// Came while something else was waited for.
    unread: Vec<(Topic, Vec<u8>)>,
}

impl Vehicle {
    /// Connects, subscribes and registers.
    pub(crate) async fn join(name: &str, broker: SocketAddr) -> Self {
        let id = VehicleId::new(name).unwrap();
        let generation = Clock::system().now().0;
        let mut options = MqttOptions::new(name, broker.ip().to_string(), broker.port());
        options
            .set_max_packet_size(1 << 20, 1 << 20)
            .set_keep_alive(Duration::from_secs(20));
        let will = presence(&id, generation, false);
        let topic = presence_topic(&id).to_string();
        options.set_last_will(LastWill::new(topic, will.encode(), QoS::AtLeastOnce, false));
        let (client, mut events) = AsyncClient::new(options, 1000);
        let mut network = NetworkOptions::new();
        network.set_tcp_nodelay(true);
        events.set_network_options(network);
        let unread = Vec::new();
        let mut vehicle = Self {
            id,
            client,
            events,
            generation,
            unread,
        };
        for filter in vehicle_filters(&roadside(), &vehicle.id) {
            vehicle
                .client
                .subscribe(filter, QoS::AtLeastOnce)
                .await
                .unwrap();
        }
        vehicle.say_presence().await;
        // A unit that came back may ask for the registration that is on its way already.
        vehicle
            .wait("registered", |topic, payload| match topic {
                Topic::Control { .. } => match Control::decode(payload) {
                    Ok(Control::Registered(_)) => Some(()),
                    _ => None,
                },
                _ => None,
            })
            .await;
        vehicle
    }

    pub(crate) async fn say_presence(&self) {
        let presence = presence(&self.id, self.generation, true);
        self.publish(&presence_topic(&self.id).to_string(), presence.encode())
            .await;
    }

    pub(crate) async fn publish(&self, topic: &str, payload: Vec<u8>) {
        self.client
            .publish(topic, QoS::AtLeastOnce, false, payload)
            .await
            .unwrap();
    }

    pub(crate) async fn heartbeat(&self, generation: u64) {
        let heartbeat = Heartbeat {
            generation: Generation(generation),
            state: TrainState::Idle,
            round: None,
            model: None,
            num_examples: 10,
            sent: Timestamp(1_767_225_600_000),
        };
        let json = heartbeat.to_twin("e1").to_json().unwrap();
        self.publish(&twin_topic(&self.id), json).await;
    }

    /// Polls until a message makes sense to `wanted`.
    pub(crate) async fn wait<T>(
        &mut self,
        what: &str,
        mut wanted: impl FnMut(&Topic, &[u8]) -> Option<T>,
    ) -> T {
        for at in 0..self.unread.len() {
            let (topic, payload) = &self.unread[at];
            if let Some(found) = wanted(topic, payload) {
                self.unread.remove(at);
                return found;
            }
        }
        let poll = async {
            loop {
                match self.events.poll().await {
                    Ok(Event::Incoming(Packet::Publish(publish))) => {
                        let topic = Topic::parse(&publish.topic).unwrap();
                        if let Some(found) = wanted(&topic, &publish.payload) {
                            return found;
                        }
                        self.unread.push((topic, publish.payload.to_vec()));
                    }
                    Ok(_) => {}
                    Err(error) => panic!("link: {error}"),
                }
            }
        };
        tokio::time::timeout(PATIENCE, poll)
            .await
            .unwrap_or_else(|_| panic!("no {what}"))
    }

    /// Waits for a round with this vehicle.
    pub(crate) async fn round(&mut self) -> Announcement {
        let me = self.id.clone();
        self.wait("round", |topic, payload| {
            matches!(topic, Topic::Round { .. }).then_some(())?;
            let announcement = Announcement::decode(payload).unwrap();
            announcement.check_topic(topic).unwrap();
            (announcement.open && announcement.cohort.contains(&me)).then_some(announcement)
        })
        .await
    }

    /// Puts the retained chunks of the model together.
    pub(crate) async fn model(&mut self, announcement: &Announcement) -> Vec<u8> {
        let topic = wayside_proto::topics::model_filter(
            &roadside(),
            &job(),
            wayside_proto::topics::ModelKey::of(&announcement.model),
        );
        self.client
            .subscribe(topic, QoS::AtLeastOnce)
            .await
            .unwrap();
        let mut chunks = vec![None; usize::try_from(announcement.model_chunks).unwrap()];
        self.wait("model", |topic, payload| {
            if let Topic::Model { chunk, .. } = topic {
                let part = ModelPart::decode(payload).unwrap();
                chunks[usize::try_from(*chunk).unwrap()] = Some(part.data);
            }
            chunks.iter().all(Option::is_some).then_some(())
        })
        .await;
        let frame: Vec<u8> = chunks.into_iter().flatten().flatten().collect();
        assert_eq!(codec::digest(&frame), announcement.model);
        frame
    }

    pub(crate) fn update(&self, announcement: &Announcement, seed: u8) -> Update {
        let schema = spec(1).model.schema().unwrap();
        let delta: Vec<f32> = (0..schema.num_parameters())
            .map(|i| (i as f32 + f32::from(seed)).cos() / 8.0)
            .collect();
        let mut update_id = [seed; 16];
        update_id[0] = self.id.as_str().as_bytes()[1];
        Update {
            job: job(),
            roadside: roadside(),
            vehicle: self.id.clone(),
            round: announcement.round,
            base_version: announcement.base_version,
            update_id: UpdateId(update_id),
            num_examples: 10,
            frame: codec::encode_delta(&schema, &delta, &announcement.exponents).unwrap(),
            metrics: UpdateMetrics::default(),
        }
    }

    /// Sends the chunks of an update but for those left out.
    pub(crate) async fn send(&self, update: &Update, without: &[u32]) {
        let bytes = update.encode();
        let chunks = split(&bytes, 1024);
        let total_chunks = u32::try_from(chunks.len()).unwrap();
        for (chunk, data) in (0..)
            .zip(chunks)
            .filter(|(chunk, _)| !without.contains(chunk))
        {
            let part = UpdatePart {
                update_id: update.update_id,
                total_bytes: u32::try_from(bytes.len()).unwrap(),
                total_chunks,
                digest: codec::digest(&bytes),
                data: data.to_vec(),
            };
            let topic = Topic::Update {
                roadside: roadside(),
                job: job(),
                vehicle: self.id.clone(),
                round: update.round,
                chunk,
            };
            self.publish(&topic.to_string(), part.encode()).await;
        }
    }

    pub(crate) async fn receipt(&mut self) -> Receipt {
        self.wait("receipt", |topic, payload| match topic {
            Topic::Receipt { .. } => Some(Receipt::decode(payload).unwrap()),
            _ => None,
        })
        .await
    }

    pub(crate) async fn need(&mut self) -> Need {
        self.wait("need", |topic, payload| match topic {
            Topic::Need { .. } => Some(Need::decode(payload).unwrap()),
            _ => None,
        })
        .await
    }

    pub(crate) async fn control(&mut self) -> Control {
        self.wait("control", |topic, payload| match topic {
            Topic::Control { .. } => Control::decode(payload).ok(),
            _ => None,
        })
        .await
    }
}

fn presence(id: &VehicleId, generation: u64, online: bool) -> Presence {
    Presence {
        vehicle: id.clone(),
        generation: Generation(generation),
        online,
        client_version: "test".into(),
        backbone: None,
        num_examples: 10,
    }
}

fn presence_topic(id: &VehicleId) -> Topic {
    Topic::Presence {
        roadside: roadside(),
        vehicle: id.clone(),
    }
}

pub(crate) fn twin_topic(id: &VehicleId) -> String {
    let topic = Topic::Device {
        namespace: Namespace::new("default").unwrap(),
        vehicle: id.clone(),
        event: DeviceEvent::TwinUpdate,
    };
    topic.to_string()
}
