//! A layer's numbers laid out for an instruction set.

use super::Isa;
use super::aligned::Aligned;
use super::generic::{taps, tile_units};
use crate::layer::{Layer, UNIT};

/// How an instruction set wants its numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Form {
    /// How 16 quads of weights are stored.
    pub(super) quads: Quads,
    /// Which channel of a unit stands in which lane.
    pub(super) order: [usize; 16],
    /// Units that share one set of zeros in [`Zeros::Pairs`].
    pub(super) zeros: Zeros,
    /// Whether depthwise layers take four units at once where there are four.
    pub(super) wide: bool,
    /// Activations are multiplied as signed bytes, 128 less than they are: the bias makes up for it.
    pub(super) signed: bool,
}

/// How 16 quads of weights are stored.
#[derive(Clone, Copy, Debug)]
pub(super) enum Quads {
    /// Byte after byte: 64 bytes.
    Bytes,
    /// By eight channels: the first two of each quad as i16, then the second two: 128 bytes.
    Pairs16,
    /// By four channels: the first two of each quad, then the second two: 64 bytes.
    #[cfg_attr(not(target_arch = "aarch64"), allow(dead_code, reason = "NEON's"))]
    Pairs8,
}

/// How the zero points lie that are added to 16-bit numbers.
#[derive(Clone, Copy, Debug)]
pub(super) enum Zeros {
    /// As the channels: 16 a unit.
    Plain,
    /// Two units that were narrowed into one register of four 128-bit lanes: by lane four of the one, four of the other.
    Pairs,
}

/// Lanes as channels.
pub(super) const NATURAL: [usize; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];

/// What two 256-bit registers hold, so that narrowing within 128-bit lanes brings the channels in order.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "x86's"))]
pub(super) const HALVES: [usize; 16] = [0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 6, 7, 12, 13, 14, 15];

/// Channel of 64 that stands in lane `lane` of vector `vector` when four 512-bit rows are interleaved within their
/// 128-bit lanes.
pub(super) const WIDE_ORDER: fn(usize, usize) -> usize =
    |vector, lane| (lane / 4) * 16 + vector * 4 + lane % 4;

impl Isa {
    /// How it wants a layer; `None` for the portable kernels.
    pub(super) fn form(self) -> Option<Form> {
        let form = |quads, order, zeros| Form {
            quads,
            order,
            zeros,
            wide: self == Self::Avx512Vnni,
            signed: matches!(self, Self::Neon | Self::NeonDot),
        };
        match self {
            Self::Scalar => None,
            Self::Avx2 => Some(form(Quads::Pairs16, HALVES, Zeros::Plain)),
            Self::AvxVnni => Some(form(Quads::Bytes, HALVES, Zeros::Plain)),
            Self::Avx512Vnni => Some(form(Quads::Bytes, NATURAL, Zeros::Pairs)),
            Self::Neon => Some(form(Quads::Pairs8, NATURAL, Zeros::Plain)),
            Self::NeonDot => Some(form(Quads::Bytes, NATURAL, Zeros::Plain)),
        }
    }

    /// Which channel of a unit stands in which lane of raw sums.
    pub(super) fn order(self) -> [usize; 16] {
        self.form().map_or(NATURAL, |form| form.order)
    }
}

/// A packed layer; see [`Numbers`](super::generic::Numbers).
#[derive(Clone, Debug)]
pub(super) struct Packed {
    pub(super) weights: Aligned<u8>,
    pub(super) bias: Aligned<i32>,
    pub(super) factor: Aligned<f32>,
    pub(super) low: Aligned<f32>,
    pub(super) high: Aligned<f32>,
    pub(super) residual: Aligned<f32>,
    pub(super) zero: Aligned<i16>,
}

/// One that is being packed.
#[derive(Default)]
struct Packing {
    weights: Vec<u8>,
    bias: Vec<i32>,
    factor: Vec<f32>,
    low: Vec<f32>,
    high: Vec<f32>,
    residual: Vec<f32>,
    zero: Vec<i16>,
}

impl Packing {
    fn done(self) -> Packed {
        Packed {
            weights: Aligned::new(&self.weights),
            bias: Aligned::new(&self.bias),
            factor: Aligned::new(&self.factor),
            low: Aligned::new(&self.low),
            high: Aligned::new(&self.high),
            residual: Aligned::new(&self.residual),
            zero: Aligned::new(&self.zero),
        }
    }

    /// Appends the numbers of one lane; a channel beyond the last is all zeros.
    fn lane(&mut self, layer: &Layer, channel: usize, signed: bool) {
        let at = |values: &[f32]| values.get(channel).copied().unwrap_or(0.0);
        let mut bias = layer.bias.get(channel).copied().unwrap_or(0);
        if signed && channel < layer.output {
            let weights = &layer.weight[channel * layer.patch..][..layer.patch];
            bias += 128 * weights.iter().map(|w| i32::from(*w)).sum::<i32>();
        }
        self.bias.push(bias);
        self.factor.push(at(&layer.factor));
        self.low.push(at(&layer.low));
        self.high.push(at(&layer.high));
        self.residual.push(at(&layer.residual));
    }

