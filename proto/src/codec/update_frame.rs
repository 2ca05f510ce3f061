//! Updates in any of their encodings, as they are read: block by block.
//!
//! Whatever the encoding, a block becomes fp16 values in the announced scale, as a plane of high and a plane of low
//! bytes: integer multiples of 2^-24 scaled units, finite or not. Memory is that of one block.

use super::diff::{self, Reference};
use super::error::DecodeError;
use super::fp16::{check_exponents, power_of_two};
use super::index::{Index, Wanted, show};
use super::int8;
use super::planes::Unpacker;
use super::tensors::Tensors;
use super::topk;
use half::f16;
use std::ops::Range;
use wayside_domain::encoding::UpdateEncoding;
use wayside_domain::kernels::{self, Isa, Measure, Planes};
use wayside_domain::schema::Schema;
use wayside_domain::update::PayloadStats;

/// What was measured on all values of an update.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UpdateStats {
    /// Finiteness, and the norm in parameter units.
    pub stats: PayloadStats,
    /// Largest magnitude in scaled units; infinite where a value is not finite.
    pub max_abs: f64,
}

/// Where everything stands in the frame of an update, so that any block can be read without the rest.
///
/// It owns no values: 8 bytes for each plane of 16,384 values, and what follows from the schema. A frame of version 1
/// has one block of all values.
///
/// Verify a frame once ([`UpdateFrame::verify`]): blocks read one by one are guarded only by zstd's checksums.
#[derive(Clone, Debug)]
pub struct UpdateFrame {
    index: Index,
    encoding: UpdateEncoding,
    tensors: Tensors,
}

impl UpdateFrame {
    /// Reads head and lengths; unpacks nothing.
    ///
    /// # Errors
    /// If the frame is not one of an update of this schema, or its lengths do not add up.
    pub fn parse(frame: &[u8], schema: &Schema) -> Result<Self, DecodeError> {
        let index = Index::parse(frame, schema, Wanted::Update)?;
        let encoding = index
            .encoding
            .of_update()
            .expect("the index is one of an update");
        Ok(Self {
            index,
            encoding,
            tensors: Tensors::of(schema),
        })
    }

    /// How its values are written.
    pub fn encoding(&self) -> UpdateEncoding {
        self.encoding
    }

    /// Scale exponent of each tensor.
    pub fn exponents(&self) -> &[i8] {
        &self.index.exponents
    }

    /// Refuses scales other than those announced: sums of differently scaled values mean nothing.
    pub fn check_exponents(&self, announced: &[i8]) -> Result<(), DecodeError> {
        check_exponents(self.exponents(), announced)
    }

    /// Number of blocks, at least 1.
    pub fn blocks(&self) -> usize {
        self.index.chunks.count()
    }

    /// Which values a block has, flat in the schema's order.
    ///
    /// # Panics
    /// If there is no such block.
    pub fn values_of(&self, block: usize) -> Range<usize> {
        self.index.chunks.range(block)
    }

    /// Which bytes of the frame a block takes.
    ///
    /// # Panics
    /// If there is no such block.
    pub fn bytes_of(&self, block: usize) -> Range<usize> {
        self.index.bytes_of(block)
    }

    /// Reads one block as fp16 values in the announced scale.
    ///
    /// - `packed`: the bytes [`UpdateFrame::bytes_of`] the block.
    /// - `reference`: the base model, for `fp16-diff`.
    /// - `high`, `low`: receive the high and the low byte of each value; as long as [`UpdateFrame::values_of`] says. On
    ///   an error they hold anything.
    ///
    /// NaN and infinity are no errors; [`UpdateFrame::verify`] tells.
    ///
    /// # Errors
    /// If the bytes are damaged, or the base model is missing or another.
    ///
    /// # Panics
    /// If there is no such block, or `high` or `low` has another length.
    pub fn read_block(
        &self,
        block: usize,
        packed: &[u8],
        reference: Option<&Reference>,
        unpacker: &mut Unpacker,
        high: &mut [u8],
        low: &mut [u8],
    ) -> Result<(), DecodeError> {
        let reference = self.reference(reference)?;
        self.unpack(block, packed, unpacker, high, low)?;
        self.restore(block, reference, unpacker, high, low)
    }

