//! CUDA sources as data: one operation a file, and the prelude that they all include.
//!
//! Nothing is compiled here. `backend-cuda` compiles a source with NVRTC when a model is loaded, specialised to the
//! model's shape by `-D` flags, and caches the result by content. Each file begins with what it computes, the shapes, and
//! the flags it takes. This crate knows no CUDA library and builds everywhere.

/// One kernel source; the entry point has the file's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    pub name: &'static str,
    text: &'static str,
}

const PRELUDE: &str = include_str!("cu/prelude.cuh");
const INCLUDE: &str = "#include \"prelude.cuh\"";

impl Source {
    /// Whether the kernel's own text, without the prelude, has a word.
    pub fn mentions(&self, word: &str) -> bool {
        self.text.contains(word)
    }

    /// The whole translation unit: the prelude stands where it was included, and lines keep their numbers.
    pub fn unit(&self) -> String {
        let at = self.text.find(INCLUDE).expect("every kernel includes the prelude: tested below");
        let line = self.text[..at].lines().count() + 1;
        let rest = &self.text[at + INCLUDE.len()..];
        let prelude = PRELUDE.replace("#pragma once", "");
        format!("{}#line 1 \"prelude.cuh\"\n{prelude}\n#line {line} \"{}.cu\"\n{rest}", &self.text[..at], self.name)
    }
}

macro_rules! sources {
    ($($name:ident = $file:literal),* $(,)?) => {
        $(
            #[doc = concat!("`", $file, "`: what it computes is written at the head of the file.")]
            pub const $name: Source = Source { name: $file, text: include_str!(concat!("cu/", $file, ".cu")) };
        )*
        /// Every kernel.
        pub const ALL: &[Source] = &[$($name),*];
    };
}

sources! {
    BEGIN_STEP = "begin_step",
    EMBED = "embed",
    RMS_NORM = "rms_norm",
    FEW_ROWS = "few_rows",
    FEW_ROWS_FP8 = "few_rows_fp8",
    ROPE_KV = "rope_kv",
    ATTEND_DECODE = "attend_decode",
    ATTEND_DECODE_SM90 = "attend_decode_sm90",
    ATTEND_MERGE = "attend_merge",
    ATTEND_MERGE_TILES = "attend_merge_tiles",
    ATTEND_PREFILL = "attend_prefill",
    ATTEND_PREFILL_SM90 = "attend_prefill_sm90",
    SILU_MUL = "silu_mul",
    SAMPLE = "sample",
    END_STEP = "end_step",
    FILL_RANDOM = "fill_random",
    QUANTIZE = "quantize",
    DEQUANTIZE = "dequantize",
    RMS_NORM_FP8 = "rms_norm_fp8",
    SILU_MUL_FP8 = "silu_mul_fp8",
    SCALE_ROWS = "scale_rows",
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every kernel includes the prelude once and defines an entry point of its own name.
    #[test]
    fn sources_are_whole() {
        for source in ALL {
            assert_eq!(source.text.matches(INCLUDE).count(), 1, "{}", source.name);
            assert!(source.unit().contains(&format!(" {}(", source.name)), "{}", source.name);
        }
    }
}
