//! The vehicle: extracts features of its own pictures, trains a head on them, sends updates.
//!
//! [`run`] is the door: it may be called many times within one process. What a vehicle decides is in [`machine`], which
//! has no I/O; everything else carries it out.
//!
//! - [`config`]: the file, checked as a whole.
//! - [`machine`]: what to fetch, when to train, what to send, what to forget.
//! - [`pictures`], [`backbone`], [`features`]: from a folder of pictures to what a head is trained on.
//! - [`quantize`]: from pretrained weights to the int8 network that vehicles run.
//! - [`round`]: from a model and examples to an encoded update. [`inbox`]: from messages to what they say.
//! - [`store`], [`spool`]: what survives a crash, as small records and as files.
//! - [`event`]: what a watching program is told while a vehicle runs.
//! - [`cli`]: the commands.

#![forbid(unsafe_code)]

pub mod backbone;
pub mod cli;
pub mod config;
mod driver;
mod error;
pub mod event;
pub mod features;
mod heartbeat;
pub mod inbox;
mod link;
pub mod machine;
pub mod pictures;
pub mod quantize;
pub mod round;
pub mod spool;
pub mod store;
mod survey;
mod work;

pub use config::Config;
pub use driver::{Resources, run, run_with};
pub use error::RunError;
pub use event::{Event, Observer};
