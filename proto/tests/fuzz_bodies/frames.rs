//! Frames of every version and encoding.
//!
//! The first byte of the input selects a schema, the second what the rest is: a frame as it came, a frame whose digest
//! is set right first (a fuzzer cannot guess one, and what lies behind the digest is to be seen as well), or the
//! content of a frame that is then built around it: version, encoding, and the bytes before compression.

use super::{check, held, same, select};
use std::cell::RefCell;
use std::sync::LazyLock;
use wayside_domain::schema::{Schema, TensorSpec};
use wayside_proto::codec::{
    BLOCK, Encoding, Reference, Sum, decode_model, decode_reference, decode_sum, digest,
    encode_model, encode_sum, max_frame_bytes, schema_digest,
};
use zstd::bulk::{Compressor, Decompressor};

/// Bytes in front of the digest, and of the digest.
const HEAD: usize = 27;
const DIGEST: usize = 32;

/// A schema, and a model of it for differences to refer to.
pub(super) struct Place {
    pub(super) schema: Schema,
    pub(super) reference: Reference,
    id: [u8; 16],
}

/// By the first byte of the input; what is beyond them is the first. The last one has two blocks.
static PLACES: LazyLock<Vec<Place>> = LazyLock::new(|| {
    let linear = |features, classes| Schema::linear_head(features, classes).expect("a head");
    let many = (0..40).map(|i| TensorSpec {
        name: format!("t{i}"),
        shape: vec![1 + i % 3],
    });
    let schemas = [
        linear(6, 3),
        linear(480, 3),
        linear(1, 1),
        Schema::new(many.collect()).expect("a schema"),
        linear(4100, 4),
    ];
    schemas.map(Place::new).into()
});

impl Place {
    fn new(schema: Schema) -> Self {
        let weights: Vec<f32> = (0..schema.num_parameters())
            .map(|i| (f32::from(u8::try_from(i * 7 % 251).expect("below 251")) - 120.0) / 64.0)
            .collect();
        let (frame, _) = encode_model(&schema, &weights).expect("a model");
        let reference = decode_reference(&frame, &schema).expect("just written");
        let mut id = [0; 16];
        id.copy_from_slice(&digest(&frame).0[..16]);
        Self {
            schema,
            reference,
            id,
        }
    }
}

/// The most that the decoder of a frame may hold at once, in bytes; its errors and lists of tensors fit into the last
/// of the three.
fn limit(frame: &[u8], decoded: usize) -> u64 {
    (2 * decoded + frame.len() + 4096) as u64
}

pub(super) fn model(input: &[u8]) {
    each(input, &[Encoding::Fp16Model], |frame, place| {
        let schema = &place.schema;
        let (model, most) = held(|| decode_model(frame, schema));
        let decoded = 4 * schema.num_parameters();
        check("model frame", &model, most, limit(frame, decoded));
        let reference = decode_reference(frame, schema);
        assert_eq!(model.is_ok(), reference.is_ok());
        let Ok(model) = model else { return };
        assert_eq!(reference.map(|r| r.to_parameters()).as_ref(), Ok(&model));
        let (frame, released) = encode_model(schema, &model).expect("what decodes can be encoded");
        same("model frame", &released, &decode_model(&frame, schema));
        for range in schema.ranges() {
            // The encoder chooses its own scale, so that small values beside a large one are rounded.
            let largest = model[range.clone()]
                .iter()
                .fold(0.0_f32, |max, v| max.max(v.abs()));
            for (value, released) in model[range.clone()].iter().zip(&released[range]) {
                let (value, released) = (f64::from(*value), f64::from(*released));
                let lost = (value - released).abs();
                let allowed = (value.abs() / 2048.0).max(f64::from(largest) / 33_554_432.0);
                assert!(lost <= allowed.max(1e-45), "{value} becomes {released}");
            }
        }
    });
}

pub(super) fn sum(input: &[u8]) {
    each(input, &[Encoding::F64Sum], |frame, place| {
        let schema = &place.schema;
        let (sum, most) = held(|| decode_sum(frame, schema));
        let decoded = 8 * schema.num_parameters();
        check("sum frame", &sum, most, limit(frame, decoded));
        let Ok(sum) = sum else { return };
        let again = encode_sum(schema, &sum)
            .map(|frame| decode_sum(&frame, schema))
            .expect("what decodes can be encoded");
        let bits = |sum: &Sum| sum.values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        same("sum frame", &sum, &again);
        assert_eq!(again.map(|again| bits(&again)), Ok(bits(&sum)));
    });
}

/// Hands the frame that the input stands for to `decode`; a built one has one of these encodings.
pub(super) fn each(input: &[u8], encodings: &[Encoding], decode: impl Fn(&[u8], &Place)) {
    let Some((place, rest)) = select(input) else {
        return;
    };
    let Some((form, rest)) = select(rest) else {
        return;
    };
    let place = PLACES.get(place).unwrap_or(&PLACES[0]);
    match form % 3 {
        0 => decode(rest, place),
        1 => decode(&resealed(rest, &place.schema), place),
        _ => {
            let (encoding, frame) = built(rest, place, encodings);
            assert!(frame.len() <= max_frame_bytes(&place.schema, encoding));
            decode(&frame, place);
        }
    }
}

