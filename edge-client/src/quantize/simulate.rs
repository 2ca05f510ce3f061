//! The quantized network one layer at a time, on all calibration pictures at once: each layer is fitted to the bytes
//! that the layers before it really give.
//!
//! Sums are taken as f32 matrix products, so that a rounding may differ from the kernels' now and then.

use ndarray::linalg::general_mat_mul;
use ndarray::{Array2, ArrayView2};
use wayside_extractor::quantized::{Dense, Grid, QuantConv, QuantGate};
use wayside_extractor::topology::Activation;

use super::calibrate::Window;
use super::parallel;

/// Rows of a matrix whose products of bytes are summed exactly in f32.
const EXACT_ROWS: usize = 256;

/// Most pixels whose second moments are taken: more say nothing new.
const MOMENT_ROWS: usize = 32 * 1024;

/// The same for what lies under the kernel of a depthwise convolution.
const WINDOW_ROWS: usize = 8 * 1024;

/// The bytes of one activation of some pictures, each `[height, width, channels]`.
#[derive(Clone, Debug)]
pub(super) struct Planes {
    pub(super) height: usize,
    pub(super) width: usize,
    pub(super) channels: usize,
    pub(super) pictures: Vec<Vec<u8>>,
}

impl Planes {
    fn pixels(&self) -> usize {
        self.height * self.width
    }

    /// Mean byte of each channel.
    pub(super) fn means(&self) -> Vec<f64> {
        let mut sums = vec![0_u64; self.channels];
        for picture in &self.pictures {
            for pixel in picture.chunks_exact(self.channels) {
                for (sum, byte) in sums.iter_mut().zip(pixel) {
                    *sum += u64::from(*byte);
                }
            }
        }
        let count = (self.pixels() * self.pictures.len()) as f64;
        sums.iter().map(|sum| *sum as f64 / count).collect()
    }

    /// Second moments of the channels around their means, shape `[channels, channels]`.
    pub(super) fn moments(&self, threads: usize) -> Vec<f64> {
        let n = self.channels;
        let total = self.pixels() * self.pictures.len();
        let step = total.div_ceil(MOMENT_ROWS).max(1);
        let shares = threads.max(1);
        let parts = parallel(shares, threads, |share| {
            let (mut squares, mut sums) = (Array2::<f64>::zeros((n, n)), vec![0.0_f64; n]);
            let mut rows = Vec::with_capacity(EXACT_ROWS * n);
            let mut count = 0_usize;
            let mut flush = |rows: &mut Vec<f32>| {
                let matrix = ArrayView2::from_shape((rows.len() / n, n), rows.as_slice())
                    .expect("whole rows");
                let mut product = Array2::<f32>::zeros((n, n));
                general_mat_mul(1.0, &matrix.t(), &matrix, 0.0, &mut product);
                squares.zip_mut_with(&product, |sum, part| *sum += f64::from(*part));
                rows.clear();
            };
            let pixels = self
                .pictures
                .iter()
                .flat_map(|picture| picture.chunks_exact(n));
            for pixel in pixels.step_by(step).skip(share).step_by(shares) {
                rows.extend(pixel.iter().map(|byte| f32::from(*byte)));
                count += 1;
                for (sum, byte) in sums.iter_mut().zip(pixel) {
                    *sum += f64::from(*byte);
                }
                if rows.len() == EXACT_ROWS * n {
                    flush(&mut rows);
                }
            }
            flush(&mut rows);
            (squares, sums, count)
        });
        let (mut squares, mut sums, mut count) = (Array2::<f64>::zeros((n, n)), vec![0.0; n], 0);
        for (part, part_sums, part_count) in parts {
            squares += &part;
            sums.iter_mut()
                .zip(part_sums)
                .for_each(|(sum, part)| *sum += part);
            count += part_count;
        }
        let count = count.max(1) as f64;
        let mut moments = squares.into_raw_vec_and_offset().0;
        for (i, line) in moments.chunks_exact_mut(n).enumerate() {
            for (j, moment) in line.iter_mut().enumerate() {
                *moment = *moment / count - sums[i] / count * (sums[j] / count);
            }
        }
        moments
    }

