//! One thread's part: the arena, and a picture's way through it.

use super::{Block, Gate, Matrix, Model, Shared};
use crate::dense::{combine, enter_into, gate, hard_swish, means_into, pixels};
use crate::kernels::{Aligned, Output, column_sums, gate as gate_plane};
use crate::layer::padded;
use crate::topology::Padding;

/// Lengths of the arena's parts, in bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Parts {
    /// Planes between blocks: one block reads the first and writes the second, the next the other way round.
    planes: [usize; 2],
    ring: usize,
    /// Depthwise output: two rows, or the whole plane where a gate follows.
    hidden: usize,
    quads: usize,
}

/// Vectors between planes.
#[derive(Debug)]
struct Vectors {
    sums: Vec<u32>,
    entered: Vec<u16>,
    /// The bytes of `entered`, high ones and low ones.
    rows: Vec<u8>,
    raw: Vec<i32>,
    real: Vec<f32>,
    factors: Vec<i16>,
    pooled: Vec<f32>,
}

/// What one thread needs to run pictures of one size.
#[derive(Debug)]
pub struct Session {
    model: Model,
    height: usize,
    width: usize,
    parts: Parts,
    arena: Aligned<u8>,
    wide: Vec<i16>,
    vectors: Vectors,
}

/// Start of a cache line, for every part of the arena.
const LINE: usize = 64;

/// Behind each part, since kernels read whole quads and whole registers.
const SLACK: usize = 64;

/// Columns of a ring row: the padding, the row, and one more pixel for the kernels.
fn ring_columns(padding: Padding, width: usize, kernel: usize, stride: usize) -> usize {
    let (left, output) = padding.axis(width, kernel, stride);
    (left + width).max(output.saturating_sub(1) * stride + kernel) + 1
}

/// Output rows that one turn of the ring makes.
fn strip(stride: usize) -> usize {
    if stride == 1 { 2 } else { 1 }
}

/// Input rows that one turn of the ring needs.
fn ring_rows(kernel: usize, stride: usize) -> usize {
    (strip(stride) - 1) * stride + kernel
}

impl Session {
    pub(super) fn new(model: Model, height: usize, width: usize) -> Self {
        let shared = &model.shared;
        let padding = shared.padding;
        let (mut h, mut w) = (height.div_ceil(2), width.div_ceil(2));
        let mut parts = Parts::default();
        parts.planes[0] = h * w * shared.stem_channels;
        parts.ring = (ring_columns(padding, width, 3, 2) * 3 + 4) * 4;
        let mut longest = shared.last_factor.len();
        let mut scratch = shared.stem.scratch().max(shared.last.scratch());
        for (index, block) in shared.blocks.iter().enumerate() {
            let columns = ring_columns(padding, w, block.kernel, block.stride);
            // One row more, of zero points, for what lies outside.
            let rows = ring_rows(block.kernel, block.stride) + 1;
            parts.ring = parts.ring.max(columns * rows * block.hidden);
            (h, w) = (h.div_ceil(block.stride), w.div_ceil(block.stride));
            let strip = if block.gate.is_some() {
                h
            } else {
                strip(block.stride).min(h)
            };
            parts.hidden = parts.hidden.max(strip * w * block.hidden);
            let plane = &mut parts.planes[(index + 1) % 2];
            *plane = (*plane).max(h * w * block.output);
            parts.quads = parts.quads.max(block.depthwise.scratch());
            longest = longest.max(block.hidden).max(block.output);
            let kernels = block.expand.iter().chain([&block.project]);
            scratch = kernels.fold(scratch, |most, kernel| most.max(kernel.scratch()));
            for matrix in block.gate.iter().flat_map(|g| [&g.squeeze, &g.excite]) {
                scratch = scratch.max(matrix.kernel.scratch());
                longest = longest.max(matrix.input).max(matrix.output);
            }
        }
        if let Some(matrix) = &shared.pooled {
            scratch = scratch.max(matrix.kernel.scratch());
            longest = longest.max(matrix.input).max(matrix.output);
        }
        let whole = |part: usize| (part + SLACK).next_multiple_of(LINE);
        parts = Parts {
            planes: parts.planes.map(whole),
            ring: whole(parts.ring),
            hidden: whole(parts.hidden),
            quads: whole(parts.quads),
        };
        let total = parts.planes.iter().sum::<usize>() + parts.ring + parts.hidden + parts.quads;
        let longest = padded(longest);
        Self {
            height,
            width,
            parts,
            arena: Aligned::zeroed(total),
            wide: vec![0; scratch],
            vectors: Vectors {
                sums: vec![0; longest],
                entered: vec![0; longest],
                rows: vec![0; 2 * longest],
                raw: vec![0; 2 * longest],
                real: vec![0.0; longest],
                factors: vec![0; longest],
                pooled: vec![0.0; longest],
            },
            model,
        }
    }

