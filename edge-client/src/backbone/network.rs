//! MobileNetV3 put together from a table and the shapes in the file.

use candle_core::{Result, Tensor};

use super::BackboneError;
use super::ops::{Activation, Depthwise, Gate, Pointwise, Stem};
use super::weights::Weights;

/// 1/6 in half precision, 0.1666259765625: what a network that was shipped in half precision multiplies by.
const SIXTH_HALF: f32 = 1365.0 / 8192.0;

/// One row a block: kernel, stride, squeeze-excite, hard-swish.
type Blocks = &'static [(usize, usize, bool, bool)];

const LARGE: Blocks = &[
    (3, 1, false, false),
    (3, 2, false, false),
    (3, 1, false, false),
    (5, 2, true, false),
    (5, 1, true, false),
    (5, 1, true, false),
    (3, 2, false, true),
    (3, 1, false, true),
    (3, 1, false, true),
    (3, 1, false, true),
    (3, 1, true, true),
    (3, 1, true, true),
    (5, 2, true, true),
    (5, 1, true, true),
    (5, 1, true, true),
];

const SMALL: Blocks = &[
    (3, 2, true, false),
    (3, 2, false, false),
    (3, 1, false, false),
    (5, 2, true, true),
    (5, 1, true, true),
    (5, 1, true, true),
    (5, 1, true, true),
    (5, 1, true, true),
    (5, 2, true, true),
    (5, 1, true, true),
    (5, 1, true, true),
];

/// Colour values as the first convolution wants them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Normalisation {
    /// 0..255 as they are.
    Raw,
    /// `x / 127.5 - 1`.
    SignedUnit,
}

#[derive(Debug)]
pub(super) struct Network {
    pub(super) normalisation: Normalisation,
    stem: Stem,
    blocks: Vec<Block>,
    last: Pointwise,
    /// One more layer on the pooled features.
    pub(super) pooled: Option<Pointwise>,
}

#[derive(Debug)]
struct Block {
    expand: Option<Pointwise>,
    depthwise: Depthwise,
    gate: Option<Gate>,
    project: Pointwise,
    residual: bool,
}

impl Network {
    pub(super) fn assemble(mut weights: Weights) -> std::result::Result<Self, BackboneError> {
        let expect = |weights: &Weights, key: &'static str, choices: &'static [&'static str]| {
            let got = weights.metadata(key);
            choices
                .iter()
                .position(|choice| got.contains(choice))
                .ok_or_else(|| BackboneError::Metadata {
                    key,
                    got: got.to_owned(),
                    choices,
                })
        };
        expect(&weights, "padding", &["TensorFlow SAME"])?;
        expect(&weights, "batchnorm", &["folded"])?;
        let model = expect(
            &weights,
            "model",
            &["MobileNetV3-Large", "MobileNetV3-Small"],
        )?;
        let table = [LARGE, SMALL][model];
        let input = expect(&weights, "input", &["raw 0..255", "x/127.5-1"])?;
        let normalisation = [Normalisation::Raw, Normalisation::SignedUnit][input];
        let sixth = if weights.half { SIXTH_HALF } else { 1.0 / 6.0 };
        let hard_swish = Activation::HardSwish { sixth };

        let stem = weights.convolution("features.0.0", None, 3, 3)?;
        let mut channels = stem.output;
        let stem = Stem {
            convolution: pointwise(stem, hard_swish),
            kernel: 3,
            stride: 2,
        };
        let mut blocks = Vec::with_capacity(table.len());
        for (index, &row) in table.iter().enumerate() {
            let prefix = format!("features.{}.block", index + 1);
            let (block, output) = Block::take(&mut weights, &prefix, channels, row, sixth)?;
            blocks.push(block);
            channels = output;
        }
        let name = format!("features.{}.0", table.len() + 1);
        let last = weights.convolution(&name, None, channels, 1)?;
        let mut pooled = None;
        if weights.contains("classifier.0.weight") {
            let layer = weights.convolution("classifier.0", None, last.output, 1)?;
            pooled = Some(pointwise(layer, hard_swish));
        }
        weights.finish()?;
        Ok(Self {
            normalisation,
            stem,
            blocks,
            last: pointwise(last, hard_swish),
            pooled,
        })
    }

    /// Channels of the feature map.
    pub(super) fn map_channels(&self) -> usize {
        self.last.bias.len()
    }

    /// `[n, height, width, 3]` to `[n, ceil(height / 32), ceil(width / 32), map_channels]`.
    pub(super) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let mut x = self.stem.forward(x)?;
        for block in &self.blocks {
            x = block.forward(&x)?;
        }
        self.last.forward(&x)
    }
}

impl Block {
    /// Takes one block's tensors; returns it with its output channels.
    fn take(
        weights: &mut Weights,
        prefix: &str,
        input: usize,
        (kernel, stride, squeeze_excite, swish): (usize, usize, bool, bool),
        sixth: f32,
    ) -> std::result::Result<(Self, usize), BackboneError> {
        let activation = if swish {
            Activation::HardSwish { sixth }
        } else {
            Activation::Relu
        };
        // The first block of either network has no expansion: its first convolution is the depthwise one.
        let expanding = prefix != "features.1.block";
        let mut part = 0;
        let mut next = || {
            part += 1;
            format!("{prefix}.{}", part - 1)
        };
        let (expand, channels) = if expanding {
            let expand = weights.convolution(&format!("{}.0", next()), None, input, 1)?;
            let channels = expand.output;
            (Some(pointwise(expand, activation)), channels)
        } else {
            (None, input)
        };
        let depthwise = weights.convolution(&format!("{}.0", next()), Some(channels), 1, kernel)?;
        let area = kernel * kernel;
        let depthwise = Depthwise {
            weight: depthwise.matrix(),
            bias: depthwise.bias,
            kernel,
            stride,
            activation,
        };
        debug_assert_eq!(depthwise.weight.dim(), (area, channels));
        let gate = if squeeze_excite {
            let name = next();
            let squeeze = weights.convolution(&format!("{name}.fc1"), None, channels, 1)?;
            let excite =
                weights.convolution(&format!("{name}.fc2"), Some(channels), squeeze.output, 1)?;
            Some(Gate {
                squeeze: squeeze.matrix(),
                squeeze_bias: squeeze.bias,
                excite: excite.matrix(),
                excite_bias: excite.bias,
                sixth,
            })
        } else {
            None
        };
        let project = weights.convolution(&format!("{}.0", next()), None, channels, 1)?;
        let output = project.output;
        let block = Self {
            expand,
            depthwise,
            gate,
            project: pointwise(project, Activation::Identity),
            residual: stride == 1 && input == output,
        };
        Ok((block, output))
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let mut y = match &self.expand {
            Some(expand) => self.depthwise.forward(&expand.forward(x)?)?,
            None => self.depthwise.forward(x)?,
        };
        if let Some(gate) = &self.gate {
            y = gate.forward(&y)?;
        }
        if self.residual {
            self.project.forward_add(&y, x)
        } else {
            self.project.forward(&y)
        }
    }
}

fn pointwise(convolution: super::weights::Convolution, activation: Activation) -> Pointwise {
    Pointwise {
        weight: convolution.matrix(),
        bias: convolution.bias,
        activation,
    }
}
