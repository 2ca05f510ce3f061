//! FedAvg as a sum that does not depend on order, threads, tiers or CPU.
//!
//! Every value is a half-precision number, so an integer multiple of the quantum 2^-24 in units of its tensor's scale
//! `2^e`, and every weight is an integer. While the running bound `sum(n_k * max|v_k|)` stays below 2^53 quanta, each
//! product and each sum is an integer of quanta that f64 holds exactly, so addition is associative. Past the bound the
//! sum is still right to about 1e-15 and says so.
//!
//! # Source
//! McMahan et al. 2017 (FedAvg); Liu et al. 2020 (hierarchical FedAvg). The argument needs nothing but
//! integers below 2^53.

use super::{AggregateError, BLOCK};
use crate::kernels::{self, Isa, Planes};
use half::f16;

/// Quanta (of 2^-24) up to which f64 sums are exact.
pub const EXACT_QUANTA: f64 = 9_007_199_254_740_992.0;
/// Quanta in one unit of a scale.
pub const QUANTA_PER_UNIT: f64 = 16_777_216.0;

/// `sum(n_k * v_k)` and `sum(n_k)`: a partial aggregate. Sums of sums are the sum.
#[derive(Clone, Debug, PartialEq)]
pub struct WeightedSum {
    exponents: Vec<i8>,
    sum: Vec<f64>,
    num_examples: u64,
    bound: f64,
}

impl WeightedSum {
    /// An empty sum of `num_parameters` values whose tensors have the given scale exponents.
    pub fn new(num_parameters: usize, exponents: Vec<i8>) -> Self {
        Self {
            exponents,
            sum: vec![0.0; num_parameters],
            num_examples: 0,
            bound: 0.0,
        }
    }

    /// A sum that came over a wire or from a file. `bound` is in units of the scale, as [`WeightedSum::bound`] gave it.
    ///
    /// # Errors
    /// [`AggregateError::NotFinite`] if a value or the bound (index = number of values) is not a finite number.
    pub fn from_parts(
        exponents: Vec<i8>,
        sum: Vec<f64>,
        num_examples: u64,
        bound: f64,
    ) -> Result<Self, AggregateError> {
        if let Some(at) = sum
            .iter()
            .chain([&bound])
            .position(|value| !value.is_finite())
        {
            return Err(AggregateError::NotFinite { at });
        }
        Ok(Self {
            exponents,
            sum,
            num_examples,
            bound: bound.abs(),
        })
    }

    /// A sum of finite values whose magnitudes are within `bound`.
    pub(super) fn within(
        exponents: Vec<i8>,
        sum: Vec<f64>,
        num_examples: u64,
        bound: f64,
    ) -> Result<Self, AggregateError> {
        if !bound.is_finite() {
            return Err(AggregateError::NotFinite { at: sum.len() });
        }
        Ok(Self {
            exponents,
            sum,
            num_examples,
            bound,
        })
    }

    /// Adds one update: `values` in units of the scales, weight `num_examples`.
    pub fn add(
        &mut self,
        num_examples: u64,
        exponents: &[i8],
        values: &[f16],
    ) -> Result<(), AggregateError> {
        self.apply(1.0, num_examples, exponents, values)
    }

    /// Takes one update out again; exact while the sum is.
    pub fn remove(
        &mut self,
        num_examples: u64,
        exponents: &[i8],
        values: &[f16],
    ) -> Result<(), AggregateError> {
        self.apply(-1.0, num_examples, exponents, values)
    }

    fn apply(
        &mut self,
        sign: f64,
        num_examples: u64,
        exponents: &[i8],
        values: &[f16],
    ) -> Result<(), AggregateError> {
        self.check(exponents, values.len())?;
        let largest = largest(values)?;
        let total = if sign > 0.0 {
            self.num_examples.checked_add(num_examples)
        } else {
            self.num_examples.checked_sub(num_examples)
        };
        self.num_examples = total.ok_or(AggregateError::Examples)?;
        self.bound += num_examples as f64 * largest;
        let weight = [sign * num_examples as f64];
        let (mut high, mut low) = ([0; BLOCK], [0; BLOCK]);
        for (sum, values) in self.sum.chunks_mut(BLOCK).zip(values.chunks(BLOCK)) {
            let (high, low) = (&mut high[..values.len()], &mut low[..values.len()]);
            kernels::split(values, high, low);
            kernels::add_weighted(Isa::best(), sum, &weight, &[Planes { high, low }]);
        }
        Ok(())
    }

