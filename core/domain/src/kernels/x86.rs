//! [`super::add_weighted`] with the intrinsics of AVX2 and AVX-512: eight updates side by side, so that the sums are
//! read and written once for eight of them.

#![allow(
    clippy::cast_ptr_alignment,
    reason = "only for loads that ask for no alignment"
)]

use super::{LANES, Planes};
use std::arch::x86_64::{
    __m128i, __m256i, _MM_HINT_T0, _mm_loadu_si128, _mm_prefetch, _mm_unpackhi_epi8,
    _mm_unpacklo_epi8, _mm256_add_ps, _mm256_castps256_ps128, _mm256_cvtph_ps, _mm256_cvtps_pd,
    _mm256_extractf128_ps, _mm256_fmadd_pd, _mm256_loadu_pd, _mm256_loadu_ps, _mm256_loadu_si256,
    _mm256_mul_ps, _mm256_set1_pd, _mm256_setzero_ps, _mm256_storeu_pd, _mm256_storeu_ps,
    _mm256_sub_ps, _mm512_castps512_ps256, _mm512_castsi512_si256, _mm512_cvtepu8_epi16,
    _mm512_cvtph_ps, _mm512_cvtps_pd, _mm512_extractf32x8_ps, _mm512_extracti64x4_epi64,
    _mm512_fmadd_pd, _mm512_loadu_pd, _mm512_or_si512, _mm512_set1_pd, _mm512_slli_epi16,
    _mm512_storeu_pd,
};

/// Updates side by side.
const SIDE_BY_SIDE: usize = 8;
/// Bytes that are asked for ahead of their use.
const AHEAD: usize = 512;

/// How many of the first values it has done: the rest is the caller's.
///
/// # Safety
/// Every row has as many values as `acc`.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn add_weighted_avx2(
    acc: &mut [f64],
    weights: &[f64],
    rows: &[Planes<'_>],
) -> usize {
    const STEP: usize = 16;
    let whole = acc.len() / STEP * STEP;
    for (weights, rows) in weights.chunks(SIDE_BY_SIDE).zip(rows.chunks(SIDE_BY_SIDE)) {
        for at in (0..whole).step_by(STEP) {
            let place = acc[at..at + STEP].as_mut_ptr();
            // SAFETY: `place` has STEP values, and so has each row's plane from `at` on, as the caller promised.
            unsafe {
                let mut sums = [
                    _mm256_loadu_pd(place),
                    _mm256_loadu_pd(place.add(4)),
                    _mm256_loadu_pd(place.add(8)),
                    _mm256_loadu_pd(place.add(12)),
                ];
                for (weight, row) in weights.iter().zip(rows) {
                    _mm_prefetch::<_MM_HINT_T0>(row.high.as_ptr().wrapping_add(at + AHEAD).cast());
                    _mm_prefetch::<_MM_HINT_T0>(row.low.as_ptr().wrapping_add(at + AHEAD).cast());
                    let high = _mm_loadu_si128(row.high.as_ptr().add(at).cast::<__m128i>());
                    let low = _mm_loadu_si128(row.low.as_ptr().add(at).cast::<__m128i>());
                    let first = _mm256_cvtph_ps(_mm_unpacklo_epi8(low, high));
                    let second = _mm256_cvtph_ps(_mm_unpackhi_epi8(low, high));
                    let values = [
                        _mm256_cvtps_pd(_mm256_castps256_ps128(first)),
                        _mm256_cvtps_pd(_mm256_extractf128_ps::<1>(first)),
                        _mm256_cvtps_pd(_mm256_castps256_ps128(second)),
                        _mm256_cvtps_pd(_mm256_extractf128_ps::<1>(second)),
                    ];
                    let weight = _mm256_set1_pd(*weight);
                    for (sum, value) in sums.iter_mut().zip(values) {
                        *sum = _mm256_fmadd_pd(value, weight, *sum);
                    }
                }
                for (i, sum) in sums.into_iter().enumerate() {
                    _mm256_storeu_pd(place.add(4 * i), sum);
                }
            }
        }
    }
    whole
}

