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

/// What kernels may include, by name; the second includes the first.
const HEADERS: [(&str, &str); 2] =
    [("prelude.cuh", include_str!("cu/prelude.cuh")), ("packed.cuh", include_str!("cu/packed.cuh"))];

impl Source {
    /// Whether the kernel's own text, without the prelude, has a word.
    pub fn mentions(&self, word: &str) -> bool {
        self.text.contains(word)
    }

    /// The whole translation unit: headers stand where they were included, and lines keep their numbers.
    pub fn unit(&self) -> String {
        with_headers(&format!("{}.cu", self.name), self.text)
    }
}

fn with_headers(file: &str, text: &str) -> String {
    let include = |name: &str| format!("#include \"{name}\"");
    let found = HEADERS.iter().find_map(|&(name, header)| Some((name, header, text.find(&include(name))?)));
    // The prelude includes nothing; every kernel includes one header: tested below.
    let Some((name, header, at)) = found else { return text.replace("#pragma once", "") };
    let line = text[..at].lines().count() + 1;
    let rest = &text[at + include(name).len()..];
    format!("{}#line 1 \"{name}\"\n{}\n#line {line} \"{file}\"\n{rest}", &text[..at], with_headers(name, header))
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
    FEW_ROWS_PACKED = "few_rows_packed",
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
    DELTA_STEP = "delta_step",
    DELTA_CONV = "delta_conv",
    DELTA_CHUNK = "delta_chunk",
    DELTA_SCAN = "delta_scan",
    DELTA_OUT = "delta_out",
    COPY_STATES = "copy_states",
    DELTA_GATES = "delta_gates",
    FILL_RANDOM = "fill_random",
    QUANTIZE = "quantize",
    DEQUANTIZE = "dequantize",
    DEQUANTIZE_PACKED = "dequantize_packed",
    RMS_NORM_FP8 = "rms_norm_fp8",
    SILU_MUL_FP8 = "silu_mul_fp8",
    SCALE_ROWS = "scale_rows",
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every kernel includes one header once and defines an entry point of its own name.
    #[test]
    fn sources_are_whole() {
        for source in ALL {
            assert_eq!(source.text.matches("#include").count(), 1, "{}", source.name);
            assert!(!source.unit().contains("#include") && source.unit().contains("griddepcontrol"), "{}", source.name);
            assert!(source.unit().contains(&format!(" {}(", source.name)), "{}", source.name);
        }
    }
}
