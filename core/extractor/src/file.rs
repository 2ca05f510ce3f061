//! The file of a quantized network: safetensors, with torchvision's names.
//!
//! Each convolution has `weight` (I8, OIHW), `bias` (I32) and `scale` (F32), and behind it the grid of its bytes:
//! `out_scale` (F32) and `out_zero` (U8). The layers of squeeze-excite and the one on the pooled features have `weight`
//! (I8, `[output, input]`), `scale` and `bias` (F32), and where their inputs are real numbers `low` and `step`
//! (F32, `[1]`). The gated bytes' grid has the name of the squeeze-excite. The metadata tell what the network is and
//! where it came from.
//!
//! Invariants: one network gives one sequence of bytes; what [`read`] returns has passed [`QuantNetwork::check`];
//! nothing is allocated from a number in the file before the file was found to be that long.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};

use crate::check::CheckError;
use crate::float::Normalisation;
use crate::names::{self, BlockNames};
use crate::quantized::{Dense, Grid, QuantBlock, QuantConv, QuantGate, QuantNetwork};
use crate::topology::{Block, Family, Padding};

/// What stands under `format` in the metadata.
pub const FORMAT: &str = "wayside-int8-1";

/// Longest header that is read, in bytes; ours have about a tenth of it.
pub const MAX_HEADER_BYTES: u64 = 256 * 1024;

/// Longest side of the pictures that a network was calibrated on.
const MAX_SIDE: usize = 4096;

/// Where a quantized network came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Provenance {
    /// Height and width of the pictures it was calibrated on.
    pub input_size: (usize, usize),
    /// BLAKE3 over the digests of those pictures.
    pub calibration: [u8; 32],
    /// BLAKE3 of the file in f32.
    pub source: [u8; 32],
    /// Where that file came from, in its own words.
    pub origin: Option<String>,
    /// Its licence, in its own words.
    pub licence: Option<String>,
}

