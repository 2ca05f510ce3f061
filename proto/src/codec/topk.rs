//! The largest deltas only, with their positions.
//!
//! A chunk's content: count, gaps (the first position, then the differences from one position to the next; all LEB128),
//! the high bytes of the fp16 values, the low bytes. There is one form for each choice of values: positions increase,
//! zeros are not sent, nothing follows.

use super::error::EncodeError;
use super::varint::{Varint, put_varint, read_varint};

/// Which deltas of an update are sent.
///
/// The `k = ceil(fraction * d)` of largest magnitude; of equal ones those that come first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Selection {
    /// Bits of the smallest magnitude that is sent.
    threshold: u32,
    /// How many of just this magnitude are still to come.
    ties: usize,
}

impl Selection {
    /// Looks through the whole update; takes 4 bytes a parameter while it does.
    pub(super) fn of(delta: &[f32], fraction: f64) -> Result<Self, EncodeError> {
        if !(fraction > 0.0 && fraction <= 1.0) {
            return Err(EncodeError::Fraction { got: fraction });
        }
        let k = count(fraction, delta.len());
        // Magnitudes are in the order of their bits.
        let mut magnitudes: Vec<u32> = delta.iter().map(|v| magnitude(*v)).collect();
        let (_, threshold, _) = magnitudes.select_nth_unstable_by(k - 1, |a, b| b.cmp(a));
        let threshold = *threshold;
        let larger = delta.iter().filter(|v| magnitude(**v) > threshold).count();
        let ties = k - larger;
        Ok(Self { threshold, ties })
    }

    /// Whether the next delta is sent; every delta is asked about once, in order.
    fn takes(&mut self, delta: f32) -> bool {
        let magnitude = magnitude(delta);
        let tie = magnitude == self.threshold && self.ties > 0;
        self.ties -= usize::from(tie);
        tie || magnitude > self.threshold
    }
}

/// `ceil(fraction * d)`, at least 1 and at most `d`.
fn count(fraction: f64, d: usize) -> usize {
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "d is at most 2^26, and the fraction in (0, 1]"
    )]
    let k = (fraction * d as f64).ceil() as usize;
    k.clamp(1, d)
}

fn magnitude(value: f32) -> u32 {
    value.to_bits() & 0x7fff_ffff
}

/// The content of a chunk.
///
/// - `delta`: what the selection goes by; `high`, `low`: bytes of its fp16 values. Lengths are equal.
pub(super) fn encode(selection: &mut Selection, delta: &[f32], high: &[u8], low: &[u8]) -> Vec<u8> {
    let mut gaps = Vec::new();
    let (mut highs, mut lows) = (Vec::new(), Vec::new());
    let mut last = 0;
    for (position, delta) in delta.iter().enumerate() {
        if selection.takes(*delta) && !is_zero(high[position], low[position]) {
            put_varint(&mut gaps, position - last);
            last = position;
            highs.push(high[position]);
            lows.push(low[position]);
        }
    }
    let mut content = Vec::with_capacity(3 + gaps.len() + 2 * highs.len());
    put_varint(&mut content, highs.len());
    content.extend_from_slice(&gaps);
    content.extend_from_slice(&highs);
    content.extend_from_slice(&lows);
    content
}

/// Back to all values of a chunk: what was not sent is zero.
///
/// # Errors
/// If the content is not in its one form.
pub(super) fn decode(content: &[u8], high: &mut [u8], low: &mut [u8]) -> Result<(), &'static str> {
    let values = high.len();
    let (count, gaps) = number(content)?;
    if count > values {
        return Err("more values than the block has");
    }
    let mut rest = gaps;
    let mut end = 0; // one behind the last position
    for i in 0..count {
        let (gap, behind) = number(rest)?;
        rest = behind;
        if i > 0 && gap == 0 {
            return Err("positions do not increase");
        }
        end = gap.saturating_add(if i > 0 { end } else { 1 });
        if end > values {
            return Err("a position outside the block");
        }
    }
    if rest.len() != 2 * count {
        return Err("another number of bytes than its values take");
    }
    let (highs, lows) = rest.split_at(count);
    if highs.iter().zip(lows).any(|(h, l)| is_zero(*h, *l)) {
        return Err("a value of zero");
    }
    high.fill(0);
    low.fill(0);
    let (mut rest, mut position) = (gaps, 0);
    for (from_high, from_low) in highs.iter().zip(lows) {
        let (gap, behind) = number(rest)?;
        rest = behind;
        position += gap;
        (high[position], low[position]) = (*from_high, *from_low);
    }
    Ok(())
}

