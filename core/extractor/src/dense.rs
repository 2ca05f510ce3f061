//! What happens between planes: means, the two small matrices of squeeze-excite, gates, pooled features.
//!
//! These vectors are short, so they are carried in 16 bits or f32. A matrix takes a vector of 16-bit numbers as two
//! rows of bytes (high and low), which the pointwise kernels multiply at the cost of one: they wait for weights.
//! All of it is plain f32 arithmetic, one operation at a time, the same bits on every CPU.

use crate::quantized::{Dense, Grid};

/// A centred byte is shifted by this before it is multiplied by its gate, a number with 15 - `GATE_SHIFT` fractional
/// bits.
pub(crate) const GATE_SHIFT: u32 = 5;

/// How many pixels, as the divisor of a mean.
#[expect(
    clippy::cast_precision_loss,
    reason = "pictures have fewer than 2^24 pixels"
)]
pub(crate) fn pixels(count: usize) -> f32 {
    count as f32
}

/// The nearest integer, ties to even, of a number within 2^22 of 0: a sum so large has no bits left for a fraction.
/// CPUs of the baseline have no instruction for it.
pub(crate) fn round(x: f32) -> f32 {
    const LARGE: f32 = 12_582_912.0;
    (x + LARGE) - LARGE
}

/// 256 times the mean byte of each channel.
pub(crate) fn means(sums: &[u32], count: usize) -> Vec<u16> {
    let mut means = vec![0; sums.len()];
    means_into(sums, count, &mut means);
    means
}

/// [`means`] into a given vector.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the nearest f32 is the definition; 256 * 255 fits"
)]
pub(crate) fn means_into(sums: &[u32], count: usize, means: &mut [u16]) {
    let factor = 256.0 / pixels(count);
    for (mean, sum) in means.iter_mut().zip(sums) {
        *mean = round(*sum as f32 * factor) as u16;
    }
}

/// A real vector as a matrix takes it in.
pub(crate) fn enter(layer: &Dense, x: &[f32]) -> Vec<u16> {
    let mut entered = vec![0; x.len()];
    enter_into(layer.low, layer.step, x, &mut entered);
    entered
}

/// [`enter`] into a given vector.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "clamped just before"
)]
pub(crate) fn enter_into(low: f32, step: f32, x: &[f32], entered: &mut [u16]) {
    let factor = 1.0 / step;
    for (to, x) in entered.iter_mut().zip(x) {
        let steps = ((x - low) * factor).clamp(0.0, f32::from(u16::MAX));
        *to = round(steps) as u16;
    }
}

/// One row's output from the two sums of products, over high and over low bytes.
#[expect(
    clippy::cast_precision_loss,
    reason = "the nearest f32 is the definition"
)]
pub(crate) fn combine(high: i32, low: i32, scale: f32, bias: f32) -> f32 {
    (high as f32 * 256.0 + low as f32) * scale + bias
}

/// The matrix's output, written plainly.
pub(crate) fn plain(layer: &Dense, u: &[u16]) -> Vec<f32> {
    let rows = layer.weight.chunks_exact(layer.input.max(1));
    let mut outputs = Vec::with_capacity(layer.output);
    for (row, (scale, bias)) in rows.zip(layer.scale.iter().zip(&layer.bias)) {
        let (mut high, mut low) = (0, 0);
        for (weight, u) in row.iter().zip(u) {
            let [h, l] = u.to_be_bytes();
            high += i32::from(*weight) * i32::from(h);
            low += i32::from(*weight) * i32::from(l);
        }
        outputs.push(combine(high, low, *scale, *bias));
    }
    outputs
}

/// How many steps of the gated grid one step of the grid before it is.
pub(crate) fn ratios(from: &Grid, to: &Grid) -> Vec<f32> {
    let steps = from.scale.iter().zip(&to.scale);
    steps.map(|(from, to)| from / to).collect()
}

/// The factor of a centred byte, with 15 - [`GATE_SHIFT`] fractional bits.
#[expect(clippy::cast_possible_truncation, reason = "clamped just before")]
pub(crate) fn gate(x: f32, sixth: f32, ratio: f32) -> i16 {
    let open = (x + 3.0).clamp(0.0, 6.0) * sixth;
    let factor = open * ratio * f32::from(1u16 << (15 - GATE_SHIFT));
    round(factor.min(f32::from(i16::MAX))) as i16
}

/// `x * relu6(x + 3) * sixth`.
pub(crate) fn hard_swish(x: f32, sixth: f32) -> f32 {
    x * (x + 3.0).clamp(0.0, 6.0) * sixth
}
