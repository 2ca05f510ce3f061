//! A roadside unit in the city: the production engine on a store in memory, and what its broker does.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use roadside_aggregator::engine::{Engine, Outside};
use roadside_aggregator::event::Event as Told;
use roadside_aggregator::region::Site;
use roadside_aggregator::store::Memory;
use roadside_aggregator::unit::{Input, Settings, Unit as Machine};
use wayside_domain::ids::{Digest, Generation, JobId, UpdateId};
use wayside_domain::time::Timestamp;
use wayside_domain::upload::UploadLimits;
use wayside_proto::convert::{Announcement, Control, Presence, Wire as _};
use wayside_proto::topics::{ModelKey, Topic};

use super::env::{Env, Out};
use super::event::{Actor, Connection, Message, Millis, What};
use super::log::Entry;
use super::rng::Small;
use crate::world::Transfer;

/// Bounds on uploads, as a unit's configuration has them.
const UPLOADS: UploadLimits = UploadLimits {
    max_open_bytes: 256 << 20,
    need_after: std::time::Duration::from_secs(2),
    max_age: std::time::Duration::from_secs(120),
};

/// A roadside unit.
#[derive(Debug)]
pub struct Unit {
    index: u32,
    engine: Option<Engine<Shell>>,
    memory: Memory,
    backhaul: bool,
    connections: BTreeMap<u32, Line>,
    round: Option<Kept>,
    models: BTreeMap<ModelKey, BTreeMap<u32, Kept>>,
    /// Who was asked last.
    asked: Vec<u32>,
    tick_at: Option<Millis>,
    rng: Small,
    count: u64,
}

/// A retained message.
type Kept = (Arc<Topic>, Arc<[u8]>);

/// A connection of a vehicle.
#[derive(Debug)]
struct Line {
    connection: Connection,
    generation: Generation,
    link: u8,
    last_down: Millis,
    /// Nothing gets through any more, but nobody has noticed.
    cut: bool,
    /// The vehicle follows announcements.
    awake: bool,
    subscribed: Vec<ModelKey>,
}

/// What the engine shows during a turn.
#[derive(Debug, Default)]
struct Shell {
    now: Timestamp,
    published: Vec<(Topic, Vec<u8>, bool)>,
    told: Vec<Told>,
    /// Wanted of the cloud, and not asked for since the line is up.
    fetches: Vec<Digest>,
    submits: Vec<(JobId, UpdateId, Arc<[u8]>)>,
    fetched: BTreeSet<Digest>,
    submitted: BTreeSet<UpdateId>,
}

impl Outside for Shell {
    fn now(&self) -> Timestamp {
        self.now
    }

    fn publish(&mut self, topic: Topic, payload: Vec<u8>, retain: bool) {
        self.published.push((topic, payload, retain));
    }

    fn tell(&mut self, event: Told) {
        self.told.push(event);
    }

    fn turned(&mut self, unit: &Machine) {
        let models = unit.wanted_models();
        self.fetched
            .retain(|digest| models.iter().any(|(_, wanted, _)| wanted == digest));
        for (_, digest, _) in models {
            if self.fetched.insert(digest) {
                self.fetches.push(digest);
            }
        }
        let mut waiting = BTreeSet::new();
        for (job, pending) in unit.pending() {
            waiting.insert(pending.partial_id);
            if self.submitted.insert(pending.partial_id) {
                let bytes = pending.bytes.as_slice().into();
                self.submits.push((job.clone(), pending.partial_id, bytes));
            }
        }
        self.submitted.retain(|id| waiting.contains(id));
    }
}

impl Unit {
    /// A unit that is switched off.
    pub fn new(env: &Env, index: u32) -> Self {
        Self {
            index,
            engine: None,
            memory: Memory::default(),
            backhaul: false,
            connections: BTreeMap::new(),
            round: None,
            models: BTreeMap::new(),
            asked: Vec::new(),
            tick_at: None,
            rng: Small::new(env.seed, 2, index),
            count: 0,
        }
    }

    /// Its count of events.
    pub fn count(&mut self) -> &mut u64 {
        &mut self.count
    }

