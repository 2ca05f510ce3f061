//! The harness of the end-to-end tests: real processes on loopback ports, a real broker, kill -9.
//!
//! - [`process`]: start, watch the log, kill.
//! - [`broker`]: mosquitto on a free port.
//! - [`site`]: folders, configuration files and commands of a small fleet.
//! - [`puppet`]: a vehicle whose updates the test makes up.
//!
//! Waiting is always for a condition with a deadline.

#![forbid(unsafe_code)]

pub mod broker;
pub mod process;
pub mod puppet;
pub mod site;
