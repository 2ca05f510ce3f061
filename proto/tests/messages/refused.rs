use crate::samples;
use proptest::prelude::*;
use prost::Message;
use std::time::Duration;
use wayside_domain::ids::{Generation, RoadsideId, RoundId, UpdateId, VehicleId};
use wayside_domain::job::{Effort, JobSpec};
use wayside_domain::schema::Schema;
use wayside_domain::update::{RejectReason, Verdict};
use wayside_proto::codec::{Sum, encode_delta, encode_sum};
use wayside_proto::convert::{
    Announcement, Control, ConvertError, Envelope, FetchModel, Hello, MAX_CONTRIBUTIONS, ModelPart,
    ModelPiece, Need, PartialAggregate, PartialPart, PartialReceipt, Plan, Presence, Receipt,
    Update, UpdateMetrics, UpdatePart, Wire, decode_schema, encode_schema, max_partial_bytes,
    max_update_bytes,
};
use wayside_proto::topics::Topic;
use wayside_proto::wire;

/// Spoils the generated form of a sample and reads it.
fn spoil<T: Wire>(sample: &T, change: impl FnOnce(&mut T::Message)) -> ConvertError {
    let mut message = T::Message::from(sample);
    change(&mut message);
    match T::decode(&message.encode_to_vec()) {
        Err(error) => error,
        Ok(_) => panic!("a spoilt {} was taken in", T::NAME),
    }
}

#[test]
fn every_verdict_has_a_number() {
    let rejected = RejectReason::ALL.map(Verdict::Rejected);
    let mut numbers = Vec::new();
    for verdict in [Verdict::Accepted, Verdict::Duplicate, Verdict::Stale]
        .into_iter()
        .chain(rejected)
    {
        let message = wire::Verdict::from(verdict);
        numbers.push((message.kind, message.reason));
        assert_eq!(Verdict::try_from(message), Ok(verdict));
    }
    let reasons: Vec<i32> = numbers[3..].iter().map(|(_, reason)| *reason).collect();
    assert_eq!(reasons, (1..=13).collect::<Vec<_>>());
    for (kind, reason) in [(0, 0), (5, 0), (1, 1), (4, 0), (4, 14), (4, -1)] {
        assert!(
            Verdict::try_from(wire::Verdict { kind, reason }).is_err(),
            "{kind} {reason}"
        );
    }
}

#[test]
fn every_effort_and_weighting_travels() {
    for effort in [Effort::LocalEpochs(3), Effort::LocalSteps(200)] {
        for class_weights in [vec![1.0, 1.0, 1.0], vec![0.0, 0.25, 3.0]] {
            let mut job = samples::job();
            job.training.effort = effort;
            job.training.class_weights = class_weights;
            job.model.backbone = None;
            assert_eq!(JobSpec::decode(&job.encode()), Ok(job));
        }
    }
    let absent = UpdateMetrics {
        loss: None,
        ..samples::metrics()
    };
    let update = Update {
        metrics: absent,
        ..samples::update()
    };
    assert_eq!(Update::decode(&update.encode()), Ok(update));
}

