//! Whole vehicles in this process, against a roadside unit that loses things.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod unit;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use edge_client::backbone::Backbone;
use edge_client::{Config, Event, Observer, Resources, RunError, run_with};
use tokio::task::JoinHandle;
use unit::{Unit, spec};
use wayside_domain::ids::{Digest, RoundId};
use wayside_domain::job::JobSpec;
use wayside_domain::update::Verdict;
use wayside_host::shutdown::Shutdown;
use wayside_proto::codec;

/// A vehicle's own world: pictures, state, backbone, and what it told.
struct Vehicle {
    folder: tempfile::TempDir,
    backbone: Arc<Backbone>,
    events: Arc<Mutex<Vec<Event>>>,
}

fn weights() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("models/mobilenet_v3_large_075_coco.int8.safetensors")
}

impl Vehicle {
    fn new() -> Self {
        let vehicle = Self {
            folder: tempfile::tempdir().unwrap(),
            backbone: Arc::new(Backbone::load(&weights()).unwrap()),
            events: Arc::default(),
        };
        for n in 0..6 {
            vehicle.picture("red", n, [200 + n, 20, 20]);
            vehicle.picture("green", n, [20, 200 + n, 20]);
        }
        let broken = vehicle.folder.path().join("pictures/red/broken.png");
        std::fs::write(broken, b"").unwrap();
        vehicle
    }

    fn picture(&self, class: &str, n: u8, colour: [u8; 3]) {
        let folder = self.folder.path().join("pictures").join(class);
        std::fs::create_dir_all(&folder).unwrap();
        let picture = image::RgbImage::from_pixel(32, 32, image::Rgb(colour));
        picture.save(folder.join(format!("{n}.png"))).unwrap();
    }

    fn spec(&self) -> JobSpec {
        spec(Digest(self.backbone.digest()), self.backbone.features())
    }

    fn config(&self, address: &str) -> Config {
        let below = |name| self.folder.path().join(name);
        let mut config = Config::new("v1", "rsu", below("pictures"), weights(), below("state"));
        address.clone_into(&mut config.roadside.address);
        config.heartbeat.interval_ms = 100;
        config.link.chunk_bytes = 1000;
        config.link.reconnect_ms = 50;
        config.link.reconnect_max_ms = 200;
        config.link.resend_after_ms = 500;
        config.training.threads = 1;
        config.training.stop_file = Some(below("stop"));
        config
    }

    fn start(&self, config: Config) -> (Shutdown, JoinHandle<Result<(), RunError>>) {
        let (shutdown, events) = (Shutdown::new(), Arc::clone(&self.events));
        let observer = Observer::new(move |event| events.lock().unwrap().push(event));
        let resources = Resources {
            backbone: Some(Arc::clone(&self.backbone)),
            compute: Some(Arc::new(tokio::sync::Semaphore::new(1))),
        };
        let running = run_with(config, resources, shutdown.clone(), observer);
        (shutdown, tokio::spawn(running))
    }

    fn count(&self, matches: impl Fn(&Event) -> bool) -> usize {
        self.events
            .lock()
            .unwrap()
            .iter()
            .filter(|event| matches(event))
            .count()
    }

