//! One job at one roadside unit, as a machine without I/O: rounds with vehicles, one contribution a merge round.
//!
//! Told the time and what arrived, it returns what to store and what to show, in that order.
//!
//! Invariants: an update counts at most once, also after a restart and however often it is delivered; the first verdict
//! for an update of a vehicle stands; a round opens only on a complete model; round numbers only grow; at most one
//! contribution a merge round; a plan for another merge round ends whatever is open.
//!
//! Left to others: who is there ([`crate::fleet::Fleet`]), putting chunks together, reading frames ([`crate::intake`]), sockets,
//! files.

mod close;
mod intake;
mod ledger;
mod open;
#[cfg(test)]
mod tests;

pub use ledger::{Ledger, MAX_SUMMARIES, Pending, Published};

use std::collections::{BTreeMap, BTreeSet};

use wayside_domain::aggregate::WeightedSum;
use wayside_domain::encoding::UpdateEncoding;
use wayside_domain::ids::{Digest, JobId, RoadsideId, RoundId, UpdateId, VehicleId};
use wayside_domain::receipts::ReceiptBook;
use wayside_domain::round::Round;
use wayside_domain::schema::Schema;
use wayside_domain::time::Timestamp;
use wayside_domain::update::Verdict;
use wayside_proto::codec::{self, Reference};
use wayside_proto::convert::{Announcement, Contribution, JobPlan, Wire as _, chunk_count};
use wayside_proto::topics::{ModelKey, Topic};

use crate::aggregate::{Member, Order};
use crate::event::Event;
use crate::intake::Checked;
use crate::store::{FrameKey, StoredJob, StoredUpdate, Write};

/// Rounds for which receipts are kept.
const KEEP_RECEIPTS_ROUNDS: u64 = 64;
/// Receipts that are kept at most; beyond them only accepted updates get theirs written down.
const MAX_RECEIPTS: usize = 65_536;
/// Lines that wait for the next partial aggregate at most; beyond them only accepted updates get one.
const MAX_LINES: usize = 65_536;
/// Updates of one vehicle that are written down in one round; further ones are answered and forgotten.
const MAX_JUDGED: u32 = 16;

/// What the caller must do next, in this order; everything stored is durable before anything is shown.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Store this.
    Write(Write),
    /// Send this to vehicles.
    Publish {
        /// Where.
        topic: Topic,
        /// What; empty and retained clears the topic.
        payload: Vec<u8>,
        /// The broker keeps it for those who come later.
        retain: bool,
    },
    /// Tell whoever watches.
    Tell(Event),
    /// Run the rule of a closed round over its frames, and answer with [`Region::on_aggregated`].
    Aggregate(Box<Order>),
}

impl PartialEq for Order {
    /// Orders are about one round of one job each.
    fn eq(&self, other: &Self) -> bool {
        (&self.job, self.round) == (&other.job, other.round)
    }
}

/// Who and how large this unit is.
#[derive(Clone, Debug)]
pub struct Site {
    /// Its name.
    pub roadside: RoadsideId,
    /// Bytes of one chunk of a model.
    pub chunk_bytes: usize,
    /// Which start of it, so that what it makes is not taken for what an earlier start made.
    pub generation: wayside_domain::ids::Generation,
}

/// A model that is here and whole.
#[derive(Clone, Debug)]
struct Loaded {
    digest: Digest,
    frame: Vec<u8>,
    parameters: Vec<f32>,
    /// Its values as the frame holds them, where the job's encodings need them.
    reference: Option<Reference>,
}

