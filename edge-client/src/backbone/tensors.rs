//! A safetensors file read once from its first byte to its last, each tensor straight into the numbers it becomes.
//!
//! The file comes from outside. Its header is bounded before it is read and checked against the file's length before
//! anything is allocated from it; a tensor's bytes pass through a small buffer, so that a file of f32 costs its own
//! size in memory and a file of f16 twice that. The digest is taken on the way: it is that of the bytes which were used.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::Read;
use std::path::Path;

use safetensors::tensor::TensorInfo;
use safetensors::{Dtype, SafeTensorError};
use serde::Deserialize;

use super::BackboneError;

/// Largest file of weights that is read, in bytes.
pub const MAX_WEIGHTS_BYTES: u64 = 64 * 1024 * 1024;

/// Largest header that is read, in bytes.
const MAX_HEADER_BYTES: usize = 1024 * 1024;

/// Bytes that are read at once, a multiple of every number's size.
const CHUNK: usize = 16 * 1024;

/// Whether a file says that it is a quantized network; what else is wrong with it shows when it is read.
pub(super) fn is_quantized(path: &Path) -> Result<bool, BackboneError> {
    let file = File::open(path).map_err(|source| unreadable(path, source))?;
    Ok(says_quantized(file))
}

/// [`is_quantized`] for the bytes of a file.
pub(super) fn says_quantized(reader: impl Read) -> bool {
    let limit = 8 + MAX_HEADER_BYTES;
    let mut source = Source {
        reader,
        hasher: blake3::Hasher::new(),
        buffer: [0; CHUNK],
    };
    let header = source.header(limit);
    header.is_ok_and(|(header, _)| {
        let format = header.metadata.get("format");
        format.is_some_and(|format| format.starts_with("wayside-int8"))
    })
}

/// A whole file, but no more than [`MAX_WEIGHTS_BYTES`].
pub(super) fn read_whole(path: &Path) -> Result<Vec<u8>, BackboneError> {
    let file = File::open(path).map_err(|source| unreadable(path, source))?;
    let length = file.metadata().map_or(0, |metadata| metadata.len());
    let length = usize::try_from(length.min(MAX_WEIGHTS_BYTES)).unwrap_or(0);
    // One more, so that the end is found without growing.
    let mut bytes = Vec::with_capacity(length + 1);
    let mut limited = file.take(MAX_WEIGHTS_BYTES + 1);
    let read = limited.read_to_end(&mut bytes);
    read.map_err(|source| unreadable(path, source))?;
    if bytes.len() as u64 > MAX_WEIGHTS_BYTES {
        return Err(BackboneError::TooLarge {
            limit: MAX_WEIGHTS_BYTES,
        });
    }
    Ok(bytes)
}

fn unreadable(path: &Path, source: std::io::Error) -> BackboneError {
    BackboneError::Read {
        path: path.to_owned(),
        source,
    }
}

/// The tensors of a file, taken out one by one.
#[derive(Debug)]
pub(super) struct Tensors {
    left: BTreeMap<String, Tensor>,
    metadata: HashMap<String, String>,
    /// Whether every tensor of real numbers is stored in half precision.
    pub(super) half: bool,
    /// BLAKE3 of the whole file.
    pub(super) digest: [u8; 32],
}

#[derive(Debug)]
struct Tensor {
    shape: Vec<usize>,
    dtype: Dtype,
    /// Empty for integers, which are counters that nobody needs.
    values: Vec<f32>,
}

/// The header as it is written.
#[derive(Deserialize)]
struct Header {
    #[serde(rename = "__metadata__", default)]
    metadata: HashMap<String, String>,
    #[serde(flatten)]
    tensors: BTreeMap<String, TensorInfo>,
}

