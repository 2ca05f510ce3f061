//! A pretrained network in f32: batch norm folded, whatever file it came from.

use crate::topology::{Family, Padding};

/// A convolution with its batch norm folded in.
#[derive(Clone, Debug, PartialEq)]
pub struct FloatConv {
    /// Output channels.
    pub output: usize,
    /// Input channels an output sees: 1 for a depthwise convolution.
    pub input: usize,
    /// Side of the square kernel.
    pub kernel: usize,
    /// Shape `[output, input, kernel, kernel]`.
    pub weight: Vec<f32>,
    /// Shape `[output]`.
    pub bias: Vec<f32>,
}

/// Squeeze-excite: `gate = relu6(excite(relu(squeeze(mean))) + 3) / 6`.
#[derive(Clone, Debug, PartialEq)]
pub struct FloatGate {
    /// From the channels' means to few.
    pub squeeze: FloatConv,
    /// From the few back to a gate for each channel.
    pub excite: FloatConv,
}

/// One block; what it is beside its numbers stands in [`Family::blocks`].
#[derive(Clone, Debug, PartialEq)]
pub struct FloatBlock {
    /// 1x1 before the depthwise convolution; absent where expansion and input have the same width.
    pub expand: Option<FloatConv>,
    /// One kernel a channel.
    pub depthwise: FloatConv,
    /// Where the block has squeeze-excite.
    pub gate: Option<FloatGate>,
    /// 1x1 behind, without activation.
    pub project: FloatConv,
    /// Whether the block's input is added to its output.
    pub residual: bool,
}

/// From bytes to what the first convolution wants: `byte * scale + shift`, for red, green and blue.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Normalisation {
    /// Factor of each colour.
    pub scale: [f32; 3],
    /// Summand of each colour.
    pub shift: [f32; 3],
}

/// A whole feature extractor.
#[derive(Clone, Debug, PartialEq)]
pub struct FloatNetwork {
    /// Which network.
    pub family: Family,
    /// Where padding goes, in all convolutions.
    pub padding: Padding,
    /// What happens to a picture's bytes.
    pub normalisation: Normalisation,
    /// The constant for 1/6 in hard-swish and gates: files in half precision come from networks that rounded it.
    pub sixth: f32,
    /// 3x3, stride 2, hard-swish.
    pub stem: FloatConv,
    /// As many as [`Family::blocks`].
    pub blocks: Vec<FloatBlock>,
    /// 1x1, hard-swish; its mean over the picture is the feature vector.
    pub last: FloatConv,
    /// One more layer with hard-swish on that vector, where the file has one.
    pub pooled: Option<FloatConv>,
}