    /// Appends 16 quads.
    fn quads(&mut self, form: Form, quads: [[i8; 4]; 16]) {
        let bytes = |w: i8| w.to_ne_bytes()[0];
        match form.quads {
            Quads::Bytes => self
                .weights
                .extend(quads.as_flattened().iter().map(|w| bytes(*w))),
            Quads::Pairs16 => {
                for eight in quads.chunks_exact(8) {
                    for pair in [0, 2] {
                        for quad in eight {
                            for w in &quad[pair..pair + 2] {
                                self.weights.extend(i16::from(*w).to_ne_bytes());
                            }
                        }
                    }
                }
            }
            Quads::Pairs8 => {
                for four in quads.chunks_exact(4) {
                    for pair in [0, 2] {
                        for quad in four {
                            self.weights
                                .extend(quad[pair..pair + 2].iter().map(|w| bytes(*w)));
                        }
                    }
                }
            }
        }
    }
}

/// Zero points of some units that are narrowed together, 32 entries a unit.
pub(super) fn zeros(form: Form, layer: &Layer, unit: usize, units: usize) -> Vec<i16> {
    let mut out = vec![0; units * 32];
    let zero = |unit: usize, lane: usize| {
        let channel = unit * UNIT + lane;
        i16::from(layer.zero.get(channel).copied().unwrap_or(0))
    };
    match form.zeros {
        Zeros::Plain => {
            for j in 0..units {
                for lane in 0..16 {
                    out[j * 32 + lane] = zero(unit + j, lane);
                }
            }
        }
        Zeros::Pairs => {
            for pair in 0..units.div_ceil(2) {
                let first = pair * 2;
                let second = (first + 1).min(units - 1);
                for lane in 0..16 {
                    let at = pair * 32 + (lane / 4) * 8 + lane % 4;
                    out[at] = zero(unit + first, lane);
                    out[at + 4] = zero(unit + second, lane);
                }
            }
        }
    }
    out
}

/// A convolution over all channels, its patches in `segments` pieces that are each padded to whole quads.
pub(super) fn pointwise(form: Form, layer: &Layer, segments: usize) -> Packed {
    let mut packed = Packing::default();
    let units = layer.output.div_ceil(UNIT);
    let length = layer.patch / segments;
    for unit in 0..units {
        let channel = |lane: usize| unit * UNIT + form.order[lane];
        for lane in 0..16 {
            packed.lane(layer, channel(lane), form.signed);
        }
        for segment in 0..segments {
            for quad in 0..length.div_ceil(4) {
                let weight = |lane: usize, i: usize| {
                    let place = quad * 4 + i;
                    let channel = channel(lane);
                    if channel >= layer.output || place >= length {
                        return 0;
                    }
                    layer.weight[channel * layer.patch + segment * length + place]
                };
                packed.quads(
                    form,
                    std::array::from_fn(|lane| std::array::from_fn(|i| weight(lane, i))),
                );
            }
        }
    }
    let mut unit = 0;
    while unit < units {
        let width = tile_units(units, unit);
        packed.zero.extend(zeros(form, layer, unit, width));
        unit += width;
    }
    packed.done()
}

/// Row and column of the taps in a quad for the upper (0) or lower (1) of two output rows; `None` is no tap.
fn quad_taps(kernel: usize, tap: usize, row: usize) -> [Option<(usize, usize)>; 4] {
    std::array::from_fn(|i| {
        // Rows of the input that stand in the quad, counted from the upper output row's first.
        let (input, column) = if kernel == 3 || tap < 5 {
            (i, tap)
        } else {
            (4 + i % 2, (tap - 5) * 2 + i / 2)
        };
        let y = input.checked_sub(row)?;
        (y < kernel && column < kernel).then_some((y, column))
    })
}

/// A depthwise convolution: for each group of units the quads of the upper output row, then those of the lower.
pub(super) fn depthwise(form: Form, layer: &Layer, kernel: usize) -> Packed {
    let mut packed = Packing::default();
    let units = layer.output.div_ceil(UNIT);
    let mut unit = 0;
    while unit < units {
        let group = if form.wide && units - unit >= 4 { 4 } else { 1 };
        let channel = |vector: usize, lane: usize| {
            let within = if group == 4 {
                WIDE_ORDER(vector, lane)
            } else {
                form.order[lane]
            };
            unit * UNIT + within
        };
        for vector in 0..group {
            for lane in 0..16 {
                packed.lane(layer, channel(vector, lane), form.signed);
            }
        }
        for row in 0..2 {
            for tap in 0..taps(kernel) {
                let taps = quad_taps(kernel, tap, row);
                for vector in 0..group {
                    let weight = |lane: usize, i: usize| {
                        let channel = channel(vector, lane);
                        let place = taps[i].filter(|_| channel < layer.output);
                        place.map_or(0, |(y, x)| {
                            layer.weight[channel * layer.patch + y * kernel + x]
                        })
                    };
                    packed.quads(
                        form,
                        std::array::from_fn(|lane| std::array::from_fn(|i| weight(lane, i))),
                    );
                }
            }
        }
        if group == 4 {
            // Narrowing within lanes: eight channels of each lane's sixteen, twice.
            let mut wide = vec![0; 4 * 32];
            for half in 0..2 {
                for lane in 0..32 {
                    let channel = unit * UNIT + (lane / 8) * 16 + half * 8 + lane % 8;
                    wide[half * 32 + lane] =
                        i16::from(layer.zero.get(channel).copied().unwrap_or(0));
                }
            }
            packed.zero.extend(wide);
        } else {
            packed.zero.extend(zeros(form, layer, unit, 1));
        }
        unit += group;
    }
    packed.done()
}
