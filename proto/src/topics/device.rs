//! Topics of `KubeEdge`'s EventBus.

use super::{Topic, TopicError, id};
use std::fmt;
use wayside_domain::ids::{Namespace, VehicleId};

pub(super) const PREFIX: &str = "$hw/events/";
pub(super) const TWIN_REFUSED: &str = "$hw/events/device//twin/update/result";
pub(super) const TWIN_UPDATE_FILTER: &str = "$hw/events/device/+/+/twin/update";

/// Which topic of a device. Clients publish the first three, the edge publishes the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceEvent {
    /// A report of twins.
    TwinUpdate,
    /// Asks for all twins.
    TwinGet,
    /// A report of the device's state.
    StateUpdate,
    /// Answer to each twin update.
    TwinUpdateResult,
    /// Twins before and after a change.
    TwinUpdateDocument,
    /// Twins whose expected value differs from the actual one.
    TwinUpdateDelta,
    /// Answer to a get.
    TwinGetResult,
    /// Answer to an accepted state.
    StateUpdateResult,
}

impl DeviceEvent {
    /// Every event.
    pub const ALL: [Self; 8] = [
        Self::TwinUpdate,
        Self::TwinGet,
        Self::StateUpdate,
        Self::TwinUpdateResult,
        Self::TwinUpdateDocument,
        Self::TwinUpdateDelta,
        Self::TwinGetResult,
        Self::StateUpdateResult,
    ];

    fn levels(self) -> &'static str {
        match self {
            Self::TwinUpdate => "twin/update",
            Self::TwinGet => "twin/get",
            Self::StateUpdate => "state/update",
            Self::TwinUpdateResult => "twin/update/result",
            Self::TwinUpdateDocument => "twin/update/document",
            Self::TwinUpdateDelta => "twin/update/delta",
            Self::TwinGetResult => "twin/get/result",
            Self::StateUpdateResult => "state/update/result",
        }
    }
}

/// Which topic of an edge node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeEvent {
    /// Asks which devices belong to the node.
    MembershipGet,
    /// The answer.
    MembershipGetResult,
    /// A device was added or removed.
    MembershipUpdated,
}

impl NodeEvent {
    /// Every event.
    pub const ALL: [Self; 3] = [
        Self::MembershipGet,
        Self::MembershipGetResult,
        Self::MembershipUpdated,
    ];

    fn levels(self) -> &'static str {
        match self {
            Self::MembershipGet => "membership/get",
            Self::MembershipGetResult => "membership/get/result",
            Self::MembershipUpdated => "membership/updated",
        }
    }
}

/// Reads what follows [`PREFIX`]; `None` if it is none of the topics here.
pub(super) fn parse(rest: &str) -> Option<Result<Topic, TopicError>> {
    if TWIN_REFUSED.strip_prefix(PREFIX) == Some(rest) {
        return Some(Ok(Topic::TwinRefused));
    }
    let mut levels = rest.splitn(4, '/');
    match levels.next()? {
        "device" => {
            let (namespace, vehicle, tail) = (levels.next()?, levels.next()?, levels.next()?);
            let event = DeviceEvent::ALL.into_iter().find(|e| e.levels() == tail)?;
            Some(device(namespace, vehicle, event))
        }
        "node" => {
            let (node, tail) = rest.strip_prefix("node/")?.split_once('/')?;
            let event = NodeEvent::ALL.into_iter().find(|e| e.levels() == tail)?;
            let fits = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
            // A Kubernetes name, which may hold points where our ids may not.
            if node.is_empty() || node.len() > 253 || !node.chars().all(fits) {
                return None;
            }
            let node = node.to_owned();
            Some(Ok(Topic::Node { node, event }))
        }
        _ => None,
    }
}

fn device(namespace: &str, vehicle: &str, event: DeviceEvent) -> Result<Topic, TopicError> {
    Ok(Topic::Device {
        namespace: id("namespace", namespace)?,
        vehicle: id("device", vehicle)?,
        event,
    })
}

pub(super) fn write_device(
    f: &mut fmt::Formatter<'_>,
    namespace: &Namespace,
    vehicle: &VehicleId,
    event: DeviceEvent,
) -> fmt::Result {
    write!(f, "{PREFIX}device/{namespace}/{vehicle}/{}", event.levels())
}

pub(super) fn write_node(f: &mut fmt::Formatter<'_>, node: &str, event: NodeEvent) -> fmt::Result {
    write!(f, "{PREFIX}node/{node}/{}", event.levels())
}
