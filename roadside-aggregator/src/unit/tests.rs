use super::*;
use crate::store::{Memory, Store as _};
use wayside_domain::ids::{Generation, ModelVersion, RoadsideId};
use wayside_domain::update::RejectReason;
use wayside_proto::convert::{Presence, Receipt, UpdatePart};

fn settings() -> Settings {
    Settings {
        site: Site {
            roadside: RoadsideId::new("r1").unwrap(),
            chunk_bytes: 1000,
            generation: Generation(5),
        },
        namespace: Namespace::new("default").unwrap(),
        heartbeat: Duration::from_secs(30),
        misses: 3,
        settle: Duration::ZERO,
        uploads: UploadLimits {
            max_open_bytes: 10_000,
            need_after: Duration::from_secs(1),
            max_age: Duration::from_secs(60),
        },
    }
}

fn unit(stored: Stored) -> (Unit, Vec<Effect>) {
    Unit::new(settings(), Timestamp(0), stored, &|_| None, &|_, _| None)
}

fn message(topic: &str, payload: &[u8]) -> Input {
    Input::Message {
        topic: topic.to_owned(),
        payload: payload.to_vec(),
    }
}

fn presence(name: &str, generation: u64, online: bool) -> Vec<u8> {
    let presence = Presence {
        vehicle: VehicleId::new(name).unwrap(),
        generation: Generation(generation),
        online,
        client_version: "0".into(),
        backbone: None,
        num_examples: 4,
    };
    presence.encode()
}

fn twin(generation: u64) -> Vec<u8> {
    format!(
        r#"{{"event_id":"","timestamp":1767225600000,"twin":{{"fl-generation":{{"actual":{{"value":"{generation}"}}}},"train-state":{{"actual":{{"value":"idle"}}}},"samples":{{"actual":{{"value":"4"}}}}}}}}"#
    )
    .into_bytes()
}

fn controls(effects: &[Effect]) -> Vec<Control> {
    let sent = effects.iter().filter_map(|effect| match effect {
        Effect::Publish {
            topic: Topic::Control { .. },
            payload,
            ..
        } => Some(Control::decode(payload).unwrap()),
        _ => None,
    });
    sent.collect()
}

const PRESENCE: &str = "wayside/v1/r1/fleet/presence/v1";
const TWIN: &str = "$hw/events/device/default/v1/twin/update";

#[test]
fn vehicles_register_and_are_asked_to_when_they_are_not_known() {
    let (mut unit, _) = unit(Stored::default());
    let mut tell = |topic: &str, payload: &[u8]| {
        let effects = unit.handle(Timestamp(1), message(topic, payload));
        controls(&effects)
    };
    let (register, registered) = (
        Control::Register(Generation(5)),
        Control::Registered(Generation(5)),
    );
    assert_eq!(tell(TWIN, &twin(1)), [register], "a heartbeat of nobody");
    assert_eq!(tell(PRESENCE, &presence("v1", 1, true)), [registered]);
    assert!(tell(TWIN, &twin(1)).is_empty());
    assert_eq!(tell(TWIN, &twin(2)), [register], "it was started anew");
    assert_eq!(tell(PRESENCE, &presence("v1", 2, true)), [registered]);
    assert!(
        tell(PRESENCE, &presence("v1", 1, false)).is_empty(),
        "a late last will"
    );
    assert_eq!(unit.fleet.online(), 1);
}

#[test]
fn foreign_and_damaged_messages_are_counted_and_change_nothing() {
    let (mut unit, _) = unit(Stored::default());
    unit.handle(Timestamp(1), message(PRESENCE, &presence("v1", 1, true)));
    let foreign = [
        "",
        "a",
        "wayside/v1/r2/fleet/presence/v1",
        "wayside/v1/r1/fleet/update/v1/1/0",
        "wayside/v1/r1/a/update/é/1/0",
        "$hw/events/device/other/v1/twin/update",
        "wayside/v1/r1/lights/receipt/v1",
    ];
    for topic in foreign {
        assert!(
            unit.handle(Timestamp(2), message(topic, b"x")).is_empty(),
            "{topic}"
        );
    }
    let damaged = [
        (TWIN, &b"{"[..]),
        (TWIN, b"\xff"),
        (TWIN, b""),
        (TWIN, br#"{"twin":{}}"#),
        (PRESENCE, b"\xff\xff"),
        ("wayside/v1/r1/lights/update/v1/1/0", b"\xff"),
    ];
    for (topic, payload) in damaged {
        assert!(
            unit.handle(Timestamp(2), message(topic, payload))
                .is_empty(),
            "{topic}"
        );
    }
    // A body of somebody else on the topic.
    unit.handle(Timestamp(2), message(PRESENCE, &presence("v2", 9, true)));
    let counters = unit.counters();
    assert_eq!((counters.foreign, counters.damaged), (7, 7));
    assert_eq!((unit.warned.len(), unit.fleet.online()), (1, 1));
}

#[test]
fn an_update_of_a_job_that_is_not_here_is_refused_once_a_delivery() {
    let (mut unit, _) = unit(Stored::default());
    let part = UpdatePart {
        update_id: UpdateId([1; 16]),
        total_bytes: 600,
        total_chunks: 2,
        digest: Digest([0; 32]),
        data: vec![1; 300],
    };
    let mut send = |chunk: u32| {
        let topic = format!("wayside/v1/r1/lights/update/v1/1/{chunk}");
        unit.handle(Timestamp(1), message(&topic, &part.encode()))
    };
    let [
        Effect::Publish {
            topic: Topic::Receipt { .. },
            payload,
            retain: false,
        },
    ] = &send(0)[..]
    else {
        panic!("a receipt");
    };
    let receipt = Receipt::decode(payload).unwrap();
    assert_eq!(receipt.verdict, Verdict::Rejected(RejectReason::UnknownJob));
    assert_eq!(receipt.current_version, ModelVersion(0));
    assert!(send(1).is_empty());
}

#[test]
fn a_restarted_unit_asks_the_vehicles_that_it_knew() {
    let (mut first, effects) = unit(Stored::default());
    let mut store = Memory::default();
    let online = first.handle(Timestamp(1), message(PRESENCE, &presence("v1", 1, true)));
    let writes = effects
        .into_iter()
        .chain(online)
        .filter_map(|effect| match effect {
            Effect::Write(write) => Some(write),
            _ => None,
        });
    store.commit(writes.collect()).unwrap();
    let (mut second, effects) = unit(store.load().unwrap());
    assert_eq!(controls(&effects), [Control::Register(Generation(5))]);
    assert_eq!(second.fleet.online(), 0);
    second.handle(Timestamp(9), message(TWIN, &twin(1)));
    assert_eq!(second.fleet.online(), 1, "a heartbeat revives");
    let lost = second.on_tick(Timestamp(9 + 90_000));
    assert!(
        lost.iter()
            .any(|effect| matches!(effect, Effect::Tell(Event::VehicleLost { .. })))
    );
}

/// After a damaged store nobody knows which round numbers were given.
#[test]
fn round_numbers_jump_ahead_after_damage() {
    let stored = Stored {
        damaged: true,
        ..Stored::default()
    };
    let (unit, _) = Unit::new(
        settings(),
        Timestamp(1_767_225_600_000),
        stored,
        &|_| None,
        &|_, _| None,
    );
    assert_eq!(unit.rounds_before, RoundId(1_767_225_600));
}
