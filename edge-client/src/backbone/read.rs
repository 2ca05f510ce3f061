//! From the tensors of a file to a network in f32: the two conventions, and batch norm folded where it is not yet.
//!
//! - *Folded*: torchvision's tensor names, batch norm already in weight and bias. TF-Slim's networks come this way; the
//!   metadata must say which one it is and how (`model`, `input`, `padding`, `batchnorm`). A file all in half precision
//!   comes from a network whose constants were too, so 1/6 is then rounded to half precision.
//! - *torchvision*: the state dict of `mobilenet_v3_small` or `mobilenet_v3_large` of any width, known by its running
//!   variances. Which of the two it is follows from its tensors; metadata is not needed.
//!
//! Widths come from the shapes. What a file holds beyond the network is as much an error as what it lacks.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use safetensors::SafeTensorError;
use wayside_extractor::float::{FloatBlock, FloatConv, FloatGate, FloatNetwork, Normalisation};
use wayside_extractor::topology::{Block, Family, Padding};

use super::BackboneError;
use super::tensors::Tensors;

/// 1/6 in half precision, 0.1666259765625: what a network that was shipped in half precision multiplies by.
const SIXTH_HALF: f32 = 1365.0 / 8192.0;

/// torchvision's `BatchNorm2d` in both networks.
const EPSILON: f64 = 1e-3;

/// What the metadata `input` may say, with what is done to a byte.
const INPUTS: &[(&str, Normalisation)] = &[
    (
        "raw 0..255",
        Normalisation {
            scale: [1.0; 3],
            shift: [0.0; 3],
        },
    ),
    (
        "x/127.5-1",
        Normalisation {
            scale: [1.0 / 127.5; 3],
            shift: [-1.0; 3],
        },
    ),
    ("ImageNet mean and std", IMAGENET),
];

/// `(x / 255 - mean) / std`, with the mean and deviation that torchvision's weights were trained with.
const IMAGENET: Normalisation = Normalisation {
    scale: [
        1.0 / (255.0 * 0.229),
        1.0 / (255.0 * 0.224),
        1.0 / (255.0 * 0.225),
    ],
    shift: [-0.485 / 0.229, -0.456 / 0.224, -0.406 / 0.225],
};

/// Reads a pretrained network, whichever of the two conventions its file follows.
///
/// Needs twice the file's size in memory if that is in half precision, and the size itself if it is not.
///
/// # Errors
/// [`BackboneError`] names the first tensor that is missing, unexpected, wrongly shaped or not finite.
pub fn read_float(path: &Path) -> Result<FloatNetwork, BackboneError> {
    Ok(open(path)?.0)
}

/// [`read_float`] for a file already in memory.
///
/// # Errors
/// As [`read_float`].
pub fn read_float_bytes(bytes: &[u8]) -> Result<FloatNetwork, BackboneError> {
    Ok(parse(bytes, bytes.len() as u64)?.0)
}

/// A file's network and its BLAKE3.
pub(crate) fn open(path: &Path) -> Result<(FloatNetwork, [u8; 32]), BackboneError> {
    let io = |source| BackboneError::Read {
        path: path.to_owned(),
        source,
    };
    let file = File::open(path).map_err(io)?;
    let length = file.metadata().map_err(io)?.len();
    parse(file, length).map_err(|error| match error {
        BackboneError::Container(SafeTensorError::IoError(source)) => io(source),
        other => other,
    })
}

/// [`open`] for any reader of `length` bytes.
pub(crate) fn parse(
    reader: impl Read,
    length: u64,
) -> Result<(FloatNetwork, [u8; 32]), BackboneError> {
    let tensors = Tensors::read(reader, length)?;
    let digest = tensors.digest;
    let batch_norm = tensors.names().any(|name| name.ends_with(".running_var"));
    let network = if batch_norm {
        torchvision(tensors)?
    } else {
        folded(tensors)?
    };
    Ok((network, digest))
}

