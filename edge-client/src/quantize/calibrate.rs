//! What the activations of the f32 network look like on calibration pictures: ranges, means, and how values are spread.
//!
//! Two passes: the first one finds every channel's smallest and largest value and the means that bias correction needs,
//! the second one counts values into bins between the two. Sums are taken over fixed shares of the pictures and added
//! in their order, so that the outcome does not depend on the number of threads.

use std::collections::BTreeMap;

use candle_core::Tensor;
use wayside_extractor::float::FloatNetwork;
use wayside_extractor::topology::Padding;

use super::parallel;
use crate::backbone::{BackboneError, Network, Place};
use crate::pictures::Picture;

/// Bins of one channel's values.
const BINS: usize = 512;

/// Pictures that go through the f32 network at once.
const BATCH: usize = 8;

/// Shares of the pictures whose sums are taken apart.
const SHARES: usize = 16;

/// Pictures, height, width, channels.
type Shape = (usize, usize, usize, usize);

/// One activation over all pictures.
#[derive(Clone, Debug, Default)]
pub(super) struct Spread {
    pub(super) low: Vec<f32>,
    pub(super) high: Vec<f32>,
    /// Sums of values, then their means.
    pub(super) mean: Vec<f64>,
    /// Where a convolution of more than one pixel follows: the mean of what is under each place of its kernel, shape
    /// `[channels, kernel * kernel]`, zeros beyond the edge included.
    pub(super) patch: Vec<f64>,
    values: u64,
    places: u64,
    /// Shape `[channels, BINS]`; values of 0 are not counted, since every grid has them.
    bins: Vec<u32>,
}

/// All of them.
#[derive(Debug)]
pub(super) struct Statistics {
    spreads: BTreeMap<Place, Spread>,
}

impl Statistics {
    pub(super) fn get(&self, place: Place) -> &Spread {
        static NOTHING: Spread = Spread {
            low: Vec::new(),
            high: Vec::new(),
            mean: Vec::new(),
            patch: Vec::new(),
            values: 0,
            places: 0,
            bins: Vec::new(),
        };
        self.spreads.get(&place).unwrap_or(&NOTHING)
    }

    /// Runs the pictures through the network twice.
    ///
    /// - `pictures`: all of one size, at least one.
    /// - `progress`: called with pictures done and in total, of both passes together.
    pub(super) fn collect(
        float: &FloatNetwork,
        network: &Network,
        pictures: &[Picture],
        threads: usize,
        progress: &(dyn Fn(usize, usize) + Sync),
    ) -> Result<Self, BackboneError> {
        let windows = windows(float);
        let share = pictures.len().div_ceil(SHARES).max(1);
        let shares: Vec<&[Picture]> = pictures.chunks(share).collect();
        let done = std::sync::atomic::AtomicUsize::new(0);
        let tell = |count: usize| {
            let before = done.fetch_add(count, std::sync::atomic::Ordering::Relaxed);
            progress(before + count, 2 * pictures.len());
        };
        let first = parallel(shares.len(), threads, |index| {
            let mut spreads = BTreeMap::<Place, Spread>::new();
            for batch in shares[index].chunks(BATCH) {
                observe(network, batch, &mut |place, shape, values| {
                    let spread = spreads.entry(place).or_default();
                    spread.measure(shape.3, values);
                    if let Some(window) = windows.get(&place) {
                        spread.measure_patches(shape, values, *window);
                    }
                })?;
                tell(batch.len());
            }
            Ok::<_, BackboneError>(spreads)
        });
        let mut spreads = BTreeMap::<Place, Spread>::new();
        for share in first {
            for (place, part) in share? {
                spreads.entry(place).or_default().add(part);
            }
        }
        for spread in spreads.values_mut() {
            let (values, places) = (spread.values as f64, spread.places as f64);
            spread.mean.iter_mut().for_each(|mean| *mean /= values);
            spread.patch.iter_mut().for_each(|mean| *mean /= places);
        }
        // Bins are many: one set a thread, not one a share.
        let threads = threads.clamp(1, shares.len());
        let second = parallel(threads, threads, |thread| {
            let mut bins = BTreeMap::<Place, Vec<u32>>::new();
            for share in shares.iter().skip(thread).step_by(threads) {
                for batch in share.chunks(BATCH) {
                    observe(network, batch, &mut |place, shape, values| {
                        if binned(place) {
                            let bins = bins.entry(place).or_default();
                            spreads[&place].count(bins, shape.3, values);
                        }
                    })?;
                    tell(batch.len());
                }
            }
            Ok::<_, BackboneError>(bins)
        });
        for thread in second {
            for (place, part) in thread? {
                let bins = &mut spreads.entry(place).or_default().bins;
                bins.resize(part.len(), 0);
                for (sum, count) in bins.iter_mut().zip(part) {
                    *sum = sum.saturating_add(count);
                }
            }
        }
        Ok(Self { spreads })
    }
}

/// Whether an activation is carried in bytes.
fn binned(place: Place) -> bool {
    matches!(
        place,
        Place::Stem | Place::Expand(_) | Place::Depthwise(_) | Place::Gated(_) | Place::Block(_)
    )
}

/// Kernel, stride and padding of what follows an activation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    pub(super) kernel: usize,
    pub(super) stride: usize,
    pub(super) padding: Padding,
}

