//! Frames: what goes in comes out, and nothing else does.

#![allow(
    clippy::unwrap_used,
    reason = "a test stops where something is not as it must be"
)]

use proptest::prelude::*;
use wayside_domain::schema::{Schema, TensorSpec};
use wayside_domain::update::{PayloadStats, RejectReason};
use wayside_proto::codec::{
    DecodeError, Delta, EncodeError, Encoding, Sum, decode_delta, decode_model, decode_sum,
    encode_delta, encode_delta_values, encode_model, encode_sum, f16, max_frame_bytes,
};

fn head() -> Schema {
    Schema::linear_head(480, 3).unwrap()
}

fn small() -> Schema {
    Schema::linear_head(6, 3).unwrap()
}

/// Numbers that look like noise, in `[-1, 1)`.
fn noise(len: usize) -> Vec<f32> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        f32::from(i16::from_le_bytes([
            (state >> 40).to_le_bytes()[0],
            (state >> 48).to_le_bytes()[0],
        ]))
    };
    (0..len).map(|_| next() / 32_768.0).collect()
}

#[test]
fn an_update_of_the_head_keeps_its_budget() {
    let schema = head();
    for (delta, exponents) in [
        (noise(1443), [0_i8, 0]),
        (noise(1443).iter().map(|v| v * 1e-3).collect(), [-10, -3]),
        (vec![0.0; 1443], [0, 0]),
    ] {
        let frame = encode_delta(&schema, &delta, &exponents).unwrap();
        assert!(frame.len() * 10 <= 1443 * 21, "{} bytes", frame.len());
        assert!(frame.len() <= max_frame_bytes(&schema, Encoding::Fp16Delta));
        let decoded = decode_delta(&frame, &schema).unwrap();
        assert_eq!(
            decoded,
            Delta::quantise(&schema, &delta, &exponents).unwrap()
        );
        assert_eq!(decoded.check_exponents(&exponents), Ok(()));
    }
}

#[test]
fn rounding_to_fp16_is_as_measured() {
    let schema = Schema::new(vec![TensorSpec {
        name: "t".into(),
        shape: vec![1],
    }])
    .unwrap();
    let bits =
        |value: f32| Delta::quantise(&schema, &[value], &[0]).map(|d| d.values()[0].to_bits());
    for (value, expected) in [
        (65519.0, 0x7bff),
        (-65519.0, 0xfbff),
        (6.0e-8, 0x0001),
        (2.98e-8, 0x0000),
        (3.0e-8, 0x0001),
        (1.0, 0x3c00),
        (-0.0, 0x8000),
        // Halfway between two neighbours: to the even one.
        (1.000_488_3, 0x3c00),
        (1.001_464_8, 0x3c02),
    ] {
        assert_eq!(bits(value), Ok(expected), "{value}");
    }
    for value in [65520.0, -65520.0, f32::MAX] {
        assert!(
            matches!(bits(value), Err(EncodeError::OutOfRange { index: 0, .. })),
            "{value}"
        );
    }
    for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        assert!(
            matches!(bits(value), Err(EncodeError::NotFinite { index: 0, .. })),
            "{value}"
        );
    }
}

#[test]
fn errors_of_the_encoder_name_the_tensor() {
    let schema = small();
    let mut delta = vec![0.0; 21];
    delta[19] = f32::NAN;
    let refused = encode_delta(&schema, &delta, &[0, 0]);
    assert!(
        matches!(&refused, Err(EncodeError::NotFinite { tensor, index: 1, .. }) if tensor == "head-bias"),
        "{refused:?}"
    );
    delta[19] = 1.0;
    assert!(encode_delta(&schema, &delta, &[0, -15]).is_ok());
    let refused = encode_delta(&schema, &delta, &[0, -16]);
    assert!(
        matches!(&refused, Err(EncodeError::OutOfRange { tensor, index: 1, .. }) if tensor == "head-bias"),
        "{refused:?}"
    );
    assert!(matches!(
        encode_delta(&schema, &delta[1..], &[0, 0]),
        Err(EncodeError::Values { .. })
    ));
    assert!(matches!(
        encode_delta(&schema, &delta, &[0]),
        Err(EncodeError::Exponents { .. })
    ));
}

