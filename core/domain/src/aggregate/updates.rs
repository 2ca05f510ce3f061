//! The accepted updates of a round, read block by block: what rules are made of.
//!
//! Memory: for sums and distances from a point a few blocks a thread; for columns and for distances between updates one
//! block of each update (32 KiB each), and for the latter the table of distances. Results are the same for any number
//! of threads: a block is summed by one thread, and blocks are added up in their order.

use std::ops::Range;

use half::f16;
use half::slice::HalfFloatSliceExt as _;

use super::sum::WeightedSum;
use super::{AggregateError, BLOCK, Source};
use crate::kernels::{self, Isa, LANES, Network, Planes, TILE};

/// Updates that are read and added side by side.
const SIDE_BY_SIDE: usize = 8;
/// Values of an update that distances between updates are taken over at a time: eight rows of them fit the first cache.
const PIECE: usize = 1024;
/// Columns that are sorted at a time.
const STRIP: usize = 64;
/// What real weights are rounded to a share of: with values up to 1 their sums stay exact.
const WHOLE: f64 = 268_435_456.0; // 2^28
/// Parts that a stale update's weight is counted in.
const STALE_PARTS: f64 = 256.0;

/// What is known of an update beside its values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Weighted {
    /// Examples behind it.
    pub num_examples: u64,
    /// Largest magnitude of its values, in units of the scales.
    pub largest: f64,
    /// Rounds that closed between the one it was made for and this one; 0 outside buffered rounds.
    pub staleness: u64,
}

/// The accepted updates of a round.
pub struct Updates<'a> {
    source: &'a dyn Source,
    known: &'a [Weighted],
    ranges: Vec<Range<usize>>,
    exponents: &'a [i8],
    threads: usize,
    isa: Isa,
}

impl std::fmt::Debug for Updates<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Updates")
            .field("known", &self.known)
            .field("threads", &self.threads)
            .finish_non_exhaustive()
    }
}

impl<'a> Updates<'a> {
    /// Updates whose values follow a schema.
    ///
    /// - `known`: one for each update of `source`.
    /// - `ranges`: the schema's, one for each of `exponents`.
    /// - `threads`: how many may work at once; at least one does.
    ///
    /// # Panics
    /// If there are not as many of each.
    pub fn new(
        source: &'a dyn Source,
        known: &'a [Weighted],
        ranges: impl IntoIterator<Item = Range<usize>>,
        exponents: &'a [i8],
        threads: usize,
    ) -> Self {
        let ranges: Vec<_> = ranges.into_iter().collect();
        assert_eq!(
            known.len(),
            source.len(),
            "updates and what is known of them"
        );
        assert_eq!(ranges.len(), exponents.len(), "tensors and their exponents");
        Self {
            source,
            known,
            ranges,
            exponents,
            threads: threads.max(1),
            isa: Isa::best(),
        }
    }

    /// Uses another instruction set than the best; for tests and benchmarks.
    #[must_use]
    pub fn on(mut self, isa: Isa) -> Self {
        self.isa = isa;
        self
    }

    /// How many updates there are.
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// There are none.
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// Values of an update.
    pub fn num_parameters(&self) -> usize {
        self.ranges.last().map_or(0, |range| range.end)
    }

    /// Scale exponents, one a tensor.
    pub fn exponents(&self) -> &[i8] {
        self.exponents
    }

    /// What is known of each update.
    pub fn known(&self) -> &[Weighted] {
        self.known
    }

    /// Examples behind all updates.
    ///
    /// # Errors
    /// [`AggregateError::Examples`] if they do not fit 64 bits.
    pub fn total_examples(&self) -> Result<u64, AggregateError> {
        let mut examples = self.known.iter().map(|update| update.num_examples);
        examples
            .try_fold(0_u64, u64::checked_add)
            .ok_or(AggregateError::Examples)
    }

    /// Weight of each update: its examples, or 1 where `weighted` is false, times what its staleness leaves of it,
    /// `1 / sqrt(1 + staleness)` as in FedBuff (Nguyen et al. 2022, section 5).
    pub fn weights(&self, weighted: bool) -> Vec<f64> {
        let weight = |update: &Weighted| {
            let examples = if weighted { update.num_examples } else { 1 };
            examples as f64 * staleness_weight(update.staleness)
        };
        self.known.iter().map(weight).collect()
    }

