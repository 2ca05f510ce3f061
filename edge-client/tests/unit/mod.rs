//! A roadside unit and its broker in one thread a connection: enough MQTT 3.1.1 to test a vehicle, and able to lose
//! whatever a test wants it to lose.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use wayside_domain::encoding::CodecSpec;
use wayside_domain::head::Standardisation;
use wayside_domain::ids::{
    Digest, Generation, JobId, ModelVersion, RoadsideId, RoundId, UpdateId, VehicleId,
};
use wayside_domain::job::{AggregationSpec, Effort, JobSpec, ModelSpec, RoundSpec, TrainingSpec};
use wayside_domain::time::Timestamp;
use wayside_domain::update::Verdict;
use wayside_proto::codec;
use wayside_proto::convert::{
    Announcement, Control, ModelPart, Need, Presence, Receipt, Update, UpdatePart, Wire, split,
};
use wayside_proto::kubeedge::{Heartbeat, TwinUpdate};
use wayside_proto::topics::{ModelKey, Topic, matches};

/// What a test sees, and what it wants.
#[derive(Debug, Default)]
pub(crate) struct State {
    retained: BTreeMap<String, Vec<u8>>,
    /// First words of each connection: packet types and topics.
    pub(crate) order: Vec<Vec<String>>,
    pub(crate) presences: Vec<Presence>,
    pub(crate) heartbeats: Vec<Heartbeat>,
    pub(crate) parts: Vec<(u32, UpdatePart)>,
    pub(crate) updates: Vec<Update>,
    pub(crate) subscriptions: Vec<String>,
    /// Ends the connection without an acknowledgement at so many parts to come.
    pub(crate) cut_parts: u32,
    /// Loses so many parts in silence, acknowledged, and asks for them.
    pub(crate) lose_parts: u32,
    /// Sends receipts.
    pub(crate) answers: bool,
    /// Asks whoever is there to register, once.
    pub(crate) ask_to_register: bool,
    held: BTreeMap<UpdateId, BTreeMap<u32, UpdatePart>>,
}

/// A unit on a port of its own.
pub(crate) struct Unit {
    pub(crate) address: String,
    state: Arc<Mutex<State>>,
}

pub(crate) fn rsu() -> RoadsideId {
    RoadsideId::new("rsu").unwrap()
}

pub(crate) fn job() -> JobId {
    JobId::new("lights").unwrap()
}

impl Unit {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let state = Arc::new(Mutex::new(State {
            answers: true,
            ..State::default()
        }));
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = Arc::clone(&shared);
                std::thread::spawn(move || serve(stream, &shared));
            }
        });
        Self { address, state }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Puts a round where a vehicle that connects finds it.
    pub(crate) fn announce(&self, spec: &JobSpec, round: u64, vehicle: &str) {
        let schema = spec.model.schema().unwrap();
        let (frame, _) = codec::encode_model(&schema, &vec![0.0; schema.num_parameters()]).unwrap();
        let (encoded, model) = (spec.encode(), codec::digest(&frame));
        let chunks: Vec<&[u8]> = split(&frame, 1000).collect();
        let announcement = Announcement {
            roadside: rsu(),
            job: job(),
            round: RoundId(round),
            base_version: ModelVersion(round - 1),
            model,
            model_bytes: u32::try_from(frame.len()).unwrap(),
            model_chunks: u32::try_from(chunks.len()).unwrap(),
            job_digest: codec::digest(&encoded),
            deadline: Timestamp(0),
            exponents: vec![0, 0],
            cohort: vec![VehicleId::new(vehicle).unwrap()],
            open: true,
        };
        let (roadside, job) = (rsu(), job());
        let mut state = self.state();
        let topic = |topic: Topic| topic.to_string();
        state.retained.insert(
            topic(Topic::Job {
                roadside: roadside.clone(),
                job: job.clone(),
            }),
            encoded,
        );
        for (chunk, data) in (0..).zip(chunks) {
            let key = ModelKey::of(&model);
            let name = topic(Topic::Model {
                roadside: roadside.clone(),
                job: job.clone(),
                key,
                chunk,
            });
            state.retained.insert(
                name,
                ModelPart {
                    data: data.to_vec(),
                }
                .encode(),
            );
        }
        state
            .retained
            .insert(topic(Topic::Round { roadside, job }), announcement.encode());
    }

    /// Waits until `done` says so, for half a minute at most.
    pub(crate) async fn wait_for(&self, what: &str, done: impl Fn(&State) -> bool) {
        for _ in 0..3000 {
            if done(&self.state()) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("no {what}: {:?}", self.state().order);
    }
}