#[test]
fn values_that_are_not_finite_are_seen_and_not_hidden() {
    let schema = small();
    for bits in [0x7e00, 0x7c00, 0xfc00, 0xfe01] {
        let mut values = vec![f16::ONE; 21];
        values[5] = f16::from_bits(bits);
        let frame = encode_delta_values(&schema, &values, &[0, 0]).unwrap();
        let stats = decode_delta(&frame, &schema).unwrap().stats();
        assert_eq!(
            stats,
            PayloadStats {
                finite: false,
                l2_norm: 0.0
            }
        );
    }
}

#[test]
fn norms_are_in_parameter_units() {
    let schema = small();
    let mut delta = vec![0.0; 21];
    (delta[0], delta[20]) = (0.03125, 6.0);
    delta[1] = -0.25;
    let delta = Delta::quantise(&schema, &delta, &[-5, 2]).unwrap();
    let expected = (0.03125_f64.powi(2) + 0.0625 + 36.0).sqrt();
    assert_eq!(
        delta.stats(),
        PayloadStats {
            finite: true,
            l2_norm: expected
        }
    );
    assert!((delta.max_abs() - 8.0).abs() < f64::EPSILON);
    assert_eq!(delta.to_parameters()[20].to_bits(), 6.0_f32.to_bits());
    assert_eq!(
        delta.check_exponents(&[-5, 3]).unwrap_err().reason(),
        RejectReason::Inconsistent
    );
}

#[test]
fn a_model_is_what_its_frame_says() {
    let schema = head();
    for factor in [0.0, 1e-42, 1e-6, 1.0, 3e4, 1e38] {
        let parameters: Vec<f32> = noise(1443).iter().map(|v| v * factor).collect();
        let (frame, released) = encode_model(&schema, &parameters).unwrap();
        assert_eq!(decode_model(&frame, &schema).unwrap(), released);
        for range in schema.ranges() {
            let largest = parameters[range.clone()]
                .iter()
                .fold(0.0_f32, |m, v| m.max(v.abs()));
            for i in range {
                let bound = (parameters[i].abs() / 2048.0).max(largest / 16_777_216.0);
                assert!(
                    (parameters[i] - released[i]).abs() <= bound,
                    "{} {}",
                    parameters[i],
                    released[i]
                );
            }
        }
        // Released once, a model does not change by being released again.
        assert_eq!(encode_model(&schema, &released).unwrap().1, released);
    }
    assert!(matches!(
        encode_model(&schema, &[f32::MAX; 1443]),
        Err(EncodeError::NotFinite { .. })
    ));
    assert!(matches!(
        encode_model(&schema, &[f32::NAN; 1443]),
        Err(EncodeError::NotFinite { .. })
    ));
}

fn sum(values: Vec<f64>) -> Sum {
    Sum {
        exponents: vec![-3, 4],
        values,
        num_examples: 812,
        bound: 1e5,
    }
}

#[test]
fn sums_are_kept_bit_for_bit() {
    let schema = small();
    let mut values: Vec<f64> = noise(21).iter().map(|v| f64::from(*v) * 1e6).collect();
    values[3] = -0.0;
    values[4] = f64::MIN_POSITIVE / 2.0;
    values[5] = f64::MAX;
    let sum = sum(values);
    let decoded = decode_sum(&encode_sum(&schema, &sum).unwrap(), &schema).unwrap();
    let bits = |sum: &Sum| sum.values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&decoded), bits(&sum));
    assert_eq!(decoded, sum);
    assert!(
        sum.is_exact()
            && !Sum {
                bound: 536_870_912.0,
                ..sum.clone()
            }
            .is_exact()
    );

    let bad = Sum {
        values: vec![f64::NAN; 21],
        ..sum.clone()
    };
    assert!(matches!(
        encode_sum(&schema, &bad),
        Err(EncodeError::NotFinite { .. })
    ));
    for bound in [f64::NAN, f64::INFINITY, -1.0] {
        let bad = Sum {
            bound,
            ..sum.clone()
        };
        assert!(matches!(
            encode_sum(&schema, &bad),
            Err(EncodeError::Bound { .. })
        ));
    }
}

