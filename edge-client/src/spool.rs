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
//! Order: a payload is durable before the record that names it, and the record goes before the payload does; a payload
//! without a record is swept away at the next start, a record without its payload is given up and its round is trained
//! again. Disk use is bounded: the outbox by the machine, models and specifications by what the jobs need.
//!
//! Everything here blocks; the driver calls it off the async threads.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use tracing::warn;
use wayside_domain::ids::{Digest, Generation, JobId, RoadsideId, RoundId, UpdateId, VehicleId};
use wayside_domain::outbox::OutboxEntry;
use wayside_domain::time::Timestamp;
use wayside_host::files::{self, Seal, SealedError};
use wayside_proto::codec;
use wayside_proto::convert::{Update, UpdateMetrics, Wire};

use crate::machine::{Encoded, MAX_JOBS, Order, Restored};
use crate::store::{SledStore, Store, StoreError};

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
/// Largest payload that is read back, in bytes.
const MAX_PAYLOAD: u64 = 256 << 20;

/// Folder of the feature cache.
const FEATURES: &str = "features";

/// Where payloads lie. Cheap to clone: it holds no record, only paths.
#[derive(Clone, Debug)]
pub struct Payloads {
    folder: PathBuf,
}

impl Payloads {
    fn update(&self, id: UpdateId) -> PathBuf {
        self.folder
            .join("outbox")
            .join(format!("{}.update", id.to_hex()))
    }

    fn model(&self, digest: Digest) -> PathBuf {
        self.folder
            .join("models")
            .join(format!("{}.model", digest.to_hex()))
    }

    fn job(&self, digest: Digest) -> PathBuf {
        self.folder
            .join("jobs")
            .join(format!("{}.job", digest.to_hex()))
    }

    fn feedback(&self, name: &str) -> PathBuf {
        self.folder.join("feedback").join(name)
    }

    fn waiting(&self, id: UpdateId) -> PathBuf {
        self.feedback(&format!("{}.wait", id.to_hex()))
    }

    /// What the encodings of a job's counted updates took: added to the next delta. Empty where there is nothing.
    pub fn residual(&self, job: &JobId) -> Vec<f32> {
        read_values(&self.feedback(&format!("{job}.residual")), RESIDUAL)
    }

    /// A job's personal tensors as they were trained last; empty before that.
    pub fn personal(&self, job: &JobId) -> Vec<f32> {
        read_values(&self.feedback(&format!("{job}.personal")), PERSONAL)
    }

    /// Folder of the feature cache.
    pub fn features(&self) -> PathBuf {
        self.folder.join(FEATURES)
    }

    /// An encoded update.
    ///
    /// # Errors
    /// If it is not there or damaged.
    pub fn read_update(&self, id: UpdateId) -> Result<Vec<u8>, SealedError> {
        files::read_sealed(&self.update(id), UPDATE, MAX_PAYLOAD)
    }

    /// A model's frame. A damaged file is moved aside.
    ///
    /// # Errors
    /// If it is not there or damaged: fetch it again.
    pub fn read_model(&self, digest: Digest) -> Result<Vec<u8>, SealedError> {
        read_or_move_aside(&self.model(digest), MODEL)
    }

