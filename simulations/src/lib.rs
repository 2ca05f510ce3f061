//! Wayside on one machine. Today: the demo, all three tiers over real sockets in one process.
//!
//! - [`demo`]: the pictures' way to the vehicles, the tiers, live progress.
//! - [`partition`]: who gets which pictures.
//! - [`baseline`]: vehicles alone and pooled pictures, for comparison.
//! - [`report`]: what is printed at the end.

#![forbid(unsafe_code)]

pub mod baseline;
pub mod demo;
pub mod partition;
pub mod report;
