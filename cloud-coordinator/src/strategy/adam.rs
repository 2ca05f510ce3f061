//! FedAdam: the second moment is a running mean of the squares.
//!
//! # Source
//! Reddi et al. 2020, "Adaptive Federated Optimization", algorithm 2.

/// `beta2 * v + (1 - beta2) * mean^2`.
pub(super) fn second(v: f64, square: f64, beta2: f64) -> f64 {
    beta2 * v + (1.0 - beta2) * square
}
