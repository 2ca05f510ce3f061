//! 256-bit registers: a unit is two of them, channels 0-3 and 8-11 in the first, the others in the second.
//!
//! Without VNNI, bytes are widened and multiplied as i16: exact, where multiplying unsigned by signed bytes would
//! saturate.

use std::arch::x86_64::{
    __m128i, __m256, __m256i, _mm_cvtepu8_epi32, _mm_loadu_si128, _mm_srli_si128, _mm_storeu_si128,
    _mm256_add_epi16, _mm256_add_epi32, _mm256_add_ps, _mm256_adds_epi16, _mm256_castsi128_si256,
    _mm256_castsi256_si128, _mm256_cvtepi32_ps, _mm256_cvtepu8_epi16, _mm256_cvtepu16_epi32,
    _mm256_cvtps_epi32, _mm256_dpbusd_avx_epi32, _mm256_extracti128_si256, _mm256_inserti128_si256,
    _mm256_loadu_ps, _mm256_loadu_si256, _mm256_madd_epi16, _mm256_max_ps, _mm256_min_ps,
    _mm256_mul_ps, _mm256_mulhrs_epi16, _mm256_or_si256, _mm256_packs_epi32, _mm256_packus_epi16,
    _mm256_permute4x64_epi64, _mm256_set1_epi32, _mm256_setzero_ps, _mm256_setzero_si256,
    _mm256_slli_epi16, _mm256_storeu_ps, _mm256_storeu_si256, _mm256_sub_epi16,
    _mm256_unpackhi_epi16, _mm256_unpacklo_epi16,
};

use super::lanes::{Gating, Lanes};

/// AVX2 alone.
pub(super) struct Avx2;

/// AVX2 with the 256-bit form of VNNI.
pub(super) struct AvxVnni;

/// 16 bytes as i16.
#[inline(always)]
unsafe fn widened(from: *const u8) -> __m256i {
    _mm256_cvtepu8_epi16(_mm_loadu_si128(from.cast()))
}

/// 16-bit pairs of both, channels 0-3 and 8-11, then the others.
#[inline(always)]
unsafe fn pairs(a: __m256i, b: __m256i) -> [__m256i; 2] {
    [_mm256_unpacklo_epi16(a, b), _mm256_unpackhi_epi16(a, b)]
}

