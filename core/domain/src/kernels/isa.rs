//! Which registers and instructions the loops may use.

use std::sync::OnceLock;

/// An instruction set that this CPU has. Values other than [`Isa::Portable`] are only made after asking the CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Isa {
    /// What every CPU of the target has: SSE2 on x86-64, NEON on aarch64.
    Portable,
    /// AVX2 with FMA and F16C.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// AVX-512 F, BW, VL and DQ.
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Isa {
    /// The fastest that this CPU has.
    pub fn best() -> Self {
        static BEST: OnceLock<Isa> = OnceLock::new();
        *BEST.get_or_init(|| Self::available().last().copied().unwrap_or(Self::Portable))
    }

    /// All that this CPU has, the fastest last.
    pub fn available() -> Vec<Self> {
        let all = vec![Self::Portable];
        #[cfg(target_arch = "x86_64")]
        let all = {
            let mut all = all;
            let has_avx2 = is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("f16c");
            if has_avx2 {
                all.push(Self::Avx2);
            }
            let has_avx512 = is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512dq");
            if has_avx2 && has_avx512 {
                all.push(Self::Avx512);
            }
            all
        };
        all
    }

    /// Short name for reports: `portable`, `avx2`, `avx512`.
    pub fn label(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => "avx512",
        }
    }

    /// 32 vector registers instead of 16.
    pub(super) fn has_many_registers(self) -> bool {
        match self {
            Self::Portable => cfg!(target_arch = "aarch64"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => false,
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => true,
        }
    }
}