    /// The exact weighted sum: `sum(n_k * s_k * v_k)`, `sum(n_k)`.
    ///
    /// The staleness weight `s_k` is counted in 256ths, so that the sum of stale updates is exact too.
    pub fn weighted_sum(&self) -> Result<WeightedSum, AggregateError> {
        let num_examples = self.total_examples()?;
        let stale = self.known.iter().any(|update| update.staleness > 0);
        let parts = if stale { STALE_PARTS } else { 1.0 };
        let weights = self.weights(true).into_iter().map(|weight| weight * parts);
        let weights: Vec<f64> = weights.collect();
        let mut values = self.integer_sum(&weights)?;
        if stale {
            divide(&mut values, parts);
        }
        let largest = self.known.iter().map(|update| update.largest);
        let bound = largest.zip(&weights).map(|(most, weight)| most * weight);
        WeightedSum::within(self.exponents.to_vec(), values, num_examples, bound.sum())
    }

    /// `sum(c_k * v_k)` for real coefficients, shape `[d]`, in units of the scales.
    ///
    /// Coefficients are rounded to a multiple of one power of two, at most 2^-27 of the sum of their magnitudes, so that
    /// the sum is exact and its order does not matter.
    ///
    /// # Errors
    /// [`AggregateError::NotFinite`] (index of the update) for a coefficient that is not finite.
    pub fn linear(&self, coefficients: &[f64]) -> Result<Vec<f64>, AggregateError> {
        if let Some(at) = coefficients.iter().position(|c| !c.is_finite()) {
            return Err(AggregateError::NotFinite { at });
        }
        let magnitude: f64 = coefficients.iter().map(|c| c.abs()).sum();
        if magnitude <= 0.0 {
            return Ok(vec![0.0; self.num_parameters()]);
        }
        let step = (WHOLE / magnitude).log2().floor().exp2();
        let parts = coefficients.iter().map(|c| (c * step).round_ties_even());
        let mut values = self.integer_sum(&parts.collect::<Vec<_>>())?;
        divide(&mut values, step);
        Ok(values)
    }

    /// `sum(w_k * v_k)` for weights that are integers below 2^42.
    fn integer_sum(&self, weights: &[f64]) -> Result<Vec<f64>, AggregateError> {
        let mut sums = vec![0.0; self.num_parameters()];
        let all: Vec<usize> = (0..self.len()).filter(|k| weights[*k] != 0.0).collect();
        self.for_blocks(&mut sums, |worker, block, sums| {
            let mut rooms = std::mem::take(&mut worker.room);
            rooms.resize(SIDE_BY_SIDE * 2 * BLOCK, 0);
            for some in all.chunks(SIDE_BY_SIDE) {
                let mut rows = [Planes {
                    high: &[],
                    low: &[],
                }; SIDE_BY_SIDE];
                let mut some_weights = [0.0; SIDE_BY_SIDE];
                let rooms = rooms.chunks_exact_mut(2 * sums.len());
                for (((row, weight), k), room) in
                    rows.iter_mut().zip(&mut some_weights).zip(some).zip(rooms)
                {
                    *row = worker.read(*k, block, room)?;
                    *weight = weights[*k];
                }
                let n = some.len();
                kernels::add_weighted(self.isa, sums, &some_weights[..n], &rows[..n]);
            }
            worker.room = rooms;
            Ok(())
        })?;
        Ok(sums)
    }