    /// Something happens to it.
    pub fn handle(&mut self, env: &Env, at: Millis, what: What, out: &mut Out<'_>) {
        match what {
            What::Power(on) => self.power(env, at, on, out),
            What::Backhaul(up) => {
                self.backhaul = up;
                out.note(at, Entry::Backhaul { up });
                self.hello(env, at, out);
            }
            _ if self.engine.is_none() => {}
            What::Tick if self.tick_at.take_if(|due| *due <= at).is_some() => {
                self.turn(env, at, Vec::new(), out);
            }
            What::Heartbeat(connection, generation, num_examples) => {
                let Actor::Vehicle(index) = out.cause else {
                    return;
                };
                if self.hears(index, connection) {
                    let input = Input::Heartbeat {
                        vehicle: env.vehicles[index as usize].clone(),
                        generation,
                        num_examples: u64::from(num_examples),
                    };
                    self.turn(env, at, vec![input], out);
                }
            }
            What::FromVehicle(connection, input) => {
                let Actor::Vehicle(index) = out.cause else {
                    return;
                };
                if self.hears(index, connection) {
                    self.turn(env, at, vec![*input], out);
                }
            }
            What::Connect {
                connection,
                generation,
                link,
                awake,
            } => {
                let line = Line {
                    connection,
                    generation,
                    link,
                    last_down: 0,
                    cut: false,
                    awake,
                    subscribed: Vec::new(),
                };
                self.on_connect(env, at, line, out);
            }
            What::Cut(connection) => {
                let Actor::Vehicle(index) = out.cause else {
                    return;
                };
                if let Some(line) = self.line(index, connection) {
                    line.cut = true;
                    let patience = env.tiers.keepalive_ms * 3 / 2;
                    let what = What::KeepaliveOver(index, connection);
                    out.later(at + patience, what);
                }
            }
            What::KeepaliveOver(index, connection)
                if self.line(index, connection).is_some_and(|line| line.cut) =>
            {
                self.give_up(env, at, index, out);
            }
            What::Relink(connection, link) => {
                let Actor::Vehicle(index) = out.cause else {
                    return;
                };
                if let Some(line) = self.line(index, connection) {
                    line.link = link;
                }
            }
            What::Subscribe(connection, model, wants) => {
                self.on_subscribe(env, at, connection, ModelKey::of(&model), wants, out);
            }
            What::FromCloud(input) => self.turn(env, at, vec![*input], out),
            What::Model(digest, frame) => {
                let frame = frame.to_vec();
                self.turn(env, at, vec![Input::Model { digest, frame }], out);
            }
            _ => {}
        }
    }

    fn line(&mut self, vehicle: u32, connection: Connection) -> Option<&mut Line> {
        let line = self.connections.get_mut(&vehicle)?;
        (line.connection == connection).then_some(line)
    }

    fn hears(&mut self, vehicle: u32, connection: Connection) -> bool {
        self.line(vehicle, connection).is_some_and(|line| !line.cut)
    }

    fn power(&mut self, env: &Env, at: Millis, on: bool, out: &mut Out<'_>) {
        out.note(at, Entry::Power { on });
        if !on {
            // The process is gone: what it had not committed is lost, and so is all that its broker held.
            self.engine = None;
            for (vehicle, line) in std::mem::take(&mut self.connections) {
                let delay = u64::from(env.world.link(line.link).delay_ms).max(env.look_ahead);
                let what = What::Broken(line.connection);
                out.send(at + delay, Actor::Vehicle(vehicle), what);
            }
            self.round = None;
            self.models.clear();
            self.asked.clear();
            self.tick_at = None;
            if self.backhaul {
                out.send(at + env.tiers.backhaul_ms, Actor::Cloud, What::UnitLost);
            }
            return;
        }
        let settings = Settings {
            site: Site {
                roadside: env.units[self.index as usize].clone(),
                chunk_bytes: env.tiers.chunk_bytes,
                generation: Generation(0),
            },
            namespace: env.namespace.clone(),
            heartbeat: env.tiers.heartbeat,
            misses: env.tiers.misses,
            settle: env.tiers.settle,
            uploads: UPLOADS,
        };
        let shell = Shell {
            now: env.stamp(at),
            ..Shell::default()
        };
        // Memory does not refuse.
        self.engine = Engine::start(settings, Box::new(self.memory.clone()), shell, 1).ok();
        self.show(env, at, out);
        self.hello(env, at, out);
    }

    /// The line to the cloud is up, and so is the unit: it says hello and asks again for all that it waits for.
    fn hello(&mut self, env: &Env, at: Millis, out: &mut Out<'_>) {
        let (Some(engine), true) = (&mut self.engine, self.backhaul) else {
            return;
        };
        out.send(at + env.tiers.backhaul_ms, Actor::Cloud, What::Hello);
        let shell = engine.outside();
        shell.fetched.clear();
        shell.submitted.clear();
        self.turn(env, at, Vec::new(), out);
    }

