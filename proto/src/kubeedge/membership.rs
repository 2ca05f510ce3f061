//! Which devices belong to an edge node.

use super::millis;
use serde::{Deserialize, Serialize};
use wayside_domain::time::Timestamp;

/// A device, as membership messages name it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// `{namespace}/{name}`.
    pub id: String,
    /// Its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Free text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
}

/// Asks for the list (`membership/get`), or for a device's twins (`twin/get`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MembershipGet {
    /// Comes back in the answer.
    #[serde(default)]
    pub event_id: String,
    /// When it was sent.
    #[serde(default, with = "millis")]
    pub timestamp: Timestamp,
}

/// The list (`membership/get/result`), or why there is none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MembershipList {
    /// Of the request.
    #[serde(default)]
    pub event_id: String,
    /// The edge's clock.
    #[serde(default, with = "millis")]
    pub timestamp: Timestamp,
    /// The devices; `null` if there are none.
    #[serde(default)]
    pub devices: Option<Vec<Device>>,
}

/// Devices were added or removed (`membership/updated`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MembershipUpdate {
    /// An id of its own.
    #[serde(default)]
    pub event_id: String,
    /// The edge's clock.
    #[serde(default, with = "millis")]
    pub timestamp: Timestamp,
    /// The new ones; `null` if there are none.
    #[serde(default)]
    pub added_devices: Option<Vec<Device>>,
    /// Those that are gone; `null` if there are none.
    #[serde(default)]
    pub removed_devices: Option<Vec<Device>>,
}
