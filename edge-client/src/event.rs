//! What a watching program is told while a vehicle runs: progress, verdicts, bytes.

use std::sync::atomic::{AtomicU64, Ordering};

use wayside_domain::ids::{JobId, RoundId};
use wayside_domain::update::Verdict;

/// Bytes of topics and payloads since the start; MQTT's own headers are not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Chunks of updates, as often as they were handed to the link.
    pub up_bytes: u64,
    /// Everything that arrived: announcements, jobs, models, receipts, requests for chunks, control.
    pub down_bytes: u64,
}

/// Something that a person or a demo wants to see.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Event {
    /// The link to the roadside unit is up.
    Connected,
    /// The link is gone; the vehicle goes on with what it can do alone.
    Disconnected,
    /// Pictures go through the backbone.
    FeatureProgress {
        /// Pictures that have features.
        done: usize,
        /// Pictures to be had.
        total: usize,
    },
    /// All pictures have features.
    FeaturesReady {
        /// Usable pictures.
        pictures: usize,
        /// Pictures that were left out.
        skipped: usize,
        /// How many features came from the cache.
        cached: usize,
        /// How many pictures went through the backbone.
        extracted: usize,
        /// How long that took.
        wall_ms: u64,
    },
    /// A model is complete, verified and on disk.
    ModelFetched {
        /// Which job's.
        job: JobId,
        /// Bytes of its frame.
        bytes: usize,
        /// From the subscription to the disk.
        wall_ms: u64,
    },
    /// Training begins.
    RoundStarted {
        /// Of which job.
        job: JobId,
        /// In which round.
        round: RoundId,
    },
    /// Training ended well.
    Trained {
        /// Of which job.
        job: JobId,
        /// In which round.
        round: RoundId,
        /// Examples behind the update.
        num_examples: u64,
        /// Class-weighted mean cross-entropy in nats.
        loss: f64,
        /// Training and encoding.
        train_ms: u64,
    },
    /// Training failed; nothing is sent in this round.
    TrainingFailed {
        /// Of which job.
        job: JobId,
        /// In which round.
        round: RoundId,
        /// Why.
        reason: String,
    },
    /// An update, or chunks of it, are with the link.
    UpdateSent {
        /// Of which job.
        job: JobId,
        /// In which round.
        round: RoundId,
        /// Bytes of topics and payloads.
        bytes: u64,
    },
    /// The roadside unit answered.
    ReceiptReceived {
        /// Of which job.
        job: JobId,
        /// In which round.
        round: RoundId,
        /// What became of the update.
        verdict: Verdict,
        /// From "encoded" to "receipt in hand".
        latency_ms: u64,
        /// Whether that kept the job's latency budget.
        within_budget: bool,
        /// All bytes up to now.
        traffic: Traffic,
    },
    /// All bytes up to now, after the link came or went.
    Traffic(Traffic),
}

/// Is told every [`Event`].
pub type Observer = wayside_host::observer::Observer<Event>;

/// Counts bytes from several tasks.
#[derive(Debug, Default)]
pub(crate) struct TrafficCounter {
    up: AtomicU64,
    down: AtomicU64,
}

impl TrafficCounter {
    pub(crate) fn sent(&self, bytes: usize) {
        self.up.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn received(&self, bytes: usize) {
        self.down.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn total(&self) -> Traffic {
        Traffic {
            up_bytes: self.up.load(Ordering::Relaxed),
            down_bytes: self.down.load(Ordering::Relaxed),
        }
    }
}
