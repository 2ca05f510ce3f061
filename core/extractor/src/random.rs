//! Networks of random numbers: for benchmarks, whose time does not depend on what a network knows, and for tests.

use crate::float::{FloatBlock, FloatConv, FloatGate, FloatNetwork, Normalisation};
use crate::quantized::{Dense, Grid, QuantBlock, QuantConv, QuantGate, QuantNetwork};
use crate::topology::{Activation, Block, Family, Padding};

/// Channels of every layer; residuals and absent expansions follow from them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Widths {
    /// Output of the first convolution.
    pub stem: usize,
    /// As many as the network has blocks.
    pub blocks: Vec<BlockWidths>,
    /// Output of the last convolution.
    pub last: usize,
    /// Output of the layer on the pooled features, if there is to be one.
    pub pooled: Option<usize>,
}

/// Channels within one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockWidths {
    /// Behind the expanding convolution; there is none if this is the width of the block's input.
    pub expansion: usize,
    /// Between the two layers of squeeze-excite; unused where the block has none.
    pub squeeze: usize,
    /// Behind the projecting convolution.
    pub output: usize,
}

impl Widths {
    /// The widths of torchvision's networks.
    ///
    /// # Source
    /// torchvision, `models/mobilenetv3.py`, `_mobilenet_v3_conf` and `_make_divisible`.
    pub fn torchvision(family: Family, multiplier: f32) -> Self {
        let scaled = |width: usize| divisible(width as f32 * multiplier);
        let blocks: Vec<BlockWidths> = family
            .blocks()
            .iter()
            .map(|block| {
                let expansion = scaled(block.width.0);
                BlockWidths {
                    expansion,
                    squeeze: divisible(expansion as f32 / 4.0),
                    output: scaled(block.width.1),
                }
            })
            .collect();
        Self {
            stem: scaled(16),
            last: 6 * blocks.last().map_or(0, |block| block.output),
            blocks,
            pooled: None,
        }
    }
}

/// The multiple of 8 nearest to `width`, but neither 0 nor less than nine tenths of it.
fn divisible(width: f32) -> usize {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "widths are small and positive"
    )]
    let nearest = ((width + 4.0) as usize / 8 * 8).max(8);
    if (nearest as f32) < 0.9 * width {
        nearest + 8
    } else {
        nearest
    }
}

impl QuantNetwork {
    /// A network with torchvision's widths and plausible numbers: activations spread over their bytes.
    ///
    /// The same arguments give the same network on every machine.
    pub fn random(family: Family, width_multiplier: f32, seed: u64, padding: Padding) -> Self {
        let widths = Widths::torchvision(family, width_multiplier);
        Self::random_with(family, &widths, seed, padding)
    }

    /// [`Self::random`] with any widths.
    ///
    /// # Panics
    /// If there are not as many blocks as the network has, or a width is 0.
    pub fn random_with(family: Family, widths: &Widths, seed: u64, padding: Padding) -> Self {
        let table = family.blocks();
        assert_eq!(widths.blocks.len(), table.len(), "blocks of {family:?}");
        let mut dice = Dice(seed);
        // A picture's bytes around the middle: (q - 127.5) / 127.5.
        let picture = Signal {
            means: vec![127.5; 3],
            deviations: vec![255.0 / 12.0_f32.sqrt(); 3],
        };
        let stem = dice.convolution(widths.stem, &picture, 3, false);
        let (stem_output, mut signal) = dice.grid(widths.stem, Activation::HardSwish, 1.0);
        let mut blocks = Vec::with_capacity(table.len());
        let mut depth = 1.0;
        let mut input = widths.stem;
        for (shape, widths) in table.iter().zip(&widths.blocks) {
            let residual = shape.stride == 1 && input == widths.output;
            depth = if residual { depth + 1.0 } else { 1.0 };
            let (block, output) = dice.block(shape, *widths, input, &signal, depth);
            blocks.push(block);
            signal = output;
            input = widths.output;
        }
        let last = dice.convolution(widths.last, &signal, 1, false);
        let pooled = widths.pooled.map(|output| {
            dice.dense(
                output,
                widths.last,
                -0.375,
                1.0 / 16_384.0,
                6_144.0 + 4_915.0,
            )
        });
        Self {
            family,
            padding,
            normalisation: Normalisation {
                scale: [1.0 / 127.5; 3],
                shift: [-1.0; 3],
            },
            sixth: 1.0 / 6.0,
            border: [128; 3],
            stem,
            stem_output,
            blocks,
            last,
            pooled,
        }
    }
}

