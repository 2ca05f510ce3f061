//! FedNova: each delta counts by its direction, not by how many steps the vehicle took.
//!
//! A vehicle divides its delta by its effective steps `a_i`; the mean of these is multiplied by `tau_eff`, the mean of
//! the `a_i` by the same weights. Where all took as many steps, nothing changes.
//!
//! # Source
//! Wang et al. 2020, "Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization", section 4;
//! `tau_eff = sum(p_i * a_i)`, as they recommend where the server has no momentum of its own.

/// How many gradients a delta holds: the L1 norm of the weights by which the steps' gradients add up.
///
/// - `steps`: local steps taken.
/// - `momentum`: of the local SGD, `[0, 1)`; 0 gives `steps`.
/// - `shrink`: by what one step pulls back to the base, `lr * proximal_mu`, `[0, 1)`.
///
/// The paper has a closed form for momentum and one for the proximal term; both, and the two together, are how far a
/// gradient that stays 1 moves a parameter, in units of the learning rate, which is what is counted here.
pub(super) fn effective_steps(steps: u64, momentum: f64, shrink: f64) -> f64 {
    let (mut velocity, mut moved) = (0.0_f64, 0.0_f64);
    if momentum == 0.0 && shrink == 0.0 {
        return steps as f64;
    }
    for _ in 0..steps {
        velocity = momentum * velocity + 1.0 - shrink * moved;
        moved += velocity;
    }
    moved
}

/// Divides a delta by its effective steps, in place; `effective_steps` above 0.
pub(super) fn normalise(delta: &mut [f32], effective_steps: f64) {
    debug_assert!(effective_steps > 0.0, "a delta without a step");
    for value in delta {
        *value = narrow(f64::from(*value) / effective_steps);
    }
}

/// `tau_eff`: what the weighted mean of normalised deltas is multiplied by.
///
/// - `taken`: examples and effective steps of each update; without examples the result is 0.
pub(super) fn mean_steps(taken: impl IntoIterator<Item = (u64, f64)>) -> f64 {
    let (mut weighted, mut examples) = (0.0, 0.0);
    for (num_examples, steps) in taken {
        weighted += num_examples as f64 * steps;
        examples += num_examples as f64;
    }
    if examples > 0.0 {
        weighted / examples
    } else {
        0.0
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "a quotient of an f32 and at least about 1"
)]
fn narrow(value: f64) -> f32 {
    value as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn effective_steps_equal_the_papers_closed_forms() {
        let check = |steps: u64, momentum: f64, shrink: f64, expected: f64| {
            let got = effective_steps(steps, momentum, shrink);
            assert!((got - expected).abs() < 1e-9 * expected, "{got} {expected}");
        };
        check(7, 0.0, 0.0, 7.0);
        // Momentum: (t - m (1 - m^t) / (1 - m)) / (1 - m).
        let (t, m) = (7.0, 0.9_f64);
        check(
            7,
            m,
            0.0,
            (t - m * (1.0 - m.powi(7)) / (1.0 - m)) / (1.0 - m),
        );
        // Proximal: (1 - (1 - s)^t) / s.
        check(7, 0.0, 0.05, (1.0 - 0.95_f64.powi(7)) / 0.05);
    }

    #[test]
    fn equal_steps_change_nothing() {
        let mut delta = [4.0, -2.0];
        normalise(&mut delta, 4.0);
        assert!((mean_steps([(10, 4.0), (3, 4.0)]) - 4.0).abs() < f64::EPSILON);
        assert_eq!(delta.to_vec(), [1.0, -0.5]);
    }

    #[test]
    fn mean_steps_by_hand() {
        assert!((mean_steps([(1, 2.0), (3, 6.0)]) - 5.0).abs() < f64::EPSILON);
        assert!(mean_steps([]).abs() < f64::EPSILON);
    }
}