    fn on_connect(&mut self, env: &Env, at: Millis, mut line: Line, out: &mut Out<'_>) {
        let Actor::Vehicle(index) = out.cause else {
            return;
        };
        // A broker that finds the same client again lets the old connection go first, with its last will.
        if self.connections.contains_key(&index) {
            self.give_up(env, at, index, out);
        }
        let way = env.world.link(line.link);
        let Transfer::Arrives { after_ms } = way.transfer(&mut self.rng, 64, false) else {
            return; // the vehicle tries again
        };
        line.last_down = at + after_ms;
        let (connection, awake) = (line.connection, line.awake);
        let what = What::Accepted(connection);
        out.send(line.last_down, Actor::Vehicle(index), what);
        self.connections.insert(index, line);
        let asked = self.asked.binary_search(&index).is_ok();
        if let Some((topic, payload)) = self.round.clone()
            && (awake || asked || env.eager)
        {
            self.deliver(env, at, index, &topic, &payload, true, out);
        }
    }

    /// The connection is given up: its last will is published.
    fn give_up(&mut self, env: &Env, at: Millis, vehicle: u32, out: &mut Out<'_>) {
        let Some(line) = self.connections.remove(&vehicle) else {
            return;
        };
        let presence = Presence {
            vehicle: env.vehicles[vehicle as usize].clone(),
            generation: line.generation,
            online: false,
            client_version: env!("CARGO_PKG_VERSION").to_owned(),
            backbone: env.spec.model.backbone,
            num_examples: 0,
        };
        let topic = Topic::Presence {
            roadside: env.units[self.index as usize].clone(),
            vehicle: presence.vehicle.clone(),
        };
        let input = Input::Message {
            topic: topic.to_string(),
            payload: presence.encode(),
        };
        self.turn(env, at, vec![input], out);
    }

    fn on_subscribe(
        &mut self,
        env: &Env,
        at: Millis,
        connection: Connection,
        key: ModelKey,
        wants: bool,
        out: &mut Out<'_>,
    ) {
        let Actor::Vehicle(index) = out.cause else {
            return;
        };
        let Some(line) = self.line(index, connection).filter(|line| !line.cut) else {
            return;
        };
        line.subscribed.retain(|known| *known != key);
        if !wants {
            return;
        }
        line.subscribed.push(key);
        let chunks: Vec<Kept> = (self.models.get(&key).into_iter())
            .flat_map(|chunks| chunks.values().cloned())
            .collect();
        for (topic, payload) in chunks {
            self.deliver(env, at, index, &topic, &payload, true, out);
        }
    }

    /// One turn of the engine, and everything that it shows.
    fn turn(&mut self, env: &Env, at: Millis, inputs: Vec<Input>, out: &mut Out<'_>) {
        let Some(engine) = &mut self.engine else {
            return;
        };
        let now = env.stamp(at);
        engine.outside().now = now;
        let arrived = inputs.into_iter().map(|input| (now, input)).collect();
        if engine.turn(arrived).is_err() {
            self.power(env, at, false, out);
            return;
        }
        self.show(env, at, out);
    }

    fn show(&mut self, env: &Env, at: Millis, out: &mut Out<'_>) {
        let Some(engine) = &mut self.engine else {
            return;
        };
        let due = env.millis(engine.next_deadline()).max(at + 1);
        if self.tick_at.is_none_or(|known| due < known) {
            self.tick_at = Some(due);
            out.later(due, What::Tick);
        }
        let shell = engine.outside();
        let (published, told) = (
            std::mem::take(&mut shell.published),
            std::mem::take(&mut shell.told),
        );
        if self.backhaul {
            for digest in std::mem::take(&mut shell.fetches) {
                let what = What::FetchModel(digest);
                out.send(at + env.tiers.backhaul_ms, Actor::Cloud, what);
            }
            for (job, id, bytes) in std::mem::take(&mut shell.submits) {
                let takes = bytes.len() as u64 / env.tiers.backhaul_bytes_per_ms.max(1);
                let what = What::Submit(job, id, bytes);
                let arrives = at + env.tiers.flush_ms + env.tiers.backhaul_ms + takes;
                out.send(arrives, Actor::Cloud, what);
            }
        } else {
            shell.fetches.clear();
            shell.submits.clear();
        }
        for event in told {
            note(env, at, event, out);
        }
        let shown = at + env.tiers.flush_ms;
        for (topic, payload, retain) in published {
            self.publish(env, shown, topic, payload.into(), retain, out);
        }
    }

