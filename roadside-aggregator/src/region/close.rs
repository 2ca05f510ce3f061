//! Closing a round, and contributing to the merge.

use wayside_domain::aggregate::WeightedSum;
use wayside_domain::ids::{RoundId, UpdateId, VehicleId};
use wayside_domain::round::{Outcome, Round};
use wayside_domain::time::Timestamp;
use wayside_domain::update::Verdict;
use wayside_proto::codec::{self, Delta, Sum, f16};
use wayside_proto::convert::{Contribution, PartialAggregate, RoundSummary, Wire as _};

use super::{Effect, Pending, Region};
use crate::aggregate::{Order, OrderError};
use crate::event::Event;
use crate::fleet::Fleet;
use crate::store::Write;

impl Region {
    /// Closes, contributes and opens as the time and what arrived ask for.
    pub fn on_tick(&mut self, now: Timestamp, fleet: &Fleet) -> Vec<Effect> {
        let mut effects = Vec::new();
        if let Some(mut round) = self.round.take() {
            round.on_tick(now);
            if now >= self.ledger.contribute_by {
                round.close();
            }
            let closed = round.outcome().is_some();
            self.round = Some(round);
            if closed {
                effects.extend(self.after_close(now));
            }
        }
        let due = !self.ledger.done && !self.ledger.plan.paused && now >= self.ledger.contribute_by;
        if due && self.round.is_none() && self.closing.is_none() {
            effects.extend(self.finish(now, fleet));
        }
        effects.extend(self.try_open(now, fleet));
        if self.closed_due.is_some_and(|due| now >= due) {
            effects.extend(self.announce());
        }
        effects
    }

    /// Another merge round begins, or the job is paused: what is open ends without a result.
    pub(super) fn abandon_round(&mut self, now: Timestamp) -> Vec<Effect> {
        let Some(round) = self.round.take().or_else(|| self.closing.take()) else {
            return Vec::new();
        };
        let effects = self.settle(now, &round, false);
        self.announce_closed_soon(now);
        effects
    }

    /// The round has an outcome: have its rule run, or go on without a result.
    fn after_close(&mut self, now: Timestamp) -> Vec<Effect> {
        let Some(round) = self.round.take() else {
            return Vec::new();
        };
        if round.outcome() != Some(&Outcome::Aggregated) {
            return self.without_result(now, &round);
        }
        self.closing = Some(round);
        vec![self.order()]
    }

    fn order(&self) -> Effect {
        let plan = &self.ledger.plan;
        Effect::Aggregate(Box::new(Order {
            job: plan.spec.job.clone(),
            round: self.closing.as_ref().map_or(RoundId(0), Round::id),
            rule: plan.spec.aggregation.rule.clone(),
            schema: self.schema.clone(),
            exponents: plan.exponents.clone(),
            reference: self.reference().cloned(),
            members: self.members.values().cloned().collect(),
        }))
    }

    /// The rule has run.
    pub fn on_aggregated(
        &mut self,
        now: Timestamp,
        fleet: &Fleet,
        round: RoundId,
        result: Result<WeightedSum, OrderError>,
    ) -> Vec<Effect> {
        let Some(closing) = self.closing.take_if(|closing| closing.id() == round) else {
            return Vec::new(); // the plan has changed meanwhile
        };
        let sum = match result {
            Ok(sum) => sum,
            Err(error) => {
                tracing::error!(job = %self.job(), %round, error = &error as &dyn std::error::Error, "rule gave no result");
                return self.without(now, closing, error.unreadable());
            }
        };
        let examples = sum.num_examples();
        self.sum = Some(sum);
        let wanted_rounds = self.ledger.plan.spec.round.edge_rounds as usize;
        let last = self.ledger.counted.len() + 1 >= wanted_rounds;
        let mut step = Vec::new();
        let aggregated = examples > 0 && (wanted_rounds <= 1 || self.move_on(&mut step));
        if aggregated {
            self.ledger.counted.push(round);
            self.ledger.edge_examples += examples;
        }
        let mut effects = self.settle(now, &closing, aggregated);
        effects.extend(step);
        if aggregated && last {
            effects.extend(self.finish(now, fleet));
        } else {
            effects.push(self.save());
        }
        self.announce_closed_soon(now);
        effects
    }

    /// Goes on without a member whose frame cannot be read any more, where enough are left; else without a result.
    fn without(
        &mut self,
        now: Timestamp,
        closing: Round<VehicleId>,
        member: Option<usize>,
    ) -> Vec<Effect> {
        let lost = member.and_then(|at| self.members.keys().nth(at).cloned());
        if let Some(lost) = lost {
            self.members.remove(&lost);
            for line in self.lines.values_mut() {
                let its = line.vehicle == lost && line.round == closing.id();
                if its && line.verdict == Verdict::Accepted {
                    line.verdict = Verdict::Stale;
                }
            }
            if self.members.len() >= closing.terms().quorum {
                self.closing = Some(closing);
                return vec![self.order()];
            }
        }
        self.without_result(now, &closing)
    }

