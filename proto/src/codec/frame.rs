//! Head of a frame, and the way from planes to bytes. The layout is in [`super`]; [`super::index`] reads it.

use super::error::EncodeError;
use super::planes::{self, Packer};
use super::schema_digest;
use super::varint::{MAX_VARINT, put_varint};
use std::ops::Range;
use wayside_domain::encoding::UpdateEncoding;
use wayside_domain::schema::Schema;

/// Bytes that every frame begins with.
pub const MAGIC: [u8; 3] = *b"WSF";
/// The frame version that this build writes; it reads this one and all before it.
pub const VERSION: u8 = 2;
/// Values of a chunk, except that the last one may have fewer.
pub const BLOCK: usize = 16_384;
/// Bytes before the digest of the content.
pub(super) const FIXED: usize = 27;
pub(super) const DIGEST: usize = 32;
/// Bytes of the schema's digest that a frame carries, and of the base model's.
pub(super) const HALF_DIGEST: usize = 16;
/// Values that share a scale in [`Encoding::Int8`].
pub(super) const INT8_GROUP: usize = 64;

/// What the planes of a frame hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// Scaled delta in fp16, 2 planes.
    Fp16Delta,
    /// Model parameters in fp16, 2 planes.
    Fp16Model,
    /// Weighted sum of scaled deltas in f64, 8 planes.
    F64Sum,
    /// Trained weights in fp16 as differences to the base model's, 2 planes.
    Fp16Diff,
    /// Scaled delta in 8 bits with a scale for 64 values, 2 planes: the numbers, and the scales.
    Int8,
    /// The largest scaled deltas in fp16 with their positions, 1 plane.
    TopK,
}

impl Encoding {
    /// All encodings in the order of their codes.
    pub const ALL: [Self; 6] = [
        Self::Fp16Delta,
        Self::Fp16Model,
        Self::F64Sum,
        Self::Fp16Diff,
        Self::Int8,
        Self::TopK,
    ];

    /// The encoding byte.
    pub fn code(self) -> u8 {
        match self {
            Self::Fp16Delta => 1,
            Self::Fp16Model => 2,
            Self::F64Sum => 3,
            Self::Fp16Diff => 4,
            Self::Int8 => 5,
            Self::TopK => 6,
        }
    }

    /// Planes of a chunk.
    pub fn planes(self) -> usize {
        match self {
            Self::Fp16Delta | Self::Fp16Model | Self::Fp16Diff | Self::Int8 => 2,
            Self::F64Sum => 8,
            Self::TopK => 1,
        }
    }

    /// What it is among the encodings of an update, if it is one.
    pub fn of_update(self) -> Option<UpdateEncoding> {
        UpdateEncoding::ALL
            .into_iter()
            .find(|e| Self::from(*e) == self)
    }

    /// The first frame version that has it.
    pub(super) fn since(self) -> u8 {
        match self {
            Self::Fp16Delta | Self::Fp16Model | Self::F64Sum => 1,
            Self::Fp16Diff | Self::Int8 | Self::TopK => 2,
        }
    }

    /// Bytes between the exponents and the planes.
    pub(super) fn extra(self) -> usize {
        match self {
            Self::F64Sum | Self::Fp16Diff => 16,
            Self::Fp16Delta | Self::Fp16Model | Self::Int8 | Self::TopK => 0,
        }
    }

    /// Bytes of plane `p` before compression, in a chunk of `values`; for `topk` the most that there can be.
    pub(super) fn plane_bytes(self, p: usize, values: usize) -> usize {
        match (self, p) {
            (Self::Int8, 1) => values.div_ceil(INT8_GROUP),
            // The count; for each value its high byte, its low byte, and its gap: a gap of two bytes passes over 127
            // values that have none.
            (Self::TopK, _) => 3 + 3 * values,
            _ => values,
        }
    }
}

impl From<UpdateEncoding> for Encoding {
    fn from(encoding: UpdateEncoding) -> Self {
        match encoding {
            UpdateEncoding::Fp16 => Self::Fp16Delta,
            UpdateEncoding::Fp16Diff => Self::Fp16Diff,
            UpdateEncoding::Int8 => Self::Int8,
            UpdateEncoding::TopK => Self::TopK,
        }
    }
}

/// The most bytes that a frame of this schema and encoding can have.
pub fn max_frame_bytes(schema: &Schema, encoding: Encoding) -> usize {
    let chunk = |values: usize| -> usize {
        (0..encoding.planes())
            .map(|p| MAX_VARINT + planes::packed_bound(encoding.plane_bytes(p, values)))
            .sum()
    };
    let (full, rest) = (
        schema.num_parameters() / BLOCK,
        schema.num_parameters() % BLOCK,
    );
    let chunks = full * chunk(BLOCK) + if rest > 0 { chunk(rest) } else { 0 };
    FIXED + DIGEST + schema.tensors().len() + encoding.extra() + 1 + chunks
}

/// The most bytes that the frame of an update of this schema can have, whatever its encoding.
pub fn max_update_bytes(schema: &Schema) -> usize {
    UpdateEncoding::ALL
        .into_iter()
        .map(|encoding| max_frame_bytes(schema, encoding.into()))
        .fold(0, usize::max)
}

/// How the values of a frame are cut into chunks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chunks {
    values: usize,
    len: usize,
}

