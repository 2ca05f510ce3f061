//! What hostile vehicles do to their labels, their training and their frames.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::atomic::AtomicBool;

use ndarray::ArrayView2;
use wayside_domain::head::Evaluation;
use wayside_domain::job::TrainingSpec;
use wayside_domain::schema::Schema;
use wayside_domain::train::{self, TrainError, Trained};
use wayside_proto::codec::{self, f16};

use super::env::Attack;

/// The largest value that a scaled delta is driven to, in units of its tensor's scale: what fp16 holds.
const MOST: f32 = 65_000.0;

/// The labels that a vehicle trains on.
pub(super) fn labels(attack: Option<Attack>, labels: &[u8], classes: usize) -> Cow<'_, [u8]> {
    if attack != Some(Attack::LabelFlip) {
        return labels.into();
    }
    let last = u8::try_from(classes.saturating_sub(1)).unwrap_or(u8::MAX);
    labels.iter().map(|label| last - label).collect()
}

/// A frame that is sent instead of the honest one.
pub(super) fn frame(attack: Option<Attack>, schema: &Schema, exponents: &[i8]) -> Option<Vec<u8>> {
    if attack != Some(Attack::Nan) {
        return None;
    }
    let values = vec![f16::NAN; schema.num_parameters()];
    codec::encode_delta_values(schema, &values, exponents).ok()
}

/// Training that may be hostile.
#[derive(Debug)]
pub(super) struct Learner<'a> {
    honest: &'a dyn train::Learner,
    attack: Option<Attack>,
    exponents: &'a [i8],
    schema: &'a Schema,
}

impl<'a> Learner<'a> {
    pub(super) fn new(
        honest: &'a dyn train::Learner,
        attack: Option<Attack>,
        exponents: &'a [i8],
        schema: &'a Schema,
    ) -> Self {
        Self {
            honest,
            attack,
            exponents,
            schema,
        }
    }

    fn most(&self, at: usize) -> f32 {
        let holds = |range: &Range<usize>| range.contains(&at);
        let tensor = self.schema.ranges().position(|range| holds(&range));
        let exponent = tensor.and_then(|tensor| self.exponents.get(tensor));
        MOST * f32::from(exponent.copied().unwrap_or(0)).exp2()
    }
}

impl train::Learner for Learner<'_> {
    fn train(
        &self,
        base: &[f32],
        features: ArrayView2<'_, f32>,
        labels: &[u8],
        settings: &TrainingSpec,
        seed: u64,
        cancel: &AtomicBool,
    ) -> Result<Trained, TrainError> {
        let honest = self.honest;
        let mut trained = honest.train(base, features, labels, settings, seed, cancel)?;
        let values = trained.parameters.iter_mut().zip(base);
        match self.attack {
            Some(Attack::SignFlip) => values.for_each(|(value, base)| *value = 2.0 * base - *value),
            Some(Attack::Scaling) => {
                for (at, (value, base)) in values.enumerate() {
                    let most = self.most(at);
                    *value = base + (1000.0 * (*value - base)).clamp(-most, most);
                }
            }
            Some(Attack::LabelFlip | Attack::Nan) | None => {}
        }
        Ok(trained)
    }

    fn evaluate(
        &self,
        parameters: &[f32],
        features: ArrayView2<'_, f32>,
        labels: &[u8],
    ) -> Evaluation {
        self.honest.evaluate(parameters, features, labels)
    }
}