#[test]
fn jobs_are_checked_in_full() {
    let job = samples::job();
    let model =
        |m: &mut wire::JobSpec, change: fn(&mut wire::ModelSpec)| change(m.model.as_mut().unwrap());
    let errors = [
        spoil(&job, |m| m.job = "fleet".into()),
        spoil(&job, |m| m.job = "a/b".into()),
        spoil(&job, |m| m.model = None),
        spoil(&job, |m| m.training = None),
        spoil(&job, |m| m.round = None),
        spoil(&job, |m| model(m, |s| s.features = u32::MAX)),
        spoil(&job, |m| model(m, |s| s.feature_mean.truncate(7))),
        spoil(&job, |m| model(m, |s| s.feature_std = vec![0; 8])),
        spoil(&job, |m| {
            model(m, |s| s.feature_mean = f32::NAN.to_le_bytes().repeat(2));
        }),
        spoil(&job, |m| model(m, |s| s.backbone_digest.truncate(31))),
        spoil(&job, |m| model(m, |s| s.schema = None)),
        spoil(&job, |m| model(m, |s| s.classes.truncate(2))),
        spoil(&job, |m| {
            model(m, |s| {
                s.schema.as_mut().unwrap().tensors[0].name = "n".repeat(10_000);
            });
        }),
        spoil(&job, |m| {
            model(m, |s| {
                s.schema.as_mut().unwrap().tensors[0].shape = vec![u64::MAX, 2];
            });
        }),
        spoil(&job, |m| m.training.as_mut().unwrap().effort = None),
        spoil(&job, |m| {
            m.training.as_mut().unwrap().class_weights[1] = f32::NAN;
        }),
        spoil(&job, |m| m.training.as_mut().unwrap().lr = f32::NAN),
        spoil(&job, |m| {
            m.training.as_mut().unwrap().proximal_mu = f32::INFINITY;
        }),
        spoil(&job, |m| m.round.as_mut().unwrap().quorum = f64::NAN),
        spoil(&job, |m| m.round.as_mut().unwrap().max_norm = f64::INFINITY),
    ];
    for error in errors {
        assert!(!error.is_transient() && !error.to_string().is_empty());
    }
}

#[test]
fn vehicle_messages_are_checked() {
    let beat = samples::presence();
    for bad in ["", "+", "a/b", "../x", "a\0", "é", &"x".repeat(65)] {
        let error = spoil(&beat, |m| m.vehicle = bad.into());
        assert!(matches!(
            error,
            ConvertError::Id {
                message: "Presence",
                field: "vehicle",
                ..
            }
        ));
    }
    spoil(&beat, |m| m.client_version = "a\nb".into());
    spoil(&beat, |m| m.client_version = "v".repeat(65));

    let round = samples::announcement();
    spoil(&round, |m| m.model_digest = vec![0; 31]);
    spoil(&round, |m| m.job_digest = Vec::new());
    spoil(&round, |m| m.model_chunks = 0);
    spoil(&round, |m| m.model_chunks = 2981);
    spoil(&round, |m| m.model_bytes = 0);
    spoil(&round, |m| m.scale_exponents = Vec::new());
    spoil(&round, |m| m.scale_exponents = vec![128]);
    spoil(&round, |m| m.cohort.push("#".into()));
    let error = spoil(&round, |m| m.cohort = vec![String::new(); 100_001]);
    assert_eq!(error.reason(), RejectReason::TooLarge);

    let receipt = samples::receipt();
    spoil(&receipt, |m| m.verdict = None);
    spoil(&receipt, |m| m.update_id = vec![0; 17]);
    spoil(&Control::Register(Generation(1)), |m| m.kind = 0);
    spoil(&ModelPart { data: vec![1] }, |m| m.data.clear());
    let need = Need {
        update_id: UpdateId([0; 16]),
        missing: vec![],
    };
    let error = spoil(&need, |m| m.missing = vec![1; 65_537]);
    assert_eq!(error.reason(), RejectReason::TooLarge);
}

#[test]
fn declared_totals_are_checked_before_anything_is_allocated() {
    let part = samples::part();
    spoil(&part, |m| m.total_chunks = u32::MAX);
    spoil(&part, |m| m.total_chunks = 13);
    spoil(&part, |m| m.total_chunks = 0);
    spoil(&part, |m| m.total_bytes = 0);
    spoil(&part, |m| m.total_bytes = 19);
    spoil(&part, |m| m.data.clear());
    let limit = max_update_bytes(&Schema::linear_head(480, 3).unwrap());
    // Three bytes a parameter: `topk` with all of them.
    assert!(limit < 5120, "{limit}");
    assert_eq!(part.check_totals(11, limit), Ok(()));
    assert!(part.check_totals(12, limit).is_err());
    let huge = UpdatePart {
        total_bytes: u32::MAX,
        total_chunks: 1,
        ..part
    };
    assert_eq!(
        huge.check_totals(0, limit).unwrap_err().reason(),
        RejectReason::TooLarge
    );
}

