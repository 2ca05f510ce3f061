//! How close a quantized network comes to the one it was made of.

use std::collections::BTreeMap;

use candle_core::Tensor;
use wayside_extractor::float::FloatNetwork;
use wayside_extractor::kernels::Isa;
use wayside_extractor::quantized::{Grid, QuantNetwork};
use wayside_extractor::reference;

use super::{QuantizeError, parallel};
use crate::backbone::{Backbone, Network, Place};
use crate::pictures::Picture;

/// Pictures on which layers are compared: that arithmetic is the slow one.
const LAYER_PICTURES: usize = 16;

/// Cosines between feature vectors in int8 and in f32.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Agreement {
    /// How many pictures.
    pub pictures: usize,
    /// Mean cosine.
    pub mean: f64,
    /// Smallest cosine.
    pub worst: f64,
}

/// One activation in int8 beside f32.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerReport {
    /// Which, such as `block 3 expand`; blocks are counted from 1, as in the names of tensors.
    pub name: String,
    /// Cosine over all values of some pictures.
    pub cosine: f64,
    /// Smallest value that a channel's bytes can stand for.
    pub low: f64,
    /// Largest one.
    pub high: f64,
    /// Share of the bytes at an end of their range that does not stand for 0.
    pub saturated: f64,
}

/// Everything that is said of a quantized network.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// On the pictures that it was calibrated on.
    pub calibration: Agreement,
    /// On others.
    pub check: Option<Agreement>,
    /// In the order in which they run.
    pub layers: Vec<LayerReport>,
}

/// Compares features.
///
/// - `pictures`: all of one size, at least one.
///
/// # Errors
/// [`QuantizeError::Backbone`] if either network cannot run.
pub fn compare(
    float: &FloatNetwork,
    network: &QuantNetwork,
    pictures: &[Picture],
    threads: usize,
) -> Result<Agreement, QuantizeError> {
    let before = Backbone::from_float(float.clone());
    let after = Backbone::from_quantized(network.clone(), Isa::detect())?;
    let shares: Vec<&[Picture]> = pictures.chunks(16).collect();
    let cosines = parallel(shares.len(), threads, |share| {
        let (x, y) = (
            before.extract(shares[share])?,
            after.extract(shares[share])?,
        );
        let rows = x.rows().into_iter().zip(y.rows());
        Ok::<_, QuantizeError>(
            rows.map(|(x, y)| {
                let mut cosine = Cosine::default();
                x.iter()
                    .zip(y)
                    .for_each(|(x, y)| cosine.add(f64::from(*x), f64::from(*y)));
                cosine.value()
            })
            .collect::<Vec<f64>>(),
        )
    });
    let mut all = Vec::with_capacity(pictures.len());
    for share in cosines {
        all.extend(share?);
    }
    Ok(Agreement {
        pictures: all.len(),
        mean: all.iter().sum::<f64>() / all.len().max(1) as f64,
        worst: all.iter().copied().fold(1.0, f64::min),
    })
}

/// Compares every activation that is carried in bytes, on some of the pictures.
///
/// # Errors
/// [`QuantizeError::Backbone`] if the f32 network cannot run.
pub fn layers(
    float: &FloatNetwork,
    network: &QuantNetwork,
    pictures: &[Picture],
    threads: usize,
) -> Result<Vec<LayerReport>, QuantizeError> {
    let before = Network::new(float.clone());
    let step = pictures.len().div_ceil(LAYER_PICTURES).max(1);
    let some: Vec<&Picture> = pictures.iter().step_by(step).collect();
    let tallies = parallel(some.len(), threads, |index| {
        tally(&before, network, some[index])
    });
    let mut all = BTreeMap::<reference::Place, Tally>::new();
    let mut order = Vec::new();
    for tallies in tallies {
        for (place, tally) in tallies? {
            if !all.contains_key(&place) {
                order.push(place);
            }
            all.entry(place).or_default().join(&tally);
        }
    }
    let reports = order.into_iter().map(|place| {
        let (name, grid) = described(network, place);
        let tally = &all[&place];
        let ends = |byte: f64, pick: fn(f64, f64) -> f64, from: f64| {
            let real = grid.zero.iter().zip(&grid.scale);
            let real = real.map(|(zero, scale)| (byte - f64::from(*zero)) * f64::from(*scale));
            real.fold(from, pick)
        };
        LayerReport {
            name,
            cosine: tally.cosine.value(),
            low: ends(0.0, f64::min, 0.0),
            high: ends(255.0, f64::max, 0.0),
            saturated: tally.saturated as f64 / tally.count.max(1) as f64,
        }
    });
    Ok(reports.collect())
}

