//! State on disk: records in sled, frames and partial aggregates as sealed files.
//!
//! Layout below the state folder: `records/` is sled's; `updates/`, `models/`, `partials/` and `residuals/` hold files. A file is
//! durable before the record that names it, and removed after the record is gone; files without a record are removed at
//! the next load.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;
use wayside_domain::ids::{Digest, Generation, JobId, RoundId, UpdateId, VehicleId};
use wayside_host::files::{
    Seal, move_aside, read_sealed, read_sealed_part, remove_leftovers, write_sealed,
};
use wayside_proto::convert::{Plan, Wire as _};

use super::records::{
    LedgerRecord, LineRecord, PartialRecord, ReceiptRecord, UpdateRecord, VehicleRecord,
};
use super::{FrameKey, Store, StoreError, Stored, StoredJob, StoredUpdate, Write};
use crate::region::Pending;

/// Memory that sled may use; the records are small.
const CACHE_BYTES: u64 = 8 << 20;
/// Largest file that is read.
const MAX_FILE_BYTES: u64 = 1 << 30;
const UPDATE: Seal = Seal {
    magic: *b"wsupdate",
    version: 1,
};
const MODEL: Seal = Seal {
    magic: *b"wsmodel\0",
    version: 1,
};
const RESIDUAL: Seal = Seal {
    magic: *b"wsresidu",
    version: 1,
};
const PARTIAL: Seal = Seal {
    magic: *b"wspartal",
    version: 1,
};

/// State on disk.
#[derive(Debug)]
pub struct Disk {
    folder: PathBuf,
    records: sled::Db,
    damaged: bool,
}

/// What a commit changes in sled, by key; `None` removes.
type Changes = BTreeMap<String, Option<Vec<u8>>>;

impl Disk {
    /// Opens the state below `folder`, which this process holds. A damaged store is moved aside and begun anew.
    pub fn open(folder: &Path) -> Result<Self, StoreError> {
        for name in ["updates", "models", "partials", "residuals"] {
            let path = folder.join(name);
            fs::create_dir_all(&path).map_err(|error| failed(&path, error))?;
            remove_leftovers(&path).map_err(|error| StoreError(error.to_string()))?;
        }
        let path = folder.join("records");
        let (records, damaged) = match open_records(&path) {
            Ok(records) => (records, false),
            Err(reason) => {
                let aside = move_aside(&path).map_err(|error| StoreError(error.to_string()))?;
                tracing::warn!(%reason, moved_to = %aside.display(), "store is damaged and begun anew");
                (open_records(&path).map_err(StoreError)?, true)
            }
        };
        Ok(Self {
            folder: folder.to_owned(),
            records,
            damaged,
        })
    }

    fn file(&self, kind: &str, name: &str) -> PathBuf {
        self.folder.join(kind).join(name)
    }

    fn model_file(&self, digest: Digest) -> PathBuf {
        self.file("models", &digest.to_hex())
    }

    /// All records whose key begins so, without that beginning.
    fn scan<T: DeserializeOwned>(
        &self,
        prefix: &str,
        damaged: &mut bool,
    ) -> Result<Vec<(String, T)>, StoreError> {
        let mut found = Vec::new();
        for entry in self.records.scan_prefix(prefix) {
            let (key, value) = entry.map_err(sled_failed)?;
            let rest = std::str::from_utf8(&key)
                .ok()
                .and_then(|k| k.strip_prefix(prefix));
            if let (Some(rest), Ok(record)) = (rest, serde_json::from_slice(&value)) {
                found.push((rest.to_owned(), record));
            } else {
                *damaged = true;
                tracing::warn!(key = %String::from_utf8_lossy(&key), "stored record is damaged and left out");
            }
        }
        Ok(found)
    }

