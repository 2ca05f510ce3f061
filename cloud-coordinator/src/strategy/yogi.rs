//! FedYogi: the second moment moves towards the square by at most a share of the square, so it falls slowly.
//!
//! # Source
//! Reddi et al. 2020, "Adaptive Federated Optimization", algorithm 2.

/// `v - (1 - beta2) * mean^2 * sign(v - mean^2)`, with `sign(0) = 0`. Never negative where `v` is not.
pub(super) fn second(v: f64, square: f64, beta2: f64) -> f64 {
    let towards = (1.0 - beta2) * square;
    // Not `f64::signum`, which is 1 for 0.
    if v > square {
        v - towards
    } else if v < square {
        v + towards
    } else {
        v
    }
}