    /// Squared L2 distance of each update from a point, or from 0, in parameter units.
    ///
    /// - `center`: shape `[d]`, in units of the scales.
    pub fn squared_distances_to(&self, center: Option<&[f64]>) -> Result<Vec<f64>, AggregateError> {
        let of_blocks = self.for_blocks(&mut [], |worker, block, _| {
            let range = self.block(block);
            let mut room = vec![0; 2 * range.len()];
            let mut values = vec![f16::ZERO; range.len()];
            let mut of_updates = Vec::with_capacity(self.len());
            for k in 0..self.len() {
                let planes = worker.read(k, block, &mut room)?;
                kernels::join(self.isa, planes, &mut values);
                let mut squares = 0.0;
                for (part, unit) in self.segments(&range) {
                    let of_part = if let Some(center) = center {
                        let center = &center[range.start + part.start..][..part.len()];
                        kernels::squared_distance_to(self.isa, &values[part], center)
                    } else {
                        kernels::measure(self.isa, planes.part(part)).squares
                    };
                    squares += unit * unit * of_part;
                }
                of_updates.push(squares);
            }
            Ok(of_updates)
        })?;
        let mut sums = vec![0.0; self.len()];
        for of_updates in of_blocks {
            for (sum, squares) in sums.iter_mut().zip(of_updates) {
                *sum += squares;
            }
        }
        Ok(sums)
    }

    /// Inner product of each update with a point, in parameter units.
    ///
    /// - `with`: shape `[d]`, in units of the scales.
    pub fn products_with(&self, with: &[f64]) -> Result<Vec<f64>, AggregateError> {
        // (|x|^2 + |c|^2 - |x - c|^2) / 2 would cancel; half the difference of |x + c|^2 and |x - c|^2 does so less, and
        // needs no kernel of its own.
        let negated: Vec<f64> = with.iter().map(|value| -value).collect();
        let near = self.squared_distances_to(Some(with))?;
        let far = self.squared_distances_to(Some(&negated))?;
        Ok(far
            .iter()
            .zip(near)
            .map(|(far, near)| (far - near) / 4.0)
            .collect())
    }

    /// Squared L2 distances between each two updates, in parameter units.
    pub fn distances(&self) -> Result<Distances, AggregateError> {
        let n = self.len();
        let mut sums = vec![0.0; n * n];
        let tiles: Vec<(usize, usize)> = (0..n.div_ceil(TILE))
            .flat_map(|i| (i..n.div_ceil(TILE)).map(move |j| (i, j)))
            .collect();
        let mut values = Vec::new();
        for block in 0..self.num_parameters().div_ceil(BLOCK) {
            let range = self.block(block);
            values.resize(n * range.len(), f16::ZERO);
            self.read_rows(block, &mut values)?;
            let rows: Vec<&[f16]> = values.chunks_exact(range.len()).collect();
            let each = tiles.len().div_ceil(self.threads).max(1);
            let of_tiles = std::thread::scope(|scope| {
                let work = tiles.chunks(each).map(|tiles| {
                    let (rows, range) = (&rows, &range);
                    move || self.tiles_of(tiles, rows, range)
                });
                run(scope, work)
            });
            for ((i, j), tile) in tiles.iter().zip(of_tiles.into_iter().flatten()) {
                for (a, row) in (i * TILE..n).zip(tile) {
                    for (b, squares) in (j * TILE..n).zip(row) {
                        sums[a * n + b] += squares;
                        if i != j {
                            sums[b * n + a] += squares;
                        }
                    }
                }
            }
        }
        Ok(Distances { n, squares: sums })
    }

    /// Squared distances within some tiles of a block.
    fn tiles_of(
        &self,
        tiles: &[(usize, usize)],
        rows: &[&[f16]],
        range: &Range<usize>,
    ) -> Vec<[[f64; TILE]; TILE]> {
        let mut sums = vec![[[0.0; TILE]; TILE]; tiles.len()];
        let mut wide = vec![0.0_f32; rows.len() * PIECE];
        for (segment, unit) in self.segments(range) {
            for start in segment.clone().step_by(PIECE) {
                let part = start..segment.end.min(start + PIECE);
                let padded = part.len().next_multiple_of(LANES);
                for (row, wide) in rows.iter().zip(wide.chunks_exact_mut(padded)) {
                    let (to, rest) = wide.split_at_mut(part.len());
                    row[part.clone()].convert_to_f32_slice(to);
                    rest.fill(0.0);
                }
                // Where a tile reaches beyond the last row, that row stands in.
                let row = |k: usize| &wide[k.min(rows.len() - 1) * padded..][..padded];
                let four = |i: usize| std::array::from_fn(|k| row(i * TILE + k));
                for ((i, j), sum) in tiles.iter().zip(&mut sums) {
                    let squares = kernels::squared_distances(self.isa, four(*i), four(*j));
                    for (sum, squares) in sum.iter_mut().flatten().zip(squares.iter().flatten()) {
                        *sum += unit * unit * squares;
                    }
                }
            }
        }
        sums
    }

