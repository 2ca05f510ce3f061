//! The cloud: jobs, merge window, evaluation gate, model versions.
//!
//! - [`run`]: the door; may be used many times within one process.
//! - [`config`]: what the host decides. [`job`]: what the ML engineer decides.
//! - [`federation`]: the machine of one job; every decision is here. [`strategy`]: server optimizers.
//! - `driver`: one task a job, durable first, then visible. `hub`, `registry`: what jobs and services share.
//! - [`store`]: small records. [`versions`]: models in an object store.
//! - `service`: gRPC for roadside units and operators. [`admin_client`], [`cli`]: the operator's side of it.
//! - [`observer`]: events for whoever embeds a coordinator.

#![forbid(unsafe_code)]

pub mod admin_client;
pub mod cli;
pub mod config;
mod driver;
pub mod federation;
mod hub;
pub mod job;
pub mod observer;
mod registry;
mod run;
mod service;
pub mod store;
pub mod strategy;
pub mod versions;

pub use config::Config;
pub use observer::{Event, Observer};
pub use run::{RunError, run, run_with_clock};
