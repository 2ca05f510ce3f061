//! The network's arithmetic written down plainly: one plane after the other, nothing fused, nothing packed.
//!
//! It defines what the engine computes, bit for bit, and shows every activation on the way. It allocates and is slow;
//! the quantizer's report and the tests use it.

use crate::dense::{self, GATE_SHIFT, round};
use crate::layer::{Finish, Layer};
use crate::quantized::{QuantBlock, QuantGate, QuantNetwork};
use crate::topology::{Activation, Padding};

/// Which activation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// The first convolution's output.
    Stem,
    /// A block's expansion.
    Expand(usize),
    /// A block's depthwise convolution, before its gate.
    Depthwise(usize),
    /// The same behind the gate.
    Gated(usize),
    /// A block's output.
    Block(usize),
}

/// The bytes of one activation.
#[derive(Clone, Debug, PartialEq)]
pub struct Plane {
    /// Rows.
    pub height: usize,
    /// Columns.
    pub width: usize,
    /// Channels.
    pub channels: usize,
    /// Shape `[height, width, channels]`.
    pub bytes: Vec<u8>,
}

/// The features of one picture.
///
/// - `rgb`: shape `[height, width, 3]`.
/// - `observe`: is shown each activation that is carried in bytes; its grid stands in the network.
/// - returns: shape `[features]`.
pub fn run(
    network: &QuantNetwork,
    height: usize,
    width: usize,
    rgb: &[u8],
    observe: &mut dyn FnMut(Place, &Plane),
) -> Vec<f32> {
    let picture = Plane {
        height,
        width,
        channels: 3,
        bytes: rgb.to_vec(),
    };
    let padding = network.padding;
    let stem = Layer::hard_swish(&network.stem, &network.stem_output, network.sixth);
    let mut x = convolve(&stem, &picture, (3, 2), padding, &network.border, None);
    observe(Place::Stem, &x);
    let mut grid = &network.stem_output;
    for (index, block) in network.blocks.iter().enumerate() {
        let shape = network.family.blocks()[index];
        let activated = |conv, output| match shape.activation {
            Activation::HardSwish => Layer::hard_swish(conv, output, network.sixth),
            _ => Layer::relu(conv, output),
        };
        let mut y = x.clone();
        let mut zero = &grid.zero;
        if let Some((expand, output)) = &block.expand {
            y = convolve(&activated(expand, output), &x, (1, 1), padding, &[], None);
            observe(Place::Expand(index), &y);
            zero = &output.zero;
        }
        let depthwise = activated(&block.depthwise, &block.hidden);
        let reach = (shape.kernel, shape.stride);
        y = depthwise_convolve(&depthwise, &y, reach, padding, zero);
        observe(Place::Depthwise(index), &y);
        if let Some(gate) = &block.gate {
            apply_gate(gate, block, &mut y, network.sixth);
            observe(Place::Gated(index), &y);
        }
        let residual = block.residual.then_some(&x);
        let project = Layer::linear(
            &block.project,
            &block.output,
            block.residual.then_some(grid),
        );
        x = convolve(&project, &y, (1, 1), padding, &[], residual);
        observe(Place::Block(index), &x);
        grid = &block.output;
    }
    let last = Layer::pool(&network.last, network.sixth);
    let mut pooled = vec![0.0f32; last.output];
    for pixel in x.bytes.chunks_exact(x.channels) {
        for (channel, sum) in pooled.iter_mut().enumerate() {
            *sum += swish(sum_of_products(&last, channel, pixel), &last, channel);
        }
    }
    let pixels = dense::pixels(x.height * x.width);
    for (channel, value) in pooled.iter_mut().enumerate() {
        *value = (*value / pixels) * last.factor[channel];
    }
    match &network.pooled {
        None => pooled,
        Some(layer) => dense::plain(layer, &dense::enter(layer, &pooled))
            .iter()
            .map(|x| dense::hard_swish(*x, network.sixth))
            .collect(),
    }
}

/// Gates `y` in place.
fn apply_gate(gate: &QuantGate, block: &QuantBlock, y: &mut Plane, sixth: f32) {
    let mut sums = vec![0u32; y.channels];
    for pixel in y.bytes.chunks_exact(y.channels) {
        for (sum, byte) in sums.iter_mut().zip(pixel) {
            *sum += u32::from(*byte);
        }
    }
    let means = dense::means(&sums, y.height * y.width);
    let hidden: Vec<f32> = dense::plain(&gate.squeeze, &means)
        .iter()
        .map(|x| x.max(0.0))
        .collect();
    let open = dense::plain(&gate.excite, &dense::enter(&gate.excite, &hidden));
    let ratios = dense::ratios(&block.hidden, &gate.gated);
    for pixel in y.bytes.chunks_exact_mut(y.channels) {
        for (channel, byte) in pixel.iter_mut().enumerate() {
            let factor = dense::gate(open[channel], sixth, ratios[channel]);
            let centred = i32::from(*byte) - i32::from(block.hidden.zero[channel]);
            let product = (centred << GATE_SHIFT) * i32::from(factor);
            let gated = ((product >> 14) + 1) >> 1;
            *byte = clamp_byte(gated + i32::from(gate.gated.zero[channel]));
        }
    }
}

