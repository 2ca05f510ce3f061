//! What the encodings of an update cost: `cargo bench -p wayside-proto`.
//!
//! One million normal deltas (standard deviation 1/1000) on a base of normal weights (1/20). Throughput is in bytes of
//! f32; the sizes are printed first.

#![allow(
    missing_docs,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a bench prints what it found and stops where something is wrong"
)]

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use std::hint::black_box;
use wayside_domain::encoding::UpdateEncoding;
use wayside_domain::schema::{Schema, TensorSpec};
use wayside_proto::codec::{
    Reference, Unpacker, UpdateFrame, decode_reference, encode_model, encode_update,
};

const PARAMETERS: usize = 1_000_000;
/// Scales 1/1000 to about 1 at the largest of a million.
const EXPONENT: i8 = -8;
const TOPK_FRACTION: f64 = 0.01;

/// Normal numbers: sums of twelve even ones.
fn normal(seed: u64, deviation: f32) -> Vec<f32> {
    let mut state = seed;
    let mut even = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let bytes = state.to_be_bytes();
        f32::from(u16::from_be_bytes([bytes[0], bytes[1]])) / 65_536.0
            + f32::from(u16::from_be_bytes([bytes[2], bytes[3]])) / 4_294_967_296.0
    };
    (0..PARAMETERS)
        .map(|_| ((0..12).map(|_| even()).sum::<f32>() - 6.0) * deviation)
        .collect()
}

fn schema() -> Schema {
    Schema::new(vec![TensorSpec {
        name: "weights".into(),
        shape: vec![PARAMETERS],
    }])
    .unwrap()
}

fn read_all(
    index: &UpdateFrame,
    frame: &[u8],
    reference: &Reference,
    unpacker: &mut Unpacker,
    planes: &mut [Vec<u8>; 2],
) {
    let [high, low] = planes;
    for block in 0..index.blocks() {
        let len = index.values_of(block).len();
        let packed = &frame[index.bytes_of(block)];
        let (high, low) = (&mut high[..len], &mut low[..len]);
        index
            .read_block(block, packed, Some(reference), unpacker, high, low)
            .unwrap();
    }
}

fn codec(c: &mut Criterion) {
    let schema = schema();
    let delta = normal(1, 1e-3);
    let (model, _) = encode_model(&schema, &normal(2, 0.05)).unwrap();
    let reference = decode_reference(&model, &schema).unwrap();
    let mut group = c.benchmark_group("codec");
    group.throughput(Throughput::Bytes(4 * PARAMETERS as u64));
    for encoding in UpdateEncoding::ALL {
        let encode = || {
            let base = Some(&reference);
            encode_update(&schema, encoding, TOPK_FRACTION, &delta, &[EXPONENT], base).unwrap()
        };
        let frame = encode().frame;
        println!(
            "{encoding}: {} bytes, {:.4} a parameter",
            frame.len(),
            frame.len() as f64 / PARAMETERS as f64
        );
        let index = UpdateFrame::parse(&frame, &schema).unwrap();
        let mut unpacker = Unpacker::new();
        let room = index.values_of(0).len();
        let mut planes = [vec![0; room], vec![0; room]];
        group.bench_function(format!("{encoding}/encode"), |b| {
            b.iter(|| black_box(encode()));
        });
        group.bench_function(format!("{encoding}/read-blocks"), |b| {
            b.iter(|| read_all(&index, &frame, &reference, &mut unpacker, &mut planes));
        });
        group.bench_function(format!("{encoding}/verify"), |b| {
            b.iter(|| black_box(index.verify(&frame, Some(&reference), &mut unpacker)).unwrap());
        });
    }
    group.finish();
}

criterion_group!(benches, codec);
criterion_main!(benches);
