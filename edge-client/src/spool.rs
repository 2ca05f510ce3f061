//! What a vehicle keeps on disk: records, and as files the updates without a receipt, models and job specifications.
//!
//! ```text
//! records/                   small records
//! outbox/{update id}.update  encoded updates
//! models/{digest}.model      model frames
//! jobs/{digest}.job          encoded job specifications
//! feedback/{update id}.wait  what the encoding of an update in the outbox took
//! feedback/{job}.residual    what the encodings of all updates that count took
//! feedback/{job}.personal    tensors of the head that stay here
//! features/                  features of the pictures, rebuildable
//! ```
//! Order: a payload is durable before the record that names it, and the record goes before the payload does. At the next
//! start a payload without a record is swept away; a record without its payload is of an update that had its receipt, and
//! is forgotten; a damaged payload is given up and its round is trained again. Disk use is bounded: the outbox by the
//! machine, models and specifications by what the jobs need.
//!
//! Everything here blocks; the driver calls it off the async threads.

mod shelf;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tracing::warn;
use wayside_domain::ids::{Digest, Generation, JobId, RoadsideId, RoundId, UpdateId, VehicleId};
use wayside_domain::outbox::OutboxEntry;
use wayside_domain::time::Timestamp;
use wayside_host::files::{FileError, Seal, SealedError};
use wayside_proto::codec;
use wayside_proto::convert::{Update, UpdateMetrics, Wire};

use crate::machine::{Encoded, MAX_JOBS, Order, Restored};
use crate::store::{SledStore, Store, StoreError};
use shelf::Shelf;

const UPDATE: Seal = Seal {
    magic: *b"wsupdat\0",
    version: 1,
};
const MODEL: Seal = Seal {
    magic: *b"wsmodel\0",
    version: 1,
};
const JOB: Seal = Seal {
    magic: *b"wsjob\0\0\0",
    version: 1,
};
const RESIDUAL: Seal = Seal {
    magic: *b"wsresidu",
    version: 1,
};
const PERSONAL: Seal = Seal {
    magic: *b"wsperson",
    version: 1,
};
/// Folder of the feature cache.
const FEATURES: &str = "features";

/// Where payloads lie. Cheap to clone: it holds no record.
#[derive(Clone, Debug)]
pub struct Payloads(Shelf);

/// Names on the shelf.
mod name {
    use wayside_domain::ids::{Digest, JobId, UpdateId};

    pub(super) fn update(id: UpdateId) -> String {
        format!("outbox/{}.update", id.to_hex())
    }

    pub(super) fn model(digest: Digest) -> String {
        format!("models/{}.model", digest.to_hex())
    }

    pub(super) fn job(digest: Digest) -> String {
        format!("jobs/{}.job", digest.to_hex())
    }

    pub(super) fn waiting(id: UpdateId) -> String {
        format!("feedback/{}.wait", id.to_hex())
    }

    pub(super) fn residual(job: &JobId) -> String {
        format!("feedback/{job}.residual")
    }

    pub(super) fn personal(job: &JobId) -> String {
        format!("feedback/{job}.personal")
    }
}

impl Payloads {
    /// What the encodings of a job's counted updates took: added to the next delta. Empty where there is nothing.
    pub fn residual(&self, job: &JobId) -> Vec<f32> {
        self.values(&name::residual(job), RESIDUAL)
    }

    /// A job's personal tensors as they were trained last; empty before that.
    pub fn personal(&self, job: &JobId) -> Vec<f32> {
        self.values(&name::personal(job), PERSONAL)
    }

    /// Folder of the feature cache; none in memory.
    pub fn features(&self) -> Option<PathBuf> {
        self.0.folder().map(|folder| folder.join(FEATURES))
    }

    /// An encoded update.
    ///
    /// # Errors
    /// If it is not there or damaged.
    pub fn read_update(&self, id: UpdateId) -> Result<Vec<u8>, SealedError> {
        self.0.get(&name::update(id), UPDATE)
    }

    /// A model's frame. A damaged file is moved aside.
    ///
    /// # Errors
    /// If it is not there or damaged: fetch it again.
    pub fn read_model(&self, digest: Digest) -> Result<Vec<u8>, SealedError> {
        self.0.get_or_move_aside(&name::model(digest), MODEL)
    }

    /// Makes a model durable if its bytes have the digest; says whether they had.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn write_model(&self, digest: Digest, bytes: &[u8]) -> Result<bool, StoreError> {
        let good = codec::digest(bytes) == digest;
        if good {
            self.0.put(&name::model(digest), MODEL, bytes)?;
        }
        Ok(good)
    }

    /// Makes a model durable whose bytes are known to have the digest; vehicles in memory share them.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn share_model(&self, digest: Digest, bytes: Arc<[u8]>) -> Result<(), StoreError> {
        Ok(self.0.put(&name::model(digest), MODEL, bytes)?)
    }

    /// Deletes models.
    pub fn drop_models(&self, digests: &[Digest]) {
        for digest in digests {
            self.0.remove(&name::model(*digest));
        }
    }

    /// Values of a payload; none where it is not there, damaged, or holds what is no number.
    fn values(&self, name: &str, seal: Seal) -> Vec<f32> {
        let bytes = match self.0.get(name, seal) {
            Ok(bytes) => bytes,
            Err(error) => {
                if self.0.has(name) {
                    warn!(%error, "feedback cannot be read and begins anew");
                }
                return Vec::new();
            }
        };
        let (values, _) = bytes.as_chunks::<4>();
        let values: Vec<f32> = values.iter().map(|b| f32::from_le_bytes(*b)).collect();
        if values.iter().all(|value| value.is_finite()) {
            values
        } else {
            Vec::new()
        }
    }

    fn put_values(&self, name: &str, seal: Seal, values: &[f32]) -> Result<(), FileError> {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.0.put(name, seal, bytes)
    }
}

