//! Runs a quantized network: one fixed arena a thread, nothing allocated per picture.
//!
//! A block's expansion is never a whole plane: rows go into a ring just large enough for the depthwise kernel, one or
//! two output rows are made from it, and, where no gate stands between, projected at once. So the working set stays in
//! a small cache. Invariant: features depend on the network and the picture alone, not on the instruction set, on what
//! ran before, or on other threads.

mod session;

use std::sync::Arc;

use crate::check::CheckError;
use crate::dense::ratios;
use crate::kernels::{Depthwise, Isa, Pointwise};
use crate::layer::{Layer, padded};
use crate::quantized::{Dense, Grid, QuantBlock, QuantConv, QuantGate, QuantNetwork};
use crate::topology::{self, Activation, Padding};
pub use session::{Session, Stage};

/// Why a network cannot run.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The network's numbers are not fit.
    #[error(transparent)]
    Network(#[from] CheckError),
    /// An instruction set was forced that is not there.
    #[error("this CPU has no {isa}; it has {}", available())]
    Isa {
        /// What was asked for.
        isa: Isa,
    },
}

fn available() -> String {
    let here = Isa::ALL.into_iter().filter(|isa| isa.is_available());
    here.map(Isa::name).collect::<Vec<_>>().join(", ")
}

/// A network laid out for one instruction set; threads share it and each run their own [`Session`].
#[derive(Clone, Debug)]
pub struct Model {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    isa: Isa,
    padding: Padding,
    sixth: f32,
    border: [u8; 3],
    stem: Pointwise,
    stem_channels: usize,
    blocks: Vec<Block>,
    last: Pointwise,
    /// For each feature, from the mean of the sums to the feature.
    last_factor: Vec<f32>,
    pooled: Option<Matrix>,
}

#[derive(Debug)]
struct Block {
    expand: Option<Pointwise>,
    depthwise: Depthwise,
    kernel: usize,
    stride: usize,
    /// Stored channels of the block's input, the depthwise convolution and the output.
    input: usize,
    hidden: usize,
    output: usize,
    /// The byte around the depthwise convolution's input, by stored channel.
    zero: Vec<u8>,
    gate: Option<Gate>,
    project: Pointwise,
    residual: bool,
}

#[derive(Debug)]
struct Gate {
    squeeze: Matrix,
    excite: Matrix,
    ratios: Vec<f32>,
    from: Vec<u8>,
    to: Vec<u8>,
}

/// A [`Dense`] on the pointwise kernels.
#[derive(Debug)]
struct Matrix {
    kernel: Pointwise,
    input: usize,
    output: usize,
    /// In the kernel's own order of channels.
    scale: Vec<f32>,
    bias: Vec<f32>,
    low: f32,
    step: f32,
}

impl Matrix {
    fn new(isa: Isa, dense: Dense) -> Self {
        let conv = QuantConv {
            output: dense.output,
            input: dense.input,
            kernel: 1,
            weight: dense.weight,
            bias: vec![0; dense.output],
            scale: dense.scale,
        };
        let kernel = Pointwise::new(isa, Layer::raw(&conv), 1);
        Self {
            input: dense.input,
            output: dense.output,
            scale: kernel.lanes(&conv.scale),
            bias: kernel.lanes(&dense.bias),
            kernel,
            low: dense.low,
            step: dense.step,
        }
    }
}

/// Zero points by stored channel.
fn zeros(grid: &Grid) -> Vec<u8> {
    let mut zero = grid.zero.clone();
    zero.resize(padded(zero.len()), 0);
    zero
}

impl Gate {
    fn new(isa: Isa, gate: QuantGate, hidden: &Grid) -> Self {
        Self {
            squeeze: Matrix::new(isa, gate.squeeze),
            excite: Matrix::new(isa, gate.excite),
            ratios: ratios(hidden, &gate.gated),
            from: zeros(hidden),
            to: zeros(&gate.gated),
        }
    }
}

impl Model {
    /// Checks a network and lays it out.
    ///
    /// # Errors
    /// [`EngineError`]; a network that passes never overflows.
    pub fn new(network: QuantNetwork, isa: Isa) -> Result<Self, EngineError> {
        if !isa.is_available() {
            return Err(EngineError::Isa { isa });
        }
        network.check()?;
        let sixth = network.sixth;
        let stem = Layer::hard_swish(&network.stem, &network.stem_output, sixth);
        let stem_channels = padded(network.stem.output);
        let mut grid = network.stem_output;
        let mut blocks = Vec::with_capacity(network.blocks.len());
        // Each block goes when it has been laid out, so that no more than one is there twice.
        for (block, shape) in network.blocks.into_iter().zip(network.family.blocks()) {
            let output = block.output.clone();
            blocks.push(Block::new(isa, block, *shape, &grid, sixth));
            grid = output;
        }
        let last = Layer::pool(&network.last, sixth);
        Ok(Self {
            shared: Arc::new(Shared {
                isa,
                padding: network.padding,
                sixth,
                border: network.border,
                stem: Pointwise::new(isa, stem, 3),
                stem_channels,
                blocks,
                last_factor: last.factor.clone(),
                last: Pointwise::new(isa, last, 1),
                pooled: network.pooled.map(|dense| Matrix::new(isa, dense)),
            }),
        })
    }

    /// The instruction set that it runs on.
    pub fn isa(&self) -> Isa {
        self.shared.isa
    }

    /// Length of a feature vector.
    pub fn features(&self) -> usize {
        let pooled = self.shared.pooled.as_ref();
        pooled.map_or(self.shared.last_factor.len(), |matrix| matrix.output)
    }

    /// A session for pictures of one size, with all the memory that it will ever use.
    pub fn session(&self, height: usize, width: usize) -> Session {
        Session::new(self.clone(), height, width)
    }
}

impl Block {
    /// - `grid`: of the block's input.
    fn new(isa: Isa, block: QuantBlock, shape: topology::Block, grid: &Grid, sixth: f32) -> Self {
        let activated = |conv: &QuantConv, output: &Grid| match shape.activation {
            Activation::HardSwish => Layer::hard_swish(conv, output, sixth),
            _ => Layer::relu(conv, output),
        };
        let around = block.expand.as_ref().map_or(grid, |(_, output)| output);
        let project = Layer::linear(
            &block.project,
            &block.output,
            block.residual.then_some(grid),
        );
        let depthwise = activated(&block.depthwise, &block.hidden);
        Self {
            kernel: shape.kernel,
            stride: shape.stride,
            input: padded(grid.zero.len()),
            hidden: padded(block.depthwise.output),
            output: padded(block.project.output),
            zero: zeros(around),
            residual: block.residual,
            project: Pointwise::new(isa, project, 1),
            depthwise: Depthwise::new(isa, depthwise, (shape.kernel, shape.stride)),
            expand: block
                .expand
                .map(|(conv, output)| Pointwise::new(isa, activated(&conv, &output), 1)),
            gate: block.gate.map(|gate| Gate::new(isa, gate, &block.hidden)),
        }
    }
}
