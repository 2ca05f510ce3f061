//! Which instructions there are to choose from.

/// An instruction set that the kernels are written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Isa {
    /// Plain Rust, on any CPU.
    Scalar,
    /// x86-64 with AVX2.
    Avx2,
    /// x86-64 with the 256-bit form of VNNI.
    AvxVnni,
    /// x86-64 with AVX-512 (F, BW, VL) and VNNI.
    Avx512Vnni,
    /// aarch64.
    Neon,
    /// aarch64 with the dot product of ARMv8.2.
    NeonDot,
}

impl Isa {
    /// Every instruction set, the fastest of each family last.
    pub const ALL: [Self; 6] = [
        Self::Scalar,
        Self::Avx2,
        Self::AvxVnni,
        Self::Avx512Vnni,
        Self::Neon,
        Self::NeonDot,
    ];

    /// Lower-case name, as on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Avx2 => "avx2",
            Self::AvxVnni => "avxvnni",
            Self::Avx512Vnni => "avx512vnni",
            Self::Neon => "neon",
            Self::NeonDot => "neon_dot",
        }
    }

    /// Whether this CPU has it.
    pub fn is_available(self) -> bool {
        match self {
            Self::Scalar => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => is_x86_feature_detected!("avx2"),
            #[cfg(target_arch = "x86_64")]
            Self::AvxVnni => {
                is_x86_feature_detected!("avx2") && is_x86_feature_detected!("avxvnni")
            }
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Vnni => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512vnni")
            }
            #[cfg(target_arch = "aarch64")]
            Self::Neon => std::arch::is_aarch64_feature_detected!("neon"),
            #[cfg(target_arch = "aarch64")]
            Self::NeonDot => {
                std::arch::is_aarch64_feature_detected!("neon")
                    && std::arch::is_aarch64_feature_detected!("dotprod")
            }
            #[allow(
                unreachable_patterns,
                reason = "each family is known on its own CPUs only"
            )]
            _ => false,
        }
    }

    /// The fastest that this CPU has.
    pub fn detect() -> Self {
        let mut all = Self::ALL.into_iter().rev();
        all.find(|isa| isa.is_available()).unwrap_or(Self::Scalar)
    }
}

impl std::str::FromStr for Isa {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|isa| isa.name() == text);
        found.ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("unknown instruction set {text:?}: one of {names}")
        })
    }
}

impl std::fmt::Display for Isa {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
