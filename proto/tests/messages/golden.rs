use crate::samples;
use prost::Message;
use std::fmt::Debug;
use std::path::Path;
use wayside_domain::encoding::UpdateEncoding;
use wayside_domain::ids::{Digest, Generation, ModelVersion, RoundId, UpdateId};
use wayside_domain::schema::{Schema, TensorSpec};
use wayside_domain::update::Verdict;
use wayside_proto::codec::{
    Reference, Sum, Unpacker, UpdateFrame, decode_delta, decode_model, decode_reference,
    decode_sum, encode_delta, encode_model, encode_sum, encode_update, f16,
};
use wayside_proto::convert::{
    Control, FetchModel, Hello, ModelPart, ModelPiece, Need, PartialPart, PartialReceipt, Plan,
    Wire,
};
use wayside_proto::wire;

/// The golden bytes of this name; written first if they are missing and `WAYSIDE_BLESS` is set.
fn golden(name: &str, fresh: &[u8]) -> Vec<u8> {
    golden_of(1, name, fresh)
}

fn golden_of(version: u8, name: &str, fresh: &[u8]) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(format!("v{version}-{name}.bin"));
    if std::env::var_os("WAYSIDE_BLESS").is_some() && !path.exists() {
        std::fs::write(&path, fresh).unwrap();
    }
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Same value, same bytes, both ways; and no damage makes the decoder panic.
fn check<T: Wire + PartialEq + Debug>(name: &str, value: &T) {
    let bytes = golden(name, &value.encode());
    assert_eq!(value.encode(), bytes, "{name} is written in another way");
    assert_eq!(T::decode(&bytes).as_ref(), Ok(value), "{name}");
    for at in 0..bytes.len() {
        let _ = T::decode(&bytes[..at]);
        for bit in 0..8 {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << bit;
            if let Ok(other) = T::decode(&damaged) {
                // Whatever is taken in can be passed on.
                assert_eq!(T::decode(&other.encode()).as_ref(), Ok(&other), "{name}");
            }
        }
    }
}

#[test]
fn vehicle_messages_stay_as_they_are() {
    check("job-spec", &samples::job());
    check("presence", &samples::presence());
    check("control", &Control::Registered(Generation(3)));
    check("announcement", &samples::announcement());
    check(
        "model-part",
        &ModelPart {
            data: b"a chunk of a model".to_vec(),
        },
    );
    check("update-part", &samples::part());
    check("update", &samples::update());
    check("receipt", &samples::receipt());
    check(
        "need",
        &Need {
            update_id: UpdateId([4; 16]),
            missing: vec![0, 3, 400],
        },
    );
}

#[test]
fn cloud_messages_stay_as_they_are() {
    check("envelope", &samples::envelope());
    let (roadside, job) = (samples::roadside(), samples::job_id());
    let hello = Hello {
        roadside: roadside.clone(),
        generation: Generation(2),
        version: "0.1.0".into(),
    };
    check("hello", &hello);
    check(
        "plan",
        &Plan {
            jobs: vec![samples::job_plan()],
        },
    );
    check(
        "fetch-model",
        &FetchModel {
            roadside,
            job,
            digest: Digest([2; 32]),
            offset: 1024,
        },
    );
    check(
        "model-piece",
        &ModelPiece {
            offset: 1024,
            data: b"a piece of a model".to_vec(),
        },
    );
    let piece = PartialPart {
        partial_id: UpdateId([6; 16]),
        total_bytes: 5000,
        digest: Digest([7; 32]),
        offset: 1024,
        data: b"a piece of a partial aggregate".to_vec(),
    };
    check("partial-part", &piece);
    check("partial-aggregate", &samples::partial());
    let receipt = PartialReceipt {
        partial_id: UpdateId([6; 16]),
        verdict: Verdict::Stale,
        current_merge_round: RoundId(10),
        current_version: ModelVersion(5),
    };
    check("partial-receipt", &receipt);
}

