use candle_core::{Device, IndexOp};
use proptest::prelude::*;

use wayside_extractor::topology::Padding;

use super::window::Axis;
use super::*;

const SIXTH: f32 = 1.0 / 6.0;

fn activate(kind: Activation) -> Activate {
    Activate { kind, sixth: SIXTH }
}

fn tensor(values: &[f32], shape: (usize, usize, usize, usize)) -> Tensor {
    Tensor::from_slice(values, shape, &Device::Cpu).unwrap()
}

fn ramp(count: usize) -> Vec<f32> {
    (0..count)
        .map(|i| f32::from(u16::try_from(i * 7 % 23).unwrap()) / 11.0 - 1.0)
        .collect()
}

/// candle's own convolution (NCHW, no padding of its own) on an explicitly padded input.
fn candle_depthwise(op: &Depthwise, x: &Tensor) -> Tensor {
    let (_, height, width, channels) = x.dims4().unwrap();
    let pad = |x: Tensor, dim: usize, size: usize| {
        let p = Axis::new(op.padding, size, op.kernel, op.stride);
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
        padding in prop::sample::select(vec![Padding::Same, Padding::Symmetric]),
    ) {
        let op = Depthwise {
            weight: Array2::from_shape_vec(
                (kernel * kernel, channels),
                ramp(kernel * kernel * channels),
            ).unwrap(),
            bias: vec![0.0; channels],
            kernel,
            stride,
            padding,
            activation: activate(Activation::Identity),
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
        activation: activate(Activation::Relu),
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
    activate(Activation::HardSwish).apply(&mut values);
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
        sixth: SIXTH,
    };
    // Means 1 and -2: gates (1 + 3) / 6 and (0 + 3) / 6.
    let x = tensor(&[0.0, -1.0, 2.0, -3.0], (1, 2, 1, 2));
    for (got, expected) in flat(&op.forward(&x).unwrap())
        .iter()
        .zip([0.0, -0.5, 4.0 / 3.0, -1.5])
    {
        assert!((got - expected).abs() < 1e-6);
    }
}

#[test]
fn same_padding_puts_the_smaller_half_before() {
    let check = |input, kernel, stride, output, before| {
        let padding = Axis::new(Padding::Same, input, kernel, stride);
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
        padding: Padding::Same,
        activation: activate(Activation::Relu),
    };
    let x = tensor(&[0.0; 6], (1, 1, 2, 3));
    assert!(op.forward(&x).is_err());
    let wide = tensor(&[0.0; 16], (1, 2, 2, 4))
        .i((.., .., 0..1, ..))
        .unwrap();
    assert!(op.forward(&wide).is_err(), "not contiguous");
}
