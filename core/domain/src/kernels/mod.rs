//! Inner loops over the values of many updates. This folder is the only place of the crate with `unsafe`.
//!
//! `portable` is what is right, in safe code. Two kinds of faster form exist, and both give the same bits: the loops of
//! `portable` compiled once more for a CPU's wider registers (the compiler neither reorders nor fuses their operations),
//! and, for the one loop where it pays, [`add_weighted`], the same written with intrinsics in `x86`. On aarch64 the
//! portable loops are NEON code already, since every such CPU has it.
//!
//! fp16 values come as two byte planes, as a frame holds them: the high bytes of a block's values, then the low ones.

#![allow(unsafe_code, reason = "kernels; each block says why it may be entered")]

mod dense;
mod isa;
mod network;
mod portable;
#[cfg(target_arch = "x86_64")]
mod x86;

use dense::Portable;
use half::f16;

pub use isa::Isa;
pub use network::Network;
pub use portable::to_f32;

/// Lanes in which sums are taken, so that their order is the same on every CPU.
pub const LANES: usize = 16;
/// Rows that [`squared_distances`] takes at a time; more are taken in turn.
pub const TILE: usize = 4;

/// The fp16 values of one block of one update.
#[derive(Clone, Copy, Debug)]
pub struct Planes<'a> {
    /// The byte with sign and exponent of each value.
    pub high: &'a [u8],
    /// The other byte of each value; as many.
    pub low: &'a [u8],
}

impl Planes<'_> {
    /// Some of the values.
    ///
    /// # Panics
    /// If the range goes beyond them.
    #[must_use]
    pub fn part(&self, values: std::ops::Range<usize>) -> Self {
        Self {
            high: &self.high[values.clone()],
            low: &self.low[values],
        }
    }
}

/// What [`measure`] found.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Measure {
    /// The largest bit pattern without its sign: values are finite where it is below `0x7c00`, and the largest
    /// magnitude is that of this pattern.
    pub largest: u16,
    /// Sum of the squares, not meaningful where a value is not finite.
    pub squares: f64,
}

/// Compiles a portable loop for wider registers too, and calls the form that the CPU has.
macro_rules! for_each_isa {
    ($isa:expr, $path:path, ($($name:ident: $type:ty),*) $(-> $returns:ty)?) => {{
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2,fma,f16c")]
        fn avx2($($name: $type),*) $(-> $returns)? {
            $path($($name),*)
        }
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
        fn avx512($($name: $type),*) $(-> $returns)? {
            $path($($name),*)
        }
        match $isa {
            // SAFETY: an `Isa` other than the portable one is only made after the CPU was asked for it.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => unsafe { avx2($($name),*) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => unsafe { avx512($($name),*) },
            _ => $path($($name),*),
        }
    }};
}

