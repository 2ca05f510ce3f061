//! A whole roadside unit as a machine without I/O: its fleet, its uploads, and one [`Region`] for each job.
//!
//! It routes what arrives, so it is also where topics and bodies are checked. Bytes that make no sense are counted and
//! told in the log once for each sender; they never end anything.

mod messages;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use wayside_domain::aggregate::WeightedSum;
use wayside_domain::ids::{Digest, Generation, JobId, Namespace, RoundId, UpdateId, VehicleId};
use wayside_domain::time::Timestamp;
use wayside_domain::update::Verdict;
use wayside_domain::upload::{UploadLimits, Uploads};
use wayside_proto::convert::{Control, Plan, Wire as _};
use wayside_proto::topics::Topic;

use self::messages::changed;
use crate::aggregate::OrderError;
use crate::event::Event;
use crate::fleet::{Change, Fleet};
use crate::region::{Effect, Pending, Region, Site};
use crate::store::{FrameKey, Stored, Write};

/// Jobs that are known at a time, those of earlier plans included.
const MAX_JOBS: usize = 1024;
/// Senders whose damaged messages were told of.
const MAX_WARNED: usize = 10_000;
/// How often vehicles that are long gone are looked for.
const FORGET_EVERY: Duration = Duration::from_secs(3600);

/// What a unit is told once.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Who it is.
    pub site: Site,
    /// Namespace of the vehicles' device topics.
    pub namespace: Namespace,
    /// Interval of heartbeats.
    pub heartbeat: Duration,
    /// Heartbeats that must fail to come.
    pub misses: u32,
    /// How long a round waits for further vehicles.
    pub settle: Duration,
    /// Bounds on uploads.
    pub uploads: UploadLimits,
}

/// What arrives at a unit.
#[derive(Clone, Debug)]
pub enum Input {
    /// A message of a vehicle.
    Message {
        /// Where it came.
        topic: String,
        /// What came.
        payload: Vec<u8>,
    },
    /// A heartbeat that was read already.
    Heartbeat {
        /// Whose.
        vehicle: VehicleId,
        /// Which start of it.
        generation: Generation,
        /// Pictures at hand.
        num_examples: u64,
    },
    /// The cloud's plan, whole.
    Plan(Plan),
    /// A model whose bytes hash to the digest.
    Model {
        /// The digest.
        digest: Digest,
        /// The model's frame.
        frame: Vec<u8>,
    },
    /// The cloud's answer to a partial aggregate.
    PartialAnswer {
        /// Of which job.
        job: JobId,
        /// Which partial aggregate.
        partial_id: UpdateId,
        /// What became of it.
        verdict: Verdict,
    },
}

/// Messages that came and went no further.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Topics that are none of ours, or not for us.
    pub foreign: u64,
    /// Bodies that could not be read.
    pub damaged: u64,
}

/// A whole roadside unit; see the module's text.
#[derive(Debug)]
pub struct Unit {
    settings: Settings,
    fleet: Fleet,
    uploads: Uploads<(JobId, VehicleId)>,
    regions: BTreeMap<JobId, Region>,
    warned: BTreeSet<VehicleId>,
    counters: Counters,
    /// Round numbers of new jobs begin after this one.
    rounds_before: RoundId,
    next_forget: Timestamp,
}

