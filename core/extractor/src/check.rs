//! What must hold of a quantized network before any kernel sees it.
//!
//! Kernels rely on all of it: vectors are as long as the widths say, sums of products stay within 32 bits, and every
//! real value is far enough from the ends of f32 and i32 that no step overflows, whatever the picture.

use crate::names::{self, BlockNames};
use crate::quantized::{Dense, Grid, QuantConv, QuantGate, QuantNetwork};
use crate::topology::{Activation, Block};

/// Largest absolute value of a sum of products with its bias, exclusive.
pub const SUM_LIMIT: u64 = (1 << 31) - (1 << 24);
/// Largest absolute value in steps of the grid it is rounded to, exclusive, before it is clamped.
pub const STEPS_LIMIT: f64 = (1_u64 << 30) as f64;
/// Largest real value of a sum.
pub const REAL_LIMIT: f64 = 1e18;
/// Largest product within a hard-swish, in units of the sum: all pixels' products together still fit into f32.
pub const SWISH_LIMIT: f64 = 1e32;
/// Largest ratio of a gated grid's scales, before to after, exclusive.
pub const GATE_LIMIT: f32 = 32.0;

/// A tensor that no kernel may see.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("tensor {tensor}: {fault}")]
pub struct CheckError {
    /// Its name in a file.
    pub tensor: String,
    /// What is wrong with it.
    pub fault: Fault,
}

/// What is wrong with a tensor.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum Fault {
    /// There is one where the network has none, or none where it has one.
    #[error("{}", if *.expected { "missing" } else { "does not belong to the network" })]
    Presence {
        /// Whether the network has it.
        expected: bool,
    },
    /// Another number of channels than its neighbours have, or another kernel than the network's.
    #[error("width or kernel {got}, expected {expected}")]
    Width {
        /// What it has.
        got: usize,
        /// What fits; 1 stands for at least one where nothing else is known.
        expected: usize,
    },
    /// More or fewer numbers than its widths say.
    #[error("{got} numbers, expected {expected}")]
    Length {
        /// How many there are.
        got: usize,
        /// How many there should be.
        expected: usize,
    },
    /// A factor that is not positive, not finite, or so small or large that it or its inverse loses digits.
    #[error("value {got:?} at {index} is no usable scale")]
    Scale {
        /// Where.
        index: usize,
        /// The number.
        got: f32,
    },
    /// NaN, infinity, or a constant far from what it stands for.
    #[error("value {got:?} at {index} is out of range")]
    Value {
        /// Where.
        index: usize,
        /// The number.
        got: f32,
    },
    /// A weight of -128, which has no positive counterpart.
    #[error("weight -128 at {index}")]
    Weight {
        /// Where.
        index: usize,
    },
    /// A zero point behind a `ReLU` that wastes bytes on what never occurs.
    #[error("zero point {got} in channel {index}, expected 0 behind a ReLU")]
    Zero {
        /// Which channel.
        index: usize,
        /// The zero point.
        got: u8,
    },
    /// A sum of products or what is made of it could leave its range.
    #[error("output channel {index} could overflow")]
    Overflow {
        /// Which channel.
        index: usize,
    },
}

impl QuantNetwork {
    /// Checks the network as a whole.
    ///
    /// # Errors
    /// [`CheckError`] names the first tensor with which a kernel could go wrong.
    pub fn check(&self) -> Result<(), CheckError> {
        let constant = |tensor: &str, index, got: f32, good| {
            let fault = Fault::Value { index, got };
            fail_unless(good, tensor, "", fault)
        };
        let scale = self.normalisation.scale.iter().enumerate();
        for (index, &got) in scale {
            constant("normalisation scale", index, got, got.is_finite())?;
        }
        let shift = self.normalisation.shift.iter().enumerate();
        for (index, &got) in shift {
            constant("normalisation shift", index, got, got.is_finite())?;
        }
        let near = (self.sixth - 1.0 / 6.0).abs() < 1e-3;
        constant("sixth", 0, self.sixth, near)?;

        let stem = Place {
            name: names::STEM,
            input: 3,
            kernel: 3,
            output: None,
            activation: Activation::HardSwish,
        };
        stem.convolution(&self.stem, Some(&self.stem_output), None)?;
        let table = self.family.blocks();
        let last = names::last(table.len());
        let length = Fault::Length {
            got: self.blocks.len(),
            expected: table.len(),
        };
        fail_unless(self.blocks.len() == table.len(), "blocks", "", length)?;
        let mut before = &self.stem_output;
        for (index, (block, shape)) in self.blocks.iter().zip(table).enumerate() {
            block.check(index, shape, before)?;
            before = &block.output;
        }
        let place = Place {
            name: &last,
            input: before.scale.len(),
            kernel: 1,
            output: None,
            activation: Activation::HardSwish,
        };
        let largest = place.convolution(&self.last, None, None)?;
        if let Some(pooled) = &self.pooled {
            let input = self.last.output;
            dense(names::POOLED, pooled, input, None)?;
            entry(names::POOLED, pooled, largest)?;
        }
        Ok(())
    }
}

