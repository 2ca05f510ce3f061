//! The definition of every kernel, in safe code.
//!
//! The functions are inlined into their callers, so that each is compiled for the instruction set that its caller asks
//! for. Sums go through [`LANES`] lanes that are added up in one order.

#![allow(
    clippy::inline_always,
    reason = "each caller compiles its own copy for its instruction set"
)]

use super::{LANES, Measure, Network, Planes};
use half::f16;

/// Columns that are sorted at a time: a strip of many rows stays in the cache.
const STRIP: usize = 64;
/// Lanes that keys are compared in.
const KEY_LANES: usize = 32;
const SIGN: u16 = 0x8000;

/// A finite fp16 bit pattern as f32, exactly.
#[inline(always)]
pub fn to_f32(bits: u16) -> f32 {
    const SMALLEST_NORMAL: u32 = 113 << 23; // 2^-14
    let shifted = u32::from(bits & !SIGN) << 13;
    let normal = f32::from_bits(shifted + (112 << 23));
    // A subnormal is what it lacks of the smallest normal number.
    let subnormal = f32::from_bits(shifted | SMALLEST_NORMAL) - f32::from_bits(SMALLEST_NORMAL);
    let magnitude = if shifted < 1 << 23 { subnormal } else { normal };
    f32::from_bits(magnitude.to_bits() | u32::from(bits & SIGN) << 16)
}

#[inline(always)]
fn joined(high: u8, low: u8) -> u16 {
    u16::from(high) << 8 | u16::from(low)
}

/// One row of [`super::add_weighted`].
pub(super) fn add_scaled(acc: &mut [f64], weight: f64, row: Planes<'_>) {
    for ((sum, high), low) in acc.iter_mut().zip(row.high).zip(row.low) {
        *sum += weight * f64::from(to_f32(joined(*high, *low)));
    }
}

/// See [`super::measure`].
#[inline(always)]
pub(super) fn measure(planes: Planes<'_>) -> Measure {
    let mut lanes = [0.0_f64; LANES];
    let mut largest = [0_u16; LANES];
    let mut see = |lane: usize, high: u8, low: u8| {
        let bits = joined(high, low);
        largest[lane] = largest[lane].max(bits & !SIGN);
        // Eleven bits squared are exact in f32.
        let value = to_f32(bits);
        lanes[lane] += f64::from(value * value);
    };
    let (highs, high_rest) = planes.high.as_chunks::<LANES>();
    let (lows, low_rest) = planes.low.as_chunks::<LANES>();
    for (high, low) in highs.iter().zip(lows) {
        for lane in 0..LANES {
            see(lane, high[lane], low[lane]);
        }
    }
    for (lane, (high, low)) in high_rest.iter().zip(low_rest).enumerate() {
        see(lane, *high, *low);
    }
    Measure {
        largest: largest.into_iter().fold(0, u16::max),
        squares: add_up(lanes),
    }
}

/// Halves until one is left: the same order everywhere.
#[inline(always)]
fn add_up(mut lanes: [f64; LANES]) -> f64 {
    let mut half = LANES / 2;
    while half > 0 {
        for lane in 0..half {
            lanes[lane] += lanes[lane + half];
        }
        half /= 2;
    }
    lanes[0]
}

/// See [`super::join`].
#[inline(always)]
pub(super) fn join(planes: Planes<'_>, values: &mut [f16]) {
    for ((value, high), low) in values.iter_mut().zip(planes.high).zip(planes.low) {
        *value = f16::from_bits(joined(*high, *low));
    }
}

/// See [`super::to_keys`].
#[inline(always)]
pub(super) fn to_keys(values: &[f16], keys: &mut [i16]) {
    for (key, value) in keys.iter_mut().zip(values) {
        *key = flip(value.to_bits().cast_signed());
    }
}

/// Magnitudes of negative numbers run the other way; doing it twice undoes it.
#[inline(always)]
fn flip(bits: i16) -> i16 {
    bits ^ ((bits >> 15) & 0x7fff)
}

/// See [`super::sort_columns`].
#[inline(always)]
pub(super) fn sort_columns(network: &Network, rows: &mut [i16], width: usize) {
    let mut from = 0;
    while from < width {
        let strip = STRIP.min(width - from);
        for &(i, j) in network.pairs() {
            let (upper, lower) = rows.split_at_mut(j * width);
            let a = &mut upper[i * width + from..][..strip];
            let b = &mut lower[from..][..strip];
            order(a, b);
        }
        from += strip;
    }
}

/// The smaller of each two into `a`, the larger into `b`.
#[inline(always)]
fn order(a: &mut [i16], b: &mut [i16]) {
    let (a, a_rest) = a.as_chunks_mut::<KEY_LANES>();
    let (b, b_rest) = b.as_chunks_mut::<KEY_LANES>();
    for (a, b) in a.iter_mut().zip(b) {
        for lane in 0..KEY_LANES {
            let (x, y) = (a[lane], b[lane]);
            a[lane] = x.min(y);
            b[lane] = x.max(y);
        }
    }
    for (a, b) in a_rest.iter_mut().zip(b_rest) {
        (*a, *b) = ((*a).min(*b), (*a).max(*b));
    }
}

/// See [`super::sum_keys`].
#[inline(always)]
pub(super) fn sum_keys(rows: &[i16], sums: &mut [f64]) {
    sums.fill(0.0);
    for row in rows.chunks_exact(sums.len()) {
        for (sum, key) in sums.iter_mut().zip(row) {
            *sum += f64::from(to_f32(flip(*key).cast_unsigned()));
        }
    }
}

/// See [`super::squared_distances`].
#[inline(always)]
pub(super) fn distances<const N: usize>(a: [&[f32]; N], b: [&[f32]; N]) -> [[f64; N]; N] {
    let mut sums = [[[0.0_f32; LANES]; N]; N];
    let len = a[0].len() / LANES;
    let a = a.map(|row| &row.as_chunks::<LANES>().0[..len]);
    let b = b.map(|row| &row.as_chunks::<LANES>().0[..len]);
    for at in 0..len {
        for i in 0..N {
            let x = &a[i][at];
            for j in 0..N {
                let y = &b[j][at];
                let sum = &mut sums[i][j];
                for lane in 0..LANES {
                    let difference = x[lane] - y[lane];
                    sum[lane] += difference * difference;
                }
            }
        }
    }
    add_up_all(sums)
}

/// The lanes of each sum, added up.
#[inline(always)]
pub(super) fn add_up_all<const N: usize>(sums: [[[f32; LANES]; N]; N]) -> [[f64; N]; N] {
    sums.map(|row| row.map(|lanes| add_up(lanes.map(f64::from))))
}

/// See [`super::squared_distance_to`].
#[inline(always)]
pub(super) fn distance_to(values: &[f16], center: &[f64]) -> f64 {
    let mut lanes = [0.0; LANES];
    let mut see = |lane: usize, value: f16, center: f64| {
        let difference = f64::from(to_f32(value.to_bits())) - center;
        lanes[lane] += difference * difference;
    };
    let (values, value_rest) = values.as_chunks::<LANES>();
    let (centers, center_rest) = center.as_chunks::<LANES>();
    for (value, center) in values.iter().zip(centers) {
        for lane in 0..LANES {
            see(lane, value[lane], center[lane]);
        }
    }
    for (lane, (value, center)) in value_rest.iter().zip(center_rest).enumerate() {
        see(lane, *value, *center);
    }
    add_up(lanes)
}
