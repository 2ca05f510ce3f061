//! The vehicle as a state machine without I/O: what to fetch, when to train, what to send, what to forget.
//!
//! Several jobs may run; one thread works, so one job at a time extracts features or trains. The caller owns clock,
//! link, disk and threads: it reports what happened and carries out the [`Effect`]s in order.
//!
//! Invariants:
//! - at most one training for each (job, round) succeeds: a round that is done, or whose update waits in the outbox, is
//!   never trained again, also after a restart;
//! - nothing is trained but the newest announced round of a job, from its announced model, in its cohort;
//! - an update leaves the outbox on a receipt that names it, by age, or to make room, and the caller is told which;
//! - what failed to train is not sent, and not tried again in that round;
//! - every wait has a time at which something is tried again ([`Vehicle::next_deadline`]).

mod download;
mod job;
mod plan;
mod types;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use wayside_domain::encoding::Ladder;
use wayside_domain::ids::{Digest, JobId, RoundId, UpdateId};
use wayside_domain::job::JobSpec;
use wayside_domain::outbox::{Outbox, OutboxEntry, OutboxLimits};
use wayside_domain::time::Timestamp;
use wayside_domain::update::Verdict;
use wayside_proto::topics::ModelKey;

pub use download::Download;
pub use job::{Announced, Unfit};
use job::{Features, Job, Spec};
pub use types::{Effect, Encoded, Fixed, Leaves, LinkFigures, Order, Phase, Restored, WorkDone};

/// Most jobs that are followed at once; one that is not open makes room for a newcomer.
pub const MAX_JOBS: usize = 16;
/// Most updates that wait for a receipt.
pub const MAX_OUTBOX: usize = 32;
/// Age at which an update is given up.
pub const OUTBOX_AGE: Duration = Duration::from_secs(24 * 3600);
/// Silence after which a model is asked for again.
pub const FETCH_AGAIN: Duration = Duration::from_secs(10);
/// Wait before features that could not be had are tried again.
pub const FEATURES_AGAIN: Duration = Duration::from_secs(60);
/// Most chunks that one request for missing ones may name.
const MAX_NEED: usize = 1024;

/// The work that the one working thread does.
#[derive(Clone, Debug)]
struct Work {
    job: JobId,
    /// The order, if it is training.
    order: Option<Order>,
    cancelled: bool,
}

/// The vehicle; see the module's text.
#[derive(Debug)]
pub struct Vehicle {
    fixed: Fixed,
    link_up: bool,
    paused: bool,
    jobs: BTreeMap<JobId, Job>,
    done: BTreeMap<JobId, RoundId>,
    models: BTreeSet<Digest>,
    work: Option<Work>,
    /// Orders whose update is being made durable.
    sealing: Option<(JobId, RoundId)>,
    outbox: Outbox,
    /// Updates whose chunks are being handed to the link.
    handing: BTreeSet<UpdateId>,
    /// Bytes of the updates in the outbox that were sealed since the start.
    sealed_bytes: BTreeMap<UpdateId, usize>,
    last_sent: Timestamp,
    num_examples: u64,
    figures: LinkFigures,
}

impl Vehicle {
    /// A vehicle as it was stored, without a link.
    pub fn new(fixed: Fixed, restored: Restored) -> Self {
        let limits = OutboxLimits {
            max_entries: MAX_OUTBOX,
            resend_after: fixed.resend_after,
            max_age: OUTBOX_AGE,
        };
        Self {
            fixed,
            link_up: false,
            paused: false,
            jobs: BTreeMap::new(),
            done: restored.done,
            models: restored.models,
            work: None,
            sealing: None,
            outbox: Outbox::restore(limits, restored.outbox),
            handing: BTreeSet::new(),
            sealed_bytes: BTreeMap::new(),
            last_sent: Timestamp(0),
            num_examples: restored.num_examples,
            figures: LinkFigures::default(),
        }
    }

