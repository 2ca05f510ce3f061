//! The MQTT client: one fixed client id, a clean session, and everything said again after each reconnect.
//!
//! Three queues meet here. [`Outgoing`] holds what is to be published and the retained messages as they should stand at
//! the broker; [`Inbox`] holds what came; the client's own queue between them is short. The task that polls the link
//! never waits for a publish. After an error the client is thrown away and made anew, so that nothing of a broken
//! session is carried on: receipts that are lost that way are asked for again by the vehicles.

mod inbox;
mod outgoing;

pub use inbox::{Inbox, Message};
pub use outgoing::Outgoing;

use std::time::Duration;

use rand_chacha::ChaCha8Rng;
use rumqttc::{
    AsyncClient, Event as MqttEvent, EventLoop, MqttOptions, NetworkOptions, Packet, QoS,
    SubscribeFilter, SubscribeReasonCode,
};
use tokio::sync::watch;
use wayside_domain::backoff::Backoff;
use wayside_host::shutdown::Shutdown;

use crate::event::{Event, Observer};
use crate::link::Address;

/// Publishes that the client holds; more wait in [`Outgoing`].
const CHANNEL: usize = 64;
/// Messages at `QoS` 1 on their way to the broker.
const INFLIGHT: u16 = 64;
/// Connecting, and each write, must end within this time.
const NETWORK_TIMEOUT_S: u64 = 5;
/// A publish that the client does not take for this long shows that the session is stuck.
const STUCK_AFTER: Duration = Duration::from_secs(30);
const FIRST_RETRY: Duration = Duration::from_millis(500);
const LAST_RETRY: Duration = Duration::from_secs(30);
/// A link that held for this long is sound.
const SETTLED: Duration = Duration::from_secs(60);

/// What the client is told once.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where the broker is.
    pub broker: Address,
    /// Name of this client at the broker; no other may have it.
    pub client_id: String,
    /// MQTT keepalive.
    pub keepalive: Duration,
    /// Largest packet, in and out.
    pub max_packet_bytes: usize,
    /// What to subscribe to.
    pub filters: Vec<String>,
}

/// Keeps the link up until shutdown; `up` tells whether all filters are subscribed.
pub async fn run(
    settings: Settings,
    outgoing: Outgoing,
    inbox: Inbox,
    up: watch::Sender<bool>,
    mut rng: ChaCha8Rng,
    observer: Observer,
    shutdown: Shutdown,
) {
    let mut backoff = Backoff::new(FIRST_RETRY, LAST_RETRY, SETTLED);
    let mut last_error = String::new();
    loop {
        let begun = tokio::time::Instant::now();
        let reason = tokio::select! {
            () = shutdown.wait() => return,
            reason = session(&settings, &outgoing, &inbox, &up, &observer) => reason,
        };
        if up.send_replace(false) {
            backoff.held(begun.elapsed());
            observer.tell(Event::BrokerLost {
                reason: reason.clone(),
            });
        }
        let wait = backoff.next_wait(&mut rng);
        let wait_ms = wait.as_millis();
        let failures = backoff.failures();
        if reason == last_error && failures.is_power_of_two() && failures > 4 {
            tracing::error!(broker = %settings.broker, %reason, failures, "the same failure again and again");
        } else if reason != last_error || failures <= 1 {
            tracing::warn!(broker = %settings.broker, %reason, wait_ms, "no link to the broker");
        } else {
            tracing::debug!(broker = %settings.broker, %reason, wait_ms, failures, "no link to the broker");
        }
        last_error = reason;
        tokio::select! {
            () = shutdown.wait() => return,
            () = tokio::time::sleep(wait) => {}
        }
    }
}

/// One connection from start to end; says why it ended.
async fn session(
    settings: &Settings,
    outgoing: &Outgoing,
    inbox: &Inbox,
    up: &watch::Sender<bool>,
    observer: &Observer,
) -> String {
    let host = if settings.broker.host.contains(':') {
        format!("[{}]", settings.broker.host)
    } else {
        settings.broker.host.clone()
    };
    let mut options = MqttOptions::new(settings.client_id.clone(), host, settings.broker.port);
    options
        .set_clean_session(true)
        .set_keep_alive(settings.keepalive)
        .set_max_packet_size(settings.max_packet_bytes, settings.max_packet_bytes)
        .set_inflight(INFLIGHT);
    let (client, mut events) = AsyncClient::new(options, CHANNEL);
    let mut network = NetworkOptions::new();
    network.set_tcp_nodelay(true);
    network.set_connection_timeout(NETWORK_TIMEOUT_S);
    events.set_network_options(network);
    let ready = up.subscribe();
    // Both run at once in this task, and neither waits for the other.
    tokio::select! {
        reason = poll(settings, &client, &mut events, inbox, up, observer) => reason,
        reason = publish(&client, outgoing, ready) => reason,
    }
}

async fn poll(
    settings: &Settings,
    client: &AsyncClient,
    events: &mut EventLoop,
    inbox: &Inbox,
    up: &watch::Sender<bool>,
    observer: &Observer,
) -> String {
    loop {
        match events.poll().await {
            Err(error) => return error.to_string(),
            Ok(MqttEvent::Incoming(Packet::ConnAck(_))) => {
                // The client's queue is empty: nothing is published before the broker has taken the subscription.
                let filters = settings.filters.iter().cloned();
                let filters = filters.map(|path| SubscribeFilter::new(path, QoS::AtLeastOnce));
                if let Err(error) = client.try_subscribe_many(filters) {
                    return error.to_string();
                }
            }
            Ok(MqttEvent::Incoming(Packet::SubAck(ack))) => {
                if ack.return_codes.contains(&SubscribeReasonCode::Failure) {
                    return "the broker refuses a subscription".to_owned();
                }
                tracing::info!(broker = %settings.broker, "connected to the broker");
                observer.tell(Event::BrokerConnected);
                up.send_replace(true);
            }
            Ok(MqttEvent::Incoming(Packet::Publish(publish))) => {
                inbox.push(publish.topic, publish.payload.to_vec());
            }
            Ok(MqttEvent::Incoming(_) | MqttEvent::Outgoing(_)) => {}
        }
    }
}

async fn publish(
    client: &AsyncClient,
    outgoing: &Outgoing,
    mut ready: watch::Receiver<bool>,
) -> String {
    if ready.wait_for(|up| *up).await.is_err() {
        return "the link ended".to_owned();
    }
    outgoing.begin_session();
    loop {
        let (topic, payload, retain) = outgoing.next().await;
        let sent = client.publish(topic, QoS::AtLeastOnce, retain, payload);
        match tokio::time::timeout(STUCK_AFTER, sent).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return error.to_string(),
            Err(_) => return "the session is stuck".to_owned(),
        }
    }
}
