//! A vehicle in the city: its surroundings, its link, and around the production machine what its driver does elsewhere.
//!
//! A vehicle that no round has asked yet is a few dozen bytes: it connects, registers and beats, as its process would,
//! but its machine and spool are only made when the first announcement names it. What the machine would have done until
//! then is to announce its presence, which happens all the same.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use edge_client::inbox::{self, Incoming};
use edge_client::machine::{Effect, Encoded, Fixed, Leaves, Order, Vehicle as Machine, WorkDone};
use edge_client::round::{self, Ingredients};
use edge_client::spool::{Payloads, Spool};
use edge_client::store::{MemoryStore, Records, Store, StoreError};
use roadside_aggregator::unit::Input;
use wayside_domain::backoff::Backoff;
use wayside_domain::ids::{Digest, Generation, JobId, RoadsideId, UpdateId, VehicleId};
use wayside_domain::outbox::OutboxEntry;
use wayside_domain::time::Timestamp;
use wayside_proto::codec;
use wayside_proto::convert::{Presence, UpdateMetrics, UpdatePart, Wire as _, split};
use wayside_proto::topics::Topic;

use super::env::{Env, Out};
use super::event::{Actor, Connection, Message, Millis, What, millis};
use super::hostile;
use super::log::Entry;
use super::rng::Small;
use crate::world::{Status, Transfer, Traveller};

/// A connection that is not taken within this time is tried again.
const CONNECT_TIMEOUT: Millis = 10_000;
/// First and longest wait before a link is tried again, and how long it must hold, as vehicles have them.
const BACKOFF: (Duration, Duration, Duration) = (
    Duration::from_secs(1),
    Duration::from_secs(60),
    Duration::from_secs(30),
);

/// A vehicle.
#[derive(Debug)]
pub struct Vehicle {
    index: u32,
    traveller: Traveller,
    status: Status,
    coming: Option<Status>,
    /// When its process started; its generation.
    started: Millis,
    /// The roadside unit that its process is set up for.
    unit: Option<u32>,
    connection: Connection,
    linked: bool,
    linked_since: Millis,
    dial_at: Millis,
    beat_at: Millis,
    last_up: Millis,
    failures: u8,
    rng: Small,
    count: u64,
    /// Events that it has had a hand in.
    inner: Option<Box<Inner>>,
}

/// What a vehicle has once a round has asked it.
#[derive(Debug)]
struct Inner {
    machine: Machine,
    spool: Spool,
    store: Shared,
    generation: Generation,
    work: Option<Work>,
    works: u64,
    tick_at: Option<Millis>,
    personal: Payloads,
}

#[derive(Debug)]
struct Work {
    number: u64,
    task: Task,
    began: Millis,
}

#[derive(Debug)]
enum Task {
    Features(JobId),
    Train(Box<Order>),
}

/// Records in memory that outlive a process.
#[derive(Clone, Debug, Default)]
struct Shared(Arc<Mutex<MemoryStore>>);

impl Shared {
    fn with<T>(&self, act: impl FnOnce(&mut MemoryStore) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn crash(&self) {
        self.with(|store| *store = store.after_crash());
    }
}

impl Store for Shared {
    fn load(&self) -> Result<Records, StoreError> {
        self.with(|store| store.load())
    }

    fn begin(&mut self, generation: Generation) -> Result<(), StoreError> {
        self.with(|store| store.begin(generation))
    }

    fn record_update(&mut self, entry: &OutboxEntry, seals: u64) -> Result<(), StoreError> {
        self.with(|store| store.record_update(entry, seals))
    }

    fn forget_update(&mut self, update_id: UpdateId) -> Result<(), StoreError> {
        self.with(|store| store.forget_update(update_id))
    }

    fn reopen_round(&mut self, roadside: &RoadsideId, job: &JobId) -> Result<(), StoreError> {
        self.with(|store| store.reopen_round(roadside, job))
    }

    fn remember_job(
        &mut self,
        roadside: &RoadsideId,
        job: &JobId,
        digest: Option<Digest>,
    ) -> Result<(), StoreError> {
        self.with(|store| store.remember_job(roadside, job, digest))
    }
}

impl Vehicle {
    /// A vehicle at time 0, before anything has happened.
    pub fn new(env: &Env, index: u32) -> Self {
        let traveller = env.world.start(index);
        let status = traveller.status();
        Self {
            index,
            traveller,
            status: Status {
                powered: false,
                unit: None,
                ..status
            },
            coming: None,
            started: 0,
            unit: None,
            connection: 0,
            linked: false,
            linked_since: 0,
            dial_at: 0,
            beat_at: 0,
            last_up: 0,
            failures: 0,
            rng: Small::new(env.seed, 1, index),
            count: 0,
            inner: None,
        }
    }