    /// The link is up and all filters are subscribed, or it is gone.
    pub fn on_link(&mut self, now: Timestamp, up: bool) -> Vec<Effect> {
        self.link_up = up;
        self.handing.clear();
        let mut effects = Vec::new();
        if up {
            effects.push(self.presence());
            self.outbox.on_link_up();
            // A model's filter is among those that the link subscribes; only the clock starts again.
            for fetch in self.jobs.values_mut().filter_map(|job| job.fetch.as_mut()) {
                fetch.again = now + FETCH_AGAIN;
            }
        }
        self.plan(now, &mut effects);
        effects
    }

    /// The roadside unit does not know the vehicle.
    pub fn on_register(&mut self) -> Vec<Effect> {
        vec![self.presence()]
    }

    /// A job's state at the roadside unit. `live` tells a message that was sent now from one that the broker kept.
    pub fn on_announcement(
        &mut self,
        now: Timestamp,
        job: &JobId,
        announced: Announced,
        live: bool,
    ) -> Vec<Effect> {
        let mut effects = Vec::new();
        let Some(known) = self.job_or_room(job) else {
            return effects;
        };
        if known
            .announced
            .as_ref()
            .is_some_and(|old| old.round > announced.round)
        {
            return effects; // a late delivery
        }
        known.announced = Some(announced);
        // The unit is there: what waits is sent at once, but not what was sent just now.
        if live && now.since(self.last_sent) >= self.fixed.resend_after {
            self.outbox.on_link_up();
        }
        self.plan(now, &mut effects);
        effects
    }

    /// What a job asks, checked and stored. `max_model_bytes` is what its schema allows for a model's frame.
    pub fn on_job_spec(
        &mut self,
        now: Timestamp,
        digest: Digest,
        spec: Arc<JobSpec>,
        max_model_bytes: usize,
    ) -> Vec<Effect> {
        let mut effects = Vec::new();
        let unfit = self.unfit(&spec);
        let name = spec.job.clone();
        let Some(job) = self.job_or_room(&name) else {
            return effects;
        };
        if job
            .spec
            .as_ref()
            .is_some_and(|known| known.digest == digest)
        {
            return effects;
        }
        if let Some(why) = unfit {
            let job = name.clone();
            effects.push(Effect::NotTakingPart { job, why });
        }
        let same_pictures = job.spec.as_ref().is_some_and(|known| {
            let (old, new) = (&known.asks.model, &spec.model);
            old.classes == new.classes
                && (old.input_height, old.input_width) == (new.input_height, new.input_width)
        });
        if !same_pictures {
            job.features = Features::Missing;
        }
        if job
            .spec
            .as_ref()
            .is_none_or(|known| known.asks.codec != spec.codec)
        {
            job.ladder = Some(Ladder::new(spec.codec));
        }
        job.spec = Some(Spec {
            digest,
            asks: spec,
            max_model_bytes,
            fits: unfit.is_none(),
        });
        self.plan(now, &mut effects);
        effects
    }

    /// A chunk of a model.
    pub fn on_model_part(
        &mut self,
        job: &JobId,
        key: ModelKey,
        index: usize,
        data: Vec<u8>,
    ) -> Vec<Effect> {
        let Some(fetch) = self.jobs.get_mut(job).and_then(|job| job.fetch.as_mut()) else {
            return Vec::new();
        };
        if fetch.storing || ModelKey::of(&fetch.model) != key {
            return Vec::new();
        }
        let Some(bytes) = fetch.download.on_part(index, data) else {
            return Vec::new();
        };
        fetch.storing = true;
        vec![Effect::StoreModel {
            job: job.clone(),
            model: fetch.model,
            bytes,
        }]
    }

    /// The model is on disk, or its bytes were not the right ones.
    pub fn on_model_stored(
        &mut self,
        now: Timestamp,
        job: &JobId,
        model: Digest,
        good: bool,
    ) -> Vec<Effect> {
        let mut effects = Vec::new();
        if good {
            self.models.insert(model);
            let needed: BTreeSet<Digest> = (self.jobs.values())
                .filter_map(|job| job.announced.as_ref())
                .chain((self.work.iter()).filter_map(|work| Some(&work.order.as_ref()?.round)))
                .map(|announced| announced.model)
                .chain([model])
                .collect();
            let gone: Vec<Digest> = self.models.difference(&needed).copied().collect();
            self.models.retain(|model| needed.contains(model));
            if !gone.is_empty() {
                effects.push(Effect::DropModels(gone));
            }
        }
        if let Some(known) = self.jobs.get_mut(job)
            && let Some(fetch) = known.fetch.as_mut().filter(|fetch| fetch.model == model)
        {
            fetch.storing = false;
            if good {
                known.fetch = None;
                let job = job.clone();
                effects.push(Effect::LeaveModel { job, model });
            } else {
                fetch.again = now + FETCH_AGAIN;
            }
        }
        self.plan(now, &mut effects);
        effects
    }

