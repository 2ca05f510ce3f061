//! What squeeze-excite does to a plane: sums over its pixels, and products with its gates.

use crate::kernels::lanes::{Gating, Lanes};

/// Pixels whose bytes add up within 16 bits.
const SUMMED: usize = 256;

/// Adds each channel of each pixel to its sum.
///
/// # Safety
/// As [`Lanes`]; `plane` holds whole pixels of `sums.len()` channels, a multiple of 16.
#[inline(always)]
pub(in crate::kernels) unsafe fn sums<L: Lanes>(plane: &[u8], sums: &mut [u32]) {
    let step = sums.len();
    for pixels in plane.chunks(SUMMED * step) {
        let mut channel = 0;
        while channel < step {
            let channels = L::SPAN.min(step - channel);
            let from = pixels.as_ptr().add(channel);
            let to = sums.as_mut_ptr().add(channel);
            L::sums(from, pixels.len() / step, step, to, channels);
            channel += channels;
        }
    }
}

/// Gates each channel of each pixel.
///
/// # Safety
/// As [`Lanes`]; `plane` holds whole pixels of `step` channels, a multiple of 16, and `numbers` as many of each.
#[inline(always)]
pub(in crate::kernels) unsafe fn gate<L: Lanes>(plane: &mut [u8], step: usize, numbers: Gating) {
    let mut channel = 0;
    while channel < step {
        let channels = L::SPAN.min(step - channel);
        let at = plane.as_mut_ptr().add(channel);
        let numbers = numbers.at_unit(channel / 16);
        L::gate(at, plane.len() / step, step, numbers, channels);
        channel += channels;
    }
}