#[test]
fn the_longest_update_fits_its_bound() {
    let schema = Schema::linear_head(480, 3).unwrap();
    let long = "x".repeat(64);
    let delta: Vec<f32> = (0..1443_u16)
        .map(|i| (f32::from(i) * 12.9898).sin())
        .collect();
    let update = Update {
        job: long.parse().unwrap(),
        roadside: long.parse().unwrap(),
        vehicle: long.parse().unwrap(),
        round: RoundId(u64::MAX),
        base_version: wayside_domain::ids::ModelVersion(u64::MAX),
        num_examples: u64::MAX,
        frame: encode_delta(&schema, &delta, &[0, 0]).unwrap(),
        metrics: UpdateMetrics {
            loss: Some(-1.0),
            train: Duration::from_millis(u64::MAX),
            receipts: u64::MAX,
            receipts_within_budget: u64::MAX,
            last_latency: Duration::from_millis(u64::MAX),
            encoding: None,
            goodput_bytes_per_s: 0,
        },
        ..samples::update()
    };
    assert!(update.encode().len() <= max_update_bytes(&schema));
    let sum = Sum {
        exponents: vec![0, 0],
        values: vec![0.1; 1443],
        num_examples: 1,
        bound: 1.0,
    };
    let sum_frame = encode_sum(&schema, &sum).unwrap();
    let partial = PartialAggregate {
        sum_frame,
        ..samples::partial()
    };
    assert!(partial.encode().len() <= max_partial_bytes(&schema));
}

#[test]
fn floats_from_outside_are_finite() {
    for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        let error = spoil(&samples::update(), |m| {
            m.metrics.as_mut().unwrap().loss = Some(bad);
        });
        assert_eq!(error.reason(), RejectReason::NotFinite);
        spoil(&samples::partial(), |m| m.contributions[0].l2_norm = bad);
        spoil(
            &Plan {
                jobs: vec![samples::job_plan()],
            },
            |m| m.jobs[0].norm_bound = bad,
        );
    }
    spoil(&samples::partial(), |m| m.contributions[0].l2_norm = -1.0);
    spoil(
        &Plan {
            jobs: vec![samples::job_plan()],
        },
        |m| m.jobs[0].norm_bound = 0.0,
    );
}

#[test]
fn cloud_messages_are_checked() {
    let plan = Plan {
        jobs: vec![samples::job_plan()],
    };
    spoil(&plan, |m| m.jobs[0].spec = None);
    spoil(&plan, |m| m.jobs[0].scale_exponents.push(0));
    spoil(&plan, |m| m.jobs[0].model_bytes = 0);
    spoil(&plan, |m| m.jobs.push(m.jobs[0].clone()));
    spoil(&plan, |m| m.jobs = vec![wire::JobPlan::default(); 1025]);
    spoil(&samples::partial(), |m| m.contributions[0].verdict = None);
    spoil(&samples::partial(), |m| {
        m.rounds[0].cohort.push("a b".into());
    });
    spoil(&samples::partial(), |m| {
        m.rounds = vec![wire::RoundSummary::default(); 10_001];
    });
    let many = [0x42, 0].repeat(MAX_CONTRIBUTIONS + 1);
    assert!(matches!(
        PartialAggregate::decode(&many),
        Err(ConvertError::TooMany {
            field: "contributions",
            ..
        })
    ));
    let piece = PartialPart {
        partial_id: UpdateId([6; 16]),
        total_bytes: 10,
        digest: wayside_domain::ids::Digest([7; 32]),
        offset: 5,
        data: vec![0; 5],
    };
    assert_eq!(PartialPart::decode(&piece.encode()).as_ref(), Ok(&piece));
    spoil(&piece, |m| m.offset = 6);
    spoil(&piece, |m| m.offset = u64::MAX);
    spoil(&piece, |m| m.data.clear());
}

