//! The kernels once for every instruction set.
//!
//! Pointwise: a tile of pixels times units keeps its sums in registers while it runs down the patch; weights are read
//! once a tile, activations four bytes at a time. Depthwise: the rows under the kernel are interleaved, so that a quad
//! holds four taps of one channel; two output rows share what was interleaved.

mod depthwise;
mod gating;
mod pointwise;

use super::lanes::Lanes;
use crate::layer::Finish;
pub(super) use depthwise::{Rows, depthwise, places, quads_bytes, taps};
pub(super) use gating::{gate, sums};
pub(super) use pointwise::{Run, TILE_ROWS, pointwise, tile_units};

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

const RELU: u8 = Finish::Relu as u8;
const SWISH: u8 = Finish::HardSwish as u8;
const LINEAR: u8 = Finish::Linear as u8;
const RESIDUAL: u8 = Finish::Residual as u8;
const POOL: u8 = Finish::Pool as u8;
const RAW: u8 = Finish::Raw as u8;

/// How many of `left` pixels the next tile takes, at most `rows`, so that tiles come out even.
#[inline(always)]
fn share(left: usize, rows: usize) -> usize {
    left.div_ceil(left.div_ceil(rows))
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
