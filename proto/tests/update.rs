//! Updates: every encoding gives back what it said it would, block by block, and nothing else.

#![allow(
    clippy::unwrap_used,
    reason = "a test stops where something is not as it must be"
)]

use proptest::prelude::*;
use wayside_domain::encoding::UpdateEncoding;
use wayside_domain::schema::{Schema, TensorSpec};
use wayside_domain::update::RejectReason;
use wayside_proto::codec::{
    BLOCK, DecodeError, EncodeError, Encoding, Reference, Unpacker, UpdateFrame, UpdateStats,
    decode_delta, decode_reference, digest, encode_delta, encode_delta_values, encode_model,
    encode_update, f16, max_frame_bytes, max_update_bytes,
};

const ALL: [UpdateEncoding; 4] = UpdateEncoding::ALL;

/// One tensor for each length.
fn schema(lengths: &[usize]) -> Schema {
    let tensor = |(i, len): (usize, &usize)| TensorSpec {
        name: format!("t{i}"),
        shape: vec![*len],
    };
    Schema::new(lengths.iter().enumerate().map(tensor).collect()).unwrap()
}

/// Numbers that look like noise, in `(-1, 1)`, most of them small.
fn noise(len: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let bytes = state.to_be_bytes();
        f32::from(i16::from_be_bytes([bytes[0], bytes[1]])) / 32_768.0
    };
    (0..len).map(|_| next() * next() * next()).collect()
}

fn model(schema: &Schema, seed: u64) -> Reference {
    let (frame, _) = encode_model(schema, &noise(schema.num_parameters(), seed)).unwrap();
    decode_reference(&frame, schema).unwrap()
}

/// The fp16 values of an update, read block by block in this order of blocks.
fn read(
    frame: &[u8],
    schema: &Schema,
    reference: Option<&Reference>,
    backwards: bool,
) -> Result<Vec<f16>, DecodeError> {
    let index = UpdateFrame::parse(frame, schema)?;
    let mut unpacker = Unpacker::new();
    let mut values = vec![f16::ZERO; schema.num_parameters()];
    let mut order: Vec<usize> = (0..index.blocks()).collect();
    if backwards {
        order.reverse();
    }
    for block in order {
        let range = index.values_of(block);
        let (mut high, mut low) = (vec![1; range.len()], vec![1; range.len()]);
        // A copy of nothing but the block's own bytes.
        let packed = frame[index.bytes_of(block)].to_vec();
        index.read_block(
            block,
            &packed,
            reference,
            &mut unpacker,
            &mut high,
            &mut low,
        )?;
        for (value, (high, low)) in values[range].iter_mut().zip(high.iter().zip(&low)) {
            *value = f16::from_be_bytes([*high, *low]);
        }
    }
    Ok(values)
}

fn verify(
    frame: &[u8],
    schema: &Schema,
    reference: Option<&Reference>,
) -> Result<UpdateStats, DecodeError> {
    UpdateFrame::parse(frame, schema)?.verify(frame, reference, &mut Unpacker::new())
}

