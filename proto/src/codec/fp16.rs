//! Deltas and models as fp16 with one power-of-two scale a tensor.

use super::error::{DecodeError, EncodeError};
use super::frame::{self, BLOCK, Encoding};
use super::index::{Index, Wanted};
use half::f16;
use half::slice::HalfFloatSliceExt;
use std::ops::Range;
use wayside_domain::schema::Schema;
use wayside_domain::update::PayloadStats;

/// Magnitudes from here on round to infinity in fp16.
pub const FP16_LIMIT: f64 = 65520.0;

/// A delta as it travels: fp16 values, each standing for `value * 2^exponent` of its tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct Delta {
    exponents: Vec<i8>,
    ranges: Vec<Range<usize>>,
    values: Vec<f16>,
}

impl Delta {
    /// Rounds a delta to what will travel.
    ///
    /// - `delta`: length d, in parameter units, flat in the schema's order.
    /// - `exponents`: one a tensor, as announced with the round.
    ///
    /// What rounding loses is at most 2^-11 of the value, or 2^-25 scaled units where that is more.
    ///
    /// # Errors
    /// [`EncodeError::NotFinite`] and [`EncodeError::OutOfRange`] name the first bad element: nothing is cut or made
    /// infinite.
    pub fn quantise(schema: &Schema, delta: &[f32], exponents: &[i8]) -> Result<Self, EncodeError> {
        check_lengths(schema, delta.len(), exponents.len())?;
        let mut values = vec![f16::ZERO; delta.len()];
        let mut scaled = vec![0.0; delta.len().min(BLOCK)];
        for (tensor, range) in schema.ranges().enumerate() {
            for first in range.clone().step_by(BLOCK) {
                let piece = first..range.end.min(first + BLOCK);
                let scaled = &mut scaled[..piece.len()];
                let place = Place {
                    schema,
                    tensor,
                    first: first - range.start,
                };
                place.scale(&delta[piece.clone()], exponents[tensor], FP16_LIMIT, scaled)?;
                values[piece].convert_from_f32_slice(scaled);
            }
        }
        Ok(Self::assemble(schema, exponents.to_vec(), values))
    }

    fn assemble(schema: &Schema, exponents: Vec<i8>, values: Vec<f16>) -> Self {
        Self {
            exponents,
            ranges: schema.ranges().collect(),
            values,
        }
    }

    /// Scale exponent of each tensor.
    pub fn exponents(&self) -> &[i8] {
        &self.exponents
    }

    /// Scaled values, length d, flat in the schema's order.
    pub fn values(&self) -> &[f16] {
        &self.values
    }

    /// Refuses scales other than those announced: sums of differently scaled values mean nothing.
    pub fn check_exponents(&self, announced: &[i8]) -> Result<(), DecodeError> {
        check_exponents(&self.exponents, announced)
    }

    /// The values in parameter units, length d. Exact unless a value leaves the range of f32.
    pub fn to_parameters(&self) -> Vec<f32> {
        let mut parameters = Vec::with_capacity(self.values.len());
        self.each(|value| parameters.push(narrow(value)));
        parameters
    }

    /// Finiteness and norm, in parameter units. The squares are summed in the schema's order; the norm of a delta that
    /// is not finite is given as 0.
    pub fn stats(&self) -> PayloadStats {
        let finite = self.values.iter().all(|v| v.is_finite());
        let mut squares = 0.0;
        if finite {
            self.each(|value| squares += value * value);
        }
        PayloadStats {
            finite,
            l2_norm: squares.sqrt(),
        }
    }

    /// Largest magnitude in scaled units; infinite if a value is infinite, NaN is passed over.
    pub fn max_abs(&self) -> f64 {
        self.values
            .iter()
            .map(|v| v.to_f64().abs())
            .fold(0.0, f64::max)
    }

    /// Each value in parameter units, in order.
    fn each(&self, mut see: impl FnMut(f64)) {
        for (range, exponent) in self.ranges.iter().zip(&self.exponents) {
            let factor = power_of_two(i16::from(*exponent));
            for value in &self.values[range.clone()] {
                see(value.to_f64() * factor);
            }
        }
    }
}

/// Rounds and frames a delta; see [`Delta::quantise`].
pub fn encode_delta(
    schema: &Schema,
    delta: &[f32],
    exponents: &[i8],
) -> Result<Vec<u8>, EncodeError> {
    let delta = Delta::quantise(schema, delta, exponents)?;
    encode_delta_values(schema, &delta.values, exponents)
}

