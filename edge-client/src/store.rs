//! The vehicle's small records: which updates wait, which rounds are done, how often it started.
//!
//! What a method has written is durable when it returns, unless it says otherwise. Payloads and models are files
//! ([`crate::spool`]); here are records of a few hundred bytes. A damaged store is moved aside and begun empty: what it
//! held can be had again from the roadside unit, at worst by training a round twice under another update id.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use wayside_domain::ids::{Digest, Generation, JobId, RoadsideId, RoundId, UpdateId};
use wayside_domain::outbox::OutboxEntry;
use wayside_domain::time::Timestamp;
use wayside_host::files;

/// Memory that sled may use for pages.
const CACHE_BYTES: u64 = 8 << 20;

/// How often, and after which wait, a database that is still in use is opened again.
const LOCK_TRIES: u32 = 40;
const LOCK_WAIT: Duration = Duration::from_millis(50);

/// Everything in a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Records {
    /// The last start.
    pub generation: Generation,
    /// Updates sealed so far; goes into their ids.
    pub seals: u64,
    /// Updates without a receipt, by id.
    pub outbox: Vec<OutboxEntry>,
    /// The last round that was finished, by roadside unit and job.
    pub done: BTreeMap<(RoadsideId, JobId), RoundId>,
    /// Digest of the newest specification, by roadside unit and job.
    pub jobs: BTreeMap<(RoadsideId, JobId), Digest>,
}

/// Why a record could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The database refused.
    #[error("record store: {0}")]
    Sled(#[from] sled::Error),
    /// The database gave up on damaged files.
    #[error("record store is damaged")]
    Panicked,
    /// A record that no version of this software wrote.
    #[error("record {key:?} is damaged")]
    Record {
        /// Its key.
        key: String,
    },
    /// A file beside the records could not be written.
    #[error(transparent)]
    File(#[from] files::FileError),
}

/// The vehicle's records.
pub trait Store: Send + std::fmt::Debug {
    /// Reads everything.
    fn load(&self) -> Result<Records, StoreError>;
    /// Writes down a new start.
    fn begin(&mut self, generation: Generation) -> Result<(), StoreError>;
    /// Writes down a sealed update, that its round is done, and how many were sealed: all or nothing.
    fn record_update(&mut self, entry: &OutboxEntry, seals: u64) -> Result<(), StoreError>;
    /// Forgets an update; not durable until the next write that is.
    fn forget_update(&mut self, update_id: UpdateId) -> Result<(), StoreError>;
    /// Takes back that a round is done, since its update was lost before it was sent.
    fn reopen_round(&mut self, roadside: &RoadsideId, job: &JobId) -> Result<(), StoreError>;
    /// Writes down a job's newest specification; `None` forgets the job.
    fn remember_job(
        &mut self,
        roadside: &RoadsideId,
        job: &JobId,
        digest: Option<Digest>,
    ) -> Result<(), StoreError>;
}

/// Keys, each with a JSON value.
mod key {
    pub(super) const GENERATION: &str = "generation";
    pub(super) const SEALS: &str = "seals";
    pub(super) const OUTBOX: &str = "outbox/";
    pub(super) const DONE: &str = "done/";
    pub(super) const JOB: &str = "job/";
}

/// How an update is written down; field names are a promise to later versions.
#[derive(Debug, Deserialize, Serialize)]
struct StoredUpdate {
    job: String,
    roadside: String,
    round: u64,
    sealed_ms: u64,
}

/// Keys and values of a store, whatever holds them.
type Pairs = BTreeMap<String, Vec<u8>>;
/// Changes that belong together: a value, or `None` to delete.
type Changes = Vec<(String, Option<Vec<u8>>)>;

fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("records are plain structs and numbers")
}

fn pair_key(prefix: &str, roadside: &RoadsideId, job: &JobId) -> String {
    format!("{prefix}{roadside}/{job}")
}

fn update_changes(entry: &OutboxEntry, seals: u64) -> Changes {
    let stored = StoredUpdate {
        job: entry.job.to_string(),
        roadside: entry.roadside.to_string(),
        round: entry.round.0,
        sealed_ms: entry.sealed.0,
    };
    let done = pair_key(key::DONE, &entry.roadside, &entry.job);
    vec![
        (
            format!("{}{}", key::OUTBOX, entry.update_id.to_hex()),
            Some(json(&stored)),
        ),
        (done, Some(json(&entry.round.0))),
        (key::SEALS.to_owned(), Some(json(&seals))),
    ]
}

/// Reads records; one that is damaged makes the store damaged.
fn read(pairs: &Pairs) -> Result<Records, StoreError> {
    let mut records = Records::default();
    for (key, value) in pairs {
        read_one(&mut records, key, value)
            .ok_or_else(|| StoreError::Record { key: key.clone() })?;
    }
    records
        .outbox
        .sort_by_key(|entry| (entry.sealed, entry.update_id));
    Ok(records)
}

