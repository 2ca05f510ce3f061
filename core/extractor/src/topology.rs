//! What the two MobileNetV3 networks are, apart from widths and numbers.
//!
//! Widths are never written down here: whoever reads a file takes them from the shapes of its tensors.

/// Which of the two networks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// MobileNetV3-Small: 11 blocks.
    Small,
    /// MobileNetV3-Large: 15 blocks.
    Large,
}

/// What follows a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// Nothing.
    Identity,
    /// `max(x, 0)`.
    Relu,
    /// `x * relu6(x + 3) / 6`.
    HardSwish,
}

/// One inverted residual block: expand, depthwise, squeeze-excite, project.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Side of the depthwise kernel.
    pub kernel: usize,
    /// Stride of the depthwise convolution.
    pub stride: usize,
    /// Whether channels are gated by what squeeze-excite makes of their means.
    pub squeeze_excite: bool,
    /// After the expanding and the depthwise convolution.
    pub activation: Activation,
    /// Expansion and output channels of torchvision's network at width 1.
    pub width: (usize, usize),
}

const fn block(
    kernel: usize,
    width: (usize, usize),
    squeeze_excite: bool,
    activation: Activation,
    stride: usize,
) -> Block {
    Block {
        kernel,
        stride,
        squeeze_excite,
        activation,
        width,
    }
}

use Activation::{HardSwish, Relu};

const SMALL: &[Block] = &[
    block(3, (16, 16), true, Relu, 2),
    block(3, (72, 24), false, Relu, 2),
    block(3, (88, 24), false, Relu, 1),
    block(5, (96, 40), true, HardSwish, 2),
    block(5, (240, 40), true, HardSwish, 1),
    block(5, (240, 40), true, HardSwish, 1),
    block(5, (120, 48), true, HardSwish, 1),
    block(5, (144, 48), true, HardSwish, 1),
    block(5, (288, 96), true, HardSwish, 2),
    block(5, (576, 96), true, HardSwish, 1),
    block(5, (576, 96), true, HardSwish, 1),
];

const LARGE: &[Block] = &[
    block(3, (16, 16), false, Relu, 1),
    block(3, (64, 24), false, Relu, 2),
    block(3, (72, 24), false, Relu, 1),
    block(5, (72, 40), true, Relu, 2),
    block(5, (120, 40), true, Relu, 1),
    block(5, (120, 40), true, Relu, 1),
    block(3, (240, 80), false, HardSwish, 2),
    block(3, (200, 80), false, HardSwish, 1),
    block(3, (184, 80), false, HardSwish, 1),
    block(3, (184, 80), false, HardSwish, 1),
    block(3, (480, 112), true, HardSwish, 1),
    block(3, (672, 112), true, HardSwish, 1),
    block(5, (672, 160), true, HardSwish, 2),
    block(5, (960, 160), true, HardSwish, 1),
    block(5, (960, 160), true, HardSwish, 1),
];

impl Family {
    /// The blocks in order. The first convolution (3x3, stride 2, hard-swish) stands before them, the last one (1x1,
    /// hard-swish) behind.
    ///
    /// # Source
    /// Howard et al. 2019, "Searching for MobileNetV3", tables 1 and 2.
    pub fn blocks(self) -> &'static [Block] {
        match self {
            Self::Small => SMALL,
            Self::Large => LARGE,
        }
    }

    /// Lower-case name, as in files and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Small => "small",
            Self::Large => "large",
        }
    }
}

/// Where a convolution's padding goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Padding {
    /// TensorFlow's: as much as `ceil(input / stride)` outputs need, the smaller half before.
    Same,
    /// PyTorch's: `kernel / 2` on each side.
    Symmetric,
}

impl Padding {
    /// How far one axis of a convolution reaches.
    ///
    /// - returns: pixels of padding before the first one, and the length of the output. Both conventions give
    ///   `ceil(input / stride)` outputs for odd kernels.
    pub fn axis(self, input: usize, kernel: usize, stride: usize) -> (usize, usize) {
        let output = input.div_ceil(stride);
        let before = match self {
            Self::Symmetric => kernel / 2,
            Self::Same => (output.saturating_sub(1) * stride + kernel).saturating_sub(input) / 2,
        };
        (before, output)
    }

    /// Lower-case name, as in files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Same => "same",
            Self::Symmetric => "symmetric",
        }
    }
}
