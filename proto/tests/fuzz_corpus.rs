//! The saved corpus of every fuzz target, replayed and mutated; see `proto/fuzz/README.md`.

#![allow(
    clippy::unwrap_used,
    reason = "a test stops where something is not as it must be"
)]

mod fuzz_bodies;

use fuzz_bodies::{Body, TARGETS};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

/// Mutated inputs a target.
const EXECUTIONS: usize = 4000;
/// Longest mutated input, in bytes.
const MAX_LEN: usize = 4096;

/// Inputs of a target's corpus, by name, so that the order is the same everywhere.
fn corpus(target: &str) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("fuzz/corpus")
        .join(target);
    let entries =
        std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut inputs: Vec<_> = entries
        .map(|entry| {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            (name, std::fs::read(entry.path()).unwrap())
        })
        .collect();
    inputs.sort();
    inputs
}

/// Runs a body; a failure names what it was called with.
fn run(body: Body, what: &str, input: &[u8]) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| body(input))) {
        eprintln!("{what}: {}", input.escape_ascii());
        std::panic::resume_unwind(panic);
    }
}

/// `SplitMix64`: small, and the same numbers for ever.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `n`, which is at least 1.
    fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.next() % n as u64).unwrap()
    }

    fn byte(&mut self) -> u8 {
        self.next().to_le_bytes()[0]
    }

    /// One to four small changes, as a fuzzer makes them.
    fn mutate(&mut self, input: &mut Vec<u8>, other: &[u8]) {
        for _ in 0..=self.below(4) {
            let at = self.below(input.len() + 1);
            match self.below(7) {
                0 if at < input.len() => input[at] ^= 1 << self.below(8),
                1 if at < input.len() => input[at] = self.byte(),
                2 if at < input.len() => input[at] = [0, 1, 0x7f, 0x80, 0xff][self.below(5)],
                3 => input.insert(at, self.byte()),
                4 => {
                    let end = input.len().min(at + 1 + self.below(8));
                    input.drain(at..end);
                }
                5 => input.truncate(at),
                _ => {
                    let from = self.below(other.len() + 1);
                    let to = other.len().min(from + 1 + self.below(64));
                    input.splice(at..at, other[from..to].iter().copied());
                }
            }
        }
        input.truncate(MAX_LEN);
    }
}

#[test]
fn saved_inputs_break_nothing() {
    for (target, body) in TARGETS {
        let inputs = corpus(target);
        assert!(inputs.len() >= 10, "{target} has {} inputs", inputs.len());
        for (name, input) in inputs {
            run(body, &format!("{target}/{name}"), &input);
        }
    }
}

#[test]
fn mutated_inputs_break_nothing() {
    let seed = std::env::var("WAYSIDE_SEED").map_or(1, |seed| seed.parse().unwrap());
    for (target, body) in TARGETS {
        let inputs = corpus(target);
        let mut dice = Dice(seed);
        for i in 0..EXECUTIONS {
            let mut input = inputs[i % inputs.len()].1.clone();
            let other = dice.below(inputs.len());
            dice.mutate(&mut input, &inputs[other].1);
            let what = format!("{target}, execution {i} (WAYSIDE_SEED={seed})");
            run(body, &what, &input);
        }
    }
}
