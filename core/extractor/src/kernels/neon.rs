//! NEON: a unit is four registers of four channels.
//!
//! NEON multiplies signed by signed bytes, so activations are taken 128 lower and the bias makes up for it.

use std::arch::aarch64::{
    float32x4_t, int8x16_t, int16x8_t, int32x4_t, uint8x16_t, vaddq_f32, vaddq_s16, vaddw_u8,
    vaddw_u16, vcombine_s8, vcombine_s16, vcombine_u8, vcvtnq_s32_f32, vcvtq_f32_s32,
    vcvtq_f32_u32, vdup_n_s16, vdupq_n_f32, vdupq_n_s32, vdupq_n_u8, vdupq_n_u16, veorq_u8,
    vget_high_s8, vget_high_u8, vget_high_u16, vget_low_s8, vget_low_u8, vget_low_u16, vld1q_f32,
    vld1q_s8, vld1q_s16, vld1q_s32, vld1q_u8, vld1q_u32, vmaxq_f32, vminq_f32, vmlal_s8, vmovl_u8,
    vmovl_u16, vmull_s8, vmulq_f32, vpadalq_s16, vqaddq_s16, vqmovn_s32, vqmovun_s16,
    vqrdmulhq_s16, vreinterpret_s8_s16, vreinterpretq_s8_s16, vreinterpretq_s8_s32,
    vreinterpretq_s8_u8, vreinterpretq_s16_s8, vreinterpretq_s16_u16, vreinterpretq_u8_s8,
    vshlq_n_s16, vst1q_f32, vst1q_s8, vst1q_s32, vst1q_u8, vst1q_u32, vsubl_u8, vzip1q_s8,
    vzip1q_s16, vzip2q_s8, vzip2q_s16,
};

use super::lanes::{Gating, Lanes};

/// What every aarch64 CPU has.
pub(super) struct Neon;

/// With the dot product of ARMv8.2.
pub(super) struct NeonDot;

/// Bytes 128 lower, as signed ones.
#[inline(always)]
unsafe fn signed(v: uint8x16_t) -> int8x16_t {
    vreinterpretq_s8_u8(veorq_u8(v, vdupq_n_u8(0x80)))
}

/// Pairs of bytes of two rows: channels 0-7, then 8-15.
#[inline(always)]
unsafe fn pairs(a: *const u8, b: *const u8) -> [int8x16_t; 2] {
    let (a, b) = (signed(vld1q_u8(a)), signed(vld1q_u8(b)));
    [vzip1q_s8(a, b), vzip2q_s8(a, b)]
}