    fn without_result(&mut self, now: Timestamp, round: &Round<VehicleId>) -> Vec<Effect> {
        let mut effects = self.settle(now, round, false);
        effects.push(self.save());
        self.announce_closed_soon(now);
        effects
    }

    /// Writes a closed round down and tells of it.
    fn settle(
        &mut self,
        now: Timestamp,
        round: &Round<VehicleId>,
        aggregated: bool,
    ) -> Vec<Effect> {
        let (terms, accepted) = (round.terms(), round.accepted().len());
        let small = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        self.ledger.terms = None;
        self.ledger.add_summary(RoundSummary {
            round: terms.round,
            opened: terms.opened,
            closed: now,
            cohort: terms.cohort.iter().cloned().collect(),
            target: small(terms.target),
            quorum: small(terms.quorum),
            accepted: small(accepted),
            aggregated,
        });
        let waiting_for: Vec<_> = round.missing().cloned().collect();
        tracing::info!(
            job = %self.job(), round = %terms.round, accepted, aggregated, waiting_for = waiting_for.len(),
            ms = now.since(terms.opened).as_millis(), "round closed"
        );
        let mut effects = vec![
            Effect::Write(Write::DropUpdates(self.job().clone())),
            Effect::Tell(Event::RoundClosed {
                job: self.job().clone(),
                round: terms.round,
                accepted,
                aggregated,
                waiting_for,
            }),
        ];
        effects.extend(self.tell_traffic());
        effects
    }

    /// Bytes since the last such event, if there were any.
    pub fn tell_traffic(&mut self) -> Option<Effect> {
        let (up, down) = (self.ledger.up_bytes, self.ledger.down_bytes);
        let (told_up, told_down) = std::mem::replace(&mut self.told_bytes, (up, down));
        let (up_bytes, down_bytes) = (up.saturating_sub(told_up), down.saturating_sub(told_down));
        (up_bytes + down_bytes > 0).then(|| {
            Effect::Tell(Event::Traffic {
                job: self.job().clone(),
                up_bytes,
                down_bytes,
            })
        })
    }

    /// Moves the regional model on by the round's mean delta, rounded to a model frame. False if that is no model.
    fn move_on(&mut self, effects: &mut Vec<Effect>) -> bool {
        let mean = self.sum.as_ref().and_then(|s| s.mean(self.schema.ranges()));
        let (Some(model), Some(mean)) = (&self.model, mean) else {
            return false;
        };
        let moved: Vec<f32> = model
            .parameters
            .iter()
            .zip(mean)
            .map(|(from, by)| narrow(f64::from(*from) + by))
            .collect();
        let (frame, parameters) = match codec::encode_model(&self.schema, &moved) {
            Ok(encoded) => encoded,
            Err(error) => {
                tracing::error!(job = %self.job(), %error, "regional model cannot be encoded, round has no result");
                return false;
            }
        };
        let digest = codec::digest(&frame);
        effects.push(Effect::Write(Write::Model(digest, frame.clone())));
        let bytes = frame.len();
        self.model = Some(self.load(digest, frame, parameters));
        self.ledger.model = digest;
        self.served.clear();
        effects.extend(self.publish_model());
        effects.push(Effect::Tell(Event::ModelReady {
            job: self.job().clone(),
            version: self.ledger.plan.base_version,
            bytes,
        }));
        true
    }

    /// The merge round is over here: contribute what its rounds gave, if they gave something.
    fn finish(&mut self, now: Timestamp, fleet: &Fleet) -> Vec<Effect> {
        self.ledger.done = true;
        let mut effects = Vec::new();
        if self.ledger.counted.is_empty() {
            let merge_round = self.ledger.plan.merge_round;
            tracing::info!(job = %self.job(), %merge_round, "no round had a result, nothing to contribute");
        } else if let Some(sum) = self.contribution() {
            effects.extend(self.contribute(now, fleet, &sum));
        }
        self.members.clear();
        effects.push(self.save());
        effects
    }

    /// What this unit adds to the merge.
    fn contribution(&mut self) -> Option<WeightedSum> {
        let aggregation = &self.ledger.plan.spec.aggregation;
        let several = self.ledger.plan.spec.round.edge_rounds > 1;
        if !several && !aggregation.fp16_partials {
            return self.sum.take();
        }
        let mut moved = if several {
            self.moved()?
        } else {
            let mean = self.sum.take()?.mean(self.schema.ranges())?;
            mean.into_iter().map(narrow).collect()
        };
        let feeds_back = aggregation.fp16_partials;
        if feeds_back {
            for (value, left) in moved.iter_mut().zip(&self.residual) {
                *value += left;
            }
        }
        let exponents = &self.ledger.plan.exponents;
        let delta = Delta::quantise(&self.schema, &moved, exponents)
            .inspect_err(|error| {
                tracing::error!(job = %self.job(), %error, "regional delta cannot be encoded, nothing to contribute");
            })
            .ok()?;
        if feeds_back {
            let sent = delta.to_parameters();
            self.residual = moved
                .iter()
                .zip(sent)
                .map(|(all, sent)| all - sent)
                .collect();
        }
        let mut sum = WeightedSum::new(self.schema.num_parameters(), exponents.clone());
        sum.add(self.ledger.edge_examples, exponents, delta.values())
            .ok()?;
        Some(sum)
    }