    /// Its count of events, which outlives what it makes.
    pub fn count(&mut self) -> &mut u64 {
        &mut self.count
    }

    /// Whether a round has asked it.
    pub fn is_awake(&self) -> bool {
        self.inner.is_some()
    }

    /// Where it is now.
    pub fn position(&self, env: &Env, at: Millis) -> (f32, f32) {
        self.traveller.position(&env.world, at)
    }

    /// What is to happen first.
    pub fn begin(&mut self, env: &Env, out: &mut Out<'_>) {
        self.coming = Some(self.traveller.status());
        let spread = env.tiers.spread_ms.max(1) as f64;
        out.later(millis(self.rng.share() * spread), What::Surroundings);
    }

    /// Something happens to it.
    pub fn handle(&mut self, env: &Env, at: Millis, what: What, out: &mut Out<'_>) {
        match what {
            What::Surroundings => self.on_surroundings(env, at, out),
            What::Dial => self.on_dial(env, at, out),
            What::Beat => self.on_beat(env, at, out),
            What::Accepted(connection) => self.on_accepted(env, at, connection, out),
            What::Broken(connection) if connection == self.connection => {
                self.cut(env, at, true, out);
                self.dial_later(at, out);
            }
            What::Deliver(connection, message) if connection == self.connection && self.linked => {
                self.on_message(env, at, &message, out);
            }
            What::Tick => {
                if let Some(inner) = &mut self.inner
                    && inner.tick_at.take_if(|due| *due <= at).is_some()
                {
                    let effects = inner.machine.on_tick(own_time(env, self.index, at));
                    self.apply(env, at, effects, out);
                }
            }
            What::WorkEnds(number) => self.on_work_ends(env, at, number, out),
            What::HandedOver(connection, update_id) if connection == self.connection => {
                if let Some(inner) = &mut self.inner {
                    let effects = inner
                        .machine
                        .on_handed_over(own_time(env, self.index, at), update_id);
                    self.apply(env, at, effects, out);
                }
            }
            _ => {}
        }
        self.schedule_tick(env, at, out);
    }

    fn on_surroundings(&mut self, env: &Env, at: Millis, out: &mut Out<'_>) {
        let Some(new) = self.coming.take() else {
            return;
        };
        let old = std::mem::replace(&mut self.status, new);
        // The first one is how it stands at time 0; later ones come from the world.
        if let Some((then, coming)) = self.traveller.next_change(&env.world) {
            self.coming = Some(coming);
            out.later(then.max(at + 1), What::Surroundings);
        }
        if old.powered && !new.powered {
            self.stop(env, at, out);
        }
        if !new.powered {
            return;
        }
        let moved = new.unit.is_some() && new.unit != self.unit;
        if moved {
            if self.linked {
                self.cut(env, at, false, out);
            }
            if let (Some(from), Some(to), true) = (self.unit, new.unit, old.powered) {
                out.note(at, Entry::HandedOver { from, to });
            }
            self.unit = new.unit;
        }
        if moved || !old.powered {
            self.start(env, at + env.tiers.restart_ms);
            self.dial_at = self.started;
            out.later(self.started, What::Dial);
        } else if new.unit.is_none() && (self.linked || self.dial_at > at) {
            self.cut(env, at, false, out);
        } else if new.unit.is_some() && !self.linked {
            self.failures = 0;
            self.dial_at = at;
            out.later(at, What::Dial);
        } else if let (true, Some(unit), true) = (self.linked, self.unit, old.link != new.link) {
            let what = What::Relink(self.connection, new.link);
            out.send(at + env.look_ahead, Actor::Unit(unit), what);
        }
    }

    /// The process ends without a warning; what was not flushed is lost.
    fn stop(&mut self, env: &Env, at: Millis, out: &mut Out<'_>) {
        if self.linked {
            self.cut(env, at, false, out);
        }
        if let Some(inner) = &mut self.inner {
            inner.work = None;
            inner.store.crash();
            out.note(at, Entry::Stopped);
        }
    }

