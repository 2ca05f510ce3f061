//! The loops of a dense layer, in safe code, compiled once for each instruction set as those of `portable`.
//!
//! Each sum runs in one order, multiplying, then adding, so a head trains to the same bits on every CPU.

#![allow(
    clippy::inline_always,
    reason = "each caller compiles its own copy for its instruction set"
)]

#[cfg(target_arch = "x86_64")]
pub(super) mod x86;

use super::LANES;

/// Rows, or features, whose sums are taken at a time: as many registers as every CPU has.
pub(super) const TILE: usize = 8;

/// The two inner loops, over one strip of [`LANES`] classes: in safe code, or with the intrinsics of a CPU.
pub(super) trait Tiles {
    /// `sums[r][lane] += x[r][f] * packed[f][lane]` for each `f` in order; rows as long as `packed`.
    fn forward(x: [&[f32]; TILE], packed: &[[f32; LANES]], sums: &mut [[f32; LANES]; TILE]);

    /// `sums[k][lane] = x[i][first + k] * packed[i][lane]`, added up for each row `i` in order; rows of `features`, of
    /// which `first + TILE` are there.
    fn gradient(
        x: &[f32],
        features: usize,
        first: usize,
        packed: &[[f32; LANES]],
    ) -> [[f32; LANES]; TILE];
}

/// What is right.
pub(super) struct Portable;

impl Tiles for Portable {
    #[inline(always)]
    fn forward(x: [&[f32]; TILE], packed: &[[f32; LANES]], sums: &mut [[f32; LANES]; TILE]) {
        forward_tile(x, packed, sums);
    }

    #[inline(always)]
    fn gradient(
        x: &[f32],
        features: usize,
        first: usize,
        packed: &[[f32; LANES]],
    ) -> [[f32; LANES]; TILE] {
        gradient_tile(x, features, first, packed)
    }
}

/// See [`super::dense`].
#[inline(always)]
pub(super) fn forward<T: Tiles>(x: &[f32], weight: &[f32], bias: &[f32], out: &mut [f32]) {
    let classes = bias.len();
    let features = weight.len() / classes;
    let mut packed = vec![[0.0; LANES]; features];
    let mut first = 0;
    while first < classes {
        let width = LANES.min(classes - first);
        for (to, row) in packed.iter_mut().zip(weight.chunks_exact(classes)) {
            to[..width].copy_from_slice(&row[first..first + width]);
        }
        let mut start = [0.0; LANES];
        start[..width].copy_from_slice(&bias[first..first + width]);
        let tiles = x.chunks(features * TILE);
        for (x, out) in tiles.zip(out.chunks_mut(classes * TILE)) {
            let mut sums = [start; TILE];
            if let Some(x) = rows::<TILE>(x, features) {
                T::forward(x, &packed, &mut sums);
            } else {
                for (row, sums) in x.chunks_exact(features).zip(&mut sums) {
                    let mut one = [*sums];
                    forward_tile([row], &packed, &mut one);
                    [*sums] = one;
                }
            }
            for (row, sums) in out.chunks_exact_mut(classes).zip(&sums) {
                row[first..first + width].copy_from_slice(&sums[..width]);
            }
        }
        first += LANES;
    }
}

/// The rows of a tile, if it is whole.
#[inline(always)]
fn rows<const N: usize>(x: &[f32], features: usize) -> Option<[&[f32]; N]> {
    let mut rows: [&[f32]; N] = [&[]; N];
    if x.len() != features * N {
        return None;
    }
    for (to, row) in rows.iter_mut().zip(x.chunks_exact(features)) {
        *to = row;
    }
    Some(rows)
}

#[inline(always)]
fn forward_tile<const N: usize>(
    x: [&[f32]; N],
    packed: &[[f32; LANES]],
    sums: &mut [[f32; LANES]; N],
) {
    let mut held = *sums;
    let x = x.map(|row| &row[..packed.len()]);
    for (feature, weights) in packed.iter().enumerate() {
        for (row, held) in x.iter().zip(&mut held) {
            let value = row[feature];
            for lane in 0..LANES {
                held[lane] += value * weights[lane];
            }
        }
    }
    *sums = held;
}

/// See [`super::dense_gradient`].
#[inline(always)]
pub(super) fn gradient<T: Tiles>(x: &[f32], residuals: &[f32], classes: usize, out: &mut [f32]) {
    let features = out.len() / classes;
    let mut packed = vec![[0.0; LANES]; residuals.len() / classes];
    let mut first = 0;
    while first < classes {
        let width = LANES.min(classes - first);
        for (to, row) in packed.iter_mut().zip(residuals.chunks_exact(classes)) {
            to[..width].copy_from_slice(&row[first..first + width]);
        }
        let mut feature = 0;
        for out in out.chunks_mut(classes * TILE) {
            let sums = if out.len() == classes * TILE {
                T::gradient(x, features, feature, &packed)
            } else {
                let mut sums = [[0.0; LANES]; TILE];
                for (at, sums) in sums.iter_mut().enumerate().take(out.len() / classes) {
                    [*sums] = gradient_tile::<1>(x, features, feature + at, &packed);
                }
                sums
            };
            for (row, sums) in out.chunks_exact_mut(classes).zip(&sums) {
                row[first..first + width].copy_from_slice(&sums[..width]);
            }
            feature += TILE;
        }
        first += LANES;
    }
}

#[inline(always)]
fn gradient_tile<const N: usize>(
    x: &[f32],
    features: usize,
    first: usize,
    packed: &[[f32; LANES]],
) -> [[f32; LANES]; N] {
    let mut sums = [[0.0; LANES]; N];
    for (row, residuals) in x.chunks_exact(features).zip(packed) {
        let row = &row[first..first + N];
        for at in 0..N {
            for lane in 0..LANES {
                sums[at][lane] += row[at] * residuals[lane];
            }
        }
    }
    sums
}

/// See [`super::exp_all`].
#[inline(always)]
pub(super) fn exp_all(values: &mut [f32], shift: f32) {
    for value in values {
        *value = exp(*value - shift);
    }
}

/// e^x for x up to 0, right to about 2e-7 of it; NaN stays NaN, and below -87 it is 0.
///
/// # Source
/// Moshier's Cephes library, `expf`: reduction by ln 2 in two parts and a polynomial of degree 5.
#[inline(always)]
fn exp(x: f32) -> f32 {
    /// Adding it rounds to an integer.
    const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23
    let whole = (x * std::f32::consts::LOG2_E + ROUND) - ROUND;
    let rest = x - whole * 0.693_359_4;
    let rest = rest - whole * -2.121_944_4e-4;
    let mut p = 1.987_569_1e-4;
    for coefficient in [
        1.398_199_9e-3,
        8.333_452e-3,
        4.166_579_6e-2,
        1.666_666_5e-1,
        0.500_000_1,
    ] {
        p = p * rest + coefficient;
    }
    let mantissa = p * (rest * rest) + rest + 1.0;
    #[expect(
        clippy::cast_possible_truncation,
        reason = "a small integer where it is used, and saturating"
    )]
    let exponent = (whole as i32).clamp(-126, 0);
    #[expect(clippy::cast_sign_loss, reason = "1 to 127")]
    let scale = f32::from_bits(((exponent + 127) as u32) << 23);
    let result = mantissa * scale;
    if x < -87.0 { 0.0 } else { result }
}
