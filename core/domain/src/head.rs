//! The trainable head: linear softmax on standardised features.
//!
//! Vehicle, cloud and simulator share this arithmetic, so that a head means the same to whoever trains, evaluates or
//! publishes it. One flat slice of parameters in, numbers out; the same bits for the same input on every CPU, but for the
//! logarithm in a loss, which nothing is trained by.
//!
//! Left to others: where the features come from, the optimizer (the vehicle's), and checking what came from outside.
//! Lengths and labels are checked there; here a wrong length is our own mistake and panics.

use crate::kernels::{self, Isa};
use ndarray::{Array2, ArrayView2, ArrayViewMut2, Axis};

/// A linear layer with softmax cross-entropy.
///
/// Parameters are one flat slice: `weight`, shape `[features, classes]` row-major, then `bias`, shape `[classes]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinearHead {
    /// Length of one feature vector.
    pub features: usize,
    /// Number of classes; labels are `0..classes`.
    pub classes: usize,
}

/// How a head does on a set of examples.
#[derive(Clone, Debug, PartialEq)]
pub struct Evaluation {
    /// Examples behind the figures. With none of them every figure is 0.
    pub num_examples: u64,
    /// Share of examples whose most likely class is the true one, in `[0, 1]`.
    pub accuracy: f64,
    /// Mean over the classes that occur of the share of their examples that was recognised, in `[0, 1]`.
    pub macro_recall: f64,
    /// Mean cross-entropy in nats, without class weights.
    pub loss: f64,
    /// Examples by `[true class][predicted class]`, shape `[classes][classes]`.
    pub confusion: Vec<Vec<u64>>,
}

impl LinearHead {
    /// Length of the flat parameter slice.
    pub fn num_parameters(&self) -> usize {
        self.features * self.classes + self.classes
    }

    /// Scores before the softmax.
    ///
    /// - `parameters`: length [`Self::num_parameters`].
    /// - `x`: standardised features, shape `[n, features]`.
    /// - returns: shape `[n, classes]`.
    ///
    /// # Panics
    /// If a length differs from the head's.
    pub fn logits(&self, parameters: &[f32], x: ArrayView2<'_, f32>) -> Array2<f32> {
        assert_eq!(
            parameters.len(),
            self.num_parameters(),
            "parameters of another head"
        );
        assert_eq!(x.ncols(), self.features, "features of another length");
        let (weight, bias) = parameters.split_at(self.features * self.classes);
        let x = x.as_standard_layout();
        let x = x.as_slice().expect("standard layout");
        let mut logits = Array2::zeros((x.len() / self.features, self.classes));
        let out = logits.as_slice_mut().expect("freshly allocated");
        kernels::dense(Isa::best(), x, weight, bias, out);
        logits
    }

    /// Weighted cross-entropy and its gradient: `sum(w[y] * loss) / n`.
    ///
    /// - `parameters`: length [`Self::num_parameters`]; `x`: shape `[n, features]`; `labels`: length n.
    /// - `class_weights`: one factor a class; all 1 gives the plain mean.
    /// - `gradient`: overwritten, length [`Self::num_parameters`].
    /// - returns: the loss in nats. 0 with a zero gradient if n is 0; not finite if the parameters are not.
    ///
    /// # Panics
    /// If a length differs from the head's or a label is not below `classes`.
    pub fn loss_and_gradient(
        &self,
        parameters: &[f32],
        x: ArrayView2<'_, f32>,
        labels: &[u8],
        class_weights: &[f32],
        gradient: &mut [f32],
    ) -> f32 {
        assert_eq!(x.nrows(), labels.len(), "features and labels differ");
        assert_eq!(class_weights.len(), self.classes, "one weight a class");
        assert_eq!(
            gradient.len(),
            self.num_parameters(),
            "gradient of another head"
        );
        let mut residuals = self.logits(parameters, x);
        gradient.fill(0.0);
        if labels.is_empty() {
            return 0.0;
        }
        let share = 1.0 / as_f32(labels.len());
        let mut loss = 0.0_f64;
        for (mut row, &label) in residuals.rows_mut().into_iter().zip(labels) {
            let row = row.as_slice_mut().expect("row-major");
            let label = usize::from(label);
            let weight = class_weights[label];
            loss += f64::from(weight) * softmax(row, label);
            row[label] -= 1.0;
            for value in &mut *row {
                *value *= weight * share;
            }
        }
        let (weight_gradient, bias_gradient) = gradient.split_at_mut(self.features * self.classes);
        let x = x.as_standard_layout();
        let x = x.as_slice().expect("standard layout");
        let slopes = residuals.as_slice().expect("freshly allocated");
        kernels::dense_gradient(Isa::best(), x, slopes, self.classes, weight_gradient);
        for (to, column) in bias_gradient.iter_mut().zip(residuals.axis_iter(Axis(1))) {
            *to = column.sum();
        }
        to_f32(loss / as_f64(labels.len()))
    }

