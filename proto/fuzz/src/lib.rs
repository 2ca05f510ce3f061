//! The door from the fuzz targets to their bodies, which the workspace's tests share.

#[path = "../../tests/fuzz_bodies/mod.rs"]
mod fuzz_bodies;

/// Runs the body of a target.
pub fn run(target: &str, input: &[u8]) {
    let (_, body) = fuzz_bodies::TARGETS
        .iter()
        .find(|(name, _)| *name == target)
        .expect("a target of this name");
    body(input);
}