impl FloatNetwork {
    /// A network with torchvision's widths and weights of a usual size.
    ///
    /// The same arguments give the same network on every machine.
    pub fn random(family: Family, width_multiplier: f32, seed: u64, padding: Padding) -> Self {
        let widths = Widths::torchvision(family, width_multiplier);
        let mut dice = Dice(seed);
        let stem = dice.float_convolution(widths.stem, 3, 3);
        let mut blocks = Vec::with_capacity(widths.blocks.len());
        let mut input = widths.stem;
        for (shape, widths) in family.blocks().iter().zip(&widths.blocks) {
            let channels = widths.expansion;
            let expand = (channels != input).then(|| dice.float_convolution(channels, input, 1));
            let depthwise = dice.float_convolution(channels, 1, shape.kernel);
            let gate = shape.squeeze_excite.then(|| FloatGate {
                squeeze: dice.float_convolution(widths.squeeze, channels, 1),
                excite: dice.float_convolution(channels, widths.squeeze, 1),
            });
            blocks.push(FloatBlock {
                expand,
                depthwise,
                gate,
                project: dice.float_convolution(widths.output, channels, 1),
                residual: shape.stride == 1 && input == widths.output,
            });
            input = widths.output;
        }
        Self {
            family,
            padding,
            normalisation: Normalisation {
                scale: [1.0 / 127.5; 3],
                shift: [-1.0; 3],
            },
            sixth: 1.0 / 6.0,
            stem,
            blocks,
            last: dice.float_convolution(widths.last, input, 1),
            pooled: None,
        }
    }
}

/// How the bytes of one activation are spread, by channel.
struct Signal {
    means: Vec<f32>,
    deviations: Vec<f32>,
}

