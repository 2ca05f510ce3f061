//! Sixteen channels at a time: what a kernel asks of a CPU.
//!
//! The kernels in [`generic`](super::generic) are written once, over this trait; an implementation is one instruction
//! set. A "unit" is 16 channels, whatever the width of a register. A "quad" is four bytes of one channel's sum:
//! four input channels of a pointwise convolution, four taps of a depthwise one.

/// An instruction set.
///
/// # Safety
/// Every method may use instructions beyond the baseline: it must be called, and be inlined, in a function that was
/// compiled for them, on a CPU that has them. Pointers must be good for as many elements as the method says;
/// alignment does not matter.
pub(super) unsafe trait Lanes {
    /// 16 sums, i32.
    type Int: Copy;
    /// 16 values, f32.
    type Float: Copy;
    /// 16 quads of activations.
    type Quads: Copy;
    /// 16 quads of weights.
    type Weights: Copy;
    /// An activation as [`spread`](Self::spread) reads it: bytes, or i16 where bytes have to be widened first.
    type Act: Copy;
    /// Whether [`Act`](Self::Act) is i16.
    const WIDENS: bool;
    /// Bytes of 16 quads of weights.
    const WEIGHTS: usize;
    /// Bytes of 16 quads of activations in [`store_quads`](Self::store_quads)' form.
    const QUADS: usize;
    /// Rows of a pointwise tile that is 1, 2 or 3 units wide; 0 where there is no tile so wide.
    const ROWS: [usize; 3];
    /// Pixels of a depthwise tile of one unit, at most 8.
    const PIXELS: usize;
    /// Whether depthwise kernels may take four units at once, with [`interleave_wide`](Self::interleave_wide).
    const WIDE: bool;

    /// Loads 16 i32.
    unsafe fn int(from: *const i32) -> Self::Int;
    /// Stores 16 i32.
    unsafe fn store_int(to: *mut i32, v: Self::Int);
    /// Loads 16 f32.
    unsafe fn float(from: *const f32) -> Self::Float;
    /// Stores 16 f32.
    unsafe fn store_float(to: *mut f32, v: Self::Float);
    /// Loads [`WEIGHTS`](Self::WEIGHTS) bytes.
    unsafe fn weights(from: *const u8) -> Self::Weights;
    /// Four activations for all 16 channels.
    unsafe fn spread(from: *const Self::Act) -> Self::Quads;
    /// Adds each quad's sum of products.
    unsafe fn dot(sum: Self::Int, a: Self::Quads, w: Self::Weights) -> Self::Int;
    /// Four rows of 16 bytes to 16 quads.
    unsafe fn interleave(rows: [*const u8; 4]) -> Self::Quads;
    /// Stores [`QUADS`](Self::QUADS) bytes.
    unsafe fn store_quads(to: *mut u8, q: Self::Quads);
    /// What [`store_quads`](Self::store_quads) stored.
    unsafe fn load_quads(from: *const u8) -> Self::Quads;
    /// The nearest f32.
    unsafe fn to_float(v: Self::Int) -> Self::Float;
    unsafe fn zero() -> Self::Float;
    unsafe fn add(a: Self::Float, b: Self::Float) -> Self::Float;
    unsafe fn mul(a: Self::Float, b: Self::Float) -> Self::Float;
    unsafe fn max(a: Self::Float, b: Self::Float) -> Self::Float;
    unsafe fn min(a: Self::Float, b: Self::Float) -> Self::Float;
    /// The nearest i32, ties to even; magnitudes stay below 2^31.
    unsafe fn round(v: Self::Float) -> Self::Int;
    /// Loads 16 bytes as f32.
    unsafe fn bytes(from: *const u8) -> Self::Float;
    /// Saturates to 16 bits, adds `zero` (saturating), clamps to bytes and stores `16 * N` of them; N is 1, 2 or 3.
    /// `zero` holds what [`zeros`](super::pack::zeros) made of the same units.
    unsafe fn store_bytes<const N: usize>(v: [Self::Int; N], zero: *const i16, to: *mut u8);
    /// [`store_bytes`](Self::store_bytes) of four pixels of the same unit, each to its own place.
    unsafe fn store_pixels(v: [Self::Int; 4], zero: *const i16, to: [*mut u8; 4]);
    /// Four rows of 64 bytes to 64 quads, in [`pack::WIDE_ORDER`](super::pack::WIDE_ORDER).
    unsafe fn interleave_wide(rows: [*const u8; 4]) -> [Self::Quads; 4];
    /// Stores 64 channels that are in [`pack::WIDE_ORDER`](super::pack::WIDE_ORDER) as bytes in their natural order.
    unsafe fn store_wide(v: [Self::Int; 4], zero: *const i16, to: *mut u8);

    /// Channels that [`sums`](Self::sums) and [`gate`](Self::gate) take at once, a multiple of 16.
    const SPAN: usize;
    /// Adds some channels of `pixels` pixels (at most 256) to their sums; pixels are `step` bytes apart, `channels` is
    /// a multiple of 16 and at most [`SPAN`](Self::SPAN).
    unsafe fn sums(plane: *const u8, pixels: usize, step: usize, sums: *mut u32, channels: usize);
    /// Gates some channels of `pixels` pixels in place, see [`gate_bytes`](super::scalar::gate).
    unsafe fn gate(plane: *mut u8, pixels: usize, step: usize, numbers: Gating, channels: usize);
}

/// What a gate does to each channel: `((q - from) * factor) + to`.
#[derive(Clone, Copy)]
pub(super) struct Gating {
    pub(super) from: *const u8,
    pub(super) factor: *const i16,
    pub(super) to: *const u8,
}

impl Gating {
    /// The numbers from a unit on.
    ///
    /// # Safety
    /// There must be so many.
    #[inline(always)]
    pub(super) unsafe fn at_unit(self, unit: usize) -> Self {
        Self {
            from: self.from.add(unit * 16),
            factor: self.factor.add(unit * 16),
            to: self.to.add(unit * 16),
        }
    }
}