    /// A process starts, with what is on disk.
    fn start(&mut self, env: &Env, at: Millis) {
        self.started = at;
        if let (Some(inner), Some(unit)) = (self.inner.take(), self.unit) {
            let kept = (inner.store, Some(inner.personal));
            self.inner = Inner::open(env, unit, at, self.index, kept).map(Box::new);
        }
    }

    fn generation(&self, env: &Env) -> Generation {
        match &self.inner {
            Some(inner) => inner.generation,
            None => Generation(own_time(env, self.index, self.started).0),
        }
    }

    fn on_dial(&mut self, env: &Env, at: Millis, out: &mut Out<'_>) {
        let reachable = self.status.powered && self.status.unit == self.unit;
        let Some(unit) = self
            .unit
            .filter(|_| reachable && !self.linked && at >= self.dial_at)
        else {
            return;
        };
        self.connection += 1;
        let link = env.world.link(self.status.link);
        // Connection and session take a trip each before the first word of MQTT.
        let trip = match link.transfer(&mut self.rng, 256, true) {
            Transfer::Arrives { after_ms } => 2 * after_ms,
            Transfer::Broken { .. } => {
                self.dial_later(at, out);
                return;
            }
        };
        let what = What::Connect {
            connection: self.connection,
            generation: self.generation(env),
            link: self.status.link,
            awake: self.inner.is_some(),
        };
        self.last_up = at + trip;
        out.send(at + trip, Actor::Unit(unit), what);
        self.dial_at = at + CONNECT_TIMEOUT;
        out.later(self.dial_at, What::Dial);
    }

    fn dial_later(&mut self, at: Millis, out: &mut Out<'_>) {
        let (base, cap, settle) = BACKOFF;
        let mut backoff = Backoff::new(base, cap, settle);
        for _ in 0..self.failures {
            let _ = backoff.next_wait(&mut Small::new(0, 0, 0));
        }
        backoff.held(Duration::from_millis(at.saturating_sub(self.linked_since)));
        let wait = backoff.next_wait(&mut self.rng);
        self.failures = u8::try_from(backoff.failures()).unwrap_or(u8::MAX).min(20);
        self.dial_at = at + u64::try_from(wait.as_millis()).unwrap_or(u64::MAX).max(1);
        out.later(self.dial_at, What::Dial);
    }

    fn on_accepted(&mut self, env: &Env, at: Millis, connection: Connection, out: &mut Out<'_>) {
        let here = self.status.powered && self.status.unit == self.unit;
        let (true, Some(unit)) = (connection == self.connection && here, self.unit) else {
            return;
        };
        self.linked = true;
        self.linked_since = at;
        out.note(at, Entry::Connected { unit });
        if let Some(inner) = &mut self.inner {
            let effects = inner.machine.on_link(own_time(env, self.index, at), true);
            self.apply(env, at, effects, out);
        } else {
            self.presence(env, at, self.num_examples(env), out);
        }
        self.beat_at = at;
        out.later(at, What::Beat);
    }

    /// The link is gone. The broker learns of it only by silence, unless it `knows`.
    fn cut(&mut self, env: &Env, at: Millis, knows: bool, out: &mut Out<'_>) {
        let was = std::mem::replace(&mut self.linked, false);
        self.dial_at = Millis::MAX;
        if let (false, Some(unit)) = (knows, self.unit) {
            let what = What::Cut(self.connection);
            out.send(at + env.look_ahead, Actor::Unit(unit), what);
        }
        if was {
            out.note(at, Entry::Disconnected);
            if let Some(inner) = &mut self.inner {
                let effects = inner.machine.on_link(own_time(env, self.index, at), false);
                self.apply(env, at, effects, out);
            }
        }
    }

    fn num_examples(&self, env: &Env) -> u64 {
        u64::from(env.examples.shares.rows(self.index))
    }

    fn presence(&mut self, env: &Env, at: Millis, num_examples: u64, out: &mut Out<'_>) {
        let Some(unit) = self.unit else { return };
        let presence = Presence {
            vehicle: env.vehicles[self.index as usize].clone(),
            generation: self.generation(env),
            online: true,
            client_version: env!("CARGO_PKG_VERSION").to_owned(),
            backbone: env.spec.model.backbone,
            num_examples,
        };
        let topic = Topic::Presence {
            roadside: env.units[unit as usize].clone(),
            vehicle: presence.vehicle.clone(),
        };
        self.publish(env, at, &topic, presence.encode(), out);
    }

