//! The cloud in the city: the production machine of the job, and what its driver keeps and shows.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cloud_coordinator::federation::{
    Effect, Federation, Gate, JobState, Member, NewVersion, Partial, Stored, Unusable,
};
use roadside_aggregator::unit::Input;
use wayside_domain::head::Evaluation;
use wayside_domain::ids::{Digest, ModelVersion};
use wayside_domain::update::Verdict;
use wayside_proto::convert::{JobPlan, PartialAggregate, Plan, Wire as _};

use super::env::{Env, Out};
use super::event::{Actor, Millis, What};
use super::log::Entry;

/// Frames of versions that are kept for units that ask.
const KEEP_FRAMES: usize = 8;

/// A version on its curve.
#[derive(Clone, Debug)]
pub struct Made {
    /// When.
    pub at: Millis,
    /// Which.
    pub version: ModelVersion,
    /// Whether it goes to the fleet.
    pub released: bool,
    /// On the test set; `None` where it was not looked at.
    pub evaluation: Option<Evaluation>,
    /// Vehicles behind it.
    pub contributors: u32,
    /// Examples behind it.
    pub num_examples: u64,
    /// Bytes from and to vehicles up to now.
    pub up_bytes: u64,
    /// Bytes to vehicles.
    pub down_bytes: u64,
}

/// The cloud.
#[derive(Debug)]
pub struct Cloud {
    machine: Option<Federation>,
    durable: Stored,
    partials: Vec<Partial>,
    connected: BTreeSet<u32>,
    plan: Option<JobPlan>,
    frames: BTreeMap<Digest, Arc<[u8]>>,
    order: Vec<Digest>,
    tick_at: Option<Millis>,
    count: u64,
    up_bytes: u64,
    down_bytes: u64,
    /// Each version is evaluated that is a multiple of this.
    evaluate_every: u64,
    /// Versions that were made since the last look.
    pub made: Vec<Made>,
    /// What the newest version's frame decodes to.
    pub parameters: Vec<f32>,
}

impl Cloud {
    /// Begins the job.
    ///
    /// # Errors
    /// [`Unusable`] if the first version cannot be framed.
    pub fn new(env: &Env, evaluate_every: u64) -> Result<Self, Unusable> {
        let rules = env.definition.rules.clone();
        let held_back = env.definition.held_back.clone();
        let now = env.stamp(0);
        let (machine, first) = Federation::begin(rules, held_back, env.spec.training.seed, now)?;
        let durable = Stored {
            progress: machine.progress().clone(),
            model: machine.model().clone(),
            open: None,
            counted: Vec::new(),
            receipts: Vec::new(),
            members: BTreeMap::new(),
        };
        let mut cloud = Self {
            machine: Some(machine),
            durable,
            partials: Vec::new(),
            connected: BTreeSet::new(),
            plan: None,
            frames: BTreeMap::new(),
            order: Vec::new(),
            tick_at: None,
            count: 0,
            up_bytes: 0,
            down_bytes: 0,
            evaluate_every: evaluate_every.max(1),
            made: Vec::new(),
            parameters: Vec::new(),
        };
        cloud.keep_version(env, 0, &first);
        Ok(cloud)
    }

    /// Its count of events.
    pub fn count(&mut self) -> &mut u64 {
        &mut self.count
    }

    /// The job has its last version.
    pub fn is_finished(&self) -> bool {
        let machine = self.machine.as_ref();
        machine.is_some_and(|machine| machine.state() == JobState::Finished)
    }