#[test]
fn envelopes_open_only_for_their_resource() {
    let hello = Hello {
        roadside: samples::roadside(),
        generation: Generation(1),
        version: String::new(),
    };
    let envelope = Envelope {
        content: hello.encode(),
        ..samples::envelope()
    };
    assert_eq!(envelope.open::<Hello>("wayside/rsu-a/hello"), Ok(hello));
    let error = envelope.open::<Plan>("wayside/rsu-a/plan").unwrap_err();
    assert_eq!(error.reason(), RejectReason::Inconsistent);
    spoil(&samples::envelope(), |m| m.source = "two\nlines".into());
}

#[test]
fn topic_and_body_must_agree() {
    let update = samples::update();
    let topic = |vehicle: &str, round| Topic::Update {
        roadside: samples::roadside(),
        job: samples::job_id(),
        vehicle: VehicleId::new(vehicle).unwrap(),
        round: RoundId(round),
        chunk: 0,
    };
    assert_eq!(update.check_topic(&topic("veh-0001", 17)), Ok(()));
    for other in [
        topic("veh-0002", 17),
        topic("veh-0001", 16),
        Topic::TwinRefused,
    ] {
        let error = update.check_topic(&other).unwrap_err();
        assert_eq!(error.reason(), RejectReason::Inconsistent, "{error}");
    }
    assert_eq!(update.check_id(&UpdateId([4; 16])), Ok(()));
    assert!(update.check_id(&UpdateId([5; 16])).is_err());

    let presence = |vehicle: &str| Topic::Presence {
        roadside: samples::roadside(),
        vehicle: VehicleId::new(vehicle).unwrap(),
    };
    assert_eq!(
        samples::presence().check_topic(&presence("veh-0001")),
        Ok(())
    );
    assert!(
        samples::presence()
            .check_topic(&presence("VEH-0001"))
            .is_err()
    );

    let round = |roadside: &str| Topic::Round {
        roadside: RoadsideId::new(roadside).unwrap(),
        job: samples::job_id(),
    };
    assert_eq!(samples::announcement().check_topic(&round("rsu-a")), Ok(()));
    assert!(
        samples::announcement()
            .check_topic(&round("rsu-b"))
            .is_err()
    );
    assert_eq!(
        samples::partial().check_sender(&samples::roadside()),
        Ok(())
    );
    assert!(
        samples::partial()
            .check_sender(&RoadsideId::new("rsu-b").unwrap())
            .is_err()
    );
    assert!(samples::partial().check_id(&UpdateId([6; 16])).is_ok());
}

#[test]
fn schemas_go_there_and_back() {
    let schema = Schema::linear_head(480, 3).unwrap();
    assert_eq!(decode_schema(&encode_schema(&schema)), Ok(schema));
    assert!(decode_schema(&[]).is_err());
    assert!(decode_schema(&[0x0a, 0].repeat(1025)).is_err());
    assert!(decode_schema(&vec![0; (1 << 20) + 1]).is_err());
}

