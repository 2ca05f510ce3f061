//! The loops of a dense layer with the intrinsics of AVX-512: one register a strip, multiplying, then adding, as the
//! portable loops do.

use std::arch::x86_64::{
    _mm512_add_ps, _mm512_loadu_ps, _mm512_mul_ps, _mm512_set1_ps, _mm512_setzero_ps,
    _mm512_storeu_ps,
};

use super::super::LANES;
use super::{TILE, Tiles};

/// The loops of a dense layer for AVX-512. Only made where the CPU has it.
pub(in super::super) struct Dense512;

impl Tiles for Dense512 {
    #[inline(always)]
    fn forward(x: [&[f32]; TILE], packed: &[[f32; LANES]], sums: &mut [[f32; LANES]; TILE]) {
        // SAFETY: used by `dense` only, for an `Isa` that is made after the CPU was asked.
        unsafe { forward_avx512(x, packed, sums) }
    }

    #[inline(always)]
    fn gradient(
        x: &[f32],
        features: usize,
        first: usize,
        packed: &[[f32; LANES]],
    ) -> [[f32; LANES]; TILE] {
        // SAFETY: used by `dense_gradient` only, for an `Isa` that is made after the CPU was asked.
        unsafe { gradient_avx512(x, features, first, packed) }
    }
}

/// [`Tiles::forward`], a strip in one register.
///
/// # Safety
/// The CPU has AVX-512 F.
#[target_feature(enable = "avx512f")]
unsafe fn forward_avx512(
    x: [&[f32]; TILE],
    packed: &[[f32; LANES]],
    sums: &mut [[f32; LANES]; TILE],
) {
    let x = x.map(|row| &row[..packed.len()]);
    let mut held = [_mm512_setzero_ps(); TILE];
    for (held, sums) in held.iter_mut().zip(&*sums) {
        // SAFETY: each array holds the sixteen values that are read.
        *held = unsafe { _mm512_loadu_ps(sums.as_ptr()) };
    }
    for (feature, weights) in packed.iter().enumerate() {
        // SAFETY: as above.
        let weights = unsafe { _mm512_loadu_ps(weights.as_ptr()) };
        for (held, row) in held.iter_mut().zip(&x) {
            // SAFETY: each row is as long as `packed`.
            let value = _mm512_set1_ps(unsafe { *row.get_unchecked(feature) });
            *held = _mm512_add_ps(*held, _mm512_mul_ps(value, weights));
        }
    }
    for (sums, held) in sums.iter_mut().zip(held) {
        // SAFETY: as above.
        unsafe { _mm512_storeu_ps(sums.as_mut_ptr(), held) };
    }
}

/// [`Tiles::gradient`], a strip in one register.
///
/// # Safety
/// The CPU has AVX-512 F.
#[target_feature(enable = "avx512f")]
unsafe fn gradient_avx512(
    x: &[f32],
    features: usize,
    first: usize,
    packed: &[[f32; LANES]],
) -> [[f32; LANES]; TILE] {
    let mut held = [_mm512_setzero_ps(); TILE];
    for (row, residuals) in x.chunks_exact(features).zip(packed) {
        let row = &row[first..first + TILE];
        // SAFETY: each array holds the sixteen values that are read.
        let residuals = unsafe { _mm512_loadu_ps(residuals.as_ptr()) };
        for (held, value) in held.iter_mut().zip(row) {
            *held = _mm512_add_ps(*held, _mm512_mul_ps(_mm512_set1_ps(*value), residuals));
        }
    }
    let mut sums = [[0.0; LANES]; TILE];
    for (sums, held) in sums.iter_mut().zip(held) {
        // SAFETY: each array holds the sixteen values that are written.
        unsafe { _mm512_storeu_ps(sums.as_mut_ptr(), held) };
    }
    sums
}
