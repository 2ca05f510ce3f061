//! What makes one delta of many: exact sums, and the rules that choose, clip or weigh before they sum.
//!
//! A rule is an [`Aggregator`]. It is handed the [`Updates`] of a round, which reads them block by block from wherever
//! their frames lie, so that no rule holds whole updates in memory; what it needs of whole updates (distances, norms,
//! weighted sums) are methods there. Every rule is one file below [`rules`] and one line in [`rules::RULES`].
//!
//! Invariants: the result does not depend on the order of the updates, on threads or on the CPU; every value of it is a
//! multiple of the round's quantum, so that partial aggregates add up exactly on their way to the cloud; a rule sees
//! only updates that passed the guard.

mod error;
pub mod rules;
mod source;
mod sum;
mod updates;

pub use error::AggregateError;
pub use rules::{RuleError, RuleSpec};
pub use source::{BlockReader, InMemory, Source, SourceError};
pub use sum::{EXACT_QUANTA, QUANTA_PER_UNIT, WeightedSum, exponent_for};
pub use updates::{Columns, Distances, Updates, Weighted};

use std::fmt::Debug;

/// Values of a block: what is read, summed and sorted at a time, and what a frame packs together.
pub const BLOCK: usize = 16_384;

/// A rule that makes one delta of the accepted updates of a round.
///
/// See `docs/extending.md` for a rule from its first line to its test.
pub trait Aggregator: Debug + Send + Sync {
    /// Fewest updates that the rule can do anything with.
    fn least_updates(&self) -> usize {
        1
    }

    /// Combines the updates.
    ///
    /// # Errors
    /// [`AggregateError::TooFew`] below [`Aggregator::least_updates`], and whatever reading an update gives.
    fn aggregate(&self, updates: &Updates<'_>) -> Result<Combined, AggregateError>;
}

/// What a rule makes of the updates.
#[derive(Clone, Debug, PartialEq)]
pub enum Combined {
    /// The weighted sum itself, of weights that are the examples.
    Sum(WeightedSum),
    /// One delta that stands for all of them: shape `[d]`, in units of the scales.
    Delta(Vec<f64>),
}

impl Combined {
    /// The partial aggregate: `sum(n_k * v_k)` and `sum(n_k)`.
    ///
    /// A delta counts for all examples behind the updates. Its values are rounded to the round's quantum, 2^-24 of the
    /// scale, so that their multiples add up exactly.
    ///
    /// # Errors
    /// [`AggregateError::NotFinite`] if the rule made a NaN or infinity, [`AggregateError::Examples`] if the examples do
    /// not fit 64 bits.
    pub fn into_sum(self, updates: &Updates<'_>) -> Result<WeightedSum, AggregateError> {
        let delta = match self {
            Self::Sum(sum) => return Ok(sum),
            Self::Delta(delta) => delta,
        };
        let num_examples = updates.total_examples()?;
        let mut largest = 0.0_f64;
        let mut values = delta;
        for value in &mut values {
            *value = round(*value * QUANTA_PER_UNIT) / QUANTA_PER_UNIT;
            largest = largest.max(value.abs());
            *value *= num_examples as f64;
        }
        let bound = largest * num_examples as f64;
        WeightedSum::from_parts(updates.exponents().to_vec(), values, num_examples, bound)
    }
}

/// To the nearest whole number, ties to even, for magnitudes below 2^51: the sum has no bits for the rest.
fn round(value: f64) -> f64 {
    const WHOLE_ONLY: f64 = 6_755_399_441_055_744.0; // 1.5 * 2^52
    (value + WHOLE_ONLY) - WHOLE_ONLY
}

/// Runs a rule over the updates of a round.
///
/// # Errors
/// What [`Aggregator::aggregate`] and [`Combined::into_sum`] give.
pub fn combine(
    rule: &dyn Aggregator,
    updates: &Updates<'_>,
) -> Result<WeightedSum, AggregateError> {
    let (got, least) = (updates.len(), rule.least_updates().max(1));
    if got < least {
        return Err(AggregateError::TooFew { got, least });
    }
    rule.aggregate(updates)?.into_sum(updates)
}
