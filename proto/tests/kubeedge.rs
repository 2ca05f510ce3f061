//! KubeEdge's payloads: the captured ones are read and written back as the same JSON, the known bad ones are refused.

#![allow(
    clippy::unwrap_used,
    reason = "a test stops where something is not as it must be"
)]

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use wayside_domain::ids::{Digest, Generation, RoundId};
use wayside_domain::time::Timestamp;
use wayside_proto::kubeedge::{
    Envelope, Heartbeat, HeartbeatError, MembershipGet, MembershipList, MembershipUpdate,
    PayloadError, StateResult, StateUpdate, TrainState, Twin, TwinDelta, TwinDocument, TwinResult,
    TwinUpdate, read, write,
};
use wayside_proto::topics::{DeviceEvent, NodeEvent, Topic};

#[derive(Deserialize)]
struct Captured {
    fixture: String,
    step: Option<String>,
    topic: Option<String>,
    payload: String,
}

fn captured(lines: &str) -> Vec<Captured> {
    lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// Reads a text and compares what is written back, as JSON values.
fn there_and_back<T: DeserializeOwned + Serialize>(text: &str) {
    let payload: T = read(text.as_bytes()).unwrap_or_else(|e| panic!("{e}: {text}"));
    let written: Value = serde_json::from_slice(&write(&payload).unwrap()).unwrap();
    assert_eq!(written, serde_json::from_str::<Value>(text).unwrap());
}

#[test]
fn captured_payloads_are_written_back_the_same() {
    let mut counted = 0;
    for message in captured(include_str!("kubeedge/mqtt.jsonl")) {
        let (topic, text) = (message.topic.unwrap(), message.payload.as_str());
        let step = message.step.unwrap_or_default();
        let Ok(parsed) = Topic::parse(&topic) else {
            assert_eq!(step, "old-topic-without-namespace", "{topic}");
            continue;
        };
        assert_eq!(parsed.to_string(), topic);
        match parsed {
            Topic::Device { event, .. } => match event {
                DeviceEvent::TwinUpdate => {
                    // The edge refuses these by their types or for their device, which is not for us to know.
                    let edge_only = ["device", "int", "double"].iter().any(|w| step.contains(w));
                    let refused = step.starts_with("err-") && !edge_only;
                    assert_eq!(
                        TwinUpdate::parse(text.as_bytes()).is_err(),
                        refused,
                        "{step}"
                    );
                    if !refused {
                        there_and_back::<TwinUpdate>(text);
                    }
                }
                DeviceEvent::TwinGet => there_and_back::<MembershipGet>(text),
                DeviceEvent::TwinUpdateDocument => there_and_back::<TwinDocument>(text),
                DeviceEvent::TwinUpdateDelta => there_and_back::<TwinDelta>(text),
                DeviceEvent::StateUpdate => there_and_back::<StateUpdate>(text),
                DeviceEvent::StateUpdateResult => there_and_back::<StateResult>(text),
                DeviceEvent::TwinUpdateResult | DeviceEvent::TwinGetResult => {
                    there_and_back::<TwinResult>(text);
                }
            },
            Topic::TwinRefused => there_and_back::<TwinResult>(text),
            Topic::Node { event, .. } => match event {
                NodeEvent::MembershipGet => there_and_back::<MembershipGet>(text),
                NodeEvent::MembershipGetResult => there_and_back::<MembershipList>(text),
                NodeEvent::MembershipUpdated => there_and_back::<MembershipUpdate>(text),
            },
            other => panic!("{other}"),
        }
        counted += 1;
    }
    assert!(counted > 40, "{counted}");
}

#[test]
fn captured_frames_are_written_back_the_same() {
    for frame in captured(include_str!("kubeedge/frames.jsonl")) {
        there_and_back::<Envelope>(&frame.payload);
        let envelope: Envelope = read(frame.payload.as_bytes()).unwrap();
        assert!(envelope.more.is_empty(), "{}", frame.fixture);
        assert!(envelope.header.more.is_empty() && envelope.route.more.is_empty());
        if envelope.route.resource.ends_with("twin/edge_updated") {
            there_and_back::<TwinUpdate>(&envelope.content.to_string());
        }
    }
}

#[test]
fn unknown_keys_of_an_envelope_are_kept() {
    there_and_back::<Envelope>(
        r#"{"header":{"msg_id":"1","timestamp":2,"trace":[1]},"route":{"hops":{"a":1}},"content":null,"x":"y"}"#,
    );
    there_and_back::<Envelope>(
        r#"{"header":{"msg_id":"","timestamp":0},"route":{},"content":null}"#,
    );
}

/// Found by fuzzing: without `float_roundtrip`, `serde_json` reads some numbers one unit in the last place beside their
/// text, so what was passed on was not what had come in. A build of the whole workspace hides it: another crate switches
/// the feature on.
#[test]
fn numbers_of_an_envelope_are_kept_to_the_last_bit() {
    let digits = "17960333333333333333333333333333374395026";
    let text = format!(r#"{{"header":{{"x":{digits}}},"content":{digits}}}"#);
    let envelope: Envelope = read(text.as_bytes()).unwrap();
    let right: f64 = digits.parse().unwrap();
    assert_eq!(envelope.content.as_f64(), Some(right));
    assert_eq!(envelope.header.more["x"].as_f64(), Some(right));
    assert_eq!(read(&write(&envelope).unwrap()), Ok(envelope));
}

fn parse(text: &str) -> Result<TwinUpdate, PayloadError> {
    TwinUpdate::parse(text.as_bytes())
}

#[test]
fn a_missing_value_is_refused_with_its_key() {
    let field = r#"{"event_id":"","timestamp":0,"twin":{"temperature":{"actual":{"value":"23"},"metadata":{"type":"Updated"}},"humidity":{"actual":{" value":"29"},"metadata":{"type":"Updated"}}}}"#;
    let key = "humidity".to_owned();
    assert_eq!(parse(field), Err(PayloadError::MissingValue { key }));
    let key = "a".to_owned();
    assert_eq!(
        parse(r#"{"twin":{"a":{}}}"#),
        Err(PayloadError::MissingValue { key: key.clone() })
    );
    assert_eq!(
        parse(r#"{"twin":{"a":{"actual":{"value":null}}}}"#),
        Err(PayloadError::MissingValue { key })
    );
}

#[test]
fn foreign_habits_are_tolerated() {
    for text in [
        r#"{"twin":{}}"#,
        r#"{"event_id":"","timestamp":0,"twin":{"a":null}}"#,
        r#"{"timestamp":null,"attributes":null,"x":[{}],"twin":{"a":{"actual":{"value":"1","y":2},"z":0}}}"#,
        r#"{"timestamp":1644402679931.0,"twin":{"a":{"actual":{"value":""}}}}"#,
        r#"{"timestamp":1.644402679931e12,"twin":{}}"#,
    ] {
        assert!(parse(text).is_ok(), "{text}");
    }
}

#[test]
fn everything_else_is_refused() {
    for text in [
        "",
        "null",
        "[]",
        "{}",
        r#"{"twin":null}"#,
        r#"{"twin":{"a":{"actual":{"value":29}}}}"#,
        r#"{"twin":{"a":{"actual":"29"}}}"#,
        r#"{"timestamp":1644402679,"twin":{}}"#,
        r#"{"timestamp":"2022-02-09T10:31:19Z","twin":{}}"#,
        r#"{"timestamp":-1,"twin":{}}"#,
        r#"{"timestamp":1644402679931.5,"twin":{}}"#,
        r#"{"timestamp":1e300,"twin":{}}"#,
        r#"{"twin":{"a b":null}}"#,
        r#"{"twin":{"":null}}"#,
        r#"{"twin":{"a":{"actual":{"value":"é"}}}}"#,
        r#"{"twin":{"a":{"expected":{"value":"{}"}}}}"#,
    ] {
        assert!(parse(text).is_err(), "{text}");
    }
    assert!(TwinUpdate::parse(&[0x28, 0xb5, 0x2f, 0xfd]).is_err());
    let deep = "[".repeat(100_000);
    assert!(parse(&deep).is_err());
    assert!(parse(&" ".repeat((1 << 20) + 1)).is_err());
}

/// Found while the fuzzer's bound on refusals was set: a payload could put a megabyte of its own into the log.
#[test]
fn refusals_are_short_however_long_the_payload() {
    let long = "x".repeat(1_000_000);
    for text in [
        format!(r#"{{"timestamp":"{long}","twin":{{}}}}"#),
        format!(r#"{{"twin":"{long}"}}"#),
        format!(r#"{{"twin":{{"{long}":null}}}}"#),
        format!(r#"{{"twin":{{"{long}":{{}}}}}}"#),
        format!(r#"{{"twin":{{"a":{{"actual":{{"value":"{long}"}}}}}}}}"#),
    ] {
        let refused = parse(&text).unwrap_err().to_string();
        assert!(refused.len() < 512, "{refused}");
    }
    let text = format!(r#"{{"state":{{"{long}":1}}}}"#);
    let refused = read::<StateUpdate>(text.as_bytes()).unwrap_err();
    assert!(refused.to_string().len() < 512);
}

#[test]
fn texts_are_checked_before_they_are_sent() {
    let with = |key: &str, value: &str| {
        let mut update = TwinUpdate::default();
        update
            .twin
            .insert(key.to_owned(), Some(Twin::actual(value, "string")));
        update.to_json()
    };
    assert!(with("k", &"v".repeat(512)).is_ok());
    assert!(matches!(
        with("k", &"v".repeat(513)),
        Err(PayloadError::Value { got: 513, .. })
    ));
    assert!(with(&"k".repeat(128), "").is_ok());
    assert!(matches!(
        with(&"k".repeat(129), ""),
        Err(PayloadError::Key { .. })
    ));
    assert!(with("k", "two words").is_err());
    assert!(with("k", "YQ==").is_err());
    assert!(with("fl-round", "a-z_A.Z,0:9/@#").is_ok());
}

fn heartbeat() -> Heartbeat {
    Heartbeat {
        generation: Generation(3),
        state: TrainState::Training,
        round: Some(RoundId(17)),
        model: Some(Digest([0xab; 32])),
        num_examples: 812,
        sent: Timestamp(1_796_074_046_959),
    }
}

#[test]
fn heartbeats_go_there_and_back() {
    for state in TrainState::ALL {
        for (round, model) in [
            (None, None),
            (Some(RoundId(u64::MAX)), Some(Digest([7; 32]))),
        ] {
            let beat = Heartbeat {
                state,
                round,
                model,
                ..heartbeat()
            };
            let payload = beat.to_twin("ev-1").to_json().unwrap();
            let read = TwinUpdate::parse(&payload).unwrap();
            assert_eq!(Heartbeat::from_twin(&read), Ok(beat));
        }
    }
    let text: Value =
        serde_json::from_slice(&heartbeat().to_twin("ev-1").to_json().unwrap()).unwrap();
    let int =
        |value: &str| serde_json::json!({"actual": {"value": value}, "metadata": {"type": "int"}});
    let word = |value: &str| serde_json::json!({"actual": {"value": value}, "metadata": {"type": "string"}});
    let expected = serde_json::json!({"event_id": "ev-1", "timestamp": 1_796_074_046_959_u64, "twin": {
        "fl-generation": int("3"),
        "fl-round": int("17"),
        "last-seen": int("1796074046959"),
        "model-digest": word(&"ab".repeat(32)),
        "samples": int("812"),
        "train-state": word("training"),
    }});
    assert_eq!(text, expected);
}

#[test]
fn a_clock_that_was_never_set_does_not_silence_a_vehicle() {
    let beat = Heartbeat {
        sent: Timestamp(12_345),
        ..heartbeat()
    };
    let payload = beat.to_twin("").to_json().unwrap();
    let read = TwinUpdate::parse(&payload).unwrap();
    assert_eq!(read.timestamp, Timestamp(0));
    assert_eq!(Heartbeat::from_twin(&read), Ok(beat));
}

#[test]
fn what_is_no_heartbeat_is_refused() {
    let mut update = heartbeat().to_twin("");
    update.twin.insert("other".into(), None);
    assert!(Heartbeat::from_twin(&update).is_ok());
    for key in ["fl-generation", "train-state"] {
        let mut update = update.clone();
        update.twin.remove(key);
        assert_eq!(
            Heartbeat::from_twin(&update),
            Err(HeartbeatError::Missing { key })
        );
    }
    for (key, bad) in [
        ("fl-generation", "-1"),
        ("fl-round", "1.5"),
        ("samples", ""),
        ("last-seen", "now"),
        ("train-state", "charging"),
        ("model-digest", "abc"),
    ] {
        let mut update = update.clone();
        update
            .twin
            .insert(key.into(), Some(Twin::actual(bad, "string")));
        let refused = Heartbeat::from_twin(&update);
        assert!(
            matches!(refused, Err(HeartbeatError::Value { key: k, .. }) if k == key),
            "{refused:?}"
        );
    }
}
