//! The message of `KubeEdge`'s bus (beehive), as it stands on the WebSocket between edge and cloud.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A message. Keys that are not named here are kept.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Envelope {
    /// Identity and time.
    #[serde(default)]
    pub header: Header,
    /// From where to where.
    #[serde(default)]
    pub route: Route,
    /// Any JSON; bytes are base64 text.
    #[serde(default)]
    pub content: Value,
    /// What else the sender put here.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

/// Identity and time of a message.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// A UUID in text; empty in the last message of a stopping edge.
    #[serde(default)]
    pub msg_id: String,
    /// The message answered, or empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub parent_msg_id: String,
    /// Milliseconds since 1970; 0 in the last message of a stopping edge.
    #[serde(default)]
    pub timestamp: i64,
    /// Version of the Kubernetes object, or empty.
    #[serde(
        default,
        rename = "resourceversion",
        skip_serializing_if = "String::is_empty"
    )]
    pub resource_version: String,
    /// The sender waits for an answer.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub sync: bool,
    /// Kind of message, or empty.
    #[serde(default, rename = "type", skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// What else the sender put here.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

/// From where to where a message goes. Every field may be empty, and is then left out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Route {
    /// The sending module.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub source: String,
    /// The module meant.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub destination: String,
    /// `resource`, `twin`, `user`, `meta`, ...
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub group: String,
    /// `insert`, `update`, `upload`, `response`, ...
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub operation: String,
    /// Slash-separated.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub resource: String,
    /// What else the sender put here.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}