impl Tensors {
    /// Reads everything.
    ///
    /// - `length`: the file's, in bytes; no more is read.
    ///
    /// # Errors
    /// [`BackboneError`] names the first tensor, in the order of the file, that is not where its shape says, is
    /// neither F16 nor F32 nor I64, or holds NaN or infinity. What the reader says comes as
    /// [`SafeTensorError::IoError`].
    pub(super) fn read(reader: impl Read, length: u64) -> Result<Self, BackboneError> {
        if length > MAX_WEIGHTS_BYTES {
            return Err(BackboneError::TooLarge {
                limit: MAX_WEIGHTS_BYTES,
            });
        }
        let length = usize::try_from(length).map_err(|_| SafeTensorError::ValidationOverflow)?;
        let mut source = Source {
            reader,
            hasher: blake3::Hasher::new(),
            buffer: [0; CHUNK],
        };
        let (header, data_bytes) = source.header(length)?;
        let mut infos: Vec<(String, TensorInfo)> = header.tensors.into_iter().collect();
        infos.sort_by_key(|(_, info)| info.data_offsets);
        check_extents(&infos, data_bytes)?;

        let mut tensors = BTreeMap::new();
        let mut half = true;
        for (name, info) in infos {
            half &= matches!(info.dtype, Dtype::F16 | Dtype::I64);
            let values = source.numbers(&name, &info)?;
            let tensor = Tensor {
                shape: info.shape,
                dtype: info.dtype,
                values,
            };
            tensors.insert(name, tensor);
        }
        Ok(Self {
            left: tensors,
            metadata: header.metadata,
            half,
            digest: *source.hasher.finalize().as_bytes(),
        })
    }

    /// A metadata entry, empty where the file has none.
    pub(super) fn metadata(&self, key: &str) -> &str {
        self.metadata.get(key).map_or("", String::as_str)
    }

    /// The names that are left, in alphabetical order.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.left.keys().map(String::as_str)
    }

    /// The shape of a tensor that is still there.
    pub(super) fn shape(&self, name: &str) -> Option<&[usize]> {
        self.left.get(name).map(|tensor| tensor.shape.as_slice())
    }

    /// Takes a tensor of real numbers out.
    ///
    /// - `shapes`: any of these is right; the first one stands in the error.
    ///
    /// # Errors
    /// [`BackboneError::Missing`], [`BackboneError::Type`] or [`BackboneError::Shape`].
    pub(super) fn take(
        &mut self,
        name: &str,
        shapes: &[&[usize]],
    ) -> Result<Vec<f32>, BackboneError> {
        let tensor = self.left.remove(name).ok_or_else(|| missing(name))?;
        if !shapes.contains(&tensor.shape.as_slice()) {
            return Err(BackboneError::Shape {
                name: name.to_owned(),
                got: tensor.shape,
                expected: shapes.first().map_or_else(Vec::new, |shape| shape.to_vec()),
            });
        }
        if tensor.dtype == Dtype::I64 {
            return Err(BackboneError::Type {
                name: name.to_owned(),
                got: tensor.dtype,
                expected: "F16 or F32",
            });
        }
        Ok(tensor.values)
    }

    /// Takes a counter out: one integer, whatever it is.
    pub(super) fn take_counter(&mut self, name: &str) -> Result<(), BackboneError> {
        let tensor = self.left.remove(name).ok_or_else(|| missing(name))?;
        if tensor.dtype != Dtype::I64 {
            return Err(BackboneError::Type {
                name: name.to_owned(),
                got: tensor.dtype,
                expected: "I64",
            });
        }
        if !tensor.shape.is_empty() {
            return Err(BackboneError::Shape {
                name: name.to_owned(),
                got: tensor.shape,
                expected: Vec::new(),
            });
        }
        Ok(())
    }

    /// Says that everything was taken.
    pub(super) fn finish(self) -> Result<(), BackboneError> {
        match self.left.into_keys().next() {
            Some(name) => Err(BackboneError::Extra { name }),
            None => Ok(()),
        }
    }
}

fn missing(name: &str) -> BackboneError {
    BackboneError::Missing {
        name: name.to_owned(),
    }
}

