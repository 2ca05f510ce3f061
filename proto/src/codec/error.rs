//! Why values cannot be framed, and why a frame cannot be read.

use wayside_domain::update::RejectReason;

/// Why values cannot be encoded.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum EncodeError {
    /// Another number of values than the schema has parameters.
    #[error("{got} values for a schema of {expected} parameters")]
    Values {
        /// Values given.
        got: usize,
        /// Parameters of the schema.
        expected: usize,
    },
    /// Another number of scale exponents than the schema has tensors.
    #[error("{got} scale exponents for a schema of {expected} tensors")]
    Exponents {
        /// Exponents given.
        got: usize,
        /// Tensors of the schema.
        expected: usize,
    },
    /// NaN or infinity.
    #[error("element {index} of tensor {tensor} is {got}")]
    NotFinite {
        /// Name of the tensor.
        tensor: String,
        /// Position in the tensor's flat values.
        index: usize,
        /// The value.
        got: f64,
    },
    /// Larger than the encoding can say with this scale.
    #[error("element {index} of tensor {tensor} is {got} after scaling, the limit is {limit}")]
    OutOfRange {
        /// Name of the tensor.
        tensor: String,
        /// Position in the tensor's flat values.
        index: usize,
        /// The value after scaling.
        got: f64,
        /// Magnitudes from here on do not fit.
        limit: f64,
    },
    /// The bound of a sum is NaN, infinite or negative.
    #[error("bound of the sum is {got}, expected a finite number of at least 0")]
    Bound {
        /// The bound.
        got: f64,
    },
    /// The share of deltas that `topk` sends is not above 0 and at most 1.
    #[error("topk fraction is {got}, expected above 0 and at most 1")]
    Fraction {
        /// The share.
        got: f64,
    },
    /// Differences need the base model as its frame holds it.
    #[error("encoding fp16-diff needs the base model")]
    NoReference,
    /// The base model is one of another schema.
    #[error("the base model has {got} parameters, expected {expected}")]
    Reference {
        /// Parameters of the base model.
        got: usize,
        /// Parameters of the schema.
        expected: usize,
    },
    /// The compressor gave up, which only a lack of memory explains.
    #[error("zstd: {0}")]
    Zstd(String),
}

