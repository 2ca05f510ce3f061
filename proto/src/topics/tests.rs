use super::*;
use proptest::prelude::*;

fn vehicle(text: &str) -> VehicleId {
    VehicleId::new(text).unwrap()
}

fn roadside(text: &str) -> RoadsideId {
    RoadsideId::new(text).unwrap()
}

/// Every topic there is, with this text wherever an id stands.
fn all(text: &str) -> Vec<Topic> {
    let roadside = roadside(text);
    let job = JobId::new(text).unwrap();
    let vehicle = vehicle(text);
    let namespace = Namespace::new(text).unwrap();
    let mut topics = vec![
        Topic::Round {
            roadside: roadside.clone(),
            job: job.clone(),
        },
        Topic::Job {
            roadside: roadside.clone(),
            job: job.clone(),
        },
        Topic::Model {
            roadside: roadside.clone(),
            job: job.clone(),
            key: ModelKey::of(&Digest([0xab; 32])),
            chunk: 3,
        },
        Topic::Update {
            roadside: roadside.clone(),
            job: job.clone(),
            vehicle: vehicle.clone(),
            round: RoundId(u64::MAX),
            chunk: u32::MAX,
        },
        Topic::Receipt {
            roadside: roadside.clone(),
            job: job.clone(),
            vehicle: vehicle.clone(),
        },
        Topic::Need {
            roadside: roadside.clone(),
            job,
            vehicle: vehicle.clone(),
        },
        Topic::Presence {
            roadside: roadside.clone(),
            vehicle: vehicle.clone(),
        },
        Topic::Control {
            roadside,
            vehicle: vehicle.clone(),
        },
        Topic::TwinRefused,
    ];
    for event in DeviceEvent::ALL {
        let (namespace, vehicle) = (namespace.clone(), vehicle.clone());
        topics.push(Topic::Device {
            namespace,
            vehicle,
            event,
        });
    }
    for event in NodeEvent::ALL {
        topics.push(Topic::Node {
            node: "edge-1.example".into(),
            event,
        });
    }
    topics
}

#[test]
fn texts_are_as_documented() {
    let texts: Vec<String> = all("x1").iter().map(ToString::to_string).collect();
    let expected = [
        "wayside/v1/x1/x1/round",
        "wayside/v1/x1/x1/job",
        "wayside/v1/x1/x1/model/abababababababababababababababab/3",
        "wayside/v1/x1/x1/update/x1/18446744073709551615/4294967295",
        "wayside/v1/x1/x1/receipt/x1",
        "wayside/v1/x1/x1/need/x1",
        "wayside/v1/x1/fleet/presence/x1",
        "wayside/v1/x1/fleet/control/x1",
        "$hw/events/device//twin/update/result",
        "$hw/events/device/x1/x1/twin/update",
        "$hw/events/device/x1/x1/twin/get",
        "$hw/events/device/x1/x1/state/update",
        "$hw/events/device/x1/x1/twin/update/result",
        "$hw/events/device/x1/x1/twin/update/document",
        "$hw/events/device/x1/x1/twin/update/delta",
        "$hw/events/device/x1/x1/twin/get/result",
        "$hw/events/device/x1/x1/state/update/result",
        "$hw/events/node/edge-1.example/membership/get",
        "$hw/events/node/edge-1.example/membership/get/result",
        "$hw/events/node/edge-1.example/membership/updated",
    ];
    assert_eq!(texts, expected);
}

#[test]
fn topics_are_read_back() {
    for text in ["x1", "V1", "user", "SYS", "round", "v1", "events"] {
        for topic in all(text) {
            assert_eq!(Topic::parse(&topic.to_string()), Ok(topic));
        }
    }
}

#[test]
fn nothing_of_ours_is_forwarded_by_kubeedge() {
    for text in [
        "x1",
        "user",
        "SYS",
        "dis",
        "upload_records",
        "events",
        "upload",
    ] {
        for topic in all(text) {
            let topic = topic.to_string();
            for forwarded in ["+/user/#", "SYS/dis/upload_records", "$hw/events/upload/#"] {
                assert!(!matches(forwarded, &topic), "{forwarded} {topic}");
            }
            if topic.starts_with("wayside/") {
                for read in [
                    "$hw/events/device/+/state/update",
                    "$hw/events/device/+/twin/+",
                    "$hw/events/node/+/membership/get",
                ] {
                    assert!(!matches(read, &topic), "{read} {topic}");
                }
            }
        }
    }
}