/// Why a file is no quantized network.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// More header than any network needs.
    #[error("header of {got} bytes exceeds the limit of {limit}")]
    HeaderTooLarge {
        /// What the file says.
        got: u64,
        /// Most bytes that are read.
        limit: u64,
    },
    /// The container is damaged.
    #[error("damaged safetensors file: {0}")]
    Container(#[from] safetensors::SafeTensorError),
    /// A metadata entry is missing or means nothing to this build.
    #[error("metadata {key:?} is {got:?}, expected {expected}")]
    Metadata {
        /// The entry.
        key: &'static str,
        /// Its text; empty where it is missing.
        got: String,
        /// What is understood.
        expected: &'static str,
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
    /// A tensor of another type or shape.
    #[error("tensor {name} is {got}, expected {expected}")]
    Tensor {
        /// Its name.
        name: String,
        /// What the file has.
        got: String,
        /// What fits the tensors before it.
        expected: String,
    },
    /// The numbers could make a kernel go wrong.
    #[error(transparent)]
    Check(#[from] CheckError),
}

/// Reads a whole file and checks everything in it.
///
/// # Errors
/// [`FileError`] names the first tensor or metadata entry that is missing, unexpected or not usable.
pub fn read(bytes: &[u8]) -> Result<(QuantNetwork, Provenance), FileError> {
    if let Some(length) = bytes.first_chunk::<8>() {
        let got = u64::from_le_bytes(*length);
        if got > MAX_HEADER_BYTES {
            let limit = MAX_HEADER_BYTES;
            return Err(FileError::HeaderTooLarge { got, limit });
        }
    }
    let metadata = {
        // Its own scope: a parsed header is several times as large as its text, and is parsed once more below.
        let (_, header) = SafeTensors::read_metadata(bytes)?;
        let entries = header.metadata().iter().flatten();
        Texts(entries.map(|(k, v)| (k.clone(), v.clone())).collect())
    };
    metadata.choice("format", "\"wayside-int8-1\"", |text| {
        (text == FORMAT).then_some(())
    })?;
    let file = SafeTensors::deserialize(bytes)?;
    let mut tensors = Tensors(file.tensors().into_iter().collect());
    let network = tensors.network(&metadata)?;
    if let Some(name) = tensors.0.into_keys().next() {
        return Err(FileError::Extra { name });
    }
    network.check()?;
    let provenance = Provenance {
        input_size: metadata.choice("input_size", "HEIGHTxWIDTH, 1 to 4096 each", size)?,
        calibration: metadata.choice("calibration", "64 hex digits", digest)?,
        source: metadata.choice("source", "64 hex digits", digest)?,
        origin: metadata.0.get("origin").cloned(),
        licence: metadata.0.get("licence").cloned(),
    };
    Ok((network, provenance))
}

/// The file of a network.
///
/// What [`read`] makes of the bytes equals the arguments if the network passes [`QuantNetwork::check`].
pub fn write(network: &QuantNetwork, provenance: &Provenance) -> Vec<u8> {
    let mut parts = Parts::default();
    parts.convolution(names::STEM, &network.stem);
    parts.grid(names::STEM, &network.stem_output);
    for (index, (block, shape)) in network
        .blocks
        .iter()
        .zip(network.family.blocks())
        .enumerate()
    {
        parts.block(
            block,
            &BlockNames::new(index, shape, block.expand.is_some()),
        );
    }
    parts.convolution(&names::last(network.blocks.len()), &network.last);
    if let Some(pooled) = &network.pooled {
        parts.dense(names::POOLED, pooled, true);
    }
    let list = |values: &[f32]| {
        values
            .iter()
            .map(|v| format!("{v:?}"))
            .collect::<Vec<_>>()
            .join(" ")
    };
    let border: Vec<String> = network.border.iter().map(ToString::to_string).collect();
    let (height, width) = provenance.input_size;
    let mut metadata = BTreeMap::from([
        ("border", border.join(" ")),
        ("calibration", hex(&provenance.calibration)),
        ("format", FORMAT.to_owned()),
        ("input_size", format!("{height}x{width}")),
        ("network", network.family.name().to_owned()),
        ("padding", network.padding.name().to_owned()),
        ("scale", list(&network.normalisation.scale)),
        ("shift", list(&network.normalisation.shift)),
        ("sixth", list(&[network.sixth])),
        ("source", hex(&provenance.source)),
    ]);
    let texts = [
        ("origin", &provenance.origin),
        ("licence", &provenance.licence),
    ];
    for (key, text) in texts {
        if let Some(text) = text {
            metadata.insert(key, text.clone());
        }
    }
    parts.assemble(&metadata)
}

/// The metadata.
struct Texts(BTreeMap<String, String>);

impl Texts {
    fn choice<T>(
        &self,
        key: &'static str,
        expected: &'static str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Result<T, FileError> {
        let got = self.0.get(key).map_or("", String::as_str);
        parse(got).ok_or_else(|| FileError::Metadata {
            key,
            got: got.chars().take(80).collect(),
            expected,
        })
    }
}

/// `N` numbers apart by blanks.
fn numbers<T: std::str::FromStr, const N: usize>(text: &str) -> Option<[T; N]> {
    let mut words = text.split(' ');
    let numbers: [Option<T>; N] = std::array::from_fn(|_| words.next()?.parse().ok());
    if words.next().is_some() || numbers.iter().any(Option::is_none) {
        return None;
    }
    Some(numbers.map(|number| number.expect("no number is missing")))
}

fn size(text: &str) -> Option<(usize, usize)> {
    let (height, width) = text.split_once('x')?;
    let side = |text: &str| {
        text.parse()
            .ok()
            .filter(|side| (1..=MAX_SIDE).contains(side))
    };
    Some((side(height)?, side(width)?))
}

fn digest(text: &str) -> Option<[u8; 32]> {
    let mut digest = [0; 32];
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    if pairs.len() != digest.len() || !rest.is_empty() {
        return None;
    }
    for (byte, pair) in digest.iter_mut().zip(pairs) {
        let value = |digit: u8| char::from(digit).to_digit(16);
        *byte = u8::try_from(value(pair[0])? * 16 + value(pair[1])?).ok()?;
    }
    Some(digest)
}

fn hex(digest: &[u8]) -> String {
    digest.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The tensors of a file, taken out one by one.
struct Tensors<'a>(BTreeMap<String, TensorView<'a>>);

impl Tensors<'_> {
    fn network(&mut self, metadata: &Texts) -> Result<QuantNetwork, FileError> {
        let family = metadata.choice("network", "small or large", |text| {
            let all = [Family::Small, Family::Large];
            all.into_iter().find(|family| family.name() == text)
        })?;
        let padding = metadata.choice("padding", "same or symmetric", |text| {
            let all = [Padding::Same, Padding::Symmetric];
            all.into_iter().find(|padding| padding.name() == text)
        })?;
        let normalisation = Normalisation {
            scale: metadata.choice("scale", "three numbers", numbers)?,
            shift: metadata.choice("shift", "three numbers", numbers)?,
        };
        let [sixth] = metadata.choice("sixth", "a number", numbers)?;
        let border = metadata.choice("border", "three bytes", numbers)?;
        let stem = self.convolution(names::STEM, None, 3, 3)?;
        let stem_output = self.grid(names::STEM, stem.output)?;
        let mut channels = stem.output;
        let mut blocks = Vec::with_capacity(family.blocks().len());
        for (index, shape) in family.blocks().iter().enumerate() {
            let block = self.block(index, shape, channels)?;
            channels = block.project.output;
            blocks.push(block);
        }
        let last = self.convolution(&names::last(blocks.len()), None, channels, 1)?;
        let pooled = if self.0.contains_key("classifier.0.weight") {
            Some(self.dense(names::POOLED, None, last.output, true)?)
        } else {
            None
        };
        Ok(QuantNetwork {
            family,
            padding,
            normalisation,
            sixth,
            border,
            stem,
            stem_output,
            blocks,
            last,
            pooled,
        })
    }

    fn block(
        &mut self,
        index: usize,
        shape: &Block,
        input: usize,
    ) -> Result<QuantBlock, FileError> {
        // Parts are numbered without gaps: only a block that expands has one under the longest row's last name.
        let names = BlockNames::new(index, shape, true);
        let expands = self.0.contains_key(&format!("{}.weight", names.project));
        let names = BlockNames::new(index, shape, expands);
        let mut channels = input;
        let mut expand = None;
        if let Some(name) = &names.expand {
            let layer = self.convolution(name, None, input, 1)?;
            channels = layer.output;
            expand = Some((layer, self.grid(name, channels)?));
        }
        let depthwise = self.convolution(&names.depthwise, Some(channels), 1, shape.kernel)?;
        let hidden = self.grid(&names.depthwise, channels)?;
        let mut gate = None;
        if let Some(name) = &names.gate {
            let squeeze = self.dense(&format!("{name}.fc1"), None, channels, false)?;
            let few = squeeze.output;
            gate = Some(QuantGate {
                squeeze,
                excite: self.dense(&format!("{name}.fc2"), Some(channels), few, true)?,
                gated: self.grid(name, channels)?,
            });
        }
        let project = self.convolution(&names.project, None, channels, 1)?;
        let output = self.grid(&names.project, project.output)?;
        Ok(QuantBlock {
            expand,
            depthwise,
            hidden,
            gate,
            residual: shape.stride == 1 && input == project.output,
            project,
            output,
        })
    }

    fn convolution(
        &mut self,
        name: &str,
        output: Option<usize>,
        input: usize,
        kernel: usize,
    ) -> Result<QuantConv, FileError> {
        let output = self.rows(name, output);
        let shape = [output, input, kernel, kernel];
        Ok(QuantConv {
            output,
            input,
            kernel,
            weight: self.take(name, "weight", Dtype::I8, &shape, i8::from_le_bytes)?,
            bias: self.take(name, "bias", Dtype::I32, &[output], i32::from_le_bytes)?,
            scale: self.take(name, "scale", Dtype::F32, &[output], f32::from_le_bytes)?,
        })
    }

    /// - `real`: whether the inputs are real numbers, so that the file says how they become 16 bits.
    fn dense(
        &mut self,
        name: &str,
        output: Option<usize>,
        input: usize,
        real: bool,
    ) -> Result<Dense, FileError> {
        let output = self.rows(name, output);
        let mut floats =
            |end, shape: &[usize]| self.take(name, end, Dtype::F32, shape, f32::from_le_bytes);
        let scale = floats("scale", &[output])?;
        let bias = floats("bias", &[output])?;
        let (mut low, mut step) = (0.0, 1.0);
        if real {
            low = floats("low", &[1])?[0];
            step = floats("step", &[1])?[0];
        }
        Ok(Dense {
            output,
            input,
            weight: self.take(
                name,
                "weight",
                Dtype::I8,
                &[output, input],
                i8::from_le_bytes,
            )?,
            scale,
            bias,
            low,
            step,
        })
    }

    fn grid(&mut self, name: &str, channels: usize) -> Result<Grid, FileError> {
        Ok(Grid {
            scale: self.take(
                name,
                "out_scale",
                Dtype::F32,
                &[channels],
                f32::from_le_bytes,
            )?,
            zero: self.take(name, "out_zero", Dtype::U8, &[channels], u8::from_le_bytes)?,
        })
    }

    /// Rows of a weight: as expected, or else as many as it has, but not 0.
    fn rows(&self, name: &str, expected: Option<usize>) -> usize {
        let weight = self.0.get(&format!("{name}.weight"));
        let rows = weight.and_then(|view| view.shape().first().copied());
        expected.or(rows).unwrap_or(0).max(1)
    }

    fn take<T, const N: usize>(
        &mut self,
        name: &str,
        end: &str,
        dtype: Dtype,
        shape: &[usize],
        decode: fn([u8; N]) -> T,
    ) -> Result<Vec<T>, FileError> {
        let name = format!("{name}.{end}");
        let Some(view) = self.0.remove(&name) else {
            return Err(FileError::Missing { name });
        };
        if view.dtype() != dtype || view.shape() != shape {
            return Err(FileError::Tensor {
                name,
                got: format!("{:?} {:?}", view.dtype(), view.shape()),
                expected: format!("{dtype:?} {shape:?}"),
            });
        }
        // The reader found the view to be as long as type and shape say.
        let numbers = view.data().as_chunks::<N>().0.iter();
        Ok(numbers.map(|bytes| decode(*bytes)).collect())
    }
}

/// The tensors of a file to be, by type and name: the wide types first, so that all of them are aligned.
#[derive(Default)]
struct Parts(BTreeMap<(Kind, String), (Vec<usize>, Vec<u8>)>);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    F32,
    I32,
    I8,
    U8,
}