    /// Height and width of the pictures that it takes.
    pub fn size(&self) -> (usize, usize) {
        (self.height, self.width)
    }

    /// Bytes of memory that a running picture uses, apart from the model.
    pub fn arena_bytes(&self) -> usize {
        // u32, u16, two u8, two i32, two f32 and an i16 for each entry of the vectors.
        self.arena.len() + self.wide.len() * 2 + self.vectors.sums.len() * 26
    }

    /// The features of one picture.
    ///
    /// - `rgb`: shape `[height, width, 3]`.
    /// - `features`: shape `[features]`.
    ///
    /// # Panics
    /// If the lengths are others.
    pub fn run(&mut self, rgb: &[u8], features: &mut [f32]) {
        self.run_watched(rgb, features, &mut |_| ());
    }

    /// [`Self::run`] while `watch` is told after each piece of work what it was; pieces are rows of a block.
    ///
    /// # Panics
    /// As [`Self::run`].
    pub fn run_watched(&mut self, rgb: &[u8], features: &mut [f32], watch: &mut impl FnMut(Stage)) {
        assert_eq!(rgb.len(), self.height * self.width * 3, "picture's length");
        assert_eq!(features.len(), self.model.features(), "features' length");
        let shared = &self.model.shared;
        let (mut x, rest) = self.arena.split_at_mut(self.parts.planes[0]);
        let (mut y, rest) = rest.split_at_mut(self.parts.planes[1]);
        let (ring, rest) = rest.split_at_mut(self.parts.ring);
        let (hidden, rest) = rest.split_at_mut(self.parts.hidden);
        let mut room = Room {
            ring,
            hidden,
            quads: &mut rest[..self.parts.quads],
            wide: &mut self.wide,
            vectors: &mut self.vectors,
            watch,
        };
        stem(shared, rgb, (self.height, self.width), x, &mut room);
        (room.watch)(Stage::Stem);
        let (mut height, mut width) = (self.height.div_ceil(2), self.width.div_ceil(2));
        for block in &shared.blocks {
            block.run(shared, x, (height, width), y, &mut room);
            std::mem::swap(&mut x, &mut y);
            height = height.div_ceil(block.stride);
            width = width.div_ceil(block.stride);
        }
        pool(shared, x, height * width, features, &mut room);
        (room.watch)(Stage::Pool);
    }
}

/// A part of the work on a picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// The first convolution.
    Stem,
    /// Expansions.
    Expand,
    /// Depthwise convolutions, 3x3 or 5x5.
    Depthwise {
        /// Side of the kernel.
        kernel: usize,
    },
    /// Squeeze-excite.
    Gate,
    /// Projections.
    Project,
    /// The last convolution, the mean, and the layer on it.
    Pool,
}

/// The arena but for the planes.
struct Room<'a, W> {
    ring: &'a mut [u8],
    hidden: &'a mut [u8],
    quads: &'a mut [u8],
    wide: &'a mut [i16],
    vectors: &'a mut Vectors,
    /// Told what was just done.
    watch: &'a mut W,
}