    /// Weighted cross-entropy alone: the same bits as [`Self::loss_and_gradient`] returns, at a third of the work.
    ///
    /// # Panics
    /// As [`Self::loss_and_gradient`].
    pub fn loss(
        &self,
        parameters: &[f32],
        x: ArrayView2<'_, f32>,
        labels: &[u8],
        class_weights: &[f32],
    ) -> f32 {
        assert_eq!(x.nrows(), labels.len(), "features and labels differ");
        assert_eq!(class_weights.len(), self.classes, "one weight a class");
        if labels.is_empty() {
            return 0.0;
        }
        let mut loss = 0.0_f64;
        for (mut row, &label) in (self.logits(parameters, x).rows_mut())
            .into_iter()
            .zip(labels)
        {
            let row = row.as_slice_mut().expect("row-major");
            let label = usize::from(label);
            loss += f64::from(class_weights[label]) * softmax(row, label);
        }
        to_f32(loss / as_f64(labels.len()))
    }

    /// Accuracy, recall, loss and confusion on a set of examples.
    ///
    /// - `parameters`: length [`Self::num_parameters`]; `x`: shape `[n, features]`; `labels`: length n.
    ///
    /// Of equal scores the smallest class wins; a NaN score never does.
    ///
    /// # Panics
    /// If a length differs from the head's or a label is not below `classes`.
    pub fn evaluate(
        &self,
        parameters: &[f32],
        x: ArrayView2<'_, f32>,
        labels: &[u8],
    ) -> Evaluation {
        assert_eq!(x.nrows(), labels.len(), "features and labels differ");
        let mut confusion = vec![vec![0_u64; self.classes]; self.classes];
        let mut loss = 0.0_f64;
        let mut logits = self.logits(parameters, x);
        for (mut row, &label) in logits.rows_mut().into_iter().zip(labels) {
            let row = row.as_slice_mut().expect("row-major");
            confusion[usize::from(label)][largest(row)] += 1;
            loss += softmax(row, usize::from(label));
        }
        let correct: u64 = (0..self.classes).map(|class| confusion[class][class]).sum();
        let recalls: Vec<f64> = confusion
            .iter()
            .enumerate()
            .map(|(class, row)| (row[class], row.iter().sum::<u64>()))
            .filter(|&(_, total)| total > 0)
            .map(|(hits, total)| ratio(hits, total))
            .collect();
        let num_examples = labels.len() as u64;
        Evaluation {
            num_examples,
            accuracy: ratio(correct, num_examples),
            macro_recall: recalls.iter().sum::<f64>() / as_f64(recalls.len().max(1)),
            loss: loss / as_f64(labels.len().max(1)),
            confusion,
        }
    }
}

/// Turns scores into probabilities in place and returns the cross-entropy of `label` in nats, also for huge scores.
fn softmax(row: &mut [f32], label: usize) -> f64 {
    let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let target = row[label] - max;
    kernels::exp_all(Isa::best(), row, max);
    let mut sum = 0.0_f32;
    for value in &*row {
        sum += *value;
    }
    for value in &mut *row {
        *value /= sum;
    }
    f64::from(sum).ln() - f64::from(target)
}

/// Index of the largest value, the first of equal ones.
fn largest(row: &[f32]) -> usize {
    let mut best = 0;
    for (index, value) in row.iter().enumerate() {
        if *value > row[best] || row[best].is_nan() {
            best = index;
        }
    }
    best
}

/// Mean and standard deviation of each feature, by which a job brings features to one scale.
///
/// Invariant: `mean` and `std` have the same length, all values are finite, and every `std` is above 0.
#[derive(Clone, Debug, PartialEq)]
pub struct Standardisation {
    mean: Vec<f32>,
    std: Vec<f32>,
}