/// 0 or -0.
fn is_zero(high: u8, low: u8) -> bool {
    u16::from_be_bytes([high, low]) << 1 == 0
}

fn number(from: &[u8]) -> Result<(usize, &[u8]), &'static str> {
    match read_varint(from) {
        Varint::Number(number, bytes) => Ok((number, &from[bytes..])),
        Varint::Short => Err("it ends within a number"),
        Varint::Malformed => Err("a number that is not in its shortest form"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(delta: &[f32], fraction: f64) -> Vec<usize> {
        let mut selection = Selection::of(delta, fraction).unwrap();
        (0..delta.len())
            .filter(|i| selection.takes(delta[*i]))
            .collect()
    }

    #[test]
    fn the_largest_are_taken_and_of_equal_ones_the_first() {
        let delta = [1.0, -3.0, 2.0, 3.0, -2.0, 0.0, 2.0, -0.0];
        for (fraction, expected) in [
            (1e-9, &[1][..]),
            (0.25, &[1, 3]),
            (0.375, &[1, 2, 3]),
            (0.376, &[1, 2, 3, 4]),
            (0.625, &[1, 2, 3, 4, 6]),
            (0.75, &[0, 1, 2, 3, 4, 6]),
            (1.0, &[0, 1, 2, 3, 4, 5, 6, 7]),
        ] {
            assert_eq!(chosen(&delta, fraction), expected, "{fraction}");
        }
        for fraction in [0.0, -1.0, 1.1, f64::NAN] {
            assert!(matches!(
                Selection::of(&delta, fraction),
                Err(EncodeError::Fraction { .. })
            ));
        }
    }

    fn check(content: &[u8], values: usize) -> Result<Vec<u16>, &'static str> {
        let (mut high, mut low) = (vec![9; values], vec![9; values]);
        decode(content, &mut high, &mut low)?;
        let words = high.iter().zip(&low);
        Ok(words.map(|(h, l)| u16::from_be_bytes([*h, *l])).collect())
    }

    #[test]
    fn content_has_one_form() {
        assert_eq!(check(&[0], 3), Ok(vec![0; 3]));
        assert_eq!(check(&[2, 0, 2, 0x3c, 0, 0, 7], 3), Ok(vec![0x3c00, 0, 7]));
        let refused = [
            (&[][..], "it ends within a number"),
            (&[0x80, 0], "a number that is not in its shortest form"),
            (&[0xff; 9], "a number that is not in its shortest form"),
            (
                &[4, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1],
                "more values than the block has",
            ),
            (&[2, 1, 0, 1, 1, 1, 1], "positions do not increase"),
            (&[2, 1, 2, 1, 1, 1, 1], "a position outside the block"),
            (&[1, 3, 1, 1], "a position outside the block"),
            (
                &[1, 0xff, 0xff, 0xff, 0xff, 0x7f, 1, 1],
                "a position outside the block",
            ),
            (&[2, 0], "it ends within a number"),
            (&[1, 0, 1], "another number of bytes than its values take"),
            (
                &[1, 0, 1, 1, 1],
                "another number of bytes than its values take",
            ),
            (&[0, 0], "another number of bytes than its values take"),
            (&[1, 0, 0, 0], "a value of zero"),
            (&[1, 0, 0x80, 0], "a value of zero"),
        ];
        for (content, expected) in refused {
            assert_eq!(check(content, 3), Err(expected), "{content:?}");
        }
    }

    #[test]
    fn content_is_never_longer_than_three_bytes_a_value_and_the_count() {
        let values = 16_384;
        for step in [1, 2, 127, 128, 129, 300] {
            let delta: Vec<f32> = (0..values)
                .map(|i| if i % step == step - 1 { 1.0 } else { 0.0 })
                .collect();
            let high: Vec<u8> = delta
                .iter()
                .map(|v| if *v > 0.0 { 0x3c } else { 0 })
                .collect();
            let low = vec![0; values];
            let mut selection = Selection::of(&delta, 1.0).unwrap();
            let content = encode(&mut selection, &delta, &high, &low);
            assert!(content.len() <= 3 + 3 * values, "{step}");
            let expected: Vec<u16> = high.iter().map(|h| u16::from(*h) << 8).collect();
            assert_eq!(check(&content, values), Ok(expected));
        }
    }
}
