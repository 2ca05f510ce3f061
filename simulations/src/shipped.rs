//! Pictures and weights that come with the project.

use std::path::{Path, PathBuf};

/// The traffic lights.
pub fn pictures() -> PathBuf {
    shipped("simulations/data/traffic_lights")
}

/// The int8 network.
pub fn weights() -> PathBuf {
    shipped("edge-client/models/mobilenet_v3_large_075_coco.int8.safetensors")
}

/// A file of the project: below the current folder if it is there, else where the project was built.
fn shipped(path: &str) -> PathBuf {
    let here = PathBuf::from(path);
    if here.exists() {
        here
    } else {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
    }
}
