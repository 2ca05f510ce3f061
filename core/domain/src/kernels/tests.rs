//! Every form against the portable one, over awkward lengths.

use super::*;
use proptest::prelude::*;

const LENGTHS: [usize; 14] = [0, 1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 100];

/// Any fp16 bits but NaN and infinity.
fn finite(len: usize) -> impl Strategy<Value = Vec<f16>> {
    let one = any::<u16>().prop_map(|b| if b & 0x7c00 == 0x7c00 { b & 0x83ff } else { b });
    proptest::collection::vec(one.prop_map(f16::from_bits), len)
}

fn rows(most: usize) -> impl Strategy<Value = (usize, Vec<Vec<f16>>)> {
    (proptest::sample::select(LENGTHS.to_vec()), 1..=most)
        .prop_flat_map(|(len, n)| (Just(len), proptest::collection::vec(finite(len), n)))
}

fn planes(values: &[f16]) -> (Vec<u8>, Vec<u8>) {
    let (mut high, mut low) = (vec![0; values.len()], vec![0; values.len()]);
    split(values, &mut high, &mut low);
    (high, low)
}

fn bits(values: &[f64]) -> Vec<u64> {
    values.iter().map(|v| v.to_bits()).collect()
}

#[test]
fn every_finite_half_is_widened_exactly() {
    for pattern in (0..=u16::MAX).filter(|b| b & 0x7c00 != 0x7c00) {
        let expected = f16::from_bits(pattern).to_f32();
        assert_eq!(
            to_f32(pattern).to_bits(),
            expected.to_bits(),
            "{pattern:#x}"
        );
    }
}

proptest! {
    #[test]
    fn sums_have_the_same_bits_everywhere(
        (len, rows) in rows(19),
        weights in proptest::collection::vec(-(1i64 << 41)..1i64 << 41, 19),
    ) {
        let weights: Vec<f64> = weights[..rows.len()].iter().map(|w| *w as f64).collect();
        let split: Vec<_> = rows.iter().map(|row| planes(row)).collect();
        let views: Vec<_> = split.iter().map(|(high, low)| Planes { high, low }).collect();
        let mut expected = vec![0.25; len];
        for (weight, row) in weights.iter().zip(&rows) {
            for (sum, value) in expected.iter_mut().zip(row) {
                *sum += weight * value.to_f64();
            }
        }
        for isa in Isa::available() {
            let mut acc = vec![0.25; len];
            add_weighted(isa, &mut acc, &weights, &views);
            prop_assert_eq!(bits(&acc), bits(&expected), "{:?}", isa);
        }
    }

    #[test]
    fn measures_are_the_same_everywhere((_, rows) in rows(1)) {
        let (high, low) = planes(&rows[0]);
        let view = Planes { high: &high, low: &low };
        let expected = measure(Isa::Portable, view);
        let largest = rows[0].iter().map(|v| v.to_bits() & 0x7fff).max().unwrap_or(0);
        prop_assert_eq!(expected.largest, largest);
        let plain: f64 = rows[0].iter().map(|v| v.to_f64().powi(2)).sum();
        prop_assert!((expected.squares - plain).abs() <= 1e-12 * plain);
        for isa in Isa::available() {
            let got = measure(isa, view);
            prop_assert_eq!(got.squares.to_bits(), expected.squares.to_bits());
            prop_assert_eq!(got.largest, expected.largest);
            let mut joined = vec![f16::ZERO; rows[0].len()];
            join(isa, view, &mut joined);
            prop_assert!(joined.iter().zip(&rows[0]).all(|(a, b)| a.to_bits() == b.to_bits()));
        }
    }

    #[test]
    fn columns_are_sorted((len, rows) in rows(23)) {
        let network = Network::new(rows.len());
        for isa in Isa::available() {
            let mut keys = vec![0; len * rows.len()];
            for (row, keys) in rows.iter().zip(keys.chunks_exact_mut(len.max(1))) {
                to_keys(isa, row, keys);
            }
            sort_columns(isa, &network, &mut keys, len);
            for column in 0..len {
                let mut expected: Vec<f64> = rows.iter().map(|row| row[column].to_f64()).collect();
                expected.sort_by(f64::total_cmp);
                for (i, expected) in expected.iter().enumerate() {
                    let mut sum = [0.0];
                    sum_keys(isa, &keys[i * len + column..=i * len + column], &mut sum);
                    prop_assert!((sum[0] - expected).abs() < f64::MIN_POSITIVE);
                }
            }
            if len > 0 {
                let mut sums = vec![0.0; len];
                sum_keys(isa, &keys, &mut sums);
                for (column, sum) in sums.iter().enumerate() {
                    let expected: f64 = rows.iter().map(|row| row[column].to_f64()).sum();
                    prop_assert!((sum - expected).abs() < f64::MIN_POSITIVE);
                }
            }
        }
    }

    #[test]
    fn distances_are_the_same_everywhere(
        values in proptest::collection::vec(-1.0f32..1.0, 8 * 48),
        center in proptest::collection::vec(-1.0f64..1.0, 48),
    ) {
        let row = |i: usize| &values[i * 48..(i + 1) * 48];
        let (a, b) = ([row(0), row(1), row(2), row(3)], [row(4), row(5), row(6), row(7)]);
        let expected = squared_distances(Isa::Portable, a, b);
        for (i, a) in a.iter().enumerate() {
            for (j, b) in b.iter().enumerate() {
                let plain: f64 = a.iter().zip(*b).map(|(x, y)| f64::from(x - y).powi(2)).sum();
                prop_assert!((expected[i][j] - plain).abs() <= 1e-5 * plain);
            }
        }
        let halves: Vec<f16> = row(0).iter().map(|v| f16::from_f32(*v)).collect();
        for len in LENGTHS.into_iter().filter(|len| *len <= 48) {
            let to = squared_distance_to(Isa::Portable, &halves[..len], &center[..len]);
            let plain: f64 = halves[..len].iter().zip(&center).map(|(x, c)| (x.to_f64() - c).powi(2)).sum();
            prop_assert!((to - plain).abs() <= 1e-12 * plain);
            for isa in Isa::available() {
                let got = squared_distance_to(isa, &halves[..len], &center[..len]);
                prop_assert_eq!(got.to_bits(), to.to_bits());
            }
        }
        for isa in Isa::available() {
            let got = squared_distances(isa, a, b);
            prop_assert_eq!(got.map(|r| r.map(f64::to_bits)), expected.map(|r| r.map(f64::to_bits)));
        }
    }
}

