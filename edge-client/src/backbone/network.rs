//! MobileNetV3 as candle operations, put together from a network that was read.

use candle_core::{CpuStorage, Device, Result, Storage, Tensor};
use ndarray::Array2;
use wayside_extractor::float::{FloatBlock, FloatConv, FloatNetwork, Normalisation};
use wayside_extractor::topology::{self, Activation, Padding};

use super::observe::{Place, Tap, observe_gate, tell};
use super::ops::{Activate, Depthwise, Gate, Pointwise, Stem, channel_means};

#[derive(Debug)]
pub(crate) struct Network {
    normalisation: Normalisation,
    stem: Stem,
    blocks: Vec<Block>,
    last: Pointwise,
    /// One more layer on the pooled features.
    pooled: Option<Pointwise>,
}

#[derive(Debug)]
struct Block {
    expand: Option<Pointwise>,
    depthwise: Depthwise,
    gate: Option<Gate>,
    project: Pointwise,
    residual: bool,
}

impl Network {
    /// Turns a network's weights over, one layer after the other, so that there are never two of all of them. Whoever
    /// still needs the network passes a clone.
    pub(crate) fn new(network: FloatNetwork) -> Self {
        let (padding, sixth) = (network.padding, network.sixth);
        let hard_swish = Activate {
            kind: Activation::HardSwish,
            sixth,
        };
        let table = network.family.blocks();
        let blocks = network.blocks.into_iter().zip(table);
        Self {
            normalisation: network.normalisation,
            stem: Stem {
                kernel: network.stem.kernel,
                convolution: pointwise(network.stem, hard_swish),
                stride: 2,
                padding,
            },
            blocks: blocks
                .map(|(block, row)| Block::new(block, row, padding, sixth))
                .collect(),
            last: pointwise(network.last, hard_swish),
            pooled: network.pooled.map(|layer| pointwise(layer, hard_swish)),
        }
    }

    /// Channels of the feature map.
    pub(super) fn map_channels(&self) -> usize {
        self.last.bias.len()
    }

    /// Length of a feature vector.
    pub(crate) fn features(&self) -> usize {
        let pooled = self.pooled.as_ref().map(|layer| layer.bias.len());
        pooled.unwrap_or(self.map_channels())
    }

    /// Bytes as the first convolution wants them, both `[n, height, width, 3]`.
    pub(crate) fn input(&self, pictures: &Tensor) -> Result<Tensor> {
        let shape = pictures.dims4()?;
        let Normalisation { scale, shift } = self.normalisation;
        let bytes = pictures.flatten_all()?.to_vec1::<u8>()?;
        let mut values = vec![0.0; bytes.len()];
        let pixels = bytes.as_chunks::<3>().0;
        for (to, pixel) in values.as_chunks_mut::<3>().0.iter_mut().zip(pixels) {
            for colour in 0..3 {
                to[colour] = f32::from(pixel[colour]) * scale[colour] + shift[colour];
            }
        }
        Tensor::from_vec(values, shape, &Device::Cpu)
    }

    /// `[n, height, width, 3]` to `[n, ceil(height / 32), ceil(width / 32), map_channels]`.
    pub(super) fn map(&self, x: &Tensor) -> Result<Tensor> {
        self.map_with(x, &mut None)
    }

    /// `[n, height, width, 3]` to `[n, features]`.
    pub(super) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.features_with(x, &mut None)
    }

    fn map_with(&self, x: &Tensor, tap: &mut Tap) -> Result<Tensor> {
        let mut x = self.stem.forward(x)?;
        tell(tap, Place::Stem, &x);
        for (index, block) in self.blocks.iter().enumerate() {
            x = block.forward(&x, index, tap)?;
            tell(tap, Place::Block(index), &x);
        }
        let map = self.last.forward(&x)?;
        tell(tap, Place::Last, &map);
        Ok(map)
    }

    pub(super) fn features_with(&self, x: &Tensor, tap: &mut Tap) -> Result<Tensor> {
        let map = self.map_with(x, tap)?;
        let (n, _, _, channels) = map.dims4()?;
        let mut pooled = Vec::with_capacity(n * channels);
        each_picture(&map, |picture| {
            pooled.extend(channel_means(picture, channels));
        })?;
        let mut features = Tensor::from_vec(pooled, (n, channels), &Device::Cpu)?;
        tell(tap, Place::Pooled, &features);
        if let Some(layer) = &self.pooled {
            let x = features.reshape((n, 1, 1, channels))?;
            features = layer.forward(&x)?.reshape((n, self.features()))?;
        }
        tell(tap, Place::Features, &features);
        Ok(features)
    }
}