/// Scaled values in parameter units.
fn to_parameters(schema: &Schema, exponents: &[i8], values: &[f16]) -> Vec<f32> {
    let mut parameters: Vec<f32> = values.iter().map(|v| v.to_f32()).collect();
    for (range, exponent) in schema.ranges().zip(exponents) {
        for value in &mut parameters[range] {
            *value *= f32::from(*exponent).exp2();
        }
    }
    parameters
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// What fp16 in this scale may lose of a value, both in parameter units.
fn fp16_loss(value: f64, exponent: i8) -> f64 {
    (value.abs() / 2048.0).max((f64::from(exponent) - 25.0).exp2())
}

/// The bound that [`encode_update`] states, for each value, in parameter units.
fn bounds(
    schema: &Schema,
    encoding: UpdateEncoding,
    delta: &[f32],
    exponents: &[i8],
    decoded: &[f32],
    reference: &Reference,
) -> Vec<f64> {
    let base = reference.to_parameters();
    let smallest_sent = decoded
        .iter()
        .zip(delta)
        .filter(|(d, _)| **d != 0.0)
        .map(|(_, delta)| f64::from(delta.abs()))
        .fold(f64::INFINITY, f64::min);
    let mut bounds = Vec::new();
    for ((range, e), model_e) in schema.ranges().zip(exponents).zip(reference.exponents()) {
        for i in range {
            let value = f64::from(delta[i]);
            bounds.push(match encoding {
                UpdateEncoding::Fp16Diff => {
                    let weight = f64::from(base[i]) + value;
                    let first = fp16_loss(weight, *model_e) * 1.001;
                    first + fp16_loss(value.abs() + first, *e)
                }
                UpdateEncoding::Int8 => {
                    let start = i - i % BLOCK % 64;
                    let end = delta.len().min(start + 64).min(i - i % BLOCK + BLOCK);
                    // Groups may reach over tensors of different scales.
                    let mut largest = 0.0_f64;
                    for (range, other) in schema.ranges().zip(exponents) {
                        let scale = (f64::from(*e) - f64::from(*other)).exp2();
                        let group = start.max(range.start)..end.min(range.end);
                        for value in delta.get(group).unwrap_or_default() {
                            largest = largest.max(f64::from(value.abs()) * scale);
                        }
                    }
                    (largest / 127.5).max((f64::from(*e) - 25.0).exp2())
                }
                UpdateEncoding::TopK if decoded[i] == 0.0 => {
                    smallest_sent.min(value.abs()).max(fp16_loss(value, *e))
                }
                UpdateEncoding::Fp16 | UpdateEncoding::TopK => fp16_loss(value, *e),
            });
        }
    }
    bounds
}

/// Everything that holds for any update.
fn check(schema: &Schema, delta: &[f32], exponents: &[i8], fraction: f64) {
    let reference = model(schema, 99);
    for encoding in ALL {
        let at_hand = Some(&reference);
        let update = encode_update(schema, encoding, fraction, delta, exponents, at_hand).unwrap();
        assert!(update.frame.len() <= max_frame_bytes(schema, encoding.into()));
        assert!(update.frame.len() <= max_update_bytes(schema));

        let index = UpdateFrame::parse(&update.frame, schema).unwrap();
        assert_eq!(index.encoding(), encoding);
        assert_eq!(index.exponents(), exponents);
        assert_eq!(index.check_exponents(exponents), Ok(()));
        assert_eq!(index.blocks(), delta.len().div_ceil(BLOCK));
        let mut end = index.bytes_of(0).start;
        for block in 0..index.blocks() {
            assert_eq!(index.values_of(block).start, block * BLOCK);
            assert_eq!(index.bytes_of(block).start, end);
            end = index.bytes_of(block).end;
        }
        assert_eq!(end, update.frame.len());

        let values = read(&update.frame, schema, at_hand, false).unwrap();
        assert_eq!(
            bits(&to_parameters(schema, exponents, &values)),
            bits(&update.decoded),
            "{encoding}"
        );
        assert_eq!(
            read(&update.frame, schema, at_hand, true).as_ref(),
            Ok(&values)
        );
        let bounds = bounds(
            schema,
            encoding,
            delta,
            exponents,
            &update.decoded,
            &reference,
        );
        for (i, bound) in bounds.into_iter().enumerate() {
            let loss = f64::from(delta[i]) - f64::from(update.decoded[i]);
            assert!(
                loss.abs() <= bound,
                "{encoding}, element {i}: {} became {}",
                delta[i],
                update.decoded[i]
            );
        }
        if encoding == UpdateEncoding::Fp16 {
            assert_eq!(
                update.frame,
                encode_delta(schema, delta, exponents).unwrap()
            );
            let whole = decode_delta(&update.frame, schema).unwrap();
            assert_eq!(whole.values(), values);
        }

        let stats = verify(&update.frame, schema, at_hand).unwrap();
        let squares = |v: &f32| f64::from(*v).powi(2);
        let norm = update.decoded.iter().map(squares).sum::<f64>().sqrt();
        assert!(stats.stats.finite);
        assert!((stats.stats.l2_norm - norm).abs() <= norm * 1e-12);
        let largest = values.iter().map(|v| v.to_f64().abs()).fold(0.0, f64::max);
        assert_eq!(stats.max_abs.to_bits(), largest.to_bits());
    }
}

#[test]
fn every_encoding_holds_at_the_edges_of_chunks() {
    for d in [1, 2, 63, 64, 65, BLOCK - 1, BLOCK, BLOCK + 1, 40_000] {
        check(&schema(&[d]), &noise(d, 1), &[0], 0.01);
    }
    // Tensors that end at, before and behind the chunks' edges, and some within one chunk.
    for lengths in [
        &[BLOCK, 1][..],
        &[BLOCK - 1, 2],
        &[BLOCK + 1, 1, 1],
        &[10, 20_000, 1, 64, 14_000, 5],
        &[3, BLOCK - 3, BLOCK, 7],
    ] {
        let d = lengths.iter().sum();
        let exponents: Vec<i8> = [0, -6, 3, -1, 2, -2][..lengths.len()].to_vec();
        check(&schema(lengths), &noise(d, 2), &exponents, 0.1);
    }
}

#[test]
fn awkward_values_hold_too() {
    let schema = schema(&[100, 200]);
    let zeros = vec![0.0; 300];
    let mut single = zeros.clone();
    single[299] = 1e-3;
    let mut tiny = noise(300, 3);
    for value in &mut tiny {
        *value *= 1e-7;
    }
    let mut negative = noise(300, 4);
    negative.iter_mut().step_by(3).for_each(|v| *v = -0.0);
    let mut wide = noise(300, 5);
    wide.iter_mut().step_by(7).for_each(|v| *v *= 2e4);
    for delta in [zeros, single, tiny, negative, wide] {
        for fraction in [1e-6, 0.3, 1.0] {
            check(&schema, &delta, &[0, 0], fraction);
        }
    }
}

#[test]
fn small_encodings_are_small() {
    let schema = schema(&[100_000]);
    let delta: Vec<f32> = noise(100_000, 6).iter().map(|v| v * 0.01).collect();
    let reference = model(&schema, 7);
    let bytes = ALL.map(|encoding| {
        encode_update(&schema, encoding, 0.01, &delta, &[-6], Some(&reference))
            .unwrap()
            .frame
            .len()
    });
    assert!(
        bytes.windows(2).all(|pair| pair[0] > pair[1]),
        "{bytes:?} along the ladder"
    );
    // Nothing but zeros takes next to nothing: some 50 bytes a chunk.
    for encoding in ALL {
        let zeros = vec![0.0; 100_000];
        let update =
            encode_update(&schema, encoding, 0.01, &zeros, &[-6], Some(&reference)).unwrap();
        assert!(
            update.frame.len() < 420,
            "{encoding} {}",
            update.frame.len()
        );
    }
}

#[test]
fn top_k_sends_as_many_as_it_says_and_equal_ones_in_order() {
    let schema = schema(&[BLOCK, 100]);
    let delta = vec![0.5; BLOCK + 100];
    let encode = |fraction| {
        let encoding = UpdateEncoding::TopK;
        encode_update(&schema, encoding, fraction, &delta, &[0, 0], None).unwrap()
    };
    for (fraction, sent) in [(1e-9, 1), (0.5, 8242), (0.9999, 16_483), (1.0, 16_484)] {
        let decoded = encode(fraction).decoded;
        assert!(
            decoded[..sent]
                .iter()
                .all(|v| v.to_bits() == 0.5_f32.to_bits())
        );
        assert!(decoded[sent..].iter().all(|v| v.to_bits() == 0));
    }
}

#[test]
fn errors_of_the_encoder_say_what_is_wrong() {
    let schema = schema(&[20_000, 20]);
    let reference = model(&schema, 8);
    let encode = |encoding, delta: &[f32], exponents: &[i8]| {
        encode_update(&schema, encoding, 0.5, delta, exponents, Some(&reference))
    };
    let good = noise(20_020, 9);
    for encoding in ALL {
        for (at, tensor, index) in [(17_000, "t0", 17_000), (20_003, "t1", 3)] {
            for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut delta = good.clone();
                delta[at] = value;
                let error = encode(encoding, &delta, &[0, 0]).unwrap_err();
                assert!(
                    matches!(&error, EncodeError::NotFinite { tensor: t, index: i, .. } if t == tensor && *i == index),
                    "{encoding}: {error}"
                );
            }
            for value in [65_536.0, -1e30] {
                let mut delta = good.clone();
                delta[at] = value;
                let error = encode(encoding, &delta, &[0, 0]).unwrap_err();
                assert!(
                    matches!(&error, EncodeError::OutOfRange { tensor: t, index: i, .. } if t == tensor && *i == index),
                    "{encoding}: {error}"
                );
            }
        }
        assert!(matches!(
            encode(encoding, &good[1..], &[0, 0]),
            Err(EncodeError::Values { .. })
        ));
        assert!(matches!(
            encode(encoding, &good, &[0]),
            Err(EncodeError::Exponents { .. })
        ));
        // Within the model's scale, beyond the announced one.
        let mut delta = good.clone();
        delta[5] = 1.0;
        let error = encode(encoding, &delta, &[-16, -16]).unwrap_err();
        assert!(
            matches!(&error, EncodeError::OutOfRange { .. }),
            "{encoding}: {error}"
        );
    }
    let without = |encoding, fraction| {
        encode_update(&schema, encoding, fraction, &good, &[0, 0], None).unwrap_err()
    };
    assert_eq!(
        without(UpdateEncoding::Fp16Diff, 0.5),
        EncodeError::NoReference
    );
    assert_eq!(
        without(UpdateEncoding::TopK, 0.0),
        EncodeError::Fraction { got: 0.0 }
    );
    let other = model(&self::schema(&[20_021]), 8);
    assert_eq!(
        encode_update(
            &schema,
            UpdateEncoding::Fp16Diff,
            0.5,
            &good,
            &[0, 0],
            Some(&other)
        ),
        Err(EncodeError::Reference {
            got: 20_021,
            expected: 20_020
        })
    );
}