impl Parts {
    fn block(&mut self, block: &QuantBlock, names: &BlockNames) {
        if let (Some((layer, grid)), Some(name)) = (&block.expand, &names.expand) {
            self.convolution(name, layer);
            self.grid(name, grid);
        }
        self.convolution(&names.depthwise, &block.depthwise);
        self.grid(&names.depthwise, &block.hidden);
        if let (Some(gate), Some(name)) = (&block.gate, &names.gate) {
            self.dense(&format!("{name}.fc1"), &gate.squeeze, false);
            self.dense(&format!("{name}.fc2"), &gate.excite, true);
            self.grid(name, &gate.gated);
        }
        self.convolution(&names.project, &block.project);
        self.grid(&names.project, &block.output);
    }

    fn convolution(&mut self, name: &str, layer: &QuantConv) {
        let shape = vec![layer.output, layer.input, layer.kernel, layer.kernel];
        self.signed(name, shape, &layer.weight);
        let bias = layer.bias.iter().flat_map(|bias| bias.to_le_bytes());
        self.put(name, "bias", Kind::I32, vec![layer.output], bias.collect());
        self.floats(name, "scale", &layer.scale);
    }

    fn dense(&mut self, name: &str, layer: &Dense, real: bool) {
        self.signed(name, vec![layer.output, layer.input], &layer.weight);
        self.floats(name, "scale", &layer.scale);
        self.floats(name, "bias", &layer.bias);
        if real {
            self.floats(name, "low", &[layer.low]);
            self.floats(name, "step", &[layer.step]);
        }
    }

