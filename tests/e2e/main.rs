//! End-to-end tests: real processes, real brokers, kill -9. One binary, so that the workspace links it once.

mod arrows;
mod crash;
mod demo;
mod hostile;
mod settings;
