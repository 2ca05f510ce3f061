//! Convolutions that look at a square of pixels: the depthwise ones and the first.

use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor};
use ndarray::Array2;
use wayside_extractor::topology::Padding;

use super::{Activate, Pointwise, contiguous, expect_channels, values};

/// A depthwise convolution: `[n, h, w, c]` to `[n, ceil(h / stride), ceil(w / stride), c]`.
#[derive(Debug)]
pub(in super::super) struct Depthwise {
    /// Shape `[kernel * kernel, c]`: all channels of one tap side by side.
    pub(in super::super) weight: Array2<f32>,
    pub(in super::super) bias: Vec<f32>,
    pub(in super::super) kernel: usize,
    pub(in super::super) stride: usize,
    pub(in super::super) padding: Padding,
    pub(in super::super) activation: Activate,
}

/// Channels that one pass of the depthwise loop keeps in registers.
const LANES: usize = 8;

impl Depthwise {
    pub(in super::super) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        x.apply_op1_no_bwd(self)
    }

    /// One output pixel: `taps` are the offsets of the input pixels under the kernel and their rows in the weight.
    fn pixel(&self, x: &[f32], taps: &[(usize, usize)], weight: &[f32], out: &mut [f32]) {
        let channels = out.len();
        let whole = channels - channels % LANES;
        for first in (0..whole).step_by(LANES) {
            let mut sum: [f32; LANES] = lanes(&self.bias, first);
            for &(from, tap) in taps {
                let x: [f32; LANES] = lanes(x, from + first);
                let weight: [f32; LANES] = lanes(weight, tap * channels + first);
                for lane in 0..LANES {
                    sum[lane] += x[lane] * weight[lane];
                }
            }
            out[first..first + LANES].copy_from_slice(&sum);
        }
        for channel in whole..channels {
            out[channel] = taps.iter().fold(self.bias[channel], |sum, &(from, tap)| {
                sum + x[from + channel] * weight[tap * channels + channel]
            });
        }
    }
}

fn lanes(values: &[f32], first: usize) -> [f32; LANES] {
    values[first..first + LANES]
        .try_into()
        .expect("a slice of LANES values")
}

impl CustomOp1 for Depthwise {
    fn name(&self) -> &'static str {
        "depthwise convolution"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (n, height, width, channels) = layout.shape().dims4()?;
        expect_channels(channels, self.bias.len())?;
        let weight = contiguous(&self.weight)?;
        let rows = Axis::new(self.padding, height, self.kernel, self.stride);
        let columns = Axis::new(self.padding, width, self.kernel, self.stride);
        let mut out = vec![0.0; n * rows.output * columns.output * channels];
        let mut taps = Vec::with_capacity(self.kernel * self.kernel);
        let pixels = out.chunks_exact_mut((rows.output * columns.output * channels).max(1));
        let pictures = values(storage, layout)?.chunks_exact((height * width * channels).max(1));
        for (x, out) in pictures.zip(pixels) {
            for (index, out) in out.chunks_exact_mut(channels).enumerate() {
                let (row, column) = (index / columns.output, index % columns.output);
                taps.clear();
                for (y, from_row) in rows.taps(row) {
                    for (x, from_column) in columns.taps(column) {
                        let from = (from_row * width + from_column) * channels;
                        taps.push((from, y * self.kernel + x));
                    }
                }
                self.pixel(x, &taps, weight, out);
                self.activation.apply(out);
            }
        }
        let shape = Shape::from((n, rows.output, columns.output, channels));
        Ok((CpuStorage::F32(out), shape))
    }
}

/// The first convolution: RGB bytes as floats, `[n, h, w, 3]`, to `[n, ceil(h / 2), ceil(w / 2), output]`.
#[derive(Debug)]
pub(in super::super) struct Stem {
    /// Shape `[kernel * kernel * 3, output]`, rows in the order (y, x, colour).
    pub(in super::super) convolution: Pointwise,
    pub(in super::super) kernel: usize,
    pub(in super::super) stride: usize,
    pub(in super::super) padding: Padding,
}

impl Stem {
    pub(in super::super) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.convolution.forward(&x.apply_op1_no_bwd(self)?)
    }
}

/// Lays out the pixels under each position of the kernel side by side, zeros where it reaches over the edge.
impl CustomOp1 for Stem {
    fn name(&self) -> &'static str {
        "stem patches"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (n, height, width, channels) = layout.shape().dims4()?;
        let rows = Axis::new(self.padding, height, self.kernel, self.stride);
        let columns = Axis::new(self.padding, width, self.kernel, self.stride);
        let patch = self.kernel * self.kernel * channels;
        let mut out = vec![0.0; n * rows.output * columns.output * patch];
        let pictures = values(storage, layout)?.chunks_exact((height * width * channels).max(1));
        let patches = out.chunks_exact_mut((rows.output * columns.output * patch).max(1));
        for (x, out) in pictures.zip(patches) {
            for (index, out) in out.chunks_exact_mut(patch).enumerate() {
                let (row, column) = (index / columns.output, index % columns.output);
                for (y, from_row) in rows.taps(row) {
                    for (dx, from_column) in columns.taps(column) {
                        let from = (from_row * width + from_column) * channels;
                        let to = (y * self.kernel + dx) * channels;
                        out[to..to + channels].copy_from_slice(&x[from..from + channels]);
                    }
                }
            }
        }
        let shape = Shape::from((n, rows.output, columns.output, patch));
        Ok((CpuStorage::F32(out), shape))
    }
}

/// The positions of a kernel along one axis.
#[derive(Clone, Copy, Debug)]
pub(super) struct Axis {
    input: usize,
    pub(super) output: usize,
    pub(super) before: usize,
    kernel: usize,
    stride: usize,
}

impl Axis {
    pub(super) fn new(padding: Padding, input: usize, kernel: usize, stride: usize) -> Self {
        let (before, output) = padding.axis(input, kernel, stride);
        Self {
            input,
            output,
            before,
            kernel,
            stride,
        }
    }

    /// Places of the kernel that fall on the input at output position `at`, each with the input position under it.
    fn taps(self, at: usize) -> impl Iterator<Item = (usize, usize)> {
        (0..self.kernel).filter_map(move |tap| {
            let from = (at * self.stride + tap).checked_sub(self.before)?;
            (from < self.input).then_some((tap, from))
        })
    }
}
