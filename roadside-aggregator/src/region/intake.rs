//! Judging what arrives, and answering it.

use wayside_domain::ids::{RoundId, UpdateId, VehicleId};
use wayside_domain::round::Accepted;
use wayside_domain::time::Timestamp;
use wayside_domain::update::{PayloadStats, RejectReason, Update, Verdict};
use wayside_proto::codec;
use wayside_proto::convert::{Contribution, Need, Receipt, UpdateMetrics, Wire as _};
use wayside_proto::topics::Topic;

use super::{Effect, MAX_JUDGED, MAX_LINES, MAX_RECEIPTS, Region, Unanswered};
use crate::event::Event;
use crate::intake::{Arrival, Content};
use crate::store::{StoredUpdate, Write};

impl Region {
    /// The verdict that an update of a vehicle has got, if it is still known.
    pub fn known(&self, vehicle: &VehicleId, update_id: UpdateId) -> Option<Verdict> {
        self.book.find(key_of(vehicle, update_id))
    }

    /// A known update came again: the same receipt, after the flush of whatever came before.
    pub fn on_again(
        &mut self,
        now: Timestamp,
        vehicle: VehicleId,
        update_id: UpdateId,
        round: RoundId,
        verdict: Verdict,
    ) {
        self.unanswered.push(Unanswered {
            vehicle,
            update_id,
            round,
            verdict,
            first_chunk: now,
            line: None,
            again: true,
        });
    }

    /// Judges an update that is complete, or that was refused before it was. The first verdict stands.
    pub fn on_arrival(&mut self, now: Timestamp, arrival: Arrival) -> Vec<Effect> {
        let key = key_of(&arrival.vehicle, arrival.update_id);
        if let Some(verdict) = self.book.find(key) {
            self.on_again(
                now,
                arrival.vehicle,
                arrival.update_id,
                arrival.round,
                verdict,
            );
            return Vec::new();
        }
        let mut effects = Vec::new();
        let (verdict, l2_norm) = match &arrival.content {
            Err(reason) => (Verdict::Rejected(*reason), 0.0),
            Ok(content) => self.judge(now, &arrival, content, &mut effects),
        };
        let few = self.is_one_of_few(&arrival.vehicle);
        let accepted = verdict == Verdict::Accepted;
        let current = RoundId(self.ledger.next_round.0.saturating_sub(1));
        let job = self.job().clone();
        if accepted || (few && self.book.len() < MAX_RECEIPTS) {
            // Under the round that is open here: what a sender claims must not push others out of the book.
            let forgotten = self.book.record(current, key, verdict);
            effects.push(Effect::Write(Write::Receipt(
                job.clone(),
                key,
                current,
                verdict,
            )));
            if !forgotten.is_empty() {
                effects.push(Effect::Write(Write::ForgetReceipts(job.clone(), forgotten)));
            }
        }
        let mut line = None;
        if accepted || (few && self.lines.len() < MAX_LINES) {
            let seq = self.ledger.next_line;
            self.ledger.next_line += 1;
            let contribution = Contribution {
                vehicle: arrival.vehicle.clone(),
                // What counts, counts in the open round, also where it was made for an earlier one.
                round: if accepted { current } else { arrival.round },
                update_id: arrival.update_id,
                num_examples: arrival.num_examples,
                verdict,
                l2_norm,
                handling: now.since(arrival.first_chunk),
                metrics: arrival.metrics,
            };
            self.lines.insert(seq, contribution.clone());
            effects.push(Effect::Write(Write::Line(job, seq, contribution)));
            line = Some(seq);
        }
        self.unanswered.push(Unanswered {
            vehicle: arrival.vehicle,
            update_id: arrival.update_id,
            round: arrival.round,
            verdict,
            first_chunk: arrival.first_chunk,
            line,
            again: false,
        });
        effects
    }

    /// Counts an update of a vehicle; false if there were too many of it in this round, or of too many vehicles.
    fn is_one_of_few(&mut self, vehicle: &VehicleId) -> bool {
        if let Some(judged) = self.judged.get_mut(vehicle) {
            *judged += 1;
            return *judged <= MAX_JUDGED;
        }
        let room = self.judged.len() < MAX_RECEIPTS;
        if room {
            self.judged.insert(vehicle.clone(), 1);
        }
        room
    }