/// Records and payloads.
#[derive(Debug)]
pub struct Spool {
    store: Box<dyn Store>,
    payloads: Payloads,
    seals: u64,
    jobs: Vec<(RoadsideId, JobId, Digest)>,
}

/// What a spool held when it was opened.
#[derive(Debug, Default)]
pub struct Opened {
    /// For the machine; its number of pictures is not known here.
    pub restored: Restored,
    /// This start.
    pub generation: Generation,
    /// Specifications of this roadside unit's jobs, by digest, encoded.
    pub specs: Vec<(Digest, Vec<u8>)>,
}

impl Spool {
    /// Opens the records in the state folder and sweeps up what a crash left.
    ///
    /// # Errors
    /// If the disk refuses; damage is repaired by moving it aside.
    pub fn open(
        folder: &Path,
        roadside: &RoadsideId,
        now: Timestamp,
    ) -> Result<(Self, Opened), StoreError> {
        let (store, aside) = SledStore::open(&folder.join("records"))?;
        if let Some(aside) = aside {
            warn!(moved_to = %aside.display(), "record store damaged, begun empty");
        }
        Self::with_store(folder, Box::new(store), roadside, now)
    }

    /// [`Self::open`] with records that lie elsewhere.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn with_store(
        folder: &Path,
        store: Box<dyn Store>,
        roadside: &RoadsideId,
        now: Timestamp,
    ) -> Result<(Self, Opened), StoreError> {
        Self::on_shelf(Shelf::open(folder)?, store, roadside, now)
    }

    /// A spool without a disk. `payloads` of an earlier start of the vehicle, if there was one, are found again.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn in_memory(
        payloads: Option<Payloads>,
        store: Box<dyn Store>,
        roadside: &RoadsideId,
        now: Timestamp,
    ) -> Result<(Self, Opened), StoreError> {
        let shelf = payloads.map_or_else(Shelf::in_memory, |payloads| payloads.0);
        Self::on_shelf(shelf, store, roadside, now)
    }

    fn on_shelf(
        shelf: Shelf,
        mut store: Box<dyn Store>,
        roadside: &RoadsideId,
        now: Timestamp,
    ) -> Result<(Self, Opened), StoreError> {
        let mut records = store.load()?;
        let generation = Generation(now.0.max(records.generation.next().0));
        store.begin(generation)?;

        let mut good = Vec::new();
        for entry in records.outbox.drain(..) {
            let update_id = entry.update_id;
            let found = shelf.get_or_move_aside(&name::update(update_id), UPDATE);
            let Err(error) = found else {
                good.push(entry);
                continue;
            };
            store.forget_update(update_id)?;
            // A payload is durable before its record, so one that is missing was deleted: the update had its receipt,
            // and only that its record went was not durable yet. Its round is done.
            if is_missing(&error) {
                tracing::debug!(%update_id, round = %entry.round, "update was forgotten before the last start");
                continue;
            }
            warn!(%update_id, round = %entry.round, "stored update is lost, its round may be trained again");
            let place = (entry.roadside.clone(), entry.job.clone());
            if records.done.get(&place) == Some(&entry.round) {
                store.reopen_round(&entry.roadside, &entry.job)?;
                records.done.remove(&place);
            }
        }
        let named = |name: fn(UpdateId) -> String| -> BTreeSet<String> {
            good.iter().map(|entry| name(entry.update_id)).collect()
        };
        let (updates, waiting) = (named(name::update), named(name::waiting));
        shelf.sweep("outbox", "update", |name| updates.contains(name));
        shelf.sweep("feedback", "wait", |name| waiting.contains(name));

        let mut jobs = Vec::new();
        let mut specs = Vec::new();
        for ((unit, job), digest) in records.jobs {
            match shelf.get(&name::job(digest), JOB) {
                Ok(bytes) if unit == *roadside => specs.push((digest, bytes)),
                Ok(_) => {}
                Err(_) => continue, // it comes again with the next announcement
            }
            jobs.push((unit, job, digest));
        }
        let named: BTreeSet<String> = (jobs.iter())
            .map(|(_, _, digest)| name::job(*digest))
            .collect();
        shelf.sweep("jobs", "job", |name| named.contains(name));

        let done = (records.done.into_iter())
            .filter(|((unit, _), _)| unit == roadside)
            .map(|((_, job), round)| (job, round))
            .collect();
        let models = shelf.names("models", "model");
        let models = models.iter().filter_map(|name| {
            let stem = Path::new(name).file_stem()?.to_str()?;
            Digest::from_hex(stem)
        });
        let restored = Restored {
            outbox: good,
            done,
            models: models.collect(),
            num_examples: 0,
        };
        let spool = Self {
            store,
            payloads: Payloads(shelf),
            seals: records.seals,
            jobs,
        };
        let opened = Opened {
            restored,
            generation,
            specs,
        };
        Ok((spool, opened))
    }

    /// Where the payloads lie.
    pub fn payloads(&self) -> &Payloads {
        &self.payloads
    }

    /// Gives a trained round its update id and makes it durable: first the payload, then the record.
    ///
    /// # Errors
    /// If the disk refuses; the update must then not be sent.
    pub fn seal(
        &mut self,
        sender: (&VehicleId, &RoadsideId, Generation),
        order: &Order,
        encoded: &Encoded,
        metrics: UpdateMetrics,
    ) -> Result<(OutboxEntry, usize), StoreError> {
        let (vehicle, roadside, generation) = sender;
        let seals = self.seals + 1;
        let update_id = update_id(sender, &order.job, encoded.round, seals);
        let update = Update {
            job: order.job.clone(),
            roadside: roadside.clone(),
            vehicle: vehicle.clone(),
            round: encoded.round,
            base_version: order.round.base_version,
            update_id,
            num_examples: encoded.num_examples,
            frame: encoded.frame.clone(),
            metrics,
        };
        let bytes = update.encode();
        let payloads = &self.payloads;
        if let Some(residual) = &encoded.residual {
            payloads.put_values(&name::waiting(update_id), RESIDUAL, residual)?;
        }
        if !encoded.personal.is_empty() {
            payloads.put_values(&name::personal(&order.job), PERSONAL, &encoded.personal)?;
        }
        (payloads.0).put(&name::update(update_id), UPDATE, &bytes[..])?;
        let entry = OutboxEntry {
            update_id,
            job: order.job.clone(),
            roadside: roadside.clone(),
            round: encoded.round,
            sealed: encoded.encoded,
        };
        self.store.record_update(&entry, seals)?;
        self.seals = seals;
        tracing::debug!(%update_id, %generation, bytes = bytes.len(), "sealed");
        Ok((entry, bytes.len()))
    }

    /// Forgets an update: first the record, then the payload. What its encoding took is kept for the next one where it
    /// `counts`; where it does not, the whole of it is lost, as any update is that does not count.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn forget_update(&mut self, entry: &OutboxEntry, counts: bool) -> Result<(), StoreError> {
        let update_id = entry.update_id;
        let (kept, waiting) = (&self.payloads.0, name::waiting(update_id));
        if counts && kept.has(&waiting) {
            kept.rename(&waiting, &name::residual(&entry.job))?;
        } else {
            kept.remove(&waiting);
        }
        self.store.forget_update(update_id)?;
        kept.remove(&name::update(update_id));
        Ok(())
    }

    /// Keeps a job's newest specification.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn remember_job(
        &mut self,
        roadside: &RoadsideId,
        job: &JobId,
        digest: Digest,
        bytes: &[u8],
    ) -> Result<(), StoreError> {
        let same = |known: &(RoadsideId, JobId, Digest)| known.0 == *roadside && known.1 == *job;
        if self
            .jobs
            .iter()
            .any(|known| same(known) && known.2 == digest)
        {
            return Ok(());
        }
        (self.payloads.0).put(&name::job(digest), JOB, bytes)?;
        self.store.remember_job(roadside, job, Some(digest))?;
        let mut gone: Vec<_> = self.jobs.extract_if(.., |known| same(known)).collect();
        while self.jobs.len() >= MAX_JOBS {
            let oldest = self.jobs.remove(0);
            self.store.remember_job(&oldest.0, &oldest.1, None)?;
            gone.push(oldest);
        }
        self.jobs.push((roadside.clone(), job.clone(), digest));
        for (_, _, old) in gone {
            if self.jobs.iter().all(|(_, _, kept)| *kept != old) {
                self.payloads.0.remove(&name::job(old));
            }
        }
        Ok(())
    }
}

fn is_missing(error: &SealedError) -> bool {
    matches!(error, SealedError::File(file) if file.kind() == std::io::ErrorKind::NotFound)
}

/// The same for the same seal, other for every other: the counter is durable with the update, and where the counter was
/// lost, the generation differs.
fn update_id(
    (vehicle, roadside, generation): (&VehicleId, &RoadsideId, Generation),
    job: &JobId,
    round: RoundId,
    seals: u64,
) -> UpdateId {
    let text = format!(
        "wayside update/{vehicle}/{}/{roadside}/{job}/{}/{seals}",
        generation.0, round.0
    );
    let mut id = [0; 16];
    id.copy_from_slice(&blake3::hash(text.as_bytes()).as_bytes()[..16]);
    UpdateId(id)
}

#[cfg(test)]
mod tests;
