//! Reading a file of pretrained weights: every tensor is checked for name, shape, type and finiteness.
//!
//! The file comes from outside. Its size is bounded before it is read, its header by the safetensors reader before
//! anything is allocated from it, and what it holds beyond the network is as much an error as what it lacks.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use ndarray::Array2;
use safetensors::{Dtype, SafeTensors};

use super::BackboneError;

/// Largest file of weights that is read, in bytes.
pub const MAX_WEIGHTS_BYTES: u64 = 64 * 1024 * 1024;

/// The tensors of a file, taken out one by one.
#[derive(Debug)]
pub(super) struct Weights {
    tensors: BTreeMap<String, Weight>,
    metadata: BTreeMap<String, String>,
    /// Whether every tensor is stored in half precision.
    pub(super) half: bool,
}

#[derive(Debug)]
struct Weight {
    shape: Vec<usize>,
    values: Vec<f32>,
}

/// A convolution's weight, OIHW, and bias.
#[derive(Debug)]
pub(super) struct Convolution {
    pub(super) output: usize,
    pub(super) input: usize,
    pub(super) kernel: usize,
    values: Vec<f32>,
    pub(super) bias: Vec<f32>,
}

impl Convolution {
    /// Shape `[kernel * kernel * input, output]`, rows in the order (y, x, input).
    pub(super) fn matrix(&self) -> Array2<f32> {
        let area = self.kernel * self.kernel;
        Array2::from_shape_fn((area * self.input, self.output), |(row, output)| {
            let (place, input) = (row / self.input, row % self.input);
            self.values[(output * self.input + input) * area + place]
        })
    }
}

/// Reads a whole file, but no more than [`MAX_WEIGHTS_BYTES`].
pub(super) fn read(path: &Path) -> Result<Vec<u8>, BackboneError> {
    let io = |source| BackboneError::Read {
        path: path.to_owned(),
        source,
    };
    let file = File::open(path).map_err(io)?;
    let mut bytes = Vec::new();
    file.take(MAX_WEIGHTS_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(io)?;
    if bytes.len() as u64 > MAX_WEIGHTS_BYTES {
        return Err(BackboneError::TooLarge {
            limit: MAX_WEIGHTS_BYTES,
        });
    }
    Ok(bytes)
}

impl Weights {
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, BackboneError> {
        let file = SafeTensors::deserialize(bytes)?;
        let (_, header) = SafeTensors::read_metadata(bytes)?;
        let metadata = header.metadata().clone().unwrap_or_default();
        let mut half = true;
        let mut tensors = BTreeMap::new();
        for (name, view) in file.tensors() {
            let values: Vec<f32> = match view.dtype() {
                Dtype::F16 => view
                    .data()
                    .as_chunks::<2>()
                    .0
                    .iter()
                    .map(|b| half::f16::from_le_bytes(*b).to_f32())
                    .collect(),
                Dtype::F32 => {
                    half = false;
                    let chunks = view.data().as_chunks::<4>().0;
                    chunks.iter().map(|b| f32::from_le_bytes(*b)).collect()
                }
                got => return Err(BackboneError::Type { name, got }),
            };
            if values.iter().any(|value| !value.is_finite()) {
                return Err(BackboneError::NotFinite { name });
            }
            let shape = view.shape().to_vec();
            tensors.insert(name, Weight { shape, values });
        }
        Ok(Self {
            tensors,
            metadata: metadata.into_iter().collect(),
            half,
        })
    }

    /// A metadata entry, empty where the file has none.
    pub(super) fn metadata(&self, key: &str) -> &str {
        self.metadata.get(key).map_or("", String::as_str)
    }

    pub(super) fn contains(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// Takes `name.weight` and `name.bias`.
    ///
    /// - `input`: input channels (1 for a depthwise convolution);
    /// - `output`: output channels, `None` where the file decides;
    /// - `kernel`: side of the square kernel.
    pub(super) fn convolution(
        &mut self,
        name: &str,
        output: Option<usize>,
        input: usize,
        kernel: usize,
    ) -> Result<Convolution, BackboneError> {
        let weight_name = format!("{name}.weight");
        let weight = self.take(&weight_name)?;
        let output = output.unwrap_or_else(|| weight.shape.first().copied().unwrap_or(0));
        let expected = [output, input, kernel, kernel];
        // A 1x1 convolution on the pooled features may be stored as the matrix that it is.
        let matrix = kernel == 1 && weight.shape == expected[..2];
        if output == 0 || (weight.shape != expected && !matrix) {
            return Err(BackboneError::Shape {
                name: weight_name,
                got: weight.shape,
                expected: expected.to_vec(),
            });
        }
        let bias_name = format!("{name}.bias");
        let bias = self.take(&bias_name)?;
        if bias.shape != [output] {
            return Err(BackboneError::Shape {
                name: bias_name,
                got: bias.shape,
                expected: vec![output],
            });
        }
        Ok(Convolution {
            output,
            input,
            kernel,
            values: weight.values,
            bias: bias.values,
        })
    }

    /// Says that everything was taken.
    pub(super) fn finish(self) -> Result<(), BackboneError> {
        match self.tensors.into_keys().next() {
            Some(name) => Err(BackboneError::Extra { name }),
            None => Ok(()),
        }
    }

    fn take(&mut self, name: &str) -> Result<Weight, BackboneError> {
        self.tensors
            .remove(name)
            .ok_or_else(|| BackboneError::Missing {
                name: name.to_owned(),
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matrix_reorders_oihw_to_patches() {
        // One output, two inputs, 2x2 kernel: value = 10 * input + place.
        let convolution = Convolution {
            output: 1,
            input: 2,
            kernel: 2,
            values: vec![0.0, 1.0, 2.0, 3.0, 10.0, 11.0, 12.0, 13.0],
            bias: vec![0.0],
        };
        assert_eq!(
            convolution.matrix().into_raw_vec_and_offset().0,
            [0.0, 10.0, 1.0, 11.0, 2.0, 12.0, 3.0, 13.0]
        );
    }
}