    /// A heartbeat, and the next one in an interval moved by up to 10 %.
    fn on_beat(&mut self, env: &Env, at: Millis, out: &mut Out<'_>) {
        let Some(unit) = self.unit.filter(|_| self.linked && at == self.beat_at) else {
            return;
        };
        let link = env.world.link(self.status.link);
        let examples = u32::try_from(self.num_examples(env)).unwrap_or(u32::MAX);
        if let Transfer::Arrives { after_ms } = link.transfer(&mut self.rng, 600, true) {
            let what = What::Heartbeat(self.connection, self.generation(env), examples);
            let arrives = (at + after_ms).max(self.last_up);
            out.send(arrives, Actor::Unit(unit), what);
        }
        let interval = env.tiers.heartbeat.as_millis() as f64;
        let wait = interval * (0.9 + 0.2 * self.rng.share());
        self.beat_at = at + millis(wait).max(1);
        out.later(self.beat_at, What::Beat);
    }

    /// Hands a message to the link; says when it arrives.
    fn publish(
        &mut self,
        env: &Env,
        at: Millis,
        topic: &Topic,
        payload: Vec<u8>,
        out: &mut Out<'_>,
    ) -> Option<Millis> {
        let unit = self.unit.filter(|_| self.linked)?;
        let topic = topic.to_string();
        let link = env.world.link(self.status.link);
        match link.transfer(&mut self.rng, topic.len() + payload.len(), true) {
            Transfer::Arrives { after_ms } => {
                let arrives = (at + after_ms).max(self.last_up);
                self.last_up = arrives;
                let input = Box::new(Input::Message { topic, payload });
                let what = What::FromVehicle(self.connection, input);
                out.send(arrives, Actor::Unit(unit), what);
                Some(arrives)
            }
            Transfer::Broken { after_ms } => {
                let connection = self.connection;
                out.later(at + after_ms, What::Broken(connection));
                out.send(at + after_ms, Actor::Unit(unit), What::Cut(connection));
                None
            }
        }
    }

    fn on_message(&mut self, env: &Env, at: Millis, message: &Message, out: &mut Out<'_>) {
        let Some(unit) = self.unit else { return };
        let asks = matches!(*message.topic, Topic::Round { .. } | Topic::Job { .. });
        if self.inner.is_none() && !asks {
            // "Register": all that a sleeping vehicle is told that leads to something.
            let control = matches!(*message.topic, Topic::Control { .. });
            let register = control
                && wayside_proto::convert::Control::decode(&message.payload)
                    .is_ok_and(|c| matches!(c, wayside_proto::convert::Control::Register(_)));
            if register {
                self.presence(env, at, self.num_examples(env), out);
            }
            return;
        }
        if self.inner.is_none() {
            let kept = (Shared::default(), None);
            let opened = Inner::open(env, unit, self.started, self.index, kept);
            self.inner = opened.map(Box::new);
            if let Some(inner) = &mut self.inner {
                // Its presence was told when it connected.
                let _ = inner
                    .machine
                    .on_link(own_time(env, self.index, self.linked_since), true);
                inner.work = None;
            }
            self.take_job(env, at, out);
        }
        let here = (
            &env.units[unit as usize],
            &env.vehicles[self.index as usize],
        );
        let (topic, payload) = (&*message.topic, &*message.payload);
        let Some(inner) = &mut self.inner else { return };
        let Ok(incoming) = inbox::read_from(topic, payload, message.retained, here) else {
            return;
        };
        let (now, machine) = (own_time(env, self.index, at), &mut inner.machine);
        let effects = match incoming {
            Incoming::Register => machine.on_register(),
            Incoming::Registered | Incoming::JobSpec { .. } => Vec::new(),
            Incoming::Announcement {
                job,
                announced,
                live,
            } => machine.on_announcement(now, &job, announced, live),
            Incoming::ModelPart {
                job,
                key,
                chunk,
                data,
            } => machine.on_model_part(&job, key, chunk as usize, data),
            Incoming::Receipt { job, receipt } => machine.on_receipt(
                now,
                &job,
                receipt.update_id,
                receipt.verdict,
                receipt.current_round,
            ),
            Incoming::Need { job, need } => machine.on_need(&job, need.update_id, need.missing),
        };
        self.apply(env, at, effects, out);
    }

