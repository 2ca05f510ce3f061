//! One round's work without its surroundings: from a model and examples to an encoded update.
//!
//! The vehicle's workshop and the simulator both train through here.

use std::sync::atomic::AtomicBool;

use ndarray::ArrayView2;
use wayside_domain::encoding::UpdateEncoding;
use wayside_domain::ids::VehicleId;
use wayside_domain::schema::{Schema, SchemaError};
use wayside_domain::train::{Learner, TrainError};
use wayside_proto::codec::{self, Reference};

use crate::machine::Order;

/// What a round is trained from.
#[derive(Clone, Copy, Debug)]
pub struct Ingredients<'a> {
    /// What is trained.
    pub learner: &'a dyn Learner,
    /// Who trains; the order of the examples is drawn from it.
    pub vehicle: &'a VehicleId,
    /// The job's schema.
    pub schema: &'a Schema,
    /// The announced model, as long as the schema says.
    pub model: &'a [f32],
    /// The same as its frame holds it, where the order's encoding needs it.
    pub reference: Option<&'a Reference>,
    /// Standardised, shape `[n, d]`.
    pub features: ArrayView2<'a, f32>,
    /// Length n.
    pub labels: &'a [u8],
    /// The head's personal tensors as they were trained last; may be empty.
    pub personal: &'a [f32],
    /// What earlier encodings took; empty where there is nothing.
    pub residual: &'a [f32],
}

/// A trained and encoded round.
#[derive(Clone, Debug, PartialEq)]
pub struct Made {
    /// Examples behind it, at most what the job lets one update claim.
    pub num_examples: u64,
    /// Class-weighted mean loss in nats.
    pub loss: f64,
    /// The delta's frame.
    pub frame: Vec<u8>,
    /// What the encoding took from the delta; `None` where nothing worth keeping.
    pub residual: Option<Vec<f32>>,
    /// The head's personal tensors as they were trained; empty where the job has none.
    pub personal: Vec<f32>,
}

/// Why a round gave no update.
#[derive(Debug, thiserror::Error)]
pub enum MakeError {
    /// The job's tensors cannot be.
    #[error(transparent)]
    Schema(#[from] SchemaError),
    /// Training failed.
    #[error(transparent)]
    Train(#[from] TrainError),
    /// The delta cannot be written.
    #[error("delta: {0}")]
    Encode(#[from] codec::EncodeError),
}

/// Trains the ordered round and writes its update.
///
/// # Errors
/// [`MakeError`]; nothing is to be sent then.
pub fn make(order: &Order, from: Ingredients<'_>, cancel: &AtomicBool) -> Result<Made, MakeError> {
    let spec = &order.spec;
    let joined;
    let base = if spec.model.personal.is_empty() {
        from.model
    } else {
        joined = spec.model.join_head(from.model, from.personal);
        &joined
    };
    let trained = from.learner.train(
        base,
        from.features,
        from.labels,
        &spec.training,
        seed(spec.training.seed, from.vehicle, order.round.round.0),
        cancel,
    )?;
    let (mut delta, personal) = spec.model.split_head(trained.parameters);
    for (value, base) in delta.iter_mut().zip(from.model) {
        *value -= base;
    }
    if from.residual.len() == delta.len() {
        for (value, left) in delta.iter_mut().zip(from.residual) {
            *value += left;
        }
    }
    let encoded = codec::encode_update(
        from.schema,
        order.encoding,
        spec.codec.topk_fraction,
        &delta,
        &order.round.exponents,
        from.reference,
    )?;
    let lossy = order.encoding != UpdateEncoding::Fp16;
    let residual = lossy.then(|| {
        let pairs = delta.iter().zip(&encoded.decoded);
        pairs.map(|(all, sent)| all - sent).collect()
    });
    Ok(Made {
        num_examples: trained.num_examples.min(spec.round.max_examples),
        loss: trained.loss,
        frame: encoded.frame,
        residual,
        personal,
    })
}

/// Shuffling is drawn from (seed of the job, vehicle, round): the same three, the same order.
fn seed(job_seed: u64, vehicle: &VehicleId, round: u64) -> u64 {
    derive(&format!("wayside shuffle/{job_seed}/{vehicle}/{round}"))
}

/// A number that depends on the whole text.
pub(crate) fn derive(text: &str) -> u64 {
    let hash = blake3::hash(text.as_bytes());
    hash.as_bytes()[..8]
        .iter()
        .fold(0, |number, byte| number << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_differ_by_each_of_the_three() {
        let vehicle = |name| VehicleId::new(name).unwrap();
        let first = seed(1, &vehicle("v1"), 1);
        assert_eq!(first, seed(1, &vehicle("v1"), 1));
        for other in [
            seed(2, &vehicle("v1"), 1),
            seed(1, &vehicle("v2"), 1),
            seed(1, &vehicle("v1"), 2),
        ] {
            assert_ne!(first, other);
        }
    }
}