/// How many of the first values it has done: the rest is the caller's.
///
/// # Safety
/// Every row has as many values as `acc`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) unsafe fn add_weighted_avx512(
    acc: &mut [f64],
    weights: &[f64],
    rows: &[Planes<'_>],
) -> usize {
    const STEP: usize = 32;
    let whole = acc.len() / STEP * STEP;
    for (weights, rows) in weights.chunks(SIDE_BY_SIDE).zip(rows.chunks(SIDE_BY_SIDE)) {
        for at in (0..whole).step_by(STEP) {
            let place = acc[at..at + STEP].as_mut_ptr();
            // SAFETY: `place` has STEP values, and so has each row's plane from `at` on, as the caller promised.
            unsafe {
                let mut sums = [
                    _mm512_loadu_pd(place),
                    _mm512_loadu_pd(place.add(8)),
                    _mm512_loadu_pd(place.add(16)),
                    _mm512_loadu_pd(place.add(24)),
                ];
                for (weight, row) in weights.iter().zip(rows) {
                    _mm_prefetch::<_MM_HINT_T0>(row.high.as_ptr().wrapping_add(at + AHEAD).cast());
                    _mm_prefetch::<_MM_HINT_T0>(row.low.as_ptr().wrapping_add(at + AHEAD).cast());
                    let high = _mm256_loadu_si256(row.high.as_ptr().add(at).cast::<__m256i>());
                    let low = _mm256_loadu_si256(row.low.as_ptr().add(at).cast::<__m256i>());
                    let high = _mm512_slli_epi16::<8>(_mm512_cvtepu8_epi16(high));
                    let bits = _mm512_or_si512(high, _mm512_cvtepu8_epi16(low));
                    let first = _mm512_cvtph_ps(_mm512_castsi512_si256(bits));
                    let second = _mm512_cvtph_ps(_mm512_extracti64x4_epi64::<1>(bits));
                    let values = [
                        _mm512_cvtps_pd(_mm512_castps512_ps256(first)),
                        _mm512_cvtps_pd(_mm512_extractf32x8_ps::<1>(first)),
                        _mm512_cvtps_pd(_mm512_castps512_ps256(second)),
                        _mm512_cvtps_pd(_mm512_extractf32x8_ps::<1>(second)),
                    ];
                    let weight = _mm512_set1_pd(*weight);
                    for (sum, value) in sums.iter_mut().zip(values) {
                        *sum = _mm512_fmadd_pd(value, weight, *sum);
                    }
                }
                for (i, sum) in sums.into_iter().enumerate() {
                    _mm512_storeu_pd(place.add(8 * i), sum);
                }
            }
        }
    }
    whole
}

/// Sums of squared differences of two rows and two others, lane by lane.
///
/// # Safety
/// All rows have the same length, a multiple of [`LANES`].
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn distances_avx2(a: [&[f32]; 2], b: [&[f32]; 2]) -> [[[f32; LANES]; 2]; 2] {
    let mut sums = [_mm256_setzero_ps(); 8];
    for at in (0..a[0].len()).step_by(LANES) {
        // SAFETY: LANES values from `at` on are within every row, as the caller promised.
        let load =
            |row: &[f32], half: usize| unsafe { _mm256_loadu_ps(row.as_ptr().add(at + 8 * half)) };
        for half in 0..2 {
            let (x, y) = (
                [load(a[0], half), load(a[1], half)],
                [load(b[0], half), load(b[1], half)],
            );
            for i in 0..2 {
                for j in 0..2 {
                    let difference = _mm256_sub_ps(x[i], y[j]);
                    let square = _mm256_mul_ps(difference, difference);
                    let sum = &mut sums[4 * i + 2 * j + half];
                    *sum = _mm256_add_ps(*sum, square);
                }
            }
        }
    }
    let mut lanes = [[[0.0; LANES]; 2]; 2];
    for (to, sums) in lanes.iter_mut().flatten().zip(sums.chunks_exact(2)) {
        for (half, sum) in sums.iter().enumerate() {
            // SAFETY: `to` has LANES places, and a half is eight of them.
            unsafe { _mm256_storeu_ps(to.as_mut_ptr().add(8 * half), *sum) };
        }
    }
    lanes
}
