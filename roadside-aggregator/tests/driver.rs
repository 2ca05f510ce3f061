//! The whole unit in this process: embedded broker, real MQTT, real gRPC.

#![allow(clippy::unwrap_used, reason = "in a test a failure is a panic")]

mod support;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use roadside_aggregator::broker::Embedded;
use roadside_aggregator::config::{BrokerMode, Config};
use roadside_aggregator::event::{Event, Observer};
use roadside_aggregator::{RunError, run};
use support::{Cloud, Vehicle, config, model, plan, until};
use tokio::task::JoinHandle;
use wayside_domain::ids::RoundId;
use wayside_domain::update::Verdict;
use wayside_host::shutdown::Shutdown;
use wayside_proto::convert::Control;

struct Unit {
    events: Arc<Mutex<Vec<Event>>>,
    shutdown: Shutdown,
    task: JoinHandle<Result<(), RunError>>,
}

impl Unit {
    fn start(config: Config) -> Self {
        let events: Arc<Mutex<Vec<Event>>> = Arc::default();
        let (seen, shutdown) = (events.clone(), Shutdown::new());
        let observer = Observer::new(move |event| seen.lock().unwrap().push(event));
        let task = tokio::spawn(run(config, shutdown.clone(), observer));
        Self {
            events,
            shutdown,
            task,
        }
    }

    async fn saw<T>(&self, what: &str, wanted: impl Fn(&Event) -> Option<T>) -> T {
        until(what, || {
            self.events.lock().unwrap().iter().find_map(&wanted)
        })
        .await
    }

    async fn broker(&self) -> SocketAddr {
        self.saw("broker", |event| match event {
            Event::Listening { broker } => Some(*broker),
            _ => None,
        })
        .await
    }