    /// A model on disk turned out to be damaged: it is fetched again.
    pub fn on_model_lost(&mut self, model: Digest) {
        self.models.remove(&model);
    }

    /// The work that was started has ended.
    pub fn on_work_done(&mut self, now: Timestamp, done: WorkDone) -> Vec<Effect> {
        let mut effects = Vec::new();
        let Some(work) = self.work.take() else {
            return effects;
        };
        match (done, work.order) {
            (WorkDone::Features { job, num_examples }, _) => {
                self.set_examples(&job, num_examples, &mut effects);
            }
            (WorkDone::Trained(encoded), Some(order)) => {
                self.set_examples(&encoded.job, encoded.num_examples, &mut effects);
                if self.is_current(&order) {
                    self.sealing = Some((order.job.clone(), order.round.round));
                    effects.push(Effect::Seal(Box::new((order, encoded))));
                }
            }
            (WorkDone::Failed, Some(order)) => self.set_failed(&order.job, order.round.round),
            (WorkDone::Failed, None) => {
                if let Some(job) = self.jobs.get_mut(&work.job) {
                    let again = now + FEATURES_AGAIN;
                    job.features = Features::Failed { again };
                }
            }
            (WorkDone::Trained(_) | WorkDone::Cancelled, _) => {}
        }
        self.plan(now, &mut effects);
        effects
    }

    /// The update is durable: it may be sent. `None`: it could not be stored, so it must not be.
    ///
    /// - `entry`: with the bytes of the encoded update.
    pub fn on_sealed(
        &mut self,
        now: Timestamp,
        entry: Option<(OutboxEntry, usize)>,
    ) -> Vec<Effect> {
        let mut effects = Vec::new();
        let Some((job, round)) = self.sealing.take() else {
            return effects;
        };
        match entry {
            Some((entry, bytes)) => {
                self.done.insert(job, round);
                let outbox = &self.outbox;
                self.sealed_bytes.retain(|id, _| outbox.get(*id).is_some());
                self.sealed_bytes.insert(entry.update_id, bytes);
                for entry in self.outbox.push(entry) {
                    let why = Leaves::MadeRoom;
                    effects.push(Effect::DropUpdate { entry, why });
                }
            }
            None => self.set_failed(&job, round),
        }
        self.plan(now, &mut effects);
        effects
    }

    /// All chunks of a [`Effect::SendUpdate`] are with the link.
    pub fn on_handed_over(&mut self, now: Timestamp, update_id: UpdateId) -> Vec<Effect> {
        self.handing.remove(&update_id);
        let mut effects = Vec::new();
        self.plan(now, &mut effects);
        effects
    }

    /// A stored update cannot be read any more: nothing can be sent again.
    pub fn on_update_lost(&mut self, now: Timestamp, update_id: UpdateId) -> Vec<Effect> {
        self.handing.remove(&update_id);
        let gone = self.outbox.on_receipt(update_id).into_iter();
        let why = Leaves::Lost;
        let mut effects: Vec<Effect> = gone
            .map(|entry| Effect::DropUpdate { entry, why })
            .collect();
        self.plan(now, &mut effects);
        effects
    }

