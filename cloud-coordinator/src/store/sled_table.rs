//! The store on sled 0.34.

use std::io;
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::time::Duration;

use super::{StoreError, Table};

/// Page cache; the records of a job are a few kilobytes.
const CACHE_BYTES: u64 = 8 << 20;
/// How often an open is tried again while the store's own lock is held: an earlier run within this process lets go of
/// it a moment after it ended. Other processes are kept out by the state folder's lock.
const LOCK_TRIES: u32 = 60;
const LOCK_WAIT: Duration = Duration::from_millis(50);

/// Records in a sled database.
#[derive(Debug)]
pub(super) struct SledTable(sled::Db);

impl SledTable {
    /// Opens or makes the database. A panic on the way counts as damage.
    pub(super) fn open(folder: &Path) -> Result<Self, StoreError> {
        let config = sled::Config::default()
            .path(folder)
            .cache_capacity(CACHE_BYTES)
            .flush_every_ms(None);
        let mut tries = 0;
        loop {
            match guarded(|| config.open()) {
                Ok(db) => return Ok(Self(db)),
                Err(Refused::Locked) if tries < LOCK_TRIES => {
                    tries += 1;
                    std::thread::sleep(LOCK_WAIT);
                }
                Err(Refused::Locked) => {
                    return Err(StoreError::Io(format!("{} is locked", folder.display())));
                }
                Err(Refused::Other(error)) => return Err(error),
            }
        }
    }
}

impl Table for SledTable {
    fn apply(&self, batch: Vec<(String, Option<Vec<u8>>)>) -> Result<(), StoreError> {
        let mut changes = sled::Batch::default();
        for (key, value) in batch {
            match value {
                Some(value) => changes.insert(key.into_bytes(), value),
                None => changes.remove(key.into_bytes()),
            }
        }
        let write = || {
            self.0.apply_batch(changes)?;
            self.0.flush()
        };
        guarded(write).map(|_| ()).map_err(Refused::into_error)
    }

    fn scan(&self, prefix: &str) -> Result<Vec<(String, Vec<u8>)>, StoreError> {
        let read = || {
            let entries = self.0.scan_prefix(prefix);
            entries
                .map(|entry| {
                    let (key, value) = entry?;
                    Ok((String::from_utf8_lossy(&key).into_owned(), value.to_vec()))
                })
                .collect::<sled::Result<Vec<_>>>()
        };
        guarded(read).map_err(Refused::into_error)
    }
}

enum Refused {
    Locked,
    Other(StoreError),
}

impl Refused {
    fn into_error(self) -> StoreError {
        match self {
            Self::Locked => StoreError::Io("locked".to_owned()),
            Self::Other(error) => error,
        }
    }
}

fn guarded<T>(call: impl FnOnce() -> sled::Result<T>) -> Result<T, Refused> {
    let result = std::panic::catch_unwind(AssertUnwindSafe(call));
    match result {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(sled::Error::Io(error))) => Err(judge_io(&error)),
        Ok(Err(error)) => Err(Refused::Other(StoreError::Damaged(error.to_string()))),
        Err(_) => Err(Refused::Other(StoreError::Damaged(
            "it cannot be opened or read".to_owned(),
        ))),
    }
}

fn judge_io(error: &io::Error) -> Refused {
    // sled wraps the lock's error in a text of its own.
    if error.to_string().contains("could not acquire lock") {
        return Refused::Locked;
    }
    Refused::Other(match error.kind() {
        io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidInput => {
            StoreError::Damaged(error.to_string())
        }
        _ => StoreError::Io(error.to_string()),
    })
}
