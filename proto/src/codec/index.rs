//! Where everything stands in a frame from outside. The layout is in [`super`].

use super::error::DecodeError;
use super::frame::{
    Chunks, DIGEST, Encoding, FIXED, HALF_DIGEST, MAGIC, VERSION, head, max_frame_bytes,
    max_update_bytes,
};
use super::planes::{self, Unpacker};
use super::varint::{Varint, read_varint};
use std::ops::Range;
use wayside_domain::schema::Schema;

/// Which frames a reader takes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Wanted {
    /// Those of one encoding.
    Only(Encoding),
    /// Those of an update, in any of its encodings.
    Update,
}

/// A frame whose head fits the schema: where its planes stand. They are still packed and the digest unchecked.
///
/// It takes 8 bytes a plane, and no values.
#[derive(Clone, Debug)]
pub(super) struct Index {
    pub(super) encoding: Encoding,
    pub(super) chunks: Chunks,
    /// Scale exponent of each tensor.
    pub(super) exponents: Vec<i8>,
    /// The bytes between exponents and planes.
    pub(super) extra: Vec<u8>,
    head: [u8; FIXED],
    digest: [u8; DIGEST],
    /// Where each plane begins, in the order of the frame, and where the last one ends.
    offsets: Vec<usize>,
}

impl Index {
    /// Reads the head and finds the planes. What it allocates follows from the schema.
    pub(super) fn parse(
        frame: &[u8],
        schema: &Schema,
        wanted: Wanted,
    ) -> Result<Self, DecodeError> {
        let check_size = |limit| {
            let got = frame.len();
            if got > limit {
                return Err(DecodeError::TooLarge { got, limit });
            }
            Ok(())
        };
        check_size(match wanted {
            Wanted::Only(encoding) => max_frame_bytes(schema, encoding),
            Wanted::Update => max_update_bytes(schema),
        })?;
        let mut reader = Reader {
            rest: frame,
            len: frame.len(),
        };
        let head: [u8; FIXED] = reader.array("head")?;
        let (version, encoding) = check_head(&head, schema, wanted)?;
        check_size(max_frame_bytes(schema, encoding))?;
        let digest = reader.array("digest")?;
        let exponents = reader.take(schema.tensors().len(), "scale exponents")?;
        let extra = reader.take(encoding.extra(), "weights or base")?.to_vec();
        let expected = encoding.planes();
        let got = reader.take(1, "number of planes")?[0];
        if usize::from(got) != expected {
            return Err(DecodeError::Planes { got, expected });
        }
        let chunks = Chunks::new(schema, version);
        let offsets = reader.offsets(chunks, encoding)?;
        Ok(Self {
            encoding,
            chunks,
            exponents: exponents.iter().map(|e| e.cast_signed()).collect(),
            extra,
            head,
            digest,
            offsets,
        })
    }

    /// Where a chunk's planes stand in the frame, one after the other.
    pub(super) fn bytes_of(&self, chunk: usize) -> Range<usize> {
        let first = chunk * self.encoding.planes();
        self.offsets[first]..self.offsets[first + self.encoding.planes()]
    }

    /// Cuts a chunk's bytes into its planes, each with its number in the frame.
    pub(super) fn planes_of<'a>(
        &self,
        chunk: usize,
        packed: &'a [u8],
    ) -> Result<impl Iterator<Item = (usize, &'a [u8])>, DecodeError> {
        let bytes = self.bytes_of(chunk);
        if packed.len() != bytes.len() {
            let (got, part) = (packed.len(), "planes");
            return Err(DecodeError::Short { got, part });
        }
        let first = chunk * self.encoding.planes();
        let bounds = &self.offsets[first..=first + self.encoding.planes()];
        let planes = bounds
            .windows(2)
            .map(move |bound| &packed[bound[0] - bytes.start..bound[1] - bytes.start]);
        Ok((first..).zip(planes))
    }

    /// The bytes of a chunk, if this is the frame that was parsed.
    pub(super) fn packed<'a>(
        &self,
        chunk: usize,
        frame: &'a [u8],
    ) -> Result<&'a [u8], DecodeError> {
        let (got, part) = (frame.len(), "planes");
        frame
            .get(self.bytes_of(chunk))
            .ok_or(DecodeError::Short { got, part })
    }

    /// A hasher that has seen what stands before the planes.
    pub(super) fn hasher(&self) -> blake3::Hasher {
        let exponents: Vec<u8> = self.exponents.iter().map(|e| e.cast_unsigned()).collect();
        let mut hasher = blake3::Hasher::new();
        hasher
            .update(&self.head)
            .update(&exponents)
            .update(&self.extra);
        hasher
    }

    /// Compares with the digest in the frame, once the hasher has seen every plane too.
    pub(super) fn check_digest(&self, hasher: &blake3::Hasher) -> Result<(), DecodeError> {
        if hasher.finalize().as_bytes() == &self.digest {
            return Ok(());
        }
        Err(DecodeError::Digest)
    }

    /// Hands out the planes of a frame whose planes all have one byte a value, in order: values, number of the byte,
    /// plane. What `each` got counts only if this returns Ok: the digest is checked last.
    pub(super) fn unpack(
        &self,
        frame: &[u8],
        mut each: impl FnMut(Range<usize>, usize, &[u8]),
    ) -> Result<(), DecodeError> {
        let mut hasher = self.hasher();
        let mut unpacker = Unpacker::new();
        let mut plane = vec![0; self.chunks.range(0).len()];
        for chunk in 0..self.chunks.count() {
            let range = self.chunks.range(chunk);
            let plane = &mut plane[..range.len()];
            let packed = self.planes_of(chunk, self.packed(chunk, frame)?)?;
            for (byte, (number, packed)) in packed.enumerate() {
                unpacker.unpack(number, packed, plane)?;
                hasher.update(plane);
                each(range.clone(), byte, plane);
            }
        }
        self.check_digest(&hasher)
    }
}