/// Why a mean and standard deviation cannot be used.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum StandardisationError {
    /// `mean` and `std` must describe the same features.
    #[error("{means} means but {stds} standard deviations")]
    Length {
        /// Length of `mean`.
        means: usize,
        /// Length of `std`.
        stds: usize,
    },
    /// Nothing to take a mean of.
    #[error("no examples to standardise by")]
    NoExamples,
    /// NaN or infinite mean.
    #[error("mean of feature {feature} is {got}, expected a finite number")]
    Mean {
        /// The first bad feature.
        feature: usize,
        /// Its mean.
        got: f32,
    },
    /// NaN, infinite, zero or negative standard deviation.
    #[error("standard deviation of feature {feature} is {got}, expected a finite number above 0")]
    Std {
        /// The first bad feature.
        feature: usize,
        /// Its standard deviation.
        got: f32,
    },
}

impl Standardisation {
    /// Smallest standard deviation that [`Self::of`] gives: a feature that hardly moves is not blown up to noise.
    pub const STD_FLOOR: f32 = 1e-3;

    /// Takes a mean and standard deviation a feature, in the features' own unit.
    ///
    /// # Errors
    /// [`StandardisationError`] if the lengths differ, a value is not finite, or a standard deviation is not above 0.
    pub fn new(mean: Vec<f32>, std: Vec<f32>) -> Result<Self, StandardisationError> {
        if mean.len() != std.len() {
            return Err(StandardisationError::Length {
                means: mean.len(),
                stds: std.len(),
            });
        }
        if let Some((feature, &got)) = mean.iter().enumerate().find(|(_, m)| !m.is_finite()) {
            return Err(StandardisationError::Mean { feature, got });
        }
        let usable = |std: f32| std.is_finite() && std > 0.0;
        if let Some((feature, &got)) = std.iter().enumerate().find(|(_, s)| !usable(**s)) {
            return Err(StandardisationError::Std { feature, got });
        }
        Ok(Self { mean, std })
    }

    /// Mean and population standard deviation of the columns, sums in f64, with [`Self::STD_FLOOR`].
    ///
    /// - `features`: shape `[n, d]`.
    ///
    /// # Errors
    /// [`StandardisationError::NoExamples`] if n is 0; [`StandardisationError::Mean`] names a feature with NaN or inf.
    pub fn of(features: ArrayView2<'_, f32>) -> Result<Self, StandardisationError> {
        if features.nrows() == 0 {
            return Err(StandardisationError::NoExamples);
        }
        let count = as_f64(features.nrows());
        let (mut means, mut stds) = (Vec::new(), Vec::new());
        for column in features.axis_iter(Axis(1)) {
            let mean = column.iter().copied().map(f64::from).sum::<f64>() / count;
            let squares: f64 = column.iter().map(|&v| (f64::from(v) - mean).powi(2)).sum();
            means.push(to_f32(mean));
            stds.push(to_f32((squares / count).sqrt()).max(Self::STD_FLOOR));
        }
        Self::new(means, stds)
    }

    /// Leaves features as they are.
    pub fn identity(features: usize) -> Self {
        Self {
            mean: vec![0.0; features],
            std: vec![1.0; features],
        }
    }

    /// Mean of each feature, length d.
    pub fn mean(&self) -> &[f32] {
        &self.mean
    }

    /// Standard deviation of each feature, length d, all above 0.
    pub fn std(&self) -> &[f32] {
        &self.std
    }

    /// Replaces each value by `(value - mean) / std`.
    ///
    /// # Panics
    /// If `features` does not have one column a mean.
    pub fn apply(&self, mut features: ArrayViewMut2<'_, f32>) {
        assert_eq!(features.ncols(), self.mean.len(), "features differ");
        for mut row in features.rows_mut() {
            for ((value, mean), std) in row.iter_mut().zip(&self.mean).zip(&self.std) {
                *value = (*value - mean) / std;
            }
        }
    }
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        return 0.0;
    }
    part as f64 / whole as f64
}

fn as_f64(count: usize) -> f64 {
    count as f64
}

fn as_f32(count: usize) -> f32 {
    count as f32
}

#[allow(
    clippy::cast_possible_truncation,
    reason = "summed in f64, kept in f32"
)]
fn to_f32(value: f64) -> f32 {
    value as f32
}