impl Chunks {
    /// Version 1 has all values in one chunk.
    pub(super) fn new(schema: &Schema, version: u8) -> Self {
        let values = schema.num_parameters();
        let len = if version == 1 { values } else { BLOCK };
        Self { values, len }
    }

    pub(super) fn count(self) -> usize {
        self.values.div_ceil(self.len)
    }

    /// The values of chunk `i`, which is below [`Chunks::count`].
    pub(super) fn range(self, i: usize) -> Range<usize> {
        assert!(i < self.count(), "chunk {i} of {}", self.count());
        i * self.len..self.values.min((i + 1) * self.len)
    }
}

/// Writes a frame plane by plane.
pub(super) struct Writer {
    encoding: Encoding,
    head: [u8; FIXED],
    exponents: Vec<u8>,
    extra: Vec<u8>,
    hasher: blake3::Hasher,
    packer: Packer,
    lengths: Vec<u8>,
    packed: Vec<u8>,
}

impl Writer {
    pub(super) fn new(
        schema: &Schema,
        encoding: Encoding,
        exponents: &[i8],
        extra: &[u8],
    ) -> Result<Self, EncodeError> {
        debug_assert_eq!(extra.len(), encoding.extra());
        if exponents.len() != schema.tensors().len() {
            return Err(EncodeError::Exponents {
                got: exponents.len(),
                expected: schema.tensors().len(),
            });
        }
        let exponents: Vec<u8> = exponents.iter().map(|e| e.cast_unsigned()).collect();
        let head = head(schema, VERSION, encoding);
        let mut hasher = blake3::Hasher::new();
        hasher.update(&head).update(&exponents).update(extra);
        Ok(Self {
            encoding,
            head,
            exponents,
            extra: extra.to_vec(),
            hasher,
            packer: Packer::new()?,
            lengths: Vec::new(),
            packed: Vec::new(),
        })
    }

    /// Appends the next plane: all of a chunk, then those of the next chunk.
    pub(super) fn put(&mut self, plane: &[u8]) -> Result<(), EncodeError> {
        self.hasher.update(plane);
        let packed = self.packer.pack(plane)?;
        put_varint(&mut self.lengths, packed.len());
        self.packed.extend_from_slice(packed);
        Ok(())
    }

    pub(super) fn finish(self) -> Vec<u8> {
        let digest = self.hasher.finalize();
        [
            &self.head[..],
            digest.as_bytes(),
            &self.exponents,
            &self.extra,
            &[self.encoding.planes().to_le_bytes()[0]],
            &self.lengths,
            &self.packed,
        ]
        .concat()
    }
}

/// Writes a frame whose planes all have one byte a value.
///
/// `fill(range, p, plane)` writes byte p (most significant first) of the values in `range` into `plane`.
pub(super) fn write(
    schema: &Schema,
    encoding: Encoding,
    exponents: &[i8],
    extra: &[u8],
    mut fill: impl FnMut(Range<usize>, usize, &mut [u8]),
) -> Result<Vec<u8>, EncodeError> {
    let mut writer = Writer::new(schema, encoding, exponents, extra)?;
    let chunks = Chunks::new(schema, VERSION);
    let mut plane = vec![0; schema.num_parameters().min(BLOCK)];
    for i in 0..chunks.count() {
        let range = chunks.range(i);
        let plane = &mut plane[..range.len()];
        for p in 0..encoding.planes() {
            fill(range.clone(), p, plane);
            writer.put(plane)?;
        }
    }
    Ok(writer.finish())
}

/// The first 27 bytes of a frame.
pub(super) fn head(schema: &Schema, version: u8, encoding: Encoding) -> [u8; FIXED] {
    let tensors = u16::try_from(schema.tensors().len()).expect("a schema has at most 1024 tensors");
    let parameters =
        u32::try_from(schema.num_parameters()).expect("a schema has at most 2^26 parameters");
    let mut head = [0; FIXED];
    head[..3].copy_from_slice(&MAGIC);
    head[3] = version;
    head[4] = encoding.code();
    head[5..7].copy_from_slice(&tensors.to_le_bytes());
    head[7..11].copy_from_slice(&parameters.to_le_bytes());
    head[11..].copy_from_slice(&schema_digest(schema).0[..HALF_DIGEST]);
    head
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_covers_both_versions() {
        for parameters in [1, 1443, BLOCK - 1, BLOCK, BLOCK + 1, 131_072, 1 << 20] {
            let tensor = wayside_domain::schema::TensorSpec {
                name: "t".into(),
                shape: vec![parameters],
            };
            let schema = Schema::new(vec![tensor]).unwrap();
            for encoding in Encoding::ALL {
                let one_chunk: usize = (0..encoding.planes())
                    .map(|_| MAX_VARINT + planes::packed_bound(parameters))
                    .sum();
                let version_1 = FIXED + DIGEST + 1 + encoding.extra() + 1 + one_chunk;
                if encoding.since() == 1 {
                    assert!(version_1 <= max_frame_bytes(&schema, encoding));
                }
                if encoding.of_update().is_some() {
                    assert!(max_frame_bytes(&schema, encoding) <= max_update_bytes(&schema));
                }
            }
        }
    }

    #[test]
    fn codes_are_counted_from_one() {
        for (i, encoding) in Encoding::ALL.into_iter().enumerate() {
            assert_eq!(usize::from(encoding.code()), i + 1);
        }
        for encoding in UpdateEncoding::ALL {
            assert_eq!(Encoding::from(encoding).of_update(), Some(encoding));
        }
    }
}
