//! SCAFFOLD: control variates `c_i` (one a vehicle) and `c` (the cloud's) take the drift out of local steps.
//!
//! Each local step goes by `gradient - c_i + c`. Invariant: `c` is the mean of all `c_i`, by the weights that the deltas
//! have in the merge; it holds as long as `c` moves by the mean of what the `c_i` moved by, rounding included.
//!
//! # Source
//! Karimireddy et al. 2020, "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", algorithm 1, option II.
//! The paper weighs all vehicles alike; here examples weigh, for `c` as for the model.

/// What is added to every gradient of a vehicle: `c - c_i`, length d.
///
/// # Panics
/// If the lengths differ.
pub(super) fn correction(control: &[f32], own: &[f32]) -> Vec<f32> {
    assert_eq!(control.len(), own.len(), "controls of different heads");
    control.iter().zip(own).map(|(c, own)| c - own).collect()
}

/// By how much `c_i` moves after a round, option II: `-c - delta / (steps * lr)`, length d.
///
/// - `control`: the cloud's `c` that the round began with; `delta`: trained minus base.
/// - `effective_steps`: steps taken, with momentum as [`super::fednova::effective_steps`] counts them; above 0.
/// - `lr`: local learning rate, above 0.
///
/// # Panics
/// If the lengths differ.
pub(super) fn control_change(
    control: &[f32],
    delta: &[f32],
    effective_steps: f64,
    lr: f32,
) -> Vec<f32> {
    assert_eq!(control.len(), delta.len(), "control of another head");
    let scale = 1.0 / (effective_steps * f64::from(lr));
    let change = |(c, delta): (&f32, &f32)| narrow(-f64::from(*c) - f64::from(*delta) * scale);
    control.iter().zip(delta).map(change).collect()
}

/// Moves the cloud's `c` by the weighted mean of the vehicles' changes.
///
/// - `share`: vehicles that took part by all there are, `(0, 1]`, by the same weights.
///
/// # Panics
/// If the lengths differ.
pub(super) fn move_control(control: &mut [f64], mean_change: &[f64], share: f64) {
    assert_eq!(control.len(), mean_change.len(), "control of another head");
    for (c, change) in control.iter_mut().zip(mean_change) {
        *c += share * change;
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "a mean gradient, as it is kept"
)]
fn narrow(value: f64) -> f32 {
    value as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without correction the mean gradient of a round is `-delta / (steps * lr)`, and that becomes the control.
    #[test]
    fn the_first_control_is_the_mean_gradient() {
        let (steps, lr) = (4.0, 0.5);
        let delta = [-2.0, 1.0];
        let change = control_change(&[0.0, 0.0], &delta, steps, lr);
        assert_eq!(change, [1.0, -0.5]);
    }

    /// Two vehicles with gradients 3 and -1 that never change: after one round both step by the mean, 1.
    #[test]
    fn drift_is_gone_after_one_round() {
        let (lr, steps) = (0.1_f32, 5_u8);
        let gradients = [3.0_f32, -1.0];
        let mut control = [0.0_f64];
        let mut own = [[0.0_f32]; 2];
        for round in 0..3 {
            let c = [narrow(control[0])];
            let mut mean_change = 0.0;
            for (own, gradient) in own.iter_mut().zip(gradients) {
                let slope = gradient + correction(&c, own)[0];
                if round > 0 {
                    assert!((slope - 1.0).abs() < 1e-6, "round {round}: {slope}");
                }
                let delta = [-lr * f32::from(steps) * slope];
                let change = control_change(&c, &delta, f64::from(steps), lr);
                own[0] += change[0];
                mean_change += f64::from(change[0]) / 2.0;
            }
            move_control(&mut control, &[mean_change], 1.0);
            let mean = f64::midpoint(f64::from(own[0][0]), f64::from(own[1][0]));
            assert!((control[0] - mean).abs() < 1e-6);
        }
    }
}