#[test]
fn differences_are_read_with_their_own_base_only() {
    let schema = schema(&[300]);
    let (reference, other) = (model(&schema, 10), model(&schema, 11));
    let delta = noise(300, 12);
    let encoding = UpdateEncoding::Fp16Diff;
    let frame = encode_update(&schema, encoding, 0.5, &delta, &[0], Some(&reference))
        .unwrap()
        .frame;
    assert_eq!(verify(&frame, &schema, None), Err(DecodeError::NoReference));
    assert_eq!(
        read(&frame, &schema, None, false),
        Err(DecodeError::NoReference)
    );
    for error in [
        verify(&frame, &schema, Some(&other)).unwrap_err(),
        read(&frame, &schema, Some(&other), false).unwrap_err(),
    ] {
        assert!(matches!(error, DecodeError::WrongReference { .. }));
        assert_eq!(error.reason(), RejectReason::WrongBase);
    }
    // The other encodings do not care.
    for encoding in [
        UpdateEncoding::Fp16,
        UpdateEncoding::Int8,
        UpdateEncoding::TopK,
    ] {
        let frame = encode_update(&schema, encoding, 0.5, &delta, &[0], None)
            .unwrap()
            .frame;
        assert!(verify(&frame, &schema, None).is_ok());
        assert!(verify(&frame, &schema, Some(&other)).is_ok());
    }
    let update = encode_delta(&schema, &delta, &[0]).unwrap();
    assert!(matches!(
        decode_reference(&update, &schema),
        Err(DecodeError::Encoding {
            got: 1,
            expected: 2
        })
    ));
}