/// Compares a head with what the schema makes it; returns version and encoding.
fn check_head(
    got: &[u8; FIXED],
    schema: &Schema,
    wanted: Wanted,
) -> Result<(u8, Encoding), DecodeError> {
    if got[..3] != MAGIC {
        let got = [got[0], got[1], got[2]];
        return Err(DecodeError::Magic { got });
    }
    let (version, code) = (got[3], got[4]);
    if version == 0 || version > VERSION {
        let (got, newest) = (version, VERSION);
        return Err(DecodeError::Version { got, newest });
    }
    let known = Encoding::ALL
        .into_iter()
        .find(|e| e.code() == code && e.since() <= version);
    let encoding = match (wanted, known) {
        (Wanted::Only(encoding), Some(known)) if known == encoding => encoding,
        (Wanted::Only(encoding), _) => {
            let (got, expected) = (code, encoding.code());
            return Err(DecodeError::Encoding { got, expected });
        }
        (Wanted::Update, Some(known)) if known.of_update().is_some() => known,
        (Wanted::Update, _) => return Err(DecodeError::NotAnUpdate { got: code, version }),
    };
    let expected = head(schema, version, encoding);
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
    Ok((version, encoding))
}

/// A number in decimal, a digest in hexadecimal.
pub(super) fn show(bytes: &[u8]) -> String {
    if let Ok(digest) = <[u8; HALF_DIGEST]>::try_from(bytes) {
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

    fn array<const N: usize>(&mut self, part: &'static str) -> Result<[u8; N], DecodeError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N, part)?);
        Ok(array)
    }

    /// Where the planes begin, from their packed lengths; checks that they fill the rest of the frame.
    fn offsets(&mut self, chunks: Chunks, encoding: Encoding) -> Result<Vec<usize>, DecodeError> {
        let (got, part) = (self.len, "plane lengths");
        let planes = chunks.count() * encoding.planes();
        // One byte a length at least: no index for a frame that cannot have that many.
        if self.rest.len() < planes {
            return Err(DecodeError::Short { got, part });
        }
        let mut offsets = Vec::with_capacity(planes + 1);
        let mut end = 0;
        offsets.push(end);
        for plane in 0..planes {
            let (number, bytes) = match read_varint(self.rest) {
                Varint::Number(number, bytes) => (number, bytes),
                Varint::Short => return Err(DecodeError::Short { got, part }),
                Varint::Malformed => return Err(DecodeError::PlaneLength { plane }),
            };
            self.take(bytes, part)?;
            let values = chunks.range(plane / encoding.planes()).len();
            let unpacked = encoding.plane_bytes(plane % encoding.planes(), values);
            let limit = planes::packed_bound(unpacked);
            if number > limit {
                let got = number;
                return Err(DecodeError::PackedTooLarge { plane, got, limit });
            }
            end += number;
            offsets.push(end);
        }
        let begin = self.len - self.rest.len();
        self.take(end, "planes")?;
        if !self.rest.is_empty() {
            let got = self.rest.len();
            return Err(DecodeError::Trailing { got });
        }
        for offset in &mut offsets {
            *offset += begin;
        }
        Ok(offsets)
    }
}