    async fn stop(self) -> Vec<Event> {
        self.shutdown.trigger();
        self.task.await.unwrap().unwrap();
        Arc::into_inner(self.events).map_or_else(Vec::new, |events| events.into_inner().unwrap())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rounds_from_plan_to_partial_aggregate() {
    let folder = tempfile::tempdir().unwrap();
    let cloud = Cloud::start(plan(1, 4)).await;
    *cloud.cut.lock().unwrap() = Some(700);
    let unit = Unit::start(config(folder.path(), cloud.address));
    let broker = unit.broker().await;
    let mut vehicles = Vec::new();
    for name in ["v1", "v2", "v3", "v4"] {
        vehicles.push(Vehicle::join(name, broker).await);
    }
    let announcement = vehicles[0].round().await;
    assert_eq!(announcement.cohort.len(), 4);
    assert_eq!(vehicles[0].model(&announcement).await, model().1);
    let offsets: Vec<u64> = cloud
        .fetches
        .lock()
        .unwrap()
        .iter()
        .map(|f| f.offset)
        .collect();
    assert_eq!(
        offsets,
        [0, 700],
        "the second try went on where the first one was cut"
    );

    // A missing chunk is asked for.
    let update = vehicles[0].update(&announcement, 1);
    vehicles[0].send(&update, &[1]).await;
    let need = vehicles[0].need().await;
    assert_eq!((need.update_id, need.missing), (update.update_id, vec![1]));
    vehicles[0].send(&update, &[0, 2]).await;
    let receipt = vehicles[0].receipt().await;
    assert_eq!(
        (receipt.verdict, receipt.round),
        (Verdict::Accepted, RoundId(1))
    );
    // Redelivery, as often as it likes.
    vehicles[0].send(&update, &[]).await;
    assert_eq!(vehicles[0].receipt().await.verdict, Verdict::Accepted);

    for vehicle in &mut vehicles[1..] {
        let update = vehicle.update(&announcement, 2);
        vehicle.send(&update, &[]).await;
        assert_eq!(vehicle.receipt().await.verdict, Verdict::Accepted);
    }
    let partial = cloud.partial(0).await;
    assert_eq!((partial.num_examples, partial.contributions.len()), (40, 4));
    let (up, down) = (partial.up_bytes, partial.down_bytes);
    assert!(up > 4 * 1000 && down > 4 * 1000, "{up} up, {down} down");

    // The next merge round: how long does a whole round take beyond training?
    cloud.plan.send_replace(plan(2, 4));
    let begun = Instant::now();
    for vehicle in &mut vehicles {
        let announcement = vehicle.round().await;
        if announcement.round == RoundId(1) {
            assert_eq!(vehicle.round().await.round, RoundId(2));
        }
    }
    let mut announcement = announcement;
    announcement.round = RoundId(2);
    for vehicle in &vehicles {
        let update = vehicle.update(&announcement, 3);
        vehicle.send(&update, &[]).await;
    }
    let receiving = vehicles.iter_mut().map(|vehicle| async {
        let receipt = vehicle.receipt().await;
        assert_eq!(receipt.verdict, Verdict::Accepted);
        receipt.handling.as_millis()
    });
    let handling = futures_all(receiving.collect()).await;
    cloud.partial(1).await;
    let took = begun.elapsed().as_millis();
    assert!(
        took < 1000,
        "{took} ms on a busy machine, handling {handling:?}"
    );
    let told = format!("a round took {took} ms, handling {handling:?} ms\n");
    std::io::Write::write_all(&mut std::io::stderr(), told.as_bytes()).unwrap();

    drop(vehicles.pop());
    unit.saw("lost vehicle", |event| {
        matches!(event, Event::VehicleLost { .. }).then_some(())
    })
    .await;
    let events = unit.stop().await;
    let submitted = events.iter().filter(|e| {
        matches!(
            e,
            Event::PartialSubmitted {
                verdict: Verdict::Accepted,
                ..
            }
        )
    });
    assert_eq!(submitted.count(), 2);
    assert!(
        events
            .iter()
            .any(|event| matches!(event, Event::Traffic { .. }))
    );
}

/// Runs all of them at once.
async fn futures_all<T>(all: Vec<impl Future<Output = T>>) -> Vec<T> {
    let mut all: Vec<_> = all.into_iter().map(Box::pin).collect();
    let mut done: Vec<Option<T>> = all.iter().map(|_| None).collect();
    std::future::poll_fn(|cx| {
        for (future, slot) in all.iter_mut().zip(&mut done) {
            if slot.is_none()
                && let std::task::Poll::Ready(value) = future.as_mut().poll(cx)
            {
                *slot = Some(value);
            }
        }
        if done.iter().all(Option::is_some) {
            std::task::Poll::Ready(())
        } else {
            std::task::Poll::Pending
        }
    })
    .await;
    done.into_iter().flatten().collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn heartbeats_register_and_damaged_ones_do_no_harm() {
    let folder = tempfile::tempdir().unwrap();
    let cloud = Cloud::start(plan(1, 9)).await;
    let unit = Unit::start(config(folder.path(), cloud.address));
    let mut vehicle = Vehicle::join("v1", unit.broker().await).await;
    let topic = support::twin_topic(&vehicle.id);
    for damaged in [
        &b""[..],
        b"{",
        b"\xff\xfe",
        b"[]",
        br#"{"twin":{"a":{"actual":{" value":"29"}}}}"#,
    ] {
        vehicle.publish(&topic, damaged.to_vec()).await;
    }
    vehicle
        .publish("wayside/v1/r1/fleet/presence/v1", b"rubbish".to_vec())
        .await;
    vehicle
        .publish("wayside/v1/r1/lights/update/v1/1/0", b"rubbish".to_vec())
        .await;
    vehicle
        .publish("wayside/v1/r1/lights/update/v1/01/0", b"rubbish".to_vec())
        .await;
    // A newer start of the vehicle has to register.
    vehicle.heartbeat(u64::MAX).await;
    assert!(matches!(vehicle.control().await, Control::Register(_)));
    vehicle.say_presence().await;
    assert!(matches!(vehicle.control().await, Control::Registered(_)));
    unit.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_unit_starts_before_its_cloud_and_goes_on_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let nobody = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let unit = Unit::start(config(folder.path(), nobody));
    unit.saw("lost cloud", |event| {
        matches!(event, Event::CloudLost { .. }).then_some(())
    })
    .await;
    unit.stop().await;

    let cloud = Cloud::start(plan(1, 2)).await;
    let unit = Unit::start(config(folder.path(), cloud.address));
    let broker = unit.broker().await;
    let mut first = Vehicle::join("v1", broker).await;
    let _second = Vehicle::join("v2", broker).await;
    let before = first.round().await;
    let update = first.update(&before, 1);
    first.send(&update, &[]).await;
    assert_eq!(first.receipt().await.verdict, Verdict::Accepted);
    unit.stop().await;

    // Without a cloud it goes on with the stored plan, model and round.
    let unit = Unit::start(config(folder.path(), nobody));
    let broker = unit.broker().await;
    let mut first = Vehicle::join("v1", broker).await;
    let mut second = Vehicle::join("v2", broker).await;
    let after = first.round().await;
    assert_eq!(after, before, "the same round with the same deadline");
    first.send(&update, &[]).await;
    assert_eq!(first.receipt().await.verdict, Verdict::Accepted);
    let last = second.update(&after, 2);
    second.send(&last, &[]).await;
    assert_eq!(second.receipt().await.verdict, Verdict::Accepted);
    unit.saw("closed round", |e| {
        matches!(
            e,
            Event::RoundClosed {
                accepted: 2,
                aggregated: true,
                ..
            }
        )
        .then_some(())
    })
    .await;
    unit.stop().await;

    // The partial aggregate was kept, and is submitted as soon as there is a cloud.
    let unit = Unit::start(config(folder.path(), cloud.address));
    assert_eq!(cloud.partial(0).await.num_examples, 20);
    unit.stop().await;
    let hellos = cloud.hellos.lock().unwrap();
    assert!(
        hellos
            .windows(2)
            .all(|pair| pair[0].generation < pair[1].generation)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_external_broker_may_go_and_come_back() {
    let folder = tempfile::tempdir().unwrap();
    let cloud = Cloud::start(plan(1, 1)).await;
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let broker = Embedded::start(any, 1 << 20).await.unwrap();
    let address = broker.address();
    let mut config = config(folder.path(), cloud.address);
    config.broker.mode = BrokerMode::External;
    config.broker.address = address.to_string();
    let unit = Unit::start(config);
    unit.saw("broker link", |event| {
        matches!(event, Event::BrokerConnected).then_some(())
    })
    .await;
    let mut vehicle = Vehicle::join("v1", address).await;
    let before = vehicle.round().await;
    drop(broker);
    unit.saw("lost broker", |event| {
        matches!(event, Event::BrokerLost { .. }).then_some(())
    })
    .await;
    let mut attempts = 0;
    let _broker = loop {
        match Embedded::start(address, 1 << 20).await {
            Ok(broker) => break broker,
            Err(error) => assert!(attempts < 200, "{error}"),
        }
        attempts += 1;
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    };
    until("second link", || {
        let events = unit.events.lock().unwrap();
        let links = events
            .iter()
            .filter(|event| matches!(event, Event::BrokerConnected));
        (links.count() == 2).then_some(())
    })
    .await;
    // The new broker knows nothing; the unit says everything again.
    let mut vehicle = Vehicle::join("v1", address).await;
    let after = vehicle.round().await;
    assert_eq!(after, before);
    assert_eq!(vehicle.model(&after).await, model().1);
    let update = vehicle.update(&after, 1);
    vehicle.send(&update, &[]).await;
    assert_eq!(vehicle.receipt().await.verdict, Verdict::Accepted);
    unit.stop().await;
}
