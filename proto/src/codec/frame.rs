//! Head of a frame, and the way from planes to bytes and back. The layout is in [`super`].

use super::error::{DecodeError, EncodeError};
use super::planes::{self, Packer};
use super::schema_digest;
use wayside_domain::schema::Schema;

/// Bytes that every frame begins with.
pub const MAGIC: [u8; 3] = *b"WSF";
/// The frame version that this build writes, and the only one that it reads.
pub const VERSION: u8 = 1;
/// Bytes before the digest of the content.
const FIXED: usize = 27;
const DIGEST: usize = 32;
/// Bytes of the schema's digest that a frame carries.
const SCHEMA_DIGEST: usize = 16;
/// Most bytes of a plane's length.
const MAX_VARINT: usize = 5;

/// What the planes of a frame hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// Scaled delta in fp16, 2 planes.
    Fp16Delta,
    /// Model parameters in fp16, 2 planes.
    Fp16Model,
    /// Weighted sum of scaled deltas in f64, 8 planes.
    F64Sum,
}

impl Encoding {
    /// The encoding byte.
    pub fn code(self) -> u8 {
        match self {
            Self::Fp16Delta => 1,
            Self::Fp16Model => 2,
            Self::F64Sum => 3,
        }
    }

    /// Planes of a frame, which is also the bytes of one value.
    pub fn planes(self) -> usize {
        match self {
            Self::Fp16Delta | Self::Fp16Model => 2,
            Self::F64Sum => 8,
        }
    }

    /// Bytes between the exponents and the planes.
    fn extra(self) -> usize {
        match self {
            Self::Fp16Delta | Self::Fp16Model => 0,
            Self::F64Sum => 16,
        }
    }
}

/// The most bytes that a frame of this schema and encoding can have.
pub fn max_frame_bytes(schema: &Schema, encoding: Encoding) -> usize {
    let plane = MAX_VARINT + planes::packed_bound(schema.num_parameters());
    FIXED + DIGEST + schema.tensors().len() + encoding.extra() + 1 + encoding.planes() * plane
}

/// Writes a frame.
///
/// `fill(p, plane)` writes byte p (most significant first) of every value into `plane`.
pub(super) fn write(
    schema: &Schema,
    encoding: Encoding,
    exponents: &[i8],
    extra: &[u8],
    mut fill: impl FnMut(usize, &mut [u8]),
) -> Result<Vec<u8>, EncodeError> {
    debug_assert_eq!(extra.len(), encoding.extra());
    if exponents.len() != schema.tensors().len() {
        return Err(EncodeError::Exponents {
            got: exponents.len(),
            expected: schema.tensors().len(),
        });
    }
    let exponents: Vec<u8> = exponents.iter().map(|e| e.cast_unsigned()).collect();
    let head = head(schema, encoding);
    let mut hasher = blake3::Hasher::new();
    hasher.update(&head).update(&exponents).update(extra);
    let mut zstd = Packer::new()?;
    let mut plane = vec![0; schema.num_parameters()];
    let mut packed = Vec::with_capacity(encoding.planes());
    for p in 0..encoding.planes() {
        fill(p, &mut plane);
        hasher.update(&plane);
        packed.push(zstd.pack(&plane)?);
    }

    let mut frame = Vec::with_capacity(96 + packed.iter().map(Vec::len).sum::<usize>());
    frame.extend_from_slice(&head);
    frame.extend_from_slice(hasher.finalize().as_bytes());
    frame.extend_from_slice(&exponents);
    frame.extend_from_slice(extra);
    frame.push(encoding.planes().to_le_bytes()[0]);
    for plane in &packed {
        put_varint(&mut frame, plane.len());
    }
    for plane in &packed {
        frame.extend_from_slice(plane);
    }
    Ok(frame)
}

/// A frame whose head fits the schema; its planes are still packed and its digest unchecked.
#[derive(Debug)]
pub(super) struct Frame<'a> {
    head: &'a [u8],
    digest: &'a [u8],
    exponents: &'a [u8],
    /// The bytes between exponents and planes.
    pub(super) extra: &'a [u8],
    planes: Vec<&'a [u8]>,
    plane_len: usize,
}

