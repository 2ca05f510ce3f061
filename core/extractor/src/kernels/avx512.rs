//! AVX-512 with VNNI: a unit is one register.

use std::arch::x86_64::{
    __m128i, __m512, __m512i, _mm_add_epi32, _mm_loadu_si128, _mm_setr_epi8, _mm_storeu_si128,
    _mm256_storeu_si256, _mm512_add_epi16, _mm512_add_ps, _mm512_adds_epi16,
    _mm512_broadcast_i32x4, _mm512_castsi128_si512, _mm512_castsi512_si128, _mm512_castsi512_si256,
    _mm512_cvtepi32_ps, _mm512_cvtepu8_epi32, _mm512_cvtps_epi32, _mm512_dpbusd_epi32,
    _mm512_extracti32x4_epi32, _mm512_inserti32x4, _mm512_loadu_ps, _mm512_loadu_si512,
    _mm512_maddubs_epi16, _mm512_maskz_loadu_epi8, _mm512_max_ps, _mm512_min_ps, _mm512_mul_ps,
    _mm512_mulhrs_epi16, _mm512_packs_epi32, _mm512_packus_epi16, _mm512_permutex2var_epi64,
    _mm512_permutexvar_epi32, _mm512_set1_epi16, _mm512_set1_epi32, _mm512_setr_epi32,
    _mm512_setr_epi64, _mm512_setzero_ps, _mm512_setzero_si512, _mm512_shuffle_epi8,
    _mm512_storeu_ps, _mm512_storeu_si512, _mm512_unpackhi_epi8, _mm512_unpackhi_epi16,
    _mm512_unpacklo_epi8, _mm512_unpacklo_epi16,
};

use super::avx2::Avx2;
use super::lanes::{Gating, Lanes};

pub(super) struct Avx512;

/// Narrows four vectors to bytes; within each 128-bit lane, four channels of each.
#[inline(always)]
unsafe fn narrow(v: [__m512i; 4], zero: [__m512i; 2]) -> __m512i {
    let low = _mm512_adds_epi16(_mm512_packs_epi32(v[0], v[1]), zero[0]);
    let high = _mm512_adds_epi16(_mm512_packs_epi32(v[2], v[3]), zero[1]);
    _mm512_packus_epi16(low, high)
}

/// Brings the four channels of each vector in each lane to four lanes of 16 channels.
#[inline(always)]
unsafe fn by_vector(v: __m512i) -> __m512i {
    let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    _mm512_permutexvar_epi32(order, v)
}

// SAFETY: every method does what the trait says with instructions of AVX-512 F, BW, VL and VNNI.
unsafe impl Lanes for Avx512 {
    type Int = __m512i;
    type Float = __m512;
    type Quads = __m512i;
    type Weights = __m512i;
    type Act = u8;
    const WIDENS: bool = false;
    const WEIGHTS: usize = 64;
    const QUADS: usize = 64;
    const ROWS: [usize; 3] = [12, 12, 8];
    const PIXELS: usize = 8;
    const WIDE: bool = true;

