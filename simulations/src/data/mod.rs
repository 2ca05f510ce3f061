//! Examples for simulated fleets: what they are, where they come from, and who has which.

mod assignment;
mod synthetic;

pub use assignment::{Assignment, deal, windows};
pub use synthetic::{Mixture, synthetic};

use ndarray::{Array2, Axis};

/// Labelled examples.
#[derive(Clone, Debug, PartialEq)]
pub struct DataSet {
    /// Shape `[n, d]`, row-major, finite.
    pub features: Array2<f32>,
    /// Length n, below the number of classes.
    pub labels: Vec<u8>,
    /// Names by label.
    pub classes: Vec<String>,
}

impl DataSet {
    /// Some of the examples, in this order.
    ///
    /// # Panics
    /// If there is no such row.
    #[must_use]
    pub fn select(&self, rows: &[usize]) -> Self {
        Self {
            features: self.features.select(Axis(0), rows),
            labels: rows.iter().map(|row| self.labels[*row]).collect(),
            classes: self.classes.clone(),
        }
    }
}
