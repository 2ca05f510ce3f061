//! State in memory, which outlives a unit that is dropped as if it had crashed.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use wayside_domain::ids::{Digest, JobId, UpdateId, VehicleId};

use super::{FrameKey, Store, StoreError, Stored, StoredUpdate, Write};

#[derive(Debug, Default)]
struct Kept {
    stored: Stored,
    models: BTreeMap<Digest, Vec<u8>>,
    frames: BTreeMap<(JobId, VehicleId, UpdateId), Vec<u8>>,
}

/// Clones share what they keep. A commit happens as a whole, so what was not committed is what a crash loses.
#[derive(Clone, Debug, Default)]
pub struct Memory(Arc<Mutex<Kept>>);

impl Memory {
    fn with<T>(&self, act: impl FnOnce(&mut Kept) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
impl Memory {
    /// A disk that loses the frame of a vehicle's update.
    pub(crate) fn lose_frame(&self, job: &JobId, vehicle: &VehicleId) {
        self.with(|kept| {
            let frames = &mut kept.frames;
            frames.retain(|(owner, from, _), _| owner != job || from != vehicle);
        });
    }
}

impl Store for Memory {
    fn load(&mut self) -> Result<Stored, StoreError> {
        Ok(self.with(|kept| kept.stored.clone()))
    }

    fn commit(&mut self, writes: Vec<Write>) -> Result<(), StoreError> {
        self.with(|kept| writes.into_iter().for_each(|write| apply(kept, write)));
        Ok(())
    }

    fn model(&self, digest: Digest) -> Option<Vec<u8>> {
        self.with(|kept| kept.models.get(&digest).cloned())
    }

    fn frame(&self, job: &JobId, (vehicle, update_id): FrameKey<'_>) -> Option<Vec<u8>> {
        let key = (job.clone(), vehicle.clone(), update_id);
        self.with(|kept| kept.frames.get(&key).cloned())
    }

    fn read_frame(
        &self,
        job: &JobId,
        (vehicle, update_id): FrameKey<'_>,
        bytes: Range<usize>,
        to: &mut Vec<u8>,
    ) -> io::Result<()> {
        let key = (job.clone(), vehicle.clone(), update_id);
        self.with(|kept| {
            let found = kept.frames.get(&key).and_then(|frame| frame.get(bytes));
            let found = found.ok_or(io::ErrorKind::UnexpectedEof)?;
            to.clear();
            to.extend_from_slice(found);
            Ok(())
        })
    }

    fn keep_models(&mut self, wanted: &[Digest]) {
        self.with(|kept| kept.models.retain(|digest, _| wanted.contains(digest)));
    }
}

fn apply(kept: &mut Kept, write: Write) {
    let stored = &mut kept.stored;
    match write {
        Write::Generation(generation) => stored.generation = generation,
        Write::Vehicle(id, vehicle) => {
            stored.vehicles.insert(id, vehicle);
        }
        Write::ForgetVehicle(id) => {
            stored.vehicles.remove(&id);
        }
        Write::Ledger(job, ledger) => stored.jobs.entry(job).or_default().ledger = Some(*ledger),
        Write::Update(job, update, frame) => {
            let key = (
                job.clone(),
                update.vehicle.clone(),
                update.accepted.update_id,
            );
            kept.frames.insert(key, frame);
            put_update(&mut stored.jobs.entry(job).or_default().updates, update);
        }
        Write::DropUpdates(job) => {
            kept.frames.retain(|(owner, _, _), _| *owner != job);
            stored.jobs.entry(job).or_default().updates.clear();
        }
        Write::Receipt(job, key, round, verdict) => {
            let receipts = &mut stored.jobs.entry(job).or_default().receipts;
            receipts.push((key, round, verdict));
        }
        Write::ForgetReceipts(job, keys) => {
            let receipts = &mut stored.jobs.entry(job).or_default().receipts;
            receipts.retain(|(key, _, _)| !keys.contains(key));
        }
        Write::Line(job, _, line) => stored.jobs.entry(job).or_default().lines.push(line),
        Write::DropLines(job) => stored.jobs.entry(job).or_default().lines.clear(),
        Write::Model(digest, frame) => {
            kept.models.insert(digest, frame);
        }
        Write::Partial(job, pending) => {
            stored.jobs.entry(job).or_default().pending = Some(pending);
        }
        Write::Residual(job, residual) => stored.jobs.entry(job).or_default().residual = residual,
        Write::DropPartial(job) => stored.jobs.entry(job).or_default().pending = None,
    }
}

fn put_update(updates: &mut Vec<StoredUpdate>, update: StoredUpdate) {
    updates.retain(|known| known.vehicle != update.vehicle);
    updates.push(update);
    updates.sort_by(|a, b| a.vehicle.cmp(&b.vehicle));
}
