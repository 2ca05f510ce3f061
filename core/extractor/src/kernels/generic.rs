//! The two convolution kernels, once for every instruction set.
//!
//! Pointwise: a tile of pixels times units keeps its sums in registers while it runs down the patch; weights are read
//! once a tile, activations four bytes at a time. Depthwise: the rows under the kernel are interleaved, so that a quad
//! holds four taps of one channel; two output rows share what was interleaved.

use super::lanes::{Gating, Lanes};
use crate::layer::Finish;

/// A packed layer's numbers, 16 a unit; see [`pack`](super::pack).
#[derive(Clone, Copy)]
pub(super) struct Numbers {
    pub(super) weights: *const u8,
    pub(super) bias: *const i32,
    pub(super) factor: *const f32,
    pub(super) low: *const f32,
    pub(super) high: *const f32,
    pub(super) residual: *const f32,
    /// 32 i16 a unit.
    pub(super) zero: *const i16,
}

/// Where a pointwise kernel reads and writes; all for one run of pixels.
pub(super) struct Run {
    /// Start of each segment of the first pixel's patch.
    pub(super) from: [*const u8; 3],
    /// Segments of a patch: 1, or 3 for the stem.
    pub(super) segments: usize,
    /// Quads a segment.
    pub(super) quads: usize,
    /// Bytes from one pixel's patch to the next.
    pub(super) step: usize,
    pub(super) pixels: usize,
    /// Units of output channels.
    pub(super) units: usize,
    /// Bytes go here, `16 * units` a pixel; so the residual is laid out.
    pub(super) to: *mut u8,
    pub(super) residual: *const u8,
    /// f32 sums over pixels (`Pool`), or i32 sums of products (`Raw`, `16 * units` a pixel).
    pub(super) sums: *mut f32,
    pub(super) raw: *mut i32,
    /// Room for [`TILE_ROWS`] patches where activations are widened.
    pub(super) wide: *mut i16,
}

/// Largest number of rows in any tile.
pub(super) const TILE_ROWS: usize = 12;

const RELU: u8 = Finish::Relu as u8;
const SWISH: u8 = Finish::HardSwish as u8;
const LINEAR: u8 = Finish::Linear as u8;
const RESIDUAL: u8 = Finish::Residual as u8;
const POOL: u8 = Finish::Pool as u8;
const RAW: u8 = Finish::Raw as u8;

/// Units that a tile is wide, from `unit` on: threes, and what is left split evenly.
pub(super) const fn tile_units(units: usize, unit: usize) -> usize {
    let left = units - unit;
    match left {
        1..=3 => left,
        4 => 2,
        _ => 3,
    }
}

/// A convolution over all channels.
///
/// # Safety
/// As [`Lanes`]; `run` and `numbers` must describe memory that is there, read up to the next multiple of four bytes
/// behind each segment.
#[inline(always)]
pub(super) unsafe fn pointwise<L: Lanes>(finish: Finish, run: &Run, numbers: Numbers) {
    match finish {
        Finish::Relu => pointwise_as::<L, RELU>(run, numbers),
        Finish::HardSwish => pointwise_as::<L, SWISH>(run, numbers),
        Finish::Linear => pointwise_as::<L, LINEAR>(run, numbers),
        Finish::Residual => pointwise_as::<L, RESIDUAL>(run, numbers),
        Finish::Pool => pointwise_as::<L, POOL>(run, numbers),
        Finish::Raw => pointwise_as::<L, RAW>(run, numbers),
    }
}

#[inline(always)]
unsafe fn pointwise_as<L: Lanes, const F: u8>(run: &Run, numbers: Numbers) {
    if L::WIDENS {
        // A tile's patches are widened once and used for all units.
        let mut pixel = 0;
        while pixel < run.pixels {
            let count = share(run.pixels - pixel, L::ROWS[0]);
            widen(run, pixel, count);
            for unit in 0..run.units {
                tile::<L, F>(run, numbers, (unit, 1), (pixel, count));
            }
            pixel += count;
        }
        return;
    }
    let mut unit = 0;
    while unit < run.units {
        let width = if L::ROWS[2] == 0 {
            1
        } else {
            tile_units(run.units, unit)
        };
        let rows = L::ROWS[width - 1];
        let mut pixel = 0;
        while pixel < run.pixels {
            let count = share(run.pixels - pixel, rows);
            tile::<L, F>(run, numbers, (unit, width), (pixel, count));
            pixel += count;
        }
        unit += width;
    }
}

