//! Trained weights in fp16, as differences to the base model's.
//!
//! Weights move little in a round, so that neighbours in fp16's order are close: the difference of two places in that
//! order is a small integer, and its high byte nearly always zero.

use super::error::DecodeError;
use super::fp16::{
    Delta, first_not_finite, narrow, planes_to_f32, power_of_two, read, round_to_planes,
};
use super::frame::{Encoding, HALF_DIGEST};
use super::tensors::Tensors;
use half::f16;
use half::slice::HalfFloatSliceExt;
use wayside_domain::schema::Schema;

/// A base model as its frame holds it, which is what updates of encoding `fp16-diff` are relative to.
#[derive(Clone, Debug, PartialEq)]
pub struct Reference {
    model: Delta,
    id: [u8; HALF_DIGEST],
}

/// Reads the frame of a model as a base for differences.
///
/// # Errors
/// As [`decode_model`](super::decode_model): damage, another schema, a value that is not finite.
pub fn decode_reference(frame: &[u8], schema: &Schema) -> Result<Reference, DecodeError> {
    let model = read(frame, schema, Encoding::Fp16Model)?;
    if let Some((tensor, index, got)) = first_not_finite(schema, &model.to_parameters()) {
        return Err(DecodeError::NotFinite { tensor, index, got });
    }
    let mut id = [0; HALF_DIGEST];
    id.copy_from_slice(&super::digest(frame).0[..HALF_DIGEST]);
    Ok(Reference { model, id })
}

impl Reference {
    /// Scale exponent of each tensor, as the model's frame has it.
    pub fn exponents(&self) -> &[i8] {
        self.model.exponents()
    }

    /// Scaled values, length d, flat in the schema's order; all finite.
    pub fn values(&self) -> &[f16] {
        self.model.values()
    }

    /// The model in parameter units, length d: the same as [`decode_model`](super::decode_model) gives.
    pub fn to_parameters(&self) -> Vec<f32> {
        self.model.to_parameters()
    }

    /// The model has as many values, in as many tensors.
    pub(super) fn fits(&self, tensors: &Tensors) -> bool {
        self.values().len() == tensors.values() && self.exponents().len() == tensors.count()
    }

    /// First half of the BLAKE3 of the model's frame.
    pub(super) fn id(&self) -> &[u8; HALF_DIGEST] {
        &self.id
    }
}

/// Values that are converted at a time.
const STEP: usize = 64;

/// From scaled deltas of one tensor to differences.
///
/// - `delta`: deltas divided by the scale of the *model's* tensor; `base`: the model's values.
/// - `high`, `low`: receive the bytes of the differences.
/// - returns: the first element whose weight is beyond fp16, with that weight.
///
/// All lengths are equal.
pub(super) fn encode(
    delta: &[f32],
    base: &[f16],
    high: &mut [u8],
    low: &mut [u8],
) -> Result<(), (usize, f64)> {
    let planes = high.chunks_mut(STEP).zip(low.chunks_mut(STEP));
    let pieces = delta.chunks(STEP).zip(base.chunks(STEP)).zip(planes);
    for (piece, ((delta, base), (high, low))) in pieces.enumerate() {
        let n = base.len();
        let (mut weights, mut rounded) = ([0.0_f32; STEP], [f16::ZERO; STEP]);
        let (weights, rounded) = (&mut weights[..n], &mut rounded[..n]);
        base.convert_to_f32_slice(weights);
        for (weight, delta) in weights.iter_mut().zip(delta) {
            *weight += delta;
        }
        rounded.convert_from_f32_slice(weights);
        if let Some(i) = rounded.iter().position(|weight| !weight.is_finite()) {
            return Err((piece * STEP + i, f64::from(weights[i])));
        }
        for i in 0..n {
            // A base of -0 stays one.
            let to = if delta[i] == 0.0 { base[i] } else { rounded[i] };
            [high[i], low[i]] = difference(to.to_bits(), base[i].to_bits()).to_be_bytes();
        }
    }
    Ok(())
}

/// From differences of one tensor to deltas in the announced scale, in place.
///
/// With `w` the weight and `b` the base value: `fp16(f32(w - b) * 2^(model_exponent - exponent))`, each rounding to
/// nearest, ties to even. These are plain IEEE operations, so every CPU gets the same bits. A weight that is not finite
/// gives a delta that is not finite.
pub(super) fn decode(
    base: &[f16],
    model_exponent: i8,
    exponent: i8,
    high: &mut [u8],
    low: &mut [u8],
) {
    let factor = power_of_two(i16::from(model_exponent) - i16::from(exponent));
    let planes = high.chunks_mut(STEP).zip(low.chunks_mut(STEP));
    for (base, (high, low)) in base.chunks(STEP).zip(planes) {
        for ((high, low), base) in high.iter_mut().zip(low.iter_mut()).zip(base) {
            let weight = apply(u16::from_be_bytes([*high, *low]), base.to_bits());
            [*high, *low] = weight.to_be_bytes();
        }
        let (mut weights, mut bases) = ([0.0_f32; STEP], [0.0_f32; STEP]);
        let (weights, bases) = (&mut weights[..base.len()], &mut bases[..base.len()]);
        planes_to_f32(high, low, weights);
        base.convert_to_f32_slice(bases);
        for (weight, base) in weights.iter_mut().zip(bases) {
            *weight = narrow(f64::from(*weight - *base) * factor);
        }
        round_to_planes(weights, high, low);
    }
}

/// The place of a bit pattern in fp16's order; negative numbers come first.
fn ordered(bits: u16) -> u16 {
    let sign = (bits.cast_signed() >> 15).cast_unsigned();
    bits ^ (sign | 0x8000)
}

/// The bit pattern at a place in fp16's order.
fn unordered(place: u16) -> u16 {
    let sign = (!place.cast_signed() >> 15).cast_unsigned();
    place ^ (sign | 0x8000)
}

/// How far `to` lies from `from` in fp16's order, wrapping, the sign in the lowest bit.
fn difference(to: u16, from: u16) -> u16 {
    let steps = ordered(to).wrapping_sub(ordered(from));
    let sign = (steps.cast_signed() >> 15).cast_unsigned();
    steps << 1 ^ sign
}

/// The bit pattern that lies this far from `from`.
fn apply(difference: u16, from: u16) -> u16 {
    let steps = difference >> 1 ^ (difference & 1).wrapping_neg();
    unordered(ordered(from).wrapping_add(steps))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_difference_is_undone() {
        for bits in 0..=u16::MAX {
            assert_eq!(unordered(ordered(bits)), bits);
            for from in [0, 1, 0x3c00, 0x7bff, 0x7fff, 0x8000, 0xbc00, 0xffff] {
                assert_eq!(apply(difference(bits, from), from), bits);
                assert_eq!(
                    difference(apply(bits, from), from),
                    bits,
                    "one form for each"
                );
            }
        }
        assert_eq!(difference(0x3c01, 0x3c00), 2);
        assert_eq!(difference(0x3bff, 0x3c00), 1);
        assert_eq!(difference(0xbc01, 0xbc00), 1);
        assert_eq!(difference(0x0000, 0x8000), 2);
    }

    #[test]
    fn places_are_in_the_order_of_the_numbers() {
        let mut numbers: Vec<f16> = (0..=u16::MAX).map(f16::from_bits).collect();
        numbers.retain(|n| !n.is_nan());
        numbers.sort_by_key(|n| ordered(n.to_bits()));
        assert!(numbers.windows(2).all(|pair| pair[0] <= pair[1]));
    }
}