/// The most bytes of each plane before compression, in the order of the frame.
fn planes(schema: &Schema, version: u8, encoding: Encoding) -> Vec<usize> {
    let values = schema.num_parameters();
    let block = if version == 1 { values } else { BLOCK };
    let mut planes = Vec::new();
    for start in (0..values).step_by(block) {
        let values = block.min(values - start);
        planes.extend((0..encoding.planes()).map(|p| match (encoding, p) {
            (Encoding::Int8, 1) => values.div_ceil(64),
            (Encoding::TopK, _) => 3 + 3 * values,
            _ => values,
        }));
    }
    planes
}

/// The frame with the digest of what it holds; as it came if it cannot be taken apart.
fn resealed(frame: &[u8], schema: &Schema) -> Vec<u8> {
    let mut sealed = frame.to_vec();
    if let Some(digest) = digest_of(frame, schema) {
        sealed[HEAD..HEAD + DIGEST].copy_from_slice(digest.as_bytes());
    }
    sealed
}

fn digest_of(frame: &[u8], schema: &Schema) -> Option<blake3::Hash> {
    let (head, rest) = frame.split_at_checked(HEAD)?;
    let encoding = Encoding::ALL.into_iter().find(|e| e.code() == head[4])?;
    let rest = rest.get(DIGEST..)?;
    let (fixed, rest) = rest.split_at_checked(schema.tensors().len() + extra(encoding))?;
    let mut rest = rest.get(1..)?;
    let mut lengths = Vec::new();
    for most in planes(schema, head[3], encoding) {
        let mut length = 0;
        for i in 0..5 {
            let (byte, behind) = rest.split_first()?;
            rest = behind;
            length |= usize::from(byte & 0x7f) << (7 * i);
            if byte & 0x80 == 0 {
                break;
            }
        }
        lengths.push((length, most));
    }
    let mut hasher = blake3::Hasher::new();
    hasher.update(head).update(fixed);
    for (length, most) in lengths {
        let (packed, behind) = rest.split_at_checked(length)?;
        rest = behind;
        hasher.update(&unpack(packed, most)?);
    }
    Some(hasher.finalize())
}

/// A frame with a sound head around exponents, weights and planes from the input, which is followed by zeros.
///
/// The first byte gives the encoding (modulo their number), the second the version (odd: 1, where it has the encoding)
/// and whether differences refer to the right model (below 128).
fn built(content: &[u8], place: &Place, encodings: &[Encoding]) -> (Encoding, Vec<u8>) {
    let schema = &place.schema;
    let (first, content) = select(content).unwrap_or((0, &[]));
    let (second, content) = select(content).unwrap_or((0, &[]));
    let encoding = encodings[first % encodings.len()];
    let version = if second % 2 == 1 && encoding.code() <= 3 {
        1
    } else {
        2
    };
    let mut content = content.iter().copied().chain(std::iter::repeat(0));
    let mut take = |len| content.by_ref().take(len).collect::<Vec<u8>>();
    let tensors = u16::try_from(schema.tensors().len()).expect("at most 1024");
    let parameters = u32::try_from(schema.num_parameters()).expect("at most 2^26");
    let mut head = b"WSF".to_vec();
    head.extend([version, encoding.code()]);
    head.extend(tensors.to_le_bytes());
    head.extend(parameters.to_le_bytes());
    head.extend(&schema_digest(schema).0[..16]);
    let mut fixed = take(schema.tensors().len());
    if encoding == Encoding::Fp16Diff && second < 128 {
        fixed.extend(place.id);
    } else {
        fixed.extend(take(extra(encoding)));
    }
    let mut hasher = blake3::Hasher::new();
    hasher.update(&head).update(&fixed);
    let mut lengths = vec![u8::try_from(encoding.planes()).expect("at most 8")];
    let mut packed = Vec::new();
    for most in planes(schema, version, encoding) {
        let content = if encoding == Encoding::TopK {
            let len = take(2);
            take(most.min(usize::from(u16::from_le_bytes([len[0], len[1]]))))
        } else {
            take(most)
        };
        hasher.update(&content);
        let shut = pack(&content);
        let mut length = shut.len();
        while length >= 0x80 {
            lengths.push(length.to_le_bytes()[0] | 0x80);
            length >>= 7;
        }
        lengths.push(length.to_le_bytes()[0]);
        packed.extend(shut);
    }
    let digest = hasher.finalize();
    let digest = digest.as_bytes().as_slice();
    (
        encoding,
        [&head, digest, &fixed, &lengths, &packed].concat(),
    )
}

// Kept over all executions: making one takes longer than using it.
thread_local! {
    static PACKER: RefCell<Compressor<'static>> =
        RefCell::new(Compressor::new(1).expect("enough memory"));
    static UNPACKER: RefCell<Decompressor<'static>> =
        RefCell::new(Decompressor::new().expect("enough memory"));
}

fn pack(plane: &[u8]) -> Vec<u8> {
    PACKER.with_borrow_mut(|packer| packer.compress(plane).expect("enough memory"))
}

fn unpack(packed: &[u8], len: usize) -> Option<Vec<u8>> {
    UNPACKER.with_borrow_mut(|unpacker| unpacker.decompress(packed, len).ok())
}

/// Bytes between the exponents and the planes.
fn extra(encoding: Encoding) -> usize {
    match encoding {
        Encoding::F64Sum | Encoding::Fp16Diff => 16,
        Encoding::Fp16Delta | Encoding::Fp16Model | Encoding::Int8 | Encoding::TopK => 0,
    }
}