/// Random numbers: `SplitMix64`.
///
/// # Source
/// Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators", figure 17 (as used in Java 8).
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Evenly within `low..high`.
    fn within(&mut self, low: f32, high: f32) -> f32 {
        // 24 bits, which f32 holds exactly.
        let unit = (self.next() >> 40) as f32 / 16_777_216.0;
        low + (high - low) * unit
    }

    /// Weights with the variance that keeps a signal's size through a `ReLU`.
    fn float_convolution(&mut self, output: usize, input: usize, kernel: usize) -> FloatConv {
        let fan_in = input * kernel * kernel;
        let bound = (6.0 / fan_in as f32).sqrt();
        FloatConv {
            output,
            input,
            kernel,
            weight: (0..output * fan_in)
                .map(|_| self.within(-bound, bound))
                .collect(),
            bias: (0..output).map(|_| self.within(-0.5, 0.5)).collect(),
        }
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "a remainder of 255 less 127 is in -127..=127"
    )]
    fn weights(&mut self, count: usize) -> Vec<i8> {
        (0..count)
            .map(|_| ((self.next() >> 32) % 255).cast_signed() - 127)
            .map(|weight| weight as i8)
            .collect()
    }

    /// Sums have the standard deviation that stands for about 1 and a mean of about 0.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "sums of so few small products"
    )]
    fn convolution(
        &mut self,
        output: usize,
        from: &Signal,
        kernel: usize,
        depthwise: bool,
    ) -> QuantConv {
        let area = kernel * kernel;
        let input = if depthwise { 1 } else { from.means.len() };
        let weight = self.weights(output * input * area);
        let (mut bias, mut scale) = (Vec::new(), Vec::new());
        for (channel, row) in weight.chunks_exact(input * area).enumerate() {
            let (mut mean, mut variance) = (0.0_f32, 0.0_f32);
            for (place, weight) in row.iter().enumerate() {
                let source = if depthwise { channel } else { place / area };
                let weight = f32::from(*weight);
                mean += weight * from.means[source];
                let product = weight * from.deviations[source];
                variance += product * product;
            }
            let deviation = variance.sqrt().max(1.0);
            let offset = self.within(-0.5, 0.5) * deviation;
            bias.push((offset - mean).round() as i32);
            scale.push(self.within(0.75, 1.25) / deviation);
        }
        QuantConv {
            output,
            input,
            kernel,
            weight,
            bias,
            scale,
        }
    }

    /// A grid for values whose standard deviation before the activation is `deviation`, and the spread of its bytes.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "zero points lie within 0..=255"
    )]
    fn grid(&mut self, channels: usize, activation: Activation, deviation: f32) -> (Grid, Signal) {
        let (range, zero, mean, spread) = match activation {
            Activation::Relu => (6.0, (0.0, 0.0), 0.4, 0.58),
            Activation::HardSwish => (5.0, (20.0, 40.0), 0.17, 0.55),
            Activation::Identity => (8.0, (104.0, 152.0), 0.0, 1.0),
        };
        let mut scale = Vec::with_capacity(channels);
        let mut zeros = Vec::with_capacity(channels);
        let mut signal = Signal {
            means: Vec::with_capacity(channels),
            deviations: Vec::with_capacity(channels),
        };
        for _ in 0..channels {
            let step = range * deviation / 255.0 * self.within(0.75, 1.25);
            let zero = self.within(zero.0, zero.1).round();
            signal.means.push(zero + mean * deviation / step);
            signal.deviations.push(spread * deviation / step);
            scale.push(step);
            zeros.push(zero as u8);
        }
        let zero = zeros;
        (Grid { scale, zero }, signal)
    }

    /// - `typical`: an input's usual distance from 0, in steps.
    fn dense(&mut self, output: usize, input: usize, low: f32, step: f32, typical: f32) -> Dense {
        let weight = self.weights(output * input);
        let (mut scale, mut bias) = (Vec::new(), Vec::new());
        for row in weight.chunks_exact(input) {
            let squares = row
                .iter()
                .map(|weight| f32::from(*weight) * f32::from(*weight));
            let deviation = (squares.sum::<f32>().sqrt() * typical).max(1.0);
            scale.push(self.within(1.0, 2.0) / deviation);
            bias.push(self.within(-0.5, 1.5));
        }
        Dense {
            output,
            input,
            weight,
            scale,
            bias,
            low,
            step,
        }
    }

    fn block(
        &mut self,
        shape: &Block,
        widths: BlockWidths,
        input: usize,
        from: &Signal,
        depth: f32,
    ) -> (QuantBlock, Signal) {
        let channels = widths.expansion;
        let (mut expand, mut expanded) = (None, None);
        if channels != input {
            let layer = self.convolution(channels, from, 1, false);
            let (grid, signal) = self.grid(channels, shape.activation, 1.0);
            expand = Some((layer, grid));
            expanded = Some(signal);
        }
        let from = expanded.as_ref().unwrap_or(from);
        let depthwise = self.convolution(channels, from, shape.kernel, true);
        let (hidden, mut signal) = self.grid(channels, shape.activation, 1.0);
        let gate = shape.squeeze_excite.then(|| {
            let squeeze = self.dense(widths.squeeze, channels, 0.0, 1.0, 256.0 * 30.0);
            let excite = self.dense(channels, widths.squeeze, 0.0, 8.0 / 65_535.0, 8_192.0);
            let (mut gated, spread) = self.grid(channels, shape.activation, 0.6);
            for (to, from) in gated.scale.iter_mut().zip(&hidden.scale) {
                *to = from * self.within(0.6, 0.8);
            }
            signal = spread;
            QuantGate {
                squeeze,
                excite,
                gated,
            }
        });
        let project = self.convolution(widths.output, &signal, 1, false);
        let (output, spread) = self.grid(widths.output, Activation::Identity, depth.sqrt());
        let block = QuantBlock {
            expand,
            depthwise,
            hidden,
            gate,
            project,
            output,
            residual: shape.stride == 1 && input == widths.output,
        };
        (block, spread)
    }
}
