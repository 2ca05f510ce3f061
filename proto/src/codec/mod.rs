//! Frames: parameters of a schema on the wire.
//!
//! # Layout of version 1
//!
//! Numbers are little-endian. `t` is the number of tensors, `d` of parameters, `p` of planes.
//!
//! | offset | bytes | content |
//! | --- | --- | --- |
//! | 0 | 3 | `WSF` |
//! | 3 | 1 | version, 1 |
//! | 4 | 1 | encoding: 1 fp16 delta, 2 fp16 model, 3 f64 sum |
//! | 5 | 2 | `t` |
//! | 7 | 4 | `d` |
//! | 11 | 16 | first half of the BLAKE3 digest of the schema's canonical bytes |
//! | 27 | 32 | BLAKE3 digest of bytes 0 to 26, the exponents, the weights, and all planes before compression |
//! | 59 | t | scale exponent of each tensor, signed: a value stands for `value * 2^exponent` |
//! | 59 + t | 0 or 16 | weights, encoding 3 only: examples (u64), bound (f64) |
//! | | 1 | `p`: 2 for encodings 1 and 2, 8 for encoding 3 |
//! | | 1 to 5 each | packed length of each plane, LEB128 in its shortest form |
//! | | | the planes |
//!
//! Plane `i` holds byte `i`, the most significant first, of every value in the schema's order: `d` bytes, packed as
//! one zstd frame (level 1, checksum, no dictionary, window of at most 2^23 bytes). Nothing follows the last plane.
//!
//! For the linear head of 480 features and 3 classes the head of a frame is 66 bytes, the two zstd frames add at most
//! 28, so an update of 1443 parameters takes at most 2980 bytes (2.07 a parameter).
//!
//! # Reading bytes from outside
//!
//! The schema says how long everything is before anything is allocated; a plane is unpacked into a buffer of exactly
//! `d` bytes, and more is an error, not a cut; the digest is checked before a value is handed out. Decoding takes the
//! values and one plane of memory: 1.5 times the values for fp16, 1.125 times for sums.
//!
//! # Exactness
//!
//! fp16 values are integer multiples of 2^-24, weights are integers: sums of `num_examples * value` are exact in f64
//! while the bound stays below 2^29 ([`Sum::is_exact`]).

mod error;
mod fp16;
mod frame;
mod planes;
mod sum;

pub use error::{DecodeError, EncodeError};
pub use fp16::{
    Delta, FP16_LIMIT, decode_delta, decode_model, encode_delta, encode_delta_values, encode_model,
};
pub use frame::{Encoding, MAGIC, VERSION, max_frame_bytes};
pub use half::f16;
pub use sum::{EXACT_BOUND, Sum, decode_sum, encode_sum};

use wayside_domain::ids::Digest;
use wayside_domain::schema::Schema;

/// BLAKE3 of some bytes.
pub fn digest(bytes: &[u8]) -> Digest {
    Digest(*blake3::hash(bytes).as_bytes())
}

/// BLAKE3 of the schema's canonical bytes.
pub fn schema_digest(schema: &Schema) -> Digest {
    digest(&schema.canonical_bytes())
}