/// Frames values that are scaled and rounded already. They are not looked at, so NaN and infinity pass.
///
/// # Errors
/// Only if a length differs from the schema's.
pub fn encode_delta_values(
    schema: &Schema,
    values: &[f16],
    exponents: &[i8],
) -> Result<Vec<u8>, EncodeError> {
    check_lengths(schema, values.len(), exponents.len())?;
    write(schema, Encoding::Fp16Delta, values, exponents)
}

/// Reads the frame of an update. NaN and infinity are not errors here: [`Delta::stats`] tells.
pub fn decode_delta(frame: &[u8], schema: &Schema) -> Result<Delta, DecodeError> {
    read(frame, schema, Encoding::Fp16Delta)
}

/// Frames a model; each tensor's scale is chosen so that its largest magnitude is in `[1, 2)` after scaling.
///
/// - `parameters`: length d.
/// - returns: the frame, and the values that it decodes to. These, not `parameters`, are the released model.
pub fn encode_model(
    schema: &Schema,
    parameters: &[f32],
) -> Result<(Vec<u8>, Vec<f32>), EncodeError> {
    check_lengths(schema, parameters.len(), schema.tensors().len())?;
    let exponents: Vec<i8> = schema
        .ranges()
        .map(|range| exponent_of(&parameters[range]))
        .collect();
    let rounded = Delta::quantise(schema, parameters, &exponents)?;
    let released = rounded.to_parameters();
    if let Some((tensor, index, got)) = first_not_finite(schema, &released) {
        return Err(EncodeError::NotFinite { tensor, index, got });
    }
    let frame = write(schema, Encoding::Fp16Model, &rounded.values, &exponents)?;
    Ok((frame, released))
}

/// Reads the frame of a model: parameters, length d, all finite.
pub fn decode_model(frame: &[u8], schema: &Schema) -> Result<Vec<f32>, DecodeError> {
    let parameters = read(frame, schema, Encoding::Fp16Model)?.to_parameters();
    match first_not_finite(schema, &parameters) {
        Some((tensor, index, got)) => Err(DecodeError::NotFinite { tensor, index, got }),
        None => Ok(parameters),
    }
}

fn write(
    schema: &Schema,
    encoding: Encoding,
    values: &[f16],
    exponents: &[i8],
) -> Result<Vec<u8>, EncodeError> {
    frame::write(schema, encoding, exponents, &[], |range, p, plane| {
        for (byte, value) in plane.iter_mut().zip(&values[range]) {
            *byte = value.to_be_bytes()[p];
        }
    })
}

pub(super) fn read(
    frame: &[u8],
    schema: &Schema,
    encoding: Encoding,
) -> Result<Delta, DecodeError> {
    let index = Index::parse(frame, schema, Wanted::Only(encoding))?;
    let mut values = vec![f16::ZERO; schema.num_parameters()];
    index.unpack(frame, |range, _, plane| {
        for (value, byte) in values[range].iter_mut().zip(plane) {
            *value = f16::from_bits(value.to_bits() << 8 | u16::from(*byte));
        }
    })?;
    Ok(Delta::assemble(schema, index.exponents, values))
}

/// Refuses scales other than those announced.
pub(super) fn check_exponents(got: &[i8], announced: &[i8]) -> Result<(), DecodeError> {
    if got == announced {
        return Ok(());
    }
    Err(DecodeError::Scale {
        got: got.to_vec(),
        expected: announced.to_vec(),
    })
}

/// Where some values stand, for errors: from position `first` of a tensor on.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) schema: &'a Schema,
    pub(super) tensor: usize,
    pub(super) first: usize,
}