    /// The job's specification, which is the same for all; a real vehicle has it from the broker.
    fn take_job(&mut self, env: &Env, at: Millis, out: &mut Out<'_>) {
        let Some(inner) = &mut self.inner else { return };
        let effects = inner.machine.on_job_spec(
            own_time(env, self.index, at),
            env.spec_digest,
            Arc::clone(&env.spec),
            env.max_model_bytes,
        );
        self.apply(env, at, effects, out);
    }

    /// Carries out effects, and what follows from them, in order.
    fn apply(&mut self, env: &Env, at: Millis, effects: Vec<Effect>, out: &mut Out<'_>) {
        let mut queue = VecDeque::from(effects);
        while let Some(effect) = queue.pop_front() {
            queue.extend(self.apply_one(env, at, effect, out));
        }
    }

    fn apply_one(
        &mut self,
        env: &Env,
        at: Millis,
        effect: Effect,
        out: &mut Out<'_>,
    ) -> Vec<Effect> {
        let now = own_time(env, self.index, at);
        let Some(inner) = &mut self.inner else {
            return Vec::new();
        };
        match effect {
            Effect::PublishPresence { num_examples } => self.presence(env, at, num_examples, out),
            Effect::LoadFeatures { job, .. } => {
                inner.start(Task::Features(job), at, at + env.tiers.features_ms, out);
            }
            Effect::StartTraining(order) => {
                let ends = at + train_ms(env, self.index);
                inner.start(Task::Train(order), at, ends, out);
            }
            Effect::CancelWork => {
                inner.work = None;
                return inner.machine.on_work_done(now, WorkDone::Cancelled);
            }
            Effect::FetchModel { model, .. } | Effect::LeaveModel { model, .. } => {
                let wants = matches!(effect, Effect::FetchModel { .. });
                if let Some(unit) = self.unit.filter(|_| self.linked) {
                    let link = env.world.link(self.status.link);
                    if let Transfer::Arrives { after_ms } = link.transfer(&mut self.rng, 120, true)
                    {
                        let arrives = (at + after_ms).max(self.last_up);
                        self.last_up = arrives;
                        let what = What::Subscribe(self.connection, model, wants);
                        out.send(arrives, Actor::Unit(unit), what);
                    }
                }
            }
            Effect::StoreModel { job, model, bytes } => {
                let decoded = env.model(model, &bytes);
                let good = decoded.is_some_and(|decoded| {
                    let frame = Arc::clone(&decoded.frame);
                    inner.spool.payloads().share_model(model, frame).is_ok()
                });
                return inner.machine.on_model_stored(now, &job, model, good);
            }
            Effect::DropModels(models) => inner.spool.payloads().drop_models(&models),
            Effect::Seal(sealing) => {
                let (order, encoded) = *sealing;
                return self.seal(env, at, &order, &encoded, out);
            }
            Effect::SendUpdate { update_id, chunks } => {
                self.send_update(env, at, update_id, chunks.as_deref(), out);
            }
            Effect::DropUpdate { entry, why } => self.drop_update(at, &entry, why, out),
            Effect::Stepped { .. } | Effect::NotTakingPart { .. } => {}
        }
        Vec::new()
    }

    fn seal(
        &mut self,
        env: &Env,
        at: Millis,
        order: &Order,
        encoded: &Encoded,
        out: &mut Out<'_>,
    ) -> Vec<Effect> {
        let (Some(inner), Some(unit)) = (&mut self.inner, self.unit) else {
            return Vec::new();
        };
        let figures = inner.machine.figures();
        let metrics = UpdateMetrics {
            loss: Some(encoded.loss).filter(|loss| loss.is_finite()),
            train: Duration::from_millis(encoded.train_ms),
            receipts: figures.receipts,
            receipts_within_budget: figures.within_budget,
            last_latency: Duration::from_millis(figures.last_latency_ms),
            encoding: Some(encoded.encoding),
            goodput_bytes_per_s: figures.goodput_bytes_per_s,
        };
        let names = (
            &env.vehicles[self.index as usize],
            &env.units[unit as usize],
        );
        let sender: (&VehicleId, &RoadsideId, Generation) = (names.0, names.1, inner.generation);
        let sealed = inner.spool.seal(sender, order, encoded, metrics).ok();
        if let Some((entry, bytes)) = &sealed {
            out.note(
                at,
                Entry::Sealed {
                    round: entry.round,
                    update_id: entry.update_id,
                    num_examples: encoded.num_examples,
                    train_ms: encoded.train_ms,
                    bytes: *bytes,
                },
            );
        }
        inner
            .machine
            .on_sealed(own_time(env, self.index, at), sealed)
    }

