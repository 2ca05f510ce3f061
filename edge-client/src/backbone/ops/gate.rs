//! Squeeze-excite and the means it begins with.

use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor};
use ndarray::Array2;

use super::{expect_channels, values};

/// Squeeze-excite: scales each channel of `[n, h, w, c]` by `relu6(fc2(relu(fc1(mean))) + 3) * sixth`.
#[derive(Debug)]
pub(in super::super) struct Gate {
    /// Shape `[c, squeezed]`.
    pub(in super::super) squeeze: Array2<f32>,
    pub(in super::super) squeeze_bias: Vec<f32>,
    /// Shape `[squeezed, c]`.
    pub(in super::super) excite: Array2<f32>,
    pub(in super::super) excite_bias: Vec<f32>,
    pub(in super::super) sixth: f32,
}

/// What squeeze-excite makes of one picture, step by step.
#[derive(Debug)]
pub(in super::super) struct Steps {
    /// Mean of each channel.
    pub(in super::super) mean: Vec<f32>,
    /// Behind the squeeze and its `ReLU`.
    pub(in super::super) hidden: Vec<f32>,
    /// Factor of each channel.
    pub(in super::super) gate: Vec<f32>,
}

impl Gate {
    pub(in super::super) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        x.apply_op1_no_bwd(self)
    }

    /// The way to the gate for one picture, `[pixels, c]` row-major.
    pub(in super::super) fn steps(&self, picture: &[f32]) -> Steps {
        let mean = channel_means(picture, self.excite_bias.len());
        let mut hidden = affine(&mean, &self.squeeze, &self.squeeze_bias);
        for value in &mut hidden {
            *value = value.max(0.0);
        }
        let mut gate = affine(&hidden, &self.excite, &self.excite_bias);
        for value in &mut gate {
            *value = (*value + 3.0).clamp(0.0, 6.0) * self.sixth;
        }
        Steps { mean, hidden, gate }
    }
}

impl CustomOp1 for Gate {
    fn name(&self) -> &'static str {
        "squeeze-excite"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (_, height, width, channels) = layout.shape().dims4()?;
        expect_channels(channels, self.excite_bias.len())?;
        let mut out = values(storage, layout)?.to_vec();
        for picture in out.chunks_exact_mut((height * width * channels).max(1)) {
            let gate = self.steps(picture).gate;
            for pixel in picture.chunks_exact_mut(channels) {
                for (value, gate) in pixel.iter_mut().zip(&gate) {
                    *value *= gate;
                }
            }
        }
        Ok((CpuStorage::F32(out), layout.shape().clone()))
    }
}

/// Mean over the pixels of one picture, `[pixels, channels]` row-major, a row of pixels at a time.
pub(in super::super) fn channel_means(picture: &[f32], channels: usize) -> Vec<f32> {
    let mut mean = vec![0.0_f32; channels];
    for pixel in picture.chunks_exact(channels) {
        for (sum, value) in mean.iter_mut().zip(pixel) {
            *sum += value;
        }
    }
    let pixels = (picture.len() / channels) as f32;
    for value in &mut mean {
        *value /= pixels;
    }
    mean
}

/// `x * weight + bias` for one vector, in a fixed order.
fn affine(x: &[f32], weight: &Array2<f32>, bias: &[f32]) -> Vec<f32> {
    let mut out = bias.to_vec();
    for (x, row) in x.iter().zip(weight.rows()) {
        for (sum, weight) in out.iter_mut().zip(row) {
            *sum += x * weight;
        }
    }
    out
}
