//! Messages of vehicles: presence, heartbeats, parts of updates.

use std::time::Duration;

use wayside_domain::ids::{Generation, JobId, ModelVersion, RoundId, UpdateId, VehicleId};
use wayside_domain::time::Timestamp;
use wayside_domain::update::{RejectReason, Verdict};
use wayside_domain::upload::{Part, UploadEffect};
use wayside_proto::convert::{Presence, Receipt, UpdatePart, Wire as _, max_update_bytes};
use wayside_proto::kubeedge::{Heartbeat, TwinUpdate};
use wayside_proto::topics::{DeviceEvent, Topic};

use super::{MAX_WARNED, Unit};
use crate::event::Event;
use crate::fleet::Change;
use crate::intake::{self, Arrival, Expected};
use crate::region::Effect;
use crate::store::Write;

impl Unit {
    pub(super) fn on_message(
        &mut self,
        now: Timestamp,
        topic: &str,
        payload: &[u8],
    ) -> Vec<Effect> {
        let Ok(parsed) = Topic::parse(topic) else {
            self.counters.foreign += 1;
            return Vec::new();
        };
        match &parsed {
            Topic::Presence { roadside, .. } if *roadside == self.settings.site.roadside => {
                self.on_presence(now, &parsed, payload)
            }
            Topic::Device {
                namespace,
                vehicle,
                event: DeviceEvent::TwinUpdate,
            } if *namespace == self.settings.namespace => {
                self.on_twin(now, vehicle.clone(), payload)
            }
            Topic::Update { roadside, job, .. } if *roadside == self.settings.site.roadside => {
                let bytes = topic.len() + payload.len();
                if let Some(region) = self.regions.get_mut(job) {
                    region.count_up(bytes);
                }
                self.on_part(now, &parsed, payload)
            }
            _ => {
                self.counters.foreign += 1;
                Vec::new()
            }
        }
    }

    fn on_presence(&mut self, now: Timestamp, topic: &Topic, payload: &[u8]) -> Vec<Effect> {
        let Topic::Presence { vehicle, .. } = topic else {
            return Vec::new();
        };
        let read = Presence::decode(payload).and_then(|presence| {
            presence.check_topic(topic)?;
            Ok(presence)
        });
        let presence = match read {
            Ok(presence) => presence,
            Err(error) => {
                self.damaged(vehicle, "presence", &error);
                return Vec::new();
            }
        };
        let Some(change) = self.fleet.on_presence(now, &presence) else {
            return Vec::new();
        };
        let mut effects = Vec::new();
        if presence.online {
            if let Some(known) = self.fleet.get(vehicle) {
                effects.push(Effect::Write(Write::Vehicle(vehicle.clone(), known)));
            }
            effects.push(self.control(vehicle.clone(), true));
        }
        effects.extend(changed(vehicle, change));
        effects
    }

    fn on_twin(&mut self, now: Timestamp, vehicle: VehicleId, payload: &[u8]) -> Vec<Effect> {
        let twin = match TwinUpdate::parse(payload) {
            Ok(twin) => twin,
            Err(error) => {
                self.damaged(&vehicle, "twin update", &error);
                return Vec::new();
            }
        };
        let heartbeat = match Heartbeat::from_twin(&twin) {
            Ok(heartbeat) => heartbeat,
            // Another device of the cluster, which is no vehicle of ours.
            Err(_) if self.fleet.get(&vehicle).is_none() => {
                self.counters.foreign += 1;
                return Vec::new();
            }
            Err(error) => {
                self.damaged(&vehicle, "heartbeat", &error);
                return Vec::new();
            }
        };
        self.on_heartbeat(now, vehicle, heartbeat.generation, heartbeat.num_examples)
    }

    pub(super) fn on_heartbeat(
        &mut self,
        now: Timestamp,
        vehicle: VehicleId,
        generation: Generation,
        num_examples: u64,
    ) -> Vec<Effect> {
        match (self.fleet).on_heartbeat(now, &vehicle, generation, num_examples) {
            Some(change) => changed(&vehicle, change).into_iter().collect(),
            None => vec![self.control(vehicle, false)],
        }
    }