    #[inline(always)]
    unsafe fn int(from: *const i32) -> __m512i {
        _mm512_loadu_si512(from.cast())
    }
    #[inline(always)]
    unsafe fn store_int(to: *mut i32, v: __m512i) {
        _mm512_storeu_si512(to.cast(), v);
    }
    #[inline(always)]
    unsafe fn float(from: *const f32) -> __m512 {
        _mm512_loadu_ps(from)
    }
    #[inline(always)]
    unsafe fn store_float(to: *mut f32, v: __m512) {
        _mm512_storeu_ps(to, v);
    }
    #[inline(always)]
    unsafe fn weights(from: *const u8) -> __m512i {
        _mm512_loadu_si512(from.cast())
    }
    #[inline(always)]
    unsafe fn spread(from: *const u8) -> __m512i {
        _mm512_set1_epi32(from.cast::<i32>().read_unaligned())
    }
    #[inline(always)]
    unsafe fn dot(sum: __m512i, a: __m512i, w: __m512i) -> __m512i {
        _mm512_dpbusd_epi32(sum, a, w)
    }
    #[inline(always)]
    unsafe fn interleave(rows: [*const u8; 4]) -> __m512i {
        let row = |i: usize| -> __m128i { _mm_loadu_si128(rows[i].cast()) };
        let v = _mm512_castsi128_si512(row(0));
        let v = _mm512_inserti32x4::<1>(v, row(1));
        let v = _mm512_inserti32x4::<2>(v, row(2));
        let v = _mm512_inserti32x4::<3>(v, row(3));
        // Four channels of each row to each lane, then byte by byte.
        let within = _mm512_broadcast_i32x4(_mm_setr_epi8(
            0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15,
        ));
        _mm512_shuffle_epi8(by_vector(v), within)
    }
    #[inline(always)]
    unsafe fn store_quads(to: *mut u8, q: __m512i) {
        _mm512_storeu_si512(to.cast(), q);
    }
    #[inline(always)]
    unsafe fn load_quads(from: *const u8) -> __m512i {
        _mm512_loadu_si512(from.cast())
    }
    #[inline(always)]
    unsafe fn to_float(v: __m512i) -> __m512 {
        _mm512_cvtepi32_ps(v)
    }
    #[inline(always)]
    unsafe fn zero() -> __m512 {
        _mm512_setzero_ps()
    }
    #[inline(always)]
    unsafe fn add(a: __m512, b: __m512) -> __m512 {
        _mm512_add_ps(a, b)
    }
    #[inline(always)]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        _mm512_mul_ps(a, b)
    }
    #[inline(always)]
    unsafe fn max(a: __m512, b: __m512) -> __m512 {
        _mm512_max_ps(a, b)
    }
    #[inline(always)]
    unsafe fn min(a: __m512, b: __m512) -> __m512 {
        _mm512_min_ps(a, b)
    }
    #[inline(always)]
    unsafe fn round(v: __m512) -> __m512i {
        _mm512_cvtps_epi32(v)
    }
    #[inline(always)]
    unsafe fn bytes(from: *const u8) -> __m512 {
        _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(from.cast())))
    }
    #[inline(always)]
    unsafe fn store_bytes<const N: usize>(v: [__m512i; N], zero: *const i16, to: *mut u8) {
        let first = _mm512_loadu_si512(zero.cast());
        let low = _mm512_adds_epi16(_mm512_packs_epi32(v[0], v[1.min(N - 1)]), first);
        let high = if N > 2 {
            let second = _mm512_loadu_si512(zero.add(32).cast());
            let v = v[2.min(N - 1)];
            _mm512_adds_epi16(_mm512_packs_epi32(v, v), second)
        } else {
            low
        };
        let bytes = by_vector(_mm512_packus_epi16(low, high));
        match N {
            1 => _mm_storeu_si128(to.cast(), _mm512_castsi512_si128(bytes)),
            2 => _mm256_storeu_si256(to.cast(), _mm512_castsi512_si256(bytes)),
            _ => {
                _mm256_storeu_si256(to.cast(), _mm512_castsi512_si256(bytes));
                _mm_storeu_si128(to.add(32).cast(), _mm512_extracti32x4_epi32::<2>(bytes));
            }
        }
    }
    #[inline(always)]
    unsafe fn store_pixels(v: [__m512i; 4], zero: *const i16, to: [*mut u8; 4]) {
        let zero = _mm512_loadu_si512(zero.cast());
        let bytes = by_vector(narrow(v, [zero, zero]));
        _mm_storeu_si128(to[0].cast(), _mm512_castsi512_si128(bytes));
        _mm_storeu_si128(to[1].cast(), _mm512_extracti32x4_epi32::<1>(bytes));
        _mm_storeu_si128(to[2].cast(), _mm512_extracti32x4_epi32::<2>(bytes));
        _mm_storeu_si128(to[3].cast(), _mm512_extracti32x4_epi32::<3>(bytes));
    }
    #[inline(always)]
    unsafe fn interleave_wide(rows: [*const u8; 4]) -> [__m512i; 4] {
        let row = |i: usize| -> __m512i { _mm512_loadu_si512(rows[i].cast()) };
        let (a, b, c, d) = (row(0), row(1), row(2), row(3));
        let (ab, cd) = (_mm512_unpacklo_epi8(a, b), _mm512_unpacklo_epi8(c, d));
        let (ab_high, cd_high) = (_mm512_unpackhi_epi8(a, b), _mm512_unpackhi_epi8(c, d));
        [
            _mm512_unpacklo_epi16(ab, cd),
            _mm512_unpackhi_epi16(ab, cd),
            _mm512_unpacklo_epi16(ab_high, cd_high),
            _mm512_unpackhi_epi16(ab_high, cd_high),
        ]
    }
    #[inline(always)]
    unsafe fn store_wide(v: [__m512i; 4], zero: *const i16, to: *mut u8) {
        let zero = [
            _mm512_loadu_si512(zero.cast()),
            _mm512_loadu_si512(zero.add(32).cast()),
        ];
        _mm512_storeu_si512(to.cast(), narrow(v, zero));
    }
    const SPAN: usize = 64;

    #[inline(always)]
    unsafe fn sums(plane: *const u8, pixels: usize, step: usize, sums: *mut u32, channels: usize) {
        let mask = u64::MAX >> (64 - channels);
        let zero = _mm512_setzero_si512();
        let (mut low, mut high) = (zero, zero);
        for pixel in 0..pixels {
            let v = _mm512_maskz_loadu_epi8(mask, plane.add(pixel * step).cast());
            low = _mm512_add_epi16(low, _mm512_unpacklo_epi8(v, zero));
            high = _mm512_add_epi16(high, _mm512_unpackhi_epi8(v, zero));
        }
        // Eight channels of each lane's sixteen in `low`, the other eight in `high`.
        let by_sixteen: [__m512i; 4] = [
            _mm512_unpacklo_epi16(low, zero),
            _mm512_unpackhi_epi16(low, zero),
            _mm512_unpacklo_epi16(high, zero),
            _mm512_unpackhi_epi16(high, zero),
        ];
        for (four, v) in by_sixteen.into_iter().enumerate() {
            // Lane `l` of `v` holds channels 16 l + 4 four and the three behind.
            let lanes = [
                _mm512_castsi512_si128(v),
                _mm512_extracti32x4_epi32::<1>(v),
                _mm512_extracti32x4_epi32::<2>(v),
                _mm512_extracti32x4_epi32::<3>(v),
            ];
            for (unit, v) in lanes.into_iter().enumerate().take(channels / 16) {
                let to = sums.add(unit * 16 + four * 4);
                _mm_storeu_si128(to.cast(), _mm_add_epi32(_mm_loadu_si128(to.cast()), v));
            }
        }
    }
    #[inline(always)]
    unsafe fn gate(plane: *mut u8, pixels: usize, step: usize, numbers: Gating, channels: usize) {
        if channels < 64 {
            // Masked stores would make the next pixel's load wait.
            for unit in 0..channels / 16 {
                Avx2::gate(
                    plane.add(unit * 16),
                    pixels,
                    step,
                    numbers.at_unit(unit),
                    16,
                );
            }
            return;
        }
        let from = _mm512_loadu_si512(numbers.from.cast());
        let to = _mm512_loadu_si512(numbers.to.cast());
        let zero = _mm512_setzero_si512();
        let to = [
            _mm512_unpacklo_epi8(to, zero),
            _mm512_unpackhi_epi8(to, zero),
        ];
        // Factors of channels 0-31 and 32-63, then by lane the first eight of sixteen, and the second eight.
        let half = |at: usize| _mm512_loadu_si512(numbers.factor.add(at).cast());
        let (a, b) = (half(0), half(32));
        let factor = [
            _mm512_permutex2var_epi64(a, _mm512_setr_epi64(0, 1, 4, 5, 8, 9, 12, 13), b),
            _mm512_permutex2var_epi64(a, _mm512_setr_epi64(2, 3, 6, 7, 10, 11, 14, 15), b),
        ];
        // 32 q - 32 from, of bytes that lie beside each other.
        let centre = _mm512_set1_epi16(i16::from_le_bytes([32, 224]));
        for pixel in 0..pixels {
            let at = plane.add(pixel * step);
            let v = _mm512_loadu_si512(at.cast());
            let gated = |pairs: __m512i, i: usize| {
                let centred = _mm512_maddubs_epi16(pairs, centre);
                _mm512_add_epi16(_mm512_mulhrs_epi16(centred, factor[i]), to[i])
            };
            let low = gated(_mm512_unpacklo_epi8(v, from), 0);
            let high = gated(_mm512_unpackhi_epi8(v, from), 1);
            _mm512_storeu_si512(at.cast(), _mm512_packus_epi16(low, high));
        }
    }
}
