//! One kernel a channel, 3x3 or 5x5.

use super::{Numbers, RELU, SWISH, finish, share};
use crate::kernels::lanes::Lanes;
use crate::layer::Finish;

/// Where a depthwise kernel reads and writes: one output row, or two below each other.
pub(in crate::kernels) struct Rows {
    /// The input rows under the kernel, from the leftmost padding on; with two output rows, one more.
    pub(in crate::kernels) from: [*const u8; 6],
    /// Bytes a pixel, input and output.
    pub(in crate::kernels) step: usize,
    /// Output pixels a row.
    pub(in crate::kernels) pixels: usize,
    /// Output rows, 1 or 2, one behind the other at `to`.
    pub(in crate::kernels) count: usize,
    pub(in crate::kernels) to: *mut u8,
    /// Units of channels.
    pub(in crate::kernels) units: usize,
    /// Room for [`quads_bytes`] bytes.
    pub(in crate::kernels) quads: *mut u8,
    /// Quads of each tap's place among the stored ones, and how many taps there are: [`places`] and [`taps`]. They are
    /// data on purpose: a compiler that knows them unrolls the taps, keeps quads that several taps share, and runs out
    /// of registers.
    pub(in crate::kernels) places: [usize; 8],
    pub(in crate::kernels) taps: usize,
}

/// How many stored quads behind a pixel's first each tap's quad is.
pub(in crate::kernels) const fn places(kernel: usize) -> [usize; 8] {
    if kernel == 3 {
        // One a column.
        [0, 1, 2, 0, 0, 0, 0, 0]
    } else {
        // Two a column: the upper four rows, then what is left of two columns.
        [0, 2, 4, 6, 8, 1, 5, 9]
    }
}

/// Output pixels whose interleaved input is held at once.
const CHUNK: usize = 28;

/// Bytes of interleaved input that a depthwise kernel keeps.
pub(in crate::kernels) const fn quads_bytes() -> usize {
    // The most: kernel 5, stride 2, two quads a column, of four units with 64 bytes each.
    ((CHUNK - 1) * 2 + 5) * 2 * 256
}

/// Quads a kernel has for each output row: 3x3 one a column; 5x5 one a column for four rows, and one for each two
/// columns of the fifth row.
pub(in crate::kernels) const fn taps(kernel: usize) -> usize {
    if kernel == 3 { 3 } else { 8 }
}

/// A depthwise convolution.
///
/// # Safety
/// As [`Lanes`]; `rows` and `numbers` must describe memory that is there, input rows one pixel further than the kernel
/// reaches.
#[inline(always)]
pub(in crate::kernels) unsafe fn depthwise<L: Lanes>(
    finish: Finish,
    (kernel, stride): (usize, usize),
    rows: &Rows,
    numbers: Numbers,
) {
    let relu = matches!(finish, Finish::Relu);
    match (kernel, stride, relu) {
        (3, 1, true) => depthwise_as::<L, 3, 1, RELU>(rows, numbers),
        (3, 1, false) => depthwise_as::<L, 3, 1, SWISH>(rows, numbers),
        (3, _, true) => depthwise_as::<L, 3, 2, RELU>(rows, numbers),
        (3, _, false) => depthwise_as::<L, 3, 2, SWISH>(rows, numbers),
        (_, 1, true) => depthwise_as::<L, 5, 1, RELU>(rows, numbers),
        (_, 1, false) => depthwise_as::<L, 5, 1, SWISH>(rows, numbers),
        (_, _, true) => depthwise_as::<L, 5, 2, RELU>(rows, numbers),
        (_, _, false) => depthwise_as::<L, 5, 2, SWISH>(rows, numbers),
    }
}

#[inline(always)]
unsafe fn depthwise_as<L: Lanes, const K: usize, const S: usize, const F: u8>(
    rows: &Rows,
    n: Numbers,
) {
    let mut unit = 0;
    while unit < rows.units {
        let wide = L::WIDE && rows.units - unit >= 4;
        let mut first = 0;
        while first < rows.pixels {
            let count = share(rows.pixels - first, CHUNK);
            if wide {
                wide_chunk::<L, K, S, F>(rows, n, unit, first, count);
            } else {
                chunk::<L, K, S, F>(rows, n, unit, first, count);
            }
            first += count;
        }
        unit += if wide { 4 } else { 1 };
    }
}

/// Rows of the quads at one column: the first four, and of a 5x5 kernel the last two with the same two a column on.
#[inline(always)]
unsafe fn columns<const K: usize>(rows: &Rows, at: usize) -> [[*const u8; 4]; 2] {
    let row = |i: usize| rows.from[i].add(at);
    let upper = [row(0), row(1), row(2), row(3)];
    if K == 3 {
        return [upper, upper];
    }
    let next = rows.step;
    [upper, [row(4), row(5), row(4).add(next), row(5).add(next)]]
}

