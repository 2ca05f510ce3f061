//! Waiting longer after each failure, at random, so that a fleet does not come back in one second.

use rand::Rng;
use std::time::Duration;

/// Exponential backoff with full jitter: the `n`-th wait is drawn evenly from `[0, min(cap, base * 2^n)]`.
///
/// It starts over only after the link has held for a while ([`Backoff::held`]); a link that comes and goes every few
/// seconds stays in backoff.
///
/// # Source
/// Failure modes seen in fleets whose broker restarted: every client connected within the same second.
#[derive(Clone, Debug)]
pub struct Backoff {
    base: Duration,
    cap: Duration,
    settle: Duration,
    failures: u32,
}

impl Backoff {
    /// Waits from `base` up to `cap`; `settle` is how long a link must hold before failures are forgotten.
    pub fn new(base: Duration, cap: Duration, settle: Duration) -> Self {
        Self {
            base,
            cap,
            settle,
            failures: 0,
        }
    }

    /// The next wait, drawn from `rng`.
    pub fn next_wait(&mut self, rng: &mut impl Rng) -> Duration {
        let ceiling = self
            .base
            .saturating_mul(1u32 << self.failures.min(20))
            .min(self.cap);
        self.failures = self.failures.saturating_add(1);
        ceiling.mul_f64(rng.random::<f64>())
    }

    /// Tells how long the last connection lasted.
    pub fn held(&mut self, lasted: Duration) {
        if lasted >= self.settle {
            self.failures = 0;
        }
    }

    /// Failures since the link last held.
    pub fn failures(&self) -> u32 {
        self.failures
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    #[test]
    fn waits_grow_to_the_cap_and_start_over_only_after_the_link_held() {
        let second = Duration::from_secs(1);
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let mut backoff = Backoff::new(second, 30 * second, 60 * second);
        for n in 0..40u32 {
            let ceiling = second.saturating_mul(1 << n.min(20)).min(30 * second);
            assert!(backoff.next_wait(&mut rng) <= ceiling);
        }
        backoff.held(59 * second);
        assert_eq!(backoff.failures(), 40);
        backoff.held(60 * second);
        assert!(backoff.next_wait(&mut rng) <= second);
    }

    #[test]
    fn five_hundred_vehicles_do_not_come_back_at_once() {
        let mut rng = ChaCha8Rng::seed_from_u64(2);
        let mut per_second = [0u32; 31];
        for _ in 0..500 {
            let mut backoff = Backoff::new(
                Duration::from_secs(30),
                Duration::from_secs(30),
                Duration::from_secs(60),
            );
            per_second[usize::try_from(backoff.next_wait(&mut rng).as_secs()).expect("small")] += 1;
        }
        assert!(per_second.iter().all(|n| *n <= 50), "{per_second:?}");
    }
}
