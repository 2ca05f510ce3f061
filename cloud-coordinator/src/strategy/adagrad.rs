//! FedAdagrad: the second moment is the sum of all squares, so steps only shrink.
//!
//! # Source
//! Reddi et al. 2020, "Adaptive Federated Optimization", algorithm 2. Their experiments set `beta1` to 0.

/// `v + mean^2`.
pub(super) fn second(v: f64, square: f64) -> f64 {
    v + square
}