fn check_raw<T: Message + Default + PartialEq + Debug>(name: &str, value: &T) {
    let bytes = golden(name, &value.encode_to_vec());
    assert_eq!(
        value.encode_to_vec(),
        bytes,
        "{name} is written in another way"
    );
    assert_eq!(T::decode(bytes.as_slice()).as_ref(), Ok(value), "{name}");
}

#[test]
fn admin_messages_stay_as_they_are() {
    let job = || samples::job_id().to_string();
    check_raw(
        "admin-create-job",
        &wire::CreateJobRequest {
            toml: "job = 1".into(),
            base_dir: "/etc".into(),
        },
    );
    check_raw("admin-job", &wire::JobRequest { job: job() });
    check_raw(
        "admin-set-paused",
        &wire::SetJobPausedRequest {
            job: job(),
            paused: true,
        },
    );
    check_raw(
        "admin-model",
        &wire::ModelRequest {
            job: job(),
            version: 4,
            latest: true,
        },
    );
    check_raw(
        "admin-round",
        &wire::RoundRequest {
            job: job(),
            merge_round: 9,
        },
    );
    let info = wire::JobInfo {
        job: job(),
        state: "running".into(),
        merge_round: 9,
        released_version: 4,
        newest_version: 5,
        max_versions: 30,
        accuracy: 0.875,
        toml: "job = 1".into(),
    };
    check_raw("admin-jobs", &wire::ListJobsReply { jobs: vec![info] });
    let model = wire::ModelInfo {
        version: 4,
        parent: 3,
        merge_round: 9,
        created_ms: 1_796_074_046_959,
        released: true,
        current: true,
        gate: "worse".into(),
        digest: vec![2; 32],
        num_examples: 812,
        contributors: 3,
        evaluated: true,
        accuracy: 0.875,
        macro_recall: 0.75,
        loss: 0.5,
        metadata_uri: "file:///m.json".into(),
        model_uri: "file:///m".into(),
        exact: true,
    };
    check_raw(
        "admin-models",
        &wire::ListModelsReply {
            models: vec![model],
        },
    );
    let round = wire::RoundInfo {
        merge_round: 9,
        base_version: 4,
        opened_ms: 1_796_074_046_000,
        closed_ms: 1_796_074_046_959,
        new_version: 5,
        roadside_units: 2,
        accepted: 6,
        refused: 1,
        num_examples: 812,
        up_bytes: 10_000,
        down_bytes: 20_000,
    };
    check_raw(
        "admin-rounds",
        &wire::ListRoundsReply {
            rounds: vec![round],
        },
    );
    let partial = wire::PartialAggregate::from(&samples::partial());
    let explained = wire::RoadsideExplanation {
        roadside: samples::roadside().to_string(),
        verdict: Some(Verdict::Accepted.into()),
        num_examples: 812,
        rounds: partial.rounds,
        contributions: partial.contributions,
    };
    let explanation = wire::RoundExplanation {
        round: Some(round),
        roadsides: vec![explained],
    };
    check_raw("admin-explanation", &explanation);
}

fn schema() -> Schema {
    Schema::linear_head(6, 3).unwrap()
}

fn values() -> Vec<f32> {
    (0_u8..21).map(|i| (f32::from(i) - 10.0) / 64.0).collect()
}

/// Bytes in front of the planes' lengths for this schema. Behind them, a newer zstd may write other bytes that mean
/// the same, so frames are compared by this head (which holds the digest of the values) and by what they decode to.
fn same_head(golden: &[u8], fresh: &[u8], extra: usize) {
    let len = 59 + 2 + extra + 1;
    assert_eq!(golden[..len], fresh[..len]);
}