    /// Something happens to it.
    pub fn handle(&mut self, env: &Env, at: Millis, what: What, out: &mut Out<'_>) {
        let now = env.stamp(at);
        let cause = out.cause;
        if let What::Power(on) = what {
            self.power(env, at, on, out);
            return;
        }
        let Some(machine) = &mut self.machine else {
            return;
        };
        match (what, cause) {
            (What::Hello, Actor::Unit(unit)) => {
                self.connected.insert(unit);
                let effects = machine.on_hello(now, &env.units[unit as usize]);
                self.settle(env, at, effects, out);
                self.tell_plan(env, at, unit, out);
            }
            (What::UnitLost, Actor::Unit(unit)) => {
                self.connected.remove(&unit);
                machine.on_lost(now, &env.units[unit as usize]);
            }
            (What::FetchModel(digest), Actor::Unit(unit)) => {
                if let Some(frame) = self.frames.get(&digest) {
                    let takes = frame.len() as u64 / env.tiers.backhaul_bytes_per_ms.max(1);
                    let what = What::Model(digest, Arc::clone(frame));
                    out.send(at + env.tiers.backhaul_ms + takes, Actor::Unit(unit), what);
                }
            }
            (What::Submit(job, partial_id, bytes), Actor::Unit(unit)) => {
                let Ok(wire) = PartialAggregate::decode(&bytes) else {
                    return;
                };
                let (partial, _) = Partial::from_wire(&wire, &env.schema);
                let kept = partial.clone();
                let effects = machine.on_partial(now, partial);
                let mut answer = None;
                for effect in &effects {
                    if let Effect::Reply { verdict, .. } = effect {
                        answer = Some(*verdict);
                    }
                    if let Effect::Judged(judged) = effect {
                        self.up_bytes += judged.tally.up_bytes;
                        self.down_bytes += judged.tally.down_bytes;
                        note_partial(env, at, &kept, judged.verdict, bytes.len(), out);
                        if judged.record {
                            let receipt = (judged.judged_in, judged.partial_id, judged.verdict);
                            self.durable.receipts.push(receipt);
                        }
                        if judged.verdict == Verdict::Accepted {
                            self.partials.push(kept.clone());
                        }
                    }
                }
                self.settle(env, at, effects, out);
                if let Some(verdict) = answer {
                    let input = Input::PartialAnswer {
                        job,
                        partial_id,
                        verdict,
                    };
                    let what = What::FromCloud(Box::new(input));
                    let arrives = at + env.tiers.flush_ms + env.tiers.backhaul_ms;
                    out.send(arrives, Actor::Unit(unit), what);
                }
            }
            (What::Tick, _) if self.tick_at.take_if(|due| *due <= at).is_some() => {
                let effects = machine.on_tick(now);
                self.settle(env, at, effects, out);
            }
            _ => {}
        }
        self.schedule_tick(env, at, out);
    }

    fn power(&mut self, env: &Env, at: Millis, on: bool, out: &mut Out<'_>) {
        out.note(at, Entry::Power { on });
        let units: Vec<u32> = (0..).take(env.units.len()).collect();
        if !on {
            self.machine = None;
            self.connected.clear();
            self.plan = None;
            for unit in units {
                out.send(
                    at + env.tiers.backhaul_ms,
                    Actor::Unit(unit),
                    What::Backhaul(false),
                );
            }
            return;
        }
        let mut stored = self.durable.clone();
        stored.counted.clone_from(&self.partials);
        let rules = env.definition.rules.clone();
        let held_back = env.definition.held_back.clone();
        self.machine = Some(Federation::restore(rules, held_back, stored, env.stamp(at)));
        self.tick_at = Some(at + 1);
        out.later(at + 1, What::Tick);
        for unit in units {
            out.send(
                at + env.tiers.backhaul_ms,
                Actor::Unit(unit),
                What::Backhaul(true),
            );
        }
    }