/// A job for small pictures of two classes.
pub(crate) fn spec(backbone: Digest, features: usize) -> JobSpec {
    JobSpec {
        job: job(),
        model: ModelSpec {
            backbone: Some(backbone),
            input_height: 32,
            input_width: 32,
            classes: vec!["red".into(), "green".into()],
            standardisation: Standardisation::identity(features),
            network: wayside_domain::network::Network::LinearHead,
            personal: Vec::new(),
        },
        training: TrainingSpec {
            lr: 0.05,
            momentum: 0.0,
            weight_decay: 0.0,
            batch_size: 4,
            effort: Effort::LocalEpochs(2),
            proximal_mu: 0.0,
            class_weights: vec![1.0; 2],
            seed: 1,
        },
        round: RoundSpec {
            fraction_train: 1.0,
            min_vehicles: 1,
            over_selection: 1.0,
            quorum: 0.5,
            round_timeout: Duration::from_secs(30),
            min_window: Duration::ZERO,
            edge_rounds: 1,
            max_examples: 1000,
            max_norm: 100.0,
            max_norm_ratio: 0.0,
            latency_budget: Duration::from_millis(500),
        },
        aggregation: AggregationSpec::default(),
        codec: CodecSpec::default(),
    }
}

fn serve(mut stream: TcpStream, shared: &Mutex<State>) {
    let connection = {
        let mut state = shared.lock().unwrap();
        state.order.push(Vec::new());
        state.order.len() - 1
    };
    // Any error is a link that broke.
    while let Ok((kind, body)) = packet(&mut stream) {
        let mut state = shared.lock().unwrap();
        let Some(answers) = answer(&mut state, connection, kind, &body) else {
            return;
        };
        drop(state);
        if answers.iter().any(|bytes| stream.write_all(bytes).is_err()) {
            return;
        }
    }
}

