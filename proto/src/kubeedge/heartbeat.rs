//! A vehicle's heartbeat as a twin update, so that a stock edge mirrors it into the cluster.

use super::{Twin, TwinUpdate};
use std::fmt;
use std::str::FromStr;
use wayside_domain::ids::{Digest, Generation, RoundId};
use wayside_domain::time::Timestamp;

const GENERATION: &str = "fl-generation";
const ROUND: &str = "fl-round";
const STATE: &str = "train-state";
const MODEL: &str = "model-digest";
const SAMPLES: &str = "samples";
const SENT: &str = "last-seen";

/// What a vehicle is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TrainState {
    /// Waits for a round.
    Idle,
    /// Gets a model.
    Fetching,
    /// Trains.
    Training,
    /// Sends an update.
    Uploading,
    /// The host has stopped it.
    Paused,
    /// The last training failed; nothing was sent.
    Failed,
}

impl TrainState {
    /// Every state.
    pub const ALL: [Self; 6] = [
        Self::Idle,
        Self::Fetching,
        Self::Training,
        Self::Uploading,
        Self::Paused,
        Self::Failed,
    ];

    /// The word on the wire.
    pub fn label(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Fetching => "fetching",
            Self::Training => "training",
            Self::Uploading => "uploading",
            Self::Paused => "paused",
            Self::Failed => "failed",
        }
    }
}

impl fmt::Display for TrainState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.label())
    }
}

/// Why a twin update is no heartbeat.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeartbeatError {
    /// A twin that must be there is not.
    #[error("no actual value of twin {key}")]
    Missing {
        /// Its key.
        key: &'static str,
    },
    /// A value that means nothing.
    #[error("twin {key} is {got:?}, expected {expected}")]
    Value {
        /// The twin's key.
        key: &'static str,
        /// Its value, cut to 128 characters.
        got: String,
        /// What would mean something.
        expected: &'static str,
    },
}

/// A sign of life. The vehicle's name is in the topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heartbeat {
    /// Which start of the vehicle; older ones are to be ignored.
    pub generation: Generation,
    /// What it is doing.
    pub state: TrainState,
    /// The round it is working for.
    pub round: Option<RoundId>,
    /// BLAKE3 of the model's frame that it holds.
    pub model: Option<Digest>,
    /// Pictures at hand.
    pub num_examples: u64,
    /// When it was sent, by the vehicle's clock: for people, never for liveness.
    pub sent: Timestamp,
}

impl Heartbeat {
    /// As a twin update; its texts always fit the edge's rules. A round or model that is `None` is left out, so the
    /// edge keeps its last one.
    pub fn to_twin(&self, event_id: impl Into<String>) -> TwinUpdate {
        let mut twin = std::collections::BTreeMap::new();
        let mut put = |key: &str, value: String, kind| {
            twin.insert(key.to_owned(), Some(Twin::actual(value, kind)));
        };
        put(GENERATION, self.generation.0.to_string(), "int");
        put(STATE, self.state.to_string(), "string");
        put(SAMPLES, self.num_examples.to_string(), "int");
        put(SENT, self.sent.0.to_string(), "int");
        if let Some(round) = self.round {
            put(ROUND, round.0.to_string(), "int");
        }
        if let Some(model) = self.model {
            put(MODEL, model.to_hex(), "string");
        }
        TwinUpdate {
            event_id: event_id.into(),
            timestamp: self.sent,
            twin,
        }
    }

    /// Reads a twin update that [`TwinUpdate::parse`] has checked. Other twins in it are passed over; generation and
    /// state must be there.
    pub fn from_twin(update: &TwinUpdate) -> Result<Self, HeartbeatError> {
        let state = actual(update, STATE).ok_or(HeartbeatError::Missing { key: STATE })?;
        let known = TrainState::ALL.into_iter().find(|s| s.label() == state);
        let generation = number(update, GENERATION)?;
        Ok(Self {
            generation: Generation(generation.ok_or(HeartbeatError::Missing { key: GENERATION })?),
            state: known.ok_or_else(|| value(STATE, state, "a word for a state"))?,
            round: number(update, ROUND)?.map(RoundId),
            model: actual(update, MODEL)
                .map(|hex| Digest::from_hex(hex).ok_or_else(|| value(MODEL, hex, "64 hex digits")))
                .transpose()?,
            num_examples: number(update, SAMPLES)?.unwrap_or_default(),
            sent: Timestamp(number(update, SENT)?.unwrap_or(update.timestamp.0)),
        })
    }
}

fn actual<'a>(update: &'a TwinUpdate, key: &str) -> Option<&'a str> {
    let twin = update.twin.get(key)?.as_ref()?;
    twin.actual.as_ref()?.value.as_deref()
}

fn number(update: &TwinUpdate, key: &'static str) -> Result<Option<u64>, HeartbeatError> {
    let parse = |text: &str| u64::from_str(text).map_err(|_| value(key, text, "a number from 0"));
    actual(update, key).map(parse).transpose()
}

fn value(key: &'static str, got: &str, expected: &'static str) -> HeartbeatError {
    let got = got.chars().take(128).collect();
    HeartbeatError::Value { key, got, expected }
}
