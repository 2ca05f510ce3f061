//! The rules of federated training as plain values and state machines: told the time, they return what should happen.
//!
//! Nothing here reads a clock, a socket, a file or a random source of its own; the tiers and the simulator drive it.

pub mod aggregate;
pub mod backoff;
pub mod class_weights;
pub mod encoding;
pub mod head;
pub mod ids;
pub mod job;
pub mod kernels;
pub mod liveness;
pub mod merge_window;
pub mod network;
pub mod outbox;
pub mod receipts;
pub mod round;
pub mod schema;
pub mod selection;
pub mod time;
pub mod train;
pub mod update;
pub mod upload;

/// What `docs/extending.md` shows is compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/extending.md")]
struct Extending;