#[test]
fn frames_of_another_kind_or_schema_are_refused() {
    let schema = small();
    let delta = encode_delta(&schema, &[0.5; 21], &[0, 0]).unwrap();
    let refused = |schema: &Schema| decode_delta(&delta, schema).unwrap_err();
    for other in [
        head(),
        Schema::linear_head(3, 6).unwrap(),
        Schema::linear_head(2, 7).unwrap(),
        Schema::new(vec![TensorSpec {
            name: "t".into(),
            shape: vec![21],
        }])
        .unwrap(),
    ] {
        let error = refused(&other);
        assert_eq!(error.reason(), RejectReason::WrongSchema, "{error}");
    }
    let error = decode_model(&delta, &schema).unwrap_err();
    assert_eq!(
        error,
        DecodeError::Encoding {
            got: 1,
            expected: 2
        }
    );
    assert_eq!(error.reason(), RejectReason::Damaged);
    let error = decode_sum(&delta, &schema).unwrap_err();
    assert_eq!(
        error,
        DecodeError::Encoding {
            got: 1,
            expected: 3
        }
    );

    let limit = max_frame_bytes(&schema, Encoding::Fp16Delta);
    let error = decode_delta(&vec![0; limit + 1], &schema).unwrap_err();
    assert_eq!(
        error,
        DecodeError::TooLarge {
            got: limit + 1,
            limit
        }
    );
    assert_eq!(error.reason(), RejectReason::TooLarge);
    let mut newer = delta.clone();
    for got in [0, 3, 255] {
        newer[3] = got;
        assert_eq!(
            decode_delta(&newer, &schema).unwrap_err(),
            DecodeError::Version { got, newest: 2 }
        );
    }
    let mut longer = delta.clone();
    longer.push(0);
    assert_eq!(
        decode_delta(&longer, &schema).unwrap_err(),
        DecodeError::Trailing { got: 1 }
    );
}

/// Puts foreign planes behind the head of a sound frame of the small schema, whose planes begin at byte 62.
fn with_planes(planes: [&[u8]; 2]) -> Vec<u8> {
    let mut frame = encode_delta(&small(), &[0.5; 21], &[0, 0]).unwrap();
    frame.truncate(62);
    for plane in planes {
        frame.push(u8::try_from(plane.len()).unwrap());
    }
    frame.extend(planes.concat());
    frame
}

#[test]
fn bombs_inside_a_frame_are_refused() {
    let decode = |planes| decode_delta(&with_planes(planes), &small()).unwrap_err();
    let good = zstd::bulk::compress(&[0; 21], 1).unwrap();
    let bomb = [
        0x28, 0xb5, 0x2f, 0xfd, 0, 0x38, 2, 0, 0x10, 0, 3, 0, 0x10, 0,
    ];
    let error = decode([&bomb, &good]);
    assert_eq!(
        error,
        DecodeError::PlaneTooLarge {
            plane: 0,
            limit: 21
        }
    );
    assert_eq!(error.reason(), RejectReason::TooLarge);
    assert_eq!(
        decode([&good, &bomb]),
        DecodeError::PlaneTooLarge {
            plane: 1,
            limit: 21
        }
    );
    let window = [0x28, 0xb5, 0x2f, 0xfd, 0, 0x88, 1, 0, 0];
    assert!(matches!(
        decode([&window, &good]),
        DecodeError::Window { plane: 0, .. }
    ));
    let short = zstd::bulk::compress(&[0; 20], 1).unwrap();
    let long = zstd::bulk::compress(&[0; 22], 1).unwrap();
    assert!(matches!(
        decode([&short, &good]),
        DecodeError::PlaneShort { got: 20, .. }
    ));
    assert!(matches!(
        decode([&long, &good]),
        DecodeError::PlaneTooLarge { .. }
    ));
    assert_eq!(decode([&good, &good]), DecodeError::Digest);
}