#[cfg(test)]
mod tests {
    use ndarray::array;
    use proptest::prelude::*;

    use super::*;

    const HEAD: LinearHead = LinearHead {
        features: 2,
        classes: 3,
    };
    /// Rows of the weight: feature 0, feature 1; then the bias.
    const PARAMETERS: [f32; 9] = [1.0, 0.0, -1.0, 0.5, 2.0, 0.0, 0.1, 0.2, 0.3];

    fn close(got: f64, expected: f64, tolerance: f64) {
        assert!(
            (got - expected).abs() <= tolerance,
            "got {got}, expected {expected}"
        );
    }

    #[test]
    fn logits_by_hand() {
        let logits = HEAD.logits(&PARAMETERS, array![[1.0, 2.0], [0.0, -1.0]].view());
        for (got, expected) in logits.iter().zip([2.1, 4.2, -0.7, -0.4, -1.8, 0.3]) {
            close(f64::from(*got), expected, 1e-6);
        }
    }

    #[test]
    fn loss_of_a_zero_head_is_the_log_of_the_classes() {
        let mut gradient = [9.0; 9];
        let x = array![[1.0, 2.0], [3.0, -1.0]];
        let loss = HEAD.loss_and_gradient(&[0.0; 9], x.view(), &[0, 2], &[1.0; 3], &mut gradient);
        close(f64::from(loss), 3.0_f64.ln(), 1e-6);
        // Residuals: row 0 is (1/3 - 1, 1/3, 1/3) / 2, row 1 is (1/3, 1/3, 1/3 - 1) / 2.
        let expected = [
            1.0 / 6.0 * (-2.0 + 3.0),
            1.0 / 6.0 * (1.0 + 3.0),
            1.0 / 6.0 * (1.0 - 6.0),
            1.0 / 6.0 * (-4.0 - 1.0),
            1.0 / 6.0 * (2.0 - 1.0),
            1.0 / 6.0 * (2.0 + 2.0),
            -1.0 / 6.0,
            2.0 / 6.0,
            -1.0 / 6.0,
        ];
        for (got, expected) in gradient.iter().zip(expected) {
            close(f64::from(*got), expected, 1e-6);
        }
    }

    #[test]
    fn class_weights_scale_each_example() {
        let x = array![[1.0, 2.0], [3.0, -1.0]];
        let mut gradient = [0.0; 9];
        let both = HEAD.loss_and_gradient(
            &PARAMETERS,
            x.view(),
            &[0, 2],
            &[4.0, 1.0, 0.5],
            &mut gradient,
        );
        let one = |row: usize, label: u8| {
            let mut unused = [0.0; 9];
            let x = x.slice(ndarray::s![row..=row, ..]);
            HEAD.loss_and_gradient(&PARAMETERS, x, &[label], &[1.0; 3], &mut unused)
        };
        close(
            f64::from(both),
            f64::from(4.0 * one(0, 0) + 0.5 * one(1, 2)) / 2.0,
            1e-5,
        );
    }

    #[test]
    fn no_examples_are_no_loss() {
        let mut gradient = [9.0; 9];
        let x = Array2::zeros((0, 2));
        let loss = HEAD.loss_and_gradient(&PARAMETERS, x.view(), &[], &[1.0; 3], &mut gradient);
        assert!(loss.abs() < f32::EPSILON && gradient.iter().all(|g| g.abs() < f32::EPSILON));
        let evaluation = HEAD.evaluate(&PARAMETERS, x.view(), &[]);
        assert_eq!(evaluation.num_examples, 0);
        close(evaluation.accuracy + evaluation.loss, 0.0, 0.0);
    }

    #[test]
    fn huge_logits_stay_finite() {
        let mut row = [1e30, -1e30, 0.0];
        let loss = softmax(&mut row, 0);
        close(loss, 0.0, 0.0);
        let mut row = [1e30, -1e30, 0.0];
        assert!(softmax(&mut row, 1) > 1e30);
        assert!(row.iter().all(|p| p.is_finite()));
    }

