//! Which instruction set the kernels use; decided once, at load.

/// An instruction set that this processor has: the only ways to get one look at the processor, so a kernel that is
/// handed an `Isa` may use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Isa(pub(super) Level);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Level {
    /// As `Avx512`, and the tile unit for many rows.
    Amx,
    /// AVX-512 F, BW, VL, DQ and VNNI.
    Avx512,
    /// AVX2, FMA and F16C.
    Avx2,
    /// Plain Rust.
    Portable,
}

impl Isa {
    /// The best one that this processor has.
    pub fn detect() -> Self {
        Self(Level::BEST_FIRST.into_iter().find(|level| level.available()).unwrap_or(Level::Portable))
    }

    /// Plain Rust, which every processor has.
    pub fn portable() -> Self {
        Self(Level::Portable)
    }

    /// All that this processor has, best first.
    pub fn all_available() -> Vec<Self> {
        Level::BEST_FIRST.into_iter().filter(|level| level.available()).map(Self).collect()
    }

    /// Whether products of many rows run on the tile unit.
    pub fn has_tiles(self) -> bool {
        self.0 == Level::Amx
    }

    pub fn name(self) -> &'static str {
        match self.0 {
            Level::Amx => "avx512-vnni with amx-int8",
            Level::Avx512 => "avx512-vnni",
            Level::Avx2 => "avx2",
            Level::Portable => "portable",
        }
    }
}

impl Level {
    const BEST_FIRST: [Self; 4] = [Self::Amx, Self::Avx512, Self::Avx2, Self::Portable];

    #[cfg(target_arch = "x86_64")]
    fn available(self) -> bool {
        let avx2 =
            is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
        match self {
            Self::Avx512 => {
                avx2 && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vnni")
            }
            Self::Amx => Self::Avx512.available() && super::amx::available(),
            Self::Avx2 => avx2,
            Self::Portable => true,
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn available(self) -> bool {
        self == Self::Portable
    }
}