#[test]
fn values_that_are_not_finite_are_seen() {
    let schema = schema(&[20_000]);
    for bits in [0x7e00, 0x7c00, 0xfc00, 0xfe01] {
        for at in [0, 15, 16, 16_383, 16_384, 19_999] {
            let mut values = vec![f16::ONE; 20_000];
            values[at] = f16::from_bits(bits);
            let frame = encode_delta_values(&schema, &values, &[0]).unwrap();
            let got = verify(&frame, &schema, None).unwrap();
            assert!(!got.stats.finite, "{bits:04x} at {at}");
            assert!(got.stats.l2_norm.to_bits() == 0 && got.max_abs.is_infinite());
            assert_eq!(
                read(&frame, &schema, None, false).unwrap()[at].to_bits(),
                bits
            );
        }
    }
}

/// A frame of version 2 with foreign planes, as a hostile sender would make it; each plane comes packed, and with what
/// it unpacks to.
fn forge(
    schema: &Schema,
    encoding: Encoding,
    extra: &[u8],
    planes: &[(Vec<u8>, Vec<u8>)],
) -> Vec<u8> {
    let zeros = vec![0.0; schema.num_parameters()];
    let mut head = encode_delta(schema, &zeros, &vec![0; schema.tensors().len()]).unwrap();
    head.truncate(27);
    head[4] = encoding.code();
    let exponents = vec![0; schema.tensors().len()];
    let mut content = [&head[..], &exponents, extra].concat();
    for (_, plane) in planes {
        content.extend(plane);
    }
    let mut frame = head;
    frame.extend(digest(&content).0);
    frame.extend(&exponents);
    frame.extend(extra);
    frame.push(u8::try_from(encoding.planes()).unwrap());
    for (packed, _) in planes {
        let mut len = packed.len();
        while len >= 0x80 {
            frame.push(u8::try_from(len & 0x7f).unwrap() | 0x80);
            len >>= 7;
        }
        frame.push(u8::try_from(len).unwrap());
    }
    for (packed, _) in planes {
        frame.extend(packed);
    }
    frame
}

