//! Byte planes, each one zstd frame.
//!
//! A plane is unpacked in one call straight into a buffer of the size that the schema gives, so zstd keeps no window of
//! its own and an endless frame stops at the buffer's end with an error. What its header promises is looked at first.

use super::error::{DecodeError, EncodeError};
use std::cell::Cell;
use std::fmt;
use zstd::zstd_safe::{self, CCtx, CParameter, DCtx};

/// zstd level of every plane.
const LEVEL: i32 = 1;
/// Largest window that a plane may ask for, in bytes (window log 23).
pub(super) const MAX_WINDOW: u64 = 1 << 23;
const MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// `ZSTD_error_dstSize_tooSmall`, as zstd returns it.
const OUTPUT_FULL: usize = 0_usize.wrapping_sub(70);

/// The most bytes that a plane of `len` bytes takes when packed.
pub(super) fn packed_bound(len: usize) -> usize {
    zstd_safe::compress_bound(len)
}

thread_local! {
    /// The last encoder and decoder of this thread, for the next one: they are large, and making one takes longer than
    /// packing a small plane.
    static SPARE: (Cell<Option<CCtx<'static>>>, Cell<Option<DCtx<'static>>>) = const { (Cell::new(None), Cell::new(None)) };
}

/// Packs planes one after the other.
pub(super) struct Packer {
    /// There until it is dropped.
    context: Option<CCtx<'static>>,
    packed: Vec<u8>,
}

impl Drop for Packer {
    fn drop(&mut self) {
        // A thread that ends has no place for it any more.
        let _ = SPARE.try_with(|(spare, _)| spare.set(self.context.take()));
    }
}

impl Packer {
    pub(super) fn new() -> Result<Self, EncodeError> {
        let packed = Vec::new();
        if let Some(context) = SPARE.with(|(spare, _)| spare.take()) {
            let context = Some(context);
            return Ok(Self { context, packed });
        }
        let mut context = CCtx::try_create()
            .ok_or_else(|| EncodeError::Zstd("no memory for an encoder".into()))?;
        for parameter in [
            CParameter::CompressionLevel(LEVEL),
            CParameter::ChecksumFlag(true),
        ] {
            context.set_parameter(parameter).map_err(zstd_error)?;
        }
        let context = Some(context);
        Ok(Self { context, packed })
    }

    /// The packed plane; it is overwritten by the next call.
    pub(super) fn pack(&mut self, plane: &[u8]) -> Result<&[u8], EncodeError> {
        let bound = packed_bound(plane.len());
        if self.packed.len() < bound {
            self.packed.resize(bound, 0);
        }
        let context = self.context.as_mut().expect("there until the drop");
        let len = context
            .compress2(self.packed.as_mut_slice(), plane)
            .map_err(zstd_error)?;
        Ok(&self.packed[..len])
    }
}

fn zstd_error(code: usize) -> EncodeError {
    EncodeError::Zstd(zstd_safe::get_error_name(code).into())
}

/// What unpacking needs again and again: a zstd decoder and buffers of one block. One serves any number of frames, one
/// after the other.
pub struct Unpacker {
    /// There until it is dropped.
    context: Option<DCtx<'static>>,
    /// Planes that are no values yet.
    pub(super) scratch: [Vec<u8>; 2],
}

impl Unpacker {
    /// A new one, some 160 kB.
    ///
    /// # Panics
    /// If there is no memory for a decoder.
    pub fn new() -> Self {
        let spare = SPARE.with(|(_, spare)| spare.take());
        Self {
            context: Some(spare.unwrap_or_else(DCtx::create)),
            scratch: [Vec::new(), Vec::new()],
        }
    }

    /// Unpacks one plane from outside into `to`, which has the expected length.
    pub(super) fn unpack(
        &mut self,
        plane: usize,
        packed: &[u8],
        to: &mut [u8],
    ) -> Result<(), DecodeError> {
        self.unpack_up_to(plane, packed, to.len(), to).map(|_| ())
    }

    /// Unpacks one plane from outside, of at least `least` bytes and at most the length of `to`, into the front of `to`;
    /// returns its length.
    pub(super) fn unpack_up_to(
        &mut self,
        plane: usize,
        packed: &[u8],
        least: usize,
        to: &mut [u8],
    ) -> Result<usize, DecodeError> {
        check_header(plane, packed, least, to.len())?;
        let damaged = |code| DecodeError::Zstd {
            plane,
            what: zstd_safe::get_error_name(code),
        };
        let whole = zstd_safe::find_frame_compressed_size(packed).map_err(damaged)?;
        if whole != packed.len() {
            let what = "bytes behind the end of the zstd frame";
            return Err(DecodeError::Zstd { plane, what });
        }
        let context = self.context.as_mut().expect("there until the drop");
        let got = context.decompress(to, packed).map_err(|code| {
            if code == OUTPUT_FULL {
                let limit = to.len();
                DecodeError::PlaneTooLarge { plane, limit }
            } else {
                damaged(code)
            }
        })?;
        if got < least {
            let expected = least;
            return Err(DecodeError::PlaneShort {
                plane,
                got,
                expected,
            });
        }
        Ok(got)
    }
}

impl Drop for Unpacker {
    fn drop(&mut self) {
        // A thread that ends has no place for it any more.
        let _ = SPARE.try_with(|(_, spare)| spare.set(self.context.take()));
    }
}

impl Default for Unpacker {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Unpacker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unpacker").finish_non_exhaustive()
    }
}