/// How many of `left` pixels the next tile takes, at most `rows`, so that tiles come out even.
#[inline(always)]
fn share(left: usize, rows: usize) -> usize {
    left.div_ceil(left.div_ceil(rows))
}

/// Copies some patches to `run.wide` as i16, segment behind segment.
#[inline(always)]
unsafe fn widen(run: &Run, pixel: usize, count: usize) {
    let length = run.quads * 4;
    for row in 0..count {
        for segment in 0..run.segments {
            let from = run.from[segment].add((pixel + row) * run.step);
            let to = run.wide.add((row * run.segments + segment) * length);
            for i in 0..length {
                *to.add(i) = i16::from(*from.add(i));
            }
        }
    }
}

#[inline(always)]
unsafe fn tile<L: Lanes, const F: u8>(
    run: &Run,
    n: Numbers,
    (unit, width): (usize, usize),
    (pixel, count): (usize, usize),
) {
    macro_rules! rows {
        ($width:literal: $($rows:literal)*) => {
            match count {
                $($rows => tile_of::<L, F, $rows, $width>(run, n, unit, pixel),)*
                _ => unreachable!("no tile has so many rows"),
            }
        };
    }
    match width {
        1 => rows!(1: 1 2 3 4 5 6 7 8 9 10 11 12),
        2 => rows!(2: 1 2 3 4 5 6 7 8 9 10 11 12),
        _ => rows!(3: 1 2 3 4 5 6 7 8),
    }
}

/// `ROWS` pixels times `WIDTH` units, all of their sums in registers.
#[inline(always)]
unsafe fn tile_of<L: Lanes, const F: u8, const ROWS: usize, const WIDTH: usize>(
    run: &Run,
    n: Numbers,
    unit: usize,
    pixel: usize,
) {
    if ROWS > L::ROWS[WIDTH - 1] {
        // Never asked for; the check lets the compiler leave such tiles out.
        return;
    }
    let mut sums: [[L::Int; WIDTH]; ROWS] =
        [std::array::from_fn(|j| L::int(n.bias.add((unit + j) * 16))); ROWS];
    let unit_bytes = run.segments * run.quads * L::WEIGHTS;
    let weights = n.weights.add(unit * unit_bytes);
    let mut done = 0;
    for segment in 0..run.segments {
        let (from, step): (*const L::Act, usize) = if L::WIDENS {
            let length = run.quads * 4;
            (run.wide.add(segment * length).cast(), run.segments * length)
        } else {
            (run.from[segment].add(pixel * run.step).cast(), run.step)
        };
        for quad in 0..run.quads {
            let at = weights.add((done + quad) * L::WEIGHTS);
            let w: [L::Weights; WIDTH] =
                std::array::from_fn(|j| L::weights(at.add(j * unit_bytes)));
            for (row, sums) in sums.iter_mut().enumerate() {
                let a = L::spread(from.add(row * step + quad * 4));
                for (sum, w) in sums.iter_mut().zip(w) {
                    *sum = L::dot(*sum, a, w);
                }
            }
        }
        done += run.quads;
    }
    let stride = run.units * 16;
    let at = |row: usize| (pixel + row) * stride + unit * 16;
    match F {
        RAW => {
            for (row, sums) in sums.into_iter().enumerate() {
                for (j, sum) in sums.into_iter().enumerate() {
                    L::store_int(run.raw.add(at(row) + j * 16), sum);
                }
            }
            return;
        }
        POOL => {
            for sums in sums {
                for (j, sum) in sums.into_iter().enumerate() {
                    let to = run.sums.add((unit + j) * 16);
                    let value = swish::<L>(sum, n, unit + j);
                    L::store_float(to, L::add(L::float(to), value));
                }
            }
            return;
        }
        _ => {}
    }
    for (row, sums) in sums.iter_mut().enumerate() {
        for (j, sum) in sums.iter_mut().enumerate() {
            let byte = if F == RESIDUAL {
                run.residual.add(at(row) + j * 16)
            } else {
                run.to
            };
            *sum = finish::<L, F>(*sum, n, unit + j, byte);
        }
    }
    let zero = n.zero.add(unit * 32);
    let to = |row: usize| run.to.add(at(row));
    let mut row = 0;
    while WIDTH == 1 && row + 4 <= ROWS {
        let four = [
            sums[row][0],
            sums[row + 1][0],
            sums[row + 2][0],
            sums[row + 3][0],
        ];
        L::store_pixels(four, zero, [to(row), to(row + 1), to(row + 2), to(row + 3)]);
        row += 4;
    }
    while row < ROWS {
        L::store_bytes(sums[row], zero, to(row));
        row += 1;
    }
}

