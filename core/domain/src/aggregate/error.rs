//! Why updates could not be combined.

use super::source::SourceError;

/// Why updates could not be combined.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum AggregateError {
    /// Another number of values.
    #[error("{got} values, the sum has {expected}")]
    Length {
        /// Values given.
        got: usize,
        /// Values of the sum.
        expected: usize,
    },
    /// A value that is NaN or infinite.
    #[error("value {at} is not finite")]
    NotFinite {
        /// Its index.
        at: usize,
    },
    /// Other scales than the sum's.
    #[error("scales {got:?} differ from the sum's {expected:?}")]
    Scale {
        /// Exponents given.
        got: Vec<i8>,
        /// Exponents of the sum.
        expected: Vec<i8>,
    },
    /// The examples of all updates together do not fit 64 bits.
    #[error("too many examples in sum")]
    Examples,
    /// The rule cannot work with so few.
    #[error("{got} updates, the rule needs {least}")]
    TooFew {
        /// Updates given.
        got: usize,
        /// Updates needed.
        least: usize,
    },
    /// An update could not be read back.
    #[error("update {update} cannot be read: {error}")]
    Source {
        /// Its index.
        update: usize,
        /// Why.
        error: SourceError,
    },
}

impl AggregateError {
    /// A retry with the same updates can help.
    pub fn is_transient(&self) -> bool {
        false
    }
}
