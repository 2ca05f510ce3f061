//! The portable kernels, in safe code: what every other form must equal.

use crate::dense::{GATE_SHIFT, round};
use crate::layer::{Finish, Layer, UNIT};
use crate::reference::clamp_byte;

/// Weights by channel within a unit, so that a compiler can take a unit's channels at once on any CPU.
#[derive(Clone, Debug)]
pub(super) struct Plain {
    layer: Layer,
    /// Shape `[units, patch, 16]`; zeros for channels beyond the last, here and below.
    weights: Vec<[i16; UNIT]>,
    numbers: Vec<Numbers>,
}

/// A unit's numbers.
#[derive(Clone, Debug)]
struct Numbers {
    bias: [i32; UNIT],
    factor: [f32; UNIT],
    low: [f32; UNIT],
    high: [f32; UNIT],
    residual: [f32; UNIT],
    zero: [i32; UNIT],
}

/// One number for each channel of a unit.
fn unit_of<T: Copy + Default>(values: &[T], unit: usize) -> [T; UNIT] {
    std::array::from_fn(|lane| values.get(unit * UNIT + lane).copied().unwrap_or_default())
}

impl Plain {
    pub(super) fn new(layer: Layer) -> Self {
        let units = 0..layer.output.div_ceil(UNIT);
        let places = units.flat_map(|unit| (0..layer.patch).map(move |place| (unit, place)));
        let weights = places.map(|(unit, place)| {
            std::array::from_fn(|lane| {
                let weights = layer.weight.get((unit * UNIT + lane) * layer.patch + place);
                weights.map_or(0, |weight| i16::from(*weight))
            })
        });
        let numbers = (0..layer.output.div_ceil(UNIT)).map(|unit| Numbers {
            bias: unit_of(&layer.bias, unit),
            factor: unit_of(&layer.factor, unit),
            low: unit_of(&layer.low, unit),
            high: unit_of(&layer.high, unit),
            residual: unit_of(&layer.residual, unit),
            zero: unit_of(&layer.zero, unit).map(i32::from),
        });
        Self {
            weights: weights.collect(),
            numbers: numbers.collect(),
            layer,
        }
    }

    fn unit_weights(&self, unit: usize) -> &[[i16; UNIT]] {
        &self.weights[unit * self.layer.patch..][..self.layer.patch]
    }
}

/// See [`layer`](crate::layer): hard-swish without its factor.
#[expect(
    clippy::cast_precision_loss,
    reason = "the nearest f32 is the definition"
)]
fn swish(sums: [i32; UNIT], n: &Numbers) -> [f32; UNIT] {
    std::array::from_fn(|i| {
        let a = sums[i] as f32;
        a * (a + n.low[i]).max(0.0).min(n.high[i])
    })
}

/// See [`layer`](crate::layer): what becomes of a unit's sums.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the nearest f32 is the definition; clamped before each cast"
)]
fn finish(sums: [i32; UNIT], n: &Numbers, kind: Finish, residual: &[u8]) -> [u8; UNIT] {
    let mut values = match kind {
        Finish::HardSwish => swish(sums, n),
        _ => sums.map(|sum| sum as f32),
    };
    for (value, factor) in values.iter_mut().zip(n.factor) {
        *value *= factor;
    }
    if kind == Finish::Residual {
        let added = residual.iter().zip(n.residual);
        for (value, (byte, factor)) in values.iter_mut().zip(added) {
            *value += f32::from(*byte) * factor;
        }
    }
    std::array::from_fn(|i| {
        let within = values[i].clamp(f32::from(i16::MIN), f32::from(i16::MAX));
        (round(within) as i32 + n.zero[i]).clamp(0, 255) as u8
    })
}

/// A convolution over all channels of some pixels; see [`Pointwise::run`](super::Pointwise::run).
pub(super) fn pointwise(
    plain: &Plain,
    rows: &[&[u8]],
    (step, pixels): (usize, usize),
    mut output: super::Output<'_>,
) {
    let layer = &plain.layer;
    let stride = layer.output.next_multiple_of(UNIT);
    let length = layer.patch / rows.len();
    for (unit, n) in plain.numbers.iter().enumerate() {
        let weights = plain.unit_weights(unit);
        for pixel in 0..pixels {
            let mut sums = n.bias;
            for (row, weights) in rows.iter().zip(weights.chunks_exact(length)) {
                for (byte, weights) in row[pixel * step..][..length].iter().zip(weights) {
                    let byte = i16::from(*byte);
                    for (sum, weight) in sums.iter_mut().zip(weights) {
                        *sum += i32::from(byte) * i32::from(*weight);
                    }
                }
            }
            let at = pixel * stride + unit * UNIT;
            match &mut output {
                super::Output::Bytes { to, residual } => {
                    let residual = residual.get(at..at + UNIT).unwrap_or(&[]);
                    let bytes = finish(sums, n, layer.finish, residual);
                    to[at..at + UNIT].copy_from_slice(&bytes);
                }
                super::Output::Sums(all) => {
                    let values = swish(sums, n);
                    for (sum, value) in all[unit * UNIT..].iter_mut().zip(values) {
                        *sum += value;
                    }
                }
                super::Output::Raw(raw) => raw[at..at + UNIT].copy_from_slice(&sums),
            }
        }
    }
}

/// A depthwise convolution; see [`Depthwise::run`](super::Depthwise::run).
pub(super) fn depthwise(
    plain: &Plain,
    (kernel, stride): (usize, usize),
    rows: &[&[u8]; 6],
    (pixels, count): (usize, usize),
    to: &mut [u8],
) {
    let layer = &plain.layer;
    let step = layer.output.next_multiple_of(UNIT);
    for (unit, n) in plain.numbers.iter().enumerate() {
        let weights = plain.unit_weights(unit);
        for pixel in 0..pixels * count {
            let (row, column) = (pixel / pixels, pixel % pixels);
            let mut sums = n.bias;
            for (y, weights) in weights.chunks_exact(kernel).enumerate() {
                // Two output rows lie one input row apart: only stride 1 has two.
                let from = &rows[row + y][column * stride * step + unit * UNIT..];
                for (x, weights) in weights.iter().enumerate() {
                    let bytes = from[x * step..].first_chunk::<UNIT>();
                    let bytes = bytes.expect("rows are whole units");
                    for ((sum, byte), weight) in sums.iter_mut().zip(bytes).zip(weights) {
                        *sum += i32::from(i16::from(*byte)) * i32::from(*weight);
                    }
                }
            }
            let bytes = finish(sums, n, layer.finish, &[]);
            to[pixel * step + unit * UNIT..][..UNIT].copy_from_slice(&bytes);
        }
    }
}

/// Adds each channel of each pixel to its sum.
pub(super) fn sums(plane: &[u8], sums: &mut [u32]) {
    for pixel in plane.chunks_exact(sums.len()) {
        for (sum, byte) in sums.iter_mut().zip(pixel) {
            *sum += u32::from(*byte);
        }
    }
}

/// Multiplies each channel by its gate; see [`gate`](super::gate).
pub(super) fn gate(plane: &mut [u8], from: &[u8], factor: &[i16], to: &[u8]) {
    for pixel in plane.chunks_exact_mut(from.len()) {
        for (((byte, from), factor), to) in pixel.iter_mut().zip(from).zip(factor).zip(to) {
            let centred = (i16::from(*byte) - i16::from(*from)) << GATE_SHIFT;
            let product = i32::from(centred) * i32::from(*factor);
            let gated = ((product >> 14) + 1) >> 1;
            *byte = clamp_byte(gated + i32::from(*to));
        }
    }
}