fn packed(plane: &[u8]) -> (Vec<u8>, Vec<u8>) {
    (zstd::bulk::compress(plane, 1).unwrap(), plane.to_vec())
}

#[test]
fn forged_content_is_refused_with_a_good_digest_too() {
    let schema = schema(&[BLOCK, 100]);
    let rest = [vec![0; 100], vec![0; 2]];
    let int8 = |number: u8, scale: i8| {
        let mut numbers = vec![0; BLOCK];
        numbers[77] = number;
        let mut scales = vec![0; 256];
        scales[1] = scale.cast_unsigned();
        let planes = [
            packed(&numbers),
            packed(&scales),
            packed(&rest[0]),
            packed(&rest[1]),
        ];
        verify(&forge(&schema, Encoding::Int8, &[], &planes), &schema, None)
    };
    assert!((int8(0x81, 9).unwrap().max_abs - 65_024.0).abs() < 0.5);
    for (number, scale) in [(0x80, 0), (1, 10), (1, -25), (1, 127)] {
        let error = int8(number, scale).unwrap_err();
        assert!(matches!(error, DecodeError::Content { block: 0, .. }));
        assert_eq!(error.reason(), RejectReason::Damaged);
    }

    let top_k = |second: &[u8]| {
        let planes = [packed(&[0]), packed(second)];
        let frame = forge(&schema, Encoding::TopK, &[], &planes);
        verify(&frame, &schema, None)
    };
    assert!((top_k(&[2, 0, 99, 0x3c, 0x40, 0, 0]).unwrap().max_abs - 2.0).abs() < 1e-9);
    for content in [
        &[2, 0, 100, 1, 1, 1, 1][..], // outside the chunk
        &[1, 100, 1, 1],
        &[2, 5, 0, 1, 1, 1, 1],                   // twice the same position
        &[1, 0x85, 0, 1, 1],                      // a long form of 5
        &[1, 0xff, 0xff, 0xff, 0xff, 0x7f, 1, 1], // a large gap
        &[1, 5, 0x80, 0],                         // a zero
        &[1, 5, 1, 1, 1],                         // one byte more
        &[1, 5, 1],                               // one byte less
        &[0xff, 0xff, 0xff, 0xff, 0x0f, 1, 1, 1, 1, 1], // count
    ] {
        let error = top_k(content).unwrap_err();
        assert!(
            matches!(error, DecodeError::Content { block: 1, .. }),
            "{content:?}: {error}"
        );
    }
    // The plane itself must not be empty, and not longer than all values with their positions.
    assert!(matches!(
        top_k(&[]),
        Err(DecodeError::PlaneShort { plane: 1, .. })
    ));
    assert_eq!(
        top_k(&[0; 304]),
        Err(DecodeError::PlaneTooLarge {
            plane: 1,
            limit: 303
        })
    );
}