    fn send_update(
        &mut self,
        env: &Env,
        at: Millis,
        update_id: UpdateId,
        only: Option<&[u32]>,
        out: &mut Out<'_>,
    ) {
        let Some(inner) = &self.inner else { return };
        let Some(entry) = inner.machine.outbox().get(update_id).cloned() else {
            return;
        };
        let Ok(whole) = inner.spool.payloads().read_update(update_id) else {
            return;
        };
        let size = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let digest = codec::digest(&whole);
        let chunks = split(&whole, env.tiers.chunk_bytes);
        let total_chunks = size(chunks.len());
        let mut arrived = Some(at);
        for (index, data) in (0_u32..).zip(chunks) {
            if only.is_some_and(|only| !only.contains(&index)) {
                continue;
            }
            let topic = Topic::Update {
                roadside: entry.roadside.clone(),
                job: entry.job.clone(),
                vehicle: env.vehicles[self.index as usize].clone(),
                round: entry.round,
                chunk: index,
            };
            let part = UpdatePart {
                update_id,
                total_bytes: size(whole.len()),
                total_chunks,
                digest,
                data: data.to_vec(),
            };
            arrived = self.publish(env, at, &topic, part.encode(), out);
            if arrived.is_none() {
                return;
            }
        }
        if let Some(arrived) = arrived {
            out.later(
                arrived.max(at + 1),
                What::HandedOver(self.connection, update_id),
            );
        }
    }

    fn drop_update(&mut self, at: Millis, entry: &OutboxEntry, why: Leaves, out: &mut Out<'_>) {
        let Some(inner) = &mut self.inner else { return };
        let update_id = entry.update_id;
        let mut counts = false;
        match why {
            Leaves::Receipt {
                verdict,
                latency,
                within_budget,
            } => {
                counts = verdict.counts();
                let latency_ms = u64::try_from(latency.as_millis()).unwrap_or(u64::MAX);
                out.note(
                    at,
                    Entry::Receipt {
                        update_id,
                        verdict,
                        latency_ms,
                        within_budget,
                    },
                );
            }
            Leaves::Expired | Leaves::MadeRoom | Leaves::Lost => {
                out.note(at, Entry::GivenUp { update_id });
            }
        }
        // Memory does not refuse.
        let _ = inner.spool.forget_update(entry, counts);
    }

    fn on_work_ends(&mut self, env: &Env, at: Millis, number: u64, out: &mut Out<'_>) {
        let index = self.index;
        let Some(inner) = &mut self.inner else { return };
        let Some(work) = inner.work.take_if(|work| work.number == number) else {
            return;
        };
        let done = match work.task {
            Task::Features(job) => WorkDone::Features {
                num_examples: u64::from(env.examples.shares.rows(index)),
                job,
            },
            Task::Train(order) => {
                let busy = at - work.began;
                self.traveller.spend_training(&env.world, busy);
                let trained = inner.train(env, index, at, busy, &order);
                if trained == WorkDone::Failed {
                    let round = order.round.round;
                    out.note(at, Entry::TrainingFailed { round });
                }
                trained
            }
        };
        let effects = inner
            .machine
            .on_work_done(own_time(env, self.index, at), done);
        self.apply(env, at, effects, out);
    }