    /// What lies under a kernel over all channels: means, in the order (channel, place), and second moments around them.
    pub(super) fn patches(&self, window: Window, border: &[u8]) -> (Vec<f64>, Vec<f64>) {
        let (n, area) = (self.channels, window.kernel * window.kernel);
        let (rows, columns) = (window.axis(self.height), window.axis(self.width));
        let (rows, columns) = (
            by_output(&rows, window.kernel),
            by_output(&columns, window.kernel),
        );
        let width = n * area;
        let (mut sums, mut squares) = (vec![0_u64; width], vec![0_u64; width * width]);
        let mut patch = vec![0_u64; width];
        for picture in &self.pictures {
            for row in &rows {
                for column in &columns {
                    for (y, row) in row.iter().enumerate() {
                        for (x, column) in column.iter().enumerate() {
                            let bytes = match (row, column) {
                                (Some(row), Some(column)) => {
                                    &picture[(row * self.width + column) * n..][..n]
                                }
                                _ => border,
                            };
                            for (channel, byte) in bytes.iter().enumerate() {
                                patch[channel * area + y * window.kernel + x] = u64::from(*byte);
                            }
                        }
                    }
                    for (i, own) in patch.iter().enumerate() {
                        sums[i] += own;
                        for (square, other) in squares[i * width..].iter_mut().zip(&patch) {
                            *square += own * other;
                        }
                    }
                }
            }
        }
        let count = (rows.len() * columns.len() * self.pictures.len()) as f64;
        let means: Vec<f64> = sums.iter().map(|sum| *sum as f64 / count).collect();
        let moments = squares
            .iter()
            .enumerate()
            .map(|(at, square)| *square as f64 / count - means[at / width] * means[at % width]);
        let moments = moments.collect();
        (means, moments)
    }

    /// What lies under a kernel, each channel for itself: means of shape `[channels, area]` and second moments around
    /// them of shape `[channels, area, area]`.
    pub(super) fn windows(&self, window: Window, border: &[u8]) -> (Vec<f64>, Vec<f64>) {
        let (n, area) = (self.channels, window.kernel * window.kernel);
        let (rows, columns) = (window.axis(self.height), window.axis(self.width));
        let (rows, columns) = (
            by_output(&rows, window.kernel),
            by_output(&columns, window.kernel),
        );
        let mut sums = vec![0_u64; area * n];
        let mut some = vec![0.0_f64; n * area];
        let mut squares = vec![0.0_f64; n * area * area];
        let total = rows.len() * columns.len() * self.pictures.len();
        let step = total.div_ceil(WINDOW_ROWS).max(1);
        let mut patch = vec![0.0_f64; n * area];
        let mut at = 0;
        for picture in &self.pictures {
            for row in &rows {
                for column in &columns {
                    for (y, row) in row.iter().enumerate() {
                        for (x, column) in column.iter().enumerate() {
                            let bytes = match (row, column) {
                                (Some(row), Some(column)) => {
                                    &picture[(row * self.width + column) * n..][..n]
                                }
                                _ => border,
                            };
                            let place = y * window.kernel + x;
                            for (sum, byte) in sums[place * n..][..n].iter_mut().zip(bytes) {
                                *sum += u64::from(*byte);
                            }
                            if at % step == 0 {
                                for (channel, byte) in bytes.iter().enumerate() {
                                    patch[channel * area + place] = f64::from(*byte);
                                }
                            }
                        }
                    }
                    if at % step == 0 {
                        for (sum, value) in some.iter_mut().zip(&patch) {
                            *sum += value;
                        }
                        let lines = squares.chunks_exact_mut(area * area);
                        for (lines, patch) in lines.zip(patch.chunks_exact(area)) {
                            for (line, own) in lines.chunks_exact_mut(area).zip(patch) {
                                for (sum, other) in line.iter_mut().zip(patch) {
                                    *sum += own * other;
                                }
                            }
                        }
                    }
                    at += 1;
                }
            }
        }
        let count = total.div_ceil(step).max(1) as f64;
        for (lines, sums) in squares
            .chunks_exact_mut(area * area)
            .zip(some.chunks_exact(area))
        {
            for (line, own) in lines.chunks_exact_mut(area).zip(sums) {
                for (moment, other) in line.iter_mut().zip(sums) {
                    *moment = *moment / count - own / count * (other / count);
                }
            }
        }
        let means = (0..n * area).map(|at| sums[at % area * n + at / area] as f64 / total as f64);
        (means.collect(), squares)
    }
}