    fn grid(&mut self, name: &str, grid: &Grid) {
        self.floats(name, "out_scale", &grid.scale);
        let shape = vec![grid.zero.len()];
        self.put(name, "out_zero", Kind::U8, shape, grid.zero.clone());
    }

    fn signed(&mut self, name: &str, shape: Vec<usize>, weight: &[i8]) {
        let bytes = weight.iter().map(|weight| weight.cast_unsigned());
        self.put(name, "weight", Kind::I8, shape, bytes.collect());
    }

    fn floats(&mut self, name: &str, end: &str, values: &[f32]) {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes());
        self.put(name, end, Kind::F32, vec![values.len()], bytes.collect());
    }

    fn put(&mut self, name: &str, end: &str, kind: Kind, shape: Vec<usize>, bytes: Vec<u8>) {
        self.0
            .insert((kind, format!("{name}.{end}")), (shape, bytes));
    }

    /// Writes the header by hand: the safetensors crate orders metadata by chance.
    fn assemble(&self, metadata: &BTreeMap<&str, String>) -> Vec<u8> {
        let mut header = "{\"__metadata__\":{".to_owned();
        for (index, (key, text)) in metadata.iter().enumerate() {
            header.push_str(if index == 0 { "" } else { "," });
            quote(&mut header, key);
            header.push(':');
            quote(&mut header, text);
        }
        header.push('}');
        let mut end = 0;
        for ((kind, name), (shape, bytes)) in &self.0 {
            let begin = end;
            end += bytes.len();
            header.push(',');
            quote(&mut header, name);
            let _ = write!(
                header,
                ":{{\"dtype\":\"{kind:?}\",\"shape\":{shape:?},\"data_offsets\":[{begin},{end}]}}"
            );
        }
        header.push('}');
        while !header.len().is_multiple_of(8) {
            header.push(' ');
        }
        let mut file = Vec::with_capacity(8 + header.len() + end);
        file.extend((header.len() as u64).to_le_bytes());
        file.extend(header.into_bytes());
        for (_, bytes) in self.0.values() {
            file.extend(bytes);
        }
        file
    }
}

/// Appends a JSON string.
fn quote(json: &mut String, text: &str) {
    json.push('"');
    for letter in text.chars() {
        match letter {
            '"' | '\\' => json.extend(['\\', letter]),
            '\0'..='\x1f' => {
                let _ = write!(json, "\\u{:04x}", u32::from(letter));
            }
            _ => json.push(letter),
        }
    }
    json.push('"');
}
