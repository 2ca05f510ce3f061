//! A network in int8: what stands in its file, before a CPU's kernels lay it out for themselves.
//!
//! Arithmetic (the scalar kernels are its definition): an activation is a byte `q` that stands for
//! `(q - zero) * scale`, with `scale` and `zero` of its channel's [`Grid`]. A consumer has its input's scales folded
//! into its weights and the zero points into its bias, so that `(sum(weight * q) + bias) * scale` is the convolution's
//! real output. Means, gates and pooled features are carried in 16 bits or f32, never in 8.

use crate::float::Normalisation;
use crate::topology::{Family, Padding};

/// The bytes of one activation: real value `(q - zero) * scale`.
#[derive(Clone, Debug, PartialEq)]
pub struct Grid {
    /// Step of each channel, positive.
    pub scale: Vec<f32>,
    /// The byte that stands for 0 in each channel; all 0 behind a `ReLU`.
    pub zero: Vec<u8>,
}

/// A convolution on bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct QuantConv {
    /// Output channels.
    pub output: usize,
    /// Input channels an output sees: 1 for a depthwise convolution.
    pub input: usize,
    /// Side of the square kernel.
    pub kernel: usize,
    /// Shape `[output, input, kernel, kernel]`, each in -127..=127.
    pub weight: Vec<i8>,
    /// Added to the sum of products, shape `[output]`: the float bias, the zero points of the input, and whatever
    /// calibration corrected.
    pub bias: Vec<i32>,
    /// Real value of one unit of the sum, shape `[output]`, positive.
    pub scale: Vec<f32>,
}

/// A matrix on a vector of 16-bit numbers: `(sum(weight * u) * scale) + bias`, in f32.
#[derive(Clone, Debug, PartialEq)]
pub struct Dense {
    /// Rows.
    pub output: usize,
    /// Columns.
    pub input: usize,
    /// Shape `[output, input]`, each in -127..=127.
    pub weight: Vec<i8>,
    /// Shape `[output]`.
    pub scale: Vec<f32>,
    /// Shape `[output]`.
    pub bias: Vec<f32>,
    /// A real input `x` enters as `u = round((x - low) / step)`, within 0..=65535. For the squeeze, whose input is 256
    /// times the mean byte, `low` is 0 and `step` 1.
    pub low: f32,
    /// See `low`.
    pub step: f32,
}

/// Squeeze-excite. A gated byte is `round((q - zero) * gate * from.scale / to.scale) + to.zero`.
#[derive(Clone, Debug, PartialEq)]
pub struct QuantGate {
    /// Mean bytes to few channels, `ReLU`.
    pub squeeze: Dense,
    /// Back to all channels; the gate is `relu6(x + 3) / 6`.
    pub excite: Dense,
    /// The bytes after the gate.
    pub gated: Grid,
}

/// One block.
#[derive(Clone, Debug, PartialEq)]
pub struct QuantBlock {
    /// With the grid of its output.
    pub expand: Option<(QuantConv, Grid)>,
    /// Its input's grid is the expansion's, or the block's input.
    pub depthwise: QuantConv,
    /// The depthwise convolution's output.
    pub hidden: Grid,
    /// Where the block has squeeze-excite.
    pub gate: Option<QuantGate>,
    /// 1x1 without activation.
    pub project: QuantConv,
    /// The block's output, the residual included.
    pub output: Grid,
    /// Whether the block's input is added.
    pub residual: bool,
}

/// A whole feature extractor in int8.
#[derive(Clone, Debug, PartialEq)]
pub struct QuantNetwork {
    /// Which network.
    pub family: Family,
    /// Where padding goes, in all convolutions.
    pub padding: Padding,
    /// As in the f32 network; already folded into the first convolution, kept to tell what the file was made of.
    pub normalisation: Normalisation,
    /// The constant for 1/6.
    pub sixth: f32,
    /// The byte around a picture, for red, green and blue: the nearest to what is zero after normalisation.
    pub border: [u8; 3],
    /// 3x3, stride 2, hard-swish, on the picture's bytes.
    pub stem: QuantConv,
    /// The first convolution's output.
    pub stem_output: Grid,
    /// As many as [`Family::blocks`].
    pub blocks: Vec<QuantBlock>,
    /// 1x1, hard-swish; its output stays in f32.
    pub last: QuantConv,
    /// One more layer with hard-swish on the feature vector.
    pub pooled: Option<Dense>,
}
