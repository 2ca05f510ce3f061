//! Updates in any of their encodings.

use super::frames::{Place, each};
use super::{check, held, limit};
use std::cell::RefCell;
use wayside_domain::encoding::UpdateEncoding;
use wayside_proto::codec::{
    Encoding, Unpacker, UpdateFrame, UpdateStats, decode_delta, encode_delta_values, encode_update,
    f16,
};

const ENCODINGS: [Encoding; 4] = [
    Encoding::Fp16Delta,
    Encoding::Fp16Diff,
    Encoding::Int8,
    Encoding::TopK,
];

thread_local! {
    static UNPACKER: RefCell<Unpacker> = RefCell::new(Unpacker::new());
}

pub(super) fn body(input: &[u8]) {
    each(input, &ENCODINGS, |frame, place| {
        let (parsed, most) = held(|| UpdateFrame::parse(frame, &place.schema));
        check("head of an update frame", &parsed, most, limit(frame, 0));
        if let Ok(parsed) = parsed {
            UNPACKER.with_borrow_mut(|unpacker| update(frame, &parsed, place, unpacker));
        } else {
            assert!(decode_delta(frame, &place.schema).is_err());
        }
    });
}

fn update(frame: &[u8], parsed: &UpdateFrame, place: &Place, unpacker: &mut Unpacker) {
    let reference = Some(&place.reference);
    let (stats, most) = held(|| parsed.verify(frame, reference, unpacker));
    let decoded = 2 * parsed.values_of(0).len() as u64;
    check("update frame", &stats, most, limit(frame, decoded));
    let values = blocks(frame, parsed, place, unpacker);
    if let Ok(delta) = decode_delta(frame, &place.schema) {
        assert!(stats.is_ok(), "two readers of one frame");
        let values = values.as_deref().map(bits);
        assert_eq!(values, Some(bits(delta.values())));
    } else {
        assert!(stats.is_err() || parsed.encoding() != UpdateEncoding::Fp16);
    }
    let Ok(stats) = stats else { return };
    let values = values.expect("what is verified can be read");
    measured(&values, parsed.exponents(), stats, place);
    written_again(&values, parsed, stats, place, unpacker);
}

/// All values, read block by block; nothing if one cannot be read.
fn blocks(
    frame: &[u8],
    parsed: &UpdateFrame,
    place: &Place,
    unpacker: &mut Unpacker,
) -> Option<Vec<f16>> {
    let mut values = Vec::new();
    let mut sound = true;
    for block in 0..parsed.blocks() {
        let range = parsed.values_of(block);
        assert_eq!(range.start, values.len());
        let (mut high, mut low) = (vec![0; range.len()], vec![0; range.len()]);
        let packed = &frame[parsed.bytes_of(block)];
        let reference = Some(&place.reference);
        let mut read = |packed, reference| {
            parsed.read_block(block, packed, reference, unpacker, &mut high, &mut low)
        };
        assert!(read(&[], reference).is_err());
        let without = read(packed, None);
        if parsed.encoding() == UpdateEncoding::Fp16Diff {
            assert!(without.is_err());
        }
        sound &= read(packed, reference).is_ok();
        let words = high.iter().zip(&low);
        values.extend(words.map(|(h, l)| f16::from_bits(u16::from_be_bytes([*h, *l]))));
    }
    assert_eq!(values.len(), place.schema.num_parameters());
    sound.then_some(values)
}

fn bits(values: &[f16]) -> Vec<u16> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// Compares the figures with what a plain loop makes of the values.
fn measured(values: &[f16], exponents: &[i8], got: UpdateStats, place: &Place) {
    let finite = values.iter().all(|v| v.is_finite());
    assert_eq!(got.stats.finite, finite);
    if !finite {
        assert_eq!((got.stats.l2_norm, got.max_abs), (0.0, f64::INFINITY));
        return;
    }
    let largest = values.iter().fold(0.0, |max, v| v.to_f64().abs().max(max));
    assert_eq!(got.max_abs.to_bits(), largest.to_bits());
    let parts = place.schema.ranges().zip(exponents);
    let squares: f64 = parts
        .flat_map(|(range, exponent)| {
            let factor = f64::from(*exponent).exp2();
            values[range]
                .iter()
                .map(move |v| (v.to_f64() * factor).powi(2))
        })
        .sum();
    let (norm, right) = (got.stats.l2_norm, squares.sqrt());
    assert!(
        (norm - right).abs() <= 1e-9 * right,
        "{norm} is not {right}"
    );
}

/// What was read can be written in fp16, and in its own encoding if that loses nothing, and is then read as the same.
fn written_again(
    values: &[f16],
    parsed: &UpdateFrame,
    stats: UpdateStats,
    place: &Place,
    unpacker: &mut Unpacker,
) {
    let schema = &place.schema;
    let again = encode_delta_values(schema, values, parsed.exponents()).expect("lengths fit");
    let frame = UpdateFrame::parse(&again, schema).expect("just written");
    let read = blocks(&again, &frame, place, unpacker).expect("just written");
    assert_eq!(bits(&read), bits(values));
    let verified = frame.verify(&again, None, unpacker);
    assert_eq!(verified, Ok(stats));

    let lossless = [UpdateEncoding::Int8, UpdateEncoding::TopK].contains(&parsed.encoding());
    let exact = |e: &i8| (-125..=111).contains(e);
    if !(lossless && stats.stats.finite && parsed.exponents().iter().all(exact)) {
        return;
    }
    let parts = schema.ranges().zip(parsed.exponents());
    let delta: Vec<f32> = parts
        .flat_map(|(range, exponent)| {
            let factor = f64::from(*exponent).exp2();
            values[range]
                .iter()
                .map(move |v| narrow(v.to_f64() * factor))
        })
        .collect();
    let (encoding, exponents) = (parsed.encoding(), parsed.exponents());
    let again = encode_update(schema, encoding, 1.0, &delta, exponents, None)
        .expect("what decodes can be encoded");
    assert_eq!(again.decoded, delta, "{encoding:?}");
    let frame = UpdateFrame::parse(&again.frame, schema).expect("just written");
    let read = blocks(&again.frame, &frame, place, unpacker).expect("just written");
    let same = read.iter().zip(values).all(|(a, b)| a == b);
    assert!(same, "{encoding:?} changes on its way");
}

#[allow(
    clippy::cast_possible_truncation,
    reason = "f32 holds it: the exponents were checked"
)]
fn narrow(value: f64) -> f32 {
    value as f32
}
