//! Why a world cannot be made.

use std::path::PathBuf;

/// A description of a world that makes no sense, or a trace that cannot be read. A retry does not help.
#[derive(Debug, thiserror::Error)]
pub enum WorldError {
    /// A value out of its range.
    #[error("{field} is {got}, must be {allowed}")]
    Value {
        /// Section and field, such as `roads.block_m`.
        field: String,
        /// The value.
        got: String,
        /// What it may be.
        allowed: String,
    },
    /// The trace cannot be read.
    #[error("mobility.trace: {}", .path.display())]
    Trace {
        /// The file.
        path: PathBuf,
        /// What the system says.
        #[source]
        source: std::io::Error,
    },
    /// A row of the trace cannot be used.
    #[error("mobility.trace: {}, line {line}: {reason}; a row is `time,vehicle,x,y` in seconds and metres", .path.display())]
    Row {
        /// The file.
        path: PathBuf,
        /// The row, the first line of the file being 1.
        line: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// More vehicles than the trace has.
    #[error(
        "mobility.trace: the file has {got} vehicles, the fleet {wanted}; use a longer trace or a smaller fleet"
    )]
    TooFewTracks {
        /// Vehicles in the file.
        got: usize,
        /// Vehicles of the fleet.
        wanted: u32,
    },
}
