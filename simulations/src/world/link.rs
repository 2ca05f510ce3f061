//! How long a message takes from a vehicle to its roadside unit or back.

use rand::Rng;
use serde::{Deserialize, Serialize};

use super::Millis;

/// Bytes of one TCP segment's data.
const SEGMENT_BYTES: u64 = 1400;

/// Times that one segment is sent before the connection is given up.
const TRIES: u32 = 6;

/// `[links.NAME]`: one class of link between a vehicle and a roadside unit.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct LinkSpec {
    /// Least time from one end to the other in milliseconds, 1 to 60000. No message is ever faster. Default 30.
    pub delay_ms: u32,
    /// What is added to it at most, drawn evenly from 0 to this for each message, 0 to 60000. Default 20.
    pub jitter_ms: u32,
    /// Rate from the vehicle to the unit in kbit/s, 1 to 100000000. Default 10000.
    pub up_kbit_s: u32,
    /// Rate from the unit to the vehicle in kbit/s, 1 to 100000000. Default 30000.
    pub down_kbit_s: u32,
    /// Share of segments lost, 0 to 0.9. Default 0.005.
    pub loss: f64,
}

impl Default for LinkSpec {
    fn default() -> Self {
        Self {
            delay_ms: 30,
            jitter_ms: 20,
            up_kbit_s: 10_000,
            down_kbit_s: 30_000,
            loss: 0.005,
        }
    }
}

/// What becomes of one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transfer {
    /// It is there.
    Arrives {
        /// Milliseconds from hand-over to arrival of the last byte, at least the link's `delay_ms`.
        after_ms: Millis,
    },
    /// One of its segments was lost too often: the connection is gone and the message with it.
    Broken {
        /// Milliseconds until the sender knows, at least the link's `delay_ms`.
        after_ms: Millis,
    },
}

impl LinkSpec {
    /// Draws what becomes of one message over a reliable stream (TCP).
    ///
    /// - `bytes`: length of the message; an empty one still takes a segment.
    /// - `up`: from the vehicle to the unit.
    ///
    /// The time is `delay_ms`, plus jitter, plus the bytes at the link's rate, plus one round trip for every loss of a
    /// segment of 1400 bytes. A segment lost six times breaks the connection. Messages do not slow each other down;
    /// whoever queues them adds that. Takes about one random word for eight segments.
    pub fn transfer(&self, rng: &mut impl Rng, bytes: usize, up: bool) -> Transfer {
        let rate = if up { self.up_kbit_s } else { self.down_kbit_s };
        let jitter = if self.jitter_ms == 0 {
            0
        } else {
            rng.random_range(0..=self.jitter_ms)
        };
        let one_way = Millis::from(self.delay_ms) + Millis::from(jitter);
        let bytes = bytes as u64;
        // A kilobit a second is a bit a millisecond.
        let sending = bytes.saturating_mul(8).div_ceil(Millis::from(rate.max(1)));
        let mut after_ms = one_way.saturating_add(sending);
        // The losses of all segments together are drawn try by try: each try loses its share of what the last one lost.
        let mut pending = bytes.div_ceil(SEGMENT_BYTES).max(1);
        for _ in 0..TRIES {
            pending = losses(rng, pending, self.loss);
            if pending == 0 {
                return Transfer::Arrives { after_ms };
            }
            after_ms = after_ms.saturating_add(pending.saturating_mul(2 * one_way));
        }
        Transfer::Broken { after_ms }
    }
}