/// See [`layer`](crate::layer).
#[inline(always)]
unsafe fn swish<L: Lanes>(sum: L::Int, n: Numbers, unit: usize) -> L::Float {
    let a = L::to_float(sum);
    let t = L::add(a, L::float(n.low.add(unit * 16)));
    let t = L::min(L::max(t, L::zero()), L::float(n.high.add(unit * 16)));
    L::mul(a, t)
}

/// See [`layer`](crate::layer); `byte` is where the residual stands.
#[inline(always)]
unsafe fn finish<L: Lanes, const F: u8>(
    sum: L::Int,
    n: Numbers,
    unit: usize,
    byte: *const u8,
) -> L::Int {
    let factor = L::float(n.factor.add(unit * 16));
    let value = if F == SWISH {
        swish::<L>(sum, n, unit)
    } else {
        L::to_float(sum)
    };
    let mut value = L::mul(value, factor);
    if F == RESIDUAL {
        let added = L::mul(L::bytes(byte), L::float(n.residual.add(unit * 16)));
        value = L::add(value, added);
    }
    L::round(value)
}

/// Where a depthwise kernel reads and writes: one output row, or two below each other.
pub(super) struct Rows {
    /// The input rows under the kernel, from the leftmost padding on; with two output rows, one more.
    pub(super) from: [*const u8; 6],
    /// Bytes a pixel, input and output.
    pub(super) step: usize,
    /// Output pixels a row.
    pub(super) pixels: usize,
    /// Output rows, 1 or 2, one behind the other at `to`.
    pub(super) count: usize,
    pub(super) to: *mut u8,
    /// Units of channels.
    pub(super) units: usize,
    /// Room for [`quads_bytes`] bytes.
    pub(super) quads: *mut u8,
    /// Quads of each tap's place among the stored ones, and how many taps there are: [`places`] and [`taps`]. They are
    /// data on purpose: a compiler that knows them unrolls the taps, keeps quads that several taps share, and runs out
    /// of registers.
    pub(super) places: [usize; 8],
    pub(super) taps: usize,
}

/// How many stored quads behind a pixel's first each tap's quad is.
pub(super) const fn places(kernel: usize) -> [usize; 8] {
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
pub(super) const fn quads_bytes() -> usize {
    // The most: kernel 5, stride 2, two quads a column, of four units with 64 bytes each.
    ((CHUNK - 1) * 2 + 5) * 2 * 256
}

/// Quads a kernel has for each output row: 3x3 one a column; 5x5 one a column for four rows, and one for each two
/// columns of the fifth row.
pub(super) const fn taps(kernel: usize) -> usize {
    if kernel == 3 { 3 } else { 8 }
}

/// A depthwise convolution.
///
/// # Safety
/// As [`Lanes`]; `rows` and `numbers` must describe memory that is there, input rows one pixel further than the kernel
/// reaches.
#[inline(always)]
pub(super) unsafe fn depthwise<L: Lanes>(
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

/// Pixels whose bytes add up within 16 bits.
const SUMMED: usize = 256;

/// Adds each channel of each pixel to its sum.
///
/// # Safety
/// As [`Lanes`]; `plane` holds whole pixels of `sums.len()` channels, a multiple of 16.
#[inline(always)]
pub(super) unsafe fn sums<L: Lanes>(plane: &[u8], sums: &mut [u32]) {
    let step = sums.len();
    for pixels in plane.chunks(SUMMED * step) {
        let mut channel = 0;
        while channel < step {
            let channels = L::SPAN.min(step - channel);
            let from = pixels.as_ptr().add(channel);
            let to = sums.as_mut_ptr().add(channel);
            L::sums(from, pixels.len() / step, step, to, channels);
            channel += channels;
        }
    }
}

/// Gates each channel of each pixel.
///
/// # Safety
/// As [`Lanes`]; `plane` holds whole pixels of `step` channels, a multiple of 16, and `numbers` as many of each.
#[inline(always)]
pub(super) unsafe fn gate<L: Lanes>(plane: &mut [u8], step: usize, numbers: Gating) {
    let mut channel = 0;
    while channel < step {
        let channels = L::SPAN.min(step - channel);
        let at = plane.as_mut_ptr().add(channel);
        let numbers = numbers.at_unit(channel / 16);
        L::gate(at, plane.len() / step, step, numbers, channels);
        channel += channels;
    }
}
