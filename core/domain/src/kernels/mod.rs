//! Inner loops. This folder is the only place where `unsafe` may come to stand; today everything is portable.

#![warn(clippy::cast_precision_loss)]

mod portable;

use half::f16;

/// `acc[i] += weight * values[i]`, multiply first, then add, in f64: the same bits on every CPU.
///
/// - `acc`, `values`: shape `[d]`, equal lengths.
/// - `weight`: an integer value below 2^42, so that each product is exact.
pub fn add_scaled(acc: &mut [f64], weight: f64, values: &[f16]) {
    assert_eq!(
        acc.len(),
        values.len(),
        "accumulator and values differ in length"
    );
    portable::add_scaled(acc, weight, values);
}