fn by_output(axis: &[(usize, usize, Option<usize>)], kernel: usize) -> Vec<Vec<Option<usize>>> {
    let from = |(_, _, from): &(usize, usize, Option<usize>)| *from;
    axis.chunks(kernel)
        .map(|taps| taps.iter().map(from).collect())
        .collect()
}

/// From sums of products to bytes.
pub(super) struct Finish<'a> {
    pub(super) activation: Activation,
    pub(super) sixth: f32,
    pub(super) grid: &'a Grid,
    /// The block's input and its grid.
    pub(super) residual: Option<(&'a Planes, &'a Grid)>,
}

impl Finish<'_> {
    fn byte(&self, value: f32, channel: usize) -> u8 {
        let value = match self.activation {
            Activation::Identity => value,
            Activation::Relu => value.max(0.0),
            Activation::HardSwish => value * (value + 3.0).clamp(0.0, 6.0) * self.sixth,
        };
        to_byte(value / self.grid.scale[channel], self.grid.zero[channel])
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "saturates, as bytes do"
)]
fn to_byte(steps: f32, zero: u8) -> u8 {
    (steps.round_ties_even() + f32::from(zero)) as u8
}

/// A convolution over all channels of what lies under its kernel.
pub(super) fn convolve(
    layer: &QuantConv,
    x: &Planes,
    window: Window,
    border: &[u8],
    finish: &Finish<'_>,
    threads: usize,
) -> Planes {
    let (rows, columns) = (window.axis(x.height), window.axis(x.width));
    let (rows, columns) = (
        by_output(&rows, window.kernel),
        by_output(&columns, window.kernel),
    );
    let area = window.kernel * window.kernel;
    let patch = area * layer.input;
    let weight = Array2::from_shape_fn((patch, layer.output), |(at, output)| {
        let (place, input) = (at / layer.input, at % layer.input);
        f32::from(layer.weight[(output * layer.input + input) * area + place])
    });
    let pictures = parallel(x.pictures.len(), threads, |index| {
        let picture = &x.pictures[index];
        let patches: Vec<f32> = if area == 1 && window.stride == 1 {
            picture.iter().map(|byte| f32::from(*byte)).collect()
        } else {
            let mut patches = Vec::with_capacity(rows.len() * columns.len() * patch);
            for row in &rows {
                for column in &columns {
                    for row in row {
                        for column in column {
                            let bytes = match (row, column) {
                                (Some(row), Some(column)) => {
                                    &picture[(row * x.width + column) * x.channels..][..x.channels]
                                }
                                _ => border,
                            };
                            patches.extend(bytes.iter().map(|byte| f32::from(*byte)));
                        }
                    }
                }
            }
            patches
        };
        let patches = ArrayView2::from_shape((rows.len() * columns.len(), patch), &patches)
            .expect("as many patches as outputs");
        let sums = patches.dot(&weight);
        let mut bytes = Vec::with_capacity(sums.len());
        for sums in sums.rows() {
            for (channel, sum) in sums.iter().enumerate() {
                let mut value = (sum + layer.bias[channel] as f32) * layer.scale[channel];
                if let Some((input, grid)) = finish.residual {
                    let byte = f32::from(input.pictures[index][bytes.len()]);
                    value += (byte - f32::from(grid.zero[channel])) * grid.scale[channel];
                }
                bytes.push(finish.byte(value, channel));
            }
        }
        bytes
    });
    Planes {
        height: rows.len(),
        width: columns.len(),
        channels: layer.output,
        pictures,
    }
}

