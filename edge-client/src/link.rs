//! The MQTT link to the roadside unit: connects, subscribes, hands messages in both directions, and comes back.
//!
//! Each connection gets a new client and event loop with a clean session, since what was under way belongs to the
//! outbox and not to the client: nothing of a broken connection is left behind. On CONNACK all filters are subscribed in
//! one packet before anything else is sent. The poll loop never waits for a publish.
//!
//! Queues, and what happens when they are full:
//! - towards the vehicle ([`INBOX`] messages): the message is dropped and counted, and once there is room the retained
//!   topics are subscribed anew; receipts and requests come again when the update does.
//! - towards the broker ([`OUTBOUND`] chunks): whoever sends an update waits, in a task of its own. Presence and
//!   heartbeats have a place each that holds the latest only, and go first.

mod progress;

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rumqttc::{
    AsyncClient, Event, EventLoop, LastWill, MqttOptions, NetworkOptions, Outgoing as Sent, Packet,
    Publish, QoS, SubscribeFilter, SubscribeReasonCode,
};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tracing::{debug, info, warn};
use wayside_domain::backoff::Backoff;
use wayside_domain::time::Timestamp;
use wayside_host::clock::Clock;
use wayside_host::shutdown::Shutdown;

use crate::config::LinkSection;
use progress::Progress;

/// Messages that wait for the vehicle.
pub(crate) const INBOX: usize = 256;
/// Chunks that wait for the broker.
pub(crate) const OUTBOUND: usize = 16;
/// Messages without an acknowledgement, at most.
const INFLIGHT: u16 = 8;
/// Requests between the publishing loop and the event loop.
const REQUESTS: usize = 8;
/// How long a link must hold before its failures are forgotten.
const SETTLE: Duration = Duration::from_secs(60);
/// How often the watchdog looks.
const WATCH: Duration = Duration::from_secs(1);
/// How long the goodbye may take.
const GOODBYE: Duration = Duration::from_millis(500);

/// Whom to connect to, and as whom.
#[derive(Clone, Debug)]
pub(crate) struct LinkOptions {
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) client_id: String,
    pub(crate) link: LinkSection,
    /// Topic of the presence, and what the broker publishes there when the link breaks.
    pub(crate) presence_topic: String,
    pub(crate) last_will: Vec<u8>,
    pub(crate) heartbeat_topic: String,
    /// Subscribed at each connect.
    pub(crate) filters: Vec<String>,
    /// Decides the waits between connects.
    pub(crate) seed: u64,
}

/// What the link tells the vehicle.
#[derive(Debug)]
pub(crate) enum LinkEvent {
    /// Connected, and subscribed to everything.
    Up,
    /// Gone.
    Down,
    /// A message arrived.
    Message(Publish),
}

/// A request to the broker.
#[derive(Debug)]
enum Request {
    Publish { topic: String, payload: Vec<u8> },
    Subscribe(String),
    Unsubscribe(String),
}

/// A message that the limit on packets rules out; it is refused before the client sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("message of {got} bytes exceeds the packet limit of {limit}")]
pub(crate) struct TooLarge {
    pub(crate) got: usize,
    pub(crate) limit: usize,
}

/// Hands messages to the link. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct LinkHandle {
    requests: mpsc::Sender<Request>,
    presence: watch::Sender<Vec<u8>>,
    heartbeat: watch::Sender<Vec<u8>>,
    /// Filters beside the fixed ones, subscribed again at each connect.
    extra: Arc<Mutex<BTreeSet<String>>>,
    max_packet_bytes: usize,
}

/// The other ends of a [`LinkHandle`].
#[derive(Debug)]
pub(crate) struct LinkEnds {
    requests: mpsc::Receiver<Request>,
    presence: watch::Receiver<Vec<u8>>,
    heartbeat: watch::Receiver<Vec<u8>>,
    extra: Arc<Mutex<BTreeSet<String>>>,
}

