//! Where sealed payloads lie: files of a folder, or memory for simulations. Both keep what was put, whole or not at all.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use tracing::warn;
use wayside_host::files::{self, FileError, Seal, SealedError};

use crate::store::StoreError;

/// Largest payload that is read back, in bytes.
const MAX_PAYLOAD: u64 = 256 << 20;

/// The folders on the shelf.
const FOLDERS: [&str; 4] = ["outbox", "models", "jobs", "feedback"];

/// Sealed payloads by name, such as `models/{digest}.model`. Clones share what they keep.
#[derive(Clone, Debug)]
pub(super) enum Shelf {
    Folder(PathBuf),
    Memory(Arc<Mutex<BTreeMap<String, Arc<[u8]>>>>),
}

impl Shelf {
    /// In a folder; what a crash left half written is removed.
    pub(super) fn open(folder: &Path) -> Result<Self, StoreError> {
        for name in FOLDERS {
            let folder = folder.join(name);
            fs::create_dir_all(&folder).map_err(|source| FileError::Io {
                path: folder.clone(),
                source,
            })?;
            files::remove_leftovers(&folder)?;
        }
        Ok(Self::Folder(folder.to_owned()))
    }

    pub(super) fn in_memory() -> Self {
        Self::Memory(Arc::default())
    }

    /// The folder; none in memory.
    pub(super) fn folder(&self) -> Option<&Path> {
        match self {
            Self::Folder(folder) => Some(folder),
            Self::Memory(_) => None,
        }
    }

    /// A payload as it was put.
    pub(super) fn get(&self, name: &str, seal: Seal) -> Result<Vec<u8>, SealedError> {
        match self {
            Self::Folder(folder) => files::read_sealed(&folder.join(name), seal, MAX_PAYLOAD),
            Self::Memory(kept) => {
                let kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                let found = kept.get(name).map(|bytes| bytes.to_vec());
                found.ok_or_else(|| missing(name).into())
            }
        }
    }

    /// As [`Shelf::get`]; a damaged file is moved aside.
    pub(super) fn get_or_move_aside(&self, name: &str, seal: Seal) -> Result<Vec<u8>, SealedError> {
        let result = self.get(name, seal);
        if let (Err(error @ SealedError::Damaged { .. }), Self::Folder(folder)) = (&result, self) {
            match files::move_aside(&folder.join(name)) {
                Ok(aside) => warn!(%error, moved_to = %aside.display(), "damaged file moved aside"),
                Err(failure) => warn!(%error, %failure, "damaged file stays where it is"),
            }
        }
        result
    }

    /// Makes a payload durable. Memory keeps a shared one without a copy.
    pub(super) fn put<B>(&self, name: &str, seal: Seal, bytes: B) -> Result<(), FileError>
    where
        B: AsRef<[u8]> + Into<Arc<[u8]>>,
    {
        match self {
            Self::Folder(folder) => files::write_sealed(&folder.join(name), seal, bytes.as_ref()),
            Self::Memory(kept) => {
                let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                kept.insert(name.to_owned(), bytes.into());
                Ok(())
            }
        }
    }

    /// Whether there is something by this name.
    pub(super) fn has(&self, name: &str) -> bool {
        match self {
            Self::Folder(folder) => folder.join(name).exists(),
            Self::Memory(kept) => {
                let kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                kept.contains_key(name)
            }
        }
    }

    /// Gives a payload another name, at which it replaces what was there.
    pub(super) fn rename(&self, from: &str, to: &str) -> Result<(), FileError> {
        match self {
            Self::Folder(folder) => {
                let to = folder.join(to);
                fs::rename(folder.join(from), &to)
                    .map_err(|source| FileError::Io { path: to, source })
            }
            Self::Memory(kept) => {
                let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                let bytes = kept.remove(from).ok_or_else(|| missing(from))?;
                kept.insert(to.to_owned(), bytes);
                Ok(())
            }
        }
    }

    /// Deletes a payload; a file that stays is swept away at a later start.
    pub(super) fn remove(&self, name: &str) {
        match self {
            Self::Folder(folder) => {
                let path = folder.join(name);
                if let Err(error) = fs::remove_file(&path)
                    && error.kind() != io::ErrorKind::NotFound
                {
                    warn!(path = %path.display(), %error, "file cannot be deleted");
                }
            }
            Self::Memory(kept) => {
                let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                kept.remove(name);
            }
        }
    }

    /// Names in one of the folders that end in this extension.
    pub(super) fn names(&self, folder: &str, extension: &str) -> Vec<String> {
        let fits = |name: &String| Path::new(name).extension().is_some_and(|e| e == extension);
        match self {
            Self::Folder(root) => {
                let entries = fs::read_dir(root.join(folder))
                    .into_iter()
                    .flatten()
                    .flatten();
                let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
                names
                    .map(|name| format!("{folder}/{name}"))
                    .filter(fits)
                    .collect()
            }
            Self::Memory(kept) => {
                let kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                let here = format!("{folder}/");
                let names = kept.keys().filter(|name| name.starts_with(&here));
                names.filter(|name| fits(name)).cloned().collect()
            }
        }
    }

    /// Deletes what has this extension and nobody keeps.
    pub(super) fn sweep(&self, folder: &str, extension: &str, keep: impl Fn(&str) -> bool) {
        for name in self.names(folder, extension) {
            if !keep(&name) {
                self.remove(&name);
            }
        }
    }
}

fn missing(name: &str) -> FileError {
    FileError::Io {
        path: PathBuf::from(name),
        source: io::ErrorKind::NotFound.into(),
    }
}