    fn schedule_tick(&mut self, env: &Env, at: Millis, out: &mut Out<'_>) {
        let Some(inner) = &mut self.inner else { return };
        let Some(due) = inner.machine.next_deadline() else {
            return;
        };
        let due = from_own_time(env, self.index, due).max(at + 1);
        if inner.tick_at.is_none_or(|known| due < known) {
            inner.tick_at = Some(due);
            out.later(due, What::Tick);
        }
    }
}

impl Inner {
    /// Opens the spool and makes the machine, as at the start of a process. Memory does not refuse.
    fn open(
        env: &Env,
        unit: u32,
        started: Millis,
        index: u32,
        (store, payloads): (Shared, Option<Payloads>),
    ) -> Option<Self> {
        let roadside = &env.units[unit as usize];
        let (now, records) = (own_time(env, index, started), Box::new(store.clone()));
        let (spool, mut opened) = Spool::in_memory(payloads, records, roadside, now).ok()?;
        opened.restored.num_examples = u64::from(env.examples.shares.rows(index));
        let model = &env.spec.model;
        let fixed = Fixed {
            roadside: roadside.clone(),
            backbone: model.backbone.unwrap_or(Digest([0; 32])),
            features: model.features(),
            network: model.network,
            resend_after: env.tiers.resend_after,
        };
        let mut machine = Machine::new(fixed, opened.restored);
        // The specification is on disk since the first announcement.
        let effects = machine.on_job_spec(
            now,
            env.spec_digest,
            Arc::clone(&env.spec),
            env.max_model_bytes,
        );
        let payloads = spool.payloads().clone();
        let mut inner = Self {
            machine,
            spool,
            store,
            generation: opened.generation,
            work: None,
            works: 0,
            tick_at: None,
            personal: payloads,
        };
        // Features are cached on disk: they are there at once.
        for effect in effects {
            if let Effect::LoadFeatures { job, .. } = effect {
                let num_examples = u64::from(env.examples.shares.rows(index));
                let done = WorkDone::Features { job, num_examples };
                let _ = inner.machine.on_work_done(now, done);
            }
        }
        Some(inner)
    }

    fn start(&mut self, task: Task, began: Millis, ends: Millis, out: &mut Out<'_>) {
        self.works += 1;
        let number = self.works;
        self.work = Some(Work {
            number,
            task,
            began,
        });
        out.later(ends.max(began + 1), What::WorkEnds(number));
    }

    /// Trains a round for real.
    fn train(&self, env: &Env, index: u32, at: Millis, train_ms: u64, order: &Order) -> WorkDone {
        let Some(model) = env.known_model(order.round.model).or_else(|| {
            let frame = self.spool.payloads().read_model(order.round.model).ok()?;
            env.model(order.round.model, &frame)
        }) else {
            return WorkDone::Failed;
        };
        let (features, labels) = env.examples.of(index);
        let attack = env.attack_of(index);
        let labels = hostile::labels(attack, labels, env.spec.model.classes.len());
        let hostile =
            hostile::Learner::new(&*env.learner, attack, &order.round.exponents, &env.schema);
        let (residual, personal) = (
            self.spool.payloads().residual(&order.job),
            self.spool.payloads().personal(&order.job),
        );
        let ingredients = Ingredients {
            learner: &hostile,
            vehicle: &env.vehicles[index as usize],
            schema: &env.schema,
            model: &model.parameters,
            reference: model.reference.as_ref(),
            features,
            labels: &labels,
            personal: &personal,
            residual: &residual,
        };
        let Ok(mut made) = round::make(order, ingredients, &env.cancel) else {
            return WorkDone::Failed;
        };
        if let Some(frame) = hostile::frame(attack, &env.schema, &order.round.exponents) {
            made.frame = frame;
        }
        WorkDone::Trained(Encoded {
            job: order.job.clone(),
            round: order.round.round,
            num_examples: made.num_examples,
            loss: made.loss,
            train_ms,
            encoded: own_time(env, index, at),
            encoding: order.encoding,
            frame: made.frame,
            residual: made.residual,
            personal: made.personal,
        })
    }
}

/// What a vehicle's own clock shows.
fn own_time(env: &Env, index: u32, at: Millis) -> Timestamp {
    let stamp = env.stamp(at).0;
    Timestamp(stamp.saturating_add_signed(env.world.clock_offset_ms(index)))
}

/// When a vehicle's own clock shows this.
fn from_own_time(env: &Env, index: u32, stamp: Timestamp) -> Millis {
    let offset = env.world.clock_offset_ms(index);
    env.millis(Timestamp(stamp.0.saturating_add_signed(-offset)))
}

/// How long a vehicle trains for one round.
fn train_ms(env: &Env, index: u32) -> Millis {
    let rows = u64::from(env.examples.shares.rows(index));
    let training = &env.spec.training;
    let steps = match training.effort {
        wayside_domain::job::Effort::LocalEpochs(epochs) => {
            u64::from(epochs) * rows.div_ceil(u64::from(training.batch_size.max(1)))
        }
        wayside_domain::job::Effort::LocalSteps(steps) => u64::from(steps),
    };
    let speed = env.world.compute_speed(index).max(1e-3);
    millis((steps as f64 * env.tiers.step_ms / speed).ceil()).max(1)
}
