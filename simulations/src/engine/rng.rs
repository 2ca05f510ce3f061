//! A generator of eight bytes, one for each actor, so that what one draws does not depend on what others do.

use rand::RngCore;

const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// One number that depends on every bit of another.
pub(crate) fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(STEP);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// `SplitMix64`: equidistributed, and small enough for a million vehicles.
///
/// # Source
/// Steele et al. 2014, "Fast splittable pseudorandom number generators".
#[derive(Clone, Copy, Debug)]
pub(super) struct Small(u64);

impl Small {
    /// The stream of one actor for one purpose.
    pub(super) fn new(seed: u64, purpose: u64, index: u32) -> Self {
        Self(mix(seed ^ mix(purpose << 32 | u64::from(index))))
    }

    /// Evenly from `[0, 1)`.
    pub(super) fn share(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

impl RngCore for Small {
    fn next_u32(&mut self) -> u32 {
        (self.next_u64() >> 32) as u32
    }

    fn next_u64(&mut self) -> u64 {
        let state = self.0;
        self.0 = state.wrapping_add(STEP);
        mix(state)
    }

    fn fill_bytes(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let word = self.next_u64().to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }
}
