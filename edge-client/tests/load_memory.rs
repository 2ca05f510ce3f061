//! How much memory weights take while they are loaded: twice their file, and a small constant.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::path::Path;

use edge_client::backbone::Backbone;

/// Names, shapes, the header's text and the buffer that a file is read through.
const SLACK_BYTES: u64 = 128 * 1024;

/// Most bytes that were allocated at once while a file was loaded, and the file's length.
fn peak(name: &str) -> (u64, u64) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("models")
        .join(name);
    let length = std::fs::metadata(&path).unwrap().len();
    let counted = allocation_counter::measure(|| {
        std::hint::black_box(Backbone::load(&path).unwrap());
    });
    (counted.bytes_max, length)
}

/// Half precision becomes f32; int8 is read as a whole, then laid out block by block.
#[test]
fn loading_takes_twice_the_file() {
    for name in [
        "mobilenet_v3_large_075_coco.f16.safetensors",
        "mobilenet_v3_large_075_coco.int8.safetensors",
    ] {
        let (peak, length) = peak(name);
        eprintln!("{name}: {peak} bytes at once for a file of {length}");
        assert!(peak <= 2 * length + SLACK_BYTES, "{name}: {peak}, {length}");
    }
}
