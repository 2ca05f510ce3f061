//! Why a vehicle ended, and with which exit code.

use std::path::PathBuf;

use wayside_host::config::ConfigError;
use wayside_host::exit::{Exit, Failure};
use wayside_host::state_dir::StateDirError;

use crate::backbone::BackboneError;
use crate::store::StoreError;

/// Why a vehicle could not start or had to end. A link that is down is no reason.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A value of the configuration is not allowed.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The state folder cannot be used.
    #[error(transparent)]
    StateDir(#[from] StateDirError),
    /// The records in the state folder cannot be read or written.
    #[error("state folder {}: {source}: free space or fix the disk, or name another folder with state.dir", path.display())]
    Store {
        /// The folder.
        path: PathBuf,
        /// What went wrong.
        source: StoreError,
    },
    /// The backbone's weights are missing or unfit.
    #[error("model.weights {}: {}: name a backbone file with model.weights", path.display(), chain(source))]
    Weights {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: BackboneError,
    },
    /// The pictures are missing.
    #[error("data.pictures {}: {reason}: name a folder with one sub-folder a class, or a safetensors file", path.display())]
    Pictures {
        /// The folder or file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A task of the vehicle ended that never should; a mistake of ours.
    #[error("{0} ended unexpectedly")]
    TaskEnded(&'static str),
}

impl RunError {
    /// The code the process ends with.
    pub fn exit_code(&self) -> Exit {
        match self {
            Self::Config(error) => error.exit_code(),
            Self::StateDir(error) => error.exit_code(),
            Self::Store { .. } => Exit::StateNotWritable,
            Self::Weights { .. } => Exit::Weights,
            Self::Pictures { .. } => Exit::Pictures,
            Self::TaskEnded(_) => Exit::Failed,
        }
    }
}

impl From<RunError> for Failure {
    fn from(error: RunError) -> Self {
        Self::new(error.exit_code(), error)
    }
}

/// An error with its causes in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        cause = error.source();
    }
    text
}