    /// Reads all blocks once, with memory for one: checks the digest, and measures the values.
    ///
    /// Each part of a tensor within a block has its squares summed in 16 lanes, the parts are added in order; the norm
    /// of an update that is not finite is given as 0.
    ///
    /// # Errors
    /// If the frame is damaged, or the base model is missing or another.
    pub fn verify(
        &self,
        frame: &[u8],
        reference: Option<&Reference>,
        unpacker: &mut Unpacker,
    ) -> Result<UpdateStats, DecodeError> {
        let reference = self.reference(reference)?;
        let mut hasher = self.index.hasher();
        let room = self.values_of(0).len();
        let (mut high, mut low) = (vec![0; room], vec![0; room]);
        let (mut largest, mut squares) = (0, 0.0);
        for block in 0..self.blocks() {
            let values = self.values_of(block);
            let (high, low) = (&mut high[..values.len()], &mut low[..values.len()]);
            self.unpack(block, self.index.packed(block, frame)?, unpacker, high, low)?;
            self.hash(&mut hasher, unpacker, high, low);
            self.restore(block, reference, unpacker, high, low)?;
            for (tensor, part) in self.tensors.parts(values) {
                let planes = Planes { high, low }.part(part);
                let Measure {
                    largest: max,
                    squares: sum,
                } = kernels::measure(Isa::best(), planes);
                largest = max.max(largest);
                squares += sum * power_of_two(2 * i16::from(self.exponents()[tensor]));
            }
        }
        self.index.check_digest(&hasher)?;
        let finite = largest < f16::INFINITY.to_bits();
        Ok(UpdateStats {
            stats: PayloadStats {
                finite,
                l2_norm: if finite { squares.sqrt() } else { 0.0 },
            },
            max_abs: if finite {
                f16::from_bits(largest).to_f64()
            } else {
                f64::INFINITY
            },
        })
    }

    /// The base model, checked to be the one that the differences are relative to.
    fn reference<'a>(
        &self,
        reference: Option<&'a Reference>,
    ) -> Result<Option<&'a Reference>, DecodeError> {
        if self.encoding != UpdateEncoding::Fp16Diff {
            return Ok(None);
        }
        let reference = reference.ok_or(DecodeError::NoReference)?;
        if self.index.extra == reference.id() && reference.fits(&self.tensors) {
            return Ok(Some(reference));
        }
        Err(DecodeError::WrongReference {
            got: show(&self.index.extra),
            expected: show(reference.id()),
        })
    }

    /// Unpacks a block's planes: into `high` and `low` what has two bytes a value, into the unpacker's own buffers what
    /// has not.
    fn unpack(
        &self,
        block: usize,
        packed: &[u8],
        unpacker: &mut Unpacker,
        high: &mut [u8],
        low: &mut [u8],
    ) -> Result<(), DecodeError> {
        let n = self.values_of(block).len();
        assert!(
            high.len() == n && low.len() == n,
            "planes of {} and {} bytes for {n} values",
            high.len(),
            low.len()
        );
        let planes = self.index.planes_of(block, packed)?;
        if matches!(
            self.encoding,
            UpdateEncoding::Fp16 | UpdateEncoding::Fp16Diff
        ) {
            for ((number, packed), to) in planes.zip([high, low]) {
                unpacker.unpack(number, packed, to)?;
            }
            return Ok(());
        }
        let mut scratch = std::mem::take(&mut unpacker.scratch);
        let mut outcome = Ok(());
        for (p, (number, packed)) in planes.enumerate() {
            let to = &mut scratch[p];
            let most = self.index.encoding.plane_bytes(p, n);
            to.resize(most, 0);
            let least = match self.encoding {
                UpdateEncoding::TopK => 1,
                _ => most,
            };
            match unpacker.unpack_up_to(number, packed, least, to) {
                Ok(len) => to.truncate(len),
                Err(error) => outcome = outcome.and(Err(error)),
            }
        }
        unpacker.scratch = scratch;
        outcome
    }

    /// Shows the hasher what [`UpdateFrame::unpack`] left.
    fn hash(&self, hasher: &mut blake3::Hasher, unpacker: &Unpacker, high: &[u8], low: &[u8]) {
        let [first, second] = &unpacker.scratch;
        match self.encoding {
            UpdateEncoding::Fp16 | UpdateEncoding::Fp16Diff => hasher.update(high).update(low),
            UpdateEncoding::Int8 => hasher.update(first).update(second),
            UpdateEncoding::TopK => hasher.update(first),
        };
    }

    /// Makes values of what [`UpdateFrame::unpack`] left.
    fn restore(
        &self,
        block: usize,
        reference: Option<&Reference>,
        unpacker: &Unpacker,
        high: &mut [u8],
        low: &mut [u8],
    ) -> Result<(), DecodeError> {
        let [first, second] = &unpacker.scratch;
        let restored = match self.encoding {
            UpdateEncoding::Fp16 => Ok(()),
            UpdateEncoding::Fp16Diff => {
                let reference = reference.ok_or(DecodeError::NoReference)?;
                let values = self.values_of(block);
                let base = &reference.values()[values.clone()];
                for (tensor, part) in self.tensors.parts(values) {
                    let (high, low) = (&mut high[part.clone()], &mut low[part.clone()]);
                    let (from, to) = (reference.exponents()[tensor], self.exponents()[tensor]);
                    diff::decode(&base[part], from, to, high, low);
                }
                Ok(())
            }
            UpdateEncoding::Int8 => int8::decode(first, second, high, low),
            UpdateEncoding::TopK => topk::decode(first, high, low),
        };
        restored.map_err(|what| DecodeError::Content { block, what })
    }
}
