//! Walks through the network and fits one layer after the other.

use wayside_extractor::float::{FloatBlock, FloatConv, FloatGate, FloatNetwork};
use wayside_extractor::quantized::{Dense, Grid, QuantBlock, QuantConv, QuantGate, QuantNetwork};
use wayside_extractor::topology::{Activation, Block};

use super::calibrate::{Statistics, Window};
use super::fold::{self, Aim};
use super::grid;
use super::simulate::{self, Finish, Planes};
use crate::backbone::Place;
use crate::pictures::Picture;

/// Headroom of 16-bit vectors beyond what occurred.
const HEADROOM: f64 = 1.5;

/// The share of what a squeeze could give at most that its 16 bits reach at least.
const QUIET: f64 = 0.05;

/// Most steps of its grid that a layer's sums may reach before they are clamped: far below what kernels bear.
const STEPS: f64 = 1e7;

/// Fits all layers to what the pictures make of them.
///
/// - `pictures`: all of one size, at least one.
pub(super) fn fit(
    float: &FloatNetwork,
    statistics: &Statistics,
    pictures: &[Picture],
    threads: usize,
) -> QuantNetwork {
    let fitter = Fitter {
        float,
        statistics,
        threads,
    };
    fitter.network(pictures)
}

struct Fitter<'a> {
    float: &'a FloatNetwork,
    statistics: &'a Statistics,
    threads: usize,
}

