//! Studies: one question each, answered in one process on real features, without sockets.
//!
//! - [`fleet`]: who has which features; what every study starts from.
//! - `course`: rounds in one process, as the tiers run them.
//! - [`attacks`]: what hostile vehicles can do to a model, by rule.
//! - [`codecs`]: what each encoding of updates costs and gives.
//! - [`local`]: which local algorithm makes up for skewed data.

pub mod attacks;
pub mod codecs;
mod course;
pub mod fleet;
pub mod local;