impl LinkHandle {
    pub(crate) fn new(max_packet_bytes: usize) -> (Self, LinkEnds) {
        let (requests, requests_end) = mpsc::channel(OUTBOUND);
        let (presence, presence_end) = watch::channel(Vec::new());
        let (heartbeat, heartbeat_end) = watch::channel(Vec::new());
        let extra = Arc::default();
        let handle = Self {
            requests,
            presence,
            heartbeat,
            extra: Arc::clone(&extra),
            max_packet_bytes,
        };
        let ends = LinkEnds {
            requests: requests_end,
            presence: presence_end,
            heartbeat: heartbeat_end,
            extra,
        };
        (handle, ends)
    }

    /// Publishes the latest presence.
    pub(crate) fn presence(&self, payload: Vec<u8>) {
        self.presence.send_replace(payload);
    }

    /// Publishes the latest heartbeat.
    pub(crate) fn heartbeat(&self, payload: Vec<u8>) {
        self.heartbeat.send_replace(payload);
    }

    /// Waits for room, then hands a message over; false if the link has ended for good.
    pub(crate) async fn publish(&self, topic: String, payload: Vec<u8>) -> Result<bool, TooLarge> {
        // Fixed header, topic length, packet id.
        let got = payload.len() + topic.len() + 9;
        let limit = self.max_packet_bytes;
        if got > limit {
            return Err(TooLarge { got, limit });
        }
        let request = Request::Publish { topic, payload };
        Ok(self.requests.send(request).await.is_ok())
    }

    /// Subscribes, again if that was done before, now and at each connect.
    pub(crate) fn subscribe(&self, filter: String) {
        self.extra().insert(filter.clone());
        // Without room it is subscribed at the next connect, or when it is asked for again.
        let _ = self.requests.try_send(Request::Subscribe(filter));
    }

    /// Ends a subscription.
    pub(crate) fn unsubscribe(&self, filter: String) {
        self.extra().remove(&filter);
        let _ = self.requests.try_send(Request::Unsubscribe(filter));
    }