fn read_one(records: &mut Records, key: &str, value: &[u8]) -> Option<()> {
    let number = || serde_json::from_slice::<u64>(value).ok();
    let pair = |text: &str| {
        let (roadside, job) = text.split_once('/')?;
        Some((RoadsideId::new(roadside).ok()?, JobId::new(job).ok()?))
    };
    if key == key::GENERATION {
        records.generation = Generation(number()?);
    } else if key == key::SEALS {
        records.seals = number()?;
    } else if let Some(id) = key.strip_prefix(key::OUTBOX) {
        let stored: StoredUpdate = serde_json::from_slice(value).ok()?;
        records.outbox.push(OutboxEntry {
            update_id: UpdateId::from_hex(id)?,
            job: JobId::new(stored.job).ok()?,
            roadside: RoadsideId::new(stored.roadside).ok()?,
            round: RoundId(stored.round),
            sealed: Timestamp(stored.sealed_ms),
        });
    } else if let Some(rest) = key.strip_prefix(key::DONE) {
        records.done.insert(pair(rest)?, RoundId(number()?));
    } else if let Some(rest) = key.strip_prefix(key::JOB) {
        let hex: String = serde_json::from_slice(value).ok()?;
        records.jobs.insert(pair(rest)?, Digest::from_hex(&hex)?);
    }
    // Keys of later versions are left alone.
    Some(())
}

/// sled names a lock that another handle holds in the text of an I/O error only.
fn is_locked(error: &StoreError) -> bool {
    matches!(error, StoreError::Sled(sled::Error::Io(source)) if source.to_string().contains("acquire lock"))
}

/// Records in a sled database.
#[derive(Debug)]
pub struct SledStore {
    db: sled::Db,
}

impl SledStore {
    /// Opens or makes the database in `folder`. A damaged one is moved aside; the second value says where to.
    pub fn open(folder: &Path) -> Result<(Self, Option<PathBuf>), StoreError> {
        let mut tries = LOCK_TRIES;
        loop {
            match Self::try_open(folder) {
                Ok(store) => return Ok((store, None)),
                // Another vehicle of this process has just ended here and not yet let go: that is no damage.
                Err(error) if is_locked(&error) => {
                    if tries == 0 {
                        return Err(error);
                    }
                    tries -= 1;
                    std::thread::sleep(LOCK_WAIT);
                }
                Err(error) if !folder.is_dir() => return Err(error),
                Err(_) => {
                    let aside = files::move_aside(folder)?;
                    return Ok((Self::try_open(folder)?, Some(aside)));
                }
            }
        }
    }

    fn try_open(folder: &Path) -> Result<Self, StoreError> {
        // sled panics on some kinds of damage.
        let open = || {
            let config = sled::Config::new().path(folder).cache_capacity(CACHE_BYTES);
            let store = Self {
                db: config.flush_every_ms(None).open()?,
            };
            store.load().map(|_| store)
        };
        catch_unwind(AssertUnwindSafe(open)).unwrap_or(Err(StoreError::Panicked))
    }

    fn change(&mut self, changes: Changes, durable: bool) -> Result<(), StoreError> {
        let mut batch = sled::Batch::default();
        for (key, value) in changes {
            match value {
                Some(value) => batch.insert(key.as_bytes(), value),
                None => batch.remove(key.as_bytes()),
            }
        }
        self.db.apply_batch(batch)?;
        if durable {
            self.db.flush()?;
        }
        Ok(())
    }
}

/// Records in memory, for tests and simulation.
#[derive(Clone, Debug, Default)]
pub struct MemoryStore {
    now: Pairs,
    flushed: Pairs,
}

impl MemoryStore {
    /// What a crash leaves: everything that was durable.
    #[must_use]
    pub fn after_crash(&self) -> Self {
        Self {
            now: self.flushed.clone(),
            flushed: self.flushed.clone(),
        }
    }

    #[allow(clippy::unnecessary_wraps, reason = "the same shape as the sled form")]
    fn change(&mut self, changes: Changes, durable: bool) -> Result<(), StoreError> {
        for (key, value) in changes {
            match value {
                Some(value) => self.now.insert(key, value),
                None => self.now.remove(&key),
            };
        }
        if durable {
            self.flushed.clone_from(&self.now);
        }
        Ok(())
    }
}