    fn load_job(&self, job: &JobId, damaged: &mut bool) -> Result<StoredJob, StoreError> {
        let mut stored = StoredJob::default();
        let plan = self
            .records
            .get(format!("plan/{job}"))
            .map_err(sled_failed)?;
        let plan = plan.and_then(|bytes| Plan::decode(&bytes).ok()?.jobs.pop());
        let record = self
            .scan::<LedgerRecord>(&format!("ledger/{job}/"), damaged)?
            .pop();
        stored.ledger = match (plan, record) {
            (Some(plan), Some((_, record))) => record.read(plan),
            _ => None,
        };
        if stored.ledger.is_none() {
            *damaged = true;
            tracing::warn!(%job, "stored job is damaged and left out");
            return Ok(stored);
        }
        for (name, record) in self.scan::<UpdateRecord>(&format!("update/{job}/"), damaged)? {
            if let (Ok(vehicle), Some(accepted)) = (VehicleId::new(name), record.accepted()) {
                stored.updates.push(StoredUpdate {
                    vehicle,
                    round: RoundId(record.round),
                    accepted,
                    staleness: record.staleness,
                });
            } else {
                tracing::warn!(%job, "accepted update is lost");
            }
        }
        for (key, record) in self.scan::<ReceiptRecord>(&format!("receipt/{job}/"), damaged)? {
            if let (Some(key), Some((round, verdict))) = (UpdateId::from_hex(&key), record.read()) {
                stored.receipts.push((key, round, verdict));
            }
        }
        // The book forgets by round, so older ones first.
        stored
            .receipts
            .sort_by_key(|(key, round, _)| (*round, *key));
        let lines = self.scan::<LineRecord>(&format!("line/{job}/"), damaged)?;
        stored.lines = lines
            .iter()
            .filter_map(|(_, record)| record.read())
            .collect();
        let partial = self
            .scan::<PartialRecord>(&format!("partial/{job}/"), damaged)?
            .pop();
        if let Some((_, record)) = partial {
            let path = self.file("partials", job.as_str());
            match (
                UpdateId::from_hex(&record.partial_id),
                read_sealed(&path, PARTIAL, MAX_FILE_BYTES),
            ) {
                (Some(partial_id), Ok(bytes)) => {
                    stored.pending = Some(Pending {
                        merge_round: RoundId(record.merge_round),
                        partial_id,
                        bytes,
                    });
                }
                (_, Err(error)) => tracing::warn!(%error, "partial aggregate is lost"),
                _ => tracing::warn!(%job, "partial aggregate is lost"),
            }
        }
        // Without it a contribution is off by what rounding took once: no reason to say more.
        let residual = self.file("residuals", job.as_str());
        if let Ok(bytes) = read_sealed(&residual, RESIDUAL, MAX_FILE_BYTES) {
            let (values, _) = bytes.as_chunks::<4>();
            stored.residual = values.iter().map(|b| f32::from_le_bytes(*b)).collect();
            if !stored.residual.iter().all(|value| value.is_finite()) {
                stored.residual.clear();
            }
        }
        Ok(stored)
    }