impl Place<'_> {
    /// `to[i] = values[i] * 2^-exponent`, exactly but for numbers below 2^-126, which every encoding makes zero.
    ///
    /// # Errors
    /// If a value is not finite, or its magnitude is `limit` or more after scaling.
    pub(super) fn scale(
        self,
        values: &[f32],
        exponent: i8,
        limit: f64,
        to: &mut [f32],
    ) -> Result<(), EncodeError> {
        let factor = power_of_two(-i16::from(exponent));
        let mut fits = true;
        for (to, value) in to.iter_mut().zip(values) {
            let scaled = f64::from(*value) * factor;
            fits &= scaled.abs() < limit;
            *to = narrow(scaled);
        }
        if fits {
            return Ok(());
        }
        let bad = |value: &f32| value.is_nan() || f64::from(*value).abs() * factor >= limit;
        let i = values.iter().position(bad).unwrap_or(0);
        let (value, tensor) = (f64::from(values[i]), self.name());
        Err(if value.is_finite() {
            self.out_of_range(i, value * factor, limit)
        } else {
            EncodeError::NotFinite {
                tensor,
                index: self.first + i,
                got: value,
            }
        })
    }

    /// The error for value `i` of these.
    pub(super) fn out_of_range(self, i: usize, got: f64, limit: f64) -> EncodeError {
        EncodeError::OutOfRange {
            tensor: self.name(),
            index: self.first + i,
            got,
            limit,
        }
    }

    fn name(self) -> String {
        self.schema.tensors()[self.tensor].name.clone()
    }
}

/// Values that are converted at a time.
const STEP: usize = 64;

/// Rounds to fp16 (to nearest, ties to even) and writes high and low bytes. All lengths are equal.
pub(super) fn round_to_planes(values: &[f32], high: &mut [u8], low: &mut [u8]) {
    let planes = high.chunks_mut(STEP).zip(low.chunks_mut(STEP));
    for (values, (high, low)) in values.chunks(STEP).zip(planes) {
        let mut halves = [f16::ZERO; STEP];
        let halves = &mut halves[..values.len()];
        halves.convert_from_f32_slice(values);
        split(halves, high, low);
    }
}

/// Writes the high and the low bytes of fp16 values. All lengths are equal.
pub(super) fn split(values: &[f16], high: &mut [u8], low: &mut [u8]) {
    for ((value, high), low) in values.iter().zip(high).zip(low) {
        [*high, *low] = value.to_be_bytes();
    }
}

/// The numbers whose high and low bytes these are. All lengths are equal.
pub(super) fn planes_to_f32(high: &[u8], low: &[u8], to: &mut [f32]) {
    let planes = high.chunks(STEP).zip(low.chunks(STEP));
    for (to, (high, low)) in to.chunks_mut(STEP).zip(planes) {
        let mut halves = [f16::ZERO; STEP];
        let halves = &mut halves[..to.len()];
        for ((half, high), low) in halves.iter_mut().zip(high).zip(low) {
            *half = f16::from_be_bytes([*high, *low]);
        }
        halves.convert_to_f32_slice(to);
    }
}

pub(super) fn check_lengths(
    schema: &Schema,
    values: usize,
    exponents: usize,
) -> Result<(), EncodeError> {
    if values != schema.num_parameters() {
        let (got, expected) = (values, schema.num_parameters());
        return Err(EncodeError::Values { got, expected });
    }
    if exponents != schema.tensors().len() {
        let (got, expected) = (exponents, schema.tensors().len());
        return Err(EncodeError::Exponents { got, expected });
    }
    Ok(())
}

/// The first NaN or infinity: tensor, position in it, value.
pub(super) fn first_not_finite<T: Copy + Into<f64>>(
    schema: &Schema,
    values: &[T],
) -> Option<(String, usize, f64)> {
    schema
        .tensors()
        .iter()
        .zip(schema.ranges())
        .find_map(|(tensor, range)| {
            let mut elements = values[range].iter().map(|v| (*v).into()).enumerate();
            let (index, got) = elements.find(|(_, v): &(usize, f64)| !v.is_finite())?;
            Some((tensor.name.clone(), index, got))
        })
}

/// `floor(log2(largest magnitude))`; 0 for a tensor of zeros, -126 for one of subnormal numbers.
fn exponent_of(values: &[f32]) -> i8 {
    let largest = values.iter().fold(0.0_f32, |max, v| max.max(v.abs()));
    if largest == 0.0 {
        return 0;
    }
    let biased = i64::from(largest.to_bits() >> 23).max(1);
    i8::try_from(biased - 127).unwrap_or(i8::MAX)
}

/// `2^exponent`, exactly.
pub(super) fn power_of_two(exponent: i16) -> f64 {
    f64::from_bits((1023 + i64::from(exponent)).cast_unsigned() << 52)
}

#[allow(
    clippy::cast_possible_truncation,
    reason = "rounding to f32 is what is asked for; callers check the range before or after"
)]
pub(super) fn narrow(value: f64) -> f32 {
    value as f32
}
