//! Hands the chunks of one update to the link.

use std::sync::Arc;

use tracing::{debug, warn};
use wayside_domain::ids::UpdateId;
use wayside_domain::outbox::OutboxEntry;
use wayside_proto::codec;
use wayside_proto::convert::{UpdatePart, Wire, split};
use wayside_proto::topics::Topic;

use super::blocking;
use crate::config::Settings;
use crate::event::{Event, Observer, TrafficCounter};
use crate::link::LinkHandle;
use crate::work::Workshop;

/// How the handing over of an update ended.
#[derive(Debug)]
pub(super) struct Handed {
    pub(super) update_id: UpdateId,
    /// The stored update is gone or damaged.
    pub(super) lost: bool,
}

/// The stored update cannot be read.
pub(super) struct Lost;

/// What the handing over of one update needs.
pub(super) struct Sending {
    pub(super) settings: Arc<Settings>,
    pub(super) workshop: Arc<Workshop>,
    pub(super) link: LinkHandle,
    pub(super) traffic: Arc<TrafficCounter>,
    pub(super) observer: Observer,
}

impl Sending {
    /// Hands all chunks to the link, or only those named.
    pub(super) async fn send(
        &self,
        entry: &OutboxEntry,
        only: Option<Vec<u32>>,
    ) -> Result<(), Lost> {
        let (payloads, update_id) = (self.workshop.payloads.clone(), entry.update_id);
        let read = blocking(move || payloads.read_update(update_id)).await;
        let whole = match read {
            Ok(Ok(whole)) => whole,
            Ok(Err(error)) => {
                warn!(%update_id, %error, "stored update cannot be read");
                return Err(Lost);
            }
            Err(_) => return Ok(()), // the process ends
        };
        let size = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let digest = codec::digest(&whole);
        let chunks = split(&whole, self.settings.link.chunk_bytes);
        let total_chunks = size(chunks.len());
        let mut bytes = 0;
        for (index, data) in (0_u32..).zip(chunks) {
            if only.as_ref().is_some_and(|only| !only.contains(&index)) {
                continue;
            }
            let topic = Topic::Update {
                roadside: entry.roadside.clone(),
                job: entry.job.clone(),
                vehicle: self.settings.vehicle.clone(),
                round: entry.round,
                chunk: index,
            };
            let part = UpdatePart {
                update_id,
                total_bytes: size(whole.len()),
                total_chunks,
                digest,
                data: data.to_vec(),
            };
            let (topic, payload) = (topic.to_string(), part.encode());
            let length = topic.len() + payload.len();
            match self.link.publish(topic, payload).await {
                Ok(true) => {
                    self.traffic.sent(length);
                    bytes += length as u64;
                }
                Ok(false) => return Ok(()),
                Err(error) => {
                    warn!(%update_id, %error, "chunk refused before it was sent");
                    return Ok(());
                }
            }
        }
        debug!(job = %entry.job, round = %entry.round, %update_id, bytes, "update handed to the link");
        self.observer.tell(Event::UpdateSent {
            job: entry.job.clone(),
            round: entry.round,
            bytes,
        });
        Ok(())
    }
}
