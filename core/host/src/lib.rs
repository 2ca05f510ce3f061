//! What any Wayside process needs and no part of the domain may touch: configuration, logs, the clock, signals, and
//! files that survive a crash.
//!
//! - [`config`]: one TOML file, environment, `-c key=value`; every mistake is one line with its remedy.
//! - [`exit`]: the table of exit codes, and how a failure is told to people and to scripts.
//! - [`clock`]: wall time that never steps back; sleeping that notices a suspended machine.
//! - [`shutdown`]: one signal ends the process in order, a second one at once.
//! - [`observer`]: what an embedded tier tells its host program.
//! - [`telemetry`]: log lines on standard error.
//! - [`files`]: replaced as a whole or not at all, and checked when read.
//! - [`state_dir`]: the folder of one process: its magic, its version, its lock.
//!
//! What the keys mean, what the files hold and what is logged is left to the tiers.

#![forbid(unsafe_code)]

pub mod clock;
pub mod config;
pub mod exit;
pub mod files;
pub mod observer;
pub mod shutdown;
pub mod state_dir;
pub mod telemetry;
pub mod usage;
