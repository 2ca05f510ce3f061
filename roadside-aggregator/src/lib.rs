//! The roadside unit: runs rounds with vehicles over MQTT, averages their updates, and contributes to the cloud's merge.
//!
//! - [`mod@unit`]: the whole unit as a machine without I/O; [`region`] is one job of it, [`fleet`] its vehicles,
//!   [`intake`] the reading of an update.
//! - [`store`]: what survives a crash.
//! - [`engine`]: machine and store together: durable first, then visible.
//! - [`broker`]: the embedded broker; [`downlink`]: the MQTT client; [`uplink`]: the gRPC client.
//! - [`run()`]: everything together; [`cli`]: the commands. [`config`], [`event`]: what goes in, and what can be watched.

#![forbid(unsafe_code)]

pub mod aggregate;
pub mod bench;
pub mod broker;
pub mod cli;
pub mod config;
pub mod downlink;
pub mod engine;
pub mod event;
pub mod fleet;
pub mod intake;
pub mod link;
pub mod region;
mod run;
pub mod store;
pub mod unit;
pub mod uplink;

pub use config::Config;
pub use event::{Event, Observer};
pub use run::{RunError, run};
