//! The loops that take nearly all of the time, and the only place here with `unsafe`.
//!
//! `scalar` is what is right, in safe code. `generic` writes the same once more over `lanes`, which each
//! instruction set implements: AVX2, AVX-VNNI and AVX-512 with VNNI on x86-64, NEON with and without the dot product on
//! aarch64. All give the same bits. The doors, [`Pointwise`] and [`Depthwise`], check every length before they pass a
//! pointer on, and run only what the CPU has.

#![allow(
    unsafe_code,
    unsafe_op_in_unsafe_fn,
    clippy::inline_always,
    clippy::missing_safety_doc,
    clippy::undocumented_unsafe_blocks,
    reason = "kernels; the contract of each stands at the trait and at the four generic functions"
)]

mod aligned;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod generic;
mod isa;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod lanes;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod pack;
mod scalar;

pub(crate) use aligned::Aligned;
pub use isa::Isa;

use crate::layer::{Finish, Layer, UNIT, padded};

/// A layer as an instruction set wants it.
#[derive(Clone, Debug)]
enum Body {
    Plain(scalar::Plain),
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    Packed(pack::Packed),
}

/// Compiles the generic kernels for an instruction set.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! entry {
    ($name:ident, $lanes:ty, $features:literal) => {
        mod $name {
            use super::Finish;
            use super::generic::{self, Numbers, Rows, Run};
            use super::lanes::Gating;

            /// # Safety
            /// As [`generic::pointwise`], on a CPU with these features.
            #[target_feature(enable = $features)]
            pub(super) unsafe fn pointwise(finish: Finish, run: &Run, numbers: Numbers) {
                generic::pointwise::<$lanes>(finish, run, numbers);
            }

            /// # Safety
            /// As [`generic::depthwise`], on a CPU with these features.
            #[target_feature(enable = $features)]
            pub(super) unsafe fn depthwise(
                finish: Finish,
                reach: (usize, usize),
                rows: &Rows,
                numbers: Numbers,
            ) {
                generic::depthwise::<$lanes>(finish, reach, rows, numbers);
            }

            /// # Safety
            /// As [`generic::sums`], on a CPU with these features.
            #[target_feature(enable = $features)]
            pub(super) unsafe fn sums(plane: &[u8], sums: &mut [u32]) {
                generic::sums::<$lanes>(plane, sums);
            }

            /// # Safety
            /// As [`generic::gate`], on a CPU with these features; as many numbers of each kind.
            #[target_feature(enable = $features)]
            pub(super) unsafe fn gate(plane: &mut [u8], from: &[u8], factor: &[i16], to: &[u8]) {
                let numbers = Gating {
                    from: from.as_ptr(),
                    factor: factor.as_ptr(),
                    to: to.as_ptr(),
                };
                generic::gate::<$lanes>(plane, from.len(), numbers);
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
entry!(on_avx2, super::avx2::Avx2, "avx2");
#[cfg(target_arch = "x86_64")]
entry!(on_avxvnni, super::avx2::AvxVnni, "avx2,avxvnni");
#[cfg(target_arch = "x86_64")]
entry!(
    on_avx512,
    super::avx512::Avx512,
    "avx2,avx512f,avx512bw,avx512vl,avx512vnni"
);
#[cfg(target_arch = "aarch64")]
entry!(on_neon, super::neon::Neon, "neon");
#[cfg(target_arch = "aarch64")]
entry!(on_neon_dot, super::neon::NeonDot, "neon,dotprod");

/// Calls one function of an instruction set's module.
macro_rules! on {
    ($isa:expr, $function:ident($($argument:expr),*), else $plain:expr) => {
        match $isa {
            // SAFETY, of every arm: the caller asked the CPU for the instruction set (or made the layer for it, which
            // asks), and checked the lengths just before.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => unsafe { on_avx2::$function($($argument),*) },
            #[cfg(target_arch = "x86_64")]
            Isa::AvxVnni => unsafe { on_avxvnni::$function($($argument),*) },
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Vnni => unsafe { on_avx512::$function($($argument),*) },
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => unsafe { on_neon::$function($($argument),*) },
            #[cfg(target_arch = "aarch64")]
            Isa::NeonDot => unsafe { on_neon_dot::$function($($argument),*) },
            _ => $plain,
        }
    };
}

/// What a kernel leaves of its sums of products.
#[derive(Debug)]
pub enum Output<'a> {
    /// Bytes, [`padded`] channels a pixel.
    Bytes {
        /// Where they go.
        to: &'a mut [u8],
        /// The block's input in the same layout, where it is added; else empty.
        residual: &'a [u8],
    },
    /// Hard-swish added up over the pixels, [`padded`] channels in the instruction set's own order.
    Sums(&'a mut [f32]),
    /// As they are, [`padded`] channels a pixel in the instruction set's own order.
    Raw(&'a mut [i32]),
}

/// A convolution over all channels, ready to run on one instruction set.
#[derive(Clone, Debug)]
pub struct Pointwise {
    isa: Isa,
    finish: Finish,
    segments: usize,
    /// Bytes a segment, padded to whole quads.
    length: usize,
    output: usize,
    body: Body,
}

impl Pointwise {
    /// - `segments`: pieces that a patch lies in, 1 or 3.
    pub fn new(isa: Isa, layer: Layer, segments: usize) -> Self {
        assert!(isa.is_available(), "this CPU has no {isa}");
        assert!(segments == 1 || segments == 3, "1 or 3 segments");
        Self {
            isa,
            finish: layer.finish,
            segments,
            length: (layer.patch / segments).next_multiple_of(4),
            output: layer.output,
            #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
            body: match isa.form() {
                Some(form) => Body::Packed(pack::pointwise(form, &layer, segments)),
                None => Body::Plain(scalar::Plain::new(layer)),
            },
            #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
            body: Body::Plain(scalar::Plain::new(layer)),
        }
    }

    /// Elements of scratch that [`Self::run`] wants.
    pub fn scratch(&self) -> usize {
        #[cfg(target_arch = "x86_64")]
        if self.isa == Isa::Avx2 {
            return generic::TILE_ROWS * self.segments * self.length;
        }
        0
    }

    /// One number a channel, as lanes of [`Output::Sums`] and [`Output::Raw`] have them, whole units.
    pub fn lanes(&self, channels: &[f32]) -> Vec<f32> {
        let order = self.order();
        let at = |lane: usize| lane / UNIT * UNIT + order[lane % UNIT];
        let lanes = 0..padded(channels.len());
        lanes
            .map(|lane| channels.get(at(lane)).copied().unwrap_or(0.0))
            .collect()
    }

    /// Brings whole units of lanes into the order of channels.
    pub fn natural(&self, lanes: &mut [f32]) {
        let order = self.order();
        if order.is_sorted() {
            return;
        }
        for unit in lanes.as_chunks_mut::<UNIT>().0 {
            let lanes = *unit;
            for (lane, channel) in lanes.into_iter().zip(order) {
                unit[channel] = lane;
            }
        }
    }

    fn order(&self) -> [usize; UNIT] {
        #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
        return self.isa.order();
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        std::array::from_fn(|lane| lane)
    }

    /// Convolves `pixels` pixels.
    ///
    /// - `rows`: a patch's segments, each `step` bytes further for the next pixel; readable to the next multiple of
    ///   four bytes behind the last patch. What stands there does not matter.
    #[cfg_attr(
        not(any(target_arch = "x86_64", target_arch = "aarch64")),
        allow(unused_variables, reason = "scratch is for packed kernels")
    )]
    pub fn run(
        &self,
        rows: &[&[u8]],
        (step, pixels): (usize, usize),
        output: Output<'_>,
        scratch: &mut [i16],
    ) {
        assert_eq!(rows.len(), self.segments, "segments of a patch");
        if pixels == 0 {
            return;
        }
        let reach = (pixels - 1) * step + self.length;
        assert!(rows.iter().all(|row| row.len() >= reach), "short input");
        let stride = padded(self.output);
        match &output {
            Output::Bytes { to, residual } => {
                let adds = self.finish == Finish::Residual;
                assert!(to.len() >= pixels * stride, "short output");
                assert!(!adds || residual.len() >= pixels * stride, "short residual");
            }
            Output::Sums(sums) => assert!(sums.len() >= stride, "short sums"),
            Output::Raw(raw) => assert!(raw.len() >= pixels * stride, "short sums"),
        }
        let fits = match &output {
            Output::Bytes { .. } => !matches!(self.finish, Finish::Pool | Finish::Raw),
            Output::Sums(_) => self.finish == Finish::Pool,
            Output::Raw(_) => self.finish == Finish::Raw,
        };
        assert!(fits, "a layer has one kind of output");
        assert!(scratch.len() >= self.scratch(), "short scratch");
        match &self.body {
            Body::Plain(plain) => scalar::pointwise(plain, rows, (step, pixels), output),
            #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
            Body::Packed(packed) => {
                let none = std::ptr::null_mut;
                let (to, residual, sums, raw) = match output {
                    Output::Bytes { to, residual } => (
                        to.as_mut_ptr(),
                        residual.as_ptr(),
                        std::ptr::null_mut(),
                        none(),
                    ),
                    Output::Sums(sums) => (
                        std::ptr::null_mut(),
                        std::ptr::null(),
                        sums.as_mut_ptr(),
                        none(),
                    ),
                    Output::Raw(raw) => (
                        std::ptr::null_mut(),
                        std::ptr::null(),
                        std::ptr::null_mut(),
                        raw.as_mut_ptr(),
                    ),
                };
                let last = rows.len() - 1;
                let run = generic::Run {
                    from: std::array::from_fn(|i| rows[i.min(last)].as_ptr()),
                    segments: self.segments,
                    quads: self.length / 4,
                    step,
                    pixels,
                    units: stride / UNIT,
                    to,
                    residual,
                    sums,
                    raw,
                    wide: scratch.as_mut_ptr(),
                };
                on!(self.isa, pointwise(self.finish, &run, packed.numbers()), else unreachable!());
            }
        }
    }
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
impl pack::Packed {
    fn numbers(&self) -> generic::Numbers {
        generic::Numbers {
            weights: self.weights.as_ptr(),
            bias: self.bias.as_ptr(),
            factor: self.factor.as_ptr(),
            low: self.low.as_ptr(),
            high: self.high.as_ptr(),
            residual: self.residual.as_ptr(),
            zero: self.zero.as_ptr(),
        }
    }
}

/// A depthwise convolution, ready to run on one instruction set.
#[derive(Clone, Debug)]
pub struct Depthwise {
    isa: Isa,
    finish: Finish,
    kernel: usize,
    stride: usize,
    channels: usize,
    body: Body,
}

impl Depthwise {
    /// - `layer`: with an activation behind it;
    /// - `(kernel, stride)`: 3 or 5, and 1 or 2.
    ///
    /// # Panics
    /// If it is another, or the CPU lacks the instruction set.
    pub fn new(isa: Isa, layer: Layer, (kernel, stride): (usize, usize)) -> Self {
        assert!(isa.is_available(), "this CPU has no {isa}");
        assert!(
            matches!(kernel, 3 | 5) && matches!(stride, 1 | 2),
            "kernels of 3 or 5, strides of 1 or 2"
        );
        assert!(
            matches!(layer.finish, Finish::Relu | Finish::HardSwish),
            "depthwise convolutions have an activation"
        );
        Self {
            isa,
            finish: layer.finish,
            kernel,
            stride,
            channels: layer.output,
            #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
            body: match isa.form() {
                Some(form) => Body::Packed(pack::depthwise(form, &layer, kernel)),
                None => Body::Plain(scalar::Plain::new(layer)),
            },
            #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
            body: Body::Plain(scalar::Plain::new(layer)),
        }
    }

    /// Bytes of scratch that [`Self::run`] wants.
    pub fn scratch(&self) -> usize {
        #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
        if self.isa != Isa::Scalar {
            return generic::quads_bytes();
        }
        0
    }

    /// Convolves one output row, or with stride 1 two below each other.
    ///
    /// - `rows`: input rows from the kernel's first on, beginning with the leftmost padding, each one pixel longer than
    ///   the kernel reaches; rows beyond the kernel's (and the second output row's) last may be any.
    /// - `pixels`, `count`: output pixels a row, output rows.
    #[cfg_attr(
        not(any(target_arch = "x86_64", target_arch = "aarch64")),
        allow(unused_variables, reason = "scratch is for packed kernels")
    )]
    pub fn run(
        &self,
        rows: &[&[u8]; 6],
        (pixels, count): (usize, usize),
        to: &mut [u8],
        scratch: &mut [u8],
    ) {
        if pixels == 0 {
            return;
        }
        let step = padded(self.channels);
        let reach = ((pixels - 1) * self.stride + self.kernel + 1) * step;
        assert!(rows.iter().all(|row| row.len() >= reach), "short input");
        assert!(
            count == 1 || (count == 2 && self.stride == 1),
            "two rows at a time only with stride 1"
        );
        assert!(to.len() >= pixels * count * step, "short output");
        assert!(scratch.len() >= self.scratch(), "short scratch");
        let reach = (self.kernel, self.stride);
        match &self.body {
            Body::Plain(plain) => scalar::depthwise(plain, reach, rows, (pixels, count), to),
            #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
            Body::Packed(packed) => {
                let rows = generic::Rows {
                    from: rows.map(<[u8]>::as_ptr),
                    step,
                    pixels,
                    count,
                    to: to.as_mut_ptr(),
                    units: step / UNIT,
                    quads: scratch.as_mut_ptr(),
                    places: generic::places(self.kernel),
                    taps: generic::taps(self.kernel),
                };
                on!(self.isa, depthwise(self.finish, reach, &rows, packed.numbers()), else unreachable!());
            }
        }
    }
}

/// Adds each channel of each pixel to its sum; a plane is some pixels of `sums.len()` channels, whole units.
pub fn column_sums(isa: Isa, plane: &[u8], sums: &mut [u32]) {
    assert!(isa.is_available(), "this CPU has no {isa}");
    assert!(sums.len().is_multiple_of(UNIT), "whole units");
    if !sums.is_empty() {
        on!(isa, sums(plane, sums), else scalar::sums(plane, sums));
    }
}

/// Multiplies each channel by its gate: `((q - from) * factor) + to`, see `dense::gate`; in place. A plane is
/// some pixels of `from.len()` channels, whole units.
pub fn gate(isa: Isa, plane: &mut [u8], from: &[u8], factor: &[i16], to: &[u8]) {
    assert!(isa.is_available(), "this CPU has no {isa}");
    assert!(from.len().is_multiple_of(UNIT), "whole units");
    assert!(
        from.len() == factor.len() && from.len() == to.len(),
        "a number of each kind a channel"
    );
    if !from.is_empty() {
        on!(isa, gate(plane, from, factor, to), else scalar::gate(plane, from, factor, to));
    }
}