impl Unit {
    /// A unit with what was stored. Its generation is durable before anything it shows.
    pub fn new(
        settings: Settings,
        now: Timestamp,
        stored: Stored,
        models: &dyn Fn(Digest) -> Option<Vec<u8>>,
        frames: &dyn Fn(&JobId, FrameKey<'_>) -> Option<Vec<u8>>,
    ) -> (Self, Vec<Effect>) {
        let fleet = Fleet::new(
            now,
            settings.heartbeat,
            settings.misses,
            settings.settle,
            stored.vehicles,
        );
        let mut effects = vec![Effect::Write(Write::Generation(settings.site.generation))];
        let mut regions = BTreeMap::new();
        for (job, stored) in stored.jobs {
            let frames = |key: FrameKey<'_>| frames(&job, key);
            let restored = Region::restore(settings.site.clone(), stored, models, &frames);
            if let Some(mut region) = restored {
                effects.extend(region.on_start());
                regions.insert(job, region);
            }
        }
        // After damage nobody knows which numbers were given: seconds since 1970 are beyond all of them.
        let rounds_before = if stored.damaged { now.0 / 1000 } else { 0 };
        let unit = Self {
            uploads: Uploads::new(settings.uploads),
            fleet,
            regions,
            warned: BTreeSet::new(),
            counters: Counters::default(),
            rounds_before: RoundId(rounds_before),
            next_forget: now + FORGET_EVERY,
            settings,
        };
        // Where the broker outlived this unit, vehicles do not know that they must register again.
        let asked: Vec<VehicleId> = unit.fleet.known().cloned().collect();
        effects.extend(
            asked
                .into_iter()
                .map(|vehicle| unit.control(vehicle, false)),
        );
        (unit, effects)
    }

    /// Takes in one thing; never blocks and never fails. [`Unit::on_flushed`] and [`Unit::on_tick`] follow.
    pub fn handle(&mut self, now: Timestamp, input: Input) -> Vec<Effect> {
        match input {
            Input::Message { topic, payload } => self.on_message(now, &topic, &payload),
            Input::Heartbeat {
                vehicle,
                generation,
                num_examples,
            } => self.on_heartbeat(now, vehicle, generation, num_examples),
            Input::Plan(plan) => self.on_plan(now, plan),
            Input::Model { digest, frame } => {
                let regions = self.regions.values_mut();
                regions
                    .flat_map(|region| region.on_model(digest, frame.clone()))
                    .collect()
            }
            Input::PartialAnswer {
                job,
                partial_id,
                verdict,
            } => {
                let region = self.regions.get_mut(&job);
                region.map_or_else(Vec::new, |r| r.on_partial_answer(partial_id, verdict))
            }
        }
    }

    fn on_plan(&mut self, now: Timestamp, plan: Plan) -> Vec<Effect> {
        let mut effects = Vec::new();
        let named: BTreeSet<JobId> = plan.jobs.iter().map(|job| job.spec.job.clone()).collect();
        for plan in plan.jobs {
            let job = plan.spec.job.clone();
            if let Some(region) = self.regions.get_mut(&job) {
                effects.extend(region.on_plan(now, plan));
                continue;
            }
            if self.regions.len() >= MAX_JOBS {
                tracing::warn!(%job, limit = MAX_JOBS, "too many jobs, this one is passed over");
                continue;
            }
            let told = Event::PlanAdopted {
                job: job.clone(),
                merge_round: plan.merge_round,
                base_version: plan.base_version,
                paused: plan.paused,
            };
            let first = self.rounds_before.next();
            if let Some(region) = Region::new(self.settings.site.clone(), now, plan, first) {
                effects.push(region.save());
                effects.push(Effect::Tell(told));
                self.regions.insert(job, region);
            }
        }
        for (job, region) in &mut self.regions {
            if !named.contains(job) {
                effects.extend(region.on_removed(now));
            }
        }
        effects
    }

    /// Everything that was stored so far is durable: answers go out.
    pub fn on_flushed(&mut self, now: Timestamp) -> Vec<Effect> {
        let regions = self.regions.values_mut();
        regions.flat_map(|region| region.on_flushed(now)).collect()
    }

    /// The rule of a closed round has run.
    pub fn on_aggregated(
        &mut self,
        now: Timestamp,
        job: &JobId,
        round: RoundId,
        result: Result<WeightedSum, OrderError>,
    ) -> Vec<Effect> {
        let region = self.regions.get_mut(job);
        region.map_or_else(Vec::new, |region| {
            region.on_aggregated(now, &self.fleet, round, result)
        })
    }

    /// Does what the time asks for.
    pub fn on_tick(&mut self, now: Timestamp) -> Vec<Effect> {
        let mut effects = Vec::new();
        for vehicle in self.fleet.on_tick(now) {
            effects.extend(changed(&vehicle, Change::Lost));
        }
        if now >= self.next_forget {
            self.next_forget = now + FORGET_EVERY;
            let gone = self.fleet.forget(now).into_iter();
            effects.extend(gone.map(|id| Effect::Write(Write::ForgetVehicle(id))));
        }
        for effect in self.uploads.on_tick(now) {
            effects.extend(self.on_upload(now, effect, None));
        }
        for region in self.regions.values_mut() {
            effects.extend(region.on_tick(now, &self.fleet));
        }
        effects
    }

    /// When [`Unit::on_tick`] is next worth calling, if nothing arrives before.
    pub fn next_deadline(&self, now: Timestamp) -> Timestamp {
        let hold = self.fleet.hold_until();
        let waits = hold > now && self.regions.values().any(|region| region.is_ready(now));
        let regions = self.regions.values().filter_map(Region::next_deadline);
        regions
            .chain(self.fleet.next_deadline())
            .chain(self.uploads.next_deadline())
            .chain(waits.then_some(hold))
            .chain([self.next_forget])
            .min()
            .unwrap_or(self.next_forget)
    }

    /// Models that are not here yet: job, digest, length.
    pub fn wanted_models(&self) -> Vec<(JobId, Digest, u64)> {
        let wanted = self.regions.iter().filter_map(|(job, region)| {
            let (digest, bytes) = region.wanted_model()?;
            Some((job.clone(), digest, bytes))
        });
        wanted.collect()
    }

    /// Partial aggregates that the cloud has not answered.
    pub fn pending(&self) -> impl Iterator<Item = (&JobId, &Pending)> {
        let regions = self.regions.iter();
        regions.filter_map(|(job, region)| Some((job, region.pending()?)))
    }

    /// Models that must stay on disk.
    pub fn models(&self) -> Vec<Digest> {
        self.regions.values().flat_map(Region::models).collect()
    }

    /// Bytes that no event has told of yet.
    pub fn tell_traffic(&mut self) -> Vec<Effect> {
        let regions = self.regions.values_mut();
        regions.filter_map(Region::tell_traffic).collect()
    }

    /// Chunks dropped since the start because unfinished uploads took all room.
    pub fn turned_away(&self) -> u64 {
        self.uploads.turned_away()
    }

    /// Messages that went no further.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    fn control(&self, vehicle: VehicleId, registered: bool) -> Effect {
        let generation = self.settings.site.generation;
        let control = if registered {
            Control::Registered(generation)
        } else {
            Control::Register(generation)
        };
        Effect::Publish {
            topic: Topic::Control {
                roadside: self.settings.site.roadside.clone(),
                vehicle,
            },
            payload: control.encode(),
            retain: false,
        }
    }
}

#[cfg(test)]
mod tests;
