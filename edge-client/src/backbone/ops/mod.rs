//! The layers of a MobileNetV3 as candle operations on NHWC tensors.
//!
//! candle loops over the groups of a grouped convolution and spreads every matrix product over all cores. Here a
//! pointwise convolution is one matrix product with its activation behind it, a depthwise convolution runs along the
//! channels, and each operation stays on the thread that called it: whoever extracts features decides how many cores
//! that takes. A picture's features do not depend on the pictures beside it.

mod gate;
#[cfg(test)]
mod tests;
mod window;

use candle_core::{CpuStorage, CustomOp1, CustomOp2, Error, Layout, Result, Shape, Tensor};
use ndarray::linalg::general_mat_mul;
use ndarray::{Array2, ArrayView2, ArrayViewMut2};
use wayside_extractor::topology::Activation;

pub(super) use gate::{Gate, channel_means};
pub(super) use window::{Depthwise, Stem};

/// What follows a convolution, with the network's own constant for 1/6.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Activate {
    pub(super) kind: Activation,
    pub(super) sixth: f32,
}

impl Activate {
    fn apply(self, values: &mut [f32]) {
        match self.kind {
            Activation::Identity => {}
            Activation::Relu => {
                for value in values {
                    *value = value.max(0.0);
                }
            }
            Activation::HardSwish => {
                for value in values {
                    *value *= (*value + 3.0).clamp(0.0, 6.0) * self.sixth;
                }
            }
        }
    }
}

/// A 1x1 convolution: `[n, h, w, input]` to `[n, h, w, output]`.
///
/// As a second argument it takes a tensor of the output's shape and adds it (the residual).
#[derive(Debug)]
pub(super) struct Pointwise {
    /// Shape `[input, output]`.
    pub(super) weight: Array2<f32>,
    pub(super) bias: Vec<f32>,
    pub(super) activation: Activate,
}

impl Pointwise {
    pub(super) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        x.apply_op1_no_bwd(self)
    }

    pub(super) fn forward_add(&self, x: &Tensor, residual: &Tensor) -> Result<Tensor> {
        x.apply_op2_no_bwd(residual, self)
    }

    fn run(&self, x: &[f32], mut out: Vec<f32>, beta: f32) -> Result<Vec<f32>> {
        let (input, output) = self.weight.dim();
        let rows = x.len() / input;
        let x = ArrayView2::from_shape((rows, input), x).map_err(Error::wrap)?;
        let mut y = ArrayViewMut2::from_shape((rows, output), &mut out).map_err(Error::wrap)?;
        general_mat_mul(1.0, &x, &self.weight, beta, &mut y);
        for row in out.chunks_exact_mut(output) {
            for (value, bias) in row.iter_mut().zip(&self.bias) {
                *value += bias;
            }
            self.activation.apply(row);
        }
        Ok(out)
    }

    fn output_shape(&self, (n, h, w, c): (usize, usize, usize, usize)) -> Result<Shape> {
        let (input, output) = self.weight.dim();
        expect_channels(c, input)?;
        Ok(Shape::from((n, h, w, output)))
    }
}

impl CustomOp1 for Pointwise {
    fn name(&self) -> &'static str {
        "pointwise convolution"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let shape = self.output_shape(layout.shape().dims4()?)?;
        let out = self.run(values(storage, layout)?, vec![0.0; shape.elem_count()], 0.0)?;
        Ok((CpuStorage::F32(out), shape))
    }
}

impl CustomOp2 for Pointwise {
    fn name(&self) -> &'static str {
        "pointwise convolution with residual"
    }

    fn cpu_fwd(
        &self,
        storage: &CpuStorage,
        layout: &Layout,
        residual: &CpuStorage,
        residual_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let shape = self.output_shape(layout.shape().dims4()?)?;
        if residual_layout.shape() != &shape {
            return Err(Error::Msg(format!(
                "residual of shape {:?}, expected {shape:?}",
                residual_layout.shape()
            )));
        }
        let residual = values(residual, residual_layout)?.to_vec();
        let out = self.run(values(storage, layout)?, residual, 1.0)?;
        Ok((CpuStorage::F32(out), shape))
    }
}

pub(super) fn values<'a>(storage: &'a CpuStorage, layout: &Layout) -> Result<&'a [f32]> {
    let (first, last) = layout
        .contiguous_offsets()
        .ok_or_else(|| Error::Msg("a tensor that is not contiguous".into()))?;
    Ok(&storage.as_slice::<f32>()?[first..last])
}

fn contiguous(array: &Array2<f32>) -> Result<&[f32]> {
    array
        .as_slice()
        .ok_or_else(|| Error::Msg("a weight that is not row-major".into()))
}

fn expect_channels(got: usize, expected: usize) -> Result<()> {
    if got == expected {
        return Ok(());
    }
    Err(Error::Msg(format!("{got} channels, expected {expected}")))
}