impl Fitter<'_> {
    fn network(&self, pictures: &[Picture]) -> QuantNetwork {
        let float = self.float;
        let normalisation = float.normalisation;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "saturates, as a byte does"
        )]
        let border: [u8; 3] = std::array::from_fn(|colour| {
            (-normalisation.shift[colour] / normalisation.scale[colour]).round() as u8
        });
        let size = pictures[0].size();
        let pixels = Planes {
            height: size.height,
            width: size.width,
            channels: 3,
            pictures: pictures
                .iter()
                .map(|picture| picture.rgb().to_vec())
                .collect(),
        };
        let window = Window {
            kernel: float.stem.kernel,
            stride: 2,
            padding: float.padding,
        };
        let stem_output = self.grid(Place::Stem, Activation::HardSwish);
        let stem = self.stem(&pixels, window, &border, &stem_output);
        let finish = Finish {
            activation: Activation::HardSwish,
            sixth: float.sixth,
            grid: &stem_output,
            residual: None,
        };
        let threads = self.threads;
        let mut x = simulate::convolve(&stem, &pixels, window, &border, &finish, threads);
        let mut blocks: Vec<QuantBlock> = Vec::with_capacity(float.blocks.len());
        for (index, (block, shape)) in float.blocks.iter().zip(float.family.blocks()).enumerate() {
            let input = blocks.last().map_or(&stem_output, |block| &block.output);
            let (block, output) = self.block(index, block, shape, &x, input);
            blocks.push(block);
            x = output;
        }
        let input = blocks.last().map_or(&stem_output, |block| &block.output);
        let before = Place::Block(blocks.len().saturating_sub(1));
        let last = self.pointwise(&float.last, before, &x, input, None, None);
        let pooled = float
            .pooled
            .as_ref()
            .map(|layer| self.pooled(layer, &last, &x));
        QuantNetwork {
            family: float.family,
            padding: float.padding,
            normalisation,
            sixth: float.sixth,
            border,
            stem,
            stem_output,
            blocks,
            last,
            pooled,
        }
    }

    fn grid(&self, place: Place, activation: Activation) -> Grid {
        let positive = activation == Activation::Relu;
        grid::choose(self.statistics.get(place), positive)
    }

    /// [`Self::grid`] for what a layer gives; where it is dead, still no finer than its sums can bear.
    ///
    /// - `input`: the grid of the layer's bytes.
    fn output_grid(
        &self,
        place: Place,
        activation: Activation,
        layer: &FloatConv,
        input: &Grid,
    ) -> Grid {
        let mut grid = self.grid(place, activation);
        let row = layer.weight.len() / layer.output;
        let rows = layer.weight.chunks_exact(row).zip(&layer.bias);
        for (output, (weights, bias)) in rows.enumerate() {
            let products = weights.iter().enumerate().map(|(column, weight)| {
                let depthwise = layer.kernel > 1;
                let channel = if depthwise { output } else { column };
                f64::from(weight.abs()) * f64::from(input.scale[channel]) * 255.0
            });
            let largest = products.sum::<f64>() + f64::from(bias.abs());
            #[expect(clippy::cast_possible_truncation, reason = "the nearest f32 is wanted")]
            let least = (largest / STEPS) as f32;
            grid.scale[output] = grid.scale[output].max(least);
        }
        grid
    }

    fn stem(&self, pixels: &Planes, window: Window, border: &[u8], output: &Grid) -> QuantConv {
        let layer = &self.float.stem;
        let normalisation = self.float.normalisation;
        let area = layer.kernel * layer.kernel;
        let patch = &self.statistics.get(Place::Input).patch;
        let outputs = targets(layer, patch);
        let units: Vec<f64> = (0..3 * area)
            .map(|at| f64::from(normalisation.scale[at / area]))
            .collect();
        let (means, moments) = pixels.patches(window, border);
        let least = least(&outputs, Some(output));
        fold::convolution(
            layer,
            &Aim {
                units: &units,
                by_row: false,
                inputs: &means,
                outputs: &outputs,
                least: &least,
                moments: &moments,
            },
        )
    }

    /// A 1x1 convolution.
    ///
    /// - `from`: its input in the f32 network, whose bytes are `x` on the grid `input`.
    /// - `to`: its output's grid, where there is one.
    /// - `residual`: what is added to the output, here and there.
    fn pointwise(
        &self,
        layer: &FloatConv,
        from: Place,
        x: &Planes,
        input: &Grid,
        to: Option<&Grid>,
        residual: Option<(&[f64], &Planes, &Grid)>,
    ) -> QuantConv {
        let statistics = self.statistics.get(from);
        let mut outputs = targets(layer, &statistics.mean);
        if let Some((mean, plane, grid)) = residual {
            for (channel, byte) in plane.means().iter().enumerate() {
                let real = (byte - f64::from(grid.zero[channel])) * f64::from(grid.scale[channel]);
                outputs[channel] += mean[channel] - real;
            }
        }
        let units: Vec<f64> = input.scale.iter().map(|scale| f64::from(*scale)).collect();
        let (inputs, moments) = (x.means(), x.moments(self.threads));
        let least = least(&outputs, to);
        fold::convolution(
            layer,
            &Aim {
                units: &units,
                by_row: false,
                inputs: &inputs,
                outputs: &outputs,
                least: &least,
                moments: &moments,
            },
        )
    }

    fn block(
        &self,
        index: usize,
        block: &FloatBlock,
        shape: &Block,
        x: &Planes,
        input: &Grid,
    ) -> (QuantBlock, Planes) {
        let threads = self.threads;
        let float = self.float;
        let one = Window {
            kernel: 1,
            stride: 1,
            padding: float.padding,
        };
        let before = match index.checked_sub(1) {
            Some(index) => Place::Block(index),
            None => Place::Stem,
        };
        let finish = |activation, grid| Finish {
            activation,
            sixth: float.sixth,
            grid,
            residual: None,
        };
        let expand = block.expand.as_ref().map(|layer| {
            let grid = self.output_grid(Place::Expand(index), shape.activation, layer, input);
            (
                self.pointwise(layer, before, x, input, Some(&grid), None),
                grid,
            )
        });
        let expanded = expand.as_ref().map(|(layer, grid)| {
            simulate::convolve(layer, x, one, &[], &finish(shape.activation, grid), threads)
        });
        let (y, grid, place) = match (&expanded, &expand) {
            (Some(y), Some((_, grid))) => (y, grid, Place::Expand(index)),
            _ => (x, input, before),
        };
        let window = Window {
            kernel: shape.kernel,
            stride: shape.stride,
            padding: float.padding,
        };
        let hidden = self.output_grid(
            Place::Depthwise(index),
            shape.activation,
            &block.depthwise,
            grid,
        );
        let depthwise = self.depthwise(&block.depthwise, place, y, window, grid, &hidden);
        let finish_hidden = finish(shape.activation, &hidden);
        let mut y = simulate::depthwise(&depthwise, y, window, &grid.zero, &finish_hidden, threads);
        drop(expanded);
        let mut place = Place::Depthwise(index);
        let gate = block.gate.as_ref().map(|gate| {
            let (gate, opened) = self.gate(index, gate, &y, &hidden, shape.activation);
            y = opened;
            place = Place::Gated(index);
            gate
        });
        let grid = gate.as_ref().map_or(&hidden, |gate| &gate.gated);
        let output = self.output_grid(
            Place::Block(index),
            Activation::Identity,
            &block.project,
            grid,
        );
        let means = &self.statistics.get(before).mean;
        let residual = block.residual.then_some((means.as_slice(), x, input));
        let project = self.pointwise(&block.project, place, &y, grid, Some(&output), residual);
        let finish = Finish {
            residual: block.residual.then_some((x, input)),
            ..finish(Activation::Identity, &output)
        };
        let y = simulate::convolve(&project, &y, one, &[], &finish, threads);
        let block = QuantBlock {
            expand,
            depthwise,
            hidden,
            gate,
            project,
            output,
            residual: block.residual,
        };
        (block, y)
    }

    fn depthwise(
        &self,
        layer: &FloatConv,
        from: Place,
        x: &Planes,
        window: Window,
        input: &Grid,
        output: &Grid,
    ) -> QuantConv {
        let area = layer.kernel * layer.kernel;
        let patch = &self.statistics.get(from).patch;
        let outputs: Vec<f64> = layer
            .weight
            .chunks_exact(area)
            .zip(patch.chunks_exact(area))
            .zip(&layer.bias)
            .map(|((row, patch), bias)| product(row, patch) + f64::from(*bias))
            .collect();
        let units: Vec<f64> = input.scale.iter().map(|scale| f64::from(*scale)).collect();
        let (means, moments) = x.windows(window, &input.zero);
        let least = least(&outputs, Some(output));
        fold::convolution(
            layer,
            &Aim {
                units: &units,
                by_row: true,
                inputs: &means,
                outputs: &outputs,
                least: &least,
                moments: &moments,
            },
        )
    }

    fn gate(
        &self,
        index: usize,
        gate: &FloatGate,
        x: &Planes,
        input: &Grid,
        activation: Activation,
    ) -> (QuantGate, Planes) {
        let means = simulate::picture_means(x);
        let mean = &self.statistics.get(Place::SqueezeMean(index)).mean;
        let outputs = targets(&gate.squeeze, mean);
        let units: Vec<f64> = input
            .scale
            .iter()
            .map(|scale| f64::from(*scale) / 256.0)
            .collect();
        let squeeze = dense(&gate.squeeze, &units, &means, &outputs, (0.0, 1.0));
        let hidden: Vec<Vec<f64>> = means
            .iter()
            .map(|u| {
                let hidden = simulate::dense(&squeeze, u);
                hidden.iter().map(|x| x.max(0.0)).collect()
            })
            .collect();
        let spread = self.statistics.get(Place::SqueezeHidden(index));
        let high = spread
            .high
            .iter()
            .fold(0.0_f64, |high, value| high.max(f64::from(*value)));
        // Few pictures open a gate that is nearly always shut: leave room for those that do.
        let possible = possible(
            &gate.squeeze,
            &self.statistics.get(Place::SqueezeMean(index)).high,
        );
        let step = (high * HEADROOM).max(possible * QUIET).max(1e-12) / 65_535.0;
        let outputs = targets(&gate.excite, &spread.mean);
        #[expect(clippy::cast_possible_truncation, reason = "the nearest f32 is wanted")]
        let step = step as f32;
        let units = vec![f64::from(step); gate.excite.input];
        let entered: Vec<Vec<f64>> = hidden
            .iter()
            .map(|x| {
                x.iter()
                    .map(|x| (x / f64::from(step)).round().min(65_535.0))
                    .collect()
            })
            .collect();
        let excite = dense(&gate.excite, &units, &entered, &outputs, (0.0, step));
        let opens: Vec<Vec<f64>> = entered
            .iter()
            .map(|u| simulate::dense(&excite, u))
            .collect();
        let mut gated = self.grid(Place::Gated(index), activation);
        for (to, from) in gated.scale.iter_mut().zip(&input.scale) {
            *to = to.max(from / 24.0);
        }
        let gate = QuantGate {
            squeeze,
            excite,
            gated,
        };
        let opened = simulate::gated(x, input, &gate, &opens, self.float.sixth);
        (gate, opened)
    }

    fn pooled(&self, layer: &FloatConv, last: &QuantConv, x: &Planes) -> Dense {
        let spread = self.statistics.get(Place::Pooled);
        let low = spread
            .low
            .iter()
            .fold(0.0_f64, |low, value| low.min(f64::from(*value)));
        let high = spread
            .high
            .iter()
            .fold(1e-6_f64, |high, value| high.max(f64::from(*value)));
        let (low, high) = (low * HEADROOM, high * HEADROOM);
        #[expect(clippy::cast_possible_truncation, reason = "the nearest f32 is wanted")]
        let (low, step) = (low as f32, ((high - low) / 65_535.0) as f32);
        let units = vec![f64::from(step); layer.input];
        let entered: Vec<Vec<f64>> = simulate::pooled(last, x, self.float.sixth, self.threads)
            .iter()
            .map(|x| {
                let steps = x
                    .iter()
                    .map(|x| ((x - f64::from(low)) / f64::from(step)).round());
                steps.map(|steps| steps.clamp(0.0, 65_535.0)).collect()
            })
            .collect();
        let outputs = targets(layer, &spread.mean);
        dense(layer, &units, &entered, &outputs, (low, step))
    }
}

