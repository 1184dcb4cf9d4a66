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

/// What kernels may include, by name.
const HEADERS: [(&str, &str); 6] = [
    ("prelude.cuh", include_str!("cu/prelude.cuh")),
    ("integer.cuh", include_str!("cu/integer.cuh")),
    ("near.cuh", include_str!("cu/near.cuh")),
    ("packed.cuh", include_str!("cu/packed.cuh")),
    ("gates.cuh", include_str!("cu/gates.cuh")),
    ("warpgroup.cuh", include_str!("cu/warpgroup.cuh")),
];

impl Source {
    /// Whether the kernel's own text, without the prelude, has a word.
    pub fn mentions(&self, word: &str) -> bool {
        self.text.contains(word)
    }

    /// The whole translation unit: headers stand where they were first included, and lines keep their numbers.
    pub fn unit(&self) -> String {
        let mut unit = String::new();
        expand(&mut unit, &mut Vec::new(), &format!("{}.cu", self.name), self.text);
        unit
    }
}

fn expand(unit: &mut String, seen: &mut Vec<&'static str>, file: &str, text: &str) {
    for (index, line) in text.lines().enumerate() {
        let included = line.strip_prefix("#include \"").and_then(|rest| rest.strip_suffix('"'));
        // Every included name is a header: tested below.
        match included.map(|name| HEADERS.iter().find(|header| header.0 == name)) {
            Some(Some(&(name, header))) if !seen.contains(&name) => {
                seen.push(name);
                unit.push_str(&format!("#line 1 \"{name}\"\n"));
                expand(unit, seen, name, header);
                unit.push_str(&format!("#line {} \"{file}\"\n", index + 2));
            }
            Some(Some(_)) => unit.push('\n'),
            _ if line == "#pragma once" => unit.push('\n'),
            _ => {
                unit.push_str(line);
                unit.push('\n');
            }
        }
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
    FEW_ROWS_PACKED = "few_rows_packed",
    GATE_UP_SM90 = "gate_up_sm90",
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

    /// Every kernel includes headers that there are, each once, the prelude among them, and defines an entry point of its own
    /// name.
    #[test]
    fn sources_are_whole() {
        for source in ALL {
            for (name, _) in HEADERS {
                let began = source.unit().matches(&format!("#line 1 \"{name}\"")).count();
                assert!(began <= 1 && (began == 1 || name != "prelude.cuh"), "{}: {name} {began} times", source.name);
            }
            assert!(!source.unit().contains("#include") && source.unit().contains("griddepcontrol"), "{}", source.name);
            assert!(source.unit().contains(&format!(" {}(", source.name)), "{}", source.name);
        }
    }
}