/// Why a frame from outside is refused.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum DecodeError {
    /// More bytes than a frame of this schema can have.
    #[error("frame of {got} bytes, the schema allows {limit}")]
    TooLarge {
        /// Length of the frame.
        got: usize,
        /// The most that our encoder could produce.
        limit: usize,
    },
    /// A plane that expands beyond the schema's size.
    #[error("plane {plane} expands to more than {limit} bytes")]
    PlaneTooLarge {
        /// Number of the plane, from 0, counted through all chunks.
        plane: usize,
        /// Bytes that the schema gives a plane.
        limit: usize,
    },
    /// The frame ends too early.
    #[error("frame of {got} bytes ends within its {part}")]
    Short {
        /// Length of the frame.
        got: usize,
        /// The part that is not complete.
        part: &'static str,
    },
    /// Bytes after the last plane.
    #[error("{got} bytes behind the last plane")]
    Trailing {
        /// How many.
        got: usize,
    },
    /// Does not begin with `WSF`.
    #[error("not a frame: it begins with {got:02x?}")]
    Magic {
        /// The first three bytes.
        got: [u8; 3],
    },
    /// A version that this build does not know.
    #[error("frame version {got}, this build reads up to {newest}")]
    Version {
        /// Version in the frame.
        got: u8,
        /// The newest that can be read.
        newest: u8,
    },
    /// Another kind of frame than asked for.
    #[error("encoding {got}, expected {expected}")]
    Encoding {
        /// Encoding in the frame.
        got: u8,
        /// Encoding asked for.
        expected: u8,
    },
    /// Another kind of frame than that of an update.
    #[error("encoding {got} of frame version {version} is none of an update")]
    NotAnUpdate {
        /// Encoding in the frame.
        got: u8,
        /// Version of the frame.
        version: u8,
    },
    /// The frame was made for another schema.
    #[error("frame of another schema: {what} {got}, expected {expected}")]
    WrongSchema {
        /// What differs: `tensors`, `parameters` or `digest`.
        what: &'static str,
        /// As the frame says.
        got: String,
        /// As the schema says.
        expected: String,
    },
    /// Scale exponents other than those announced.
    #[error("scale exponents {got:?}, announced were {expected:?}")]
    Scale {
        /// As the frame says.
        got: Vec<i8>,
        /// As announced.
        expected: Vec<i8>,
    },
    /// Another number of planes than the encoding has.
    #[error("{got} planes, expected {expected}")]
    Planes {
        /// As the frame says.
        got: u8,
        /// What the encoding has.
        expected: usize,
    },
    /// A plane's length that is not in its one allowed form.
    #[error("length of plane {plane} is not a number of at most five bytes in its shortest form")]
    PlaneLength {
        /// Number of the plane, from 0, counted through all chunks.
        plane: usize,
    },
    /// A packed plane that is longer than our encoder could make it.
    #[error("plane {plane} takes {got} bytes, the limit is {limit}")]
    PackedTooLarge {
        /// Number of the plane, from 0, counted through all chunks.
        plane: usize,
        /// Its length before unpacking.
        got: usize,
        /// The most that our encoder could produce.
        limit: usize,
    },
    /// A plane that is not one sound zstd frame.
    #[error("plane {plane}: {what}")]
    Zstd {
        /// Number of the plane, from 0, counted through all chunks.
        plane: usize,
        /// What is wrong with it.
        what: &'static str,
    },
    /// A plane asks for a larger window than our encoder uses.
    #[error("plane {plane} asks for a window of {got} bytes, the limit is {limit}")]
    Window {
        /// Number of the plane, from 0, counted through all chunks.
        plane: usize,
        /// Window asked for, in bytes.
        got: u64,
        /// Largest window allowed, in bytes.
        limit: u64,
    },
    /// A plane that expands to too little.
    #[error("plane {plane} expands to {got} bytes, expected {expected}")]
    PlaneShort {
        /// Number of the plane, from 0, counted through all chunks.
        plane: usize,
        /// Bytes that came out.
        got: usize,
        /// Bytes that the schema gives a plane.
        expected: usize,
    },
    /// The digest in the frame is not that of its content.
    #[error("digest of the content differs from the one in the frame")]
    Digest,
    /// A plane whose content is not in the one form that its encoding has.
    #[error("block {block}: {what}")]
    Content {
        /// Number of the block, from 0.
        block: usize,
        /// What is wrong with it.
        what: &'static str,
    },
    /// Differences can only be read together with the base model.
    #[error("encoding fp16-diff needs the base model")]
    NoReference,
    /// Differences to another model than the one at hand.
    #[error("differences to model {got}, at hand is {expected}")]
    WrongReference {
        /// First half of the base model frame's digest, as the update's frame says.
        got: String,
        /// As the base model at hand has it.
        expected: String,
    },
    /// NaN or infinity where none is allowed (models and sums; deltas are judged by their statistics).
    #[error("element {index} of tensor {tensor} is {got}")]
    NotFinite {
        /// Name of the tensor.
        tensor: String,
        /// Position in the tensor's flat values.
        index: usize,
        /// The value.
        got: f64,
    },
    /// The bound of a sum is NaN, infinite or negative.
    #[error("bound of the sum is {got}, expected a finite number of at least 0")]
    Bound {
        /// The bound.
        got: f64,
    },
}

impl DecodeError {
    /// The short answer for the sender; the detail stays in our log.
    pub fn reason(&self) -> RejectReason {
        match self {
            Self::TooLarge { .. } | Self::PackedTooLarge { .. } | Self::PlaneTooLarge { .. } => {
                RejectReason::TooLarge
            }
            Self::WrongSchema { .. } => RejectReason::WrongSchema,
            Self::NoReference | Self::WrongReference { .. } => RejectReason::WrongBase,
            Self::Scale { .. } => RejectReason::Inconsistent,
            Self::NotFinite { .. } | Self::Bound { .. } => RejectReason::NotFinite,
            _ => RejectReason::Damaged,
        }
    }

    /// Sending the same bytes again cannot help.
    pub fn is_transient(&self) -> bool {
        false
    }
}
