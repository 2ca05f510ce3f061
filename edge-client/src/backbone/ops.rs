//! The layers of a MobileNetV3 as candle operations on NHWC tensors.
//!
//! candle loops over the groups of a grouped convolution and spreads every matrix product over all cores. Here a
//! pointwise convolution is one matrix product with its activation behind it, a depthwise convolution runs along the
//! channels, and each operation stays on the thread that called it: whoever extracts features decides how many cores
//! that takes. A picture's features do not depend on the pictures beside it.
//!
//! All padding is TensorFlow's SAME: the smaller half before, the rest after.

use candle_core::{CpuStorage, CustomOp1, CustomOp2, Error, Layout, Result, Shape, Tensor};
use ndarray::linalg::general_mat_mul;
use ndarray::{Array2, ArrayView2, ArrayViewMut2};

/// What follows a convolution.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Activation {
    Identity,
    Relu,
    /// `x * relu6(x + 3) * sixth`; the network's own constant for 1/6.
    HardSwish {
        sixth: f32,
    },
}

impl Activation {
    fn apply(self, values: &mut [f32]) {
        match self {
            Self::Identity => {}
            Self::Relu => {
                for value in values {
                    *value = value.max(0.0);
                }
            }
            Self::HardSwish { sixth } => {
                for value in values {
                    *value *= (*value + 3.0).clamp(0.0, 6.0) * sixth;
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
    pub(super) activation: Activation,
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

/// A depthwise convolution: `[n, h, w, c]` to `[n, ceil(h / stride), ceil(w / stride), c]`.
#[derive(Debug)]
pub(super) struct Depthwise {
    /// Shape `[kernel * kernel, c]`: all channels of one tap side by side.
    pub(super) weight: Array2<f32>,
    pub(super) bias: Vec<f32>,
    pub(super) kernel: usize,
    pub(super) stride: usize,
    pub(super) activation: Activation,
}

/// Channels that one pass of the depthwise loop keeps in registers.
const LANES: usize = 8;

impl Depthwise {
    pub(super) fn forward(&self, x: &Tensor) -> Result<Tensor> {
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
        let rows = Padding::same(height, self.kernel, self.stride);
        let columns = Padding::same(width, self.kernel, self.stride);
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
pub(super) struct Stem {
    /// Shape `[kernel * kernel * 3, output]`, rows in the order (y, x, colour).
    pub(super) convolution: Pointwise,
    pub(super) kernel: usize,
    pub(super) stride: usize,
}

impl Stem {
    pub(super) fn forward(&self, x: &Tensor) -> Result<Tensor> {
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
        let rows = Padding::same(height, self.kernel, self.stride);
        let columns = Padding::same(width, self.kernel, self.stride);
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

/// Squeeze-excite: scales each channel of `[n, h, w, c]` by `relu6(fc2(relu(fc1(mean))) + 3) * sixth`.
#[derive(Debug)]
pub(super) struct Gate {
    /// Shape `[c, squeezed]`.
    pub(super) squeeze: Array2<f32>,
    pub(super) squeeze_bias: Vec<f32>,
    /// Shape `[squeezed, c]`.
    pub(super) excite: Array2<f32>,
    pub(super) excite_bias: Vec<f32>,
    pub(super) sixth: f32,
}

impl Gate {
    pub(super) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        x.apply_op1_no_bwd(self)
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
            let mean = channel_means(picture, channels);
            let mut squeezed = affine(&mean, &self.squeeze, &self.squeeze_bias);
            Activation::Relu.apply(&mut squeezed);
            let mut gate = affine(&squeezed, &self.excite, &self.excite_bias);
            for value in &mut gate {
                *value = (*value + 3.0).clamp(0.0, 6.0) * self.sixth;
            }
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
pub(super) fn channel_means(picture: &[f32], channels: usize) -> Vec<f32> {
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

/// TensorFlow's SAME padding along one axis.
#[derive(Clone, Copy, Debug)]
struct Padding {
    input: usize,
    output: usize,
    before: usize,
    kernel: usize,
    stride: usize,
}

impl Padding {
    fn same(input: usize, kernel: usize, stride: usize) -> Self {
        let output = input.div_ceil(stride);
        let total = (output.saturating_sub(1) * stride + kernel).saturating_sub(input);
        Self {
            input,
            output,
            before: total / 2,
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

fn values<'a>(storage: &'a CpuStorage, layout: &Layout) -> Result<&'a [f32]> {
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

#[cfg(test)]
mod tests {
    use candle_core::{Device, IndexOp};
    use proptest::prelude::*;

    use super::*;

    fn tensor(values: &[f32], shape: (usize, usize, usize, usize)) -> Tensor {
        Tensor::from_slice(values, shape, &Device::Cpu).unwrap()
    }

    fn ramp(count: usize) -> Vec<f32> {
        (0..count)
            .map(|i| f32::from(u16::try_from(i * 7 % 23).unwrap()) / 11.0 - 1.0)
            .collect()
    }

    /// candle's own convolution (NCHW, symmetric padding) on an explicitly padded input.
    fn candle_depthwise(op: &Depthwise, x: &Tensor) -> Tensor {
        let (_, height, width, channels) = x.dims4().unwrap();
        let pad = |x: Tensor, dim: usize, size: usize| {
            let p = Padding::same(size, op.kernel, op.stride);
            let total = (p.output.saturating_sub(1) * op.stride + op.kernel).saturating_sub(size);
            x.pad_with_zeros(dim, p.before, total - p.before).unwrap()
        };
        let x = x.permute((0, 3, 1, 2)).unwrap().contiguous().unwrap();
        let x = pad(pad(x, 2, height), 3, width);
        let weight = Tensor::from_slice(
            op.weight.as_slice().unwrap(),
            (op.kernel, op.kernel, 1, channels),
            &Device::Cpu,
        )
        .unwrap()
        .permute((3, 2, 0, 1))
        .unwrap()
        .contiguous()
        .unwrap();
        let y = x.conv2d(&weight, 0, op.stride, 1, channels).unwrap();
        y.permute((0, 2, 3, 1)).unwrap().contiguous().unwrap()
    }

    fn flat(x: &Tensor) -> Vec<f32> {
        x.flatten_all().unwrap().to_vec1().unwrap()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        /// Channels around the lane count, every kernel and stride of the networks, sizes down to one pixel.
        #[test]
        fn depthwise_equals_candle(
            channels in 1_usize..20,
            height in 1_usize..9,
            width in 1_usize..9,
            kernel in prop::sample::select(vec![3_usize, 5]),
            stride in 1_usize..3,
        ) {
            let op = Depthwise {
                weight: Array2::from_shape_vec(
                    (kernel * kernel, channels),
                    ramp(kernel * kernel * channels),
                ).unwrap(),
                bias: vec![0.0; channels],
                kernel,
                stride,
                activation: Activation::Identity,
            };
            let x = tensor(&ramp(2 * height * width * channels), (2, height, width, channels));
            let (got, expected) = (op.forward(&x).unwrap(), candle_depthwise(&op, &x));
            prop_assert_eq!(got.dims(), expected.dims());
            for (got, expected) in flat(&got).iter().zip(flat(&expected)) {
                prop_assert!((got - expected).abs() < 1e-4);
            }
        }
    }

    #[test]
    fn pointwise_by_hand_with_and_without_residual() {
        let op = Pointwise {
            weight: Array2::from_shape_vec((2, 3), vec![1.0, 2.0, 3.0, -1.0, 0.0, 1.0]).unwrap(),
            bias: vec![0.5, -10.0, 0.0],
            activation: Activation::Relu,
        };
        let x = tensor(&[1.0, 2.0, 3.0, 1.0], (1, 1, 2, 2));
        assert_eq!(
            flat(&op.forward(&x).unwrap()),
            [0.0, 0.0, 5.0, 2.5, 0.0, 10.0]
        );
        let residual = tensor(&[1.0; 6], (1, 1, 2, 3));
        let sum = op.forward_add(&x, &residual).unwrap();
        assert_eq!(flat(&sum), [0.5, 0.0, 6.0, 3.5, 0.0, 11.0]);
    }

    #[test]
    fn hard_swish_at_its_corners() {
        let mut values = [-4.0, -3.0, 0.0, 3.0, 6.0];
        Activation::HardSwish { sixth: 1.0 / 6.0 }.apply(&mut values);
        for (got, expected) in values.iter().zip([0.0, 0.0, 0.0, 3.0, 6.0]) {
            assert!((got - expected).abs() < 1e-6, "{got} {expected}");
        }
    }

    #[test]
    fn gate_scales_by_the_hard_sigmoid_of_the_means() {
        let op = Gate {
            squeeze: Array2::eye(2),
            squeeze_bias: vec![0.0; 2],
            excite: Array2::eye(2),
            excite_bias: vec![0.0; 2],
            sixth: 1.0 / 6.0,
        };
        // Means 1 and -2: gates (1 + 3) / 6 and (0 + 3) / 6.
        let x = tensor(&[0.0, -1.0, 2.0, -3.0], (1, 2, 1, 2));
        for (got, expected) in
            flat(&op.forward(&x).unwrap())
                .iter()
                .zip([0.0, -0.5, 4.0 / 3.0, -1.5])
        {
            assert!((got - expected).abs() < 1e-6);
        }
    }

    #[test]
    fn same_padding_puts_the_smaller_half_before() {
        let check = |input, kernel, stride, output, before| {
            let padding = Padding::same(input, kernel, stride);
            assert_eq!((padding.output, padding.before), (output, before));
        };
        check(224, 3, 2, 112, 0);
        check(7, 3, 2, 4, 1);
        check(14, 5, 2, 7, 1);
        check(7, 5, 1, 7, 2);
        check(1, 5, 2, 1, 2);
    }

    #[test]
    fn wrong_channels_are_an_error() {
        let op = Depthwise {
            weight: Array2::zeros((9, 4)),
            bias: vec![0.0; 4],
            kernel: 3,
            stride: 1,
            activation: Activation::Relu,
        };
        let x = tensor(&[0.0; 6], (1, 1, 2, 3));
        assert!(op.forward(&x).is_err());
        let wide = tensor(&[0.0; 16], (1, 2, 2, 4))
            .i((.., .., 0..1, ..))
            .unwrap();
        assert!(op.forward(&wide).is_err(), "not contiguous");
    }
}