#[derive(Clone, Copy, Debug, Default)]
struct Cosine {
    product: f64,
    squares: (f64, f64),
}

impl Cosine {
    fn add(&mut self, x: f64, y: f64) {
        self.product += x * y;
        self.squares.0 += x * x;
        self.squares.1 += y * y;
    }

    /// 1 for two vectors of zeros, 0 for one.
    fn value(self) -> f64 {
        match self.squares {
            (0.0, 0.0) => 1.0,
            (0.0, _) | (_, 0.0) => 0.0,
            (x, y) => self.product / (x.sqrt() * y.sqrt()),
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    cosine: Cosine,
    saturated: u64,
    count: u64,
}

impl Tally {
    fn join(&mut self, other: &Self) {
        self.cosine.product += other.cosine.product;
        self.cosine.squares.0 += other.cosine.squares.0;
        self.cosine.squares.1 += other.cosine.squares.1;
        self.saturated += other.saturated;
        self.count += other.count;
    }
}

/// One picture through both networks.
fn tally(
    before: &Network,
    network: &QuantNetwork,
    picture: &Picture,
) -> Result<Vec<(reference::Place, Tally)>, QuantizeError> {
    let mut real = BTreeMap::new();
    before.observe(std::slice::from_ref(picture), &mut |place, x: &Tensor| {
        let place = match place {
            Place::Stem => reference::Place::Stem,
            Place::Expand(index) => reference::Place::Expand(index),
            Place::Depthwise(index) => reference::Place::Depthwise(index),
            Place::Gated(index) => reference::Place::Gated(index),
            Place::Block(index) => reference::Place::Block(index),
            _ => return,
        };
        let values = x.flatten_all().and_then(|x| x.to_vec1::<f32>());
        real.insert(place, values.unwrap_or_default());
    })?;
    let mut tallies = Vec::new();
    let size = picture.size();
    let rgb = picture.rgb();
    reference::run(
        network,
        size.height,
        size.width,
        rgb,
        &mut |place, plane| {
            let grid = described(network, place).1;
            let mut tally = Tally::default();
            let real = real.get(&place).map_or(&[][..], Vec::as_slice);
            for (at, (byte, real)) in plane.bytes.iter().zip(real).enumerate() {
                let (zero, scale) = (
                    grid.zero[at % plane.channels],
                    grid.scale[at % plane.channels],
                );
                let value = (f64::from(*byte) - f64::from(zero)) * f64::from(scale);
                tally.cosine.add(value, f64::from(*real));
                tally.saturated += u64::from(matches!(*byte, 0 | 255) && *byte != zero);
                tally.count += 1;
            }
            tallies.push((place, tally));
        },
    );
    Ok(tallies)
}

/// An activation's name and the grid of its bytes.
fn described(network: &QuantNetwork, place: reference::Place) -> (String, &Grid) {
    let named = |index: usize, part: &str| format!("block {}{part}", index + 1);
    match place {
        reference::Place::Stem => ("stem".to_owned(), &network.stem_output),
        reference::Place::Expand(index) => {
            let block = &network.blocks[index];
            let grid = block
                .expand
                .as_ref()
                .map_or(&block.hidden, |(_, grid)| grid);
            (named(index, " expand"), grid)
        }
        reference::Place::Depthwise(index) => {
            (named(index, " depthwise"), &network.blocks[index].hidden)
        }
        reference::Place::Gated(index) => {
            let block = &network.blocks[index];
            let grid = block
                .gate
                .as_ref()
                .map_or(&block.hidden, |gate| &gate.gated);
            (named(index, " gated"), grid)
        }
        reference::Place::Block(index) => (named(index, ""), &network.blocks[index].output),
    }
}