/// A convolution of each channel for itself.
pub(super) fn depthwise(
    layer: &QuantConv,
    x: &Planes,
    window: Window,
    border: &[u8],
    finish: &Finish<'_>,
    threads: usize,
) -> Planes {
    let (rows, columns) = (window.axis(x.height), window.axis(x.width));
    let (rows, columns) = (
        by_output(&rows, window.kernel),
        by_output(&columns, window.kernel),
    );
    let (n, area) = (x.channels, window.kernel * window.kernel);
    let mut weight = vec![0_i32; area * n];
    for (at, value) in layer.weight.iter().enumerate() {
        weight[at % area * n + at / area] = i32::from(*value);
    }
    let pictures = parallel(x.pictures.len(), threads, |index| {
        let picture = &x.pictures[index];
        let mut bytes = Vec::with_capacity(rows.len() * columns.len() * n);
        let mut sums = vec![0_i32; n];
        for row in &rows {
            for column in &columns {
                sums.copy_from_slice(&layer.bias);
                for (y, row) in row.iter().enumerate() {
                    for (x_tap, column) in column.iter().enumerate() {
                        let from = match (row, column) {
                            (Some(row), Some(column)) => {
                                &picture[(row * x.width + column) * n..][..n]
                            }
                            _ => border,
                        };
                        let weight = &weight[(y * window.kernel + x_tap) * n..][..n];
                        for ((sum, byte), weight) in sums.iter_mut().zip(from).zip(weight) {
                            *sum += i32::from(*byte) * weight;
                        }
                    }
                }
                for (channel, sum) in sums.iter().enumerate() {
                    bytes.push(finish.byte(*sum as f32 * layer.scale[channel], channel));
                }
            }
        }
        bytes
    });
    Planes {
        height: rows.len(),
        width: columns.len(),
        channels: n,
        pictures,
    }
}

/// A matrix on one vector of 16-bit numbers.
pub(super) fn dense(layer: &Dense, u: &[f64]) -> Vec<f64> {
    layer
        .weight
        .chunks_exact(layer.input)
        .zip(layer.scale.iter().zip(&layer.bias))
        .map(|(row, (scale, bias))| {
            let sum: f64 = row.iter().zip(u).map(|(w, u)| f64::from(*w) * u).sum();
            sum * f64::from(*scale) + f64::from(*bias)
        })
        .collect()
}

/// 256 times the mean byte of each channel, for each picture.
pub(super) fn picture_means(x: &Planes) -> Vec<Vec<f64>> {
    x.pictures
        .iter()
        .map(|picture| {
            let mut sums = vec![0_u64; x.channels];
            for pixel in picture.chunks_exact(x.channels) {
                for (sum, byte) in sums.iter_mut().zip(pixel) {
                    *sum += u64::from(*byte);
                }
            }
            let factor = 256.0 / x.pixels() as f64;
            sums.iter()
                .map(|sum| (*sum as f64 * factor).round())
                .collect()
        })
        .collect()
}

/// Opens each channel as far as its gate says.
pub(super) fn gated(
    x: &Planes,
    from: &Grid,
    gate: &QuantGate,
    opens: &[Vec<f64>],
    sixth: f32,
) -> Planes {
    let pictures = x.pictures.iter().zip(opens).map(|(picture, opens)| {
        let factors: Vec<f32> = opens
            .iter()
            .enumerate()
            .map(|(channel, open)| {
                #[expect(
                    clippy::cast_possible_truncation,
                    reason = "f32 is what the kernels use"
                )]
                let open = ((open + 3.0).clamp(0.0, 6.0) * f64::from(sixth)) as f32;
                open * from.scale[channel] / gate.gated.scale[channel]
            })
            .collect();
        let bytes = picture.iter().enumerate().map(|(at, byte)| {
            let channel = at % x.channels;
            let centred = f32::from(*byte) - f32::from(from.zero[channel]);
            to_byte(centred * factors[channel], gate.gated.zero[channel])
        });
        bytes.collect()
    });
    Planes {
        pictures: pictures.collect(),
        ..*x
    }
}

/// The feature vector of each picture behind the last convolution.
pub(super) fn pooled(layer: &QuantConv, x: &Planes, sixth: f32, threads: usize) -> Vec<Vec<f64>> {
    let weight = Array2::from_shape_fn((layer.input, layer.output), |(input, output)| {
        f32::from(layer.weight[output * layer.input + input])
    });
    parallel(x.pictures.len(), threads, |index| {
        let picture: Vec<f32> = x.pictures[index]
            .iter()
            .map(|byte| f32::from(*byte))
            .collect();
        let pixels = ArrayView2::from_shape((x.pixels(), x.channels), &picture)
            .expect("as many bytes as pixels and channels");
        let mut means = vec![0.0_f64; layer.output];
        for sums in pixels.dot(&weight).rows() {
            for (channel, sum) in sums.iter().enumerate() {
                let value = (sum + layer.bias[channel] as f32) * layer.scale[channel];
                let value = value * (value + 3.0).clamp(0.0, 6.0) * sixth;
                means[channel] += f64::from(value) / x.pixels() as f64;
            }
        }
        means
    })
}