/// A convolution over all channels: 1x1, or the stem's.
fn convolve(
    layer: &Layer,
    x: &Plane,
    (kernel, stride): (usize, usize),
    padding: Padding,
    border: &[u8],
    residual: Option<&Plane>,
) -> Plane {
    let (top, height) = padding.axis(x.height, kernel, stride);
    let (left, width) = padding.axis(x.width, kernel, stride);
    let mut bytes = Vec::with_capacity(height * width * layer.output);
    let mut patch = Vec::with_capacity(layer.patch);
    for row in 0..height {
        for column in 0..width {
            patch.clear();
            for y in 0..kernel {
                for z in 0..kernel {
                    let place = (row * stride + y, column * stride + z);
                    patch.extend_from_slice(pixel(x, place, (top, left)).unwrap_or(border));
                }
            }
            for channel in 0..layer.output {
                let sum = sum_of_products(layer, channel, &patch);
                let added = residual.map(|plane| plane.bytes[bytes.len()]);
                bytes.push(finish(sum, layer, channel, added));
            }
        }
    }
    Plane {
        height,
        width,
        channels: layer.output,
        bytes,
    }
}

fn depthwise_convolve(
    layer: &Layer,
    x: &Plane,
    (kernel, stride): (usize, usize),
    padding: Padding,
    zero: &[u8],
) -> Plane {
    let (top, height) = padding.axis(x.height, kernel, stride);
    let (left, width) = padding.axis(x.width, kernel, stride);
    let mut bytes = Vec::with_capacity(height * width * x.channels);
    for row in 0..height {
        for column in 0..width {
            for channel in 0..x.channels {
                let mut sum = layer.bias[channel];
                for y in 0..kernel {
                    for z in 0..kernel {
                        let place = (row * stride + y, column * stride + z);
                        let byte = pixel(x, place, (top, left)).unwrap_or(zero)[channel];
                        let weight = layer.weight[channel * layer.patch + y * kernel + z];
                        sum += i32::from(byte) * i32::from(weight);
                    }
                }
                bytes.push(finish(sum, layer, channel, None));
            }
        }
    }
    Plane {
        height,
        width,
        channels: x.channels,
        bytes,
    }
}

/// The channels of one pixel, `None` in the padding.
fn pixel(x: &Plane, (row, column): (usize, usize), (top, left): (usize, usize)) -> Option<&[u8]> {
    let row = row.checked_sub(top).filter(|row| *row < x.height)?;
    let column = column
        .checked_sub(left)
        .filter(|column| *column < x.width)?;
    let first = (row * x.width + column) * x.channels;
    Some(&x.bytes[first..first + x.channels])
}

fn sum_of_products(layer: &Layer, channel: usize, patch: &[u8]) -> i32 {
    let weights = &layer.weight[channel * layer.patch..][..layer.patch];
    let products = weights.iter().zip(patch);
    layer.bias[channel]
        + products
            .map(|(weight, byte)| i32::from(*weight) * i32::from(*byte))
            .sum::<i32>()
}

/// Hard-swish in units of the sum, without the factor.
#[expect(
    clippy::cast_precision_loss,
    reason = "the nearest f32 is the definition"
)]
pub(crate) fn swish(sum: i32, layer: &Layer, channel: usize) -> f32 {
    let a = sum as f32;
    a * (a + layer.low[channel]).max(0.0).min(layer.high[channel])
}

/// A sum as a byte.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    reason = "the nearest f32 is the definition; clamped before the cast"
)]
pub(crate) fn finish(sum: i32, layer: &Layer, channel: usize, residual: Option<u8>) -> u8 {
    let factor = layer.factor[channel];
    let value = match layer.finish {
        Finish::HardSwish => swish(sum, layer, channel) * factor,
        _ => sum as f32 * factor,
    };
    let value = residual.map_or(value, |byte| {
        value + f32::from(byte) * layer.residual[channel]
    });
    let within = value.clamp(f32::from(i16::MIN), f32::from(i16::MAX));
    let rounded = round(within) as i16;
    clamp_byte(i32::from(
        rounded.saturating_add(i16::from(layer.zero[channel])),
    ))
}

pub(crate) fn clamp_byte(value: i32) -> u8 {
    u8::try_from(value.clamp(0, 255)).unwrap_or(u8::MAX)
}
