//! What all actors share: the world, the job, the data, names and settings.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use cloud_coordinator::job::Definition;
use ndarray::{Array2, ArrayView2, Axis};
use wayside_domain::ids::{Digest, JobId, Namespace, RoadsideId, VehicleId};
use wayside_domain::job::JobSpec;
use wayside_domain::schema::Schema;
use wayside_domain::time::Timestamp;
use wayside_domain::train::Learner;
use wayside_proto::codec::{self, Encoding, Reference};
use wayside_proto::convert::Wire as _;

use super::event::{Actor, Event, Millis, What};
use super::log::{Entry, Logged};
use crate::data::Assignment;
use crate::world::World;

/// What hostile vehicles do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Attack {
    /// Sends the negated delta.
    SignFlip,
    /// Sends a thousand times the delta, as far as fp16 goes.
    Scaling,
    /// Trains on wrong labels.
    LabelFlip,
    /// Puts a NaN into its delta.
    Nan,
}

/// How tiers behave that the job does not say.
#[derive(Clone, Debug)]
pub struct Tiers {
    /// Interval of heartbeats.
    pub heartbeat: Duration,
    /// Heartbeats that must fail to come.
    pub misses: u32,
    /// Keep-alive of connections; a broker gives a silent one up after one and a half times this.
    pub keepalive_ms: Millis,
    /// First wait for a receipt.
    pub resend_after: Duration,
    /// How long a round waits for further vehicles.
    pub settle: Duration,
    /// Bytes of one chunk of a model or an update.
    pub chunk_bytes: usize,
    /// Milliseconds that one step of a batch takes at speed 1.
    pub step_ms: f64,
    /// Milliseconds until a vehicle has the features of its pictures.
    pub features_ms: Millis,
    /// Milliseconds that a roadside unit or the cloud takes to make something durable.
    pub flush_ms: Millis,
    /// Milliseconds that a vehicle's process takes to start.
    pub restart_ms: Millis,
    /// Milliseconds over which vehicles come up at the beginning.
    pub spread_ms: Millis,
    /// One way between a roadside unit and the cloud.
    pub backhaul_ms: Millis,
    /// Rate of that line, bytes a millisecond.
    pub backhaul_bytes_per_ms: u64,
}

/// The examples of the city.
#[derive(Clone, Debug)]
pub struct Examples {
    /// Standardised as the job says, shape `[n, d]`.
    pub features: Array2<f32>,
    /// Length n.
    pub labels: Vec<u8>,
    /// Who has which.
    pub shares: Assignment,
    /// What nobody trains on; standardised.
    pub test: (Array2<f32>, Vec<u8>),
}

/// A released or regional model, decoded once for all vehicles that train from it.
#[derive(Debug)]
pub struct Decoded {
    /// Its frame.
    pub frame: Arc<[u8]>,
    /// Its values.
    pub parameters: Vec<f32>,
    /// Its values as the frame holds them, where the job's encodings need them.
    pub reference: Option<Reference>,
}

/// Models that were decoded lately.
#[derive(Debug, Default)]
struct Library(RwLock<BTreeMap<Digest, Arc<Decoded>>>);

/// Models that are remembered.
const LIBRARY: usize = 256;

/// What all actors share.
#[derive(Debug)]
pub struct Env {
    /// Time 0 of the simulation.
    pub epoch: Timestamp,
    /// The seed.
    pub seed: u64,
    /// Roads, coverage, links.
    pub world: World,
    /// Vehicles' ids.
    pub vehicles: Vec<VehicleId>,
    /// Roadside units' ids.
    pub units: Vec<RoadsideId>,
    /// Namespace of the vehicles' device topics.
    pub namespace: Namespace,
    /// The job.
    pub definition: Definition,
    /// Its specification, shared.
    pub spec: Arc<JobSpec>,
    /// Digest of the specification.
    pub spec_digest: Digest,
    /// What travels.
    pub schema: Schema,
    /// Most bytes of a model's frame.
    pub max_model_bytes: usize,
    /// What is trained.
    pub learner: Arc<dyn Learner>,
    /// The data.
    pub examples: Examples,
    /// Settings.
    pub tiers: Tiers,
    /// The attack of the first so many of each hundred vehicles.
    pub attack: Option<(Attack, f64)>,
    /// Shortest time from one actor to another.
    pub look_ahead: Millis,
    /// Everything is delivered to everybody, also what changes nothing.
    pub eager: bool,
    /// Ends training early.
    pub cancel: Arc<AtomicBool>,
    library: Library,
}

