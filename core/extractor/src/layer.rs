//! Convolutions as every kernel sees them: weights in patch order, and constants worked out once.
//!
//! A sum of products `a` (i32, taken to f32) becomes a byte in one of these ways, each operation rounded by itself and
//! never fused, so that every CPU gets the same bits:
//!
//! - `ReLU`: `round(a * factor)`;
//! - hard-swish: `round((a * min(max(a + low, 0), high)) * factor) + zero`;
//! - none: `round(a * factor) + zero`;
//! - none with a residual byte `r`: `round(a * factor + r * residual) + zero`.
//!
//! `round` takes ties to even and saturates to 16 bits, the sum with `zero` likewise, and the byte is clamped to
//! 0..=255.

use crate::quantized::{Grid, QuantConv};

/// Channels are stored in multiples of this.
pub(crate) const UNIT: usize = 16;

/// Channels with the padding behind them.
pub fn padded(channels: usize) -> usize {
    channels.next_multiple_of(UNIT)
}

/// How a sum becomes an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finish {
    Relu,
    HardSwish,
    Linear,
    /// As linear, with the block's input added.
    Residual,
    /// Hard-swish summed over all pixels, in f32 and in their order; `factor` is applied to the mean.
    Pool,
    /// The sums themselves.
    Raw,
}

/// A convolution with all that its kernel needs; vectors have one entry an output channel.
#[derive(Clone, Debug)]
pub struct Layer {
    pub(crate) output: usize,
    /// Length of a patch: `kernel * kernel * input`, in the order (y, x, channel).
    pub(crate) patch: usize,
    /// Shape `[output, patch]`.
    pub(crate) weight: Vec<i8>,
    pub(crate) bias: Vec<i32>,
    pub(crate) finish: Finish,
    pub(crate) factor: Vec<f32>,
    pub(crate) low: Vec<f32>,
    pub(crate) high: Vec<f32>,
    pub(crate) residual: Vec<f32>,
    pub(crate) zero: Vec<u8>,
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "constants are worked out in f64 and used in f32"
)]
impl Layer {
    fn bare(conv: &QuantConv, finish: Finish) -> Self {
        let area = conv.kernel * conv.kernel;
        let mut weight = Vec::with_capacity(conv.weight.len());
        for kernel in conv.weight.chunks_exact((area * conv.input).max(1)) {
            for place in 0..area {
                weight.extend((0..conv.input).map(|input| kernel[input * area + place]));
            }
        }
        Self {
            output: conv.output,
            patch: area * conv.input,
            weight,
            bias: conv.bias.clone(),
            finish,
            factor: vec![0.0; conv.output],
            low: vec![0.0; conv.output],
            high: vec![0.0; conv.output],
            residual: vec![0.0; conv.output],
            zero: vec![0; conv.output],
        }
    }

    fn with_factor(mut self, conv: &QuantConv, output: &Grid, power: i32) -> Self {
        for (channel, factor) in self.factor.iter_mut().enumerate() {
            let scale = f64::from(conv.scale[channel]).powi(power);
            *factor = (scale / f64::from(output.scale[channel])) as f32;
        }
        self.zero.clone_from(&output.zero);
        self
    }

    /// With a `ReLU` behind it.
    pub fn relu(conv: &QuantConv, output: &Grid) -> Self {
        Self::bare(conv, Finish::Relu).with_factor(conv, output, 1)
    }

    fn with_bounds(mut self, conv: &QuantConv) -> Self {
        for (channel, scale) in conv.scale.iter().enumerate() {
            self.low[channel] = (3.0 / f64::from(*scale)) as f32;
            self.high[channel] = (6.0 / f64::from(*scale)) as f32;
        }
        self
    }

    /// With a hard-swish behind it; `sixth` is the network's 1/6.
    pub fn hard_swish(conv: &QuantConv, output: &Grid, sixth: f32) -> Self {
        let mut layer = Self::bare(conv, Finish::HardSwish)
            .with_factor(conv, output, 2)
            .with_bounds(conv);
        for factor in &mut layer.factor {
            *factor = (f64::from(*factor) * f64::from(sixth)) as f32;
        }
        layer
    }

    /// Hard-swish behind the last convolution: `factor` takes the sum over pixels to the feature's sum.
    pub(crate) fn pool(conv: &QuantConv, sixth: f32) -> Self {
        let mut layer = Self::bare(conv, Finish::Pool).with_bounds(conv);
        for (factor, scale) in layer.factor.iter_mut().zip(&conv.scale) {
            *factor = (f64::from(*scale) * f64::from(*scale) * f64::from(sixth)) as f32;
        }
        layer
    }

    /// Sums alone.
    pub(crate) fn raw(conv: &QuantConv) -> Self {
        Self::bare(conv, Finish::Raw)
    }

    /// With nothing behind it.
    ///
    /// - `input`: the grid of the residual, where there is one. Its zero point goes into the bias, rounded to a unit of
    ///   the sum, which is a small part of an output step.
    pub fn linear(conv: &QuantConv, output: &Grid, input: Option<&Grid>) -> Self {
        let mut layer = Self::bare(conv, Finish::Linear).with_factor(conv, output, 1);
        if let Some(input) = input {
            layer.finish = Finish::Residual;
            for channel in 0..conv.output {
                let residual = f64::from(input.scale[channel]);
                layer.residual[channel] = (residual / f64::from(output.scale[channel])) as f32;
                let zero = f64::from(input.zero[channel]) * residual;
                let units = (zero / f64::from(conv.scale[channel])).round_ties_even();
                // Within what `check` leaves free below 2^31.
                let units = units.min(f64::from(1 << 23)) as i32;
                layer.bias[channel] -= units;
            }
        }
        layer
    }
}