impl<'a> Frame<'a> {
    /// Reads the head and cuts out the planes; allocates nothing that depends on the frame.
    pub(super) fn parse(
        frame: &'a [u8],
        schema: &Schema,
        encoding: Encoding,
    ) -> Result<Self, DecodeError> {
        let limit = max_frame_bytes(schema, encoding);
        if frame.len() > limit {
            let got = frame.len();
            return Err(DecodeError::TooLarge { got, limit });
        }
        let mut reader = Reader {
            rest: frame,
            len: frame.len(),
        };
        let head = reader.take(FIXED, "head")?;
        check_head(head, schema, encoding)?;
        let digest = reader.take(DIGEST, "digest")?;
        let exponents = reader.take(schema.tensors().len(), "scale exponents")?;
        let extra = reader.take(encoding.extra(), "weights")?;
        let expected = encoding.planes();
        let got = reader.take(1, "number of planes")?[0];
        if usize::from(got) != expected {
            return Err(DecodeError::Planes { got, expected });
        }
        let mut lengths = [0; 8];
        for (plane, length) in lengths[..expected].iter_mut().enumerate() {
            *length = reader.varint(plane)?;
        }
        let planes = lengths[..expected]
            .iter()
            .map(|length| reader.take(*length, "planes"))
            .collect::<Result<_, _>>()?;
        if !reader.rest.is_empty() {
            let got = reader.rest.len();
            return Err(DecodeError::Trailing { got });
        }
        Ok(Self {
            head,
            digest,
            exponents,
            extra,
            planes,
            plane_len: schema.num_parameters(),
        })
    }

    /// The scale exponents, one a tensor.
    pub(super) fn exponents(&self) -> Vec<i8> {
        self.exponents.iter().map(|e| e.cast_signed()).collect()
    }

    /// Hands out the planes in order. What `each` got counts only if this returns Ok: the digest is checked last.
    pub(super) fn unpack(&self, mut each: impl FnMut(usize, &[u8])) -> Result<(), DecodeError> {
        let mut hasher = blake3::Hasher::new();
        hasher
            .update(self.head)
            .update(self.exponents)
            .update(self.extra);
        let mut plane = vec![0; self.plane_len];
        for (p, packed) in self.planes.iter().enumerate() {
            planes::unpack(p, packed, &mut plane)?;
            hasher.update(&plane);
            each(p, &plane);
        }
        if hasher.finalize().as_bytes() != self.digest {
            return Err(DecodeError::Digest);
        }
        Ok(())
    }
}

/// The first 27 bytes of a frame.
fn head(schema: &Schema, encoding: Encoding) -> [u8; FIXED] {
    let tensors = u16::try_from(schema.tensors().len()).expect("a schema has at most 1024 tensors");
    let parameters =
        u32::try_from(schema.num_parameters()).expect("a schema has at most 2^26 parameters");
    let mut head = [0; FIXED];
    head[..3].copy_from_slice(&MAGIC);
    head[3] = VERSION;
    head[4] = encoding.code();
    head[5..7].copy_from_slice(&tensors.to_le_bytes());
    head[7..11].copy_from_slice(&parameters.to_le_bytes());
    head[11..].copy_from_slice(&schema_digest(schema).0[..SCHEMA_DIGEST]);
    head
}

fn check_head(got: &[u8], schema: &Schema, encoding: Encoding) -> Result<(), DecodeError> {
    let expected = head(schema, encoding);
    if got[..3] != MAGIC {
        let got = [got[0], got[1], got[2]];
        return Err(DecodeError::Magic { got });
    }
    if got[3] != VERSION {
        let (got, newest) = (got[3], VERSION);
        return Err(DecodeError::Version { got, newest });
    }
    if got[4] != encoding.code() {
        let (got, expected) = (got[4], encoding.code());
        return Err(DecodeError::Encoding { got, expected });
    }
    for (what, range) in [
        ("tensors", 5..7),
        ("parameters", 7..11),
        ("digest", 11..FIXED),
    ] {
        let (got, expected) = (&got[range.clone()], &expected[range]);
        if got != expected {
            return Err(DecodeError::WrongSchema {
                what,
                got: show(got),
                expected: show(expected),
            });
        }
    }
    Ok(())
}

/// A number in decimal, a digest in hexadecimal.
fn show(bytes: &[u8]) -> String {
    if let Ok(digest) = <[u8; SCHEMA_DIGEST]>::try_from(bytes) {
        return format!("{:032x}", u128::from_be_bytes(digest));
    }
    let value = bytes.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b));
    value.to_string()
}

struct Reader<'a> {
    rest: &'a [u8],
    len: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, bytes: usize, part: &'static str) -> Result<&'a [u8], DecodeError> {
        let got = self.len;
        let short = DecodeError::Short { got, part };
        let (taken, rest) = self.rest.split_at_checked(bytes).ok_or(short)?;
        self.rest = rest;
        Ok(taken)
    }

    /// An unsigned LEB128 number in its shortest form, at most five bytes.
    fn varint(&mut self, plane: usize) -> Result<usize, DecodeError> {
        let mut value = 0_u64;
        for i in 0..MAX_VARINT {
            let byte = self.take(1, "plane lengths")?[0];
            value |= u64::from(byte & 0x7f) << (7 * i);
            if byte & 0x80 == 0 {
                if i > 0 && byte == 0 {
                    break;
                }
                return usize::try_from(value).map_err(|_| DecodeError::PlaneLength { plane });
            }
        }
        Err(DecodeError::PlaneLength { plane })
    }
}

fn put_varint(to: &mut Vec<u8>, value: usize) {
    let mut value = value;
    while value >= 0x80 {
        to.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    to.push(value.to_le_bytes()[0]);
}