    /// Adds another partial aggregate.
    pub fn merge(&mut self, other: &Self) -> Result<(), AggregateError> {
        self.check(&other.exponents, other.sum.len())?;
        let total = self.num_examples.checked_add(other.num_examples);
        self.num_examples = total.ok_or(AggregateError::Examples)?;
        self.bound += other.bound;
        for (sum, value) in self.sum.iter_mut().zip(&other.sum) {
            *sum += value;
        }
        Ok(())
    }

    fn check(&self, exponents: &[i8], len: usize) -> Result<(), AggregateError> {
        if len != self.sum.len() {
            return Err(AggregateError::Length {
                got: len,
                expected: self.sum.len(),
            });
        }
        if exponents != self.exponents {
            return Err(AggregateError::Scale {
                got: exponents.to_vec(),
                expected: self.exponents.clone(),
            });
        }
        Ok(())
    }

    /// The weighted mean delta in parameter units, shape `[d]`; `None` without examples.
    ///
    /// `ranges` are the tensors' ranges, one for each exponent. Division and scaling are the only roundings.
    pub fn mean(
        &self,
        ranges: impl IntoIterator<Item = std::ops::Range<usize>>,
    ) -> Option<Vec<f64>> {
        if self.num_examples == 0 {
            return None;
        }
        let mut mean = self.sum.clone();
        for (range, exponent) in ranges.into_iter().zip(&self.exponents) {
            let scale = f64::from(*exponent).exp2();
            for value in &mut mean[range] {
                *value = *value / self.num_examples as f64 * scale;
            }
        }
        Some(mean)
    }

    /// Scale exponents, one a tensor.
    pub fn exponents(&self) -> &[i8] {
        &self.exponents
    }

    /// The sums in units of the scales, shape `[d]`.
    pub fn values(&self) -> &[f64] {
        &self.sum
    }

    /// Examples behind the sum.
    pub fn num_examples(&self) -> u64 {
        self.num_examples
    }

    /// `sum(n_k * max|v_k|)` in units of the scales; never falls.
    pub fn bound(&self) -> f64 {
        self.bound
    }

    /// The bound holds, so the sum is exact and independent of order.
    pub fn is_exact(&self) -> bool {
        self.bound * QUANTA_PER_UNIT < EXACT_QUANTA
    }
}

/// The largest magnitude.
fn largest(values: &[f16]) -> Result<f64, AggregateError> {
    let mut largest = 0;
    for (at, value) in values.iter().enumerate() {
        if !value.is_finite() {
            return Err(AggregateError::NotFinite { at });
        }
        largest = largest.max(value.to_bits() & 0x7fff);
    }
    Ok(f16::from_bits(largest).to_f64())
}