impl Window {
    /// Where each place of the kernel lies along one axis: `(output, place of the kernel, input)`.
    pub(super) fn axis(self, length: usize) -> Vec<(usize, usize, Option<usize>)> {
        let (before, outputs) = self.padding.axis(length, self.kernel, self.stride);
        (0..outputs)
            .flat_map(|output| (0..self.kernel).map(move |tap| (output, tap)))
            .map(|(output, tap)| {
                let from = (output * self.stride + tap).checked_sub(before);
                (output, tap, from.filter(|from| *from < length))
            })
            .collect()
    }
}

/// The activations that a convolution of more than one pixel reads.
fn windows(float: &FloatNetwork) -> BTreeMap<Place, Window> {
    let padding = float.padding;
    let mut windows = BTreeMap::new();
    let stem = Window {
        kernel: float.stem.kernel,
        stride: 2,
        padding,
    };
    windows.insert(Place::Input, stem);
    for (index, (block, shape)) in float.blocks.iter().zip(float.family.blocks()).enumerate() {
        let window = Window {
            kernel: shape.kernel,
            stride: shape.stride,
            padding,
        };
        let place = match (&block.expand, index) {
            (Some(_), _) => Place::Expand(index),
            (None, 0) => Place::Stem,
            (None, _) => Place::Block(index - 1),
        };
        windows.insert(place, window);
    }
    windows
}

/// Runs one batch and shows each activation as `[n, height, width, channels]` and values.
fn observe(
    network: &Network,
    pictures: &[Picture],
    see: &mut dyn FnMut(Place, Shape, &[f32]),
) -> Result<(), BackboneError> {
    let mut failed = None;
    network.observe(pictures, &mut |place, tensor: &Tensor| {
        let shape = match *tensor.dims() {
            [n, channels] => (n, 1, 1, channels),
            [n, height, width, channels] => (n, height, width, channels),
            _ => return,
        };
        match tensor.flatten_all().and_then(|flat| flat.to_vec1::<f32>()) {
            Ok(values) => see(place, shape, &values),
            Err(error) => failed = Some(error),
        }
    })?;
    failed.map_or(Ok(()), |error| Err(error.into()))
}

impl Spread {
    fn measure(&mut self, channels: usize, values: &[f32]) {
        self.low.resize(channels, f32::INFINITY);
        self.high.resize(channels, f32::NEG_INFINITY);
        self.mean.resize(channels, 0.0);
        for pixel in values.chunks_exact(channels) {
            for (channel, value) in pixel.iter().enumerate() {
                self.low[channel] = self.low[channel].min(*value);
                self.high[channel] = self.high[channel].max(*value);
                self.mean[channel] += f64::from(*value);
            }
        }
        self.values += (values.len() / channels) as u64;
    }

    fn measure_patches(
        &mut self,
        (n, height, width, channels): Shape,
        values: &[f32],
        window: Window,
    ) {
        let (rows, columns) = (window.axis(height), window.axis(width));
        let area = window.kernel * window.kernel;
        self.patch.resize(channels * area, 0.0);
        for picture in values.chunks_exact(height * width * channels) {
            for (_, y, row) in &rows {
                for (_, x, column) in &columns {
                    let (Some(row), Some(column)) = (row, column) else {
                        continue;
                    };
                    let pixel = &picture[(row * width + column) * channels..][..channels];
                    let sums = self.patch.iter_mut().skip(y * window.kernel + x);
                    for (sum, value) in sums.step_by(area).zip(pixel) {
                        *sum += f64::from(*value);
                    }
                }
            }
        }
        self.places += (n * rows.len() * columns.len() / area) as u64;
    }

    fn add(&mut self, part: Self) {
        if self.values == 0 {
            *self = part;
            return;
        }
        let add = |sums: &mut [f64], part: &[f64]| {
            sums.iter_mut()
                .zip(part)
                .for_each(|(sum, part)| *sum += part);
        };
        add(&mut self.mean, &part.mean);
        add(&mut self.patch, &part.patch);
        for (low, part) in self.low.iter_mut().zip(part.low) {
            *low = low.min(part);
        }
        for (high, part) in self.high.iter_mut().zip(part.high) {
            *high = high.max(part);
        }
        self.values += part.values;
        self.places += part.places;
    }

    fn count(&self, bins: &mut Vec<u32>, channels: usize, values: &[f32]) {
        bins.resize(channels * BINS, 0);
        let factors: Vec<f32> = self
            .low
            .iter()
            .zip(&self.high)
            .map(|(low, high)| BINS as f32 / (high - low).max(f32::MIN_POSITIVE))
            .collect();
        for pixel in values.chunks_exact(channels) {
            for (channel, value) in pixel.iter().enumerate() {
                if *value != 0.0 {
                    #[expect(
                        clippy::cast_possible_truncation,
                        clippy::cast_sign_loss,
                        reason = "within the bins, or saturated"
                    )]
                    let bin = ((value - self.low[channel]) * factors[channel]) as usize;
                    bins[channel * BINS + bin.min(BINS - 1)] += 1;
                }
            }
        }
    }

    /// The values of one channel that are not 0, as the middle of a bin and how many are in it.
    pub(super) fn histogram(&self, channel: usize) -> Vec<(f64, f64)> {
        let (low, high) = (f64::from(self.low[channel]), f64::from(self.high[channel]));
        let width = (high - low) / BINS as f64;
        self.bins[channel * BINS..(channel + 1) * BINS]
            .iter()
            .enumerate()
            .filter(|(_, count)| **count > 0)
            .map(|(bin, count)| (low + (bin as f64 + 0.5) * width, f64::from(*count)))
            .collect()
    }
}