/// Draws how many of `trials` are lost if each is lost with probability `loss`: an exact binomial draw.
///
/// 64 trials at once: each is a lane that compares a random binary fraction with `loss`, bit by bit from the top, and
/// half of the lanes are decided by each word. Integers only, so the same on every machine, unlike methods with
/// logarithms.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a share below 1 times 2^64 is an integer below 2^64"
)]
fn losses(rng: &mut impl Rng, trials: u64, loss: f64) -> u64 {
    let threshold = (loss * 18_446_744_073_709_551_616.0) as u64;
    if threshold == 0 {
        return 0;
    }
    let mut gone = 0;
    let mut left = trials;
    while left > 0 {
        let lanes = left.min(64);
        left -= lanes;
        let mut undecided = u64::MAX >> (64 - lanes);
        let mut bit = 64;
        while undecided != 0 && bit > 0 {
            bit -= 1;
            let random = rng.next_u64();
            if threshold >> bit & 1 == 1 {
                gone += u64::from((undecided & !random).count_ones());
                undecided &= random;
            } else {
                undecided &= !random;
            }
        }
    }
    gone
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    fn link(delay_ms: u32, jitter_ms: u32, loss: f64) -> LinkSpec {
        LinkSpec {
            delay_ms,
            jitter_ms,
            up_kbit_s: 8,
            down_kbit_s: 80,
            loss,
        }
    }

    #[test]
    fn a_clean_link_takes_its_delay_and_the_bytes_at_its_rate() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let mut check = |bytes, up, after_ms| {
            let got = link(10, 0, 0.0).transfer(&mut rng, bytes, up);
            assert_eq!(got, Transfer::Arrives { after_ms }, "{bytes} bytes");
        };
        check(0, true, 10);
        check(1, true, 11);
        check(1000, true, 1010);
        check(1000, false, 110);
        check(1001, false, 111);
        check(10_000_000, false, 1_000_010);
    }

    #[test]
    fn losses_have_the_mean_and_the_variance_of_a_binomial() {
        let check = |trials: u64, loss: f64| {
            let mut rng = ChaCha8Rng::seed_from_u64(trials);
            let draws: Vec<f64> = (0..4000)
                .map(|_| losses(&mut rng, trials, loss) as f64)
                .collect();
            let mean = draws.iter().sum::<f64>() / 4000.0;
            let variance = draws.iter().map(|d| (d - mean) * (d - mean)).sum::<f64>() / 4000.0;
            let expected = trials as f64 * loss;
            let spread = expected * (1.0 - loss);
            assert!(
                (mean - expected).abs() < 4.0 * (spread / 4000.0).sqrt(),
                "{trials} at {loss}: mean {mean}"
            );
            assert!(
                (variance / spread - 1.0).abs() < 0.15,
                "{trials} at {loss}: variance {variance}"
            );
        };
        check(1, 0.5);
        check(3, 0.3);
        check(64, 0.1);
        check(65, 0.02);
        check(750, 0.01);
        check(5000, 0.9);
    }

    #[test]
    fn a_bad_link_breaks_as_often_as_six_losses_in_a_row() {
        let mut rng = ChaCha8Rng::seed_from_u64(3);
        let broken = (0..10_000)
            .filter(|_| {
                matches!(
                    link(10, 5, 0.5).transfer(&mut rng, 100, true),
                    Transfer::Broken { .. }
                )
            })
            .count();
        // One in 64.
        assert!((110..200).contains(&broken), "{broken}");
    }

    proptest! {
        #[test]
        fn no_message_is_faster_than_the_delay_and_draws_repeat(
            delay in 1u32..100, jitter in 0u32..50, loss in 0.0f64..0.9, bytes in 0usize..500_000, up: bool, seed: u64,
        ) {
            let link = link(delay, jitter, loss);
            let draw = || link.transfer(&mut ChaCha8Rng::seed_from_u64(seed), bytes, up);
            let (Transfer::Arrives { after_ms } | Transfer::Broken { after_ms }) = draw();
            prop_assert!(after_ms >= u64::from(delay));
            prop_assert_eq!(draw(), draw());
        }

        #[test]
        fn no_more_is_lost_than_was_sent(trials in 0u64..2000, loss in 0.0f64..1.0, seed: u64) {
            prop_assert!(losses(&mut ChaCha8Rng::seed_from_u64(seed), trials, loss) <= trials);
        }
    }
}
