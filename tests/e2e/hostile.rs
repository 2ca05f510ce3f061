//! Bad updates among good ones: the released model is the same in every bit as without them, and each has its reason.

use half::f16;
use serde_json::Value;
use std::time::Duration;
use wayside_domain::ids::{RoundId, UpdateId};
use wayside_domain::schema::Schema;
use wayside_domain::update::{RejectReason, Verdict};
use wayside_proto::codec::{encode_delta, encode_delta_values};
use wayside_proto::convert::Announcement;
use wayside_tests::process::wait_for;
use wayside_tests::puppet::Puppet;
use wayside_tests::site::{Broker, Site, feature_file};

const FEATURES: usize = 24;
const CLASSES: usize = 3;
const GOOD: u8 = 5;

fn job() -> String {
    format!(
        "job = \"hostile\"\n[model]\nclasses = [\"a\", \"b\", \"c\"]\ninput_height = 64\ninput_width = 64\n\
         calibration = \"held-back.safetensors\"\n[training]\nlr = 0.1\nbatch_size = 8\nlocal_epochs = 1\nseed = 7\n\
         [strategy]\nmin_vehicles = {}\nquorum = 0.3\nround_timeout_ms = 4000\nmax_examples = 1000\nmax_norm = 50.0\n\
         [merge]\nserver_optimizer = \"momentum\"\nserver_momentum = 0.9\n\
         [schedule]\nperiod_ms = 60000\nmerge_when_complete = true\nmerges = 2\n\
         [evaluation]\nfeatures = \"held-back.safetensors\"\nmax_regression = 1.0\n",
        2 * GOOD
    )
}

fn schema() -> Schema {
    Schema::linear_head(FEATURES, CLASSES).expect("a head")
}

/// What vehicle `n` learned in round `round`: small, different for each.
fn delta(n: u8, round: u64) -> Vec<f32> {
    let seed = u64::from(n) * 31 + round * 7;
    (0..schema().num_parameters() as u64)
        .map(|i| ((i * 13 + seed * 17) % 101) as f32 / 1000.0 - 0.05)
        .collect()
}

fn good_frame(n: u8, announcement: &Announcement) -> Vec<u8> {
    encode_delta(
        &schema(),
        &delta(n, announcement.round.0),
        &announcement.exponents,
    )
    .expect("finite")
}

fn frame_with(value: f16, announcement: &Announcement) -> Vec<u8> {
    let mut values = vec![f16::from_f32(0.01); schema().num_parameters()];
    values[17] = value;
    encode_delta_values(&schema(), &values, &announcement.exponents).expect("lengths fit")
}

/// Ten updates in the second round, five of them good; `attack` or five vehicles that stay silent. The digest of the
/// released model, and what the cloud says of the second round.
fn run(attack: bool) -> anyhow::Result<(String, Value)> {
    let site = Site::new()?;
    site.write("held-back.safetensors", feature_file(FEATURES, 3, 30))?;
    let job = site.write("job.toml", job())?;
    let mut cloud = site.cloud()?;
    wait_for("the cloud to answer", Duration::from_secs(20), || {
        site.ask(&["job", "list"]).ok()
    })?;
    site.ask(&["job", "create", &job.to_string_lossy()])?;
    let broker = Broker::embedded()?;
    let mut roadside = site.roadside("rsu-1", &broker)?;
    wait_for("the broker", Duration::from_secs(20), || {
        std::net::TcpStream::connect(broker.address()).ok()
    })?;
    let mut puppets = Vec::new();
    for n in 0..2 * GOOD {
        puppets.push(Puppet::join(
            &broker.address(),
            "rsu-1",
            &format!("v{n}"),
            100,
        )?);
    }
    // The first round: ten good updates.
    let mut first = None;
    for (puppet, n) in puppets.iter_mut().zip(0u8..) {
        let announcement = puppet.wait_for_round(RoundId(0))?;
        let update = puppet.update(
            &announcement,
            n + 1,
            10 + u64::from(n),
            good_frame(n, &announcement),
        );
        puppet.send(&update)?;
        first = Some(update);
    }
    let first = first.expect("ten vehicles");
    for (puppet, n) in puppets.iter_mut().zip(0u8..) {
        assert_eq!(
            puppet.wait_for_receipts(UpdateId([n + 1; 16]), 1)?.verdict,
            Verdict::Accepted
        );
    }
    // The second round: five good ones, five that spoil, or silence.
    let announcement = puppets[0].wait_for_round(first.round)?;
    if attack {
        for (n, verdict) in attack_all(&mut puppets, &announcement, &first)? {
            assert!(!verdict.counts(), "the update of vehicle {n} was {verdict}");
        }
    }
    for (puppet, n) in puppets.iter_mut().zip(0..GOOD) {
        let update = puppet.update(
            &announcement,
            n + 101,
            20 + u64::from(n),
            good_frame(n, &announcement),
        );
        puppet.send(&update)?;
        puppet.send(&update)?; // a redelivery among them
        for times in 1..=2 {
            assert_eq!(
                puppet.wait_for_receipts(update.update_id, times)?.verdict,
                Verdict::Accepted,
                "delivery {times}"
            );
        }
    }
    let model = wait_for("version 2", Duration::from_secs(30), || {
        let model = site.ask(&["model", "show", "2"]).ok()?;
        (model["released"] == true).then_some(model)
    })?;
    let round = site.ask(&["round", "explain", "2"])?;
    let digest = model["digest"].as_str().unwrap_or_default().to_owned();
    cloud.kill()?;
    roadside.kill()?;
    Ok((digest, round))
}