/// The scale exponent that brings values up to `max_abs` to at most 1; 0 where nothing is known.
///
/// Kept within -100 to 15, so that the quantum `2^(e-24)` is a normal f32 number and no scaled model overflows.
#[expect(
    clippy::cast_possible_truncation,
    reason = "clamped to the range just before"
)]
pub fn exponent_for(max_abs: f64) -> i8 {
    if !max_abs.is_finite() || max_abs <= 0.0 {
        return 0;
    }
    let mut exponent = max_abs.log2().ceil().clamp(-100.0, 15.0) as i8;
    if exponent < 15 && max_abs > f64::from(exponent).exp2() {
        exponent += 1; // log2 may round down to a whole number
    }
    exponent
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn half_values(len: usize) -> impl Strategy<Value = Vec<f16>> {
        proptest::collection::vec(any::<u16>(), len).prop_map(|bits| {
            let finite = |b: u16| if b & 0x7c00 == 0x7c00 { b & 0x83ff } else { b };
            // Within the headroom: at most 2 in units of the scale, as a round's exponents arrange it.
            bits.into_iter()
                .map(|b| f16::from_bits(finite(b)))
                .map(|v| if v.to_f32().abs() > 2.0 { f16::ONE } else { v })
                .collect()
        })
    }

    fn sum_of(updates: &[(u64, Vec<f16>)]) -> WeightedSum {
        let mut sum = WeightedSum::new(9, vec![-3, 2]);
        for (weight, values) in updates {
            sum.add(*weight, &[-3, 2], values).expect("finite");
        }
        sum
    }

    fn bits(sum: &WeightedSum) -> Vec<u64> {
        sum.mean([0..5, 5..9])
            .unwrap_or_default()
            .iter()
            .map(|v| v.to_bits())
            .collect()
    }

    proptest! {
        /// The three-tier result is flat FedAvg in every bit: any split into roadside units, any order at each of
        /// them, any order at the cloud.
        #[test]
        fn tree_is_flat(
            updates in proptest::collection::vec((1u64..100_000, half_values(9), 0usize..4), 1..40),
            shuffle in any::<u64>(),
        ) {
            use rand::seq::SliceRandom;
            use rand_chacha::rand_core::SeedableRng;
            let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(shuffle);
            let flat: Vec<_> = updates.iter().map(|(n, v, _)| (*n, v.clone())).collect();
            let flat = sum_of(&flat);
            prop_assert!(flat.is_exact());
            let mut shuffled = updates;
            shuffled.shuffle(&mut rng);
            let mut units: Vec<WeightedSum> = (0..4)
                .map(|unit| {
                    let own: Vec<_> =
                        shuffled.iter().filter(|(_, _, at)| *at == unit).map(|(n, v, _)| (*n, v.clone())).collect();
                    sum_of(&own)
                })
                .collect();
            units.shuffle(&mut rng);
            let mut cloud = WeightedSum::new(9, vec![-3, 2]);
            for unit in &units {
                cloud.merge(unit).expect("same scales");
            }
            prop_assert!(cloud.is_exact());
            prop_assert_eq!(bits(&cloud), bits(&flat));
            prop_assert_eq!(cloud.num_examples(), flat.num_examples());
        }

        /// A contribution taken out again leaves the sum as if it had never been there.
        #[test]
        fn taking_out_is_exact(
            kept in proptest::collection::vec((1u64..100_000, half_values(9)), 1..10),
            out in (1u64..100_000, half_values(9)),
        ) {
            let without = sum_of(&kept);
            let mut with = without.clone();
            with.add(out.0, &[-3, 2], &out.1).expect("finite");
            with.remove(out.0, &[-3, 2], &out.1).expect("finite");
            prop_assert_eq!(bits(&with), bits(&without));
        }

        /// The mean lies within the values' range and near a plain f64 reference.
        #[test]
        fn mean_is_the_weighted_mean(updates in proptest::collection::vec((1u64..1000, half_values(9)), 1..20)) {
            let mean = sum_of(&updates).mean([0..5, 5..9]).expect("examples");
            let total: u64 = updates.iter().map(|(n, _)| n).sum();
            for (i, got) in mean.iter().enumerate() {
                let scale = if i < 5 { 0.125 } else { 4.0 };
                let expected: f64 = updates.iter().map(|(n, v)| *n as f64 / total as f64 * v[i].to_f64() * scale).sum();
                prop_assert!((got - expected).abs() <= 1e-12 * (1.0 + expected.abs()));
            }
        }
    }

    #[test]
    fn past_the_bound_it_says_so() {
        let mut sum = WeightedSum::new(1, vec![0]);
        sum.add(1 << 28, &[0], &[f16::ONE]).expect("finite");
        assert!(sum.is_exact());
        sum.add(1 << 28, &[0], &[f16::ONE]).expect("finite");
        assert!(!sum.is_exact(), "2^29 units are 2^53 quanta");
    }

    #[test]
    fn what_does_not_fit_is_refused_and_changes_nothing() {
        let mut sum = WeightedSum::new(2, vec![0]);
        sum.add(3, &[0], &[f16::ONE; 2]).expect("fits");
        let before = sum.clone();
        assert_eq!(
            sum.add(1, &[0], &[f16::ONE; 3]),
            Err(AggregateError::Length {
                got: 3,
                expected: 2
            })
        );
        assert_eq!(
            sum.add(1, &[0], &[f16::ONE, f16::NAN]),
            Err(AggregateError::NotFinite { at: 1 })
        );
        assert_eq!(
            sum.add(1, &[0], &[f16::NEG_INFINITY, f16::ONE]),
            Err(AggregateError::NotFinite { at: 0 })
        );
        assert!(matches!(
            sum.add(1, &[1], &[f16::ONE; 2]),
            Err(AggregateError::Scale { .. })
        ));
        assert_eq!(
            sum.add(u64::MAX, &[0], &[f16::ONE; 2]),
            Err(AggregateError::Examples)
        );
        assert_eq!(sum, before);
        assert_eq!(WeightedSum::new(2, vec![0]).mean([0..2]), None);
    }

    #[test]
    fn exponents_bring_the_largest_value_to_one() {
        for (max_abs, expected) in [
            (1.0, 0),
            (1.01, 1),
            (0.5, -1),
            (0.3, -1),
            (0.0, 0),
            (f64::NAN, 0),
            (1e9, 15),
        ] {
            assert_eq!(exponent_for(max_abs), expected, "{max_abs}");
        }
    }
}