fn packet(stream: &mut TcpStream) -> io::Result<(u8, Vec<u8>)> {
    let mut byte = [0];
    stream.read_exact(&mut byte)?;
    let kind = byte[0];
    let mut length = 0;
    for shift in (0..).step_by(7) {
        stream.read_exact(&mut byte)?;
        length |= usize::from(byte[0] & 0x7f) << shift;
        if byte[0] & 0x80 == 0 {
            break;
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    Ok((kind, body))
}

fn text(body: &mut &[u8]) -> String {
    let length = usize::from(u16::from_be_bytes([body[0], body[1]]));
    let text = String::from_utf8(body[2..2 + length].to_vec()).unwrap();
    *body = &body[2 + length..];
    text
}

fn message(topic: &str, payload: &[u8], retained: bool) -> Vec<u8> {
    let mut bytes = vec![0x30 | u8::from(retained)];
    let mut length = 2 + topic.len() + payload.len();
    while length >= 0x80 {
        bytes.push(u8::try_from(length & 0x7f).unwrap() | 0x80);
        length >>= 7;
    }
    bytes.push(u8::try_from(length).unwrap());
    bytes.extend(u16::try_from(topic.len()).unwrap().to_be_bytes());
    bytes.extend(topic.as_bytes());
    bytes.extend(payload);
    bytes
}

/// What a packet leads to; `None` cuts the link.
fn answer(state: &mut State, connection: usize, kind: u8, body: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut note = |text: &str| state.order[connection].push(text.to_owned());
    match kind >> 4 {
        1 => {
            note("connect");
            Some(vec![vec![0x20, 2, 0, 0]])
        }
        8 => {
            note("subscribe");
            let mut rest = &body[2..];
            let mut filters = Vec::new();
            while !rest.is_empty() {
                filters.push(text(&mut rest));
                rest = &rest[1..];
            }
            let count = u8::try_from(filters.len()).unwrap();
            let mut ack = vec![0x90, 2 + count, body[0], body[1]];
            ack.extend(vec![1; usize::from(count)]);
            let mut answers = vec![ack];
            for (topic, payload) in &state.retained {
                if filters.iter().any(|filter| matches(filter, topic)) {
                    answers.push(message(topic, payload, true));
                }
            }
            state.subscriptions.extend(filters);
            Some(answers)
        }
        3 => {
            let mut rest = body;
            let topic = text(&mut rest);
            note(&topic);
            let (id, payload) = rest.split_at(2);
            let mut answers = on_message(state, &Topic::parse(&topic).unwrap(), payload)?;
            answers.insert(0, vec![0x40, 2, id[0], id[1]]);
            Some(answers)
        }
        10 => Some(vec![vec![0xb0, 2, body[0], body[1]]]),
        12 => Some(vec![vec![0xd0, 0]]),
        _ => None,
    }
}

fn on_message(state: &mut State, topic: &Topic, payload: &[u8]) -> Option<Vec<Vec<u8>>> {
    match topic {
        Topic::Presence { roadside, vehicle } => {
            let presence = Presence::decode(payload).unwrap();
            presence.check_topic(topic).unwrap();
            state.presences.push(presence);
            let ask = std::mem::take(&mut state.ask_to_register);
            let word = if ask {
                Control::Register(Generation(1))
            } else {
                Control::Registered(Generation(1))
            };
            let (roadside, vehicle) = (roadside.clone(), vehicle.clone());
            let to = Topic::Control { roadside, vehicle }.to_string();
            Some(vec![message(&to, &word.encode(), false)])
        }
        Topic::Device { .. } => {
            let twin = TwinUpdate::parse(payload).unwrap();
            state.heartbeats.push(Heartbeat::from_twin(&twin).unwrap());
            Some(Vec::new())
        }
        Topic::Update {
            roadside,
            job,
            vehicle,
            chunk,
            ..
        } => {
            let part = UpdatePart::decode(payload).unwrap();
            state.parts.push((*chunk, part.clone()));
            if state.cut_parts > 0 {
                state.cut_parts -= 1;
                return None;
            }
            let (roadside, job, vehicle) = (roadside.clone(), job.clone(), vehicle.clone());
            let id = part.update_id;
            if state.lose_parts > 0 {
                state.lose_parts -= 1;
                let need = Need {
                    update_id: id,
                    missing: vec![*chunk],
                };
                let to = Topic::Need {
                    roadside,
                    job,
                    vehicle,
                }
                .to_string();
                // By the time the vehicle reads this it has handed over everything.
                std::thread::sleep(Duration::from_millis(100));
                return Some(vec![message(&to, &need.encode(), false)]);
            }
            let total = part.total_chunks;
            let held = state.held.entry(id).or_default();
            held.insert(*chunk, part);
            if held.len() < usize::try_from(total).unwrap() {
                return Some(Vec::new());
            }
            let whole: Vec<u8> = held.values().flat_map(|part| part.data.clone()).collect();
            let update = Update::decode(&whole).unwrap();
            update.check_topic(topic).unwrap();
            update.check_id(&id).unwrap();
            let receipt = Receipt {
                update_id: id,
                round: update.round,
                verdict: Verdict::Accepted,
                current_round: update.round,
                current_version: update.base_version,
                handling: Duration::from_millis(1),
            };
            state.updates.push(update);
            let to = Topic::Receipt {
                roadside,
                job,
                vehicle,
            }
            .to_string();
            let answer = state
                .answers
                .then(|| message(&to, &receipt.encode(), false));
            Some(answer.into_iter().collect())
        }
        other => panic!("a vehicle has no business with {other}"),
    }
}
