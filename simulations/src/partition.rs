//! Who has which pictures: a split of one labelled set over a fleet, skewed as fleets are.

use rand::Rng;
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, Gamma};
use std::fmt;
use std::str::FromStr;

/// How the pictures of each class are spread over the vehicles.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Partition {
    /// Evenly, at random.
    Iid,
    /// Each class by shares drawn from a symmetric Dirichlet distribution; the smaller `alpha`, the more skewed.
    Dirichlet {
        /// Concentration, above 0.
        alpha: f64,
    },
    /// Each vehicle has pictures of so many classes only, the classes dealt out in turn.
    Classes {
        /// Classes of a vehicle, at least 1; all there are, if it is more.
        each: usize,
    },
}

/// A partition that cannot be read or made.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PartitionError {
    /// Not one of the known forms.
    #[error(
        "partition {got:?}: use `iid`, `classes:N` or `dirichlet:ALPHA` with ALPHA above 0, such as dirichlet:0.3"
    )]
    Unknown {
        /// The text given.
        got: String,
    },
    /// No draw gave every vehicle enough pictures.
    #[error(
        "no split gives each of {vehicles} vehicles {least} of {pictures} pictures; use fewer vehicles or a larger alpha"
    )]
    TooSkewed {
        /// Vehicles to serve.
        vehicles: usize,
        /// Pictures each must have.
        least: usize,
        /// Pictures there are.
        pictures: usize,
    },
}

impl FromStr for Partition {
    type Err = PartitionError;

    fn from_str(text: &str) -> Result<Self, PartitionError> {
        if text == "iid" {
            return Ok(Self::Iid);
        }
        if let Some(each) = text
            .strip_prefix("classes:")
            .and_then(|each| each.parse().ok())
            .filter(|each| *each > 0)
        {
            return Ok(Self::Classes { each });
        }
        text.strip_prefix("dirichlet:")
            .and_then(|alpha| alpha.parse().ok())
            .filter(|alpha: &f64| *alpha > 0.0 && alpha.is_finite())
            .map(|alpha| Self::Dirichlet { alpha })
            .ok_or_else(|| PartitionError::Unknown {
                got: text.to_owned(),
            })
    }
}

impl fmt::Display for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Iid => f.write_str("iid"),
            Self::Dirichlet { alpha } => write!(f, "dirichlet:{alpha}"),
            Self::Classes { each } => write!(f, "classes:{each}"),
        }
    }
}

/// Fewest pictures that a vehicle gets.
pub const LEAST_PICTURES: usize = 8;

/// Spreads pictures over vehicles.
///
/// - `labels`: class of each picture, below `classes`.
/// - returns: for each vehicle the indexes of its pictures, ascending; together each index once.
///
/// Draws again until every vehicle has [`LEAST_PICTURES`], as is usual for Dirichlet splits of small sets.
pub fn split(
    labels: &[u8],
    classes: usize,
    vehicles: usize,
    partition: Partition,
    seed: u64,
) -> Result<Vec<Vec<usize>>, PartitionError> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    for _ in 0..1000 {
        let mut parts = vec![Vec::new(); vehicles];
        for class in 0..classes {
            let mut members: Vec<usize> = (0..labels.len())
                .filter(|i| usize::from(labels[*i]) == class)
                .collect();
            members.shuffle(&mut rng);
            let weights = weights(class, classes, vehicles, partition, &mut rng);
            let mut start = 0;
            for (part, end) in parts.iter_mut().zip(ends(members.len(), &weights)) {
                part.extend_from_slice(&members[start..end]);
                start = end;
            }
        }
        if parts.iter().all(|part| part.len() >= LEAST_PICTURES) {
            for part in &mut parts {
                part.sort_unstable();
            }
            return Ok(parts);
        }
    }
    Err(PartitionError::TooSkewed {
        vehicles,
        least: LEAST_PICTURES,
        pictures: labels.len(),
    })
}

/// How much of a class each vehicle gets, relative to the others.
fn weights(
    class: usize,
    classes: usize,
    vehicles: usize,
    partition: Partition,
    rng: &mut impl Rng,
) -> Vec<f64> {
    match partition {
        Partition::Dirichlet { alpha } => Gamma::new(alpha, 1.0).map_or_else(
            |_| vec![1.0; vehicles],
            |gamma| gamma.sample_iter(rng).take(vehicles).collect(),
        ),
        Partition::Iid => vec![1.0; vehicles],
        Partition::Classes { each } => {
            // Vehicle v has the classes v, v + 1, ..., v + each - 1, counted round.
            let has = |v: usize| (class + classes - v % classes) % classes < each;
            (0..vehicles).map(|v| f64::from(u8::from(has(v)))).collect()
        }
    }
}