/// `acc[i] += weights[0] * rows[0][i] + weights[1] * rows[1][i] + ...`, one row after the other, in f64.
///
/// The same bits on every CPU: with weights that are integers below 2^42 each product is exact, so that a fused
/// multiply-add rounds as a multiplication and an addition do.
///
/// - `acc`: shape `[d]`; each row has `d` values.
/// - `weights`: one a row.
pub fn add_weighted(isa: Isa, acc: &mut [f64], weights: &[f64], rows: &[Planes<'_>]) {
    assert_eq!(weights.len(), rows.len(), "a weight for each row");
    for row in rows {
        assert_eq!(row.high.len(), acc.len(), "row and accumulator differ");
        assert_eq!(row.low.len(), acc.len(), "row and accumulator differ");
    }
    let done = match isa {
        // SAFETY: the CPU was asked for the instruction set before this `Isa` was made, and the lengths are equal.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => unsafe { x86::add_weighted_avx512(acc, weights, rows) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => unsafe { x86::add_weighted_avx2(acc, weights, rows) },
        _ => 0,
    };
    for (weight, row) in weights.iter().zip(rows) {
        let rest = row.part(done..row.high.len());
        portable::add_scaled(&mut acc[done..], *weight, rest);
    }
}

/// Largest magnitude and sum of squares of a block, the squares exact and summed in [`LANES`] lanes.
pub fn measure(isa: Isa, planes: Planes<'_>) -> Measure {
    assert_eq!(planes.high.len(), planes.low.len(), "planes differ");
    for_each_isa!(isa, portable::measure, (planes: Planes<'_>) -> Measure)
}

/// Puts the two bytes of each value together.
pub fn join(isa: Isa, planes: Planes<'_>, values: &mut [f16]) {
    assert_eq!(planes.high.len(), values.len(), "planes and values differ");
    assert_eq!(planes.low.len(), values.len(), "planes and values differ");
    for_each_isa!(isa, portable::join, (planes: Planes<'_>, values: &mut [f16]));
}

/// Takes the bytes of each value apart; the other way round of [`join`].
pub fn split(values: &[f16], high: &mut [u8], low: &mut [u8]) {
    assert_eq!(values.len(), high.len(), "planes and values differ");
    assert_eq!(values.len(), low.len(), "planes and values differ");
    for ((value, high), low) in values.iter().zip(high).zip(low) {
        [*high, *low] = value.to_be_bytes();
    }
}

/// Finite fp16 values as integers in the same order, -0 before 0.
pub fn to_keys(isa: Isa, values: &[f16], keys: &mut [i16]) {
    assert_eq!(values.len(), keys.len(), "values and keys differ");
    for_each_isa!(isa, portable::to_keys, (values: &[f16], keys: &mut [i16]));
}

/// Sorts each column of `rows`, shape `[network.len(), width]`, row after row in one slice.
pub fn sort_columns(isa: Isa, network: &Network, rows: &mut [i16], width: usize) {
    assert_eq!(rows.len(), network.len() * width, "rows and width differ");
    for_each_isa!(
        isa,
        portable::sort_columns,
        (network: &Network, rows: &mut [i16], width: usize)
    );
}

/// Sum of the rows `first..last` of keys in each column, as f64: exact, since each is a multiple of 2^-24.
///
/// - `rows`: keys as of [`to_keys`], shape `[n, sums.len()]`.
pub fn sum_keys(isa: Isa, rows: &[i16], sums: &mut [f64]) {
    assert!(
        !sums.is_empty() && rows.len().is_multiple_of(sums.len()),
        "rows and sums differ"
    );
    for_each_isa!(isa, portable::sum_keys, (rows: &[i16], sums: &mut [f64]));
}

/// Squared distances between each two rows of two groups, differences and squares in f32 in [`LANES`] lanes, the lanes
/// added up in f64: right to about 1e-6 for up to a few thousand values.
///
/// - `a`, `b`: rows of one length, a multiple of [`LANES`]; where there are fewer, repeat one.
/// - returns: `[i][j]` is that of `a[i]` and `b[j]`.
pub fn squared_distances(isa: Isa, a: [&[f32]; TILE], b: [&[f32]; TILE]) -> [[f64; TILE]; TILE] {
    let len = a[0].len();
    assert!(len.is_multiple_of(LANES), "rows are padded");
    assert!(
        a.iter().chain(&b).all(|row| row.len() == len),
        "rows differ in length"
    );
    if isa.has_many_registers() {
        return for_each_isa!(
            isa,
            portable::distances,
            (a: [&[f32]; TILE], b: [&[f32]; TILE]) -> [[f64; TILE]; TILE]
        );
    }
    // Sixteen sums of sixteen lanes do not fit sixteen registers; four do.
    let mut all = [[0.0; TILE]; TILE];
    for i in [0, 2] {
        for j in [0, 2] {
            let (a, b) = ([a[i], a[i + 1]], [b[j], b[j + 1]]);
            let four = match isa {
                // SAFETY: the CPU was asked for the instruction set before this `Isa` was made, and the lengths are
                // equal and whole.
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 => portable::add_up_all(unsafe { x86::distances_avx2(a, b) }),
                _ => portable::distances(a, b),
            };
            for (row, from) in all[i..].iter_mut().zip(four) {
                row[j..j + 2].copy_from_slice(&from);
            }
        }
    }
    all
}

/// Squared distance of a block's values from a point, in f64 in [`LANES`] lanes.
///
/// - `values`, `center`: shape `[d]`, the same unit.
pub fn squared_distance_to(isa: Isa, values: &[f16], center: &[f64]) -> f64 {
    assert_eq!(values.len(), center.len(), "values and center differ");
    for_each_isa!(isa, portable::distance_to, (values: &[f16], center: &[f64]) -> f64)
}

/// A dense layer: `out[i][c] = bias[c] + x[i][0] * weight[0][c] + x[i][1] * weight[1][c] + ...`, in this order. The same
/// bits on every CPU.
///
/// - `x`: shape `[n, d]`; `weight`: `[d, classes]`; `bias`: `[classes]`; `out`: `[n, classes]`, overwritten.
pub fn dense(isa: Isa, x: &[f32], weight: &[f32], bias: &[f32], out: &mut [f32]) {
    let classes = bias.len();
    assert!(
        classes > 0 && !weight.is_empty() && weight.len().is_multiple_of(classes),
        "weight and bias differ"
    );
    let features = weight.len() / classes;
    assert_eq!(x.len() * classes, out.len() * features, "x and out differ");
    #[cfg(target_arch = "x86_64")]
    if isa == Isa::Avx512 {
        return dense::forward::<dense::x86::Dense512>(x, weight, bias, out);
    }
    for_each_isa!(
        isa,
        dense::forward::<Portable>,
        (x: &[f32], weight: &[f32], bias: &[f32], out: &mut [f32])
    );
}

/// The gradient of a dense layer's weights: `out[f][c] = x[0][f] * residuals[0][c] + x[1][f] * residuals[1][c] + ...`, in
/// this order. The same bits on every CPU.
///
/// - `x`: shape `[n, d]`; `residuals`: `[n, classes]`; `out`: `[d, classes]`, overwritten.
pub fn dense_gradient(isa: Isa, x: &[f32], residuals: &[f32], classes: usize, out: &mut [f32]) {
    assert!(
        classes > 0 && !out.is_empty() && out.len().is_multiple_of(classes),
        "gradient and classes differ"
    );
    let features = out.len() / classes;
    assert_eq!(
        x.len() * classes,
        residuals.len() * features,
        "x and residuals differ"
    );
    #[cfg(target_arch = "x86_64")]
    if isa == Isa::Avx512 {
        return dense::gradient::<dense::x86::Dense512>(x, residuals, classes, out);
    }
    for_each_isa!(
        isa,
        dense::gradient::<Portable>,
        (x: &[f32], residuals: &[f32], classes: usize, out: &mut [f32])
    );
}

/// `values[i] = exp(values[i] - shift)` for differences up to 0, right to about 2e-7 of it. The same bits on every CPU.
pub fn exp_all(isa: Isa, values: &mut [f32], shift: f32) {
    for_each_isa!(isa, dense::exp_all, (values: &mut [f32], shift: f32));
}

#[cfg(test)]
mod tests;
