//! What can happen in the simulated city, and to whom.

use std::cmp::Ordering;
use std::sync::Arc;

use roadside_aggregator::unit::Input;
use wayside_domain::ids::{Digest, Generation, JobId, UpdateId};
use wayside_proto::topics::Topic;

/// Milliseconds since the simulation began.
pub type Millis = u64;

/// The nearest whole number of milliseconds; 0 for less than none.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "saturating, which is what is meant"
)]
pub fn millis(value: f64) -> Millis {
    value.round() as Millis
}

/// Somebody in the city.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Actor {
    /// The cloud coordinator.
    Cloud,
    /// A roadside unit, by index.
    Unit(u32),
    /// A vehicle, by index.
    Vehicle(u32),
}

/// One connection of a vehicle to a broker; a later one has a larger number.
pub type Connection = u32;

/// A message of a broker to a vehicle.
#[derive(Clone, Debug)]
pub struct Message {
    /// Where it was published.
    pub topic: Arc<Topic>,
    /// What was published.
    pub payload: Arc<[u8]>,
    /// The broker kept it, or it is sent now.
    pub retained: bool,
}

/// What happens.
#[derive(Clone, Debug)]
pub enum What {
    /// A vehicle's surroundings change.
    Surroundings,
    /// A vehicle's heartbeat is due.
    Beat,
    /// A vehicle tries to connect.
    Dial,
    /// A deadline of the machine has come.
    Tick,
    /// A vehicle's piece of work ends.
    WorkEnds(u64),
    /// Chunks of an update are with the link.
    HandedOver(Connection, UpdateId),
    /// The broker took the connection.
    Accepted(Connection),
    /// The broker, or the link to it, is gone.
    Broken(Connection),
    /// A message to a vehicle.
    Deliver(Connection, Message),

    /// A vehicle connects to a unit's broker.
    Connect {
        /// Which connection of it.
        connection: Connection,
        /// What its last will says.
        generation: Generation,
        /// Class of its link.
        link: u8,
        /// It follows announcements already.
        awake: bool,
    },
    /// Nothing of this connection arrives any more; the broker does not know yet.
    Cut(Connection),
    /// A broker misses signs of life of a connection.
    KeepaliveOver(u32, Connection),
    /// A vehicle's link goes over another area now.
    Relink(Connection, u8),
    /// A vehicle wants the chunks of a model, or no more.
    Subscribe(Connection, Digest, bool),
    /// Something of a vehicle for the unit.
    FromVehicle(Connection, Box<Input>),
    /// A heartbeat of a vehicle.
    Heartbeat(Connection, Generation, u32),
    /// A unit is switched off as if it crashed, or on again.
    Power(bool),
    /// The line between a unit and the cloud.
    Backhaul(bool),
    /// Something of the cloud for a unit.
    FromCloud(Box<Input>),
    /// The cloud's answer to [`What::FetchModel`].
    Model(Digest, Arc<[u8]>),

    /// A unit says hello.
    Hello,
    /// The cloud notices that a unit is gone.
    UnitLost,
    /// A unit wants a model.
    FetchModel(Digest),
    /// A unit hands in a partial aggregate.
    Submit(JobId, UpdateId, Arc<[u8]>),
}

impl What {
    /// Roughly how much work it is, in fits of a small head.
    pub fn weight(&self) -> u32 {
        match self {
            Self::FromVehicle(..) => 3,
            Self::Deliver(_, message) if matches!(*message.topic, Topic::Model { .. }) => 2,
            Self::WorkEnds(_) | Self::Submit(..) | Self::Model(..) => 10,
            _ => 0,
        }
    }
}

/// Something that happens to somebody at some time. Events are in the order of time, receiver, sender and the sender's
/// own count, so that the order does not depend on how they came into the queue.
#[derive(Clone, Debug)]
pub struct Event {
    /// When.
    pub at: Millis,
    /// To whom.
    pub to: Actor,
    /// Who made it.
    pub from: Actor,
    /// The sender's count of events.
    pub count: u64,
    /// What.
    pub what: What,
}

impl Event {
    fn key(&self) -> (Millis, Actor, Actor, u64) {
        (self.at, self.to, self.from, self.count)
    }
}

impl PartialEq for Event {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Event {}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Event {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}
