//! The frozen feature extractor: a pretrained MobileNetV3, in f32, on one thread.
//!
//! Invariants: features depend on the picture and the file's bytes only, neither on the batch nor on the number of
//! threads; the backbone never changes and never travels, its [`digest`](Backbone::digest) does. Files follow the
//! folded TF-Slim convention: torchvision's tensor names, batch norm folded into weight and bias, widths read from the
//! shapes; the metadata must say so (`model`, `input`, `padding`, `batchnorm`). A file all in half precision comes from
//! a network whose constants were too, so 1/6 is then rounded to half precision.
//!
//! Nothing here starts a thread: several threads may share one backbone, and as many cores are busy as call it.

mod network;
mod ops;
mod weights;

use std::path::{Path, PathBuf};

use candle_core::{Device, Tensor};
use ndarray::Array2;

use crate::pictures::{InputSize, Picture};
use network::{Network, Normalisation};
pub use weights::MAX_WEIGHTS_BYTES;
use weights::Weights;

/// A loaded feature extractor.
#[derive(Debug)]
pub struct Backbone {
    network: Network,
    digest: [u8; 32],
}

/// Why a backbone could not be loaded or run. Only [`BackboneError::Read`] may be gone at the next try.
#[derive(Debug, thiserror::Error)]
pub enum BackboneError {
    /// The file could not be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is no file of weights that we would ship.
    #[error("file of weights exceeds the limit of {limit} bytes")]
    TooLarge {
        /// Most bytes that are read.
        limit: u64,
    },
    /// The container is damaged.
    #[error("damaged safetensors file: {0}")]
    Container(#[from] safetensors::SafeTensorError),
    /// The metadata names a network or convention that this build does not know.
    #[error("metadata {key:?} is {got:?}, expected one of {choices:?} in it")]
    Metadata {
        /// The entry.
        key: &'static str,
        /// Its text; empty where it is missing.
        got: String,
        /// Texts that are understood.
        choices: &'static [&'static str],
    },
    /// A tensor that the network needs is not there.
    #[error("tensor {name} is missing")]
    Missing {
        /// Its name.
        name: String,
    },
    /// A tensor that the network does not use.
    #[error("tensor {name} does not belong to the network")]
    Extra {
        /// Its name.
        name: String,
    },
    /// A tensor of another shape.
    #[error("tensor {name} has shape {got:?}, expected {expected:?}")]
    Shape {
        /// Its name.
        name: String,
        /// Its shape in the file.
        got: Vec<usize>,
        /// The shape that fits the tensors before it.
        expected: Vec<usize>,
    },
    /// A tensor of numbers that are neither f16 nor f32.
    #[error("tensor {name} has type {got:?}, expected F16 or F32")]
    Type {
        /// Its name.
        name: String,
        /// Its type in the file.
        got: safetensors::Dtype,
    },
    /// A tensor with NaN or infinity in it.
    #[error("tensor {name} holds a value that is not finite")]
    NotFinite {
        /// Its name.
        name: String,
    },
    /// Pictures of one batch must have one size.
    #[error("picture of {got} in a batch of {expected}, height x width")]
    MixedSizes {
        /// Size of the first picture that differs.
        got: InputSize,
        /// Size of the first picture.
        expected: InputSize,
    },
    /// The tensor library refused; a mistake of ours.
    #[error("tensor arithmetic: {0}")]
    Tensor(#[from] candle_core::Error),
}

/// Pixels that go through the network at once: more would leave the cache, fewer would starve the matrix products.
const PIXELS_AT_ONCE: usize = 8 * 1024;

impl Backbone {
    /// Loads a file of weights and checks it as a whole.
    ///
    /// # Errors
    /// [`BackboneError`] names the first tensor that is missing, unexpected, wrongly shaped or not finite.
    pub fn load(path: &Path) -> Result<Self, BackboneError> {
        Self::from_bytes(&weights::read(path)?)
    }

    /// [`Self::load`] for a file already in memory.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, BackboneError> {
        Ok(Self {
            network: Network::assemble(Weights::parse(bytes)?)?,
            digest: *blake3::hash(bytes).as_bytes(),
        })
    }

    /// Length of one feature vector.
    pub fn features(&self) -> usize {
        let network = &self.network;
        let pooled = network.pooled.as_ref().map(|layer| layer.bias.len());
        pooled.unwrap_or(network.map_channels())
    }

    /// BLAKE3 of the file of weights: two backbones with one digest give the same features.
    pub fn digest(&self) -> [u8; 32] {
        self.digest
    }

    /// The last convolution's output, before the mean.
    ///
    /// - `pictures`: all of one size.
    /// - returns: shape `[n, ceil(height / 32), ceil(width / 32), channels]`.
    ///
    /// # Errors
    /// [`BackboneError::MixedSizes`] if the pictures differ in size.
    pub fn feature_map(&self, pictures: &[Picture]) -> Result<Tensor, BackboneError> {
        let Some(size) = common_size(pictures)? else {
            let shape = (0, 0, 0, self.network.map_channels());
            return Ok(Tensor::from_vec(Vec::<f32>::new(), shape, &Device::Cpu)?);
        };
        let mut values = Vec::with_capacity(pictures.len() * size.height * size.width * 3);
        for picture in pictures {
            let bytes = picture.rgb().iter().copied();
            match self.network.normalisation {
                Normalisation::Raw => values.extend(bytes.map(f32::from)),
                Normalisation::SignedUnit => {
                    values.extend(bytes.map(|byte| f32::from(byte) / 127.5 - 1.0));
                }
            }
        }
        let shape = (pictures.len(), size.height, size.width, 3);
        let input = Tensor::from_vec(values, shape, &Device::Cpu)?;
        Ok(self.network.forward(&input)?)
    }

    /// The features of some pictures.
    ///
    /// - `pictures`: all of one size.
    /// - returns: shape `[n, features]`.
    ///
    /// # Errors
    /// [`BackboneError::MixedSizes`] if the pictures differ in size.
    pub fn extract(&self, pictures: &[Picture]) -> Result<Array2<f32>, BackboneError> {
        let mut features = Array2::zeros((pictures.len(), self.features()));
        let mut rows = features.rows_mut().into_iter();
        let pixels = common_size(pictures)?.map_or(1, |size| size.height * size.width);
        for batch in pictures.chunks((PIXELS_AT_ONCE / pixels).max(1)) {
            let map = self.feature_map(batch)?;
            let (n, height, width, channels) = map.dims4()?;
            let map = map.flatten_all()?.to_vec1::<f32>()?;
            let mut pooled: Vec<f32> = map
                .chunks_exact((height * width * channels).max(1))
                .flat_map(|picture| ops::channel_means(picture, channels))
                .collect();
            if let Some(layer) = &self.network.pooled {
                let x = Tensor::from_vec(pooled, (n, 1, 1, channels), &Device::Cpu)?;
                pooled = layer.forward(&x)?.flatten_all()?.to_vec1()?;
            }
            for (vector, mut row) in pooled.chunks_exact(self.features()).zip(&mut rows) {
                for (to, value) in row.iter_mut().zip(vector) {
                    *to = *value;
                }
            }
        }
        Ok(features)
    }
}

/// The size that all pictures share; `None` if there are none.
fn common_size(pictures: &[Picture]) -> Result<Option<InputSize>, BackboneError> {
    let Some(expected) = pictures.first().map(Picture::size) else {
        return Ok(None);
    };
    match pictures.iter().find(|picture| picture.size() != expected) {
        Some(other) => Err(BackboneError::MixedSizes {
            got: other.size(),
            expected,
        }),
        None => Ok(Some(expected)),
    }
}
