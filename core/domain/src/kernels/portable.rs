//! The definition of every kernel, in safe code.

use half::f16;

/// See [`super::add_scaled`].
pub(super) fn add_scaled(acc: &mut [f64], weight: f64, values: &[f16]) {
    for (sum, value) in acc.iter_mut().zip(values) {
        *sum += weight * value.to_f64();
    }
}
