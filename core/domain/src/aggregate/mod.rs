//! Rules that make one delta of many. Today: FedAvg by exact sums.

mod sum;

pub use sum::{AggregateError, EXACT_QUANTA, WeightedSum, exponent_for};