fn folded(tensors: Tensors) -> Result<FloatNetwork, BackboneError> {
    expect(&tensors, "padding", &["TensorFlow SAME"])?;
    expect(&tensors, "batchnorm", &["folded"])?;
    let models = &["MobileNetV3-Large", "MobileNetV3-Small"];
    let family = [Family::Large, Family::Small][expect(&tensors, "model", models)?];
    let kind = Kind {
        family,
        padding: Padding::Same,
        normalisation: normalisation(&tensors)?,
        sixth: if tensors.half { SIXTH_HALF } else { 1.0 / 6.0 },
    };
    Layers {
        tensors,
        batch_norm: false,
    }
    .network(kind)
}

fn torchvision(tensors: Tensors) -> Result<FloatNetwork, BackboneError> {
    let normalisation = if tensors.metadata("input").is_empty() {
        IMAGENET
    } else {
        normalisation(&tensors)?
    };
    if !tensors.metadata("padding").is_empty() {
        expect(&tensors, "padding", &["symmetric"])?;
    }
    // Small ends with `features.12`, Large with `features.16`.
    let large = tensors
        .names()
        .any(|name| (13..=16).any(|index| name.starts_with(&format!("features.{index}."))));
    let kind = Kind {
        family: if large { Family::Large } else { Family::Small },
        padding: Padding::Symmetric,
        normalisation,
        sixth: 1.0 / 6.0,
    };
    Layers {
        tensors,
        batch_norm: true,
    }
    .network(kind)
}

fn normalisation(tensors: &Tensors) -> Result<Normalisation, BackboneError> {
    const NAMES: &[&str] = &[INPUTS[0].0, INPUTS[1].0, INPUTS[2].0];
    Ok(INPUTS[expect(tensors, "input", NAMES)?].1)
}

/// Which of the choices stands in a metadata entry.
fn expect(
    tensors: &Tensors,
    key: &'static str,
    choices: &'static [&'static str],
) -> Result<usize, BackboneError> {
    let got = tensors.metadata(key);
    choices
        .iter()
        .position(|choice| got.contains(choice))
        .ok_or_else(|| BackboneError::Metadata {
            key,
            got: got.to_owned(),
            choices,
        })
}

/// What a file says of its network beside the tensors.
struct Kind {
    family: Family,
    padding: Padding,
    normalisation: Normalisation,
    sixth: f32,
}

/// Takes the layers of a network out of a file, one by one.
struct Layers {
    tensors: Tensors,
    /// Whether convolutions are followed by a batch norm instead of having a bias.
    batch_norm: bool,
}

impl Layers {
    fn network(mut self, kind: Kind) -> Result<FloatNetwork, BackboneError> {
        let table = kind.family.blocks();
        let stem = self.layer("features.0", None, 3, 3)?;
        let mut channels = stem.output;
        let mut blocks = Vec::with_capacity(table.len());
        for (index, row) in table.iter().enumerate() {
            let prefix = format!("features.{}.block", index + 1);
            let block = self.block(&prefix, channels, row)?;
            channels = block.project.output;
            blocks.push(block);
        }
        let last = self.layer(&format!("features.{}", table.len() + 1), None, channels, 1)?;
        let mut pooled = None;
        if self.tensors.shape("classifier.0.weight").is_some() {
            pooled = Some(self.dense("classifier.0", None, last.output)?);
        }
        if let (true, Some(pooled)) = (self.batch_norm, &pooled)
            && self.tensors.shape("classifier.3.weight").is_some()
        {
            // The head of the task that the network was trained for.
            self.dense("classifier.3", None, pooled.output)?;
        }
        self.tensors.finish()?;
        Ok(FloatNetwork {
            family: kind.family,
            padding: kind.padding,
            normalisation: kind.normalisation,
            sixth: kind.sixth,
            stem,
            blocks,
            last,
            pooled,
        })
    }

    fn block(
        &mut self,
        prefix: &str,
        input: usize,
        row: &Block,
    ) -> Result<FloatBlock, BackboneError> {
        let mut part = 0;
        let mut next = || {
            part += 1;
            format!("{prefix}.{}", part - 1)
        };
        let first = self.tensors.shape(&format!("{prefix}.0.0.weight"));
        let expanding = !matches!(first, Some([_, 1, height, _]) if *height > 1);
        let expand = if expanding {
            Some(self.layer(&next(), None, input, 1)?)
        } else {
            None
        };
        let channels = expand.as_ref().map_or(input, |expand| expand.output);
        let depthwise = self.layer(&next(), Some(channels), 1, row.kernel)?;
        let gate = if row.squeeze_excite {
            let name = next();
            let squeeze = self.dense(&format!("{name}.fc1"), None, channels)?;
            let excite = self.dense(&format!("{name}.fc2"), Some(channels), squeeze.output)?;
            Some(FloatGate { squeeze, excite })
        } else {
            None
        };
        let project = self.layer(&next(), None, channels, 1)?;
        Ok(FloatBlock {
            expand,
            depthwise,
            gate,
            residual: row.stride == 1 && input == project.output,
            project,
        })
    }

