//! Jobs, rounds, versions, receipts and the registry, as small records. Models and partial aggregates are files.
//!
//! Every commit is atomic and durable when it returns, so there is never an unflushed write to forget; a commit that
//! fails has changed nothing. The sled form is what runs; the in-memory form can be told to fail. No sled type leaves
//! this folder.

mod memory;
mod records;
mod sled_table;

use std::fmt;
use std::path::Path;

pub use memory::MemoryTable;
pub use records::{JobRecord, PartialRecord, RoadsideRecord, RoundRecord};

use crate::versions::Metadata;
use serde::Serialize;
use serde::de::DeserializeOwned;
use wayside_domain::ids::{JobId, RoundId};

/// Why the store could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The system refused; a retry may help.
    #[error("store: {0}")]
    Io(String),
    /// The store is not what was written.
    #[error("store damaged: {0}")]
    Damaged(String),
    /// One record is not what was written.
    #[error("store damaged: record of a {kind}")]
    Record {
        /// What it should be.
        kind: &'static str,
    },
}

/// Sorted keys and values with atomic, durable batches: all that a form of the store has to offer.
pub trait Table: Send + Sync + fmt::Debug {
    /// Applies all changes or none and flushes; `None` removes.
    ///
    /// # Errors
    /// [`StoreError`]; then nothing has changed.
    fn apply(&self, batch: Vec<(String, Option<Vec<u8>>)>) -> Result<(), StoreError>;

    /// All entries whose key begins with `prefix`, in order.
    ///
    /// # Errors
    /// [`StoreError`] if the store cannot be read.
    fn scan(&self, prefix: &str) -> Result<Vec<(String, Vec<u8>)>, StoreError>;
}

/// One change of a commit.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// A roadside unit was seen.
    Roadside(RoadsideRecord),
    /// A job moved on.
    Job(JobId, JobRecord),
    /// A merge round moved on.
    Round(JobId, RoundRecord),
    /// A version was made.
    Version(JobId, Box<Metadata>),
    /// A partial aggregate was judged.
    Partial(JobId, PartialRecord),
    /// Partial aggregates judged in this merge round are no longer kept.
    DropPartials(JobId, RoundId),
}

/// The store of one coordinator. All calls block.
#[derive(Debug)]
pub struct Store(Box<dyn Table>);

impl Store {
    /// A store on any table.
    pub fn new(table: impl Table + 'static) -> Self {
        Self(Box::new(table))
    }

    /// Opens the store in a folder. A damaged one is moved aside with a WARN and started empty.
    ///
    /// # Errors
    /// [`StoreError::Io`] if the folder cannot be used.
    pub fn open(folder: &Path) -> Result<Self, StoreError> {
        let open = || {
            let store = Self::new(sled_table::SledTable::open(folder)?);
            store.check()?;
            Ok(store)
        };
        match open() {
            Err(error @ (StoreError::Damaged(_) | StoreError::Record { .. })) => {
                let aside = wayside_host::files::move_aside(folder)
                    .map_err(|error| StoreError::Io(error.to_string()))?;
                tracing::warn!(%error, moved_to = %aside.display(), "store damaged, starting empty");
                open()
            }
            other => other,
        }
    }

    /// Makes all changes durable, or none.
    ///
    /// # Errors
    /// [`StoreError`]; then nothing has changed.
    pub fn commit(&self, changes: &[Change]) -> Result<(), StoreError> {
        let mut batch = Vec::with_capacity(changes.len());
        for change in changes {
            match change {
                Change::Roadside(record) => {
                    batch.push(entry(format!("roadside/{}", record.roadside), record)?);
                }
                Change::Job(job, record) => batch.push(entry(format!("job/{job}"), record)?),
                Change::Round(job, record) => {
                    batch.push(entry(
                        format!("round/{job}/{:020}", record.merge_round().0),
                        record,
                    )?);
                }
                Change::Version(job, record) => {
                    batch.push(entry(
                        format!("version/{job}/{:020}", record.version),
                        record,
                    )?);
                }
                Change::Partial(job, record) => {
                    let (round, id) = (record.judged_in, &record.partial_id);
                    batch.push(entry(format!("partial/{job}/{round:020}/{id}"), record)?);
                }
                Change::DropPartials(job, round) => {
                    let old = self.0.scan(&partials_of(job, *round))?;
                    batch.extend(old.into_iter().map(|(key, _)| (key, None)));
                }
            }
        }
        self.0.apply(batch)
    }

    /// Every roadside unit that ever said hello.
    ///
    /// # Errors
    /// [`StoreError`] if the store cannot be read.
    pub fn roadsides(&self) -> Result<Vec<RoadsideRecord>, StoreError> {
        self.read("roadside/", "roadside unit")
    }

    /// Every job.
    ///
    /// # Errors
    /// [`StoreError`] if the store cannot be read.
    pub fn jobs(&self) -> Result<Vec<JobRecord>, StoreError> {
        self.read("job/", "job")
    }

    /// All merge rounds of a job, oldest first.
    ///
    /// # Errors
    /// [`StoreError`] if the store cannot be read.
    pub fn rounds(&self, job: &JobId) -> Result<Vec<RoundRecord>, StoreError> {
        self.read(&format!("round/{job}/"), "round")
    }

    /// One merge round.
    ///
    /// # Errors
    /// [`StoreError`] if the store cannot be read.
    pub fn round(&self, job: &JobId, round: RoundId) -> Result<Option<RoundRecord>, StoreError> {
        let found: Vec<_> = self.read(&format!("round/{job}/{:020}", round.0), "round")?;
        Ok(found.into_iter().next())
    }

    /// All versions of a job, oldest first.
    ///
    /// # Errors
    /// [`StoreError`] if the store cannot be read.
    pub fn versions(&self, job: &JobId) -> Result<Vec<Metadata>, StoreError> {
        self.read(&format!("version/{job}/"), "version")
    }

    /// Partial aggregates that were judged in a merge round.
    ///
    /// # Errors
    /// [`StoreError`] if the store cannot be read.
    pub fn partials(&self, job: &JobId, round: RoundId) -> Result<Vec<PartialRecord>, StoreError> {
        self.read(&partials_of(job, round), "partial")
    }

    fn read<T: DeserializeOwned>(
        &self,
        prefix: &str,
        kind: &'static str,
    ) -> Result<Vec<T>, StoreError> {
        let entries = self.0.scan(prefix)?;
        let read = |(_, value): &(String, Vec<u8>)| serde_json::from_slice(value);
        let values: Result<_, _> = entries.iter().map(read).collect();
        values.map_err(|_| StoreError::Record { kind })
    }

    /// Reads every record once.
    fn check(&self) -> Result<(), StoreError> {
        self.read::<RoadsideRecord>("roadside/", "roadside unit")?;
        for record in self.read::<JobRecord>("job/", "job")? {
            record.read()?;
        }
        self.read::<RoundRecord>("round/", "round")?;
        self.read::<Metadata>("version/", "version")?;
        for record in self.read::<PartialRecord>("partial/", "partial")? {
            record.receipt()?;
        }
        Ok(())
    }
}

fn partials_of(job: &JobId, round: RoundId) -> String {
    format!("partial/{job}/{:020}/", round.0)
}

fn entry(key: String, record: &impl Serialize) -> Result<(String, Option<Vec<u8>>), StoreError> {
    let value = serde_json::to_vec(record).map_err(|error| StoreError::Io(error.to_string()))?;
    Ok((key, Some(value)))
}

#[cfg(test)]
mod tests;