    /// The roadside unit's answer to an update, and the round that was open then.
    pub fn on_receipt(
        &mut self,
        now: Timestamp,
        job: &JobId,
        update_id: UpdateId,
        verdict: Verdict,
        current_round: RoundId,
    ) -> Vec<Effect> {
        let mut effects = Vec::new();
        if self
            .outbox
            .get(update_id)
            .is_none_or(|entry| entry.job != *job)
        {
            return effects;
        }
        let Some(entry) = self.outbox.on_receipt(update_id) else {
            return effects;
        };
        self.handing.remove(&update_id);
        let latency = now.since(entry.sealed);
        let budget = self.latency_budget(job);
        let within_budget = latency <= budget;
        self.figures.receipts += 1;
        self.figures.within_budget += u64::from(within_budget);
        self.figures.last_latency_ms = u64::try_from(latency.as_millis()).unwrap_or(u64::MAX);
        let why = Leaves::Receipt {
            verdict,
            latency,
            within_budget,
        };
        effects.push(Effect::DropUpdate { entry, why });
        let sealed_bytes = self.sealed_bytes.remove(&update_id);
        if let Some(bytes) = sealed_bytes {
            let ms = latency.as_millis().max(1);
            let goodput = bytes as u128 * 1000 / ms;
            self.figures.goodput_bytes_per_s = u64::try_from(goodput).unwrap_or(u64::MAX);
        }
        if let Some(known) = self.jobs.get_mut(job) {
            let ladder = known.ladder.as_mut().zip(sealed_bytes);
            let step = ladder.and_then(|(ladder, bytes)| ladder.on_receipt(bytes, latency, budget));
            if let Some(step) = step {
                let job = job.clone();
                effects.push(Effect::Stepped { job, step });
            }
            // A buffered round counts a vehicle once, also with an update that was made for an earlier one.
            if known.max_staleness().is_some() && verdict.counts() {
                let done = self.done.entry(job.clone()).or_insert(current_round);
                *done = current_round.max(*done);
            }
        }
        self.plan(now, &mut effects);
        effects
    }

    /// The roadside unit misses chunks.
    pub fn on_need(
        &mut self,
        job: &JobId,
        update_id: UpdateId,
        mut missing: Vec<u32>,
    ) -> Vec<Effect> {
        let known = self
            .outbox
            .get(update_id)
            .is_some_and(|entry| entry.job == *job);
        if !known || !self.link_up || missing.is_empty() || !self.handing.insert(update_id) {
            return Vec::new();
        }
        missing.truncate(MAX_NEED);
        let chunks = Some(missing);
        vec![Effect::SendUpdate { update_id, chunks }]
    }

    /// The host says that no work may be done, or may again.
    pub fn on_paused(&mut self, now: Timestamp, paused: bool) -> Vec<Effect> {
        self.paused = paused;
        let mut effects = Vec::new();
        self.plan(now, &mut effects);
        effects
    }

    /// Time has passed.
    pub fn on_tick(&mut self, now: Timestamp) -> Vec<Effect> {
        let mut effects = Vec::new();
        for entry in self.outbox.expire(now) {
            let why = Leaves::Expired;
            effects.push(Effect::DropUpdate { entry, why });
        }
        self.plan(now, &mut effects);
        effects
    }

