//! Closing a round, and contributing to the merge.

use wayside_domain::aggregate::WeightedSum;
use wayside_domain::ids::UpdateId;
use wayside_domain::round::{Outcome, Round};
use wayside_domain::time::Timestamp;
use wayside_domain::update::Verdict;
use wayside_proto::codec::{self, Delta, Sum};
use wayside_proto::convert::{Contribution, PartialAggregate, RoundSummary, Wire as _};

use super::{Effect, Loaded, Pending, Region};
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
                effects.extend(self.after_close(now, fleet));
            }
        }
        let due = !self.ledger.done && !self.ledger.plan.paused && now >= self.ledger.contribute_by;
        if due && self.round.is_none() {
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
        let Some(round) = self.round.take() else {
            return Vec::new();
        };
        let effects = self.settle(now, &round, false);
        self.announce_closed_soon(now);
        effects
    }

    /// The round has an outcome: use it, and go on.
    fn after_close(&mut self, now: Timestamp, fleet: &Fleet) -> Vec<Effect> {
        let Some(round) = self.round.take() else {
            return Vec::new();
        };
        let wanted = round.outcome() == Some(&Outcome::Aggregated);
        let wanted_rounds = self.ledger.plan.spec.round.edge_rounds as usize;
        let last = self.ledger.counted.len() + 1 >= wanted_rounds;
        let mut step = Vec::new();
        let aggregated = wanted
            && if self.ledger.plan.spec.round.edge_rounds <= 1 {
                self.sum.num_examples() > 0
            } else {
                self.move_on(&mut step)
            };
        if aggregated {
            self.ledger.counted.push(round.id());
            self.ledger.edge_examples += self.sum.num_examples();
        }
        let mut effects = self.settle(now, &round, aggregated);
        effects.extend(step);
        if aggregated && last {
            effects.extend(self.finish(now, fleet));
        } else {
            effects.push(self.save());
        }
        self.announce_closed_soon(now);
        effects
    }

    /// Writes a closed round down and tells of it.
    fn settle(
        &mut self,
        now: Timestamp,
        round: &Round<wayside_domain::ids::VehicleId>,
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
        let (Some(model), Some(mean)) = (&self.model, self.sum.mean(self.schema.ranges())) else {
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
        self.model = Some(Loaded {
            digest,
            frame,
            parameters,
        });
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
        effects.push(self.save());
        effects
    }

    /// What this unit adds to the merge.
    fn contribution(&self) -> Option<WeightedSum> {
        if self.ledger.plan.spec.round.edge_rounds <= 1 {
            return Some(self.sum.clone());
        }
        let (base, model) = (self.base.as_ref()?, self.model.as_ref()?);
        let pairs = model.parameters.iter().zip(&base.parameters);
        let moved: Vec<f32> = pairs.map(|(to, from)| to - from).collect();
        let exponents = &self.ledger.plan.exponents;
        let delta = Delta::quantise(&self.schema, &moved, exponents)
            .inspect_err(|error| {
                tracing::error!(job = %self.job(), %error, "regional delta cannot be encoded, nothing to contribute");
            })
            .ok()?;
        let mut sum = WeightedSum::new(self.schema.num_parameters(), exponents.clone());
        sum.add(self.ledger.edge_examples, exponents, delta.values())
            .ok()?;
        Some(sum)
    }

    fn contribute(&mut self, now: Timestamp, fleet: &Fleet, sum: &WeightedSum) -> Vec<Effect> {
        let framed = codec::encode_sum(
            &self.schema,
            &Sum {
                exponents: sum.exponents().to_vec(),
                values: sum.values().to_vec(),
                num_examples: sum.num_examples(),
                bound: sum.bound(),
            },
        );
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
        effects.push(Effect::Write(Write::DropLines(job)));
        effects
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