/// A matrix on vectors of 16-bit numbers.
///
/// - `entered`: the vectors of all pictures.
fn dense(
    layer: &FloatConv,
    units: &[f64],
    entered: &[Vec<f64>],
    outputs: &[f64],
    (low, step): (f32, f32),
) -> Dense {
    let (means, moments) = moments(entered, layer.input);
    let least = vec![1e-20; layer.output];
    let aim = Aim {
        units,
        by_row: false,
        inputs: &means,
        outputs,
        least: &least,
        moments: &moments,
    };
    fold::dense(layer, &aim, low, step)
}

/// Means and second moments of some vectors.
fn moments(vectors: &[Vec<f64>], n: usize) -> (Vec<f64>, Vec<f64>) {
    let count = vectors.len() as f64;
    let means: Vec<f64> = (0..n)
        .map(|i| vectors.iter().map(|vector| vector[i]).sum::<f64>() / count)
        .collect();
    let mut moments = vec![0.0; n * n];
    for vector in vectors {
        let centred: Vec<f64> = vector
            .iter()
            .zip(&means)
            .map(|(x, mean)| x - mean)
            .collect();
        for (line, own) in moments.chunks_exact_mut(n).zip(&centred) {
            for (sum, other) in line.iter_mut().zip(&centred) {
                *sum += own * other / count;
            }
        }
    }
    (means, moments)
}

