//! Frames: parameters of a schema on the wire.
//!
//! # Layout of version 2
//!
//! Numbers are little-endian. `t` is the number of tensors, `d` of parameters, `p` of planes a chunk. The values, flat in
//! the schema's order, are cut into chunks of 16,384 ([`BLOCK`]); the last one may have fewer.
//!
//! | offset | bytes | content |
//! | --- | --- | --- |
//! | 0 | 3 | `WSF` |
//! | 3 | 1 | version, 2 |
//! | 4 | 1 | encoding: 1 fp16, 2 fp16 model, 3 f64 sum, 4 fp16-diff, 5 int8, 6 topk |
//! | 5 | 2 | `t` |
//! | 7 | 4 | `d` |
//! | 11 | 16 | first half of the BLAKE3 digest of the schema's canonical bytes |
//! | 27 | 32 | BLAKE3 digest of bytes 0 to 26, the exponents, the extra bytes, and all planes before compression in order |
//! | 59 | t | scale exponent of each tensor, signed: a value stands for `value * 2^exponent` |
//! | 59 + t | 0 or 16 | extra bytes. Encoding 3: examples (u64), bound (f64). Encoding 4: first half of the BLAKE3 digest of the base model's frame |
//! | | 1 | `p`: 2 for encodings 1, 2, 4, 5; 8 for encoding 3; 1 for encoding 6 |
//! | | 1 to 5 each | packed length of each plane, LEB128 in its shortest form: all of a chunk, then those of the next |
//! | | | the planes in the same order |
//!
//! Each plane of each chunk is one zstd frame (level 1, checksum, no dictionary, window of at most 2^23 bytes), so any
//! chunk can be read without the rest. Nothing follows the last plane. In version 1, which is read but no longer
//! written, all values are one chunk, and there are encodings 1 to 3 only.
//!
//! # Planes
//!
//! With `n` values in a chunk:
//!
//! - Encodings 1 to 3: plane `i` holds byte `i` of every value, the most significant first; `n` bytes each.
//! - Encoding 4: the trained weight is `fp16((base + delta) / 2^m)`, in the exponent `m` of the base model's tensor. What
//!   travels is the distance from the base value's place in the order of fp16 numbers to the weight's (u16, wrapping),
//!   zigzag, as two planes as above. The place of bits `b` is `b | 0x8000` without sign, `!b` with it. It is read as
//!   `fp16(f32(weight - base) * 2^(m - exponent))`, every rounding to nearest, ties to even.
//! - Encoding 5: `n` numbers (i8, -127 to 127), then a scale (i8, -24 to 9) for each 64 of them: `number * 2^scale`,
//!   which always is an fp16 number.
//! - Encoding 6: number of values sent, gaps (the first position in the chunk, then each distance to the next), both
//!   LEB128, then all high bytes of the fp16 values, then all low bytes. What is not sent is zero; zeros are not sent. At
//!   most `3 + 3 n` bytes.
//!
//! Whatever the encoding, an update is read as fp16 values in the announced scale ([`UpdateFrame`]).
//!
//! For the linear head of 480 features and 3 classes the head of a frame is 66 bytes, the two zstd frames add at most
//! 28, so an update of 1443 parameters in fp16 takes at most 2980 bytes (2.07 a parameter).
//!
//! # Reading bytes from outside
//!
//! The schema says how long everything is before anything is allocated; a plane is unpacked into a buffer of exactly
//! the size that it must have (encoding 6: may have at most), and more is an error, not a cut. What is decoded as a
//! whole has its digest checked before a value is handed out, and takes the values and one chunk of memory; block by
//! block ([`UpdateFrame::read_block`]) it takes one chunk, and [`UpdateFrame::verify`] checks the digest.
//!
//! # Exactness
//!
//! fp16 values are integer multiples of 2^-24, weights are integers: sums of `num_examples * value` are exact in f64
//! while the bound stays below 2^29 ([`Sum::is_exact`]).

mod diff;
mod error;
mod fp16;
mod frame;
mod index;
mod int8;
mod planes;
mod sum;
mod tensors;
mod topk;
mod update;
mod update_frame;
mod varint;

pub use diff::{Reference, decode_reference};
pub use error::{DecodeError, EncodeError};
pub use fp16::{
    Delta, FP16_LIMIT, decode_delta, decode_model, encode_delta, encode_delta_values, encode_model,
};
pub use frame::{BLOCK, Encoding, MAGIC, VERSION, max_frame_bytes, max_update_bytes};
pub use half::f16;
pub use planes::Unpacker;
pub use sum::{EXACT_BOUND, Sum, decode_sum, encode_sum};
pub use update::{EncodedUpdate, encode_update};
pub use update_frame::{UpdateFrame, UpdateStats};

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

/// Whether a frame says that it holds an update, of whichever encoding, and not a model or a sum.
pub fn is_update(frame: &[u8]) -> bool {
    let updates = wayside_domain::encoding::UpdateEncoding::ALL.map(Encoding::from);
    let code = frame.get(4);
    updates
        .iter()
        .any(|encoding| code == Some(&encoding.code()))
}