    /// Judges by round and guard, and keeps what is accepted for the round's rule. Also gives the norm.
    fn judge(
        &mut self,
        now: Timestamp,
        arrival: &Arrival,
        content: &Content,
        effects: &mut Vec<Effect>,
    ) -> (Verdict, f64) {
        if self.ledger.plan.paused {
            return (Verdict::Rejected(RejectReason::UnknownJob), 0.0);
        }
        let stats = content.checked.as_ref().map(|checked| checked.stats.stats);
        let l2_norm = stats.map_or(0.0, |stats| stats.l2_norm);
        let update = Update {
            member: arrival.vehicle.clone(),
            update_id: arrival.update_id,
            round: arrival.round,
            base_version: content.base_version,
            schema: self.schema_digest,
            num_examples: arrival.num_examples,
            stats: stats.unwrap_or(PayloadStats {
                finite: true,
                l2_norm: 0.0,
            }),
        };
        let Some(round) = &mut self.round else {
            let later = arrival.round >= self.ledger.next_round;
            let verdict = if later {
                Verdict::Rejected(RejectReason::UnknownRound)
            } else {
                Verdict::Stale
            };
            return (verdict, l2_norm);
        };
        let verdict = round.judge(now, &update);
        if verdict != Verdict::Accepted {
            return (verdict, l2_norm);
        }
        let Some(checked) = content.checked.clone() else {
            // The round takes it, so it was read; no honest update comes here.
            return (Verdict::Rejected(RejectReason::Inconsistent), l2_norm);
        };
        // The answer goes out after the flush, and a close is dealt with at the next tick, which follows at once.
        round.on_update(now, &update);
        let stored = StoredUpdate {
            vehicle: update.member,
            round: round.id(),
            accepted: Accepted {
                update_id: update.update_id,
                num_examples: update.num_examples,
            },
            staleness: round.id().0.saturating_sub(update.round.0),
        };
        let job = self.ledger.plan.spec.job.clone();
        let frame = content.frame.clone();
        effects.push(Effect::Write(Write::Update(job, stored.clone(), frame)));
        self.add_member(&stored, checked);
        (Verdict::Accepted, l2_norm)
    }

    /// Everything stored so far is durable: answers go out.
    pub fn on_flushed(&mut self, now: Timestamp) -> Vec<Effect> {
        let mut effects = Vec::new();
        for answer in std::mem::take(&mut self.unanswered) {
            let handling = now.since(answer.first_chunk);
            if let Some(line) = answer.line.and_then(|seq| self.lines.get_mut(&seq)) {
                line.handling = handling;
            }
            let receipt = Receipt {
                update_id: answer.update_id,
                round: answer.round,
                verdict: answer.verdict,
                current_round: RoundId(self.ledger.next_round.0.saturating_sub(1)),
                current_version: self.ledger.plan.base_version,
                handling,
            };
            effects.push(self.send(&answer.vehicle, receipt.encode(), Kind::Receipt));
            tracing::debug!(
                job = %self.job(), vehicle = %answer.vehicle, round = %answer.round, update = %answer.update_id,
                verdict = %answer.verdict, again = answer.again, "update judged"
            );
            effects.push(Effect::Tell(Event::UpdateJudged {
                job: self.job().clone(),
                round: answer.round,
                vehicle: answer.vehicle,
                verdict: answer.verdict,
                roadside_ms: u64::try_from(handling.as_millis()).unwrap_or(u64::MAX),
                again: answer.again,
            }));
        }
        effects
    }

    /// Asks a vehicle for chunks.
    pub fn on_need(
        &mut self,
        vehicle: &VehicleId,
        update_id: UpdateId,
        missing: Vec<u32>,
    ) -> Effect {
        let need = Need { update_id, missing };
        self.send(vehicle, need.encode(), Kind::Need)
    }

    fn send(&mut self, vehicle: &VehicleId, payload: Vec<u8>, kind: Kind) -> Effect {
        let vehicle = vehicle.clone();
        let topic = self.topic(|roadside, job| match kind {
            Kind::Receipt => Topic::Receipt {
                roadside,
                job,
                vehicle,
            },
            Kind::Need => Topic::Need {
                roadside,
                job,
                vehicle,
            },
        });
        self.count_down(&topic, payload.len(), 1);
        Effect::Publish {
            topic,
            payload,
            retain: false,
        }
    }
}

#[derive(Clone, Copy)]
enum Kind {
    Receipt,
    Need,
}

/// The book's key of an update: of update and sender, so that nobody can spoil an update of somebody else by sending
/// its id first.
fn key_of(vehicle: &VehicleId, update_id: UpdateId) -> UpdateId {
    let mut bytes = update_id.0.to_vec();
    bytes.extend_from_slice(vehicle.as_str().as_bytes());
    let mut key = [0; 16];
    key.copy_from_slice(&codec::digest(&bytes).0[..16]);
    UpdateId(key)
}

impl Arrival {
    /// An update that was refused before it was complete.
    pub fn refused(
        vehicle: VehicleId,
        update_id: UpdateId,
        round: RoundId,
        first_chunk: Timestamp,
        reason: RejectReason,
    ) -> Self {
        Self {
            vehicle,
            update_id,
            round,
            first_chunk,
            num_examples: 0,
            metrics: UpdateMetrics::default(),
            content: Err(reason),
        }
    }
}
