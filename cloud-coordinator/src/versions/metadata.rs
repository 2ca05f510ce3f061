//! `metadata.json`: what a version is, beside its files; the same text is the version's record in the store.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use wayside_domain::ids::Digest;

/// Names of a version's files.
pub mod name {
    /// The frame that travels to the fleet.
    pub const FRAME: &str = "model.frame";
    /// The released head, for people and other software.
    pub const MODEL: &str = "model.safetensors";
    /// Unrounded parameters and the server optimizer's state.
    pub const STATE: &str = "state.safetensors";
    /// This description.
    pub const METADATA: &str = "metadata.json";
}

/// One version.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Metadata {
    /// The job.
    pub job: String,
    /// Its number.
    pub version: u64,
    /// The version that it was made from; its own number for the first.
    pub parent: u64,
    /// BLAKE3 over the version's content and its parent's `last_commit`, hexadecimal.
    pub last_commit: String,
    /// The parent's `last_commit`; empty for the first version.
    pub parent_commit: String,
    /// Number of the merge round that made it; 0 for the first.
    pub completed_rounds: u64,
    /// When it was made, Unix milliseconds.
    pub created_ms: u64,
    /// It passed the gate.
    pub released: bool,
    /// Why it was kept back; empty if it was not.
    pub gate: String,
    /// Examples behind it.
    pub num_examples: u64,
    /// Vehicles behind it.
    pub contributors: u32,
    /// The sums stayed within the exact range.
    pub exact: bool,
    /// Accuracy on the held-back set, `[0, 1]`; absent without one.
    pub val_accuracy: Option<f64>,
    /// Mean recall of the classes there.
    pub macro_recall: Option<f64>,
    /// Mean cross-entropy there, in nats; absent if it is not finite.
    pub loss: Option<f64>,
    /// Bytes of the frame.
    pub frame_bytes: u64,
    /// Where each file is, by name.
    pub uris: BTreeMap<String, String>,
    /// BLAKE3 of each file but this one, by name, hexadecimal.
    pub digests: BTreeMap<String, String>,
}

impl Metadata {
    /// Digest of one of its files.
    pub fn digest(&self, name: &str) -> Option<Digest> {
        Digest::from_hex(self.digests.get(name)?)
    }

    /// Where one of its files is; empty if unknown.
    pub fn uri(&self, name: &str) -> &str {
        self.uris.get(name).map_or("", String::as_str)
    }
}
