//! Updates in any of their encodings, as they are written.
//!
//! Whatever the encoding, what a receiver adds up is what the sender was told it would ([`EncodedUpdate::decoded`]), bit
//! for bit: both come out of the same functions. [`super::update_frame`] reads.

use super::diff::{self, Reference};
use super::error::EncodeError;
use super::fp16::{
    FP16_LIMIT, Place, check_lengths, narrow, planes_to_f32, power_of_two, round_to_planes,
};
use super::frame::{Chunks, Encoding, VERSION, Writer};
use super::int8;
use super::tensors::Tensors;
use super::topk;
use std::ops::Range;
use wayside_domain::encoding::UpdateEncoding;
use wayside_domain::schema::Schema;

/// An update ready to be sealed.
#[derive(Clone, Debug, PartialEq)]
pub struct EncodedUpdate {
    /// The bytes that travel.
    pub frame: Vec<u8>,
    /// What every receiver reads from them, length d, in parameter units. The delta minus this is what the encoding
    /// lost, and goes into the next update where error is fed back.
    pub decoded: Vec<f32>,
}

/// Writes an update.
///
/// - `topk_fraction`: share of the deltas that `topk` sends, `(0, 1]`; the other encodings do not look at it.
/// - `delta`: length d, in parameter units, flat in the schema's order.
/// - `exponents`: one a tensor, as announced with the round.
/// - `reference`: the base model, for `fp16-diff`; the other encodings do not look at it.
///
/// What is lost, with values in scaled units unless it says otherwise:
/// - `fp16`: at most 2^-11 of the value, or 2^-25 where that is more.
/// - `fp16-diff`: at most 2^-10.99 of the trained weight, or 2^-25 of the scale of the model's tensor where that is
///   more, and then as `fp16`.
/// - `int8`: at most 1/127.5 of the largest magnitude among the 64 values of the group, or 2^-25 where that is more.
/// - `topk`: what is not sent is lost and no larger, in parameter units, than anything that is sent; what is sent, as
///   `fp16`.
///
/// # Errors
/// If a length differs from the schema's, `topk_fraction` is out of its range, the base model is missing or of another
/// schema; [`EncodeError::NotFinite`] and [`EncodeError::OutOfRange`] name the first element of a block that does not
/// fit: nothing is cut or made infinite.
pub fn encode_update(
    schema: &Schema,
    encoding: UpdateEncoding,
    topk_fraction: f64,
    delta: &[f32],
    exponents: &[i8],
    reference: Option<&Reference>,
) -> Result<EncodedUpdate, EncodeError> {
    check_lengths(schema, delta.len(), exponents.len())?;
    let tensors = Tensors::of(schema);
    let mut way = match encoding {
        UpdateEncoding::Fp16 => Way::Fp16,
        UpdateEncoding::Fp16Diff => {
            let reference = reference.ok_or(EncodeError::NoReference)?;
            if !reference.fits(&tensors) {
                let (got, expected) = (reference.values().len(), delta.len());
                return Err(EncodeError::Reference { got, expected });
            }
            Way::Diff(reference)
        }
        UpdateEncoding::Int8 => Way::Int8,
        UpdateEncoding::TopK => Way::TopK(topk::Selection::of(delta, topk_fraction)?),
    };
    let extra = match &way {
        Way::Diff(reference) => &reference.id()[..],
        _ => &[],
    };
    let mut writer = Writer::new(schema, encoding.into(), exponents, extra)?;
    let mut decoded = vec![0.0; delta.len()];
    let chunks = Chunks::new(schema, VERSION);
    let mut buffers = Buffers::default();
    for chunk in 0..chunks.count() {
        let values = chunks.range(chunk);
        let block = Block {
            schema,
            tensors: &tensors,
            exponents,
            values: values.clone(),
        };
        let delta = &delta[values.clone()];
        let Buffers { high, low, .. } = block.encode(&mut way, delta, &mut writer, &mut buffers)?;
        let decoded = &mut decoded[values];
        planes_to_f32(high, low, decoded);
        for (tensor, part) in tensors.parts(block.values.clone()) {
            let factor = power_of_two(i16::from(exponents[tensor]));
            for value in &mut decoded[part] {
                *value = narrow(f64::from(*value) * factor);
            }
        }
    }
    let frame = writer.finish();
    Ok(EncodedUpdate { frame, decoded })
}