/// Found while the fuzzer's bound on memory was set: packed numbers were counted only after they were decoded, and a
/// schema's tensors as well, so that a message of a few megabytes took ten times as much.
#[test]
fn long_lists_are_refused_before_they_take_memory() {
    fn check<T>(
        field: &str,
        bytes: &[u8],
        limit: usize,
        decode: fn(&[u8]) -> Result<T, ConvertError>,
    ) {
        let mut refused = None;
        let counted = allocation_counter::measure(|| refused = decode(bytes).err());
        match refused.unwrap() {
            ConvertError::TooMany {
                field: f, limit: l, ..
            } => assert_eq!((f, l), (field, limit)),
            other => panic!("{other}"),
        }
        assert!(counted.bytes_max < 1024, "{field}: {counted:?}");
    }
    /// A field with its length in front.
    fn field(number: u8, content: &[u8]) -> Vec<u8> {
        let len = u32::try_from(content.len()).unwrap();
        let groups = [0, 7, 14, 21].map(|at| 0x80 | (len >> at).to_le_bytes()[0]);
        [&[number << 3 | 2], groups.as_slice(), &[0], content].concat()
    }
    let zeros = vec![0; 300_000];
    check("missing", &field(2, &zeros), 65_536, Need::decode);
    check(
        "scale_exponents",
        &field(10, &zeros),
        1024,
        Announcement::decode,
    );
    let plan = field(1, &field(6, &zeros.repeat(4)));
    check("scale_exponents", &plan, 1024 * 1024, Plan::decode);
    let shape = field(1, &field(2, &zeros));
    check("shape", &shape, 16 * 1024, decode_schema);
    check("tensors", &[0x0a, 0].repeat(1025), 1024, decode_schema);
    let job = field(2, &field(8, &shape));
    check("shape", &job, 16 * 1024, JobSpec::decode);
}

/// Found while the fuzzer's bound on refusals was set: a job's error showed all its class weights or names.
#[test]
fn refusals_are_short_however_long_the_message() {
    let long = || "x".repeat(100_000);
    let refusals = [
        spoil(&samples::job(), |m| m.job = long()),
        spoil(&samples::job(), |m| {
            m.training.as_mut().unwrap().class_weights = vec![0.1; 100_000];
        }),
        spoil(&samples::job(), |m| {
            m.model.as_mut().unwrap().classes = vec![long(), long(), long()];
        }),
        spoil(&samples::job(), |m| {
            let schema = m.model.as_mut().unwrap().schema.as_mut();
            schema.unwrap().tensors[0].name = long();
        }),
        spoil(&samples::envelope(), |m| m.source = long()),
        spoil(&samples::announcement(), |m| m.cohort[0] = long()),
        spoil(&samples::partial(), |m| m.contributions[0].vehicle = long()),
    ];
    for refused in refusals {
        let refused = refused.to_string();
        assert!(refused.len() < 1024, "{refused}");
    }
}

#[test]
fn too_many_bytes_are_not_looked_at() {
    let error = Receipt::decode(&[0; 513]).unwrap_err();
    assert_eq!(
        error,
        ConvertError::TooLarge {
            message: "Receipt",
            got: 513,
            limit: 512
        }
    );
}

proptest! {
    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = JobSpec::decode(&bytes);
        let _ = Presence::decode(&bytes);
        let _ = Control::decode(&bytes);
        let _ = Announcement::decode(&bytes);
        let _ = ModelPart::decode(&bytes);
        let _ = UpdatePart::decode(&bytes);
        let _ = Update::decode(&bytes);
        let _ = Receipt::decode(&bytes);
        let _ = Need::decode(&bytes);
        let _ = Envelope::decode(&bytes);
        let _ = Hello::decode(&bytes);
        let _ = Plan::decode(&bytes);
        let _ = FetchModel::decode(&bytes);
        let _ = ModelPiece::decode(&bytes);
        let _ = PartialPart::decode(&bytes);
        let _ = PartialAggregate::decode(&bytes);
        let _ = PartialReceipt::decode(&bytes);
        let _ = decode_schema(&bytes);
    }

    #[test]
    fn updates_come_back(
        id in prop::array::uniform16(any::<u8>()),
        vehicle in "[A-Za-z0-9][A-Za-z0-9_-]{0,63}",
        round: u64,
        num_examples: u64,
        frame in prop::collection::vec(any::<u8>(), 0..100),
        loss in prop::option::of(-1e9_f64..1e9),
    ) {
        let update = Update {
            vehicle: VehicleId::new(vehicle).unwrap(),
            round: RoundId(round),
            update_id: UpdateId(id),
            num_examples,
            frame,
            metrics: UpdateMetrics { loss, ..samples::metrics() },
            ..samples::update()
        };
        prop_assert_eq!(Update::decode(&update.encode()), Ok(update));
    }
}