macro_rules! common {
    () => {
        type Int = [int32x4_t; 4];
        type Float = [float32x4_t; 4];
        type Quads = [int8x16_t; 4];
        type Weights = [int8x16_t; 4];
        type Act = u8;
        const WIDENS: bool = false;
        const WEIGHTS: usize = 64;
        const QUADS: usize = 64;
        const ROWS: [usize; 3] = [6, 0, 0];
        const PIXELS: usize = 6;
        const WIDE: bool = false;

        #[inline(always)]
        unsafe fn int(from: *const i32) -> [int32x4_t; 4] {
            std::array::from_fn(|i| vld1q_s32(from.add(i * 4)))
        }
        #[inline(always)]
        unsafe fn store_int(to: *mut i32, v: [int32x4_t; 4]) {
            for (i, v) in v.into_iter().enumerate() {
                vst1q_s32(to.add(i * 4), v);
            }
        }
        #[inline(always)]
        unsafe fn float(from: *const f32) -> [float32x4_t; 4] {
            std::array::from_fn(|i| vld1q_f32(from.add(i * 4)))
        }
        #[inline(always)]
        unsafe fn store_float(to: *mut f32, v: [float32x4_t; 4]) {
            for (i, v) in v.into_iter().enumerate() {
                vst1q_f32(to.add(i * 4), v);
            }
        }
        #[inline(always)]
        unsafe fn weights(from: *const u8) -> [int8x16_t; 4] {
            Self::load_quads(from)
        }
        #[inline(always)]
        unsafe fn store_quads(to: *mut u8, q: [int8x16_t; 4]) {
            for (i, v) in q.into_iter().enumerate() {
                vst1q_s8(to.add(i * 16).cast(), v);
            }
        }
        #[inline(always)]
        unsafe fn load_quads(from: *const u8) -> [int8x16_t; 4] {
            std::array::from_fn(|i| vld1q_s8(from.add(i * 16).cast()))
        }
        #[inline(always)]
        unsafe fn to_float(v: [int32x4_t; 4]) -> [float32x4_t; 4] {
            v.map(|v| vcvtq_f32_s32(v))
        }
        #[inline(always)]
        unsafe fn zero() -> [float32x4_t; 4] {
            [vdupq_n_f32(0.0); 4]
        }
        #[inline(always)]
        unsafe fn add(a: [float32x4_t; 4], b: [float32x4_t; 4]) -> [float32x4_t; 4] {
            std::array::from_fn(|i| vaddq_f32(a[i], b[i]))
        }
        #[inline(always)]
        unsafe fn mul(a: [float32x4_t; 4], b: [float32x4_t; 4]) -> [float32x4_t; 4] {
            std::array::from_fn(|i| vmulq_f32(a[i], b[i]))
        }
        #[inline(always)]
        unsafe fn max(a: [float32x4_t; 4], b: [float32x4_t; 4]) -> [float32x4_t; 4] {
            std::array::from_fn(|i| vmaxq_f32(a[i], b[i]))
        }
        #[inline(always)]
        unsafe fn min(a: [float32x4_t; 4], b: [float32x4_t; 4]) -> [float32x4_t; 4] {
            std::array::from_fn(|i| vminq_f32(a[i], b[i]))
        }
        #[inline(always)]
        unsafe fn round(v: [float32x4_t; 4]) -> [int32x4_t; 4] {
            v.map(|v| vcvtnq_s32_f32(v))
        }
        #[inline(always)]
        unsafe fn bytes(from: *const u8) -> [float32x4_t; 4] {
            let v = vld1q_u8(from);
            let (low, high) = (vmovl_u8(vget_low_u8(v)), vmovl_u8(vget_high_u8(v)));
            [
                vcvtq_f32_u32(vmovl_u16(vget_low_u16(low))),
                vcvtq_f32_u32(vmovl_u16(vget_high_u16(low))),
                vcvtq_f32_u32(vmovl_u16(vget_low_u16(high))),
                vcvtq_f32_u32(vmovl_u16(vget_high_u16(high))),
            ]
        }
        #[inline(always)]
        unsafe fn store_bytes<const N: usize>(
            v: [[int32x4_t; 4]; N],
            zero: *const i16,
            to: *mut u8,
        ) {
            for (j, v) in v.into_iter().enumerate() {
                let narrow = |a, b, zero: *const i16| -> int16x8_t {
                    let v = vcombine_s16(vqmovn_s32(a), vqmovn_s32(b));
                    vqaddq_s16(v, vld1q_s16(zero))
                };
                let low = narrow(v[0], v[1], zero.add(j * 32));
                let high = narrow(v[2], v[3], zero.add(j * 32 + 8));
                let bytes = vcombine_u8(vqmovun_s16(low), vqmovun_s16(high));
                vst1q_u8(to.add(j * 16), bytes);
            }
        }
        #[inline(always)]
        unsafe fn store_pixels(v: [[int32x4_t; 4]; 4], zero: *const i16, to: [*mut u8; 4]) {
            for (v, to) in v.into_iter().zip(to) {
                Self::store_bytes([v], zero, to);
            }
        }
        const SPAN: usize = 16;

        #[inline(always)]
        unsafe fn sums(plane: *const u8, pixels: usize, step: usize, sums: *mut u32, _: usize) {
            let mut sum = [vdupq_n_u16(0); 2];
            for pixel in 0..pixels {
                let v = vld1q_u8(plane.add(pixel * step));
                sum = [
                    vaddw_u8(sum[0], vget_low_u8(v)),
                    vaddw_u8(sum[1], vget_high_u8(v)),
                ];
            }
            for (half, sum) in sum.into_iter().enumerate() {
                for (quarter, sum) in [vget_low_u16(sum), vget_high_u16(sum)]
                    .into_iter()
                    .enumerate()
                {
                    let to = sums.add(half * 8 + quarter * 4);
                    vst1q_u32(to, vaddw_u16(vld1q_u32(to), sum));
                }
            }
        }
        #[inline(always)]
        unsafe fn gate(plane: *mut u8, pixels: usize, step: usize, numbers: Gating, _: usize) {
            let (from, to) = (vld1q_u8(numbers.from), vld1q_u8(numbers.to));
            let factor = [vld1q_s16(numbers.factor), vld1q_s16(numbers.factor.add(8))];
            let gated = |v, from, factor, to| {
                let centred = vshlq_n_s16::<5>(vreinterpretq_s16_u16(vsubl_u8(v, from)));
                let to = vreinterpretq_s16_u16(vmovl_u8(to));
                vqmovun_s16(vaddq_s16(vqrdmulhq_s16(centred, factor), to))
            };
            for pixel in 0..pixels {
                let at = plane.add(pixel * step);
                let v = vld1q_u8(at);
                let low = gated(
                    vget_low_u8(v),
                    vget_low_u8(from),
                    factor[0],
                    vget_low_u8(to),
                );
                let high = gated(
                    vget_high_u8(v),
                    vget_high_u8(from),
                    factor[1],
                    vget_high_u8(to),
                );
                vst1q_u8(at, vcombine_u8(low, high));
            }
        }
        #[inline(always)]
        unsafe fn interleave_wide(rows: [*const u8; 4]) -> [[int8x16_t; 4]; 4] {
            [Self::interleave(rows); 4]
        }
        #[inline(always)]
        unsafe fn store_wide(v: [[int32x4_t; 4]; 4], zero: *const i16, to: *mut u8) {
            Self::store_bytes([v[0]], zero, to);
        }
    };
}