/// Checks that the tensors, sorted by where they begin, fill the data without gap or overlap and fit their shapes.
fn check_extents(infos: &[(String, TensorInfo)], data_bytes: usize) -> Result<(), BackboneError> {
    let mut start = 0;
    for (name, info) in infos {
        let bits = info
            .shape
            .iter()
            .try_fold(info.dtype.bitsize(), |bits, side| bits.checked_mul(*side));
        let fits = match (info.data_offsets, bits) {
            ((from, to), Some(bits)) => {
                from == start
                    && from <= to
                    && to <= data_bytes
                    && (to - from).checked_mul(8) == Some(bits)
            }
            (_, None) => false,
        };
        if !fits {
            return Err(BackboneError::Extent {
                name: name.clone(),
                got: info.data_offsets,
                dtype: info.dtype,
                shape: info.shape.clone(),
                start,
                data_bytes,
            });
        }
        start = info.data_offsets.1;
    }
    if start != data_bytes {
        return Err(SafeTensorError::MetadataIncompleteBuffer.into());
    }
    Ok(())
}

/// A file that is hashed while it is read.
struct Source<R> {
    reader: R,
    hasher: blake3::Hasher,
    buffer: [u8; CHUNK],
}

impl<R: Read> Source<R> {
    /// Reads `bytes` of the file, a buffer at a time.
    fn stream(
        &mut self,
        mut bytes: usize,
        mut each: impl FnMut(&[u8]),
    ) -> Result<(), BackboneError> {
        while bytes > 0 {
            let chunk = &mut self.buffer[..bytes.min(CHUNK)];
            self.reader
                .read_exact(chunk)
                .map_err(SafeTensorError::IoError)?;
            self.hasher.update(chunk);
            each(chunk);
            bytes -= chunk.len();
        }
        Ok(())
    }

    /// Reads the header; returns it with the number of bytes behind it.
    fn header(&mut self, length: usize) -> Result<(Header, usize), BackboneError> {
        let Some(rest) = length.checked_sub(8) else {
            return Err(SafeTensorError::HeaderTooSmall.into());
        };
        let mut prefix = [0; 8];
        self.stream(8, |bytes| prefix.copy_from_slice(bytes))?;
        let header_bytes = usize::try_from(u64::from_le_bytes(prefix))
            .ok()
            .filter(|bytes| *bytes <= MAX_HEADER_BYTES)
            .ok_or(SafeTensorError::HeaderTooLarge)?;
        let Some(data_bytes) = rest.checked_sub(header_bytes) else {
            return Err(SafeTensorError::InvalidHeaderLength.into());
        };
        let mut text = Vec::with_capacity(header_bytes);
        self.stream(header_bytes, |bytes| text.extend_from_slice(bytes))?;
        let header =
            serde_json::from_slice(&text).map_err(SafeTensorError::InvalidHeaderDeserialization)?;
        Ok((header, data_bytes))
    }

    /// Reads one tensor; its extent has been checked.
    fn numbers(&mut self, name: &str, info: &TensorInfo) -> Result<Vec<f32>, BackboneError> {
        let (from, to) = info.data_offsets;
        let bytes = to - from;
        let mut values = Vec::new();
        match info.dtype {
            Dtype::F16 => {
                values.reserve_exact(bytes / 2);
                self.stream(bytes, |chunk| {
                    let halves = chunk.as_chunks::<2>().0.iter();
                    values.extend(halves.map(|b| half::f16::from_le_bytes(*b).to_f32()));
                })?;
            }
            Dtype::F32 => {
                values.reserve_exact(bytes / 4);
                self.stream(bytes, |chunk| {
                    let singles = chunk.as_chunks::<4>().0.iter();
                    values.extend(singles.map(|b| f32::from_le_bytes(*b)));
                })?;
            }
            Dtype::I64 => self.stream(bytes, |_| {})?,
            got => {
                return Err(BackboneError::Type {
                    name: name.to_owned(),
                    got,
                    expected: "F16 or F32",
                });
            }
        }
        if values.iter().any(|value| !value.is_finite()) {
            return Err(BackboneError::NotFinite {
                name: name.to_owned(),
            });
        }
        Ok(values)
    }
}