#[test]
fn bombs_stop_at_the_block() {
    let schema = schema(&[BLOCK, 100]);
    let reference = model(&schema, 13);
    // 14 bytes that expand to 262,144.
    let bomb = [
        0x28, 0xb5, 0x2f, 0xfd, 0, 0x38, 2, 0, 0x10, 0, 3, 0, 0x10, 0,
    ];
    let window = [0x28, 0xb5, 0x2f, 0xfd, 0, 0x88, 1, 0, 0];
    for encoding in ALL {
        let update = encode_update(
            &schema,
            encoding,
            0.1,
            &noise(BLOCK + 100, 14),
            &[0, 0],
            Some(&reference),
        )
        .unwrap();
        let extra = match encoding {
            UpdateEncoding::Fp16Diff => update.frame[61..77].to_vec(),
            _ => vec![],
        };
        let encoding = Encoding::from(encoding);
        let sound: Vec<(Vec<u8>, Vec<u8>)> = (0..2 * encoding.planes())
            .map(|p| {
                let values = [BLOCK, 100][p / encoding.planes()];
                let len = match encoding {
                    Encoding::TopK => 1,
                    Encoding::Int8 if p % 2 == 1 => values.div_ceil(64),
                    _ => values,
                };
                packed(&vec![0; len])
            })
            .collect();
        let frame = forge(&schema, encoding, &extra, &sound);
        assert!(verify(&frame, &schema, Some(&reference)).is_ok());
        for plane in 0..sound.len() {
            let spoilt = |bytes: &[u8]| {
                let mut planes = sound.clone();
                planes[plane].0 = bytes.to_vec();
                let frame = forge(&schema, encoding, &extra, &planes);
                let error = verify(&frame, &schema, Some(&reference)).unwrap_err();
                // A reader of single blocks is as safe.
                assert_eq!(
                    read(&frame, &schema, Some(&reference), false),
                    Err(error.clone())
                );
                error
            };
            let error = spoilt(&bomb);
            assert!(
                matches!(error, DecodeError::PlaneTooLarge { plane: p, .. } if p == plane),
                "{error}"
            );
            let error = spoilt(&window);
            assert!(
                matches!(error, DecodeError::Window { plane: p, .. } if p == plane),
                "{error}"
            );
            let error = spoilt(&[]);
            assert!(
                matches!(error, DecodeError::Zstd { plane: p, .. } if p == plane),
                "{error}"
            );
            // Longer than our encoder could make it, though zstd would take it: many empty blocks.
            let mut long = vec![0x28, 0xb5, 0x2f, 0xfd, 0, 0x38];
            (0..20_000).for_each(|_| long.extend([0, 0, 0]));
            long.extend([1, 0, 0]);
            let mut planes = sound.clone();
            planes[plane].0 = long;
            let frame = forge(&schema, encoding, &extra, &planes);
            let error = UpdateFrame::parse(&frame, &schema).unwrap_err();
            assert_eq!(error.reason(), RejectReason::TooLarge, "{error}");
        }
    }
}

#[test]
fn frames_of_another_kind_are_refused() {
    let schema = schema(&[21]);
    let (model, _) = encode_model(&schema, &noise(21, 15)).unwrap();
    assert_eq!(
        UpdateFrame::parse(&model, &schema).unwrap_err(),
        DecodeError::NotAnUpdate { got: 2, version: 2 }
    );
    // Version 1 had no such encodings.
    let mut frame = encode_update(
        &schema,
        UpdateEncoding::Int8,
        0.5,
        &noise(21, 16),
        &[0],
        None,
    )
    .unwrap()
    .frame;
    frame[3] = 1;
    assert_eq!(
        UpdateFrame::parse(&frame, &schema).unwrap_err(),
        DecodeError::NotAnUpdate { got: 5, version: 1 }
    );
    let limit = max_update_bytes(&schema);
    assert_eq!(
        UpdateFrame::parse(&vec![0; limit + 1], &schema).unwrap_err(),
        DecodeError::TooLarge {
            got: limit + 1,
            limit
        }
    );
    let index = UpdateFrame::parse(&encode_delta(&schema, &[0.5; 21], &[3]).unwrap(), &schema);
    let error = index.unwrap().check_exponents(&[4]).unwrap_err();
    assert_eq!(error.reason(), RejectReason::Inconsistent);
    // Another frame than the one that was parsed is an error, not a panic.
    let good = encode_delta(&schema, &noise(21, 17), &[0]).unwrap();
    let index = UpdateFrame::parse(&good, &schema).unwrap();
    let mut unpacker = Unpacker::new();
    for other in [&good[..0], &good[..good.len() - 1], &model] {
        assert!(index.verify(other, None, &mut unpacker).is_err());
    }
    let (mut high, mut low) = ([0; 21], [0; 21]);
    for len in [0, 5] {
        let packed = &good[..len];
        assert!(
            index
                .read_block(0, packed, None, &mut unpacker, &mut high, &mut low)
                .is_err()
        );
    }
}

