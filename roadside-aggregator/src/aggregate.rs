//! Runs a round's rule over the frames of its accepted updates, block by block from where they are stored.
//!
//! The same code serves rounds and `bench`.

use std::io;
use std::ops::Range;

use wayside_domain::aggregate::{
    AggregateError, BlockReader, RuleSpec, Source, SourceError, Updates, Weighted, WeightedSum,
    combine,
};
use wayside_domain::ids::{JobId, RoundId, UpdateId, VehicleId};
use wayside_domain::kernels::Planes;
use wayside_domain::schema::Schema;
use wayside_proto::codec::{Reference, Unpacker, UpdateFrame};

use crate::intake::Checked;
use crate::store::{Store, StoredUpdate};

/// A closed round whose updates are to be combined.
#[derive(Clone, Debug)]
pub struct Order {
    /// Of which job.
    pub job: JobId,
    /// Of which round.
    pub round: RoundId,
    /// The rule.
    pub rule: RuleSpec,
    /// The job's tensors.
    pub schema: Schema,
    /// Their scales.
    pub exponents: Vec<i8>,
    /// The model that the round started from, for encodings that need it.
    pub reference: Option<Reference>,
    /// The accepted updates, in the order of the vehicles' names.
    pub members: Vec<Member>,
}

/// An accepted update.
#[derive(Clone, Debug)]
pub struct Member {
    /// The sender.
    pub vehicle: VehicleId,
    /// Which update.
    pub update_id: UpdateId,
    /// Where the blocks of its frame are.
    pub index: UpdateFrame,
    /// Its weight.
    pub known: Weighted,
}

impl Member {
    /// An update that was accepted, as it was checked.
    pub fn new(stored: &StoredUpdate, checked: Checked) -> Self {
        Self {
            vehicle: stored.vehicle.clone(),
            update_id: stored.accepted.update_id,
            index: checked.index,
            known: Weighted {
                num_examples: stored.accepted.num_examples,
                largest: checked.stats.max_abs,
                staleness: stored.staleness,
            },
        }
    }
}

/// Why a rule gave no result.
#[derive(Debug, thiserror::Error)]
pub enum OrderError {
    /// The rule cannot be made, which its job's check rules out.
    #[error(transparent)]
    Rule(#[from] wayside_domain::aggregate::RuleError),
    /// The updates could not be combined.
    #[error(transparent)]
    Aggregate(#[from] AggregateError),
}

impl OrderError {
    /// The member whose frame cannot be read; without it the rule may still have a result.
    pub fn unreadable(&self) -> Option<usize> {
        match self {
            Self::Aggregate(AggregateError::Source { update, .. }) => Some(*update),
            _ => None,
        }
    }
}

/// Where frames are kept.
pub trait Frames: Sync {
    /// Puts some bytes of a member's frame into `to`, which is emptied first.
    ///
    /// # Errors
    /// If they are not there.
    fn read(&self, member: &Member, bytes: Range<usize>, to: &mut Vec<u8>) -> io::Result<()>;
}

/// The frames of a job in the store.
struct Kept<'a> {
    store: &'a dyn Store,
    job: &'a JobId,
}

impl Frames for Kept<'_> {
    fn read(&self, member: &Member, bytes: Range<usize>, to: &mut Vec<u8>) -> io::Result<()> {
        let key = (&member.vehicle, member.update_id);
        self.store.read_frame(self.job, key, bytes, to)
    }
}

/// Runs the rule of an order over frames in the store.
///
/// # Errors
/// [`OrderError`]; nothing has changed then.
pub fn run(order: &Order, store: &dyn Store, threads: usize) -> Result<WeightedSum, OrderError> {
    let frames = Kept {
        store,
        job: &order.job,
    };
    run_over(order, &frames, threads)
}

/// Runs the rule of an order over frames.
///
/// # Errors
/// [`OrderError`]; nothing has changed then.
pub fn run_over(
    order: &Order,
    frames: &dyn Frames,
    threads: usize,
) -> Result<WeightedSum, OrderError> {
    let rule = order.rule.build()?;
    let known: Vec<Weighted> = order.members.iter().map(|member| member.known).collect();
    let source = Packed { order, frames };
    let updates = Updates::new(
        &source,
        &known,
        order.schema.ranges(),
        &order.exponents,
        threads,
    );
    Ok(combine(rule.as_ref(), &updates)?)
}

/// Frames as a source of blocks.
struct Packed<'a> {
    order: &'a Order,
    frames: &'a dyn Frames,
}

impl Source for Packed<'_> {
    fn len(&self) -> usize {
        self.order.members.len()
    }

    fn reader(&self) -> Box<dyn BlockReader<'_> + '_> {
        Box::new(PackedReader {
            packed: self,
            bytes: Vec::new(),
            unpacker: Unpacker::new(),
        })
    }
}

struct PackedReader<'s> {
    packed: &'s Packed<'s>,
    bytes: Vec<u8>,
    unpacker: Unpacker,
}

impl<'s> BlockReader<'s> for PackedReader<'s> {
    fn read<'a>(
        &mut self,
        update: usize,
        block: usize,
        room: &'a mut [u8],
    ) -> Result<Planes<'a>, SourceError>
    where
        's: 'a,
    {
        let member = &self.packed.order.members[update];
        let failed = |error: &dyn std::fmt::Display| {
            SourceError(format!(
                "block {block} of update {} of {}: {error}",
                member.update_id, member.vehicle
            ))
        };
        let range = member.index.bytes_of(block);
        (self.packed.frames)
            .read(member, range, &mut self.bytes)
            .map_err(|error| failed(&error))?;
        let (high, low) = room.split_at_mut(room.len() / 2);
        let reference = self.packed.order.reference.as_ref();
        (member.index)
            .read_block(block, &self.bytes, reference, &mut self.unpacker, high, low)
            .map_err(|error| failed(&error))?;
        Ok(Planes { high, low })
    }
}
