//! What the three adaptive server optimizers have in common: a first moment, a second one, a step by their ratio.
//!
//! The state is `m` (length d, from 0), then `v` (length d, from `tau^2`). No bias correction, as in the paper.
//!
//! # Source
//! Reddi et al. 2020, "Adaptive Federated Optimization", algorithm 2; signs as here because a delta points downhill.

/// Settings of an adaptive server optimizer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adaptive {
    /// Step size: about how far a parameter moves in one merge while its deltas agree, in parameter units.
    pub lr: f64,
    /// Share of the first moment that is kept, `[0, 1)`.
    pub beta1: f64,
    /// Share of the second moment that is kept, `[0, 1)`; Adagrad keeps all of it and does not look at this.
    pub beta2: f64,
    /// How little is adapted to: deltas far below it move a parameter by `lr * m / tau`. Above 0.
    pub tau: f64,
}

/// `m = beta1 * m + (1 - beta1) * mean; v = second(v, mean^2); w += lr * m / (sqrt(v) + tau)`.
pub(super) fn step(
    master: &mut [f64],
    state: &mut Vec<f64>,
    mean: &[f64],
    settings: Adaptive,
    second: impl Fn(f64, f64) -> f64,
) {
    let Adaptive { lr, beta1, tau, .. } = settings;
    if state.len() != 2 * mean.len() {
        *state = vec![0.0; mean.len()];
        state.resize(2 * mean.len(), tau * tau);
    }
    let (first, seconds) = state.split_at_mut(mean.len());
    let moments = first.iter_mut().zip(seconds);
    for ((weight, delta), (m, v)) in master.iter_mut().zip(mean).zip(moments) {
        *m = beta1 * *m + (1.0 - beta1) * delta;
        *v = second(*v, delta * delta);
        *weight += lr * *m / (v.sqrt() + tau);
    }
}
