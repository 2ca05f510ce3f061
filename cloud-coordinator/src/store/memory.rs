//! The store without a disk, for tests.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::{StoreError, Table};

/// Entries in memory; clones share them, so that a "restarted" coordinator finds what was durable.
#[derive(Clone, Debug, Default)]
pub struct MemoryTable {
    entries: Arc<Mutex<BTreeMap<String, Vec<u8>>>>,
    failing: Arc<AtomicBool>,
}

impl MemoryTable {
    /// Makes commits fail, or work again: a full disk.
    pub fn fail(&self, failing: bool) {
        self.failing.store(failing, Ordering::SeqCst);
    }
}

impl Table for MemoryTable {
    fn apply(&self, batch: Vec<(String, Option<Vec<u8>>)>) -> Result<(), StoreError> {
        if self.failing.load(Ordering::SeqCst) {
            return Err(StoreError::Io("told to fail".to_owned()));
        }
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        for (key, value) in batch {
            match value {
                Some(value) => entries.insert(key, value),
                None => entries.remove(&key),
            };
        }
        Ok(())
    }

    fn scan(&self, prefix: &str) -> Result<Vec<(String, Vec<u8>)>, StoreError> {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let from = entries.range(prefix.to_owned()..);
        let found = from.take_while(|(key, _)| key.starts_with(prefix));
        Ok(found
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect())
    }
}
