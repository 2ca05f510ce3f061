//! A fleet as a study sees it: the pictures' features, extracted once, and split over vehicles as often as asked.
//!
//! As in the demo, the cloud holds back a tenth of the training pictures, standardises by them and weighs the classes by
//! their labels.

use crate::baseline::Examples;
use crate::demo::{HELD_BACK, class_names, extract};
use crate::partition::{Partition, hold_back, split};
use anyhow::Context;
use edge_client::backbone::Backbone;
use ndarray::{Array2, Axis};
use rand::{RngCore as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use wayside_domain::class_weights::ClassWeights;
use wayside_domain::head::{LinearHead, Standardisation};
use wayside_domain::schema::Schema;
use wayside_host::exit::{Exit, Failure};

/// Features of all pictures, before any split; not standardised.
#[derive(Clone, Debug)]
pub struct Pictures {
    /// Class names in the order of their labels.
    pub classes: Vec<String>,
    /// What vehicles and cloud share among them.
    pub train: Examples,
    /// What nobody trains on.
    pub test: Examples,
}

impl Pictures {
    /// Extracts the features of `data/train` and `data/test`, each with one sub-folder a class.
    ///
    /// # Errors
    /// With the exit code of the demo: pictures or weights that cannot be read, or `cancel`.
    pub fn extract(data: &Path, weights: &Path, cancel: &AtomicBool) -> anyhow::Result<Self> {
        let (train, test) = (data.join("train"), data.join("test"));
        let unreadable = |error: anyhow::Error| Failure::new(Exit::Pictures, format!("{error:#}"));
        let classes = class_names(&train).map_err(unreadable)?;
        class_names(&test).map_err(unreadable)?;
        let backbone = Backbone::load(weights).map_err(|error| {
            Failure::new(
                Exit::Weights,
                format!("{error}: name the file with --weights"),
            )
        })?;
        let features = |folder: &Path| -> anyhow::Result<Examples> {
            let set = extract(&backbone, folder, &classes, None, cancel)?;
            Ok(Examples {
                features: set.features,
                labels: set.labels,
            })
        };
        Ok(Self {
            train: features(&train)?,
            test: features(&test)?,
            classes,
        })
    }

    /// Splits the training features over vehicles.
    ///
    /// # Errors
    /// A split that cannot be made, or features that cannot be standardised.
    pub fn fleet(&self, vehicles: usize, partition: Partition, seed: u64) -> anyhow::Result<Fleet> {
        let (labels, classes) = (&self.train.labels, self.classes.len());
        let (aside, left) = hold_back(labels, classes, HELD_BACK, seed);
        let left_labels: Vec<u8> = left.iter().map(|i| labels[*i]).collect();
        let parts = split(&left_labels, classes, vehicles, partition, seed)
            .map_err(|error| Failure::new(Exit::Pictures, error))?;
        let held_back = chosen(&self.train, &aside);
        let standardisation = Standardisation::of(held_back.features.view())?;
        let class_weights = ClassWeights::InverseRoot.of(&held_back.labels, classes);
        let standardised = |mut examples: Examples| {
            standardisation.apply(examples.features.view_mut());
            examples
        };
        let shares = parts.iter().map(|part| {
            let indexes: Vec<usize> = part.iter().map(|i| left[*i]).collect();
            standardised(chosen(&self.train, &indexes))
        });
        let head = LinearHead {
            features: self.train.features.ncols(),
            classes,
        };
        Ok(Fleet {
            head,
            schema: Schema::linear_head(head.features, head.classes)
                .context("a head of these features and classes")?,
            class_weights,
            vehicles: shares.collect(),
            held_back: standardised(held_back.clone()),
            test: standardised(self.test.clone()),
            initial: initial(&head, seed),
        })
    }
}

/// One split of the pictures: everything that a round of training in one process needs.
#[derive(Clone, Debug)]
pub struct Fleet {
    /// The trained part.
    pub head: LinearHead,
    /// Its schema.
    pub schema: Schema,
    /// Weight of each class in the loss, by the held-back labels.
    pub class_weights: Vec<f32>,
    /// Standardised features of each vehicle.
    pub vehicles: Vec<Examples>,
    /// Standardised features that the cloud holds back: what settings are chosen by.
    pub held_back: Examples,
    /// Standardised features that only the report looks at.
    pub test: Examples,
    /// The first head, drawn from the seed.
    pub initial: Vec<f32>,
}

fn chosen(from: &Examples, indexes: &[usize]) -> Examples {
    let features: Array2<f32> = from.features.select(Axis(0), indexes);
    Examples {
        features,
        labels: indexes.iter().map(|i| from.labels[*i]).collect(),
    }
}

/// Small weights, evenly from `[-0.01, 0.01)`, as the cloud draws the first version.
fn initial(head: &LinearHead, seed: u64) -> Vec<f32> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let half = f64::from(1_u32 << 31);
    let mut draw = || (f64::from(rng.next_u32()) / half - 1.0) * 0.01;
    #[expect(clippy::cast_possible_truncation, reason = "far within f32's range")]
    (0..head.num_parameters()).map(|_| draw() as f32).collect()
}