    /// Writes files and collects changes of records; files that are not needed afterwards go to `rubbish`.
    fn prepare(
        &self,
        write: Write,
        changes: &mut Changes,
        rubbish: &mut BTreeSet<PathBuf>,
    ) -> Result<(), StoreError> {
        match write {
            Write::Generation(generation) => put(changes, "unit/generation".into(), &generation.0)?,
            Write::Vehicle(id, vehicle) => {
                put(
                    changes,
                    format!("vehicle/{id}"),
                    &VehicleRecord::from(&vehicle),
                )?;
            }
            Write::ForgetVehicle(id) => {
                changes.insert(format!("vehicle/{id}"), None);
            }
            Write::Ledger(job, ledger) => {
                put(
                    changes,
                    format!("ledger/{job}/now"),
                    &LedgerRecord::from(&*ledger),
                )?;
                let plan = Plan {
                    jobs: vec![ledger.plan],
                };
                changes.insert(format!("plan/{job}"), Some(plan.encode()));
            }
            Write::Update(job, update, frame) => {
                let id = update.accepted.update_id;
                let file = frame_name(&job, update.key());
                let path = self.file("updates", &file);
                write_file(&path, UPDATE, &frame)?;
                rubbish.remove(&path);
                let record = UpdateRecord {
                    round: update.round.0,
                    update_id: id.to_hex(),
                    num_examples: update.accepted.num_examples,
                    staleness: update.staleness,
                };
                put(changes, format!("update/{job}/{}", update.vehicle), &record)?;
            }
            Write::DropUpdates(job) => {
                self.drop_all(&format!("update/{job}/"), changes)?;
                let begins = format!("{job}.");
                let names = list(&self.folder.join("updates"))?;
                let ours = names.into_iter().filter(|name| name.starts_with(&begins));
                rubbish.extend(ours.map(|name| self.file("updates", &name)));
            }
            Write::Receipt(job, key, round, verdict) => {
                let record = ReceiptRecord::new(round, verdict);
                put(changes, format!("receipt/{job}/{}", key.to_hex()), &record)?;
            }
            Write::ForgetReceipts(job, keys) => {
                let keys = keys
                    .into_iter()
                    .map(|key| format!("receipt/{job}/{}", key.to_hex()));
                changes.extend(keys.map(|key| (key, None)));
            }
            Write::Line(job, seq, line) => {
                // Padded, so that keys are in the order of numbers.
                put(
                    changes,
                    format!("line/{job}/{seq:020}"),
                    &LineRecord::from(&line),
                )?;
            }
            Write::DropLines(job) => self.drop_all(&format!("line/{job}/"), changes)?,
            Write::Model(digest, frame) => write_file(&self.model_file(digest), MODEL, &frame)?,
            Write::Partial(job, pending) => {
                let path = self.file("partials", job.as_str());
                write_file(&path, PARTIAL, &pending.bytes)?;
                rubbish.remove(&path);
                let record = PartialRecord {
                    merge_round: pending.merge_round.0,
                    partial_id: pending.partial_id.to_hex(),
                };
                put(changes, format!("partial/{job}/now"), &record)?;
            }
            Write::Residual(job, residual) => {
                let bytes: Vec<u8> = residual.iter().flat_map(|v| v.to_le_bytes()).collect();
                write_file(&self.file("residuals", job.as_str()), RESIDUAL, &bytes)?;
            }
            Write::DropPartial(job) => {
                changes.insert(format!("partial/{job}/now"), None);
                rubbish.insert(self.file("partials", job.as_str()));
            }
        }
        Ok(())
    }

    /// Removes every record whose key begins so, those of this commit included.
    fn drop_all(&self, prefix: &str, changes: &mut Changes) -> Result<(), StoreError> {
        for key in self.records.scan_prefix(prefix).keys() {
            let key = key.map_err(sled_failed)?;
            changes.insert(String::from_utf8_lossy(&key).into_owned(), None);
        }
        let ours = changes.range_mut(prefix.to_owned()..);
        for (_, value) in ours.take_while(|(key, _)| key.starts_with(prefix)) {
            *value = None;
        }
        Ok(())
    }
}

impl Store for Disk {
    fn load(&mut self) -> Result<Stored, StoreError> {
        let mut damaged = self.damaged;
        let mut stored = Stored::default();
        let generation = self.scan::<u64>("unit/generation", &mut damaged)?.pop();
        stored.generation = Generation(generation.map_or(0, |(_, generation)| generation));
        for (name, record) in self.scan::<VehicleRecord>("vehicle/", &mut damaged)? {
            if let Ok(id) = VehicleId::new(name) {
                stored.vehicles.insert(id, record.into());
            }
        }
        for key in self.records.scan_prefix("plan/").keys() {
            let key = key.map_err(sled_failed)?;
            let name = String::from_utf8_lossy(&key["plan/".len()..]).into_owned();
            if let Ok(job) = JobId::new(name) {
                let loaded = self.load_job(&job, &mut damaged)?;
                stored.jobs.insert(job, loaded);
            }
        }
        stored.damaged = damaged;
        Ok(stored)
    }

    fn commit(&mut self, writes: Vec<Write>) -> Result<(), StoreError> {
        if writes.is_empty() {
            return Ok(());
        }
        let (mut changes, mut rubbish) = (Changes::new(), BTreeSet::new());
        for write in writes {
            self.prepare(write, &mut changes, &mut rubbish)?;
        }
        let mut batch = sled::Batch::default();
        for (key, value) in changes {
            match value {
                Some(value) => batch.insert(key.as_bytes(), value),
                None => batch.remove(key.as_bytes()),
            }
        }
        self.records.apply_batch(batch).map_err(sled_failed)?;
        self.records.flush().map_err(sled_failed)?;
        for path in rubbish {
            // One that stays is found again at the next close or start.
            let _ = fs::remove_file(path);
        }
        Ok(())
    }