    /// What the broker does with a message of the unit.
    fn publish(
        &mut self,
        env: &Env,
        at: Millis,
        topic: Topic,
        payload: Arc<[u8]>,
        retain: bool,
        out: &mut Out<'_>,
    ) {
        let topic = Arc::new(topic);
        match &*topic {
            Topic::Round { .. } => {
                let announcement = Announcement::decode(&payload).ok();
                let cohort = announcement.map(|said| said.cohort).unwrap_or_default();
                let mut asked: Vec<u32> = cohort.iter().map(|v| env.index_of(v)).collect();
                asked.sort_unstable();
                let before = std::mem::replace(&mut self.asked, asked);
                self.round = retain.then(|| (Arc::clone(&topic), Arc::clone(&payload)));
                // Those who are asked, and those who were: to all others it says nothing that they would act on.
                let to: BTreeSet<u32> = if env.eager {
                    self.connections.keys().copied().collect()
                } else {
                    before
                        .into_iter()
                        .chain(self.asked.iter().copied())
                        .collect()
                };
                for vehicle in to {
                    self.deliver(env, at, vehicle, &topic, &payload, false, out);
                }
            }
            Topic::Model { key, chunk, .. } => {
                let chunks = self.models.entry(*key).or_default();
                if payload.is_empty() {
                    chunks.remove(chunk);
                    if chunks.is_empty() {
                        self.models.remove(key);
                    }
                    return;
                }
                chunks.insert(*chunk, (Arc::clone(&topic), Arc::clone(&payload)));
                let lines = self.connections.iter();
                let to: Vec<u32> = lines
                    .filter(|(_, line)| line.subscribed.contains(key))
                    .map(|(vehicle, _)| *vehicle)
                    .collect();
                for vehicle in to {
                    self.deliver(env, at, vehicle, &topic, &payload, false, out);
                }
            }
            Topic::Control { vehicle, .. } => {
                let index = env.index_of(vehicle);
                let line = self.connections.get(&index);
                // A vehicle that sleeps has nothing to do with being known.
                let sleeps = line.is_none_or(|line| !line.awake) && !env.eager;
                let known = matches!(Control::decode(&payload), Ok(Control::Registered(_)));
                if !(sleeps && known) {
                    self.deliver(env, at, index, &topic, &payload, false, out);
                }
            }
            Topic::Receipt { vehicle, .. } | Topic::Need { vehicle, .. } => {
                let index = env.index_of(vehicle);
                self.deliver(env, at, index, &topic, &payload, false, out);
            }
            _ => {}
        }
    }

    #[expect(clippy::too_many_arguments, reason = "one message to one vehicle")]
    fn deliver(
        &mut self,
        env: &Env,
        at: Millis,
        vehicle: u32,
        topic: &Arc<Topic>,
        payload: &Arc<[u8]>,
        retained: bool,
        out: &mut Out<'_>,
    ) {
        let Some(line) = (self.connections.get_mut(&vehicle)).filter(|line| !line.cut) else {
            return;
        };
        line.awake |= matches!(**topic, Topic::Round { .. });
        let way = env.world.link(line.link);
        // Topics are about as long as this.
        let bytes = 64 + payload.len();
        match way.transfer(&mut self.rng, bytes, false) {
            Transfer::Arrives { after_ms } => {
                let arrives = (at + after_ms).max(line.last_down);
                line.last_down = arrives;
                let message = Message {
                    topic: Arc::clone(topic),
                    payload: Arc::clone(payload),
                    retained,
                };
                let what = What::Deliver(line.connection, message);
                out.send(arrives, Actor::Vehicle(vehicle), what);
            }
            Transfer::Broken { after_ms } => {
                line.cut = true;
                let connection = line.connection;
                let what = What::Broken(connection);
                out.send(at + after_ms, Actor::Vehicle(vehicle), what);
                let over = What::KeepaliveOver(vehicle, connection);
                out.later(at + after_ms + env.tiers.keepalive_ms, over);
            }
        }
    }
}

/// What matters of what the unit tells.
fn note(env: &Env, at: Millis, event: Told, out: &mut Out<'_>) {
    let entry = match event {
        Told::RoundOpened {
            round,
            cohort,
            target,
            deadline,
            ..
        } => Entry::RoundOpened {
            round,
            cohort: cohort.iter().map(|v| env.index_of(v)).collect(),
            target,
            deadline: env.millis(deadline),
        },
        Told::UpdateJudged {
            round,
            vehicle,
            verdict,
            again,
            ..
        } => Entry::Judged {
            round,
            vehicle: env.index_of(&vehicle),
            verdict,
            again,
        },
        Told::RoundClosed {
            round,
            accepted,
            aggregated,
            ..
        } => Entry::RoundClosed {
            round,
            accepted,
            aggregated,
        },
        _ => return,
    };
    out.note(at, entry);
}
