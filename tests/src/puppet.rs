//! A vehicle on strings: it registers and reads like a vehicle, and sends exactly what the test tells it to.

use anyhow::{Context, bail};
use rumqttc::{Client, Event, MqttOptions, Packet, QoS, SubscribeFilter};
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};
use wayside_domain::ids::{Digest, Generation, JobId, RoadsideId, RoundId, UpdateId, VehicleId};
use wayside_proto::codec::digest;
use wayside_proto::convert::{Announcement, Presence, Receipt, Update, UpdatePart, Wire};
use wayside_proto::topics::{Topic, vehicle_filters};

const PATIENCE: Duration = Duration::from_secs(30);
const MAX_PACKET_BYTES: usize = 1 << 20;

/// The vehicle; see the module's text.
pub struct Puppet {
    /// Its name.
    pub vehicle: VehicleId,
    /// The unit that it works with.
    pub roadside: RoadsideId,
    client: Client,
    inbox: Receiver<(Topic, Vec<u8>)>,
    announcement: Option<Announcement>,
    receipts: BTreeMap<UpdateId, Vec<Receipt>>,
}

impl Puppet {
    /// Connects to the broker, subscribes and registers.
    pub fn join(
        broker: &str,
        roadside: &str,
        vehicle: &str,
        num_examples: u64,
    ) -> anyhow::Result<Self> {
        let (host, port) = broker.rsplit_once(':').context("broker is host:port")?;
        let (vehicle, roadside) = (VehicleId::new(vehicle)?, RoadsideId::new(roadside)?);
        let mut options = MqttOptions::new(format!("puppet-{vehicle}"), host, port.parse()?);
        options
            .set_max_packet_size(MAX_PACKET_BYTES, MAX_PACKET_BYTES)
            .set_keep_alive(Duration::from_secs(20));
        let (client, mut connection) = Client::new(options, 64);
        let (to_inbox, inbox) = channel();
        std::thread::spawn(move || {
            for event in connection.iter() {
                match event {
                    Ok(Event::Incoming(Packet::Publish(publish))) => {
                        if let Ok(topic) = Topic::parse(&publish.topic)
                            && to_inbox.send((topic, publish.payload.to_vec())).is_err()
                        {
                            return;
                        }
                    }
                    Ok(_) => {}
                    Err(_) => std::thread::sleep(Duration::from_millis(100)),
                }
            }
        });
        let filters = vehicle_filters(&roadside, &vehicle);
        client.subscribe_many(
            filters
                .into_iter()
                .map(|path| SubscribeFilter::new(path, QoS::AtLeastOnce)),
        )?;
        let presence = Presence {
            vehicle: vehicle.clone(),
            generation: Generation(1),
            online: true,
            client_version: "puppet".to_owned(),
            backbone: None,
            num_examples,
        };
        let topic = Topic::Presence {
            roadside: roadside.clone(),
            vehicle: vehicle.clone(),
        };
        client.publish(
            topic.to_string(),
            QoS::AtLeastOnce,
            false,
            presence.encode(),
        )?;
        Ok(Self {
            vehicle,
            roadside,
            client,
            inbox,
            announcement: None,
            receipts: BTreeMap::new(),
        })
    }

    /// Reads what has come, or waits a moment for it.
    fn listen(&mut self, end: Instant) -> anyhow::Result<()> {
        let patience = end.saturating_duration_since(Instant::now());
        match self.inbox.recv_timeout(patience) {
            Ok((Topic::Round { .. }, payload)) => {
                self.announcement = Some(Announcement::decode(&payload)?);
            }
            Ok((Topic::Receipt { .. }, payload)) => {
                let receipt = Receipt::decode(&payload)?;
                self.receipts
                    .entry(receipt.update_id)
                    .or_default()
                    .push(receipt);
            }
            Ok(_) => {}
            Err(RecvTimeoutError::Timeout) => bail!("{} waited in vain", self.vehicle),
            Err(RecvTimeoutError::Disconnected) => bail!("{} lost its broker", self.vehicle),
        }
        Ok(())
    }

    /// Waits for an open round after `after` that this vehicle is asked to take part in.
    pub fn wait_for_round(&mut self, after: RoundId) -> anyhow::Result<Announcement> {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(announcement) = &self.announcement {
                let asked = announcement.cohort.contains(&self.vehicle);
                if announcement.open && asked && announcement.round > after {
                    return Ok(announcement.clone());
                }
            }
            self.listen(end)
                .with_context(|| format!("for a round after {after}"))?;
        }
    }

    /// An update that fits the announcement; the test spoils it from here.
    pub fn update(
        &self,
        announcement: &Announcement,
        id: u8,
        num_examples: u64,
        frame: Vec<u8>,
    ) -> Update {
        Update {
            job: announcement.job.clone(),
            roadside: self.roadside.clone(),
            vehicle: self.vehicle.clone(),
            round: announcement.round,
            base_version: announcement.base_version,
            update_id: UpdateId([id; 16]),
            num_examples,
            frame,
            metrics: wayside_proto::convert::UpdateMetrics::default(),
        }
    }

    /// Sends an update as one chunk on the topic that its own fields say.
    pub fn send(&self, update: &Update) -> anyhow::Result<()> {
        let body = update.encode();
        self.send_raw(
            &update.job,
            update.round,
            update.update_id,
            digest(&body),
            body,
        )
    }

    /// Sends bytes as one chunk.
    pub fn send_raw(
        &self,
        job: &JobId,
        round: RoundId,
        id: UpdateId,
        digest: Digest,
        body: Vec<u8>,
    ) -> anyhow::Result<()> {
        let topic = Topic::Update {
            roadside: self.roadside.clone(),
            job: job.clone(),
            vehicle: self.vehicle.clone(),
            round,
            chunk: 0,
        };
        let part = UpdatePart {
            update_id: id,
            total_bytes: u32::try_from(body.len())?,
            total_chunks: 1,
            digest,
            data: body,
        };
        self.client
            .publish(topic.to_string(), QoS::AtLeastOnce, false, part.encode())?;
        Ok(())
    }

    /// Waits until so many receipts for the update have come; the last one.
    pub fn wait_for_receipts(&mut self, id: UpdateId, times: usize) -> anyhow::Result<Receipt> {
        let end = Instant::now() + PATIENCE;
        loop {
            let receipts = self.receipts.get(&id);
            if let Some(receipt) = receipts.and_then(|receipts| receipts.get(times - 1)) {
                return Ok(*receipt);
            }
            self.listen(end)
                .with_context(|| format!("for receipt {times} of {id}"))?;
        }
    }
}

impl std::fmt::Debug for Puppet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Puppet({} at {})", self.vehicle, self.roadside)
    }
}

impl Drop for Puppet {
    fn drop(&mut self) {
        let _ = self.client.disconnect();
    }
}