    async fn wait_for(&self, what: &str, matches: impl Fn(&Event) -> bool) {
        for _ in 0..3000 {
            if self.count(&matches) > 0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("no {what}: {:?}", self.events.lock().unwrap());
    }
}

async fn end(shutdown: &Shutdown, running: JoinHandle<Result<(), RunError>>) {
    shutdown.trigger();
    running.await.unwrap().unwrap();
}

fn receipt_in(round: u64) -> impl Fn(&Event) -> bool {
    move |event| matches!(event, Event::ReceiptReceived { round: got, verdict: Verdict::Accepted, .. } if *got == RoundId(round))
}

fn started(event: &Event) -> bool {
    matches!(event, Event::RoundStarted { .. })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_round_succeeds_although_the_link_breaks_and_chunks_are_lost() {
    let (vehicle, unit) = (Vehicle::new(), Unit::start());
    let job = vehicle.spec();
    unit.announce(&job, 1, "v1");
    {
        let mut state = unit.state();
        (state.cut_parts, state.lose_parts, state.ask_to_register) = (1, 1, true);
    }
    let (shutdown, running) = vehicle.start(vehicle.config(&unit.address));
    vehicle.wait_for("receipt", receipt_in(1)).await;
    // A new picture counts in the next round, which a live vehicle learns of when it connects again.
    vehicle.picture("green", 99, [0, 255, 0]);
    unit.announce(&job, 2, "v1");
    unit.state().cut_parts = 0;
    end(&shutdown, running).await;
    unit.wait_for("goodbye", |state| {
        state.presences.last().is_some_and(|last| !last.online)
    })
    .await;
    {
        let state = unit.state();
        for connection in &state.order {
            assert_eq!(connection[..2], ["connect", "subscribe"], "{connection:?}");
            assert_eq!(
                connection[2], "wayside/v1/rsu/fleet/presence/v1",
                "{connection:?}"
            );
        }
        assert!(state.order.len() >= 2, "the link was cut once");
        let id = state.parts[0].1.update_id;
        assert!(
            state.parts.iter().all(|(_, part)| part.update_id == id),
            "one id in every delivery"
        );
        let asked: Vec<_> = state
            .presences
            .iter()
            .filter(|presence| presence.online)
            .collect();
        assert!(asked.len() >= 3, "registered again when asked");
        assert!(
            asked
                .iter()
                .all(|presence| presence.generation == asked[0].generation)
        );
        assert!(asked.iter().all(|presence| presence.num_examples >= 12));
        let update = &state.updates[0];
        assert_eq!((update.round, update.num_examples), (RoundId(1), 12));
        let schema = job.model.schema().unwrap();
        let delta = codec::decode_delta(&update.frame, &schema).unwrap();
        assert!(delta.stats().finite && delta.stats().l2_norm > 0.0);
        assert!(
            state
                .subscriptions
                .iter()
                .any(|filter| filter.contains("/model/"))
        );
        assert!(state.heartbeats.len() >= 2);
        assert_eq!(state.heartbeats[0].generation, asked[0].generation);
    }
    assert_eq!(vehicle.count(started), 1);
    let skipped = |event: &Event| {
        matches!(
            event,
            Event::FeaturesReady {
                pictures: 12,
                skipped: 1,
                extracted: 12,
                ..
            }
        )
    };
    assert_eq!(vehicle.count(skipped), 1);

    let (shutdown, running) = vehicle.start(vehicle.config(&unit.address));
    vehicle.wait_for("receipt", receipt_in(2)).await;
    end(&shutdown, running).await;
    let state = unit.state();
    let update = state.updates.last().unwrap();
    assert_eq!((update.round, update.num_examples), (RoundId(2), 13));
    let cached = |event: &Event| {
        matches!(
            event,
            Event::FeaturesReady {
                pictures: 13,
                cached: 12,
                extracted: 1,
                ..
            }
        )
    };
    assert_eq!(vehicle.count(cached), 1);
    assert!(
        !vehicle
            .events
            .lock()
            .unwrap()
            .iter()
            .any(|event| matches!(event, Event::TrainingFailed { .. }))
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_vehicle_sends_its_update_again_and_does_not_train_again() {
    let (vehicle, unit) = (Vehicle::new(), Unit::start());
    unit.announce(&vehicle.spec(), 1, "v1");
    unit.state().answers = false;
    let (_shutdown, running) = vehicle.start(vehicle.config(&unit.address));
    unit.wait_for("update", |state| !state.updates.is_empty())
        .await;
    unit.wait_for("repeated update", |state| state.updates.len() >= 2)
        .await;
    running.abort();
    let _ = running.await;
    unit.state().answers = true;
    let before = unit.state().updates.len();
    let (shutdown, running) = vehicle.start(vehicle.config(&unit.address));
    vehicle.wait_for("receipt", receipt_in(1)).await;
    // Long enough that a second training would show.
    tokio::time::sleep(Duration::from_millis(300)).await;
    end(&shutdown, running).await;
    let state = unit.state();
    assert!(state.updates.len() > before);
    assert!(
        state.updates.windows(2).all(|pair| pair[0] == pair[1]),
        "the same bytes every time"
    );
    assert_eq!(vehicle.count(started), 1);
    let generations: std::collections::BTreeSet<_> =
        state.presences.iter().map(|p| p.generation).collect();
    assert_eq!(generations.len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_file_keeps_the_vehicle_from_working_while_its_heart_beats() {
    let (vehicle, unit) = (Vehicle::new(), Unit::start());
    let stop = vehicle.folder.path().join("stop");
    std::fs::write(&stop, "").unwrap();
    let config = vehicle.config(&unit.address);
    let (shutdown, running) = vehicle.start(config);
    let paused = wayside_proto::kubeedge::TrainState::Paused;
    unit.wait_for("paused heartbeat", |state| {
        state.heartbeats.iter().any(|beat| beat.state == paused)
    })
    .await;
    unit.announce(&vehicle.spec(), 1, "v1");
    let beats = unit.state().heartbeats.len();
    unit.wait_for("heartbeats", |state| state.heartbeats.len() >= beats + 5)
        .await;
    assert_eq!(vehicle.count(started), 0);
    std::fs::remove_file(&stop).unwrap();
    let idle = wayside_proto::kubeedge::TrainState::Idle;
    unit.wait_for("idle heartbeat", |state| {
        state
            .heartbeats
            .last()
            .is_some_and(|beat| beat.state == idle)
    })
    .await;
    end(&shutdown, running).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn training_that_fails_sends_nothing() {
    let (vehicle, unit) = (Vehicle::new(), Unit::start());
    let mut job = vehicle.spec();
    job.training.lr = 1e9;
    unit.announce(&job, 1, "v1");
    let (shutdown, running) = vehicle.start(vehicle.config(&unit.address));
    vehicle
        .wait_for("failure", |event| {
            matches!(event, Event::TrainingFailed { .. })
        })
        .await;
    let failed = wayside_proto::kubeedge::TrainState::Failed;
    unit.wait_for("heartbeat that says so", |state| {
        state.heartbeats.iter().any(|beat| beat.state == failed)
    })
    .await;
    end(&shutdown, running).await;
    assert!(unit.state().parts.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heartbeats_keep_their_rhythm_during_training() {
    let (vehicle, unit) = (Vehicle::new(), Unit::start());
    let mut job = vehicle.spec();
    job.training.effort = wayside_domain::job::Effort::LocalSteps(1_000_000);
    job.training.lr = 1e-6;
    unit.announce(&job, 1, "v1");
    let (shutdown, running) = vehicle.start(vehicle.config(&unit.address));
    vehicle.wait_for("training", started).await;
    let begun = std::time::Instant::now();
    let training = |beat: &&wayside_proto::kubeedge::Heartbeat| {
        beat.state == wayside_proto::kubeedge::TrainState::Training
    };
    unit.wait_for("20 heartbeats", |state| {
        state.heartbeats.iter().filter(training).count() >= 20
    })
    .await;
    // 2 s at best; the machine may be busy with other tests.
    assert!(
        begun.elapsed() < Duration::from_secs(6),
        "{:?}",
        begun.elapsed()
    );
    assert!(unit.state().parts.is_empty(), "still training");
    end(&shutdown, running).await;
    assert!(
        begun.elapsed() < Duration::from_secs(8),
        "training stops at once"
    );
    let state = unit.state();
    let beats: Vec<u64> = state
        .heartbeats
        .iter()
        .filter(training)
        .map(|beat| beat.sent.0)
        .collect();
    let longest = beats
        .windows(2)
        .map(|pair| pair[1] - pair[0])
        .max()
        .unwrap();
    assert!(longest < 2000, "{longest} ms between two heartbeats");
}
