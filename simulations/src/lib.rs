//! Wayside on one machine: the demo, all three tiers over real sockets in one process; and studies without sockets.
//!
//! - [`demo`]: the pictures' way to the vehicles, the tiers, live progress.
//! - [`partition`]: who gets which pictures.
//! - [`baseline`]: vehicles alone and pooled pictures, for comparison.
//! - [`report`]: what is printed at the end.
//! - [`study`]: one question each, answered by measurement.

#![forbid(unsafe_code)]

pub mod baseline;
pub mod command;
pub mod data;
pub mod demo;
pub mod engine;
pub mod partition;
pub mod report;
pub mod results;
pub mod run;
pub mod scenario;
pub mod shipped;
pub mod study;
pub mod world;