    /// Takes a convolution, `name.0`, with its bias or with the batch norm `name.1`.
    ///
    /// - `output`: output channels, `None` where the file decides;
    /// - `input`: input channels (1 for a depthwise convolution);
    /// - `kernel`: side of the square kernel.
    fn layer(
        &mut self,
        name: &str,
        output: Option<usize>,
        input: usize,
        kernel: usize,
    ) -> Result<FloatConv, BackboneError> {
        let convolution = format!("{name}.0");
        let weight = self.weight(&convolution, output, input, kernel)?;
        if self.batch_norm {
            self.fold(&format!("{name}.1"), weight)
        } else {
            self.with_bias(&convolution, weight)
        }
    }

    /// Takes a layer that has a bias in both conventions.
    fn dense(
        &mut self,
        name: &str,
        output: Option<usize>,
        input: usize,
    ) -> Result<FloatConv, BackboneError> {
        let weight = self.weight(name, output, input, 1)?;
        self.with_bias(name, weight)
    }

    /// Takes `name.weight`; the bias is still empty.
    fn weight(
        &mut self,
        name: &str,
        output: Option<usize>,
        input: usize,
        kernel: usize,
    ) -> Result<FloatConv, BackboneError> {
        let name = format!("{name}.weight");
        let first = self.tensors.shape(&name).and_then(|shape| shape.first());
        // A layer without outputs is refused by asking for one.
        let output = output.unwrap_or_else(|| first.copied().unwrap_or(1).max(1));
        let shape = [output, input, kernel, kernel];
        // A 1x1 convolution may be stored as the matrix that it is.
        let matrix = if kernel == 1 { &shape[..2] } else { &shape };
        Ok(FloatConv {
            output,
            input,
            kernel,
            weight: self.tensors.take(&name, &[&shape, matrix])?,
            bias: Vec::new(),
        })
    }

    fn with_bias(&mut self, name: &str, layer: FloatConv) -> Result<FloatConv, BackboneError> {
        let bias = self
            .tensors
            .take(&format!("{name}.bias"), &[&[layer.output]])?;
        Ok(FloatConv { bias, ..layer })
    }

    /// Takes the batch norm `name` and folds it into the convolution before it, in f64.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "rounding to f32 is meant, and what overflows is refused"
    )]
    fn fold(&mut self, name: &str, mut layer: FloatConv) -> Result<FloatConv, BackboneError> {
        let mut take = |part: &str| {
            self.tensors
                .take(&format!("{name}.{part}"), &[&[layer.output]])
        };
        let factor = take("weight")?;
        let mut bias = take("bias")?;
        let mean = take("running_mean")?;
        let variance = take("running_var")?;
        self.tensors
            .take_counter(&format!("{name}.num_batches_tracked"))?;
        if variance.iter().any(|variance| *variance < 0.0) {
            return Err(BackboneError::Negative {
                name: format!("{name}.running_var"),
            });
        }
        let kernel_len = layer.weight.len() / layer.output;
        let kernels = layer.weight.chunks_exact_mut(kernel_len);
        for (channel, kernel) in kernels.enumerate() {
            let deviation = (f64::from(variance[channel]) + EPSILON).sqrt();
            let scale = f64::from(factor[channel]) / deviation;
            for weight in &mut *kernel {
                *weight = (f64::from(*weight) * scale) as f32;
            }
            let shift = f64::from(bias[channel]) - f64::from(mean[channel]) * scale;
            bias[channel] = shift as f32;
            if !bias[channel].is_finite() || kernel.iter().any(|weight| !weight.is_finite()) {
                return Err(BackboneError::Fold {
                    name: name.to_owned(),
                });
            }
        }
        layer.bias = bias;
        Ok(layer)
    }
}
