"""Writes random blocks of every weight type with the values that gguf-py gives them.

    python tests/reference/make_quants.py            (needs: gguf; writes to tests/reference/data/quants)

TYPE.bin holds the stored bytes of VALUES values, then those values as f32. Scales are random but finite.
"""

import pathlib

import gguf
import numpy as np

VALUES = 512
DATA = pathlib.Path(__file__).parent / "data" / "quants"
# Where f16 scales lie in a block.
SCALES = {
    "F16": [0], "Q8_0": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q4_K": [0, 2],
    "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0], "BF16": [], "F32": [], "MXFP4": [],
}  # fmt: skip


def main():
    DATA.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(5)
    for name, scales in SCALES.items():
        ty = gguf.GGMLQuantizationType[name]
        block, size = gguf.GGML_QUANT_SIZES[ty]
        blocks = random.integers(0, 256, (VALUES // block, size), dtype=np.uint8)
        for at in scales:
            high = blocks[:, at + 1]
            blocks[:, at + 1] = np.where(high & 0x7C == 0x7C, high & 0xBF, high)
        if name in ("F32", "BF16"):
            blocks[:, -1] &= 0xBF
        if name == "MXFP4":
            blocks[:, 0] = np.minimum(blocks[:, 0], 254)
        flat = blocks.reshape(1, -1)
        values = gguf.quants.dequantize(flat.view({"F32": "<f4", "F16": "<f2"}.get(name, "u1")), ty)
        assert values.size == VALUES and np.isfinite(values).all(), name
        (DATA / f"{name}.bin").write_bytes(flat.tobytes() + values.astype("<f4").tobytes())


if __name__ == "__main__":
    main()