    /// How far the regional model has moved from the global one.
    fn moved(&self) -> Option<Vec<f32>> {
        let (base, model) = (self.base.as_ref()?, self.model.as_ref()?);
        let pairs = model.parameters.iter().zip(&base.parameters);
        Some(pairs.map(|(to, from)| to - from).collect())
    }

    fn contribute(&mut self, now: Timestamp, fleet: &Fleet, sum: &WeightedSum) -> Vec<Effect> {
        let framed = self.frame_of(sum);
        let sum_frame = match framed {
            Ok(frame) => frame,
            Err(error) => {
                tracing::error!(job = %self.job(), %error, "sum cannot be encoded, nothing to contribute");
                return Vec::new();
            }
        };
        if let Some(old) = &self.pending {
            tracing::warn!(job = %self.job(), merge_round = %old.merge_round, "partial aggregate was never answered and is replaced");
        }
        let mut effects: Vec<Effect> = self.tell_traffic().into_iter().collect();
        self.told_bytes = (0, 0);
        let contributions = self.take_lines();
        let plan = &self.ledger.plan;
        let partial = PartialAggregate {
            job: plan.spec.job.clone(),
            roadside: self.site.roadside.clone(),
            merge_round: plan.merge_round,
            base_version: plan.base_version,
            partial_id: self.partial_id(),
            num_examples: sum.num_examples(),
            sum_frame,
            contributions,
            rounds: std::mem::take(&mut self.ledger.summaries),
            up_bytes: std::mem::take(&mut self.ledger.up_bytes),
            down_bytes: std::mem::take(&mut self.ledger.down_bytes),
            vehicles_online: u32::try_from(fleet.online()).unwrap_or(u32::MAX),
        };
        self.ledger.next_line = 0;
        let pending = Pending {
            merge_round: partial.merge_round,
            partial_id: partial.partial_id,
            bytes: partial.encode(),
        };
        tracing::info!(
            job = %self.job(), merge_round = %pending.merge_round, examples = partial.num_examples,
            exact = sum.is_exact(), bytes = pending.bytes.len(), left_ms = plan_left(now, self), "partial aggregate made"
        );
        self.pending = Some(pending.clone());
        let job = self.job().clone();
        effects.push(Effect::Write(Write::Partial(job.clone(), pending)));
        effects.push(Effect::Write(Write::DropLines(job.clone())));
        if self.ledger.plan.spec.aggregation.fp16_partials {
            effects.push(Effect::Write(Write::Residual(job, self.residual.clone())));
        }
        effects
    }

    /// The sum as it travels: in f64, or as its mean in fp16 where that is what it is made of.
    fn frame_of(&self, sum: &WeightedSum) -> Result<Vec<u8>, codec::EncodeError> {
        let exponents = sum.exponents();
        if self.ledger.plan.spec.aggregation.fp16_partials {
            let examples = sum.num_examples() as f64;
            // A multiple of an fp16 value, so that this gives the value back.
            let values = sum.values().iter().map(|v| f16::from_f64(v / examples));
            let values: Vec<f16> = values.collect();
            return codec::encode_delta_values(&self.schema, &values, exponents);
        }
        codec::encode_sum(
            &self.schema,
            &Sum {
                exponents: exponents.to_vec(),
                values: sum.values().to_vec(),
                num_examples: sum.num_examples(),
                bound: sum.bound(),
            },
        )
    }

    /// All lines since the last contribution. An update that was accepted into a round without a result is not in the
    /// sum, so its line says stale: what the lines count is what the sum holds.
    fn take_lines(&mut self) -> Vec<Contribution> {
        let counted = &self.ledger.counted;
        let told = |mut line: Contribution| {
            if line.verdict == Verdict::Accepted && !counted.contains(&line.round) {
                line.verdict = Verdict::Stale;
            }
            line
        };
        std::mem::take(&mut self.lines)
            .into_values()
            .map(told)
            .collect()
    }

    /// The same for one contribution whenever it is made from the same state, another one after each start.
    fn partial_id(&self) -> UpdateId {
        let plan = &self.ledger.plan;
        let text = format!(
            "{}/{}/{}/{}/{}",
            self.site.roadside,
            plan.spec.job,
            plan.merge_round.0,
            self.ledger.next_round.0,
            self.site.generation.0
        );
        let mut id = [0; 16];
        id.copy_from_slice(&codec::digest(text.as_bytes()).0[..16]);
        UpdateId(id)
    }
}

fn plan_left(now: Timestamp, region: &Region) -> u128 {
    region.ledger.plan.window_ends.since(now).as_millis()
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "rounding to f32 is what is asked for; the encoder refuses infinity"
)]
fn narrow(value: f64) -> f32 {
    value as f32
}