#[inline(always)]
unsafe fn chunk<L: Lanes, const K: usize, const S: usize, const F: u8>(
    rows: &Rows,
    n: Numbers,
    unit: usize,
    first: usize,
    count: usize,
) {
    let kept = if K == 3 { 1 } else { 2 };
    for column in 0..(count - 1) * S + K {
        let at = (first * S + column) * rows.step + unit * 16;
        let quads = columns::<K>(rows, at);
        for (index, quad) in quads.into_iter().enumerate().take(kept) {
            let to = rows.quads.add((column * kept + index) * L::QUADS);
            L::store_quads(to, L::interleave(quad));
        }
    }
    for row in 0..rows.count {
        let mut pixel = 0;
        let place = (unit, row, first);
        macro_rules! take {
            ($pixels:literal) => {
                while L::PIXELS >= $pixels && count - pixel >= $pixels {
                    pixels::<L, K, S, F, $pixels>(rows, n, place, pixel);
                    pixel += $pixels;
                }
            };
        }
        take!(8);
        take!(6);
        take!(4);
        take!(3);
        take!(2);
        take!(1);
    }
}

/// `N` pixels of one unit.
#[inline(always)]
unsafe fn pixels<L: Lanes, const K: usize, const S: usize, const F: u8, const N: usize>(
    rows: &Rows,
    n: Numbers,
    (unit, row, first): (usize, usize, usize),
    pixel: usize,
) {
    let kept = if K == 3 { 1 } else { 2 };
    let weights = n.weights.add((unit * 2 + row) * rows.taps * L::WEIGHTS);
    let quads = rows.quads.add(pixel * S * kept * L::QUADS);
    let mut sums = [L::int(n.bias.add(unit * 16)); N];
    for (tap, place) in rows.places.iter().enumerate().take(rows.taps) {
        let w = L::weights(weights.add(tap * L::WEIGHTS));
        let quads = quads.add(place * L::QUADS);
        for (i, sum) in sums.iter_mut().enumerate() {
            let a = L::load_quads(quads.add(i * S * kept * L::QUADS));
            *sum = L::dot(*sum, a, w);
        }
    }
    for sum in &mut sums {
        *sum = finish::<L, F>(*sum, n, unit, rows.to);
    }
    let zero = n.zero.add(unit * 32);
    let to = |i: usize| {
        rows.to
            .add((row * rows.pixels + first + pixel + i) * rows.step + unit * 16)
    };
    let mut i = 0;
    while i + 4 <= N {
        let four = [sums[i], sums[i + 1], sums[i + 2], sums[i + 3]];
        L::store_pixels(four, zero, [to(i), to(i + 1), to(i + 2), to(i + 3)]);
        i += 4;
    }
    while i < N {
        L::store_bytes([sums[i]], zero, to(i));
        i += 1;
    }
}

#[inline(always)]
unsafe fn wide_chunk<L: Lanes, const K: usize, const S: usize, const F: u8>(
    rows: &Rows,
    n: Numbers,
    unit: usize,
    first: usize,
    count: usize,
) {
    let kept = if K == 3 { 1 } else { 2 };
    for column in 0..(count - 1) * S + K {
        let at = (first * S + column) * rows.step + unit * 16;
        let quads = columns::<K>(rows, at);
        for (index, quad) in quads.into_iter().enumerate().take(kept) {
            let to = rows.quads.add((column * kept + index) * 4 * L::QUADS);
            for (j, quads) in L::interleave_wide(quad).into_iter().enumerate() {
                L::store_quads(to.add(j * L::QUADS), quads);
            }
        }
    }
    for row in 0..rows.count {
        let mut pixel = 0;
        let place = (unit, row, first);
        macro_rules! take {
            ($pixels:literal) => {
                while count - pixel >= $pixels {
                    wide_pixels::<L, K, S, F, $pixels>(rows, n, place, pixel);
                    pixel += $pixels;
                }
            };
        }
        take!(7);
        take!(4);
        take!(2);
        take!(1);
    }
}

/// `N` pixels of four units.
#[inline(always)]
unsafe fn wide_pixels<L: Lanes, const K: usize, const S: usize, const F: u8, const N: usize>(
    rows: &Rows,
    n: Numbers,
    (unit, row, first): (usize, usize, usize),
    pixel: usize,
) {
    let kept = if K == 3 { 1 } else { 2 };
    let weights = n.weights.add((unit * 2 + row * 4) * rows.taps * L::WEIGHTS);
    let quads = rows.quads.add(pixel * S * kept * 4 * L::QUADS);
    let mut sums: [[L::Int; 4]; N] =
        [std::array::from_fn(|j| L::int(n.bias.add((unit + j) * 16))); N];
    for (tap, place) in rows.places.iter().enumerate().take(rows.taps) {
        let weights = weights.add(tap * 4 * L::WEIGHTS);
        let quads = quads.add(place * 4 * L::QUADS);
        for j in 0..4 {
            let w = L::weights(weights.add(j * L::WEIGHTS));
            for (i, sums) in sums.iter_mut().enumerate() {
                let a = L::load_quads(quads.add((i * S * kept * 4 + j) * L::QUADS));
                sums[j] = L::dot(sums[j], a, w);
            }
        }
    }
    let zero = n.zero.add(unit * 32);
    for (i, sums) in sums.into_iter().enumerate() {
        let mut rounded = sums;
        for (j, sum) in rounded.iter_mut().enumerate() {
            *sum = finish::<L, F>(*sum, n, unit + j, rows.to);
        }
        let pixel = row * rows.pixels + first + pixel + i;
        L::store_wide(rounded, zero, rows.to.add(pixel * rows.step + unit * 16));
    }
}
