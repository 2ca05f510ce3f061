//! Class weights: what makes a fleet that sees few yellow lights learn them all the same.

/// How a job makes up for rare classes, by the counts of some labels.
///
/// The cloud works the weights out once, from its held-back pictures, and every vehicle uses the same ones: weights from
/// a vehicle's own counts would give each vehicle another loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClassWeights {
    /// Every example weighs the same.
    None,
    /// `1 / sqrt(examples of the class)`.
    InverseRoot,
    /// `1 / examples of the class`: every class weighs the same.
    Inverse,
}

impl ClassWeights {
    /// One weight a class, from labels below `classes`; their mean over the labels is 1, so that the learning rate keeps
    /// its meaning. A class without a label weighs as much as the rarest one that has some.
    pub fn of(self, labels: &[u8], classes: usize) -> Vec<f32> {
        let mut counts = vec![0_u32; classes];
        for &label in labels {
            counts[usize::from(label)] += 1;
        }
        let fewest = counts
            .iter()
            .copied()
            .filter(|count| *count > 0)
            .min()
            .unwrap_or(1);
        let raw: Vec<f64> = counts
            .iter()
            .map(|&count| f64::from(if count == 0 { fewest } else { count }))
            .map(|count| match self {
                Self::None => 1.0,
                Self::InverseRoot => 1.0 / count.sqrt(),
                Self::Inverse => 1.0 / count,
            })
            .collect();
        let total: f64 = counts.iter().map(|&count| f64::from(count)).sum();
        let weighted = raw.iter().zip(&counts).map(|(w, &n)| w * f64::from(n));
        let weighted: f64 = weighted.sum();
        let scale = if weighted > 0.0 {
            total / weighted
        } else {
            1.0
        };
        #[expect(clippy::cast_possible_truncation, reason = "factors around 1")]
        raw.into_iter()
            .map(|weight| (weight * scale) as f32)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn weights_by_hand() {
        let check = |rule: ClassWeights, expected: [f32; 3]| {
            // Four of class 0, one of class 2.
            let got = rule.of(&[0, 0, 2, 0, 0], 3);
            for (got, expected) in got.iter().zip(expected) {
                assert!((got - expected).abs() < 1e-6, "{rule:?}: {got} {expected}");
            }
        };
        check(ClassWeights::None, [1.0, 1.0, 1.0]);
        // 1/2 and 1, times 5 / (4/2 + 1).
        check(ClassWeights::InverseRoot, [5.0 / 6.0, 5.0 / 3.0, 5.0 / 3.0]);
        // 1/4 and 1, times 5 / 2.
        check(ClassWeights::Inverse, [0.625, 2.5, 2.5]);
    }

    proptest! {
        #[test]
        fn the_mean_over_the_examples_is_1(
            labels in prop::collection::vec(0_u8..5, 1..60),
            rule in prop::sample::select(vec![
                ClassWeights::None, ClassWeights::InverseRoot, ClassWeights::Inverse,
            ]),
        ) {
            let weights = rule.of(&labels, 5);
            let sum: f32 = labels.iter().map(|&label| weights[usize::from(label)]).sum();
            let count = f32::from(u16::try_from(labels.len()).unwrap());
            prop_assert!((sum / count - 1.0).abs() < 1e-5);
        }
    }
}