/// The largest output that inputs of 0 to `high` could have.
fn possible(layer: &FloatConv, high: &[f32]) -> f64 {
    layer
        .weight
        .chunks_exact(layer.input)
        .zip(&layer.bias)
        .map(|(row, bias)| {
            let products = row.iter().zip(high).map(|(w, x)| f64::from(w.max(0.0) * x));
            products.sum::<f64>() + f64::from(*bias)
        })
        .fold(0.0, f64::max)
}

/// Mean outputs of a layer over all channels.
fn targets(layer: &FloatConv, inputs: &[f64]) -> Vec<f64> {
    layer
        .weight
        .chunks_exact(inputs.len())
        .zip(&layer.bias)
        .map(|(row, bias)| product(row, inputs) + f64::from(*bias))
        .collect()
}

fn product(row: &[f32], inputs: &[f64]) -> f64 {
    row.iter().zip(inputs).map(|(w, x)| f64::from(*w) * x).sum()
}

/// Units of a sum that are not so small that its bias would overflow.
fn least(outputs: &[f64], grid: Option<&Grid>) -> Vec<f64> {
    let step = |channel: usize| grid.map_or(1e-6, |grid| f64::from(grid.scale[channel]));
    outputs
        .iter()
        .enumerate()
        .map(|(channel, output)| {
            (step(channel) / f64::from(1 << 20)).max(output.abs() / f64::from(1 << 24))
        })
        .collect()
}