macro_rules! common {
    () => {
        type Int = [__m256i; 2];
        type Float = [__m256; 2];
        const ROWS: [usize; 3] = [6, 0, 0];
        const WIDE: bool = false;

        #[inline(always)]
        unsafe fn int(from: *const i32) -> [__m256i; 2] {
            [
                _mm256_loadu_si256(from.cast()),
                _mm256_loadu_si256(from.add(8).cast()),
            ]
        }
        #[inline(always)]
        unsafe fn store_int(to: *mut i32, v: [__m256i; 2]) {
            _mm256_storeu_si256(to.cast(), v[0]);
            _mm256_storeu_si256(to.add(8).cast(), v[1]);
        }
        #[inline(always)]
        unsafe fn float(from: *const f32) -> [__m256; 2] {
            [_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))]
        }
        #[inline(always)]
        unsafe fn store_float(to: *mut f32, v: [__m256; 2]) {
            _mm256_storeu_ps(to, v[0]);
            _mm256_storeu_ps(to.add(8), v[1]);
        }
        #[inline(always)]
        unsafe fn to_float(v: [__m256i; 2]) -> [__m256; 2] {
            [_mm256_cvtepi32_ps(v[0]), _mm256_cvtepi32_ps(v[1])]
        }
        #[inline(always)]
        unsafe fn zero() -> [__m256; 2] {
            [_mm256_setzero_ps(); 2]
        }
        #[inline(always)]
        unsafe fn add(a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
            [_mm256_add_ps(a[0], b[0]), _mm256_add_ps(a[1], b[1])]
        }
        #[inline(always)]
        unsafe fn mul(a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
            [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])]
        }
        #[inline(always)]
        unsafe fn max(a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
            [_mm256_max_ps(a[0], b[0]), _mm256_max_ps(a[1], b[1])]
        }
        #[inline(always)]
        unsafe fn min(a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
            [_mm256_min_ps(a[0], b[0]), _mm256_min_ps(a[1], b[1])]
        }
        #[inline(always)]
        unsafe fn round(v: [__m256; 2]) -> [__m256i; 2] {
            [_mm256_cvtps_epi32(v[0]), _mm256_cvtps_epi32(v[1])]
        }
        #[inline(always)]
        unsafe fn bytes(from: *const u8) -> [__m256; 2] {
            let v = _mm_loadu_si128(from.cast());
            let first = _mm_cvtepu8_epi32(v);
            let second = _mm_cvtepu8_epi32(_mm_srli_si128::<4>(v));
            let third = _mm_cvtepu8_epi32(_mm_srli_si128::<8>(v));
            let fourth = _mm_cvtepu8_epi32(_mm_srli_si128::<12>(v));
            let both = |a: __m128i, b: __m128i| {
                _mm256_cvtepi32_ps(_mm256_inserti128_si256::<1>(_mm256_castsi128_si256(a), b))
            };
            [both(first, third), both(second, fourth)]
        }
        #[inline(always)]
        unsafe fn store_bytes<const N: usize>(v: [[__m256i; 2]; N], zero: *const i16, to: *mut u8) {
            for (j, v) in v.into_iter().enumerate() {
                let zero = _mm256_loadu_si256(zero.add(j * 32).cast());
                let v = _mm256_adds_epi16(_mm256_packs_epi32(v[0], v[1]), zero);
                let v = _mm256_permute4x64_epi64::<0b1000>(_mm256_packus_epi16(v, v));
                _mm_storeu_si128(to.add(j * 16).cast(), _mm256_castsi256_si128(v));
            }
        }
        #[inline(always)]
        unsafe fn store_pixels(v: [[__m256i; 2]; 4], zero: *const i16, to: [*mut u8; 4]) {
            for (v, to) in v.into_iter().zip(to) {
                Self::store_bytes([v], zero, to);
            }
        }
        const SPAN: usize = 16;

        #[inline(always)]
        unsafe fn sums(plane: *const u8, pixels: usize, step: usize, sums: *mut u32, _: usize) {
            let mut sum = _mm256_setzero_si256();
            for pixel in 0..pixels {
                sum = _mm256_add_epi16(sum, widened(plane.add(pixel * step)));
            }
            let halves = [
                _mm256_castsi256_si128(sum),
                _mm256_extracti128_si256::<1>(sum),
            ];
            for (half, sum) in halves.into_iter().enumerate() {
                let to = sums.add(half * 8);
                let sum = _mm256_cvtepu16_epi32(sum);
                let before = _mm256_loadu_si256(to.cast());
                _mm256_storeu_si256(to.cast(), _mm256_add_epi32(before, sum));
            }
        }
        #[inline(always)]
        unsafe fn gate(plane: *mut u8, pixels: usize, step: usize, numbers: Gating, _: usize) {
            let (from, to) = (widened(numbers.from), widened(numbers.to));
            let factor = _mm256_loadu_si256(numbers.factor.cast());
            for pixel in 0..pixels {
                let at = plane.add(pixel * step);
                let centred = _mm256_slli_epi16::<5>(_mm256_sub_epi16(widened(at), from));
                let v = _mm256_add_epi16(_mm256_mulhrs_epi16(centred, factor), to);
                let v = _mm256_permute4x64_epi64::<0b1000>(_mm256_packus_epi16(v, v));
                _mm_storeu_si128(at.cast(), _mm256_castsi256_si128(v));
            }
        }
        #[inline(always)]
        unsafe fn interleave_wide(rows: [*const u8; 4]) -> [Self::Quads; 4] {
            [Self::interleave(rows); 4]
        }
        #[inline(always)]
        unsafe fn store_wide(v: [[__m256i; 2]; 4], zero: *const i16, to: *mut u8) {
            Self::store_bytes([v[0]], zero, to);
        }
    };
}