    /// When [`Self::on_tick`] is next worth calling.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        let resend = (self.outbox.next_deadline(&self.fixed.roadside)).filter(|_| self.link_up);
        let expiry = self
            .outbox
            .entries()
            .map(|entry| entry.sealed + OUTBOX_AGE)
            .min();
        let expiry = expiry.map(|at| at + Duration::from_millis(1));
        let fetch = (self.jobs.values())
            .filter_map(|job| job.fetch.as_ref())
            .filter(|fetch| self.link_up && !fetch.storing)
            .map(|fetch| fetch.again)
            .min();
        let features = (self.jobs.values())
            .filter_map(|job| match job.features {
                Features::Failed { again } if self.work.is_none() && !self.paused => Some(again),
                _ => None,
            })
            .min();
        [resend, expiry, fetch, features]
            .into_iter()
            .flatten()
            .min()
    }

    /// What the vehicle does.
    pub fn phase(&self) -> Phase {
        let jobs = self.jobs.values();
        if self.paused {
            Phase::Paused
        } else if let Some(work) = &self.work {
            match work.order {
                Some(_) => Phase::Training,
                None => Phase::Preparing,
            }
        } else if jobs.clone().any(|job| job.fetch.is_some()) {
            Phase::Fetching
        } else if !self.outbox.is_empty() || self.sealing.is_some() {
            Phase::Uploading
        } else if jobs.clone().any(Job::has_failed) {
            Phase::Failed
        } else {
            Phase::Idle
        }
    }

    /// The announced round and model that a heartbeat names: of the job that is worked on, else of the first one.
    pub fn current(&self) -> Option<(&JobId, &Announced)> {
        let working = self
            .work
            .as_ref()
            .and_then(|work| self.jobs.get_key_value(&work.job));
        working
            .into_iter()
            .chain(&self.jobs)
            .find_map(|(id, job)| Some((id, job.announced.as_ref()?)))
    }

    /// Pictures at hand.
    pub fn num_examples(&self) -> u64 {
        self.num_examples
    }

    /// What receipts said about the link.
    pub fn figures(&self) -> LinkFigures {
        self.figures
    }

    /// Updates that wait for a receipt.
    pub fn outbox(&self) -> &Outbox {
        &self.outbox
    }

    fn presence(&self) -> Effect {
        Effect::PublishPresence {
            num_examples: self.num_examples,
        }
    }

    /// The job, taken in if there is room.
    fn job_or_room(&mut self, job: &JobId) -> Option<&mut Job> {
        if !self.jobs.contains_key(job) && self.jobs.len() >= MAX_JOBS {
            let busy = self.work.as_ref().map(|work| &work.job);
            let rest = (self.jobs.iter())
                .find(|(id, job)| !job.is_open() && job.fetch.is_none() && busy != Some(*id));
            let rest = rest.map(|(id, _)| id.clone())?;
            self.jobs.remove(&rest);
        }
        Some(self.jobs.entry(job.clone()).or_default())
    }

    fn unfit(&self, spec: &JobSpec) -> Option<Unfit> {
        let (got, fixed) = (&spec.model, &self.fixed);
        if let Some(asked) = got.backbone.filter(|asked| *asked != fixed.backbone) {
            let here = fixed.backbone;
            return Some(Unfit::Backbone { asked, here });
        }
        if got.network != fixed.network {
            let (asked, here) = (got.network, fixed.network);
            return Some(Unfit::Network { asked, here });
        }
        (got.features() != fixed.features).then_some(Unfit::Features {
            asked: got.features(),
            here: fixed.features,
        })
    }

    fn latency_budget(&self, job: &JobId) -> Duration {
        let spec = self.jobs.get(job).and_then(|job| job.spec.as_ref());
        spec.map_or(Duration::from_millis(500), |spec| {
            spec.asks.round.latency_budget
        })
    }

    fn set_examples(&mut self, job: &JobId, num_examples: u64, effects: &mut Vec<Effect>) {
        if let Some(known) = self.jobs.get_mut(job) {
            if num_examples == 0 && known.features != (Features::Ready { num_examples: 0 }) {
                let (job, why) = (job.clone(), Unfit::NoExamples);
                effects.push(Effect::NotTakingPart { job, why });
            }
            known.features = Features::Ready { num_examples };
        }
        if std::mem::replace(&mut self.num_examples, num_examples) != num_examples && self.link_up {
            effects.push(self.presence());
        }
    }

    fn set_failed(&mut self, job: &JobId, round: RoundId) {
        if let Some(job) = self.jobs.get_mut(job) {
            job.failed = Some(round);
        }
    }

    /// Whether a round that was ordered is still wanted.
    fn is_current(&self, order: &Order) -> bool {
        let job = self.jobs.get(&order.job);
        let announced = job.and_then(|job| job.announced.as_ref());
        let late = job.and_then(Job::max_staleness);
        announced.is_some_and(|now| now.takes(&order.round, late.unwrap_or(0)))
    }

    /// Whether nothing is left to do for this round.
    fn is_settled(&self, id: &JobId, job: &Job, round: RoundId) -> bool {
        self.done.get(id).is_some_and(|done| *done >= round)
            || job.failed == Some(round)
            || self
                .sealing
                .as_ref()
                .is_some_and(|(job, sealing)| job == id && *sealing == round)
            || (self.outbox.entries()).any(|entry| {
                entry.job == *id && entry.round == round && entry.roadside == self.fixed.roadside
            })
    }
}

#[cfg(test)]
mod tests;
