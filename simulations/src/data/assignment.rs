//! Who has which rows of a data set. No vehicle holds a copy: its rows lie together in the shared set.

use std::ops::Range;

use super::DataSet;
use crate::engine::rng::mix;

/// Who has which rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Assignment {
    /// The set was reordered so that each vehicle's rows lie together.
    Dealt {
        /// Where each vehicle's rows begin, and the end of the last one's.
        offsets: Vec<u32>,
    },
    /// For fleets larger than the data: each vehicle has a window of a shuffled set, which others may have too.
    Windows {
        /// Where windows begin is drawn from it.
        seed: u64,
        /// Rows of a vehicle.
        rows: u32,
        /// Rows of the set, at least as many.
        examples: u32,
    },
}

impl Assignment {
    /// The rows of a vehicle.
    ///
    /// # Panics
    /// If there is no such vehicle.
    pub fn range(&self, vehicle: u32) -> Range<usize> {
        match self {
            Self::Dealt { offsets } => {
                let vehicle = vehicle as usize;
                offsets[vehicle] as usize..offsets[vehicle + 1] as usize
            }
            Self::Windows {
                seed,
                rows,
                examples,
            } => {
                let drawn = mix(seed ^ mix(u64::from(vehicle)));
                let start = drawn % u64::from(examples - rows + 1);
                #[expect(clippy::cast_possible_truncation, reason = "below a u32")]
                let start = start as usize;
                start..start + *rows as usize
            }
        }
    }

    /// How many rows a vehicle has.
    pub fn rows(&self, vehicle: u32) -> u32 {
        u32::try_from(self.range(vehicle).len()).unwrap_or(u32::MAX)
    }
}

/// Deals a set out: each part is one vehicle's rows. The set comes back in the order of the vehicles.
///
/// # Panics
/// If a part names a row that is not there.
pub fn deal(set: &DataSet, parts: &[Vec<usize>]) -> (DataSet, Assignment) {
    let order: Vec<usize> = parts.iter().flatten().copied().collect();
    let mut offsets = vec![0];
    let mut end = 0;
    for part in parts {
        end += u32::try_from(part.len()).unwrap_or(u32::MAX);
        offsets.push(end);
    }
    (set.select(&order), Assignment::Dealt { offsets })
}

/// Windows of so many rows, at most all there are.
pub fn windows(set: &DataSet, rows: u32, seed: u64) -> Assignment {
    let examples = u32::try_from(set.labels.len()).unwrap_or(u32::MAX);
    Assignment::Windows {
        seed,
        rows: rows.min(examples),
        examples,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ndarray::Array2;

    fn set(n: usize) -> DataSet {
        DataSet {
            features: Array2::from_shape_fn((n, 2), |(row, column)| (2 * row + column) as f32),
            labels: (0..n).map(|row| u8::try_from(row % 3).unwrap()).collect(),
            classes: ["a", "b", "c"].map(str::to_owned).to_vec(),
        }
    }

    #[test]
    fn dealt_rows_lie_together_and_stay_with_their_labels() {
        let (dealt, shares) = deal(&set(6), &[vec![4, 1], vec![], vec![0, 2, 3, 5]]);
        assert_eq!(
            [0, 1, 2].map(|vehicle| shares.range(vehicle)),
            [0..2, 2..2, 2..6]
        );
        assert_eq!(dealt.labels, [1, 1, 0, 2, 0, 2]);
        assert_eq!(dealt.features.row(0).to_vec(), [8.0, 9.0]);
        assert_eq!(shares.rows(2), 4);
    }

    #[test]
    fn windows_fit_and_differ() {
        let shares = windows(&set(1000), 64, 7);
        let starts: std::collections::BTreeSet<usize> = (0..1000)
            .map(|vehicle| {
                let range = shares.range(vehicle);
                assert!(range.len() == 64 && range.end <= 1000);
                range.start
            })
            .collect();
        assert!(starts.len() > 500, "{}", starts.len());
        assert_eq!(windows(&set(10), 64, 7).range(3), 0..10);
    }
}