/// Where each vehicle's share of `count` pictures ends; the last one is `count`.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a share of a small count"
)]
fn ends(count: usize, weights: &[f64]) -> Vec<usize> {
    let total: f64 = weights.iter().sum::<f64>().max(f64::MIN_POSITIVE);
    let mut sum = 0.0;
    let mut ends: Vec<usize> = weights
        .iter()
        .map(|weight| {
            sum += weight;
            ((sum / total * count as f64).round() as usize).min(count)
        })
        .collect();
    // The last one that has any of it takes what rounding left.
    let taker = weights.iter().rposition(|weight| *weight > 0.0);
    for end in ends.iter_mut().skip(taker.unwrap_or(0)) {
        *end = count;
    }
    ends
}

/// Sets a share of each class aside: the cloud's held-back pictures. Returns (held back, left), ascending.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a share of a small count"
)]
pub fn hold_back(labels: &[u8], classes: usize, share: f64, seed: u64) -> (Vec<usize>, Vec<usize>) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut held = Vec::new();
    for class in 0..classes {
        let mut members: Vec<usize> = (0..labels.len())
            .filter(|i| usize::from(labels[*i]) == class)
            .collect();
        members.shuffle(&mut rng);
        held.extend(
            members
                .iter()
                .take((members.len() as f64 * share).round() as usize),
        );
    }
    held.sort_unstable();
    let left = (0..labels.len())
        .filter(|i| held.binary_search(i).is_err())
        .collect();
    (held, left)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn labels(counts: &[usize]) -> Vec<u8> {
        counts
            .iter()
            .zip(0u8..)
            .flat_map(|(n, class)| std::iter::repeat_n(class, *n))
            .collect()
    }

    #[test]
    fn texts_are_read_and_written() {
        for text in ["iid", "dirichlet:0.3", "classes:1"] {
            assert_eq!(
                text.parse::<Partition>().map(|p| p.to_string()),
                Ok(text.to_owned())
            );
        }
        for text in [
            "",
            "dirichlet",
            "dirichlet:0",
            "dirichlet:-1",
            "dirichlet:nan",
            "classes:0",
            "classes:-1",
            "shards:2",
        ] {
            assert!(text.parse::<Partition>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_small_alpha_skews() {
        let labels = labels(&[700, 400]);
        let share = |parts: &[Vec<usize>]| {
            let of = |part: &Vec<usize>| {
                part.iter().filter(|i| labels[**i] == 0).count() as f64 / part.len() as f64
            };
            parts
                .iter()
                .map(|part| (of(part) - 7.0 / 11.0).abs())
                .sum::<f64>()
                / parts.len() as f64
        };
        let skewed =
            split(&labels, 2, 12, Partition::Dirichlet { alpha: 0.3 }, 1).expect("a split");
        let even = split(&labels, 2, 12, Partition::Iid, 1).expect("a split");
        assert!(share(&skewed) > 0.2, "{}", share(&skewed));
        assert!(share(&even) < 0.02, "{}", share(&even));
    }

    #[test]
    fn classes_are_dealt_out_in_turn() {
        let labels = labels(&[120, 90, 60]);
        let check = |each: usize| {
            let parts = split(&labels, 3, 7, Partition::Classes { each }, 1).expect("a split");
            for (vehicle, part) in parts.iter().enumerate() {
                let mut seen: Vec<usize> = part.iter().map(|i| labels[*i].into()).collect();
                seen.sort_unstable();
                seen.dedup();
                let mut expected: Vec<_> = (vehicle..vehicle + each).map(|c| c % 3).collect();
                expected.sort_unstable();
                assert_eq!(seen, expected, "vehicle {vehicle}");
            }
            assert_eq!(parts.concat().len(), 270);
        };
        check(1);
        check(2);
        check(3);
    }

    #[test]
    fn impossible_splits_are_refused() {
        let few = labels(&[10, 10]);
        assert!(matches!(
            split(&few, 2, 12, Partition::Iid, 1),
            Err(PartitionError::TooSkewed { .. })
        ));
    }

    proptest! {
        #[test]
        fn each_picture_goes_to_one_vehicle(a in 100usize..300, b in 20usize..100, vehicles in 1usize..9, seed: u64) {
            let labels = labels(&[a, b]);
            let parts = split(&labels, 2, vehicles, Partition::Dirichlet { alpha: 0.5 }, seed).expect("a split");
            let mut all: Vec<usize> = parts.concat();
            all.sort_unstable();
            prop_assert_eq!(all, (0..a + b).collect::<Vec<_>>());
            prop_assert_eq!(&parts, &split(&labels, 2, vehicles, Partition::Dirichlet { alpha: 0.5 }, seed).expect("a split"));
        }

        #[test]
        fn held_back_and_left_are_all(a in 10usize..100, b in 10usize..100, seed: u64) {
            let (held, left) = hold_back(&labels(&[a, b]), 2, 0.1, seed);
            prop_assert_eq!(held.len() + left.len(), a + b);
            prop_assert!(held.iter().any(|i| *i < a) && held.iter().any(|i| *i >= a));
        }
    }
}