/// The first convolution: rows of the picture go into a ring with their border, patches are read from there.
fn stem<W: FnMut(Stage)>(
    shared: &Shared,
    rgb: &[u8],
    (height, width): (usize, usize),
    to: &mut [u8],
    room: &mut Room<'_, W>,
) {
    let (top, rows) = shared.padding.axis(height, 3, 2);
    let (left, columns) = shared.padding.axis(width, 3, 2);
    let length = ring_columns(shared.padding, width, 3, 2) * 3 + 4;
    for row in room.ring[..4 * length].chunks_exact_mut(length) {
        for pixel in row.as_chunks_mut::<3>().0 {
            *pixel = shared.border;
        }
    }
    let mut ready = 0;
    for row in 0..rows {
        let reach = (row * 2 + 3).saturating_sub(top).min(height);
        for input in ready..reach {
            let at = (input % 3) * length + left * 3;
            let from = &rgb[input * width * 3..][..width * 3];
            room.ring[at..at + width * 3].copy_from_slice(from);
        }
        ready = ready.max(reach);
        let under: [&[u8]; 3] = std::array::from_fn(|y| {
            let input = (row * 2 + y).checked_sub(top).filter(|row| *row < height);
            let slot = input.map_or(3, |row| row % 3);
            &room.ring[slot * length..][..length]
        });
        let line = columns * shared.stem_channels;
        let output = Output::Bytes {
            to: &mut to[row * line..][..line],
            residual: &[],
        };
        shared.stem.run(&under, (6, columns), output, room.wide);
    }
}

impl Block {
    /// From plane `x` (height and width as given) to plane `to`.
    fn run<W: FnMut(Stage)>(
        &self,
        shared: &Shared,
        x: &[u8],
        (height, width): (usize, usize),
        to: &mut [u8],
        room: &mut Room<'_, W>,
    ) {
        let (top, rows) = shared.padding.axis(height, self.kernel, self.stride);
        let (left, columns) = shared.padding.axis(width, self.kernel, self.stride);
        let slots = ring_rows(self.kernel, self.stride);
        let length = ring_columns(shared.padding, width, self.kernel, self.stride) * self.hidden;
        let inner = left * self.hidden..(left + width) * self.hidden;
        for (slot, row) in room
            .ring
            .chunks_exact_mut(length)
            .take(slots + 1)
            .enumerate()
        {
            // The last slot stands for rows outside.
            let kept = if slot == slots { 0..0 } else { inner.clone() };
            for pixel in row[..kept.start].chunks_exact_mut(self.hidden) {
                pixel.copy_from_slice(&self.zero);
            }
            for pixel in row[kept.end..].chunks_exact_mut(self.hidden) {
                pixel.copy_from_slice(&self.zero);
            }
        }
        let mut ready = 0;
        let mut row = 0;
        while row < rows {
            let count = strip(self.stride).min(rows - row);
            let first = row * self.stride;
            let reach = (first + (count - 1) * self.stride + self.kernel)
                .saturating_sub(top)
                .min(height);
            for input in ready..reach {
                let slot = &mut room.ring[(input % slots) * length..][..length];
                let to = &mut slot[inner.clone()];
                let from = &x[input * width * self.input..];
                match &self.expand {
                    Some(expand) => {
                        let residual = &[];
                        let output = Output::Bytes { to, residual };
                        expand.run(&[from], (self.input, width), output, room.wide);
                    }
                    None => to.copy_from_slice(&from[..to.len()]),
                }
            }
            ready = ready.max(reach);
            (room.watch)(Stage::Expand);
            let under: [&[u8]; 6] = std::array::from_fn(|y| {
                let input = (first + y.min(slots - 1)).checked_sub(top);
                let slot = input
                    .filter(|row| *row < height)
                    .map_or(slots, |row| row % slots);
                &room.ring[slot * length..][..length]
            });
            let line = columns * self.hidden;
            let at = if self.gate.is_some() { row * line } else { 0 };
            let hidden = &mut room.hidden[at..][..count * line];
            self.depthwise
                .run(&under, (columns, count), hidden, room.quads);
            let kernel = self.kernel;
            (room.watch)(Stage::Depthwise { kernel });
            if self.gate.is_none() {
                self.project(x, row * columns, columns * count, to, room);
            }
            row += count;
        }
        if let Some(gate) = &self.gate {
            let plane = &mut room.hidden[..rows * columns * self.hidden];
            gate.run(shared, plane, rows * columns, room.vectors, room.wide);
            (room.watch)(Stage::Gate);
            self.project(x, 0, rows * columns, to, room);
        }
    }

