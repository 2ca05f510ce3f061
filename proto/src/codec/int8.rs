//! Deltas in 8 bits, with one power-of-two scale for 64 of them.
//!
//! `q * 2^s` with `|q| <= 127` and `-24 <= s <= 9` is always an fp16 number, so int8 updates are sums' members like any
//! other.

use super::fp16::round_to_planes;
use super::frame::INT8_GROUP;

/// Magnitudes from here on, after scaling, would need a scale at which 127 is beyond fp16.
pub(super) const INT8_LIMIT: f64 = 65_280.0;
/// Smallest scale exponent: fp16's quantum.
const LOWEST: i32 = -24;
/// Largest scale exponent: `127 * 2^9` is 65,024.
const HIGHEST: i32 = 9;
/// Added to a number below 2^22, it leaves the number rounded (ties to even) in the lowest bits.
const ROUNDER: f32 = 12_582_912.0;

/// Rounds scaled deltas, whose magnitudes are below [`INT8_LIMIT`].
///
/// What rounding loses is at most 1/127.5 of the largest magnitude of the group, or 2^-25 where that is more.
///
/// - `delta`, `numbers`: shape `[n]`; `scales`: shape `[ceil(n / 64)]`.
pub(super) fn encode(delta: &[f32], numbers: &mut [u8], scales: &mut [u8]) {
    let groups = delta.chunks(INT8_GROUP).zip(numbers.chunks_mut(INT8_GROUP));
    for ((delta, numbers), scale) in groups.zip(scales) {
        let exponent = exponent_for(delta.iter().fold(0.0, |max, v| v.abs().max(max)));
        let factor = power_of_two(-exponent);
        for (number, value) in numbers.iter_mut().zip(delta) {
            *number = (value * factor + ROUNDER).to_bits().to_le_bytes()[0];
        }
        *scale = exponent.to_le_bytes()[0];
    }
}

/// The smallest scale at which this magnitude rounds to 127 at most.
fn exponent_for(largest: f32) -> i32 {
    let biased = largest.to_bits() >> 23;
    let exponent = biased.cast_signed() - 127 - 6;
    let exponent = exponent.max(LOWEST);
    if largest * power_of_two(-exponent) >= 127.5 {
        exponent + 1
    } else {
        exponent
    }
}

/// Back to fp16: the high and the low bytes of each value.
///
/// - `numbers`, `high`, `low`: shape `[n]`; `scales`: shape `[ceil(n / 64)]`.
///
/// # Errors
/// If a scale or a number is outside its range.
pub(super) fn decode(
    numbers: &[u8],
    scales: &[u8],
    high: &mut [u8],
    low: &mut [u8],
) -> Result<(), &'static str> {
    let planes = high.chunks_mut(INT8_GROUP).zip(low.chunks_mut(INT8_GROUP));
    let groups = numbers.chunks(INT8_GROUP).zip(scales);
    for ((numbers, scale), (high, low)) in groups.zip(planes) {
        let exponent = i32::from(scale.cast_signed());
        if !(LOWEST..=HIGHEST).contains(&exponent) {
            return Err("a scale outside -24 to 9");
        }
        let factor = power_of_two(exponent);
        let mut values = [0.0; INT8_GROUP];
        let mut lowest = 0;
        for (value, number) in values.iter_mut().zip(numbers) {
            lowest = lowest.min(number.cast_signed());
            *value = f32::from(number.cast_signed()) * factor;
        }
        if lowest == i8::MIN {
            return Err("a number of -128");
        }
        round_to_planes(&values[..numbers.len()], high, low);
    }
    Ok(())
}

/// `2^exponent` for exponents of normal numbers.
fn power_of_two(exponent: i32) -> f32 {
    f32::from_bits((exponent + 127).cast_unsigned() << 23)
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::f16;

    fn round_trip(delta: &[f32]) -> (Vec<f32>, Vec<i8>) {
        let groups = delta.len().div_ceil(INT8_GROUP);
        let (mut numbers, mut scales) = (vec![0; delta.len()], vec![0; groups]);
        encode(delta, &mut numbers, &mut scales);
        let (mut high, mut low) = (numbers.clone(), numbers.clone());
        assert_eq!(decode(&numbers, &scales, &mut high, &mut low), Ok(()));
        let values = high
            .iter()
            .zip(&low)
            .map(|(high, low)| f16::from_be_bytes([*high, *low]).to_f32())
            .collect();
        (values, scales.iter().map(|s| s.cast_signed()).collect())
    }

    #[test]
    fn scales_are_as_small_as_127_allows() {
        for (largest, expected) in [
            (0.0, -24),
            (1e-40, -24),
            (127.0 / 16_777_216.0, -24),
            (127.5 / 16_777_216.0, -23),
            (1.0, -6),
            (1.98, -6),
            (1.9922, -5),
            (2.0, -5),
            (65_279.0, 9),
        ] {
            let (values, scales) = round_trip(&[0.0, -largest]);
            assert_eq!(scales, [expected], "{largest}");
            assert!((values[1] + largest).abs() <= f32::max(largest / 127.5, 2.99e-8));
            assert_eq!(values[0].to_bits(), 0);
        }
    }

    #[test]
    fn halves_go_to_the_even_number() {
        // The largest fixes the scale at 1.
        let (values, scales) = round_trip(&[127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 0.49]);
        assert_eq!(scales, [0]);
        assert_eq!(values, [127.0, 0.0, 2.0, 2.0, 0.0, -2.0, -2.0, 0.0]);
    }

    #[test]
    fn groups_have_scales_of_their_own() {
        let mut delta = vec![1.0; 130];
        delta[64..128].fill(1024.0);
        delta[128..].fill(0.0);
        let (values, scales) = round_trip(&delta);
        assert_eq!(scales, [-6, 4, -24]);
        assert_eq!(values, delta);
    }

    #[test]
    fn what_the_encoder_never_writes_is_refused() {
        let mut to = ([0; 2], [0; 2]);
        let mut check = |numbers: [u8; 2], scale: i8| {
            decode(&numbers, &[scale.cast_unsigned()], &mut to.0, &mut to.1).is_ok()
        };
        assert!(check([127, 0x81], 9) && check([127, 0x81], -24));
        assert!(!check([127, 0x80], 0) && !check([1, 1], 10) && !check([1, 1], -25));
    }
}