    #[test]
    fn evaluation_by_hand() {
        // Predicted: class 1 for (1, 2), class 2 for (0, -1), class 0 for (5, 0).
        let x = array![[1.0, 2.0], [0.0, -1.0], [5.0, 0.0], [5.0, 0.0]];
        let evaluation = HEAD.evaluate(&PARAMETERS, x.view(), &[1, 0, 0, 0]);
        assert_eq!(
            evaluation.confusion,
            vec![vec![2, 0, 1], vec![0, 1, 0], vec![0, 0, 0]]
        );
        close(evaluation.accuracy, 0.75, 1e-12);
        // Class 2 does not occur, so it does not count.
        close(
            evaluation.macro_recall,
            f64::midpoint(2.0 / 3.0, 1.0),
            1e-12,
        );
        assert_eq!(evaluation.num_examples, 4);
    }

    #[test]
    fn nan_never_wins() {
        assert_eq!(largest(&[f32::NAN, 1.0, 2.0]), 2);
        assert_eq!(largest(&[3.0, f32::NAN, 2.0]), 0);
        assert_eq!(largest(&[1.0, 1.0]), 0);
    }

    #[test]
    fn standardised_features_have_mean_0_and_std_1() {
        let mut x = array![[1.0, 7.0], [3.0, 7.0], [5.0, 7.0]];
        let by = Standardisation::of(x.view()).unwrap();
        close(f64::from(by.mean()[0]), 3.0, 1e-6);
        close(f64::from(by.std()[0]), (8.0_f64 / 3.0).sqrt(), 1e-6);
        close(f64::from(by.std()[1]), 1e-3, 1e-9);
        by.apply(x.view_mut());
        close(f64::from(x.column(0).sum()), 0.0, 1e-6);
        close(f64::from(x.column(1).sum()), 0.0, 0.0);
    }

    #[test]
    fn unusable_standardisations_are_refused() {
        let check = |mean: &[f32], std: &[f32], expected: &str| {
            let error = Standardisation::new(mean.to_vec(), std.to_vec()).unwrap_err();
            assert_eq!(error.to_string(), expected);
        };
        check(&[0.0], &[], "1 means but 0 standard deviations");
        check(
            &[0.0, f32::INFINITY],
            &[1.0, 1.0],
            "mean of feature 1 is inf, expected a finite number",
        );
        check(
            &[0.0],
            &[0.0],
            "standard deviation of feature 0 is 0, expected a finite number above 0",
        );
        check(
            &[0.0],
            &[f32::NAN],
            "standard deviation of feature 0 is NaN, expected a finite number above 0",
        );
        let none = Standardisation::of(Array2::zeros((0, 2)).view());
        assert_eq!(none, Err(StandardisationError::NoExamples));
        assert!(Standardisation::of(array![[f32::NAN]].view()).is_err());
    }

    proptest! {
        /// The gradient is the slope of the loss.
        #[test]
        fn gradient_equals_finite_differences(
            parameters in prop::collection::vec(-1.0_f32..1.0, 9),
            x in prop::collection::vec(-2.0_f32..2.0, 8),
            labels in prop::collection::vec(0_u8..3, 4),
            weights in prop::collection::vec(0.1_f32..3.0, 3),
            index in 0_usize..9,
        ) {
            let x = Array2::from_shape_vec((4, 2), x).unwrap();
            let mut gradient = vec![0.0; 9];
            HEAD.loss_and_gradient(&parameters, x.view(), &labels, &weights, &mut gradient);
            let step = 1e-2_f32;
            let at = |offset: f32| {
                let mut moved = parameters.clone();
                moved[index] += offset;
                HEAD.loss_and_gradient(&moved, x.view(), &labels, &weights, &mut [0.0; 9])
            };
            let slope = (at(step) - at(-step)) / (2.0 * step);
            prop_assert!((slope - gradient[index]).abs() < 2e-3, "{slope} vs {}", gradient[index]);
        }

        /// Equal features and labels in another order give the same figures.
        #[test]
        fn evaluation_does_not_depend_on_order(
            x in prop::collection::vec(-2.0_f32..2.0, 8),
            labels in prop::collection::vec(0_u8..3, 4),
        ) {
            let x = Array2::from_shape_vec((4, 2), x).unwrap();
            let reversed = x.slice(ndarray::s![..;-1, ..]);
            let mut back = labels.clone();
            back.reverse();
            let forth = HEAD.evaluate(&PARAMETERS, x.view(), &labels);
            let back = HEAD.evaluate(&PARAMETERS, reversed, &back);
            prop_assert_eq!(&forth.confusion, &back.confusion);
            prop_assert!((forth.loss - back.loss).abs() < 1e-9);
        }
    }
}