macro_rules! store {
    ($name:ident, $self:ident, $pairs:expr) => {
        impl Store for $name {
            fn load(&$self) -> Result<Records, StoreError> {
                $pairs.and_then(|pairs: Pairs| read(&pairs))
            }

            fn begin(&mut self, generation: Generation) -> Result<(), StoreError> {
                self.change(vec![(key::GENERATION.to_owned(), Some(json(&generation.0)))], true)
            }

            fn record_update(&mut self, entry: &OutboxEntry, seals: u64) -> Result<(), StoreError> {
                self.change(update_changes(entry, seals), true)
            }

            fn forget_update(&mut self, update_id: UpdateId) -> Result<(), StoreError> {
                let key = format!("{}{}", key::OUTBOX, update_id.to_hex());
                self.change(vec![(key, None)], false)
            }

            fn reopen_round(&mut self, roadside: &RoadsideId, job: &JobId) -> Result<(), StoreError> {
                self.change(vec![(pair_key(key::DONE, roadside, job), None)], true)
            }

            fn remember_job(
                &mut self,
                roadside: &RoadsideId,
                job: &JobId,
                digest: Option<Digest>,
            ) -> Result<(), StoreError> {
                let value = digest.map(|digest| json(&digest.to_hex()));
                self.change(vec![(pair_key(key::JOB, roadside, job), value)], true)
            }
        }
    };
}

store!(SledStore, self, {
    let pair = |pair: sled::Result<(sled::IVec, sled::IVec)>| {
        let (key, value) = pair?;
        Ok((String::from_utf8_lossy(&key).into_owned(), value.to_vec()))
    };
    self.db
        .iter()
        .map(pair)
        .collect::<Result<Pairs, StoreError>>()
});
store!(MemoryStore, self, Ok(self.now.clone()));

#[cfg(test)]
mod tests {
    use super::*;

    fn rsu() -> RoadsideId {
        RoadsideId::new("rsu").unwrap()
    }

    fn job() -> JobId {
        JobId::new("lights").unwrap()
    }

    fn entry(n: u8) -> OutboxEntry {
        OutboxEntry {
            update_id: UpdateId([n; 16]),
            job: job(),
            roadside: rsu(),
            round: RoundId(n.into()),
            sealed: Timestamp(100 + u64::from(n)),
        }
    }

    fn fill(store: &mut dyn Store) {
        store.begin(Generation(7)).unwrap();
        store.record_update(&entry(2), 1).unwrap();
        store.record_update(&entry(1), 2).unwrap();
        store
            .remember_job(&rsu(), &job(), Some(Digest([9; 32])))
            .unwrap();
    }

    fn check(records: &Records) {
        assert_eq!(records.generation, Generation(7));
        assert_eq!(records.seals, 2);
        assert_eq!(records.outbox, [entry(1), entry(2)]);
        assert_eq!(records.done[&(rsu(), job())], RoundId(1));
        assert_eq!(records.jobs[&(rsu(), job())], Digest([9; 32]));
    }

    #[test]
    fn records_are_there_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("records");
        let (mut store, _) = SledStore::open(&path).unwrap();
        fill(&mut store);
        drop(store);
        let (store, aside) = SledStore::open(&path).unwrap();
        assert_eq!(aside, None);
        check(&store.load().unwrap());
    }

    #[test]
    fn a_crash_in_memory_forgets_what_was_not_flushed() {
        let mut store = MemoryStore::default();
        fill(&mut store);
        store.forget_update(UpdateId([1; 16])).unwrap();
        assert_eq!(store.load().unwrap().outbox.len(), 1);
        check(&store.after_crash().load().unwrap());
        store.reopen_round(&rsu(), &job()).unwrap();
        let records = store.after_crash().load().unwrap();
        assert_eq!((records.outbox.len(), records.done.len()), (1, 0));
    }

    #[test]
    fn a_damaged_store_is_moved_aside() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("records");
        let (mut store, _) = SledStore::open(&path).unwrap();
        fill(&mut store);
        drop(store);
        std::fs::write(path.join("conf"), [0; 40]).unwrap();
        std::fs::write(path.join("db"), [0; 4000]).unwrap();
        let (store, aside) = SledStore::open(&path).unwrap();
        assert!(aside.unwrap().ends_with("records.damaged-1"));
        assert_eq!(store.load().unwrap(), Records::default());
    }

    #[test]
    fn a_store_in_use_is_waited_for_and_not_moved_aside() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("records");
        let (mut store, _) = SledStore::open(&path).unwrap();
        fill(&mut store);
        let error = SledStore::open(&path).unwrap_err();
        assert!(is_locked(&error), "{error}");
        let waiting = std::thread::spawn({
            let path = path.clone();
            move || SledStore::open(&path).map(|(store, aside)| (store.load().unwrap(), aside))
        });
        std::thread::sleep(LOCK_WAIT * 2);
        drop(store);
        let (records, aside) = waiting.join().unwrap().unwrap();
        assert_eq!(aside, None);
        check(&records);
    }

    #[test]
    fn a_record_of_nonsense_makes_the_store_damaged() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("records");
        let (store, _) = SledStore::open(&path).unwrap();
        store.db.insert("outbox/zz", "{}").unwrap();
        store.db.insert("later/key", "anything").unwrap();
        store.db.flush().unwrap();
        assert!(matches!(store.load(), Err(StoreError::Record { .. })));
        drop(store);
        let (_, aside) = SledStore::open(&path).unwrap();
        assert!(aside.is_some());
    }
}
