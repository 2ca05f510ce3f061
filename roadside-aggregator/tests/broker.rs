//! What the protocol needs of a broker, asked of the embedded one over real sockets.

#![allow(clippy::unwrap_used, reason = "in a test a failure is a panic")]

use std::net::SocketAddr;
use std::time::Duration;

use roadside_aggregator::broker::{BrokerError, Embedded};
use rumqttc::{AsyncClient, Event, EventLoop, MqttOptions, Packet, Publish, QoS};

const PACKET: u32 = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(10);

async fn broker() -> Embedded {
    Embedded::start(SocketAddr::from(([127, 0, 0, 1], 0)), PACKET)
        .await
        .unwrap()
}

struct Client(AsyncClient, EventLoop);

impl Client {
    fn new(id: &str, address: SocketAddr) -> Self {
        let mut options = MqttOptions::new(id, address.ip().to_string(), address.port());
        let limit = usize::try_from(PACKET).unwrap();
        options
            .set_max_packet_size(limit, limit)
            .set_keep_alive(Duration::from_secs(20));
        let (client, events) = AsyncClient::new(options, 100);
        Self(client, events)
    }

    async fn until<T>(&mut self, mut wanted: impl FnMut(&Packet) -> Option<T>) -> Option<T> {
        let poll = async {
            loop {
                match self.1.poll().await {
                    Ok(Event::Incoming(packet)) => {
                        if let Some(found) = wanted(&packet) {
                            return Some(found);
                        }
                    }
                    Ok(Event::Outgoing(_)) => {}
                    Err(_) => return None,
                }
            }
        };
        tokio::time::timeout(PATIENCE, poll).await.ok().flatten()
    }

    async fn subscribe(&mut self, filter: &str) {
        self.0.subscribe(filter, QoS::AtLeastOnce).await.unwrap();
        let acked = |packet: &Packet| matches!(packet, Packet::SubAck(_)).then_some(());
        self.until(acked).await.expect("a SUBACK");
    }

    async fn publish(&mut self, topic: &str, retain: bool, payload: &[u8]) {
        self.0
            .publish(topic, QoS::AtLeastOnce, retain, payload)
            .await
            .unwrap();
        let acked = |packet: &Packet| matches!(packet, Packet::PubAck(_)).then_some(());
        self.until(acked).await.expect("a PUBACK");
    }

    async fn next(&mut self) -> Option<Publish> {
        self.until(|packet| match packet {
            Packet::Publish(publish) => Some(publish.clone()),
            _ => None,
        })
        .await
    }

    /// Nothing comes for a while that is long on loopback.
    async fn silent(&mut self) -> bool {
        tokio::time::timeout(Duration::from_millis(300), self.next())
            .await
            .is_err()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn three_brokers_in_one_process_share_nothing() {
    let brokers = [broker().await, broker().await, broker().await];
    // The same client id and the same topic at each of them.
    for (n, broker) in brokers.iter().enumerate() {
        let payload = vec![u8::try_from(n).unwrap(); 60_000];
        Client::new("same", broker.address())
            .publish("wayside/v1/r/j/round", true, &payload)
            .await;
    }
    let mut readers = Vec::new();
    for (n, broker) in brokers.iter().enumerate() {
        let mut reader = Client::new("reader", broker.address());
        reader.subscribe("wayside/v1/#").await;
        let publish = reader.next().await.expect("the retained message");
        assert!(publish.retain && publish.payload.len() == 60_000);
        assert_eq!(usize::from(publish.payload[0]), n);
        readers.push(reader);
    }
    let mut writer = Client::new("writer", brokers[0].address());
    writer
        .publish("wayside/v1/r/j/receipt/v1", false, b"x")
        .await;
    assert!(readers[0].next().await.is_some());
    assert!(readers[1].silent().await && readers[2].silent().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_retained_message_clears() {
    let broker = broker().await;
    let mut writer = Client::new("w", broker.address());
    writer.publish("a/b", true, b"1").await;
    writer.publish("a/c", true, b"2").await;
    writer.publish("a/b", true, b"").await;
    let mut reader = Client::new("r", broker.address());
    reader.subscribe("a/+").await;
    assert_eq!(reader.next().await.map(|p| p.topic), Some("a/c".into()));
    assert!(reader.silent().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn device_topics_pass() {
    let broker = broker().await;
    let mut reader = Client::new("r", broker.address());
    reader.subscribe("$hw/events/device/+/+/twin/update").await;
    let mut writer = Client::new("w", broker.address());
    writer
        .publish("$hw/events/device/default/v1/twin/update", false, b"{}")
        .await;
    assert_eq!(reader.next().await.map(|p| p.payload), Some("{}".into()));
}

#[tokio::test(flavor = "multi_thread")]
async fn dropping_it_frees_the_port_and_ends_connections() {
    let first = broker().await;
    let address = first.address();
    let taken = Embedded::start(address, PACKET).await.expect_err("in use");
    assert!(matches!(taken, BrokerError::Bind { .. }), "{taken}");
    assert!(taken.to_string().contains("in use"), "{taken}");
    let mut client = Client::new("c", address);
    client.subscribe("a").await;
    drop(first);
    assert_eq!(client.next().await, None, "the link is gone");
    let mut attempts = 0;
    let again = loop {
        match Embedded::start(address, PACKET).await {
            Ok(again) => break again,
            Err(error) => assert!(attempts < 100, "{error}"),
        }
        attempts += 1;
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert_eq!(again.address(), address);
    Client::new("c", address).subscribe("a").await;
}
