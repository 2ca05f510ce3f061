//! Opening a round, and what vehicles are to find at the broker.

use std::collections::BTreeSet;
use std::time::Duration;

use wayside_domain::ids::VehicleId;
use wayside_domain::round::{Guard, Round, RoundTerms};
use wayside_domain::selection::{Cohort, draw_cohort, quorum_of};
use wayside_domain::time::Timestamp;
use wayside_proto::convert::{Announcement, ModelPart, Wire as _, split};
use wayside_proto::topics::{ModelKey, Topic};

use super::{Effect, Published, Region};
use crate::event::Event;
use crate::fleet::Fleet;

/// Models whose chunks stay at the broker: the present one and the one before, for vehicles that are still at it.
const KEEP_PUBLISHED: usize = 2;

/// A closed round is announced as closed after this time, if none has opened by then.
const CLOSED_AFTER: Duration = Duration::from_secs(2);

impl Region {
    /// A round could open if the vehicles for it are there.
    pub fn is_ready(&self, now: Timestamp) -> bool {
        let ledger = &self.ledger;
        self.round.is_none()
            && self.closing.is_none()
            && self.model.is_some()
            && !ledger.done
            && !ledger.plan.paused
            && now < ledger.contribute_by
    }

    /// Opens a round if everything for it is there.
    pub(super) fn try_open(&mut self, now: Timestamp, fleet: &Fleet) -> Vec<Effect> {
        if !self.is_ready(now) || now < fleet.hold_until() {
            return Vec::new();
        }
        let plan = &self.ledger.plan;
        let (spec, round) = (&plan.spec.round, self.ledger.next_round);
        let candidates = fleet.candidates(plan.spec.model.backbone);
        let seed = round_seed(plan.spec.training.seed, round.0);
        let buffered = plan.spec.aggregation.buffered;
        let cohort = match buffered {
            // Everyone who is there, for as many updates as the buffer holds.
            Some(_) if candidates.len() < spec.min_vehicles.max(1) as usize => None,
            Some(buffered) => {
                let target = (buffered.buffer_size as usize).min(candidates.len());
                Some(Cohort {
                    quorum: quorum_of(spec, target),
                    target,
                    members: candidates.into_keys().collect(),
                })
            }
            None => draw_cohort(spec, &candidates, seed),
        };
        let Some(cohort) = cohort else {
            return Vec::new();
        };
        let terms = RoundTerms {
            round,
            base_version: plan.base_version,
            cohort: cohort.members,
            target: cohort.target,
            quorum: cohort.quorum,
            opened: now,
            earliest_close: now + spec.min_window,
            deadline: (now + spec.round_timeout).min(self.ledger.contribute_by),
            guard: Guard {
                schema: self.schema_digest,
                max_examples: spec.max_examples,
                max_norm: if plan.norm_bound > 0.0 {
                    spec.max_norm.min(plan.norm_bound)
                } else {
                    spec.max_norm
                },
            },
            max_staleness: buffered.map(|buffered| u64::from(buffered.max_staleness)),
        };
        self.sum = None;
        self.members.clear();
        self.judged.clear();
        let round = Round::open(terms);
        self.ledger.next_round = round.id().next();
        self.ledger.terms = Some(round.terms().clone());
        let opened = Event::RoundOpened {
            job: self.job().clone(),
            round: round.id(),
            cohort: round.terms().cohort.iter().cloned().collect(),
            target: round.terms().target,
            deadline: round.terms().deadline,
        };
        tracing::info!(
            job = %self.job(), round = %round.id(), cohort = round.terms().cohort.len(), target = round.terms().target,
            quorum = round.terms().quorum, "round opened"
        );
        let cohort = round.terms().cohort.clone();
        self.round = Some(round);
        self.count_served(&cohort);
        let mut effects = vec![self.save(), Effect::Tell(opened)];
        effects.extend(self.announce());
        effects
    }

    /// Says that no round is open, unless one opens within [`CLOSED_AFTER`]: between two rounds in a row each vehicle
    /// is spared a message of 200 bytes, and one that trains for the closed round hears of it from its receipt.
    pub(super) fn announce_closed_soon(&mut self, now: Timestamp) {
        self.closed_due.get_or_insert(now + CLOSED_AFTER);
    }

    /// The state of the job here, as vehicles are to know it. Nothing before the first model is complete.
    pub(super) fn announce(&mut self) -> Vec<Effect> {
        self.closed_due = None;
        let Some(model) = &self.model else {
            return self.announce_closed();
        };
        let open = self
            .round
            .as_ref()
            .filter(|round| round.outcome().is_none());
        let last = wayside_domain::ids::RoundId(self.ledger.next_round.0.saturating_sub(1));
        let announcement = Announcement {
            roadside: self.site.roadside.clone(),
            job: self.job().clone(),
            round: open.map_or(last, Round::id),
            base_version: self.ledger.plan.base_version,
            model: model.digest,
            model_bytes: u32::try_from(model.frame.len()).unwrap_or(u32::MAX),
            model_chunks: self.chunks_of(model.frame.len()),
            job_digest: self.job_digest,
            deadline: open.map_or(Timestamp(0), |round| round.terms().deadline),
            exponents: self.ledger.plan.exponents.clone(),
            cohort: open.map_or_else(Vec::new, |round| {
                round.terms().cohort.iter().cloned().collect()
            }),
            open: open.is_some(),
        };
        self.publish_announcement(announcement)
    }

