//! The event log: one line for everything that matters, in one order whatever the number of threads, and its digest.

use std::fmt::Write as _;

use wayside_domain::ids::{ModelVersion, RoundId, UpdateId};
use wayside_domain::update::Verdict;

use super::event::{Actor, Millis};

/// Something that matters. Vehicles are named by index.
#[derive(Clone, Debug, PartialEq)]
pub enum Entry {
    /// A vehicle's link to a unit is up.
    Connected {
        /// The unit.
        unit: u32,
    },
    /// It is gone.
    Disconnected,
    /// A vehicle's process ended without warning, or was started again with a unit.
    Stopped,
    /// A vehicle works with another unit than before.
    HandedOver {
        /// The unit before.
        from: u32,
        /// The unit now.
        to: u32,
    },
    /// A vehicle trained and sealed an update.
    Sealed {
        /// Its round.
        round: RoundId,
        /// Which update.
        update_id: UpdateId,
        /// Its weight.
        num_examples: u64,
        /// Milliseconds that training took.
        train_ms: u64,
        /// Bytes of the update.
        bytes: usize,
    },
    /// A vehicle has a receipt.
    Receipt {
        /// Of which update.
        update_id: UpdateId,
        /// What became of it.
        verdict: Verdict,
        /// From encoded to receipt.
        latency_ms: u64,
        /// Within the job's latency budget.
        within_budget: bool,
    },
    /// A vehicle gave an update up.
    GivenUp {
        /// Which one.
        update_id: UpdateId,
    },
    /// A vehicle's training failed.
    TrainingFailed {
        /// Of which round.
        round: RoundId,
    },
    /// A unit opened a round.
    RoundOpened {
        /// Which.
        round: RoundId,
        /// Who was asked.
        cohort: Vec<u32>,
        /// Updates wanted.
        target: usize,
        /// When it ends.
        deadline: Millis,
    },
    /// A unit judged an update.
    Judged {
        /// The round that it was judged in.
        round: RoundId,
        /// Whose.
        vehicle: u32,
        /// What became of it.
        verdict: Verdict,
        /// It had been judged before.
        again: bool,
    },
    /// A unit closed a round.
    RoundClosed {
        /// Which.
        round: RoundId,
        /// Updates that count.
        accepted: usize,
        /// Whether there was a result.
        aggregated: bool,
    },
    /// A unit, or the cloud, was switched off or on.
    Power {
        /// On.
        on: bool,
    },
    /// The line to the cloud.
    Backhaul {
        /// Up.
        up: bool,
    },
    /// The cloud judged a partial aggregate.
    Partial {
        /// Whose.
        unit: u32,
        /// Of which merge round.
        merge_round: RoundId,
        /// What became of it.
        verdict: Verdict,
        /// Examples that it claims.
        num_examples: u64,
        /// Its updates: vehicle, update, weight, verdict.
        lines: Vec<(u32, UpdateId, u64, Verdict)>,
        /// Bytes from vehicles behind it.
        up_bytes: u64,
        /// Bytes to vehicles behind it.
        down_bytes: u64,
        /// Bytes of it.
        bytes: usize,
    },
    /// The cloud opened a merge round.
    MergeOpened {
        /// Which.
        merge_round: RoundId,
        /// The version that it starts from.
        base: ModelVersion,
    },
    /// A merge round had no result.
    NoResult {
        /// Which.
        merge_round: RoundId,
    },
    /// The cloud made a version.
    Version {
        /// Which.
        version: ModelVersion,
        /// Of which merge round.
        merge_round: RoundId,
        /// Whether it goes to the fleet.
        released: bool,
        /// Digest of its frame, the first 16 hexadecimal digits.
        frame: String,
        /// Examples behind it.
        num_examples: u64,
        /// Vehicles behind it.
        contributors: u32,
        /// The sums were exact.
        exact: bool,
    },
    /// The job has its last version.
    Finished,
}

/// An entry with its time and place.
#[derive(Clone, Debug, PartialEq)]
pub struct Logged {
    /// When.
    pub at: Millis,
    /// Who.
    pub who: Actor,
    /// What.
    pub entry: Entry,
}

/// Takes the digest over all lines.
#[derive(Debug, Default)]
pub struct LogDigest {
    hasher: blake3::Hasher,
    line: String,
}

impl LogDigest {
    /// Takes in one entry; gives its line.
    pub fn add(&mut self, logged: &Logged) -> &str {
        self.line.clear();
        // Writing to a String does not fail.
        let _ = writeln!(
            self.line,
            "{} {:?} {:?}",
            logged.at, logged.who, logged.entry
        );
        self.hasher.update(self.line.as_bytes());
        &self.line
    }

    /// The digest so far, in hexadecimal.
    pub fn finish(&self) -> String {
        self.hasher.finalize().to_hex().to_string()
    }
}
