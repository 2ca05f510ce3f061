//! FedAvgM: momentum on the mean delta.
//!
//! # Source
//! Hsu, Qi and Brown 2019, "Measuring the Effects of Non-Identical Data Distribution for Federated Visual
//! Classification", section 4; signs as here because a delta points downhill already.

/// `v = beta * v + mean; w += lr * v`.
pub(super) fn step(master: &mut [f64], state: &mut Vec<f64>, mean: &[f64], lr: f64, beta: f64) {
    if state.len() != mean.len() {
        *state = vec![0.0; mean.len()];
    }
    for ((weight, velocity), delta) in master.iter_mut().zip(state.iter_mut()).zip(mean) {
        *velocity = beta * *velocity + delta;
        *weight += lr * *velocity;
    }
}
