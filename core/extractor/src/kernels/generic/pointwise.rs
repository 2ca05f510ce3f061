//! A convolution over all channels: 1x1, or the stem's.

use super::{LINEAR, Numbers, POOL, RAW, RELU, RESIDUAL, SWISH, finish, share, swish};
use crate::kernels::lanes::Lanes;
use crate::layer::Finish;

/// Where a pointwise kernel reads and writes; all for one run of pixels.
pub(in crate::kernels) struct Run {
    /// Start of each segment of the first pixel's patch.
    pub(in crate::kernels) from: [*const u8; 3],
    /// Segments of a patch: 1, or 3 for the stem.
    pub(in crate::kernels) segments: usize,
    /// Quads a segment.
    pub(in crate::kernels) quads: usize,
    /// Bytes from one pixel's patch to the next.
    pub(in crate::kernels) step: usize,
    pub(in crate::kernels) pixels: usize,
    /// Units of output channels.
    pub(in crate::kernels) units: usize,
    /// Bytes go here, `16 * units` a pixel; so the residual is laid out.
    pub(in crate::kernels) to: *mut u8,
    pub(in crate::kernels) residual: *const u8,
    /// f32 sums over pixels (`Pool`), or i32 sums of products (`Raw`, `16 * units` a pixel).
    pub(in crate::kernels) sums: *mut f32,
    pub(in crate::kernels) raw: *mut i32,
    /// Room for [`TILE_ROWS`] patches where activations are widened.
    pub(in crate::kernels) wide: *mut i16,
}

/// Largest number of rows in any tile.
pub(in crate::kernels) const TILE_ROWS: usize = 12;

/// Units that a tile is wide, from `unit` on: threes, and what is left split evenly.
pub(in crate::kernels) const fn tile_units(units: usize, unit: usize) -> usize {
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
pub(in crate::kernels) unsafe fn pointwise<L: Lanes>(finish: Finish, run: &Run, numbers: Numbers) {
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
