//! Twin updates and the edge's answers to them.

use super::{PayloadError, millis, read, write};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use wayside_domain::time::Timestamp;

/// Longest key of a twin, in bytes.
pub const MAX_KEY_BYTES: usize = 128;
/// Longest value of a twin, in bytes.
pub const MAX_VALUE_BYTES: usize = 512;

/// When a value was taken over, by the edge's clock; what a client says here is thrown away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Metadata {
    /// The time.
    #[serde(default, with = "millis")]
    pub timestamp: Timestamp,
}

/// The expected or the actual value of a twin.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TwinValue {
    /// Always a text, whatever the type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// Set by the edge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Metadata>,
}

/// The type of a twin; a type of `deleted` marks a twin that is gone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TypeMetadata {
    /// `string`, `int`, `integer`, `float` or `boolean`.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
}

/// How often a value has changed on each side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Versions {
    /// Changes by the cloud.
    #[serde(default)]
    pub cloud: i64,
    /// Changes by the edge; of two reports the one with the higher number is newer.
    #[serde(default)]
    pub edge: i64,
}

/// One property of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Twin {
    /// What it should be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected: Option<TwinValue>,
    /// What it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub actual: Option<TwinValue>,
    /// It may be deleted; true unless said otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub optional: Option<bool>,
    /// Its type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<TypeMetadata>,
    /// In reports to the cloud.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_version: Option<Versions>,
    /// In reports to the cloud.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub actual_version: Option<Versions>,
}

impl Twin {
    /// A twin with an actual value.
    pub fn actual(value: impl Into<String>, kind: &str) -> Self {
        Self {
            actual: Some(TwinValue {
                value: Some(value.into()),
                metadata: None,
            }),
            metadata: Some(TypeMetadata {
                kind: Some(kind.to_owned()),
            }),
            ..Self::default()
        }
    }
}

/// A report of twins, client to edge (`twin/update`), and the edge's report to the cloud.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TwinUpdate {
    /// Comes back in the answers; may be empty.
    #[serde(default)]
    pub event_id: String,
    /// When it was sent.
    #[serde(default, with = "millis")]
    pub timestamp: Timestamp,
    /// The twins; `None` deletes one.
    pub twin: BTreeMap<String, Option<Twin>>,
}

impl TwinUpdate {
    /// Reads a client's report.
    ///
    /// # Errors
    /// [`PayloadError::MissingValue`] for a twin that has neither an expected nor an actual value, or one without its
    /// text; [`PayloadError::Key`] and [`PayloadError::Value`] for what the edge refuses as well.
    pub fn parse(payload: &[u8]) -> Result<Self, PayloadError> {
        let update: Self = read(payload)?;
        update.check()?;
        Ok(update)
    }

    /// Writes a client's report, after the same checks.
    pub fn to_json(&self) -> Result<Vec<u8>, PayloadError> {
        self.check()?;
        write(self)
    }

    fn check(&self) -> Result<(), PayloadError> {
        for (key, twin) in &self.twin {
            let cut = || key.chars().take(128).collect::<String>();
            if key.is_empty() || key.len() > MAX_KEY_BYTES || !key.bytes().all(allowed) {
                return Err(PayloadError::Key { key: cut() });
            }
            let Some(twin) = twin else { continue };
            if twin.expected.is_none() && twin.actual.is_none() {
                return Err(PayloadError::MissingValue { key: cut() });
            }
            for side in [&twin.expected, &twin.actual].into_iter().flatten() {
                let Some(value) = &side.value else {
                    return Err(PayloadError::MissingValue { key: cut() });
                };
                if value.len() > MAX_VALUE_BYTES || !value.bytes().all(allowed) {
                    let got = value.len();
                    return Err(PayloadError::Value { key: cut(), got });
                }
            }
        }
        Ok(())
    }
}

/// What the edge allows in keys and values.
fn allowed(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-_.,:/@#".contains(&byte)
}

/// The edge's answer to an update or a get.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TwinResult {
    /// Of the request; empty if the edge could not read it.
    #[serde(default)]
    pub event_id: String,
    /// The edge's clock.
    #[serde(default, with = "millis")]
    pub timestamp: Timestamp,
    /// The twins after the change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub twin: Option<BTreeMap<String, Option<Twin>>>,
    /// 400, 404 or 500 if the request was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<i64>,
    /// Why it was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// A twin before and after a change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TwinChange {
    /// Before; `None` if it is new.
    #[serde(default)]
    pub last: Option<Twin>,
    /// After; `None` if it is gone.
    #[serde(default)]
    pub current: Option<Twin>,
}

/// What an update changed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TwinDocument {
    /// Of the update.
    #[serde(default)]
    pub event_id: String,
    /// The edge's clock.
    #[serde(default, with = "millis")]
    pub timestamp: Timestamp,
    /// The changed twins.
    pub twin: BTreeMap<String, TwinChange>,
}

/// All twins of a device whose expected value differs from the actual one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TwinDelta {
    /// An id of its own.
    #[serde(default)]
    pub event_id: String,
    /// The edge's clock.
    #[serde(default, with = "millis")]
    pub timestamp: Timestamp,
    /// The twins.
    #[serde(default)]
    pub twin: BTreeMap<String, Option<Twin>>,
    /// The expected values.
    pub delta: BTreeMap<String, String>,
}
