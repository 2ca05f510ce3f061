//! What a run of the simulator leaves behind, and how runs are shown side by side.
//!
//! The engine fills one [`RunRecord`]. Everything else here is a function of records and of nothing else: two equal
//! records give the same files byte for byte. Nothing here reads a clock or decides what is simulated.

pub mod compare;
pub mod csv;
mod format;
pub mod page;
pub mod read;
pub mod record;
#[cfg(test)]
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "made-up figures are small and positive"
)]
mod sample;
pub mod summary;
pub mod tensorboard;
pub mod write;

pub use read::{read, read_all};
pub use record::RunRecord;
pub use write::write;
