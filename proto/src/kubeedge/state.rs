//! State of a device.

use super::millis;
use serde::{Deserialize, Serialize};
use wayside_domain::time::Timestamp;

/// A report of the device's state (`state/update`). The edge takes `online`, `offline`, `ok`, `unknown` and
/// `unhealthy`, and says nothing to any other.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateUpdate {
    /// May be empty; does not come back.
    #[serde(default)]
    pub event_id: String,
    /// When it was sent.
    #[serde(default, with = "millis")]
    pub timestamp: Timestamp,
    /// The state.
    pub state: String,
}

/// State of a device as the edge keeps it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceState {
    /// The device.
    pub name: String,
    /// The state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// Time of last contact, RFC 3339 in UTC; there only while `online` or `ok`.
    #[serde(
        default,
        rename = "lastOnlineTime",
        skip_serializing_if = "Option::is_none"
    )]
    pub last_online_time: Option<String>,
}

/// The edge's answer to an accepted state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateResult {
    /// An id of its own.
    #[serde(default)]
    pub event_id: String,
    /// The edge's clock.
    #[serde(default, with = "millis")]
    pub timestamp: Timestamp,
    /// The device.
    pub device: DeviceState,
}