/// Looks at what a zstd frame's header (RFC 8878, section 3.1.1.1) promises.
fn check_header(
    plane: usize,
    packed: &[u8],
    least: usize,
    limit: usize,
) -> Result<(), DecodeError> {
    let bad = |what| DecodeError::Zstd { plane, what };
    let Some((descriptor, rest)) = packed
        .strip_prefix(&MAGIC)
        .and_then(<[u8]>::split_first)
        .map(|(descriptor, rest)| (*descriptor, rest))
    else {
        return Err(bad("not a zstd frame"));
    };
    if descriptor & 0b0001_1011 != 0 {
        return Err(bad("reserved bits or a dictionary in the frame header"));
    }
    let single_segment = descriptor & 0b0010_0000 != 0;
    let mut rest = rest;
    let mut window = 0;
    if !single_segment {
        let (&byte, behind) = rest.split_first().ok_or(bad("no window descriptor"))?;
        rest = behind;
        let base = 1_u64 << (10 + (byte >> 3));
        window = base + base / 8 * u64::from(byte & 7);
    }
    let size_bytes = match (descriptor >> 6, single_segment) {
        (0, false) => 0,
        (0, true) => 1,
        (1, _) => 2,
        (2, _) => 4,
        _ => 8,
    };
    let size = rest.get(..size_bytes).ok_or(bad("no content size"))?;
    if size_bytes > 0 {
        let mut wide = [0; 8];
        wide[..size_bytes].copy_from_slice(size);
        let promised =
            u64::from_le_bytes(wide).saturating_add(if size_bytes == 2 { 256 } else { 0 });
        if promised > limit as u64 {
            return Err(DecodeError::PlaneTooLarge { plane, limit });
        }
        if promised < least as u64 {
            let (got, expected) = (usize::try_from(promised).unwrap_or(usize::MAX), least);
            return Err(DecodeError::PlaneShort {
                plane,
                got,
                expected,
            });
        }
        if single_segment {
            window = promised;
        }
    }
    if window > MAX_WINDOW {
        return Err(DecodeError::Window {
            plane,
            got: window,
            limit: MAX_WINDOW,
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(hex: &str) -> Vec<u8> {
        (0..hex.len())
            .step_by(2)
            .map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap())
            .collect()
    }

    fn check(packed: &[u8], expected: usize) -> Result<(), DecodeError> {
        Unpacker::new().unpack(0, packed, &mut vec![0; expected])
    }

    fn pack(plane: &[u8]) -> Vec<u8> {
        Packer::new().unwrap().pack(plane).unwrap().to_vec()
    }

    #[test]
    fn bombs_stop_at_the_expected_size() {
        // 14 bytes that expand to 262144, then 32774 bytes that expand to 1 GiB.
        let small = bytes("28b52ffd00380200100003001000");
        assert_eq!(
            check(&small, 1443),
            Err(DecodeError::PlaneTooLarge {
                plane: 0,
                limit: 1443
            })
        );
        assert_eq!(check(&small, 262_144), Ok(()));
        assert_eq!(
            check(&small, 262_145),
            Err(DecodeError::PlaneShort {
                plane: 0,
                got: 262_144,
                expected: 262_145
            })
        );
        let mut large = bytes("28b52ffd0038");
        for _ in 0..8191 {
            large.extend([0x02, 0x00, 0x10, 0x00]);
        }
        large.extend([0x03, 0x00, 0x10, 0x00]);
        assert_eq!(large.len(), 32_774);
        assert!(matches!(
            check(&large, 1443),
            Err(DecodeError::PlaneTooLarge { .. })
        ));
    }

    #[test]
    fn large_windows_are_refused() {
        let window = bytes("28b52ffd0088010000");
        assert_eq!(
            check(&window, 1443),
            Err(DecodeError::Window {
                plane: 0,
                got: 1 << 27,
                limit: MAX_WINDOW
            })
        );
    }

    #[test]
    fn exactly_one_frame_is_read() {
        let good = pack(&[7; 1000]);
        assert_eq!(check(&good, 1000), Ok(()));
        let mut twice = good.clone();
        twice.extend(&good);
        assert!(matches!(check(&twice, 1000), Err(DecodeError::Zstd { .. })));
        assert!(matches!(
            check(&twice, 2000),
            Err(DecodeError::PlaneShort { .. })
        ));
        for end in 0..good.len() {
            assert!(check(&good[..end], 1000).is_err(), "cut at {end}");
        }
        assert!(
            check(&bytes("184d2a5000000000"), 0).is_err(),
            "a skippable frame"
        );
        assert!(check(&[], 0).is_err());
    }

    #[test]
    fn own_planes_of_any_size_are_read() {
        for len in [
            1,
            255,
            256,
            257,
            65_791,
            65_792,
            300_000,
            (1 << 23) + 1,
            9_000_001,
        ] {
            let plane: Vec<u8> = (0..len)
                .map(|i: usize| ((i * i) >> 3).to_le_bytes()[0])
                .collect();
            let packed = pack(&plane);
            assert!(packed.len() <= packed_bound(len));
            let mut to = vec![0; len];
            assert_eq!(Unpacker::new().unpack(0, &packed, &mut to), Ok(()), "{len}");
            assert!(to == plane);
        }
    }

    #[test]
    fn noise_costs_few_bytes() {
        let mut seed = 1_u64;
        let plane: Vec<u8> = (0..1443)
            .map(|_| {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (seed >> 56).to_le_bytes()[0]
            })
            .collect();
        assert!(pack(&plane).len() <= 1443 + 14);
    }
}