/// A few numbers that are neither all small nor all round.
fn numbers(n: usize, seed: u32) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..n).map(|_| next()).collect()
}

#[test]
fn dense_layers_have_the_same_bits_everywhere_and_are_right() {
    for (n, d, classes) in [
        (1, 1, 1),
        (7, 9, 3),
        (8, 16, 16),
        (9, 17, 43),
        (32, 30, 48),
        (0, 5, 2),
    ] {
        let (x, weight, bias) = (
            numbers(n * d, 1),
            numbers(d * classes, 2),
            numbers(classes, 3),
        );
        let residuals = numbers(n * classes, 4);
        let both = |isa| {
            let (mut out, mut slopes) = (vec![9.0; n * classes], vec![9.0; d * classes]);
            dense(isa, &x, &weight, &bias, &mut out);
            dense_gradient(isa, &x, &residuals, classes, &mut slopes);
            (out, slopes)
        };
        let expected = both(Isa::Portable);
        for isa in Isa::available() {
            assert_eq!(both(isa), expected, "{isa:?} at {n} x {d} x {classes}");
        }
        for row in 0..n {
            for class in 0..classes {
                let product = |f: usize| x[row * d + f] * weight[f * classes + class];
                let sum = (0..d).fold(bias[class], |sum, f| sum + product(f));
                assert_eq!(expected.0[row * classes + class].to_bits(), sum.to_bits());
            }
        }
        for feature in 0..d {
            for class in 0..classes {
                let product = |i: usize| x[i * d + feature] * residuals[i * classes + class];
                let sum = (0..n).fold(0.0, |sum, i| sum + product(i));
                assert_eq!(
                    expected.1[feature * classes + class].to_bits(),
                    sum.to_bits()
                );
            }
        }
    }
}

#[test]
fn exponentials_are_right_to_a_few_units_in_the_last_place() {
    let points: Vec<f32> = (0..100_000).map(|i| -87.0 * i as f32 / 100_000.0).collect();
    for isa in Isa::available() {
        let mut values = points.clone();
        exp_all(isa, &mut values, 0.0);
        for (x, got) in points.iter().zip(&values) {
            let expected = f64::from(*x).exp();
            let wrong = (f64::from(*got) - expected).abs() / expected;
            assert!(wrong < 3e-7, "exp({x}) is {got}, not {expected}");
        }
        let mut odd = [-1000.0, f32::NEG_INFINITY, f32::NAN, 0.0];
        exp_all(isa, &mut odd, 0.0);
        assert_eq!((odd[0], odd[1], odd[3]), (0.0, 0.0, 1.0));
        assert!(odd[2].is_nan());
    }
}