    fn extra(&self) -> std::sync::MutexGuard<'_, BTreeSet<String>> {
        self.extra.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why a connection ended.
#[derive(Debug)]
struct Ended {
    reason: String,
    /// How long it was up; `None` if it never was.
    lasted: Option<Duration>,
}

/// Keeps a link until `shutdown`.
pub(crate) async fn keep(
    options: LinkOptions,
    mut ends: LinkEnds,
    inbox: mpsc::Sender<LinkEvent>,
    clock: Clock,
    shutdown: Shutdown,
) {
    let millis = Duration::from_millis;
    let (base, cap) = (
        millis(options.link.reconnect_ms),
        millis(options.link.reconnect_max_ms),
    );
    let mut backoff = Backoff::new(base, cap, SETTLE);
    let mut rng = ChaCha8Rng::seed_from_u64(options.seed);
    let mut last_reason = String::new();
    let mut repeats = 0_u32;
    let address = format!("{}:{}", options.host, options.port);
    loop {
        let Some(ended) = connection(&options, &mut ends, &inbox, &clock, &shutdown).await else {
            return;
        };
        if ended.lasted.is_some() && !tell(&inbox, LinkEvent::Down, &shutdown).await {
            return;
        }
        let lasted = ended.lasted.unwrap_or_default();
        backoff.held(lasted);
        let wait = backoff.next_wait(&mut rng);
        repeats = if ended.reason == last_reason && lasted < SETTLE {
            repeats.saturating_add(1)
        } else {
            0
        };
        let (reason, wait_ms) = (&ended.reason, wait.as_millis());
        if repeats > 0 && repeats.is_power_of_two() {
            warn!(%address, %reason, repeats, wait_ms, "link keeps failing for the same reason");
        } else if repeats == 0 {
            info!(%address, %reason, wait_ms, "link down");
        } else {
            debug!(%address, %reason, repeats, wait_ms, "link down");
        }
        last_reason = ended.reason;
        tokio::select! {
            () = shutdown.wait() => return,
            () = tokio::time::sleep(wait) => {}
        }
    }
}

/// Waits for room; false if the vehicle ends meanwhile.
async fn tell(inbox: &mpsc::Sender<LinkEvent>, event: LinkEvent, shutdown: &Shutdown) -> bool {
    tokio::select! {
        biased;
        () = shutdown.wait() => false,
        sent = inbox.send(event) => sent.is_ok(),
    }
}

/// One connection from CONNECT to its end; `None` if the process ends.
async fn connection(
    options: &LinkOptions,
    ends: &mut LinkEnds,
    inbox: &mpsc::Sender<LinkEvent>,
    clock: &Clock,
    shutdown: &Shutdown,
) -> Option<Ended> {
    let (client, mut events) = client(options);
    let failed = |reason: String| {
        Some(Ended {
            reason,
            lasted: None,
        })
    };
    let connected = tokio::select! {
        biased;
        () = shutdown.wait() => return None,
        connected = connect(&mut events) => connected,
    };
    if let Err(reason) = connected {
        return failed(reason);
    }
    let mut filters: BTreeSet<String> = options.filters.iter().cloned().collect();
    filters.extend(
        ends.extra
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .iter()
            .cloned(),
    );
    if let Err(error) = subscribe(&client, &filters) {
        return failed(error);
    }
    // What was left for the old connection is sent again by whoever cares.
    while ends.requests.try_recv().is_ok() {}
    ends.presence.mark_unchanged();
    ends.heartbeat.mark_unchanged();
    let since = Instant::now();
    if !tell(inbox, LinkEvent::Up, shutdown).await {
        return None;
    }
    info!(host = %options.host, port = options.port, "link up");
    let progress = Progress::new(since);
    let reason = tokio::select! {
        biased;
        () = shutdown.wait() => {
            goodbye(options, &client, &mut events, &progress).await;
            return None;
        }
        reason = poll(&mut events, inbox, &progress) => reason,
        reason = publish(options, &client, ends, &progress) => reason,
        reason = watchdog(options, &client, &filters, inbox, &progress, clock) => reason,
    };
    Some(Ended {
        reason,
        lasted: Some(since.elapsed()),
    })
}

fn client(options: &LinkOptions) -> (AsyncClient, EventLoop) {
    let link = &options.link;
    let mut mqtt = MqttOptions::new(&options.client_id, &options.host, options.port);
    mqtt.set_keep_alive(Duration::from_secs(link.keepalive_s))
        .set_clean_session(true)
        .set_max_packet_size(link.max_packet_bytes, link.max_packet_bytes)
        .set_inflight(INFLIGHT)
        .set_last_will(LastWill::new(
            &options.presence_topic,
            options.last_will.clone(),
            QoS::AtLeastOnce,
            false,
        ));
    let (client, mut events) = AsyncClient::new(mqtt, REQUESTS);
    let mut network = NetworkOptions::new();
    network.set_tcp_nodelay(true);
    network.set_connection_timeout(link.timeout_s);
    events.set_network_options(network);
    (client, events)
}

async fn connect(events: &mut EventLoop) -> Result<(), String> {
    loop {
        match events.poll().await {
            Ok(Event::Incoming(Packet::ConnAck(_))) => return Ok(()),
            Ok(_) => {}
            Err(error) => return Err(error.to_string()),
        }
    }
}

fn subscribe(client: &AsyncClient, filters: &BTreeSet<String>) -> Result<(), String> {
    let filters = filters
        .iter()
        .map(|filter| SubscribeFilter::new(filter.clone(), QoS::AtLeastOnce));
    client
        .try_subscribe_many(filters)
        .map_err(|error| format!("subscription: {error}"))
}

/// Drives the connection and hands over what arrives; never waits for anything but the network.
async fn poll(
    events: &mut EventLoop,
    inbox: &mpsc::Sender<LinkEvent>,
    progress: &Progress,
) -> String {
    loop {
        match events.poll().await {
            Ok(Event::Incoming(packet)) => {
                progress
                    .last_news
                    .store(progress.elapsed_ms(), Ordering::Relaxed);
                match packet {
                    Packet::Publish(message) => {
                        let full = inbox.try_send(LinkEvent::Message(message)).is_err();
                        progress.dropped.fetch_or(full, Ordering::Relaxed);
                    }
                    Packet::PubAck(_) => progress.ack(progress.elapsed_ms()),
                    Packet::SubAck(answer)
                        if answer.return_codes.contains(&SubscribeReasonCode::Failure) =>
                    {
                        return "the broker refused a subscription".to_owned();
                    }
                    Packet::Disconnect => return "the broker said goodbye".to_owned(),
                    _ => {}
                }
            }
            Ok(Event::Outgoing(Sent::PingReq)) => {
                progress
                    .last_ping
                    .store(progress.elapsed_ms(), Ordering::Relaxed);
            }
            Ok(Event::Outgoing(_)) => {}
            Err(error) => return error.to_string(),
        }
    }
}

/// Hands requests to the client, one at a time: presence first, then heartbeats, then chunks of updates.
async fn publish(
    options: &LinkOptions,
    client: &AsyncClient,
    ends: &mut LinkEnds,
    progress: &Progress,
) -> String {
    loop {
        let request = tokio::select! {
            biased;
            changed = ends.presence.changed() => changed.ok().map(|()| Request::Publish {
                topic: options.presence_topic.clone(),
                payload: ends.presence.borrow_and_update().clone(),
            }),
            changed = ends.heartbeat.changed() => changed.ok().map(|()| Request::Publish {
                topic: options.heartbeat_topic.clone(),
                payload: ends.heartbeat.borrow_and_update().clone(),
            }),
            request = ends.requests.recv() => request,
        };
        let Some(request) = request else {
            return "the vehicle has ended".to_owned();
        };
        let done = match request {
            Request::Publish { topic, payload } => {
                progress.hand(progress.elapsed_ms());
                client
                    .publish(topic, QoS::AtLeastOnce, false, payload)
                    .await
            }
            Request::Subscribe(filter) => client.subscribe(filter, QoS::AtLeastOnce).await,
            Request::Unsubscribe(filter) => client.unsubscribe(filter).await,
        };
        if let Err(error) = done {
            return error.to_string();
        }
    }
}

/// Ends a connection that looks alive and is not; subscribes anew after messages were dropped.
async fn watchdog(
    options: &LinkOptions,
    client: &AsyncClient,
    filters: &BTreeSet<String>,
    inbox: &mpsc::Sender<LinkEvent>,
    progress: &Progress,
    clock: &Clock,
) -> String {
    let keepalive = Duration::from_secs(options.link.keepalive_s);
    let keepalive_ms = options.link.keepalive_s * 1000;
    let patience_ms = (keepalive_ms * 3 / 2).max(options.link.timeout_s * 2000);
    let mut last: Timestamp = clock.now();
    loop {
        tokio::time::sleep(WATCH).await;
        let now = clock.now();
        if now.since(last) > WATCH + keepalive * 3 / 2 {
            return "the machine was asleep".to_owned();
        }
        last = now;
        if let Some(reason) = progress.stuck(progress.elapsed_ms(), keepalive_ms, patience_ms) {
            return reason.to_owned();
        }
        let room = inbox.capacity() > INBOX / 2;
        if room && progress.dropped.swap(false, Ordering::Relaxed) {
            warn!("messages were dropped because the vehicle was busy, subscribing again");
            // Without room among the requests the next look tries again.
            if subscribe(client, filters).is_err() {
                progress.dropped.store(true, Ordering::Relaxed);
            }
        }
    }
}

/// Says that the vehicle leaves; the broker does not publish the last will then.
///
/// The broker's acknowledgement and its close are waited for: a socket that is closed with something unread in it takes
/// back what was sent last.
async fn goodbye(
    options: &LinkOptions,
    client: &AsyncClient,
    events: &mut EventLoop,
    progress: &Progress,
) {
    let (topic, payload) = (&options.presence_topic, options.last_will.clone());
    if client
        .try_publish(topic, QoS::AtLeastOnce, false, payload)
        .is_err()
    {
        return; // the last will says it
    }
    progress.hand(progress.elapsed_ms());
    let leave = async {
        let mut left = false;
        while let Ok(event) = events.poll().await {
            if let Event::Incoming(Packet::PubAck(_)) = event {
                progress.ack(progress.elapsed_ms());
            }
            if !left && progress.all_acknowledged() {
                left = client.try_disconnect().is_ok();
            }
        }
    };
    let _ = tokio::time::timeout(GOODBYE, leave).await;
}

#[cfg(test)]
mod tests;
