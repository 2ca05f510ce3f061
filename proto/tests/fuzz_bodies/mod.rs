//! Bodies of the fuzz targets: what must hold for any bytes from outside.
//!
//! The fuzzer in `proto/fuzz` calls them with inputs that it makes up, `tests/fuzz_corpus.rs` with those that were
//! kept. A body panics where one of these is broken:
//!
//! - no input makes a decoder panic;
//! - a decoder holds at most [`limit`] bytes at once, by Rust's allocator (what zstd takes from C is not counted: one
//!   decoder of fixed size at a time);
//! - what decodes can be encoded, and then decodes to the same;
//! - a refusal takes at most [`MAX_REFUSAL`] bytes in a log.

mod frames;
mod kubeedge;
mod messages;
mod topics;
mod updates;

use std::fmt::{Debug, Display};

/// What is called with an input.
pub(crate) type Body = fn(&[u8]);

/// The targets: the name of each, which is that of its corpus too, and its body.
pub(crate) const TARGETS: [(&str, Body); 6] = [
    ("update_frame", updates::body),
    ("model_frame", frames::model),
    ("sum_frame", frames::sum),
    ("message", messages::body),
    ("topic", topics::body),
    ("kubeedge", kubeedge::body),
];

/// What a decoder may hold beside input and output, in bytes.
const SLACK: u64 = 64 << 10;
/// Longest text of a refusal, in bytes.
const MAX_REFUSAL: usize = 2048;

/// The most that a decoder may hold at once, in bytes.
fn limit(input: &[u8], decoded: u64) -> u64 {
    2 * decoded + input.len() as u64 + SLACK
}

/// Runs `decode`; gives what it returned, and the most bytes that it held at once.
fn held<T>(decode: impl FnOnce() -> T) -> (T, u64) {
    let mut result = None;
    let counted = allocation_counter::measure(|| result = Some(decode()));
    (result.expect("measure runs it once"), counted.bytes_max)
}

/// Bytes that a value holds.
fn heap<T: Clone>(value: &T) -> u64 {
    held(|| value.clone()).1
}

/// Checks what a decoder held, and how long its refusal is.
fn check<T, E: Display>(what: &str, result: &Result<T, E>, held: u64, limit: u64) {
    assert!(held <= limit, "{what} held {held} bytes, allowed {limit}");
    if let Err(error) = result {
        let text = error.to_string();
        assert!(text.len() <= MAX_REFUSAL, "{what} is refused with {text}");
    }
}

/// Checks that a value came back.
fn same<T: PartialEq + Debug, E: Debug>(what: &str, value: &T, again: &Result<T, E>) {
    match again {
        Ok(again) => assert_eq!(again, value, "{what} changes on its way"),
        Err(error) => panic!("{what} is written but not read: {error:?}: {value:?}"),
    }
}

/// The first byte and the rest.
fn select(input: &[u8]) -> Option<(usize, &[u8])> {
    let (first, rest) = input.split_first()?;
    Some((usize::from(*first), rest))
}