    /// Reads one block of every update, one row after the other.
    fn read_rows(&self, block: usize, values: &mut [f16]) -> Result<(), AggregateError> {
        let len = self.block(block).len();
        let each = self.len().div_ceil(self.threads).max(1);
        std::thread::scope(|scope| {
            let parts = values.chunks_mut(each * len).enumerate();
            let work = parts.map(|(part, rows)| {
                move || {
                    let mut worker = Worker::new(self.source);
                    let mut room = vec![0; 2 * len];
                    for (k, row) in (part * each..).zip(rows.chunks_exact_mut(len)) {
                        let planes = worker.read(k, block, &mut room)?;
                        kernels::join(self.isa, planes, row);
                    }
                    Ok(())
                }
            });
            run(scope, work).into_iter().collect()
        })
    }

    /// Makes each value of the result of the values of all updates in its place: the way of rules that look at one
    /// coordinate at a time.
    ///
    /// `combine` gets some columns and the places of their results, which begin as 0.
    ///
    /// - returns: shape `[d]`, in units of the scales.
    pub fn columns(
        &self,
        combine: impl Fn(&Columns<'_>, &mut [f64]) + Sync,
    ) -> Result<Vec<f64>, AggregateError> {
        let mut results = vec![0.0; self.num_parameters()];
        self.for_blocks(&mut results, |worker, block, results| {
            let len = results.len();
            let mut room = vec![0; 2 * len];
            let mut values = vec![f16::ZERO; self.len() * len];
            for (k, row) in values.chunks_exact_mut(len).enumerate() {
                let planes = worker.read(k, block, &mut room)?;
                kernels::join(self.isa, planes, row);
            }
            let columns = Columns {
                known: self.known,
                values: &values,
                width: len,
            };
            combine(&columns, results);
            Ok(())
        })?;
        Ok(results)
    }

    /// Means of a range of the sorted values of each coordinate: the median, or what trimming leaves. Exact but for the
    /// division.
    ///
    /// - `kept`: ranks, from the smallest; below [`Updates::len`] and not empty.
    pub fn mean_of_ranks(&self, kept: Range<usize>) -> Result<Vec<f64>, AggregateError> {
        let network = Network::new(self.len());
        let count = kept.len() as f64;
        self.columns(|columns, results| {
            let mut keys = vec![0; self.len() * STRIP];
            for (strip, results) in results.chunks_mut(STRIP).enumerate() {
                let width = results.len();
                let keys = &mut keys[..self.len() * width];
                for (k, keys) in keys.chunks_exact_mut(width).enumerate() {
                    let values = &columns.row(k)[strip * STRIP..][..width];
                    kernels::to_keys(self.isa, values, keys);
                }
                kernels::sort_columns(self.isa, &network, keys, width);
                let kept = &keys[kept.start * width..kept.end * width];
                kernels::sum_keys(self.isa, kept, results);
                divide(results, count);
            }
        })
    }

    /// The values of a block.
    fn block(&self, block: usize) -> Range<usize> {
        let start = block * BLOCK;
        start..self.num_parameters().min(start + BLOCK)
    }

    /// The parts of a block that belong to one tensor each, relative to its start, with what a unit is worth there.
    fn segments(&self, block: &Range<usize>) -> impl Iterator<Item = (Range<usize>, f64)> {
        let (start, end) = (block.start, block.end);
        let tensors = self.ranges.iter().zip(self.exponents);
        tensors.filter_map(move |(range, exponent)| {
            let part = range.start.max(start)..range.end.min(end);
            let unit = f64::from(*exponent).exp2();
            (part.start < part.end).then(|| (part.start - start..part.end - start, unit))
        })
    }

    /// Runs `work` for every block, each thread a run of them, and gives what it returned in the order of the blocks.
    /// `results` is handed out by block; it may be empty.
    fn for_blocks<T: Send>(
        &self,
        results: &mut [f64],
        work: impl Fn(&mut Worker<'_>, usize, &mut [f64]) -> Result<T, AggregateError> + Sync,
    ) -> Result<Vec<T>, AggregateError> {
        let blocks = self.num_parameters().div_ceil(BLOCK);
        let each = blocks.div_ceil(self.threads).max(1);
        let mut rest = results;
        let work = &work;
        std::thread::scope(|scope| {
            let parts = (0..blocks).step_by(each).map(|first| {
                let blocks = first..blocks.min(first + each);
                let taken = rest.len().min(each * BLOCK);
                let (mine, others) = std::mem::take(&mut rest).split_at_mut(taken);
                rest = others;
                move || {
                    let mut worker = Worker::new(self.source);
                    let mut done = Vec::with_capacity(blocks.len());
                    let mut mine = mine.chunks_mut(BLOCK);
                    for block in blocks {
                        done.push(work(&mut worker, block, mine.next().unwrap_or(&mut []))?);
                    }
                    Ok(done)
                }
            });
            let parts: Vec<_> = parts.collect();
            let done: Result<Vec<Vec<T>>, AggregateError> =
                run(scope, parts.into_iter()).into_iter().collect();
            Ok(done?.into_iter().flatten().collect())
        })
    }
}

fn divide(values: &mut [f64], by: f64) {
    for value in values {
        *value /= by;
    }
}

/// What a stale update counts, in whole 256ths.
fn staleness_weight(staleness: u64) -> f64 {
    let weight = 1.0 / (1.0 + staleness as f64).sqrt();
    (weight * STALE_PARTS).round_ties_even() / STALE_PARTS
}

/// Runs pieces of work at the same time, the last one on this thread, and gives their results in order.
fn run<'scope, T: Send + 'scope, W: FnOnce() -> T + Send + 'scope>(
    scope: &'scope std::thread::Scope<'scope, '_>,
    work: impl Iterator<Item = W>,
) -> Vec<T> {
    let mut all: Vec<W> = work.collect();
    let Some(last) = all.pop() else {
        return Vec::new();
    };
    let others: Vec<_> = all.into_iter().map(|work| scope.spawn(work)).collect();
    let last = last();
    let joined = others.into_iter().map(|thread| match thread.join() {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    });
    let mut results: Vec<T> = joined.collect();
    results.push(last);
    results
}

/// What a thread reads with.
struct Worker<'s> {
    reader: Box<dyn super::BlockReader<'s> + 's>,
    /// Kept from block to block.
    room: Vec<u8>,
}

