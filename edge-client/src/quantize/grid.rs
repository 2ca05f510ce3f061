//! Choosing the grid of an activation's bytes.

use wayside_extractor::quantized::Grid;

use super::calibrate::Spread;

/// A channel's range is at least this share of the largest one in its tensor.
const FLOOR: f64 = 1e-3;

/// Chooses for each channel the range with the smallest mean squared error, the whole range being one of the candidates.
///
/// - `positive`: whether the values are what a rectifier left, so that the byte 0 stands for 0.
pub(super) fn choose(spread: &Spread, positive: bool) -> Grid {
    let ranges: Vec<(f64, f64)> = (0..spread.low.len())
        .map(|channel| {
            let low = f64::from(spread.low[channel]).min(0.0);
            let high = f64::from(spread.high[channel]).max(0.0);
            best(&spread.histogram(channel), (low, high))
        })
        .collect();
    let widths = ranges.iter().map(|(low, high)| high - low);
    let floor = (widths.fold(0.0, f64::max) * FLOOR).max(1e-12);
    let mut grid = Grid {
        scale: Vec::with_capacity(ranges.len()),
        zero: Vec::with_capacity(ranges.len()),
    };
    for (low, high) in ranges {
        let step = (high - low).max(floor) / 255.0;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "`low` is not positive and at most 255 steps from 0"
        )]
        let (step, zero) = (step as f32, (-low / step).round() as u8);
        grid.scale.push(step);
        grid.zero.push(if positive { 0 } else { zero });
    }
    grid
}

/// Shrinks either end as far as that helps, each beside the other.
fn best(histogram: &[(f64, f64)], whole: (f64, f64)) -> (f64, f64) {
    let mut range = whole;
    let mut least = squared_error(histogram, range);
    for _ in 0..2 {
        let before = range;
        for share in 1..30 {
            let part = 1.0 - f64::from(share) / 50.0;
            for candidate in [(before.0, whole.1 * part), (whole.0 * part, before.1)] {
                let error = squared_error(histogram, candidate);
                if error < least {
                    (range, least) = (candidate, error);
                }
            }
        }
    }
    range
}

/// What rounding to 256 steps and clamping cost, summed over the values.
fn squared_error(histogram: &[(f64, f64)], (low, high): (f64, f64)) -> f64 {
    let step = (high - low) / 255.0;
    let within = step * step / 12.0;
    histogram
        .iter()
        .map(|(value, count)| {
            let beyond = (value - value.clamp(low, high)).abs();
            count
                * if beyond > 0.0 {
                    (beyond * beyond).max(within)
                } else {
                    within
                }
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rare_large_values_are_given_up_for_many_small_ones() {
        let mut histogram: Vec<(f64, f64)> =
            (1..100).map(|i| (f64::from(i) / 100.0, 1e4)).collect();
        histogram.push((1.4, 1.0));
        let (low, high) = best(&histogram, (0.0, 1.4));
        assert!(low == 0.0 && (0.98..1.2).contains(&high), "{low} {high}");
    }

    #[test]
    fn evenly_spread_values_keep_their_whole_range() {
        let histogram: Vec<(f64, f64)> = (-50..=50).map(|i| (f64::from(i) / 50.0, 10.0)).collect();
        assert_eq!(best(&histogram, (-1.0, 1.0)), (-1.0, 1.0));
    }
}
