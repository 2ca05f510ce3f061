//! Examples drawn from a mixture of Gaussians, for scenarios that are about time and faults rather than about pictures.

use ndarray::Array2;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::DataSet;

/// A mixture: one round cloud a class.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mixture {
    /// Classes, 2 to 255.
    pub classes: usize,
    /// Features of an example.
    pub features: usize,
    /// Mean distance between the centres of two classes, in standard deviations of a class.
    pub distance: f64,
    /// The centres are drawn from it.
    pub seed: u64,
}

/// Draws examples, the classes evenly and in random order. `part` tells examples to train on from examples to test on.
pub fn synthetic(mixture: &Mixture, examples: usize, part: u64) -> DataSet {
    let Mixture {
        classes, features, ..
    } = *mixture;
    let mut rng = ChaCha8Rng::seed_from_u64(mixture.seed);
    // Centres this far from the middle in each feature lie `distance` apart on average.
    #[expect(clippy::cast_possible_truncation, reason = "a scale of about 1")]
    let scale = (mixture.distance / (2.0 * features as f64).sqrt()) as f32;
    let centres: Vec<f32> = (0..classes * features)
        .map(|_| normal(&mut rng) * scale)
        .collect();
    let mut rng = ChaCha8Rng::seed_from_u64(mixture.seed);
    rng.set_stream(part + 1);
    let class = |at: usize| u8::try_from(at % classes).unwrap_or(u8::MAX);
    let mut labels: Vec<u8> = (0..examples).map(class).collect();
    labels.shuffle(&mut rng);
    let mut values = Vec::with_capacity(examples * features);
    for label in &labels {
        let centre = &centres[usize::from(*label) * features..][..features];
        values.extend(centre.iter().map(|middle| middle + normal(&mut rng)));
    }
    DataSet {
        features: Array2::from_shape_vec((examples, features), values).expect("as many as drawn"),
        labels,
        classes: (0..classes).map(|class| format!("class-{class}")).collect(),
    }
}

/// About normal, by the sum of four uniform numbers: only additions, so the same on every CPU.
fn normal(rng: &mut ChaCha8Rng) -> f32 {
    /// One over the standard deviation of a sum of four numbers from `[0, 1)`: sqrt(3).
    const SCALE: f32 = 1.732_050_8;
    let bytes = rng.random::<u64>().to_le_bytes();
    let part = |at: usize| f32::from(u16::from_le_bytes([bytes[at], bytes[at + 1]])) / 65_536.0;
    (part(0) + part(2) + part(4) + part(6) - 2.0) * SCALE
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIXTURE: Mixture = Mixture {
        classes: 4,
        features: 16,
        distance: 6.0,
        seed: 3,
    };

    #[test]
    fn the_same_seed_and_part_give_the_same_examples() {
        assert_eq!(synthetic(&MIXTURE, 100, 0), synthetic(&MIXTURE, 100, 0));
        assert_ne!(synthetic(&MIXTURE, 100, 0), synthetic(&MIXTURE, 100, 1));
    }

    #[test]
    fn classes_are_even_and_as_far_apart_as_asked() {
        let set = synthetic(&MIXTURE, 40_000, 0);
        let mean = |class: u8| -> Vec<f64> {
            let rows: Vec<usize> = (0..set.labels.len())
                .filter(|row| set.labels[*row] == class)
                .collect();
            assert_eq!(rows.len(), 10_000);
            let of = set.select(&rows).features;
            of.columns()
                .into_iter()
                .map(|column| column.iter().map(|v| f64::from(*v)).sum::<f64>() / 10_000.0)
                .collect()
        };
        let means: Vec<Vec<f64>> = (0..4).map(mean).collect();
        let mut distances = Vec::new();
        for a in 0..4 {
            for b in 0..a {
                let squares = means[a].iter().zip(&means[b]).map(|(x, y)| (x - y).powi(2));
                distances.push(squares.sum::<f64>().sqrt());
            }
        }
        let middle = distances.iter().sum::<f64>() / 6.0;
        assert!((4.5..7.5).contains(&middle), "{distances:?}");
        let spread = set.features.column(0).std(0.0);
        assert!((1.0..4.0).contains(&spread), "{spread}");
    }
}
