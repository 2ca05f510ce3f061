//! How a mean delta moves the global model: one file a server optimizer, all in f64.

mod adagrad;
mod adam;
mod adaptive;
mod momentum;
mod plain;
mod yogi;

pub use adaptive::Adaptive;

/// A server optimizer with its settings. Its state is part of a version.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ServerOptimizer {
    /// `w += lr * mean`; no state. With `lr = 1` the tree equals flat FedAvg bit for bit.
    Plain {
        /// Step size.
        lr: f64,
    },
    /// FedAvgM: `v = beta * v + mean; w += lr * v`; the state is `v`.
    Momentum {
        /// Step size.
        lr: f64,
        /// Share of the last step that is kept, `[0, 1)`.
        beta: f64,
    },
    /// FedAdagrad; the state is `m`, then `v`, length `2d`.
    Adagrad(Adaptive),
    /// FedAdam; the state is `m`, then `v`, length `2d`.
    Adam(Adaptive),
    /// FedYogi; the state is `m`, then `v`, length `2d`.
    Yogi(Adaptive),
}

impl ServerOptimizer {
    /// Moves `master` by one mean delta.
    ///
    /// - `master`, `mean`: length d, parameter units.
    /// - `state`: what the last step left; another length than this optimizer's counts as none.
    pub fn step(self, master: &mut [f64], state: &mut Vec<f64>, mean: &[f64]) {
        debug_assert_eq!(master.len(), mean.len());
        match self {
            Self::Plain { lr } => plain::step(master, state, mean, lr),
            Self::Momentum { lr, beta } => momentum::step(master, state, mean, lr, beta),
            Self::Adagrad(by) => adaptive::step(master, state, mean, by, adagrad::second),
            Self::Adam(by) => adaptive::step(master, state, mean, by, |v, square| {
                adam::second(v, square, by.beta2)
            }),
            Self::Yogi(by) => adaptive::step(master, state, mean, by, |v, square| {
                yogi::second(v, square, by.beta2)
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_adds_the_mean() {
        let (mut master, mut state) = (vec![1.0, -2.0], vec![9.0]);
        ServerOptimizer::Plain { lr: 0.5 }.step(&mut master, &mut state, &[2.0, 4.0]);
        assert_eq!((master, state), (vec![2.0, 0.0], vec![]));
    }

    #[test]
    fn momentum_by_hand() {
        let (mut master, mut state) = (vec![0.0], vec![]);
        let optimizer = ServerOptimizer::Momentum { lr: 1.0, beta: 0.5 };
        let mut path = Vec::new();
        for mean in [1.0, 1.0, 0.0] {
            optimizer.step(&mut master, &mut state, &[mean]);
            path.push((state[0], master[0]));
        }
        assert_eq!(path, [(1.0, 1.0), (1.5, 2.5), (0.75, 3.25)]);
    }

    /// With `beta1 = 0.5, beta2 = 0.5, tau = 1`, all of these numbers are binary fractions but for the roots.
    #[test]
    fn adaptive_by_hand() {
        let settings = Adaptive {
            lr: 2.0,
            beta1: 0.5,
            beta2: 0.5,
            tau: 1.0,
        };
        let check = |optimizer: ServerOptimizer, expected: [f64; 2]| {
            let (mut master, mut state) = (vec![0.0], vec![]);
            for v in expected {
                let before = master[0];
                optimizer.step(&mut master, &mut state, &[2.0]);
                assert!(
                    (state[1] - v).abs() < f64::EPSILON,
                    "{optimizer:?} {state:?}"
                );
                let moved = 2.0 * state[0] / (v.sqrt() + 1.0);
                assert!((master[0] - before - moved).abs() < 1e-15);
            }
            assert!((state[0] - 1.5).abs() < f64::EPSILON, "m of 2 and 2");
        };
        check(ServerOptimizer::Adagrad(settings), [5.0, 9.0]);
        check(ServerOptimizer::Adam(settings), [2.5, 3.25]);
        check(ServerOptimizer::Yogi(settings), [3.0, 5.0]);
    }

    #[test]
    fn yogi_neither_overshoots_below_zero_nor_moves_when_equal() {
        assert!((yogi::second(1.0, 1.0, 0.5) - 1.0).abs() < f64::EPSILON);
        assert!(yogi::second(1e-300, 1e-301, 0.0) >= 0.0);
        assert!(yogi::second(0.0, 0.0, 0.9).abs() < f64::EPSILON);
    }

    #[test]
    fn all_equal_numpy() {
        let fixture = include_str!("../../tests/fixtures/optimizers.json");
        let fixture: serde_json::Value = serde_json::from_str(fixture).unwrap();
        let list = |value: &serde_json::Value| -> Vec<f64> {
            serde_json::from_value(value.clone()).unwrap()
        };
        let number = |name: &str| fixture["settings"][name].as_f64().unwrap();
        let lr = number("lr");
        let by = Adaptive {
            lr,
            beta1: number("beta1"),
            beta2: number("beta2"),
            tau: number("tau"),
        };
        let beta = number("momentum");
        let all = [
            ("none", ServerOptimizer::Plain { lr }),
            ("momentum", ServerOptimizer::Momentum { lr, beta }),
            ("adagrad", ServerOptimizer::Adagrad(by)),
            ("adam", ServerOptimizer::Adam(by)),
            ("yogi", ServerOptimizer::Yogi(by)),
        ];
        let close = |name: &str, got: &[f64], expected: &[f64]| {
            assert_eq!(got.len(), expected.len(), "{name}");
            for (got, expected) in got.iter().zip(expected) {
                let off = (got - expected).abs();
                assert!(off <= 1e-12 * expected.abs(), "{name}: {got} {expected}");
            }
        };
        for (name, optimizer) in all {
            let (mut master, mut state) = (list(&fixture["start"]), Vec::new());
            let steps = fixture[name].as_array().unwrap();
            let deltas = fixture["deltas"].as_array().unwrap();
            assert_eq!(steps.len(), deltas.len());
            for (delta, expected) in deltas.iter().zip(steps) {
                optimizer.step(&mut master, &mut state, &list(delta));
                close(name, &master, &list(&expected["master"]));
                close(name, &state, &list(&expected["state"]));
            }
        }
    }
}
