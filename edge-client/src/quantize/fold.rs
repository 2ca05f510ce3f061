//! From a layer's real weights to its bytes: input scales folded in, rows rounded, biases set so that means agree.

use wayside_extractor::float::FloatConv;
use wayside_extractor::quantized::{Dense, QuantConv};

/// What a layer is quantized for.
pub(super) struct Aim<'a> {
    /// Real value of one unit of each input, by column of a row: input scales, repeated over the places of a kernel.
    /// One entry for each row if `by_row`.
    pub(super) units: &'a [f64],
    pub(super) by_row: bool,
    /// Mean of each input in units, shape `[row]`, or `[output, row]` if `by_row`.
    pub(super) inputs: &'a [f64],
    /// What each output's mean is to be.
    pub(super) outputs: &'a [f64],
    /// Smallest useful real value of a unit of each sum.
    pub(super) least: &'a [f64],
    /// Second moments of the inputs around their means, shape `[row, row]`, or `[output, row, row]` if `by_row`.
    pub(super) moments: &'a [f64],
}

struct Rows {
    weight: Vec<i8>,
    scale: Vec<f64>,
    /// Sum of products of weights and mean inputs.
    sums: Vec<f64>,
}

fn rows(layer: &FloatConv, aim: &Aim<'_>) -> Rows {
    let row = layer.weight.len() / layer.output;
    let mut rows = Rows {
        weight: Vec::with_capacity(layer.weight.len()),
        scale: Vec::with_capacity(layer.output),
        sums: Vec::with_capacity(layer.output),
    };
    for (output, weights) in layer.weight.chunks_exact(row).enumerate() {
        let unit = |column: usize| aim.units[if aim.by_row { output } else { column }];
        let folded: Vec<f64> = weights
            .iter()
            .enumerate()
            .map(|(column, weight)| f64::from(*weight) * unit(column))
            .collect();
        let moments = if aim.by_row {
            &aim.moments[output * row * row..][..row * row]
        } else {
            aim.moments
        };
        let (quantized, scale) = round(&folded, moments, aim.least[output]);
        let inputs = if aim.by_row {
            &aim.inputs[output * row..][..row]
        } else {
            aim.inputs
        };
        let products = quantized.iter().zip(inputs);
        rows.sums
            .push(products.map(|(q, x)| f64::from(*q) * x).sum());
        rows.weight.extend(quantized);
        rows.scale.push(scale);
    }
    rows
}

pub(super) fn convolution(layer: &FloatConv, aim: &Aim<'_>) -> QuantConv {
    let rows = rows(layer, aim);
    #[expect(
        clippy::cast_possible_truncation,
        reason = "what saturates here is refused by the check of the whole"
    )]
    let bias = (0..layer.output)
        .map(|output| (aim.outputs[output] / rows.scale[output] - rows.sums[output]).round() as i32)
        .collect();
    QuantConv {
        output: layer.output,
        input: layer.input,
        kernel: layer.kernel,
        weight: rows.weight,
        bias,
        scale: singles(&rows.scale),
    }
}

pub(super) fn dense(layer: &FloatConv, aim: &Aim<'_>, low: f32, step: f32) -> Dense {
    let rows = rows(layer, aim);
    let bias: Vec<f64> = (0..layer.output)
        .map(|output| aim.outputs[output] - rows.sums[output] * rows.scale[output])
        .collect();
    Dense {
        output: layer.output,
        input: layer.input,
        weight: rows.weight,
        scale: singles(&rows.scale),
        bias: singles(&bias),
        low,
        step,
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the nearest f32 is wanted")]
fn singles(values: &[f64]) -> Vec<f32> {
    values.iter().map(|value| *value as f32).collect()
}

/// One row in -127..=127 and the real value of a step: clipped where that costs less than it gains, then rounded such
/// that errors cancel on inputs with these second moments.
fn round(row: &[f64], moments: &[f64], least: f64) -> (Vec<i8>, f64) {
    let largest = row.iter().fold(0.0_f64, |largest, w| largest.max(w.abs()));
    let whole = (largest / 127.0).max(least);
    // As f32 from here on: the scale that is stored is the one that the weights are for.
    #[expect(clippy::cast_possible_truncation, reason = "the nearest f32 is wanted")]
    let single = |scale: f64| f64::from(scale as f32);
    let n = row.len();
    let diagonal: Vec<f64> = (0..n).map(|i| moments[i * n + i]).collect();
    let mut best = (f64::INFINITY, whole);
    for share in 0..8 {
        let scale = single((whole * (1.0 - f64::from(share) * 0.05)).max(least));
        let error: f64 = nearest(row, scale)
            .iter()
            .zip(row)
            .zip(&diagonal)
            .map(|((q, w), d)| (w - f64::from(*q) * scale).powi(2) * d)
            .sum();
        if error < best.0 {
            best = (error, scale);
        }
    }
    let scale = best.1;
    let mut quantized = nearest(row, scale);
    descend(row, scale, moments, &mut quantized);
    (quantized, scale)
}

#[expect(clippy::cast_possible_truncation, reason = "clamped before")]
fn nearest(row: &[f64], scale: f64) -> Vec<i8> {
    row.iter()
        .map(|w| (w / scale).round().clamp(-127.0, 127.0) as i8)
        .collect()
}

/// Changes one weight after the other to what is best beside the others, as long as the squared error of the output
/// shrinks.
#[expect(clippy::cast_possible_truncation, reason = "clamped before")]
fn descend(row: &[f64], scale: f64, moments: &[f64], quantized: &mut [i8]) {
    let n = row.len();
    let trace: f64 = (0..n).map(|i| moments[i * n + i]).sum();
    // A little of the identity, so that directions without data do not wander.
    let ridge = 0.01 * trace / n as f64 + 1e-12;
    let error: Vec<f64> = (0..n)
        .map(|i| row[i] / scale - f64::from(quantized[i]))
        .collect();
    // moments * error, in steps.
    let mut slope: Vec<f64> = moments
        .chunks_exact(n)
        .zip(&error)
        .map(|(line, own)| {
            let sum: f64 = line.iter().zip(&error).map(|(m, e)| m * e).sum();
            sum + ridge * own
        })
        .collect();
    for _ in 0..8 {
        let mut changed = false;
        for i in 0..n {
            let change = slope[i] / (moments[i * n + i] + ridge);
            let now = f64::from(quantized[i]);
            let next = (now + change).round().clamp(-127.0, 127.0);
            let delta = next - now;
            if delta == 0.0 {
                continue;
            }
            changed = true;
            quantized[i] = next as i8;
            for (slope, moment) in slope.iter_mut().zip(&moments[i * n..(i + 1) * n]) {
                *slope -= moment * delta;
            }
            slope[i] -= ridge * delta;
        }
        if !changed {
            break;
        }
    }
}