/// Sends one bad update from each of the last five vehicles; their verdicts.
fn attack_all(
    puppets: &mut [Puppet],
    announcement: &Announcement,
    first: &wayside_proto::convert::Update,
) -> anyhow::Result<Vec<(u8, Verdict)>> {
    let other = Schema::linear_head(FEATURES + 1, CLASSES)?;
    let wrong_shape = encode_delta(&other, &vec![0.01; other.num_parameters()], &[0, 0])?;
    let frames = [
        (frame_with(f16::NAN, announcement), 20),
        (frame_with(f16::INFINITY, announcement), 20),
        (wrong_shape, 20),
        (frame_with(f16::ONE, announcement), 1_000_000_000),
    ];
    let expected = [
        Verdict::Rejected(RejectReason::NotFinite),
        Verdict::Rejected(RejectReason::NotFinite),
        Verdict::Rejected(RejectReason::WrongSchema),
        Verdict::Rejected(RejectReason::TooManyExamples),
    ];
    let mut verdicts = Vec::new();
    for (((frame, num_examples), expected), n) in frames.into_iter().zip(expected).zip(GOOD..) {
        let puppet = &mut puppets[usize::from(n)];
        let update = puppet.update(announcement, n + 101, num_examples, frame);
        puppet.send(&update)?;
        let receipt = puppet.wait_for_receipts(update.update_id, 1)?;
        assert_eq!(receipt.verdict, expected, "vehicle {n}");
        verdicts.push((n, receipt.verdict));
    }
    // The last vehicle sends its bytes of the first round once more, under a new id.
    let puppet = &mut puppets[usize::from(2 * GOOD - 1)];
    let replay = wayside_proto::convert::Update {
        update_id: UpdateId([110; 16]),
        ..first.clone()
    };
    puppet.send(&replay)?;
    let receipt = puppet.wait_for_receipts(replay.update_id, 1)?;
    assert_eq!(receipt.verdict, Verdict::Stale);
    verdicts.push((2 * GOOD - 1, receipt.verdict));
    Ok(verdicts)
}

#[test]
fn bad_updates_change_no_bit_and_each_has_its_reason() {
    let (with, explained) = run(true).expect("the run with bad updates");
    let (without, _) = run(false).expect("the run without them");
    assert!(!with.is_empty());
    assert_eq!(with, without, "the released model");
    let text = explained.to_string();
    for (vehicle, verdict) in [
        ("v5", "rejected(not_finite)"),
        ("v6", "rejected(not_finite)"),
        ("v7", "rejected(wrong_schema)"),
        ("v8", "rejected(too_many_examples)"),
        ("v9", "stale"),
    ] {
        let lines = explained["roadsides"][0]["contributions"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let line = lines
            .iter()
            .find(|line| line["vehicle"] == vehicle && line["verdict"] == verdict);
        assert!(line.is_some(), "{vehicle} {verdict} is not in {text}");
    }
}
