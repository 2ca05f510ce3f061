//! How a mean delta moves the global model: one file a server optimizer, all in f64.

mod momentum;
mod plain;

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
}