#[test]
fn filters_catch_what_is_meant_for_the_subscriber() {
    let vehicle_side = vehicle_filters(&roadside("x1"), &vehicle("x1"));
    let roadside_side = roadside_filters(&roadside("x1"));
    let caught = |filters: &[String], topic: &Topic| {
        filters
            .iter()
            .filter(|f| matches(f, &topic.to_string()))
            .count()
    };
    for topic in all("x1") {
        let (to_vehicle, to_roadside) = match &topic {
            Topic::Round { .. }
            | Topic::Job { .. }
            | Topic::Receipt { .. }
            | Topic::Need { .. }
            | Topic::Control { .. } => (1, 0),
            Topic::Update { .. }
            | Topic::Presence { .. }
            | Topic::Device {
                event: DeviceEvent::TwinUpdate,
                ..
            } => (0, 1),
            _ => (0, 0),
        };
        assert_eq!(caught(&vehicle_side, &topic), to_vehicle, "{topic}");
        assert_eq!(caught(&roadside_side, &topic), to_roadside, "{topic}");
    }
    for topic in all("x2") {
        assert_eq!(caught(&vehicle_side, &topic), 0, "{topic}");
    }
    let key = ModelKey::of(&Digest([0xab; 32]));
    let model = model_filter(&roadside("x1"), &JobId::new("x1").unwrap(), key);
    assert_eq!(
        all("x1")
            .iter()
            .filter(|t| matches(&model, &t.to_string()))
            .count(),
        1
    );
}

#[test]
fn foreign_topics_are_refused() {
    for bad in [
        "",
        "/",
        "wayside/v1",
        "wayside/v2/r/j/round",
        "wayside/v1/r/fleet/round",
        "wayside/v1/r/fleet/update/v/1/0",
        "wayside/v1/r/j/round/",
        "wayside/v1/r/j/rounds",
        "wayside/v1//j/round",
        "wayside/v1/../j/round",
        "wayside/v1/r/+/round",
        "wayside/v1/r/j/update/v/01/0",
        "wayside/v1/r/j/update/v/+1/0",
        "wayside/v1/r/j/update/v/18446744073709551616/0",
        "wayside/v1/r/j/update/v/1/4294967296",
        "wayside/v1/r/j/update/v/1/-1",
        "wayside/v1/r/j/update/é/1/0",
        "wayside/v1/r/j/update/v\0/1/0",
        "wayside/v1/r/j/model/ABABABABABABABABABABABABABABABAB/0",
        "wayside/v1/r/j/model/abab/0",
        "$hw/events/device/veh-0001/twin/update",
        "$hw/events/device/ns/v/twin/cloud_updated",
        "$hw/events/device/ns/a/b/twin/update",
        "$hw/events/node//membership/get",
        "$hw/events/node/a/b/membership/get",
    ] {
        assert!(Topic::parse(bad).is_err(), "{bad}");
    }
    let long = format!("wayside/v1/r/j/update/{}/1/0", "v".repeat(70_000));
    assert!(
        matches!(Topic::parse(&long), Err(TopicError::Unknown { topic }) if topic.len() == 128)
    );
    let source = IdError::Length { got: 0 };
    assert_eq!(
        Topic::parse("wayside/v1/r/j/receipt/"),
        Err(TopicError::Id {
            level: "vehicle",
            source
        })
    );
}

proptest! {
    #[test]
    fn any_text_is_parsed_or_refused(text in ".{0,80}", filter in ".{0,20}") {
        if let Ok(topic) = Topic::parse(&text) {
            prop_assert_eq!(topic.to_string(), text.clone());
        }
        matches(&filter, &text);
    }

    #[test]
    fn what_is_parsed_is_written_the_same(
        tail in "(round|job|model|update|receipt|need|fleet)(/[a-f0-9+v]{0,33}){0,3}",
    ) {
        for text in [format!("wayside/v1/r/j/{tail}"), format!("wayside/v1/r/{tail}")] {
            if let Ok(topic) = Topic::parse(&text) {
                prop_assert_eq!(topic.to_string(), text);
            }
        }
    }
}
