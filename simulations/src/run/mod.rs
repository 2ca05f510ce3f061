//! Runs a scenario to its end and sums it up.

mod progress;
mod record;

pub use progress::Progress;
pub use record::record;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::time::Instant;

use crate::engine::cloud::Made;
use crate::engine::event::Millis;
use crate::engine::invariants::{Invariants, Violation};
use crate::engine::log::LogDigest;
use crate::engine::tally::Tally;
use crate::engine::{City, Window};
use crate::scenario::Scenario;

/// How a run is carried out, beside what the scenario says.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// The seed.
    pub seed: u64,
    /// Threads that work.
    pub threads: usize,
}

/// A version, and what had been spent by then.
#[derive(Clone, Debug)]
pub struct Step {
    /// The version.
    pub version: Made,
    /// Milliseconds that vehicles had trained.
    pub trained: Millis,
}

/// What came out of a run.
#[derive(Debug)]
pub struct Outcome {
    /// The seed.
    pub seed: u64,
    /// Sums.
    pub tally: Tally,
    /// Versions.
    pub curve: Vec<Step>,
    /// What must not have been.
    pub violations: Vec<Violation>,
    /// Digest of the event log.
    pub log_digest: String,
    /// Digest of the last version's values.
    pub model_digest: String,
    /// Simulated time.
    pub simulated: Millis,
    /// Seconds that it took, set-up left out.
    pub wall_s: f64,
    /// Events that were handled.
    pub events: u64,
    /// The city as it was at the end.
    pub city: City,
}

/// Is told of each window: the time, and what was counted so far.
pub type Watch<'a> = &'a mut dyn FnMut(Millis, &Tally, &Window);

/// Runs one seed of a scenario.
///
/// # Errors
/// What cannot be read or made.
pub fn run(
    scenario: &Scenario,
    options: &RunOptions,
    cancel: &Arc<AtomicBool>,
    watch: Watch<'_>,
) -> anyhow::Result<Outcome> {
    let mut city = scenario.city(options.seed, options.threads, cancel)?;
    let began = Instant::now();
    let buffered = city.env().spec.aggregation.buffered.is_some();
    let (mut invariants, mut tally) = (Invariants::new(buffered), Tally::new());
    let (mut digest, mut curve) = (LogDigest::default(), Vec::new());
    let mut step = |made: &mut Vec<Made>, trained| {
        curve.extend((made.drain(..)).map(|version| Step { version, trained }));
    };
    let ends = scenario.ends();
    while let Some(mut window) = city.step(ends) {
        for logged in &window.log {
            digest.add(logged);
            invariants.follow(logged);
            tally.follow(logged);
        }
        watch(city.now(), &tally, &window);
        step(&mut window.made, tally.trained);
        if city.is_finished() {
            break;
        }
    }
    if cancel.load(Ordering::Relaxed) {
        anyhow::bail!(
            "interrupted after {} s of simulated time",
            city.now() / 1000
        );
    }
    let simulated = city.now();
    tally.finish(simulated);
    let mut hasher = blake3::Hasher::new();
    for value in city.parameters() {
        hasher.update(&value.to_le_bytes());
    }
    Ok(Outcome {
        seed: options.seed,
        tally,
        curve,
        violations: invariants.violations().to_vec(),
        log_digest: digest.finish(),
        model_digest: hasher.finalize().to_hex().to_string(),
        simulated,
        wall_s: began.elapsed().as_secs_f64(),
        events: city.handled(),
        city,
    })
}
