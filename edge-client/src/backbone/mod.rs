//! The frozen feature extractor: a pretrained MobileNetV3, in int8 or f32, as a file of weights says.
//!
//! Invariants: features depend on the picture and the file's bytes only, neither on the batch nor on the number of
//! threads; the backbone never changes and never travels, its [`digest`](Backbone::digest) does. Vehicles run int8,
//! which [`quantize`](crate::quantize) makes from f32, and which gives the same bits on every CPU. Files of f32 follow
//! one of two conventions, TF-Slim's networks with batch norm folded or torchvision's state dicts: [`read_float`] tells
//! them apart.
//!
//! Nothing here starts a thread: several threads may share one backbone, and as many cores are busy as call it.

mod int8;
mod network;
mod observe;
mod ops;
mod read;
mod tensors;

use std::fmt;
use std::path::{Path, PathBuf};

use candle_core::{DType, Device, Tensor};
use ndarray::Array2;
use wayside_extractor::engine::{EngineError, Stage};
use wayside_extractor::file::FileError;
use wayside_extractor::float::FloatNetwork;
use wayside_extractor::kernels::Isa;
use wayside_extractor::quantized::QuantNetwork;
use wayside_extractor::topology::Family;

use crate::pictures::{InputSize, Picture};
use int8::Int8;
pub(crate) use network::Network;
pub(crate) use observe::Place;
pub use read::{read_float, read_float_bytes};
pub use tensors::MAX_WEIGHTS_BYTES;

/// A loaded feature extractor.
#[derive(Debug)]
pub struct Backbone {
    arithmetic: Arithmetic,
    family: Family,
    digest: [u8; 32],
}

#[derive(Debug)]
enum Arithmetic {
    F32(Box<Network>),
    Int8(Int8),
}