    /// Projects the first `count` pixels of the hidden plane to the output's from `first` on.
    fn project<W: FnMut(Stage)>(
        &self,
        x: &[u8],
        first: usize,
        count: usize,
        to: &mut [u8],
        room: &mut Room<'_, W>,
    ) {
        let residual = if self.residual {
            &x[first * self.input..]
        } else {
            &[]
        };
        let to = &mut to[first * self.output..][..count * self.output];
        let output = Output::Bytes { to, residual };
        self.project
            .run(&[room.hidden], (self.hidden, count), output, room.wide);
        (room.watch)(Stage::Project);
    }
}

impl Gate {
    fn run(
        &self,
        shared: &Shared,
        plane: &mut [u8],
        count: usize,
        vectors: &mut Vectors,
        scratch: &mut [i16],
    ) {
        let stored = self.from.len();
        let sums = &mut vectors.sums[..stored];
        sums.fill(0);
        column_sums(shared.isa, plane, sums);
        means_into(sums, count, &mut vectors.entered);
        self.squeeze.run(vectors, scratch);
        let hidden = &mut vectors.real[..self.excite.input];
        for x in hidden.iter_mut() {
            *x = x.max(0.0);
        }
        let (low, step) = (self.excite.low, self.excite.step);
        enter_into(low, step, hidden, &mut vectors.entered);
        self.excite.run(vectors, scratch);
        let factors = &mut vectors.factors[..stored];
        factors.fill(0);
        for ((factor, x), ratio) in factors.iter_mut().zip(&vectors.real).zip(&self.ratios) {
            *factor = gate(*x, shared.sixth, *ratio);
        }
        gate_plane(shared.isa, plane, &self.from, factors, &self.to);
    }
}

/// The last convolution, the mean over the picture, and the layer on it.
fn pool<W: FnMut(Stage)>(
    shared: &Shared,
    x: &[u8],
    count: usize,
    features: &mut [f32],
    room: &mut Room<'_, W>,
) {
    let channels = shared.last_factor.len();
    let input = shared
        .blocks
        .last()
        .map_or(shared.stem_channels, |b| b.output);
    let vectors = &mut *room.vectors;
    let sums = &mut vectors.real[..padded(channels)];
    sums.fill(0.0);
    let output = Output::Sums(sums);
    shared.last.run(&[x], (input, count), output, room.wide);
    shared.last.natural(sums);
    let factors = shared.last_factor.iter();
    for ((pooled, sum), factor) in vectors.pooled.iter_mut().zip(sums).zip(factors) {
        *pooled = (*sum / pixels(count)) * factor;
    }
    let Some(matrix) = &shared.pooled else {
        features.copy_from_slice(&vectors.pooled[..channels]);
        return;
    };
    let pooled = &vectors.pooled[..matrix.input];
    enter_into(matrix.low, matrix.step, pooled, &mut vectors.entered);
    matrix.run(vectors, room.wide);
    for (feature, x) in features.iter_mut().zip(&vectors.real) {
        *feature = hard_swish(*x, shared.sixth);
    }
}

impl Matrix {
    /// - `vectors.entered`: the input, as 16-bit numbers.
    /// - returns: the output in `vectors.real`.
    fn run(&self, vectors: &mut Vectors, scratch: &mut [i16]) {
        let length = self.input.next_multiple_of(4);
        let (high, low) = vectors.rows[..2 * length].split_at_mut(length);
        let numbers = vectors.entered[..self.input].iter();
        for ((high, low), number) in high.iter_mut().zip(low).zip(numbers) {
            [*high, *low] = number.to_be_bytes();
        }
        let rows = &vectors.rows[..2 * length];
        let output = Output::Raw(&mut vectors.raw);
        self.kernel.run(&[rows], (length, 2), output, scratch);
        let (high, low) = vectors.raw.split_at(padded(self.output));
        let sums = high.iter().zip(low).zip(self.scale.iter().zip(&self.bias));
        for (real, ((high, low), (scale, bias))) in vectors.real.iter_mut().zip(sums) {
            *real = combine(*high, *low, *scale, *bias);
        }
        self.kernel.natural(&mut vectors.real[..self.scale.len()]);
    }
}