/// What reads frames that are stored.
pub type ReadFrame<'a> = &'a dyn Fn(FrameKey<'_>) -> Option<Vec<u8>>;

/// A verdict whose receipt waits for the flush.
#[derive(Clone, Debug)]
struct Unanswered {
    vehicle: VehicleId,
    update_id: UpdateId,
    round: RoundId,
    verdict: Verdict,
    first_chunk: Timestamp,
    /// Number of its line, where it has one.
    line: Option<u64>,
    again: bool,
}

/// One job; see the module's text.
#[derive(Debug)]
pub struct Region {
    site: Site,
    schema: Schema,
    schema_digest: Digest,
    job_digest: Digest,
    ledger: Ledger,
    /// The global model; what regional deltas are taken from.
    base: Option<Loaded>,
    /// The model that rounds start from: the global one, or the regional one.
    model: Option<Loaded>,
    round: Option<Round<VehicleId>>,
    /// The updates that the open or closing round has accepted.
    members: BTreeMap<VehicleId, Member>,
    /// A round that has an outcome and waits for its rule's result.
    closing: Option<Round<VehicleId>>,
    /// What the last round with a result gave.
    sum: Option<WeightedSum>,
    /// What rounding took from the last fp16 contribution; empty where there was none.
    residual: Vec<f32>,
    book: ReceiptBook,
    lines: BTreeMap<u64, Contribution>,
    /// Updates written down in this round, by vehicle.
    judged: BTreeMap<VehicleId, u32>,
    unanswered: Vec<Unanswered>,
    pending: Option<Pending>,
    /// Vehicles for which the present model and job were counted.
    served: BTreeSet<VehicleId>,
    /// Vehicles that were asked with this job before, since the start of this unit.
    job_served: BTreeSet<VehicleId>,
    /// The broker holds this job's specification, since the start of this unit.
    job_published: bool,
    /// When vehicles are to be told that no round is open.
    closed_due: Option<Timestamp>,
    /// What vehicles were told last.
    announced: Option<Announcement>,
    told_bytes: (u64, u64),
    /// A model that cannot be read is not asked for again.
    bad_model: Option<Digest>,
}

impl Region {
    /// A job that is new here. `first_round` is its first round's number.
    pub fn new(site: Site, now: Timestamp, plan: JobPlan, first_round: RoundId) -> Option<Self> {
        let ledger = Ledger::new(now, plan, first_round);
        Self::assemble(site, ledger)
    }

    /// A job as it was stored; `models` are the frames that the ledger names, as far as they are here.
    pub fn restore(
        site: Site,
        stored: StoredJob,
        models: &dyn Fn(Digest) -> Option<Vec<u8>>,
        frames: ReadFrame<'_>,
    ) -> Option<Self> {
        let mut region = Self::assemble(site, stored.ledger?)?;
        region.residual = stored.residual;
        for (key, round, verdict) in stored.receipts {
            region.book.record(round, key, verdict);
        }
        region.lines = (0..).zip(stored.lines).collect();
        region.ledger.next_line = region.lines.keys().last().map_or(0, |last| last + 1);
        region.pending = stored.pending;
        region.told_bytes = (region.ledger.up_bytes, region.ledger.down_bytes);
        for digest in [region.ledger.plan.model, region.ledger.model] {
            if let Some(frame) = models(digest) {
                region.take_model(digest, frame);
            }
        }
        if region.model.is_none() && region.ledger.model != region.ledger.plan.model {
            // The regional model is lost: what was learned in this merge round starts over from the global one.
            region.ledger.forget_rounds();
            region.model.clone_from(&region.base);
        }
        if let Some(terms) = region.ledger.terms.clone() {
            region.restore_round(terms, stored.updates, frames);
            region.doubt_lines();
        }
        Some(region)
    }

    fn restore_round(
        &mut self,
        terms: wayside_domain::round::RoundTerms<VehicleId>,
        updates: Vec<StoredUpdate>,
        frames: ReadFrame<'_>,
    ) {
        let mut accepted = Vec::new();
        let reference = self.model.as_ref().and_then(|m| m.reference.clone());
        for update in updates.into_iter().filter(|u| u.round == terms.round) {
            // One frame in memory at a time.
            let checked = frames(update.key()).and_then(|frame| {
                let exponents = &self.ledger.plan.exponents;
                Checked::read(&frame, &self.schema, exponents, reference.as_ref()).ok()
            });
            if let Some(checked) = checked {
                accepted.push((update.vehicle.clone(), update.accepted));
                self.add_member(&update, checked);
            } else {
                tracing::warn!(vehicle = %update.vehicle, round = %update.round, "stored update is damaged and does not count");
            }
        }
        self.round = Some(Round::restore(terms, accepted));
    }

    fn add_member(&mut self, update: &StoredUpdate, checked: Checked) {
        let member = Member::new(update, checked);
        self.members.insert(member.vehicle.clone(), member);
    }

    /// Lines of the open round whose update could not be read again do not count.
    fn doubt_lines(&mut self) {
        let Some(round) = &self.round else { return };
        for line in self.lines.values_mut() {
            let counts = round.accepted().get(&line.vehicle);
            let here = counts.is_some_and(|accepted| accepted.update_id == line.update_id);
            if line.round == round.id() && line.verdict == Verdict::Accepted && !here {
                line.verdict = Verdict::Stale;
            }
        }
    }

    fn assemble(site: Site, ledger: Ledger) -> Option<Self> {
        let schema = ledger.plan.spec.model.schema().ok()?;
        Some(Self {
            schema_digest: codec::schema_digest(&schema),
            job_digest: codec::digest(&ledger.plan.spec.encode()),
            schema,
            ledger,
            site,
            base: None,
            model: None,
            round: None,
            members: BTreeMap::new(),
            closing: None,
            sum: None,
            residual: Vec::new(),
            book: ReceiptBook::new(KEEP_RECEIPTS_ROUNDS, MAX_RECEIPTS),
            lines: BTreeMap::new(),
            judged: BTreeMap::new(),
            unanswered: Vec::new(),
            pending: None,
            served: BTreeSet::new(),
            job_served: BTreeSet::new(),
            job_published: false,
            closed_due: None,
            announced: None,
            told_bytes: (0, 0),
            bad_model: None,
        })
    }

    /// Its name.
    pub fn job(&self) -> &JobId {
        &self.ledger.plan.spec.job
    }

    /// Names and shapes of what is trained.
    pub fn schema(&self) -> &Schema {
        &self.schema
    }

    /// Scale exponents that updates must have.
    pub fn exponents(&self) -> &[i8] {
        &self.ledger.plan.exponents
    }

    /// The oldest and the newest round whose updates the open round takes.
    pub fn open_rounds(&self) -> Option<(RoundId, RoundId)> {
        let newest = self.open_round()?;
        let terms = self.round.as_ref()?.terms();
        let oldest = newest.0.saturating_sub(terms.max_staleness.unwrap_or(0));
        Some((RoundId(oldest), newest))
    }

    /// The model that the open round started from, where the job's encodings need it.
    pub fn reference(&self) -> Option<&Reference> {
        self.model.as_ref()?.reference.as_ref()
    }

    /// The round that is open.
    pub fn open_round(&self) -> Option<RoundId> {
        let round = self
            .round
            .as_ref()
            .filter(|round| round.outcome().is_none());
        round.map(Round::id)
    }

    /// The job takes no updates.
    pub fn is_paused(&self) -> bool {
        self.ledger.plan.paused
    }

    /// The model that is not here yet: its digest and length.
    pub fn wanted_model(&self) -> Option<(Digest, u64)> {
        let plan = &self.ledger.plan;
        let wanted = self.base.is_none() && !plan.paused && self.bad_model != Some(plan.model);
        wanted.then_some((plan.model, plan.model_bytes))
    }

    /// The partial aggregate that the cloud has not answered.
    pub fn pending(&self) -> Option<&Pending> {
        self.pending.as_ref()
    }

    /// Models that must stay on disk.
    pub fn models(&self) -> [Digest; 2] {
        [self.ledger.plan.model, self.ledger.model]
    }

    /// Counts bytes from vehicles.
    pub fn count_up(&mut self, bytes: usize) {
        self.ledger.up_bytes += bytes as u64;
    }

    /// Everything that vehicles are to find at the broker, after a start of this unit.
    pub fn on_start(&mut self) -> Vec<Effect> {
        let mut effects = self.publish_model();
        effects.extend(self.announce());
        effects
    }

    /// A plan arrived.
    pub fn on_plan(&mut self, now: Timestamp, plan: JobPlan) -> Vec<Effect> {
        if plan == self.ledger.plan {
            return Vec::new();
        }
        let same_basis = self.ledger.same_basis(&plan);
        let closes = !same_basis || plan.paused;
        let mut effects = if closes {
            self.abandon_round(now)
        } else {
            Vec::new()
        };
        if same_basis {
            self.ledger.amend(now, plan);
        } else {
            let same_job = plan.spec == self.ledger.plan.spec;
            let same_model = plan.model == self.ledger.plan.model && same_job;
            let Some(mut fresh) = Self::assemble(
                self.site.clone(),
                Ledger::new(now, plan, self.ledger.next_round),
            ) else {
                return effects; // the plan's schema was checked when it was read
            };
            fresh.ledger.take_over(&mut self.ledger);
            std::mem::swap(&mut fresh.book, &mut self.book);
            std::mem::swap(&mut fresh.lines, &mut self.lines);
            std::mem::swap(&mut fresh.judged, &mut self.judged);
            std::mem::swap(&mut fresh.unanswered, &mut self.unanswered);
            fresh.pending = self.pending.take();
            fresh.told_bytes = self.told_bytes;
            fresh.announced = self.announced.take();
            fresh.closed_due = self.closed_due;
            fresh.residual = std::mem::take(&mut self.residual);
            if same_job {
                fresh.job_published = self.job_published;
                fresh.job_served = std::mem::take(&mut self.job_served);
            }
            if same_model {
                fresh.base = self.base.take();
                fresh.model.clone_from(&fresh.base);
                fresh.served = std::mem::take(&mut self.served);
            }
            *self = fresh;
            // The broker may hold only the regional models that came after it.
            let key = self.model.as_ref().map(|model| ModelKey::of(&model.digest));
            if key.is_some() && self.ledger.published.last().map(|p| p.key) != key {
                effects.extend(self.publish_model());
            }
        }
        let plan = &self.ledger.plan;
        effects.push(Effect::Tell(Event::PlanAdopted {
            job: plan.spec.job.clone(),
            merge_round: plan.merge_round,
            base_version: plan.base_version,
            paused: plan.paused,
        }));
        effects.push(self.save());
        if self.round.is_none() {
            self.announce_closed_soon(now);
        }
        effects
    }

    /// The cloud's plan does not name this job any more: it takes no updates until it does.
    pub fn on_removed(&mut self, now: Timestamp) -> Vec<Effect> {
        let mut plan = self.ledger.plan.clone();
        plan.paused = true;
        self.on_plan(now, plan)
    }

    /// A model is here, and its bytes hash to `digest`.
    pub fn on_model(&mut self, digest: Digest, frame: Vec<u8>) -> Vec<Effect> {
        if digest != self.ledger.plan.model || self.base.is_some() {
            return Vec::new();
        }
        if !self.take_model(digest, frame.clone()) {
            self.bad_model = Some(digest);
            return Vec::new();
        }
        self.served.clear();
        let bytes = frame.len();
        let mut effects = vec![Effect::Write(Write::Model(digest, frame))];
        effects.extend(self.publish_model());
        effects.push(self.save());
        effects.push(Effect::Tell(Event::ModelReady {
            job: self.job().clone(),
            version: self.ledger.plan.base_version,
            bytes,
        }));
        self.closed_due.get_or_insert(Timestamp(0)); // at the next look at the clock, unless a round opens then
        effects
    }

    /// Puts a model where it belongs; false if it cannot be read.
    fn take_model(&mut self, digest: Digest, frame: Vec<u8>) -> bool {
        let parameters = match codec::decode_model(&frame, &self.schema) {
            Ok(parameters) => parameters,
            Err(error) => {
                tracing::error!(job = %self.job(), model = %digest, %error, "model cannot be used");
                return false;
            }
        };
        let loaded = self.load(digest, frame, parameters);
        if digest == self.ledger.plan.model {
            self.base = Some(loaded.clone());
        }
        if digest == self.ledger.model {
            self.model = Some(loaded);
        }
        true
    }

    fn load(&self, digest: Digest, frame: Vec<u8>, parameters: Vec<f32>) -> Loaded {
        let codec = &self.ledger.plan.spec.codec;
        let needed = (codec.best..=codec.lowest).contains(&UpdateEncoding::Fp16Diff);
        let reference = needed.then(|| codec::decode_reference(&frame, &self.schema).ok());
        Loaded {
            digest,
            frame,
            parameters,
            reference: reference.flatten(),
        }
    }

    /// The cloud answered a partial aggregate.
    pub fn on_partial_answer(&mut self, partial_id: UpdateId, verdict: Verdict) -> Vec<Effect> {
        let Some(pending) = self
            .pending
            .take_if(|pending| pending.partial_id == partial_id)
        else {
            return Vec::new();
        };
        vec![
            Effect::Write(Write::DropPartial(self.job().clone())),
            Effect::Tell(Event::PartialSubmitted {
                job: self.job().clone(),
                merge_round: pending.merge_round,
                verdict,
            }),
        ]
    }

    /// When [`Region::on_tick`] is next worth calling by the clock; also after everything else that arrives.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        if self.closing.is_some() {
            return None; // the rule's result comes next
        }
        if let Some(round) = &self.round {
            // A round that closed with its last update is still to be dealt with, now.
            let due = round.next_deadline().unwrap_or_default();
            return Some(due.min(self.ledger.contribute_by));
        }
        let contribute =
            (!self.ledger.done && !self.ledger.plan.paused).then_some(self.ledger.contribute_by);
        contribute.into_iter().chain(self.closed_due).min()
    }

    pub(crate) fn save(&self) -> Effect {
        Effect::Write(Write::Ledger(
            self.job().clone(),
            Box::new(self.ledger.clone()),
        ))
    }

    fn chunks_of(&self, bytes: usize) -> u32 {
        u32::try_from(chunk_count(bytes, self.site.chunk_bytes)).unwrap_or(u32::MAX)
    }

    fn topic(&self, make: impl FnOnce(RoadsideId, JobId) -> Topic) -> Topic {
        make(self.site.roadside.clone(), self.job().clone())
    }
}
