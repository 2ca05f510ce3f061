//! Where the values of a round's updates come from, a block at a time.

use half::f16;

use super::BLOCK;
use crate::kernels::{self, Planes};

/// Why a block could not be read, for the log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SourceError(pub String);

/// The updates of a round, wherever their frames lie.
pub trait Source: Sync {
    /// How many updates there are.
    fn len(&self) -> usize;

    /// There are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A reader with buffers of its own; each thread has one.
    fn reader(&self) -> Box<dyn BlockReader<'_> + '_>;
}

/// Reads blocks of the updates of a source that lives for `'s`.
pub trait BlockReader<'s> {
    /// Reads one block as two byte planes.
    ///
    /// - `update`: index below [`Source::len`].
    /// - `block`: block `b` begins at value `b * BLOCK`.
    /// - `room`: two bytes for each value of the block, which the planes may be put into, the high ones first; a source
    ///   that has them at hand leaves it alone.
    ///
    /// # Errors
    /// Whatever keeps it from giving the values that passed the guard.
    fn read<'a>(
        &mut self,
        update: usize,
        block: usize,
        room: &'a mut [u8],
    ) -> Result<Planes<'a>, SourceError>
    where
        's: 'a;
}

/// Updates that are in memory anyway: partial means at the cloud, tests, benchmarks of decoded values.
#[derive(Clone, Debug, Default)]
pub struct InMemory {
    /// Each update's blocks: high bytes, then low bytes of one block after the other.
    updates: Vec<Vec<u8>>,
}

impl InMemory {
    /// Takes the values of some updates, in units of their scales.
    pub fn new<'a>(updates: impl IntoIterator<Item = &'a [f16]>) -> Self {
        let mut all = Self::default();
        updates.into_iter().for_each(|update| all.push(update));
        all
    }

    /// Takes one more update.
    pub fn push(&mut self, values: &[f16]) {
        let mut bytes = vec![0; 2 * values.len()];
        for (to, values) in bytes.chunks_mut(2 * BLOCK).zip(values.chunks(BLOCK)) {
            let (high, low) = to.split_at_mut(values.len());
            kernels::split(values, high, low);
        }
        self.updates.push(bytes);
    }
}

impl Source for InMemory {
    fn len(&self) -> usize {
        self.updates.len()
    }

    fn reader(&self) -> Box<dyn BlockReader<'_> + '_> {
        Box::new(self)
    }
}

impl<'s> BlockReader<'s> for &'s InMemory {
    fn read<'a>(
        &mut self,
        update: usize,
        block: usize,
        room: &'a mut [u8],
    ) -> Result<Planes<'a>, SourceError>
    where
        's: 'a,
    {
        let from = 2 * BLOCK * block;
        let bytes = self.updates[update]
            .get(from..from + room.len())
            .ok_or_else(|| SourceError(format!("block {block} is not there")))?;
        let (high, low) = bytes.split_at(bytes.len() / 2);
        Ok(Planes { high, low })
    }
}