    fn model(&self, digest: Digest) -> Option<Vec<u8>> {
        let path = self.model_file(digest);
        match read_sealed(&path, MODEL, MAX_FILE_BYTES) {
            Ok(frame) => Some(frame),
            Err(wayside_host::files::SealedError::Damaged { reason, .. }) => {
                let aside = move_aside(&path);
                tracing::warn!(model = %digest, reason, moved = aside.is_ok(), "stored model is damaged");
                None
            }
            Err(_) => None,
        }
    }

    fn frame(&self, job: &JobId, key: FrameKey<'_>) -> Option<Vec<u8>> {
        let path = self.file("updates", &frame_name(job, key));
        read_sealed(&path, UPDATE, MAX_FILE_BYTES)
            .inspect_err(|error| tracing::warn!(%error, "accepted update cannot be read"))
            .ok()
    }

    fn read_frame(
        &self,
        job: &JobId,
        key: FrameKey<'_>,
        bytes: Range<usize>,
        to: &mut Vec<u8>,
    ) -> io::Result<()> {
        read_sealed_part(&self.file("updates", &frame_name(job, key)), bytes, to)
    }

    fn keep_models(&mut self, wanted: &[Digest]) {
        let folder = self.folder.join("models");
        for name in list(&folder).unwrap_or_default() {
            let old = Digest::from_hex(&name).is_some_and(|digest| !wanted.contains(&digest));
            if old {
                let _ = fs::remove_file(folder.join(name));
            }
        }
    }
}

fn frame_name(job: &JobId, (vehicle, update_id): FrameKey<'_>) -> String {
    format!("{job}.{vehicle}.{}", update_id.to_hex())
}

fn put(changes: &mut Changes, key: String, record: &impl Serialize) -> Result<(), StoreError> {
    let value = serde_json::to_vec(record).map_err(|error| StoreError(error.to_string()))?;
    changes.insert(key, Some(value));
    Ok(())
}

fn write_file(path: &Path, seal: Seal, payload: &[u8]) -> Result<(), StoreError> {
    write_sealed(path, seal, payload).map_err(|error| StoreError(error.to_string()))
}

fn list(folder: &Path) -> Result<Vec<String>, StoreError> {
    let entries = fs::read_dir(folder).map_err(|error| failed(folder, error))?;
    Ok(entries
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect())
}

fn failed(path: &Path, error: std::io::Error) -> StoreError {
    StoreError(format!("{}: {error}", path.display()))
}

#[expect(clippy::needless_pass_by_value, reason = "shape of map_err")]
fn sled_failed(error: sled::Error) -> StoreError {
    StoreError(format!("records: {error}"))
}

/// How often, and after which wait, a database that is still in use is opened again.
const LOCK_TRIES: u32 = 40;
const LOCK_WAIT: std::time::Duration = std::time::Duration::from_millis(50);

/// Opens sled; it may panic on a damaged log.
fn open_records(path: &Path) -> Result<sled::Db, String> {
    let open = || {
        sled::Config::new()
            .path(path)
            .cache_capacity(CACHE_BYTES)
            // Every commit flushes; nothing else is to.
            .flush_every_ms(None)
            .open()
            .and_then(|records| {
                // Some damage shows only when it is read.
                let entries = records.iter().find_map(Result::err);
                entries.map_or(Ok(records), Err)
            })
    };
    let mut tries = 0;
    loop {
        match catch_unwind(AssertUnwindSafe(open)) {
            Ok(Ok(records)) => return Ok(records),
            // Another unit of this process has just ended here and not yet let go: that is no damage.
            Ok(Err(error)) if is_locked(&error) && tries < LOCK_TRIES => {
                tries += 1;
                std::thread::sleep(LOCK_WAIT);
            }
            Ok(Err(error)) => return Err(error.to_string()),
            Err(_) => return Err("it could not be opened".to_owned()),
        }
    }
}

/// sled says it in words only.
fn is_locked(error: &sled::Error) -> bool {
    matches!(error, sled::Error::Io(error) if error.to_string().contains("acquire lock"))
}

#[cfg(test)]
mod tests;