impl crate::quantized::QuantBlock {
    fn check(&self, index: usize, shape: &Block, input: &Grid) -> Result<(), CheckError> {
        let names = BlockNames::new(index, shape, self.expand.is_some());
        let mut channels = input.scale.len();
        if let (Some((expand, grid)), Some(name)) = (&self.expand, &names.expand) {
            let place = Place {
                name,
                input: channels,
                kernel: 1,
                output: None,
                activation: shape.activation,
            };
            place.convolution(expand, Some(grid), None)?;
            channels = expand.output;
        }
        let place = Place {
            name: &names.depthwise,
            input: 1,
            kernel: shape.kernel,
            output: Some(channels),
            activation: shape.activation,
        };
        place.convolution(&self.depthwise, Some(&self.hidden), None)?;
        match (&self.gate, &names.gate) {
            (Some(gate), Some(name)) => gate.check(name, &self.hidden, shape.activation)?,
            (None, None) => {}
            (gate, _) => {
                let expected = gate.is_none();
                let name = format!("features.{}.block squeeze-excite", index + 1);
                return Err(error(&name, "", Fault::Presence { expected }));
            }
        }
        let place = Place {
            name: &names.project,
            input: channels,
            kernel: 1,
            output: None,
            activation: Activation::Identity,
        };
        let derived = shape.stride == 1 && input.scale.len() == self.project.output;
        let presence = Fault::Presence { expected: derived };
        let name = format!("features.{}.block residual", index + 1);
        fail_unless(self.residual == derived, &name, "", presence)?;
        let residual = self.residual.then_some(input);
        place.convolution(&self.project, Some(&self.output), residual)?;
        Ok(())
    }
}

impl QuantGate {
    fn check(&self, name: &str, hidden: &Grid, activation: Activation) -> Result<(), CheckError> {
        let channels = hidden.scale.len();
        let squeeze_name = format!("{name}.fc1");
        let squeeze = &self.squeeze;
        let largest = dense(&squeeze_name, squeeze, channels, None)?;
        for (end, got, expected) in [(".low", squeeze.low, 0.0_f32), (".step", squeeze.step, 1.0)] {
            let good = got.to_bits() == expected.to_bits();
            fail_unless(good, &squeeze_name, end, Fault::Value { index: 0, got })?;
        }
        let excite_name = format!("{name}.fc2");
        dense(&excite_name, &self.excite, squeeze.output, Some(channels))?;
        entry(&excite_name, &self.excite, largest)?;
        grid(name, &self.gated, channels, activation)?;
        for (index, (from, to)) in hidden.scale.iter().zip(&self.gated.scale).enumerate() {
            let ratio = from / to;
            let good = is_scale(ratio) && ratio < GATE_LIMIT;
            let fault = Fault::Scale { index, got: *to };
            fail_unless(good, name, ".out_scale", fault)?;
        }
        Ok(())
    }
}

/// What a convolution's neighbours and the table say of it.
struct Place<'a> {
    name: &'a str,
    input: usize,
    kernel: usize,
    /// Where it is not free.
    output: Option<usize>,
    activation: Activation,
}

impl Place<'_> {
    /// Returns the largest absolute value that the sums can stand for.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "what saturates is refused"
    )]
    fn convolution(
        &self,
        layer: &QuantConv,
        out: Option<&Grid>,
        residual: Option<&Grid>,
    ) -> Result<f64, CheckError> {
        let name = self.name;
        width(name, layer.kernel, Some(self.kernel))?;
        width(name, layer.input, Some(self.input))?;
        width(name, layer.output, self.output)?;
        let outputs = layer.output;
        let area = layer.kernel * layer.kernel;
        let row = layer.input.saturating_mul(area);
        weights(name, &layer.weight, outputs, row)?;
        length(name, ".bias", layer.bias.len(), outputs)?;
        scales(name, ".scale", &layer.scale, outputs)?;
        if let Some(out) = out {
            grid(name, out, outputs, self.activation)?;
        }
        let mut largest = 0.0_f64;
        let rows = layer.weight.chunks_exact(row);
        let rest = layer.bias.iter().zip(&layer.scale);
        for (index, (weights, (bias, &scale))) in rows.zip(rest).enumerate() {
            let mut sum = 255 * magnitude(weights) + u64::from(bias.unsigned_abs());
            let unit = f64::from(scale);
            let mut real = sum as f64 * unit;
            largest = largest.max(real);
            let mut good = real <= REAL_LIMIT;
            let mut factor = unit;
            if self.activation == Activation::HardSwish {
                good &= sum as f64 * (6.0 / unit) < SWISH_LIMIT;
                factor *= unit / 6.0;
            }
            if let Some(out) = out {
                let step = f64::from(out.scale[index]);
                factor /= step;
                if let Some(residual) = residual {
                    let residual = f64::from(residual.scale[index]);
                    good &= is_scale((residual / step) as f32);
                    // Kernels take the residual's zero point into the bias.
                    sum = sum.saturating_add((255.0 * residual / unit).ceil() as u64);
                    real += 255.0 * residual;
                }
                good &= real / step < STEPS_LIMIT;
            }
            good &= is_scale(factor as f32) && sum < SUM_LIMIT;
            fail_unless(good, name, ".weight", Fault::Overflow { index })?;
        }
        Ok(largest)
    }
}