/// What a backbone computes with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// candle in f32: what int8 is measured against.
    F32,
    /// Our own engine.
    Int8 {
        /// The instruction set that it runs on.
        isa: Isa,
    },
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::F32 => f.write_str("f32"),
            Self::Int8 { isa } => write!(f, "int8 on {isa}"),
        }
    }
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
    /// A tensor that does not lie where it should: overlapping, behind the end, or not as long as its shape.
    #[error(
        "damaged safetensors file: tensor {name} of type {dtype:?} and shape {shape:?} is said to lie at bytes \
         {}..{} of {data_bytes}, expected to begin at {start} and to fit its shape",
        got.0, got.1
    )]
    Extent {
        /// Its name.
        name: String,
        /// Where the header says that it begins and ends, counted from the end of the header.
        got: (usize, usize),
        /// Its type in the file.
        dtype: safetensors::Dtype,
        /// Its shape in the file.
        shape: Vec<usize>,
        /// Where the tensor before it ends.
        start: usize,
        /// Bytes behind the header.
        data_bytes: usize,
    },
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
    /// A tensor of other numbers.
    #[error("tensor {name} has type {got:?}, expected {expected}")]
    Type {
        /// Its name.
        name: String,
        /// Its type in the file.
        got: safetensors::Dtype,
        /// Types that fit.
        expected: &'static str,
    },
    /// A tensor with NaN or infinity in it.
    #[error("tensor {name} holds a value that is not finite")]
    NotFinite {
        /// Its name.
        name: String,
    },
    /// Variances below zero.
    #[error("tensor {name} holds a negative variance")]
    Negative {
        /// Its name.
        name: String,
    },
    /// A batch norm and the convolution before it are finite, but not what folding makes of them.
    #[error("batch norm {name} folded into the convolution before it leaves the range of f32")]
    Fold {
        /// What its tensors' names begin with.
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
    /// A quantized file is damaged.
    #[error(transparent)]
    Quantized(#[from] FileError),
    /// A quantized network cannot run here.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// Only f32 has this.
    #[error("{what} is there in f32 only")]
    OnlyFloat {
        /// What was asked for.
        what: &'static str,
    },
    /// Only int8 has this.
    #[error("{what} are there in int8 only")]
    OnlyInt8 {
        /// What was asked for.
        what: &'static str,
    },
    /// The tensor library refused; a mistake of ours.
    #[error("tensor arithmetic: {0}")]
    Tensor(#[from] candle_core::Error),
}

/// Pixels that go through the f32 network at once: more would leave the cache, fewer would starve the matrix products.
const PIXELS_AT_ONCE: usize = 8 * 1024;

impl Backbone {
    /// Loads a file of weights and checks it as a whole; a quantized one runs on the fastest instruction set here.
    ///
    /// # Errors
    /// [`BackboneError`] names the first tensor that is missing, unexpected, wrongly shaped or not finite.
    pub fn load(path: &Path) -> Result<Self, BackboneError> {
        Self::load_for(path, Isa::detect())
    }

    /// [`Self::load`] with a quantized file's instruction set given.
    ///
    /// # Errors
    /// As [`Self::load`], and if this CPU lacks the instruction set.
    pub fn load_for(path: &Path, isa: Isa) -> Result<Self, BackboneError> {
        if tensors::is_quantized(path)? {
            return Self::quantized(tensors::read_whole(path)?, isa);
        }
        Ok(Self::float(read::open(path)?))
    }

    /// [`Self::load`] for a file already in memory.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, BackboneError> {
        if tensors::says_quantized(bytes) {
            return Self::quantized(bytes.to_vec(), Isa::detect());
        }
        Ok(Self::float(read::parse(bytes, bytes.len() as u64)?))
    }

    fn quantized(bytes: Vec<u8>, isa: Isa) -> Result<Self, BackboneError> {
        let (network, _) = wayside_extractor::file::read(&bytes)?;
        let digest = *blake3::hash(&bytes).as_bytes();
        // Twice the file at most: the network is laid out for the CPU next.
        drop(bytes);
        Ok(Self {
            digest,
            ..Self::from_quantized(network, isa)?
        })
    }

    fn float((network, digest): (FloatNetwork, [u8; 32])) -> Self {
        Self {
            digest,
            ..Self::from_float(network)
        }
    }

    /// A network that came from no file: its digest is all zeros.
    pub fn from_float(network: FloatNetwork) -> Self {
        Self {
            family: network.family,
            arithmetic: Arithmetic::F32(Box::new(Network::new(network))),
            digest: [0; 32],
        }
    }

    /// [`Self::from_float`] in int8.
    ///
    /// # Errors
    /// [`BackboneError::Engine`] if the network's numbers are not fit or this CPU lacks the instruction set.
    pub fn from_quantized(network: QuantNetwork, isa: Isa) -> Result<Self, BackboneError> {
        Ok(Self {
            family: network.family,
            arithmetic: Arithmetic::Int8(Int8::new(network, isa)?),
            digest: [0; 32],
        })
    }

    /// Length of one feature vector.
    pub fn features(&self) -> usize {
        match &self.arithmetic {
            Arithmetic::F32(network) => network.features(),
            Arithmetic::Int8(int8) => int8.features(),
        }
    }

    /// BLAKE3 of the file of weights: two backbones with one digest give the same features.
    pub fn digest(&self) -> [u8; 32] {
        self.digest
    }

    /// Which of the two networks.
    pub fn family(&self) -> Family {
        self.family
    }

    /// What it computes with.
    pub fn engine(&self) -> Engine {
        match &self.arithmetic {
            Arithmetic::F32(_) => Engine::F32,
            Arithmetic::Int8(int8) => Engine::Int8 { isa: int8.isa() },
        }
    }

    /// Bytes that a thread of the int8 engine works in with pictures of this size.
    pub fn arena_bytes(&self, height: usize, width: usize) -> Option<usize> {
        match &self.arithmetic {
            Arithmetic::F32(_) => None,
            Arithmetic::Int8(int8) => Some(int8.arena_bytes(height, width)),
        }
    }

    /// Runs a picture while `watch` is told after each piece of the int8 engine's work what it was.
    ///
    /// # Errors
    /// [`BackboneError::OnlyInt8`] in f32.
    ///
    /// # Panics
    /// If `rgb` is no picture of that height and width.
    pub fn watch(
        &self,
        rgb: &[u8],
        size: (usize, usize),
        watch: impl FnMut(Stage),
    ) -> Result<(), BackboneError> {
        match &self.arithmetic {
            Arithmetic::F32(_) => Err(BackboneError::OnlyInt8 { what: "stages" }),
            Arithmetic::Int8(int8) => {
                int8.watch(rgb, size, watch);
                Ok(())
            }
        }
    }

    /// The last convolution's output in f32, before the mean.
    ///
    /// - `pictures`: all of one size.
    /// - returns: shape `[n, ceil(height / 32), ceil(width / 32), channels]`.
    ///
    /// # Errors
    /// [`BackboneError::MixedSizes`] if the pictures differ in size, [`BackboneError::OnlyFloat`] in int8.
    pub fn feature_map(&self, pictures: &[Picture]) -> Result<Tensor, BackboneError> {
        let Arithmetic::F32(network) = &self.arithmetic else {
            let what = "the last feature map";
            return Err(BackboneError::OnlyFloat { what });
        };
        if let Some(pictures) = bytes(pictures)? {
            return Ok(network.map(&network.input(&pictures)?)?);
        }
        let shape = (0, 0, 0, network.map_channels());
        Ok(Tensor::from_vec(Vec::<f32>::new(), shape, &Device::Cpu)?)
    }

    /// The features of a batch.
    ///
    /// - `pictures`: bytes, shape `[n, height, width, 3]`.
    /// - returns: f32, shape `[n, features]`.
    ///
    /// # Errors
    /// If the tensor has another type or shape.
    pub fn forward(&self, pictures: &Tensor) -> candle_core::Result<Tensor> {
        let network = match &self.arithmetic {
            Arithmetic::Int8(int8) => return int8.forward(pictures),
            Arithmetic::F32(network) => network,
        };
        let (n, height, width, _) = pictures.dims4()?;
        let at_once = (PIXELS_AT_ONCE / (height * width).max(1)).max(1);
        let mut features = Vec::with_capacity(n.div_ceil(at_once));
        for first in (0..n).step_by(at_once) {
            let some = pictures.narrow(0, first, at_once.min(n - first))?;
            features.push(network.forward(&network.input(&some)?)?);
        }
        if features.is_empty() {
            return Tensor::zeros((0, self.features()), DType::F32, pictures.device());
        }
        Tensor::cat(&features, 0)
    }

    /// The features of some pictures.
    ///
    /// - `pictures`: all of one size.
    /// - returns: shape `[n, features]`.
    ///
    /// # Errors
    /// [`BackboneError::MixedSizes`] if the pictures differ in size.
    pub fn extract(&self, pictures: &[Picture]) -> Result<Array2<f32>, BackboneError> {
        let shape = (pictures.len(), self.features());
        let Some(pictures) = bytes(pictures)? else {
            return Ok(Array2::zeros(shape));
        };
        let vectors = self.forward(&pictures)?.flatten_all()?.to_vec1::<f32>()?;
        Ok(Array2::from_shape_vec(shape, vectors).expect("one vector a picture"))
    }
}

/// Pictures of one size as a tensor of bytes, shape `[n, height, width, 3]`; `None` if there are none.
pub(crate) fn bytes(pictures: &[Picture]) -> Result<Option<Tensor>, BackboneError> {
    let Some(size) = common_size(pictures)? else {
        return Ok(None);
    };
    let mut bytes = Vec::with_capacity(pictures.len() * size.height * size.width * 3);
    for picture in pictures {
        bytes.extend_from_slice(picture.rgb());
    }
    let shape = (pictures.len(), size.height, size.width, 3);
    Ok(Some(Tensor::from_vec(bytes, shape, &Device::Cpu)?))
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