/// Every single flipped bit and every cut gives an error or the very same value.
fn check_damage<T: PartialEq + std::fmt::Debug>(
    frame: &[u8],
    decode: impl Fn(&[u8]) -> Result<T, DecodeError>,
) {
    let value = decode(frame).unwrap();
    for at in 0..frame.len() {
        assert!(decode(&frame[..at]).is_err(), "cut at {at}");
        for bit in 0..8 {
            let mut damaged = frame.to_vec();
            damaged[at] ^= 1 << bit;
            if let Ok(other) = decode(&damaged) {
                assert_eq!(other, value, "bit {bit} of byte {at}");
            }
        }
    }
}

#[test]
fn damage_never_gives_other_values() {
    let (schema, delta) = (small(), noise(21));
    let frame = encode_delta(&schema, &delta, &[-1, 2]).unwrap();
    check_damage(&frame, |f| decode_delta(f, &schema));
    let (frame, _) = encode_model(&schema, &delta).unwrap();
    check_damage(&frame, |f| decode_model(f, &schema));
    let frame = encode_sum(
        &schema,
        &sum(delta.iter().map(|v| f64::from(*v) * 7.0).collect()),
    )
    .unwrap();
    check_damage(&frame, |f| decode_sum(f, &schema));
    // Planes that zstd really shrinks.
    let frame = encode_delta(&head(), &[0.25; 1443], &[-1, 2]).unwrap();
    check_damage(&frame, |f| decode_delta(f, &head()));
}

proptest! {
    #[test]
    fn deltas_come_back_within_the_stated_bound(
        delta in prop::collection::vec(-1.0e3_f32..1.0e3, 21),
        exponents in prop::collection::vec(-5_i8..20, 2),
    ) {
        let schema = small();
        let frame = encode_delta(&schema, &delta, &exponents).unwrap();
        let back = decode_delta(&frame, &schema).unwrap().to_parameters();
        for (range, exponent) in schema.ranges().zip(&exponents) {
            for i in range {
                let quantum = f64::from(*exponent).exp2() / f64::from(1 << 25);
                let bound = (f64::from(delta[i].abs()) / 2048.0).max(quantum);
                prop_assert!((f64::from(delta[i]) - f64::from(back[i])).abs() <= bound);
            }
        }
        // What has been rounded once stays as it is.
        prop_assert_eq!(encode_delta(&schema, &back, &exponents).unwrap(), frame);
    }

    #[test]
    fn any_sum_comes_back(bits in prop::collection::vec(any::<u64>(), 21), num_examples: u64) {
        let schema = small();
        let values: Vec<f64> = bits.iter().map(|b| f64::from_bits(*b)).collect();
        let finite = values.iter().all(|v| v.is_finite());
        let sum = Sum { num_examples, ..sum(values) };
        match encode_sum(&schema, &sum) {
            Ok(frame) => prop_assert_eq!(decode_sum(&frame, &schema).unwrap(), sum),
            Err(_) => prop_assert!(!finite),
        }
    }

    #[test]
    fn random_bytes_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..300), keep in 0_usize..66) {
        let schema = small();
        let mut frame = encode_delta(&schema, &[0.5; 21], &[0, 0]).unwrap();
        frame.truncate(keep);
        frame.extend(&bytes);
        for bytes in [&bytes, &frame] {
            prop_assert!(decode_delta(bytes, &schema).is_err());
            prop_assert!(decode_model(bytes, &schema).is_err());
            prop_assert!(decode_sum(bytes, &schema).is_err());
        }
    }
}