// SAFETY: every method does what the trait says with instructions of AVX2.
unsafe impl Lanes for Avx2 {
    common!();
    /// For each register, the first two of each quad and the second two, as i16.
    type Quads = [[__m256i; 2]; 2];
    type Weights = [[__m256i; 2]; 2];
    type Act = i16;
    const WIDENS: bool = true;
    const WEIGHTS: usize = 128;
    const QUADS: usize = 128;
    const PIXELS: usize = 6;

    #[inline(always)]
    unsafe fn weights(from: *const u8) -> Self::Weights {
        Self::load_quads(from)
    }
    #[inline(always)]
    unsafe fn spread(from: *const i16) -> Self::Quads {
        let first = _mm256_set1_epi32(from.cast::<i32>().read_unaligned());
        let second = _mm256_set1_epi32(from.add(2).cast::<i32>().read_unaligned());
        [[first, second]; 2]
    }
    #[inline(always)]
    unsafe fn dot(sum: [__m256i; 2], a: Self::Quads, w: Self::Weights) -> [__m256i; 2] {
        let half = |i: usize| {
            let first = _mm256_add_epi32(sum[i], _mm256_madd_epi16(a[i][0], w[i][0]));
            _mm256_add_epi32(first, _mm256_madd_epi16(a[i][1], w[i][1]))
        };
        [half(0), half(1)]
    }
    #[inline(always)]
    unsafe fn interleave(rows: [*const u8; 4]) -> Self::Quads {
        let first = pairs(widened(rows[0]), widened(rows[1]));
        let second = pairs(widened(rows[2]), widened(rows[3]));
        [[first[0], second[0]], [first[1], second[1]]]
    }
    #[inline(always)]
    unsafe fn store_quads(to: *mut u8, q: Self::Quads) {
        for (i, v) in q.as_flattened().iter().enumerate() {
            _mm256_storeu_si256(to.add(i * 32).cast(), *v);
        }
    }
    #[inline(always)]
    unsafe fn load_quads(from: *const u8) -> Self::Quads {
        let at = |i: usize| _mm256_loadu_si256(from.add(i * 32).cast());
        [[at(0), at(1)], [at(2), at(3)]]
    }
}

// SAFETY: every method does what the trait says with instructions of AVX2 and AVX-VNNI.
unsafe impl Lanes for AvxVnni {
    common!();
    type Quads = [__m256i; 2];
    type Weights = [__m256i; 2];
    type Act = u8;
    const WIDENS: bool = false;
    const WEIGHTS: usize = 64;
    const QUADS: usize = 64;
    const PIXELS: usize = 6;

    #[inline(always)]
    unsafe fn weights(from: *const u8) -> [__m256i; 2] {
        Self::load_quads(from)
    }
    #[inline(always)]
    unsafe fn spread(from: *const u8) -> [__m256i; 2] {
        [_mm256_set1_epi32(from.cast::<i32>().read_unaligned()); 2]
    }
    #[inline(always)]
    unsafe fn dot(sum: [__m256i; 2], a: [__m256i; 2], w: [__m256i; 2]) -> [__m256i; 2] {
        [
            _mm256_dpbusd_avx_epi32(sum[0], a[0], w[0]),
            _mm256_dpbusd_avx_epi32(sum[1], a[1], w[1]),
        ]
    }
    #[inline(always)]
    unsafe fn interleave(rows: [*const u8; 4]) -> [__m256i; 2] {
        let beside = |a, b| _mm256_or_si256(widened(a), _mm256_slli_epi16::<8>(widened(b)));
        pairs(beside(rows[0], rows[1]), beside(rows[2], rows[3]))
    }
    #[inline(always)]
    unsafe fn store_quads(to: *mut u8, q: [__m256i; 2]) {
        _mm256_storeu_si256(to.cast(), q[0]);
        _mm256_storeu_si256(to.add(32).cast(), q[1]);
    }
    #[inline(always)]
    unsafe fn load_quads(from: *const u8) -> [__m256i; 2] {
        [
            _mm256_loadu_si256(from.cast()),
            _mm256_loadu_si256(from.add(32).cast()),
        ]
    }
}
