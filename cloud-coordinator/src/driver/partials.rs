//! Partial aggregates as files: what the open round is rebuilt from, and what `round explain` reads. All calls block.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use wayside_domain::ids::{RoundId, UpdateId};
use wayside_domain::update::Verdict;
use wayside_host::files::{self, FileError, Seal, SealedError};
use wayside_proto::convert::{PartialAggregate, Wire as _};

const SEAL: Seal = Seal {
    magic: *b"wspart\0\0",
    version: 1,
};

/// The files of one job.
#[derive(Clone, Debug)]
pub(crate) struct PartialFiles {
    folder: PathBuf,
}

impl PartialFiles {
    /// The files below a job's folder.
    pub(crate) fn of(job_folder: &Path) -> Self {
        Self {
            folder: job_folder.join("partials"),
        }
    }

    /// Keeps a partial aggregate durably; one that does not count without its sum.
    pub(crate) fn write(
        &self,
        judged_in: RoundId,
        verdict: Verdict,
        partial: &PartialAggregate,
    ) -> Result<(), FileError> {
        let folder = self.folder.join(judged_in.0.to_string());
        let failed = |source| FileError::Io {
            path: folder.clone(),
            source,
        };
        let is_new = !folder.is_dir();
        fs::create_dir_all(&folder).map_err(failed)?;
        if is_new {
            // The names of new folders must survive as well as the file in them.
            for parent in folder.ancestors().skip(1).take(2) {
                fs::File::open(parent)
                    .and_then(|f| f.sync_all())
                    .map_err(failed)?;
            }
        }
        let bytes = if verdict.counts() {
            partial.encode()
        } else {
            let mut bare = partial.clone();
            bare.sum_frame = Vec::new();
            bare.encode()
        };
        files::write_sealed(&folder.join(partial.partial_id.to_hex()), SEAL, &bytes)
    }

    /// Reads a partial aggregate back; `None` with a WARN if it is damaged or gone.
    pub(crate) fn read(&self, judged_in: RoundId, id: UpdateId) -> Option<PartialAggregate> {
        let path = self.folder.join(judged_in.0.to_string()).join(id.to_hex());
        let limit = PartialAggregate::MAX_BYTES as u64;
        let bytes = match files::read_sealed(&path, SEAL, limit) {
            Ok(bytes) => bytes,
            Err(error) => {
                tracing::warn!(%error, "partial aggregate cannot be read");
                if matches!(error, SealedError::Damaged { .. }) {
                    let _ = files::move_aside(&path);
                }
                return None;
            }
        };
        PartialAggregate::decode(&bytes)
            .inspect_err(|error| tracing::warn!(%error, "partial aggregate cannot be read"))
            .ok()
    }

    /// Removes the files of a merge round that is no longer kept.
    pub(crate) fn drop_round(&self, round: RoundId) {
        match fs::remove_dir_all(self.folder.join(round.0.to_string())) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(%round, %error, "old partial aggregates cannot be removed");
            }
            _ => {}
        }
    }
}