// SAFETY: every method does what the trait says with instructions that each aarch64 CPU has.
unsafe impl Lanes for Neon {
    common!();

    #[inline(always)]
    unsafe fn spread(from: *const u8) -> [int8x16_t; 4] {
        let pair = |at: usize| {
            vreinterpret_s8_s16(vdup_n_s16(from.add(at).cast::<i16>().read_unaligned()))
        };
        let v = vcombine_s8(pair(0), pair(2));
        [signed(vreinterpretq_u8_s8(v)); 4]
    }
    #[inline(always)]
    unsafe fn dot(sum: [int32x4_t; 4], a: [int8x16_t; 4], w: [int8x16_t; 4]) -> [int32x4_t; 4] {
        std::array::from_fn(|i| {
            // Two products of at most 128 * 127 fit 16 bits.
            let products = vmull_s8(vget_low_s8(a[i]), vget_low_s8(w[i]));
            let products = vmlal_s8(products, vget_high_s8(a[i]), vget_high_s8(w[i]));
            vpadalq_s16(sum[i], products)
        })
    }
    #[inline(always)]
    unsafe fn interleave(rows: [*const u8; 4]) -> [int8x16_t; 4] {
        let (upper, lower) = (pairs(rows[0], rows[1]), pairs(rows[2], rows[3]));
        let low = |a, b| vcombine_s8(vget_low_s8(a), vget_low_s8(b));
        let high = |a, b| vcombine_s8(vget_high_s8(a), vget_high_s8(b));
        [
            low(upper[0], lower[0]),
            high(upper[0], lower[0]),
            low(upper[1], lower[1]),
            high(upper[1], lower[1]),
        ]
    }
}

// SAFETY: every method does what the trait says with NEON's instructions and the dot product.
unsafe impl Lanes for NeonDot {
    common!();

    #[inline(always)]
    unsafe fn spread(from: *const u8) -> [int8x16_t; 4] {
        let v = vreinterpretq_s8_s32(vdupq_n_s32(from.cast::<i32>().read_unaligned()));
        [signed(vreinterpretq_u8_s8(v)); 4]
    }
    #[inline(always)]
    unsafe fn dot(mut sum: [int32x4_t; 4], a: [int8x16_t; 4], w: [int8x16_t; 4]) -> [int32x4_t; 4] {
        for i in 0..4 {
            // The intrinsic is not stable yet.
            std::arch::asm!(
                ".arch_extension dotprod",
                "sdot {0:v}.4s, {1:v}.16b, {2:v}.16b",
                inout(vreg) sum[i],
                in(vreg) a[i],
                in(vreg) w[i],
                options(pure, nomem, nostack, preserves_flags)
            );
        }
        sum
    }
    #[inline(always)]
    unsafe fn interleave(rows: [*const u8; 4]) -> [int8x16_t; 4] {
        let (upper, lower) = (pairs(rows[0], rows[1]), pairs(rows[2], rows[3]));
        let wide = |v| vreinterpretq_s16_s8(v);
        let low = |a, b| vreinterpretq_s8_s16(vzip1q_s16(wide(a), wide(b)));
        let high = |a, b| vreinterpretq_s8_s16(vzip2q_s16(wide(a), wide(b)));
        [
            low(upper[0], lower[0]),
            high(upper[0], lower[0]),
            low(upper[1], lower[1]),
            high(upper[1], lower[1]),
        ]
    }
}
