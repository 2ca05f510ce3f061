//! No server optimizer: the mean delta times a step size.

/// `w += lr * mean`, multiply first, then add.
pub(super) fn step(master: &mut [f64], state: &mut Vec<f64>, mean: &[f64], lr: f64) {
    state.clear();
    for (weight, delta) in master.iter_mut().zip(mean) {
        *weight += lr * delta;
    }
}
