//! Random numbers of the world: a stream for each (seed, purpose, vehicle), eight bytes of state each.
//!
//! A million vehicles each keep a generator, so it is `SplitMix64` and not `ChaCha8`: any output can also be asked for by
//! its number, without state. Only integers and exact divisions by powers of two, hence the same bits everywhere.

/// What a stream is for; streams of different purposes have nothing in common.
#[derive(Clone, Copy, Debug)]
pub(super) enum Purpose {
    /// What a vehicle decides on its way: destinations, dwells, drop-outs.
    Travel = 1,
    /// Where a vehicle lives.
    Home = 2,
    /// When it leaves home and comes back on one day.
    Day = 3,
    /// How fast it gets from crossing to crossing.
    Trip = 4,
    /// How fast its computer is.
    Compute = 5,
    /// How wrong its clock is.
    Clock = 6,
}

/// `SplitMix64`'s increment.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Two to the 53rd, the integers below which an `f64` holds exactly.
const TWO_53: f64 = 9_007_199_254_740_992.0;

/// The finaliser of `SplitMix64`: a bijection that spreads each input bit over all output bits.
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Start of the stream for one purpose and one thing, such as a vehicle's number.
pub(super) fn stream(seed: u64, purpose: Purpose, index: u64) -> u64 {
    let base = mix(seed.wrapping_add(GOLDEN.wrapping_mul(purpose as u64)));
    mix(base.wrapping_add(GOLDEN.wrapping_mul(index.wrapping_add(1))))
}

/// One vehicle's generator.
///
/// # Source
/// Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators": `SplitMix64`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(stream: u64) -> Self {
        Self(stream)
    }

    /// The generator whose next output is the `number`-th (from 0) of the stream.
    pub(super) fn from_number(stream: u64, number: u64) -> Self {
        Self(stream.wrapping_add(GOLDEN.wrapping_mul(number)))
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN);
        mix(self.0)
    }

    /// Evenly within `[0, 1)`.
    pub(super) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / TWO_53
    }

    /// Evenly within `0..bound`; 0 for `bound` 0. The bias is below `bound / 2^32`.
    pub(super) fn below(&mut self, bound: u32) -> u32 {
        let scaled = (self.next() >> 32) * u64::from(bound);
        u32::try_from(scaled >> 32).expect("a product of two 32-bit numbers has 64 bits")
    }

    /// Within `[0, 2)`, mean 1, peaked there: the sum of two even draws.
    pub(super) fn triangle(&mut self) -> f64 {
        let first = self.unit();
        first + self.unit()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_are_those_of_splitmix64() {
        // Reference outputs for state 1234567, as printed with the author's C code.
        let mut dice = Dice::new(1_234_567);
        assert_eq!(dice.next(), 6_457_827_717_110_365_317);
        assert_eq!(dice.next(), 3_203_168_211_198_807_973);
        assert_eq!(
            Dice::from_number(1_234_567, 1).next(),
            3_203_168_211_198_807_973
        );
    }

    // An earlier form mixed seed and index in the same way and joined them by exclusive or, so that swapping the two gave
    // the same stream.
    #[test]
    fn streams_differ_by_seed_purpose_and_index() {
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..20 {
            for purpose in [Purpose::Travel, Purpose::Home, Purpose::Clock] {
                for index in 0..20 {
                    assert!(seen.insert(stream(seed, purpose, index)));
                }
            }
        }
    }

    #[test]
    fn draws_stay_within_their_ranges_and_near_their_means() {
        let mut dice = Dice::new(stream(1, Purpose::Travel, 0));
        let mut sums = [0.0_f64; 3];
        for _ in 0..10_000 {
            let unit = dice.unit();
            assert!((0.0..1.0).contains(&unit));
            let below = dice.below(7);
            assert!(below < 7);
            let triangle = dice.triangle();
            assert!((0.0..2.0).contains(&triangle));
            for (sum, value) in sums.iter_mut().zip([unit, f64::from(below), triangle]) {
                *sum += value / 10_000.0;
            }
        }
        assert!((sums[0] - 0.5).abs() < 0.02, "{sums:?}");
        assert!((sums[1] - 3.0).abs() < 0.1, "{sums:?}");
        assert!((sums[2] - 1.0).abs() < 0.02, "{sums:?}");
        assert_eq!(dice.below(0), 0);
    }
}