#[test]
fn frames_stay_readable() {
    let schema = schema();
    let sum = Sum {
        exponents: vec![-5, 2],
        values: values().iter().map(|v| f64::from(*v) * 812.0).collect(),
        num_examples: 812,
        bound: 128.0,
    };
    let delta = encode_delta(&schema, &values(), &[-5, 2]).unwrap();
    let (model, released) = encode_model(&schema, &values()).unwrap();
    assert_eq!(released, values());
    let sum_frame = encode_sum(&schema, &sum).unwrap();

    for version in [1, 2] {
        let of = |name, fresh: &[u8], extra| {
            let bytes = golden_of(version, name, fresh);
            assert_eq!(bytes[3], version);
            if version == 2 {
                same_head(&bytes, fresh, extra);
            }
            bytes
        };
        let bytes = of("frame-delta", &delta, 0);
        let decoded = decode_delta(&bytes, &schema).unwrap();
        assert_eq!(decoded, decode_delta(&delta, &schema).unwrap());
        assert_eq!(decoded.to_parameters(), values());
        assert_eq!(read_blocks(&bytes, &schema, None), values());
        let bytes = of("frame-model", &model, 0);
        assert_eq!(decode_model(&bytes, &schema).unwrap(), values());
        let bytes = of("frame-sum", &sum_frame, 16);
        assert_eq!(decode_sum(&bytes, &schema).unwrap(), sum);
    }
}

/// An update as its blocks hold it, in parameter units.
fn read_blocks(frame: &[u8], schema: &Schema, reference: Option<&Reference>) -> Vec<f32> {
    let index = UpdateFrame::parse(frame, schema).unwrap();
    let mut unpacker = Unpacker::new();
    assert!(index.verify(frame, reference, &mut unpacker).is_ok());
    let mut parameters = Vec::new();
    for block in 0..index.blocks() {
        let len = index.values_of(block).len();
        let (mut high, mut low) = (vec![0; len], vec![0; len]);
        let packed = &frame[index.bytes_of(block)];
        index
            .read_block(block, packed, reference, &mut unpacker, &mut high, &mut low)
            .unwrap();
        let bytes = high.iter().zip(&low);
        parameters.extend(bytes.map(|(h, l)| f16::from_be_bytes([*h, *l]).to_f32()));
    }
    for (range, exponent) in schema.ranges().zip(index.exponents()) {
        for value in &mut parameters[range] {
            *value *= f32::from(*exponent).exp2();
        }
    }
    parameters
}

#[test]
fn updates_stay_readable_in_every_encoding() {
    // Two blocks; the second one holds the end of the first tensor and the other two.
    let tensor = |name: &str, shape: &[usize]| TensorSpec {
        name: name.into(),
        shape: shape.to_vec(),
    };
    let tensors = vec![
        tensor("a", &[100, 164]),
        tensor("b", &[7, 30]),
        tensor("c", &[3]),
    ];
    let schema = Schema::new(tensors).unwrap();
    let exponents = [-5, 2, 0];
    let cycle = |n: u16| (0..16_613).map(move |i: u16| f32::from(i % n) - f32::from(n / 2));
    let delta: Vec<f32> = cycle(29).map(|v| v / 512.0).collect();
    let base: Vec<f32> = cycle(23).map(|v| v / 16.0).collect();
    let (model, _) = encode_model(&schema, &base).unwrap();
    let model = golden_of(2, "frame-update-base", &model);
    let reference = decode_reference(&model, &schema).unwrap();
    assert_eq!(reference.to_parameters(), base);
    for encoding in UpdateEncoding::ALL {
        let reference = Some(&reference);
        let fresh = encode_update(&schema, encoding, 0.125, &delta, &exponents, reference).unwrap();
        let name = format!("frame-update-{encoding}");
        let bytes = golden_of(2, &name, &fresh.frame);
        let extra = if encoding == UpdateEncoding::Fp16Diff {
            16
        } else {
            0
        };
        same_head(&bytes, &fresh.frame, 1 + extra);
        assert_eq!(
            read_blocks(&bytes, &schema, reference),
            fresh.decoded,
            "{name}"
        );
    }
}