    /// Makes a model durable if its bytes have the digest; says whether they had.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn write_model(&self, digest: Digest, bytes: &[u8]) -> Result<bool, StoreError> {
        let good = codec::digest(bytes) == digest;
        if good {
            files::write_sealed(&self.model(digest), MODEL, bytes)?;
        }
        Ok(good)
    }

    /// Deletes models.
    pub fn drop_models(&self, digests: &[Digest]) {
        for digest in digests {
            remove(&self.model(*digest));
        }
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
        mut store: Box<dyn Store>,
        roadside: &RoadsideId,
        now: Timestamp,
    ) -> Result<(Self, Opened), StoreError> {
        for name in ["outbox", "models", "jobs", "feedback"] {
            let folder = folder.join(name);
            fs::create_dir_all(&folder).map_err(|source| files::FileError::Io {
                path: folder.clone(),
                source,
            })?;
            files::remove_leftovers(&folder)?;
        }
        let payloads = Payloads {
            folder: folder.to_owned(),
        };
        let mut records = store.load()?;
        let generation = Generation(now.0.max(records.generation.next().0));
        store.begin(generation)?;

        let (good, lost): (Vec<_>, Vec<_>) = (records.outbox.drain(..)).partition(|entry| {
            read_or_move_aside(&payloads.update(entry.update_id), UPDATE).is_ok()
        });
        for entry in lost {
            warn!(update_id = %entry.update_id, round = %entry.round, "stored update is lost, its round may be trained again");
            store.forget_update(entry.update_id)?;
            let place = (entry.roadside.clone(), entry.job.clone());
            if records.done.get(&place) == Some(&entry.round) {
                store.reopen_round(&entry.roadside, &entry.job)?;
                records.done.remove(&place);
            }
        }
        let waiting: BTreeSet<PathBuf> = good
            .iter()
            .map(|entry| payloads.update(entry.update_id))
            .collect();
        sweep(&folder.join("outbox"), "update", |path| {
            waiting.contains(path)
        });
        let waiting: BTreeSet<PathBuf> = (good.iter())
            .map(|entry| payloads.waiting(entry.update_id))
            .collect();
        sweep(&folder.join("feedback"), "wait", |path| {
            waiting.contains(path)
        });

        let mut jobs = Vec::new();
        let mut specs = Vec::new();
        for ((unit, job), digest) in records.jobs {
            let path = payloads.job(digest);
            match files::read_sealed(&path, JOB, MAX_PAYLOAD) {
                Ok(bytes) if unit == *roadside => specs.push((digest, bytes)),
                Ok(_) => {}
                Err(_) => continue, // it comes again with the next announcement
            }
            jobs.push((unit, job, digest));
        }
        let named: BTreeSet<PathBuf> = jobs
            .iter()
            .map(|(_, _, digest)| payloads.job(*digest))
            .collect();
        sweep(&folder.join("jobs"), "job", |path| named.contains(path));

        let done = (records.done.into_iter())
            .filter(|((unit, _), _)| unit == roadside)
            .map(|((_, job), round)| (job, round))
            .collect();
        let restored = Restored {
            outbox: good,
            done,
            models: digests(&folder.join("models"), "model"),
            num_examples: 0,
        };
        let spool = Self {
            store,
            payloads,
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
        if let Some(residual) = &encoded.residual {
            write_values(&self.payloads.waiting(update_id), RESIDUAL, residual)?;
        }
        if !encoded.personal.is_empty() {
            let path = self.payloads.feedback(&format!("{}.personal", order.job));
            write_values(&path, PERSONAL, &encoded.personal)?;
        }
        files::write_sealed(&self.payloads.update(update_id), UPDATE, &bytes)?;
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
        let waiting = self.payloads.waiting(update_id);
        if counts && waiting.exists() {
            let kept = (self.payloads).feedback(&format!("{}.residual", entry.job));
            fs::rename(&waiting, &kept).map_err(|source| files::FileError::Io {
                path: kept.clone(),
                source,
            })?;
        } else {
            remove(&waiting);
        }
        self.store.forget_update(update_id)?;
        remove(&self.payloads.update(update_id));
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
        files::write_sealed(&self.payloads.job(digest), JOB, bytes)?;
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
                remove(&self.payloads.job(old));
            }
        }
        Ok(())
    }
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

/// Values of a sealed file; none where it is not there, damaged, or holds what is no number.
fn read_values(path: &Path, seal: Seal) -> Vec<f32> {
    let bytes = match files::read_sealed(path, seal, MAX_PAYLOAD) {
        Ok(bytes) => bytes,
        Err(error) => {
            if path.exists() {
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

fn write_values(path: &Path, seal: Seal, values: &[f32]) -> Result<(), files::FileError> {
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    files::write_sealed(path, seal, &bytes)
}

fn read_or_move_aside(path: &Path, seal: Seal) -> Result<Vec<u8>, SealedError> {
    let result = files::read_sealed(path, seal, MAX_PAYLOAD);
    if let Err(error @ SealedError::Damaged { .. }) = &result {
        match files::move_aside(path) {
            Ok(aside) => warn!(%error, moved_to = %aside.display(), "damaged file moved aside"),
            Err(failure) => warn!(%error, %failure, "damaged file stays where it is"),
        }
    }
    result
}

/// Deletes a file; one that stays is swept away at a later start.
fn remove(path: &Path) {
    if let Err(error) = fs::remove_file(path)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        warn!(path = %path.display(), %error, "file cannot be deleted");
    }
}

/// Deletes files with this extension that nobody keeps.
fn sweep(folder: &Path, extension: &str, keep: impl Fn(&Path) -> bool) {
    for path in files_of(folder, extension) {
        if !keep(&path) {
            remove(&path);
        }
    }
}

fn files_of(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|end| end == extension))
        .collect()
}

/// The digests that name the files of a folder.
fn digests(folder: &Path, extension: &str) -> BTreeSet<Digest> {
    (files_of(folder, extension).iter())
        .filter_map(|path| Digest::from_hex(path.file_stem()?.to_str()?))
        .collect()
}

#[cfg(test)]
mod tests;
