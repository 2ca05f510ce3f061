//! FLTrust: updates count by how far they point where a trusted one points.

use crate::aggregate::{AggregateError, Aggregator, Combined, Updates};

/// `sum(t_k * |g| / |x_k| * x_k) / sum(t_k)` with `t_k = max(0, cos(x_k, g))` for a root update `g` that the cloud
/// trained on data of its own. Unweighted, by definition. No update that points along means no change.
///
/// A job names it in `[merge]` only, since roadside units have no data of their own.
///
/// # Source
/// Cao et al. 2021, "FLTrust: Byzantine-robust Federated Learning via Trust Bootstrapping", algorithm 2.
#[derive(Clone, Debug, PartialEq)]
pub struct FlTrust {
    /// The root update: shape `[d]`, in units of the scales.
    pub root: Vec<f64>,
    /// Its L2 norm in parameter units.
    pub root_norm: f64,
}

impl Aggregator for FlTrust {
    fn aggregate(&self, updates: &Updates<'_>) -> Result<Combined, AggregateError> {
        let products = updates.products_with(&self.root)?;
        let squares = updates.squared_distances_to(None)?;
        let norms = squares.into_iter().map(f64::sqrt);
        let trust: Vec<(f64, f64)> = products
            .into_iter()
            .zip(norms)
            .map(|(product, norm)| {
                let both = norm * self.root_norm;
                let trust = if both > 0.0 {
                    (product / both).max(0.0)
                } else {
                    0.0
                };
                (trust, norm)
            })
            .collect();
        let total: f64 = trust.iter().map(|(trust, _)| trust).sum();
        let share = |(trust, norm): &(f64, f64)| {
            if *trust > 0.0 {
                trust / total * self.root_norm / norm
            } else {
                0.0
            }
        };
        let shares: Vec<f64> = trust.iter().map(share).collect();
        Ok(Combined::Delta(updates.linear(&shares)?))
    }
}