    /// While the plan's model is not here (or is not wanted, since the job is paused or finished), what was open is over:
    /// the last announcement is told again, closed.
    fn announce_closed(&mut self) -> Vec<Effect> {
        let Some(last) = self.announced.take().filter(|last| last.open) else {
            return Vec::new();
        };
        self.publish_announcement(Announcement {
            cohort: Vec::new(),
            deadline: Timestamp(0),
            open: false,
            ..last
        })
    }

    fn publish_announcement(&mut self, announcement: Announcement) -> Vec<Effect> {
        let topic = self.topic(|roadside, job| Topic::Round { roadside, job });
        let payload = announcement.encode();
        // Between rounds nobody needs it: the cohort of the next round will get the next one.
        self.count_down(&topic, payload.len(), announcement.cohort.len());
        self.announced = Some(announcement);
        vec![Effect::Publish {
            topic,
            payload,
            retain: true,
        }]
    }

    /// The model as retained messages, and before the first one the job; models before the previous one are cleared.
    pub(super) fn publish_model(&mut self) -> Vec<Effect> {
        let Some(model) = &self.model else {
            return Vec::new();
        };
        let mut effects = Vec::new();
        if !std::mem::replace(&mut self.job_published, true) {
            effects.push(Effect::Publish {
                topic: self.topic(|roadside, job| Topic::Job { roadside, job }),
                payload: self.ledger.plan.spec.encode(),
                retain: true,
            });
        }
        let published = Published {
            key: ModelKey::of(&model.digest),
            chunks: self.chunks_of(model.frame.len()),
        };
        for (chunk, data) in (0..).zip(split(&model.frame, self.site.chunk_bytes)) {
            effects.push(Effect::Publish {
                topic: self.model_topic(published.key, chunk),
                payload: ModelPart {
                    data: data.to_vec(),
                }
                .encode(),
                retain: true,
            });
        }
        self.ledger
            .published
            .retain(|known| known.key != published.key);
        self.ledger.published.push(published);
        let old = self.ledger.published.len().saturating_sub(KEEP_PUBLISHED);
        let cleared: Vec<Published> = self.ledger.published.drain(..old).collect();
        for old in cleared {
            for chunk in 0..old.chunks {
                effects.push(Effect::Publish {
                    topic: self.model_topic(old.key, chunk),
                    payload: Vec::new(),
                    retain: true,
                });
            }
        }
        effects
    }

    fn model_topic(&self, key: ModelKey, chunk: u32) -> Topic {
        self.topic(|roadside, job| Topic::Model {
            roadside,
            job,
            key,
            chunk,
        })
    }

    /// Counts job and model for the vehicles of a cohort that have not been asked with this model before. The broker
    /// delivers a retained message to each vehicle that subscribes, and a vehicle keeps what it has; the set is not
    /// stored, so after a restart of this unit they count anew.
    fn count_served(&mut self, cohort: &BTreeSet<VehicleId>) {
        let Some(model) = &self.model else {
            return;
        };
        let key = ModelKey::of(&model.digest);
        let mut bytes = 0;
        for (chunk, data) in (0..).zip(split(&model.frame, self.site.chunk_bytes)) {
            let part = ModelPart {
                data: data.to_vec(),
            };
            bytes += self.model_topic(key, chunk).to_string().len() + part.encode().len();
        }
        let newcomers = cohort.difference(&self.served).count();
        self.ledger.down_bytes += (bytes * newcomers) as u64;
        self.served.extend(cohort.iter().cloned());

        let topic = self.topic(|roadside, job| Topic::Job { roadside, job });
        let newcomers = cohort.difference(&self.job_served).count();
        self.count_down(&topic, self.ledger.plan.spec.encode().len(), newcomers);
        self.job_served.extend(cohort.iter().cloned());
    }

    /// Counts a message of `payload` bytes to so many vehicles.
    pub(super) fn count_down(&mut self, topic: &Topic, payload: usize, vehicles: usize) {
        self.ledger.down_bytes += ((topic.to_string().len() + payload) * vehicles) as u64;
    }
}

/// One number for one round of a job.
///
/// # Source
/// Steele et al. 2014, "Fast splittable pseudorandom number generators": the finaliser of `SplitMix64`.
fn round_seed(seed: u64, round: u64) -> u64 {
    let mut z = seed.wrapping_add(round.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