impl Env {
    /// Puts the shared parts together. Schema, digest and sizes are taken from the definition.
    #[expect(clippy::too_many_arguments, reason = "built once, by the scenario")]
    pub fn new(
        epoch: Timestamp,
        seed: u64,
        world: World,
        vehicles: u32,
        units: u32,
        definition: Definition,
        learner: Arc<dyn Learner>,
        examples: Examples,
        tiers: Tiers,
    ) -> anyhow::Result<Self> {
        let spec = Arc::new(definition.spec.clone());
        let schema = spec.model.schema()?;
        let name = |prefix: &str, index: u32, all: u32| {
            let digits = all.saturating_sub(1).to_string().len();
            format!("{prefix}{index:0digits$}")
        };
        let look_ahead = world.least_delay_ms().min(tiers.backhaul_ms).max(1);
        Ok(Self {
            epoch,
            seed,
            vehicles: (0..vehicles)
                .map(|v| VehicleId::new(name("v", v, vehicles)))
                .collect::<Result<_, _>>()?,
            units: (0..units)
                .map(|u| RoadsideId::new(name("rsu", u, units)))
                .collect::<Result<_, _>>()?,
            world,
            namespace: Namespace::new("default")?,
            spec_digest: codec::digest(&spec.encode()),
            max_model_bytes: codec::max_frame_bytes(&schema, Encoding::Fp16Model),
            spec,
            schema,
            definition,
            learner,
            examples,
            tiers,
            attack: None,
            look_ahead,
            eager: false,
            cancel: Arc::default(),
            library: Library::default(),
        })
    }

    /// The time as a tier's clock shows it.
    pub fn stamp(&self, at: Millis) -> Timestamp {
        Timestamp(self.epoch.0 + at)
    }

    /// The time of the simulation.
    pub fn millis(&self, stamp: Timestamp) -> Millis {
        stamp.0.saturating_sub(self.epoch.0)
    }

    /// The job.
    pub fn job(&self) -> &JobId {
        &self.spec.job
    }

    /// A vehicle's index by its id, which ends in it.
    pub fn index_of(&self, vehicle: &VehicleId) -> u32 {
        vehicle.as_str()[1..].parse().unwrap_or(u32::MAX)
    }

    /// A unit's index by its id.
    pub fn index_of_unit(&self, unit: &RoadsideId) -> u32 {
        unit.as_str()[3..].parse().unwrap_or(u32::MAX)
    }

    /// What this vehicle does wrong, if it is hostile. Hostile ones are spread evenly over the fleet.
    pub fn attack_of(&self, vehicle: u32) -> Option<Attack> {
        let (attack, share) = self.attack?;
        let before = (f64::from(vehicle) * share).floor();
        (((f64::from(vehicle) + 1.0) * share).floor() > before).then_some(attack)
    }

    /// A model whose bytes have this digest; `None` if they have not, or make no sense.
    pub fn model(&self, digest: Digest, bytes: &[u8]) -> Option<Arc<Decoded>> {
        if let Some(known) = self.known_model(digest) {
            return (known.frame[..] == *bytes).then_some(known);
        }
        if codec::digest(bytes) != digest {
            return None;
        }
        let codec = &self.spec.codec;
        let diff = wayside_domain::encoding::UpdateEncoding::Fp16Diff;
        let needed = (codec.best..=codec.lowest).contains(&diff);
        let reference = needed.then(|| codec::decode_reference(bytes, &self.schema).ok());
        let decoded = Arc::new(Decoded {
            frame: bytes.into(),
            parameters: codec::decode_model(bytes, &self.schema).ok()?,
            reference: reference.flatten(),
        });
        let mut library = (self.library.0)
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        // Which one goes does not matter: it is decoded again when it is needed.
        while library.len() >= LIBRARY {
            library.pop_first();
        }
        library.insert(digest, Arc::clone(&decoded));
        Some(decoded)
    }

    /// A model that was decoded before.
    pub fn known_model(&self, digest: Digest) -> Option<Arc<Decoded>> {
        let library = (self.library.0)
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        library.get(&digest).cloned()
    }
}

/// What an actor makes: events for others and itself, and entries of the log.
#[derive(Debug)]
pub struct Out<'a> {
    /// Who makes it.
    pub from: Actor,
    /// Who made the event that is being handled.
    pub cause: Actor,
    /// Its count of events; goes on over its life.
    pub count: &'a mut u64,
    /// Events.
    pub events: &'a mut Vec<Event>,
    /// Entries.
    pub log: &'a mut Vec<Logged>,
}

impl Out<'_> {
    /// Something happens to somebody.
    pub fn send(&mut self, at: Millis, to: Actor, what: What) {
        *self.count += 1;
        self.events.push(Event {
            at,
            to,
            from: self.from,
            count: *self.count,
            what,
        });
    }

    /// Something happens to the actor itself.
    pub fn later(&mut self, at: Millis, what: What) {
        self.send(at, self.from, what);
    }

    /// Something matters.
    pub fn note(&mut self, at: Millis, entry: Entry) {
        let who = self.from;
        self.log.push(Logged { at, who, entry });
    }
}

impl Examples {
    /// The examples of one vehicle: features `[n, d]` and labels.
    pub fn of(&self, vehicle: u32) -> (ArrayView2<'_, f32>, &[u8]) {
        let rows = self.shares.range(vehicle);
        let features = self.features.slice_axis(Axis(0), rows.clone().into());
        (features, &self.labels[rows])
    }
}
