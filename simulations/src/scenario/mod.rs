//! Scenarios: from a TOML file to a city that can be run.

mod build;
mod file;

pub use build::{Scenario, ScenarioError};
pub use file::{
    AttackSpec, Data, DataKind, Energy, Expect, FaultKind, FaultSpec, Job, ScenarioFile, Tiers,
};