/// Whatever the damage, there is an error or the very same update.
fn check_damaged(
    damaged: &[u8],
    schema: &Schema,
    reference: &Reference,
    sound: &(UpdateStats, Vec<f16>),
) {
    if let Ok(stats) = verify(damaged, schema, Some(reference)) {
        let values = read(damaged, schema, Some(reference), false).unwrap();
        assert_eq!(&(stats, values), sound);
    } else {
        // Reading without verifying must not panic either.
        let _ = read(damaged, schema, Some(reference), false);
    }
}

#[test]
fn damage_never_gives_other_values() {
    let schema = schema(&[40, 60]);
    let reference = model(&schema, 18);
    for delta in [noise(100, 19), vec![0.25; 100]] {
        for encoding in ALL {
            let frame = encode_update(&schema, encoding, 0.2, &delta, &[0, 1], Some(&reference))
                .unwrap()
                .frame;
            let sound = (
                verify(&frame, &schema, Some(&reference)).unwrap(),
                read(&frame, &schema, Some(&reference), false).unwrap(),
            );
            for at in 0..frame.len() {
                assert!(verify(&frame[..at], &schema, Some(&reference)).is_err());
                for bit in 0..8 {
                    let mut damaged = frame.clone();
                    damaged[at] ^= 1 << bit;
                    check_damaged(&damaged, &schema, &reference, &sound);
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_update_comes_back_as_it_was_said_to(
        delta in prop::collection::vec(-60.0_f32..60.0, 200),
        shrink in prop::collection::vec(0_u8..40, 200),
        exponents in prop::collection::vec(-9_i8..20, 3),
        fraction in 0.001_f64..=1.0,
        cut in 1_usize..150,
    ) {
        let delta: Vec<f32> = delta
            .iter()
            .zip(&shrink)
            .map(|(v, s)| v * (-f32::from(*s)).exp2())
            .collect();
        check(&schema(&[cut, 7, 193 - cut]), &delta, &exponents, fraction);
    }

    #[test]
    fn damage_to_several_chunks_never_gives_other_values(
        seed: u64,
        at in prop::collection::vec((any::<prop::sample::Index>(), 1_u8..), 1..4),
        encoding in prop::sample::select(ALL.to_vec()),
    ) {
        let schema = schema(&[17_000]);
        let reference = model(&schema, 20);
        let delta = noise(17_000, seed);
        let frame = encode_update(&schema, encoding, 0.01, &delta, &[0], Some(&reference))
            .unwrap()
            .frame;
        let sound = (
            verify(&frame, &schema, Some(&reference)).unwrap(),
            read(&frame, &schema, Some(&reference), false).unwrap(),
        );
        let mut damaged = frame;
        for (at, change) in at {
            let at = at.index(damaged.len());
            damaged[at] ^= change;
        }
        check_damaged(&damaged, &schema, &reference, &sound);
    }

    #[test]
    fn random_planes_are_refused_without_a_panic(
        planes in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 4),
        encoding in prop::sample::select(ALL.to_vec()),
    ) {
        let schema = schema(&[BLOCK, 30]);
        let reference = model(&schema, 21);
        let frame = encode_update(&schema, encoding, 0.5, &vec![0.0; BLOCK + 30], &[0, 0], Some(&reference))
            .unwrap()
            .frame;
        let encoding = Encoding::from(encoding);
        let extra = if encoding == Encoding::Fp16Diff { &frame[61..77] } else { &[] };
        // Content that is noise, and bytes that are no zstd frames at all.
        let content: Vec<_> = planes[..2 * encoding.planes()].iter().map(|p| packed(p)).collect();
        let garbage: Vec<_> = planes[..2 * encoding.planes()]
            .iter()
            .map(|p| (p.clone(), p.clone()))
            .collect();
        for planes in [content, garbage] {
            let frame = forge(&schema, encoding, extra, &planes);
            prop_assert!(verify(&frame, &schema, Some(&reference)).is_err());
            let _ = read(&frame, &schema, Some(&reference), true);
        }
    }
}
