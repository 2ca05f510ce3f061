//! From a network in f32 and some pictures to the same network in int8.
//!
//! Layers are fitted one after the other, in the order in which they run, each to the bytes that the layers before it
//! give. A layer's bias makes the mean of each of its outputs that of the f32 network; its weights are rounded together,
//! so that their errors cancel on the inputs that occur.

mod calibrate;
mod fit;
mod fold;
mod grid;
mod report;
mod simulate;
#[cfg(test)]
mod tests;

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use wayside_extractor::check::CheckError;
use wayside_extractor::float::FloatNetwork;
use wayside_extractor::quantized::QuantNetwork;

use crate::backbone::{BackboneError, Network};
use crate::pictures::Picture;
pub use report::{Agreement, LayerReport, Report, compare, layers};

/// Fewer calibration pictures than this leave rare activations unseen.
pub const FEW_PICTURES: usize = 64;

/// Why there is no quantized network.
#[derive(Debug, thiserror::Error)]
pub enum QuantizeError {
    /// Ranges cannot be found without pictures.
    #[error("no pictures to calibrate on")]
    NoPictures,
    /// The f32 network cannot run.
    #[error(transparent)]
    Backbone(#[from] BackboneError),
    /// What came out cannot run, such as from weights near the ends of f32.
    #[error("the quantized network is not usable: {0}")]
    Check(#[from] CheckError),
}

/// Quantizes a network.
///
/// - `pictures`: all of one size; 200 or more are recommended, of all that the vehicle will see.
/// - `progress`: called with pictures done and in total while they pass through the f32 network (twice); what follows
///   takes about as long again.
/// - returns: a network that passes its own check; the same for any number of threads.
///
/// # Errors
/// [`QuantizeError`].
///
/// # Source
/// Ranges and sequential bias correction as in Nagel et al. 2021, "A White Paper on Neural Network Quantization",
/// sections 3.1 and 3.3; rounding by coordinate descent on the inputs' second moments, the objective of Nagel et al.
/// 2020, "Up or Down? Adaptive Rounding for Post-Training Quantization", equation 13.
pub fn quantize(
    float: &FloatNetwork,
    pictures: &[Picture],
    threads: usize,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<QuantNetwork, QuantizeError> {
    let Some(expected) = pictures.first().map(Picture::size) else {
        return Err(QuantizeError::NoPictures);
    };
    if let Some(other) = pictures.iter().find(|other| other.size() != expected) {
        let got = other.size();
        return Err(BackboneError::MixedSizes { got, expected }.into());
    }
    let network = Network::new(float.clone());
    let statistics = calibrate::Statistics::collect(float, &network, pictures, threads, progress)?;
    drop(network);
    let network = fit::fit(float, &statistics, pictures, threads);
    network.check()?;
    Ok(network)
}

/// Does `work` for every index below `count`; results come in the order of the indices.
fn parallel<T: Send>(count: usize, threads: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let results: Vec<Mutex<Option<T>>> = (0..count).map(|_| Mutex::new(None)).collect();
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, count.max(1)) {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(result) = results.get(index) else {
                        return;
                    };
                    let outcome = work(index);
                    *result.lock().expect("no other thread has this index") = Some(outcome);
                }
            });
        }
    });
    let results = results.into_iter().map(Mutex::into_inner);
    results
        .map(|result| result.ok().flatten().expect("a thread had this index"))
        .collect()
}