    fn on_part(&mut self, now: Timestamp, topic: &Topic, payload: &[u8]) -> Vec<Effect> {
        let Topic::Update {
            job,
            vehicle,
            round,
            chunk,
            ..
        } = topic
        else {
            return Vec::new();
        };
        let part = match UpdatePart::decode(payload) {
            Ok(part) => part,
            Err(error) => {
                // Without an id there is nobody to answer.
                self.damaged(vehicle, "update part", &error);
                return Vec::new();
            }
        };
        let Some(region) = self.regions.get_mut(job) else {
            // Once for each delivery, not for each chunk.
            let answers = *chunk == 0;
            let answer = answers.then(|| self.unknown_job(job, vehicle, *round, part.update_id));
            return answer.into_iter().collect();
        };
        let id = part.update_id;
        if let Some(verdict) = region.known(vehicle, id) {
            if *chunk == 0 {
                region.on_again(now, vehicle.clone(), id, *round, verdict);
            }
            return Vec::new();
        }
        if region.is_paused() {
            let reason = RejectReason::UnknownJob;
            return region.on_arrival(
                now,
                Arrival::refused(vehicle.clone(), id, *round, now, reason),
            );
        }
        let size = |n: u32| usize::try_from(n).unwrap_or(usize::MAX);
        let max_bytes = max_update_bytes(region.schema());
        let part = Part {
            update_id: id,
            round: *round,
            total_bytes: size(part.total_bytes),
            total_chunks: size(part.total_chunks),
            digest: part.digest,
            index: size(*chunk),
            data: part.data,
        };
        let sender = (job.clone(), vehicle.clone());
        let effect = self.uploads.on_part(now, &sender, max_bytes, part);
        let effects = effect.map(|effect| self.on_upload(now, effect, Some(topic)));
        effects.unwrap_or_default()
    }

    /// `topic`: of the chunk that led to it, where it was a chunk.
    pub(super) fn on_upload(
        &mut self,
        now: Timestamp,
        effect: UploadEffect<(JobId, VehicleId)>,
        topic: Option<&Topic>,
    ) -> Vec<Effect> {
        match effect {
            UploadEffect::Complete {
                member: (job, vehicle),
                update_id,
                round,
                digest,
                bytes,
                first_chunk,
            } => {
                let (Some(region), Some(topic)) = (self.regions.get_mut(&job), topic) else {
                    return Vec::new();
                };
                let expected = Expected {
                    topic,
                    update_id,
                    digest,
                    schema: region.schema(),
                    exponents: region.exponents(),
                    open_rounds: region.open_rounds(),
                    reference: region.reference(),
                };
                let arrival = intake::read(&vehicle, round, first_chunk, &bytes, expected);
                let metrics = arrival.content.is_ok().then_some(arrival.metrics);
                let mut effects = region.on_arrival(now, arrival);
                if let Some(known) = metrics.and_then(|m| self.fleet.on_metrics(&vehicle, &m)) {
                    effects.push(Effect::Write(Write::Vehicle(vehicle, known)));
                }
                effects
            }
            UploadEffect::Need {
                member: (job, vehicle),
                update_id,
                missing,
            } => {
                let region = self.regions.get_mut(&job);
                let need = region.map(|region| region.on_need(&vehicle, update_id, missing));
                need.into_iter().collect()
            }
            UploadEffect::Reject {
                member: (job, vehicle),
                update_id,
                round,
                reason,
            } => {
                let refused = Arrival::refused(vehicle, update_id, round, now, reason);
                let region = self.regions.get_mut(&job);
                region.map_or_else(Vec::new, |region| region.on_arrival(now, refused))
            }
        }
    }

    /// The answer to an update of a job that is not here; nothing is written down for it.
    fn unknown_job(
        &self,
        job: &JobId,
        vehicle: &VehicleId,
        round: RoundId,
        update_id: UpdateId,
    ) -> Effect {
        let receipt = Receipt {
            update_id,
            round,
            verdict: Verdict::Rejected(RejectReason::UnknownJob),
            current_round: RoundId(0),
            current_version: ModelVersion(0),
            handling: Duration::ZERO,
        };
        Effect::Publish {
            topic: Topic::Receipt {
                roadside: self.settings.site.roadside.clone(),
                job: job.clone(),
                vehicle: vehicle.clone(),
            },
            payload: receipt.encode(),
            retain: false,
        }
    }

    fn damaged(&mut self, vehicle: &VehicleId, what: &str, error: &dyn std::fmt::Display) {
        self.counters.damaged += 1;
        let first = self.warned.len() < MAX_WARNED && self.warned.insert(vehicle.clone());
        if first {
            let damaged = self.counters.damaged;
            tracing::warn!(%vehicle, what, %error, damaged, "message cannot be read; told once a vehicle");
        } else {
            tracing::debug!(%vehicle, what, %error, "message cannot be read");
        }
    }
}

pub(super) fn changed(vehicle: &VehicleId, change: Change) -> Option<Effect> {
    let vehicle = vehicle.clone();
    match change {
        Change::None => None,
        Change::Online => {
            tracing::info!(%vehicle, "vehicle online");
            Some(Effect::Tell(Event::VehicleOnline { vehicle }))
        }
        Change::Lost => {
            tracing::info!(%vehicle, "vehicle lost");
            Some(Effect::Tell(Event::VehicleLost { vehicle }))
        }
    }
}