/// An encoding with what it needs beside the deltas.
enum Way<'a> {
    Fp16,
    Diff(&'a Reference),
    Int8,
    TopK(topk::Selection),
}

/// Room for one block.
#[derive(Default)]
struct Buffers {
    scaled: Vec<f32>,
    high: Vec<u8>,
    low: Vec<u8>,
    numbers: Vec<u8>,
    scales: Vec<u8>,
}

/// A block of an update that is being written.
struct Block<'a> {
    schema: &'a Schema,
    tensors: &'a Tensors,
    exponents: &'a [i8],
    values: Range<usize>,
}

impl Block<'_> {
    /// Writes the block's planes; leaves what they decode to in `high` and `low`.
    fn encode<'b>(
        &self,
        way: &mut Way<'_>,
        delta: &[f32],
        writer: &mut Writer,
        buffers: &'b mut Buffers,
    ) -> Result<&'b Buffers, EncodeError> {
        let n = self.values.len();
        buffers.scaled.resize(n, 0.0);
        buffers.high.resize(n, 0);
        buffers.low.resize(n, 0);
        let Buffers {
            scaled,
            high,
            low,
            numbers,
            scales,
        } = buffers;
        match way {
            Way::Fp16 => {
                self.scale(delta, self.exponents, FP16_LIMIT, scaled)?;
                round_to_planes(scaled, high, low);
                writer.put(high)?;
                writer.put(low)?;
            }
            Way::Diff(reference) => {
                self.scale(delta, reference.exponents(), FP16_LIMIT, scaled)?;
                let base = &reference.values()[self.values.clone()];
                for (tensor, part) in self.parts() {
                    let (high, low) = (&mut high[part.clone()], &mut low[part.clone()]);
                    diff::encode(&scaled[part.clone()], &base[part.clone()], high, low).map_err(
                        |(i, weight)| {
                            self.place(tensor, &part)
                                .out_of_range(i, weight, FP16_LIMIT)
                        },
                    )?;
                }
                writer.put(high)?;
                writer.put(low)?;
                for (tensor, part) in self.parts() {
                    let (high, low) = (&mut high[part.clone()], &mut low[part.clone()]);
                    let (from, to) = (reference.exponents()[tensor], self.exponents[tensor]);
                    diff::decode(&base[part.clone()], from, to, high, low);
                    if let Some(i) = high.iter().position(|byte| byte & 0x7c == 0x7c) {
                        let got = f64::from(delta[part.start + i]) * power_of_two(-i16::from(to));
                        return Err(self.place(tensor, &part).out_of_range(i, got, FP16_LIMIT));
                    }
                }
            }
            Way::Int8 => {
                self.scale(delta, self.exponents, int8::INT8_LIMIT, scaled)?;
                numbers.resize(Encoding::Int8.plane_bytes(0, n), 0);
                scales.resize(Encoding::Int8.plane_bytes(1, n), 0);
                int8::encode(scaled, numbers, scales);
                writer.put(numbers)?;
                writer.put(scales)?;
                let decoded = int8::decode(numbers, scales, high, low);
                debug_assert_eq!(decoded, Ok(()));
            }
            Way::TopK(selection) => {
                self.scale(delta, self.exponents, FP16_LIMIT, scaled)?;
                round_to_planes(scaled, high, low);
                let content = topk::encode(selection, delta, high, low);
                writer.put(&content)?;
                let decoded = topk::decode(&content, high, low);
                debug_assert_eq!(decoded, Ok(()));
            }
        }
        Ok(buffers)
    }

    fn parts(&self) -> impl Iterator<Item = (usize, Range<usize>)> {
        self.tensors.parts(self.values.clone())
    }

    fn scale(
        &self,
        delta: &[f32],
        exponents: &[i8],
        limit: f64,
        to: &mut [f32],
    ) -> Result<(), EncodeError> {
        for (tensor, part) in self.parts() {
            let to = &mut to[part.clone()];
            self.place(tensor, &part)
                .scale(&delta[part], exponents[tensor], limit, to)?;
        }
        Ok(())
    }

    fn place(&self, tensor: usize, part: &Range<usize>) -> Place<'_> {
        Place {
            schema: self.schema,
            tensor,
            first: self.values.start + part.start - self.tensors.begin(tensor),
        }
    }
}
