//! Partial aggregates: weighted sums of scaled deltas, bit for bit.

use super::error::{DecodeError, EncodeError};
use super::fp16::first_not_finite;
use super::frame::{self, Encoding};
use super::index::{Index, Wanted};
use wayside_domain::schema::Schema;

/// Below this bound (scaled units times examples) every sum is exact: 2^53 quanta of 2^-24.
pub const EXACT_BOUND: f64 = 536_870_912.0;

/// A weighted sum of deltas, `sum(num_examples * value)`, in scaled units.
#[derive(Clone, Debug, PartialEq)]
pub struct Sum {
    /// Scale exponent of each tensor.
    pub exponents: Vec<i8>,
    /// The sum, length d, flat in the schema's order, in units of `2^exponent` of the tensor.
    pub values: Vec<f64>,
    /// Examples behind it.
    pub num_examples: u64,
    /// `sum(num_examples * max|value|)` over all that ever went in, scaled units.
    pub bound: f64,
}

impl Sum {
    /// The sum is exact: it does not depend on the order in which it was taken.
    pub fn is_exact(&self) -> bool {
        self.bound < EXACT_BOUND
    }
}

/// Frames a sum without loss.
///
/// # Errors
/// If a length differs from the schema's, or a value or the bound is not finite.
pub fn encode_sum(schema: &Schema, sum: &Sum) -> Result<Vec<u8>, EncodeError> {
    if sum.values.len() != schema.num_parameters() {
        let (got, expected) = (sum.values.len(), schema.num_parameters());
        return Err(EncodeError::Values { got, expected });
    }
    if let Some((tensor, index, got)) = first_not_finite(schema, &sum.values) {
        return Err(EncodeError::NotFinite { tensor, index, got });
    }
    if !bound_fits(sum.bound) {
        return Err(EncodeError::Bound { got: sum.bound });
    }
    let mut weights = [0; 16];
    weights[..8].copy_from_slice(&sum.num_examples.to_le_bytes());
    weights[8..].copy_from_slice(&sum.bound.to_le_bytes());
    frame::write(
        schema,
        Encoding::F64Sum,
        &sum.exponents,
        &weights,
        |range, p, plane| {
            for (byte, value) in plane.iter_mut().zip(&sum.values[range]) {
                *byte = value.to_be_bytes()[p];
            }
        },
    )
}

/// Reads the frame of a sum; all its values are finite.
pub fn decode_sum(frame: &[u8], schema: &Schema) -> Result<Sum, DecodeError> {
    let index = Index::parse(frame, schema, Wanted::Only(Encoding::F64Sum))?;
    let mut values = vec![0.0_f64; schema.num_parameters()];
    index.unpack(frame, |range, _, plane| {
        for (value, byte) in values[range].iter_mut().zip(plane) {
            *value = f64::from_bits(value.to_bits() << 8 | u64::from(*byte));
        }
    })?;
    if let Some((tensor, index, got)) = first_not_finite(schema, &values) {
        return Err(DecodeError::NotFinite { tensor, index, got });
    }
    let word = |at: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&index.extra[at..at + 8]);
        bytes
    };
    let bound = f64::from_le_bytes(word(8));
    if !bound_fits(bound) {
        return Err(DecodeError::Bound { got: bound });
    }
    Ok(Sum {
        exponents: index.exponents,
        values,
        num_examples: u64::from_le_bytes(word(0)),
        bound,
    })
}

fn bound_fits(bound: f64) -> bool {
    bound.is_finite() && bound >= 0.0
}