impl Block {
    fn new(block: FloatBlock, row: &topology::Block, padding: Padding, sixth: f32) -> Self {
        let activation = |kind| Activate { kind, sixth };
        let expand = block.expand;
        let gate = block.gate.map(|gate| {
            let (squeeze, squeeze_bias) = matrix(gate.squeeze);
            let (excite, excite_bias) = matrix(gate.excite);
            Gate {
                squeeze,
                squeeze_bias,
                excite,
                excite_bias,
                sixth,
            }
        });
        let (weight, bias) = matrix(block.depthwise);
        Self {
            expand: expand.map(|layer| pointwise(layer, activation(row.activation))),
            depthwise: Depthwise {
                weight,
                bias,
                kernel: row.kernel,
                stride: row.stride,
                padding,
                activation: activation(row.activation),
            },
            gate,
            project: pointwise(block.project, activation(Activation::Identity)),
            residual: block.residual,
        }
    }

    fn forward(&self, x: &Tensor, index: usize, tap: &mut Tap) -> Result<Tensor> {
        let mut y = if let Some(expand) = &self.expand {
            let y = expand.forward(x)?;
            tell(tap, Place::Expand(index), &y);
            self.depthwise.forward(&y)?
        } else {
            self.depthwise.forward(x)?
        };
        tell(tap, Place::Depthwise(index), &y);
        if let Some(gate) = &self.gate {
            if let Some(tap) = tap {
                observe_gate(gate, &y, index, tap)?;
            }
            y = gate.forward(&y)?;
            tell(tap, Place::Gated(index), &y);
        }
        if self.residual {
            self.project.forward_add(&y, x)
        } else {
            self.project.forward(&y)
        }
    }
}

/// Shows the values of each picture of a contiguous `[n, h, w, c]`.
pub(super) fn each_picture(x: &Tensor, each: impl FnMut(&[f32])) -> Result<()> {
    let (_, height, width, channels) = x.dims4()?;
    let (storage, layout) = x.storage_and_layout();
    let Storage::Cpu(storage) = &*storage else {
        return Err(candle_core::Error::Msg("a tensor elsewhere".into()));
    };
    let storage: &CpuStorage = storage;
    super::ops::values(storage, layout)?
        .chunks_exact((height * width * channels).max(1))
        .for_each(each);
    Ok(())
}

fn pointwise(layer: FloatConv, activation: Activate) -> Pointwise {
    let (weight, bias) = matrix(layer);
    Pointwise {
        weight,
        bias,
        activation,
    }
}

/// A convolution's weight as `[kernel * kernel * input, output]`, rows in the order (y, x, input), and its bias.
fn matrix(layer: FloatConv) -> (Array2<f32>, Vec<f32>) {
    let area = layer.kernel * layer.kernel;
    let shape = (area * layer.input, layer.output);
    let matrix = if area == 1 || layer.input == 1 {
        let mut values = layer.weight;
        transpose(&mut values, layer.output, shape.0);
        Array2::from_shape_vec(shape, values).expect("a weight as long as its shape says")
    } else {
        Array2::from_shape_fn(shape, |(row, output)| {
            let (place, input) = (row / layer.input, row % layer.input);
            layer.weight[(output * layer.input + input) * area + place]
        })
    };
    (matrix, layer.bias)
}

/// Transposes a row-major matrix of `rows` rows where it lies: the largest layer twice would be felt.
fn transpose(values: &mut [f32], rows: usize, columns: usize) {
    assert_eq!(values.len(), rows * columns, "a matrix of another size");
    let mut done = vec![0_u64; values.len().div_ceil(64)];
    for start in 0..values.len() {
        let (mut at, mut carried) = (start, values[start]);
        // Around the cycle of places that begins here, unless an earlier one came through.
        while done[at / 64] >> (at % 64) & 1 == 0 {
            done[at / 64] |= 1 << (at % 64);
            at = at % columns * rows + at / columns;
            std::mem::swap(&mut carried, &mut values[at]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer(output: usize, input: usize, kernel: usize) -> FloatConv {
        let count = u16::try_from(output * input * kernel * kernel).unwrap();
        FloatConv {
            output,
            input,
            kernel,
            weight: (0..count).map(f32::from).collect(),
            bias: vec![0.0; output],
        }
    }

    #[test]
    fn matrix_reorders_oihw_to_patches() {
        // Two inputs, 2x2 kernel: value = 4 * input + place.
        assert_eq!(
            matrix(layer(1, 2, 2)).0.into_raw_vec_and_offset().0,
            [0.0, 4.0, 1.0, 5.0, 2.0, 6.0, 3.0, 7.0]
        );
    }

    #[test]
    fn transposing_in_place_is_transposing() {
        for (output, input, kernel) in [
            (1, 1, 1),
            (1, 5, 1),
            (5, 1, 1),
            (3, 4, 1),
            (8, 8, 1),
            (7, 65, 1),
            (6, 1, 3),
        ] {
            let layer = layer(output, input, kernel);
            let width = input * kernel * kernel;
            let expected = Array2::from_shape_fn((width, output), |(row, column)| {
                layer.weight[column * width + row]
            });
            assert_eq!(matrix(layer).0, expected);
        }
    }
}