/// Returns the largest absolute value of an output.
fn dense(
    name: &str,
    layer: &Dense,
    input: usize,
    output: Option<usize>,
) -> Result<f64, CheckError> {
    width(name, layer.input, Some(input))?;
    width(name, layer.output, output)?;
    weights(name, &layer.weight, layer.output, input)?;
    scales(name, ".scale", &layer.scale, layer.output)?;
    length(name, ".bias", layer.bias.len(), layer.output)?;
    let bad = layer.bias.iter().position(|bias| !bias.is_finite());
    if let Some(index) = bad {
        let got = layer.bias[index];
        return Err(error(name, ".bias", Fault::Value { index, got }));
    }
    let mut largest = 0.0_f64;
    let rows = layer.weight.chunks_exact(input);
    let rest = layer.scale.iter().zip(&layer.bias);
    for (index, (weights, (&scale, &bias))) in rows.zip(rest).enumerate() {
        // Kernels may sum the two bytes of an input apart.
        let sum = magnitude(weights);
        let real = 65_535.0 * sum as f64 * f64::from(scale) + f64::from(bias.abs());
        let good = 255 * sum < SUM_LIMIT && real <= REAL_LIMIT;
        fail_unless(good, name, ".weight", Fault::Overflow { index })?;
        largest = largest.max(real);
    }
    Ok(largest)
}

/// Checks `low` and `step` of a layer whose inputs are at most `largest`.
fn entry(name: &str, layer: &Dense, largest: f64) -> Result<(), CheckError> {
    let (low, step) = (layer.low, layer.step);
    let fault = Fault::Value { index: 0, got: low };
    fail_unless(low.is_finite(), name, ".low", fault)?;
    let steps = (largest + f64::from(low.abs())) / f64::from(step);
    let fault = Fault::Scale {
        index: 0,
        got: step,
    };
    let good = is_scale(step) && steps < STEPS_LIMIT;
    fail_unless(good, name, ".step", fault)
}

fn grid(
    name: &str,
    grid: &Grid,
    channels: usize,
    activation: Activation,
) -> Result<(), CheckError> {
    scales(name, ".out_scale", &grid.scale, channels)?;
    length(name, ".out_zero", grid.zero.len(), channels)?;
    if activation == Activation::Relu
        && let Some(index) = grid.zero.iter().position(|zero| *zero != 0)
    {
        let got = grid.zero[index];
        return Err(error(name, ".out_zero", Fault::Zero { index, got }));
    }
    Ok(())
}

fn weights(name: &str, weight: &[i8], output: usize, row: usize) -> Result<(), CheckError> {
    let expected = output.saturating_mul(row);
    length(name, ".weight", weight.len(), expected)?;
    match weight.iter().position(|weight| *weight == i8::MIN) {
        Some(index) => Err(error(name, ".weight", Fault::Weight { index })),
        None => Ok(()),
    }
}

fn scales(name: &str, end: &str, scale: &[f32], channels: usize) -> Result<(), CheckError> {
    length(name, end, scale.len(), channels)?;
    match scale.iter().position(|scale| !is_scale(*scale)) {
        Some(index) => {
            let got = scale[index];
            Err(error(name, end, Fault::Scale { index, got }))
        }
        None => Ok(()),
    }
}

/// Whether a number and its inverse are positive and normal.
fn is_scale(scale: f32) -> bool {
    scale > 0.0 && scale.is_normal() && scale.recip().is_normal()
}

fn magnitude(weights: &[i8]) -> u64 {
    let magnitudes = weights.iter().map(|weight| weight.unsigned_abs());
    magnitudes.map(u64::from).sum()
}

fn width(name: &str, got: usize, expected: Option<usize>) -> Result<(), CheckError> {
    let good = got > 0 && expected.is_none_or(|expected| got == expected);
    let expected = expected.unwrap_or(1);
    fail_unless(good, name, ".weight", Fault::Width { got, expected })
}

fn length(name: &str, end: &str, got: usize, expected: usize) -> Result<(), CheckError> {
    fail_unless(got == expected, name, end, Fault::Length { got, expected })
}

fn fail_unless(good: bool, name: &str, end: &str, fault: Fault) -> Result<(), CheckError> {
    if good {
        Ok(())
    } else {
        Err(error(name, end, fault))
    }
}

fn error(name: &str, end: &str, fault: Fault) -> CheckError {
    CheckError {
        tensor: format!("{name}{end}"),
        fault,
    }
}
