//! Messages: golden bytes of wire version 1, and what is refused.
//!
//! A golden file is never edited. `WAYSIDE_BLESS=1` writes those that are missing.

#![allow(
    clippy::unwrap_used,
    reason = "a test stops where something is not as it must be"
)]

mod golden;
mod refused;
mod samples;