impl<'s> Worker<'s> {
    fn new(source: &'s dyn Source) -> Self {
        Self {
            reader: source.reader(),
            room: Vec::new(),
        }
    }

    fn read<'a>(
        &mut self,
        update: usize,
        block: usize,
        room: &'a mut [u8],
    ) -> Result<Planes<'a>, AggregateError>
    where
        's: 'a,
    {
        self.reader
            .read(update, block, room)
            .map_err(|error| AggregateError::Source { update, error })
    }
}

/// Some coordinates of every update.
#[derive(Debug)]
pub struct Columns<'a> {
    known: &'a [Weighted],
    values: &'a [f16],
    width: usize,
}

impl Columns<'_> {
    /// How many updates there are.
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// There are none.
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// What is known of each update.
    pub fn known(&self) -> &[Weighted] {
        self.known
    }

    /// The values of one update in these coordinates, in units of the scales.
    pub fn row(&self, update: usize) -> &[f16] {
        &self.values[update * self.width..][..self.width]
    }
}

/// Squared distances between each two updates.
#[derive(Clone, Debug, PartialEq)]
pub struct Distances {
    n: usize,
    squares: Vec<f64>,
}

impl Distances {
    /// Those of one update from all, itself included, in the order of the updates.
    pub fn of(&self, update: usize) -> &[f64] {
        &self.squares[update * self.n..][..self.n]
    }
}