    /// Keeps what the effects say, and shows it.
    fn settle(&mut self, env: &Env, at: Millis, effects: Vec<Effect>, out: &mut Out<'_>) {
        for effect in effects {
            match effect {
                Effect::Version(version) => {
                    self.keep_version(env, at, &version);
                    out.note(at, version_entry(&version));
                }
                Effect::Closed(report) => {
                    self.partials.clear();
                    if report.closed.is_none_or(|(_, _, made)| made.is_none()) {
                        let merge_round = report.merge_round;
                        out.note(at, Entry::NoResult { merge_round });
                    }
                }
                Effect::Opened { merge_round, base } => {
                    out.note(at, Entry::MergeOpened { merge_round, base });
                }
                Effect::Finished => out.note(at, Entry::Finished),
                _ => {}
            }
        }
        let Some(machine) = &self.machine else { return };
        self.durable.progress = machine.progress().clone();
        self.durable.model = machine.model().clone();
        self.durable.open = machine.open_round();
        let present = Member {
            connected: false,
            last_seen: env.stamp(at),
        };
        for unit in &self.connected {
            let roadside = env.units[*unit as usize].clone();
            self.durable.members.insert(roadside, present);
        }
        let plan = machine.plan(&env.spec);
        if self.plan.as_ref() != Some(&plan) {
            self.plan = Some(plan);
            let units: Vec<u32> = self.connected.iter().copied().collect();
            for unit in units {
                self.tell_plan(env, at, unit, out);
            }
        }
    }

    fn tell_plan(&self, env: &Env, at: Millis, unit: u32, out: &mut Out<'_>) {
        let Some(plan) = &self.plan else { return };
        let plan = Plan {
            jobs: vec![plan.clone()],
        };
        let what = What::FromCloud(Box::new(Input::Plan(plan)));
        let arrives = at + env.tiers.flush_ms + env.tiers.backhaul_ms;
        out.send(arrives, Actor::Unit(unit), what);
    }

    fn keep_version(&mut self, env: &Env, at: Millis, version: &NewVersion) {
        let frame: Arc<[u8]> = version.frame.as_slice().into();
        self.frames.insert(version.frame_digest, frame);
        self.order.retain(|known| *known != version.frame_digest);
        self.order.push(version.frame_digest);
        if self.order.len() > KEEP_FRAMES {
            let old = self.order.remove(0);
            self.frames.remove(&old);
        }
        let last = env.definition.rules.merges;
        let due = version.version.0.is_multiple_of(self.evaluate_every)
            || (last > 0 && version.merge_round.0 >= last);
        let evaluation = due.then(|| {
            let (features, labels) = &env.examples.test;
            let head = env.spec.model.join_head(&version.parameters, &[]);
            env.learner.evaluate(&head, features.view(), labels)
        });
        self.parameters.clone_from(&version.parameters);
        self.made.push(Made {
            at,
            version: version.version,
            released: version.gate == Gate::Released,
            evaluation,
            contributors: version.contributors,
            num_examples: version.num_examples,
            up_bytes: self.up_bytes,
            down_bytes: self.down_bytes,
        });
    }

    fn schedule_tick(&mut self, env: &Env, at: Millis, out: &mut Out<'_>) {
        let Some(due) = self.machine.as_ref().and_then(Federation::next_deadline) else {
            return;
        };
        let due = env.millis(due).max(at + 1);
        if self.tick_at.is_none_or(|known| due < known) {
            self.tick_at = Some(due);
            out.later(due, What::Tick);
        }
    }
}

fn note_partial(
    env: &Env,
    at: Millis,
    partial: &Partial,
    verdict: Verdict,
    bytes: usize,
    out: &mut Out<'_>,
) {
    let line = |line: &cloud_coordinator::federation::Line| {
        let vehicle = env.index_of(&line.vehicle);
        (vehicle, line.update_id, line.num_examples, line.verdict)
    };
    out.note(
        at,
        Entry::Partial {
            unit: env.index_of_unit(&partial.roadside),
            merge_round: partial.merge_round,
            verdict,
            num_examples: partial.num_examples,
            lines: partial.lines.iter().map(line).collect(),
            up_bytes: partial.up_bytes,
            down_bytes: partial.down_bytes,
            bytes,
        },
    );
}

fn version_entry(version: &NewVersion) -> Entry {
    Entry::Version {
        version: version.version,
        merge_round: version.merge_round,
        released: version.gate == Gate::Released,
        frame: version.frame_digest.to_hex()[..16].to_owned(),
        num_examples: version.num_examples,
        contributors: version.contributors,
        exact: version.exact,
    }
}
