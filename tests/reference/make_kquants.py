"""Writes a random Llama in mixes of K-quants, made by llama.cpp's own quantiser, with what llama.cpp computes for it.

    python tests/reference/make_kquants.py      (needs: llama-cpp-python gguf numpy; writes data/kquant-*.gguf, .json)

Two layers, 512 wide: rows of K-quants are blocks of 256. The vocabulary is 256 bytes, one merge, and an end token.
For each mix NAME the file NAME.json holds greedy texts with margins, and NAME.logits the f32 logits of every position
of the sequence token(i) = (37 i + 11) mod 256, i < POSITIONS, row-major [POSITIONS][vocab]. Both come from the same
weights as llama.cpp dequantises them, computed in f32: with K-quants it rounds activations to int8 in blocks of 256,
which moves these logits by 4 %.
"""

import json
import pathlib
import tempfile

import gguf
import llama_cpp
import numpy as np
from llama import Llama, about, dequantised, quantise

DATA = pathlib.Path(__file__).parent / "data"
MIXES = {"q4_k_m": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_K_M, "q5_k_m": llama_cpp.LLAMA_FTYPE_MOSTLY_Q5_K_M, "q6_k": llama_cpp.LLAMA_FTYPE_MOSTLY_Q6_K}
HIDDEN, FFN, LAYERS, HEADS, KV_HEADS, HEAD = 512, 256, 2, 8, 2, 64
VOCAB = 288
POSITIONS = 48
PROMPTS = ["The quick brown fox", "0123456789", "a", "Grüße an alle"]
COUNT = 32


def alphabet():
    """The characters of the 256 bytes in byte-level BPE."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(b) if b in printable else chr(next(others)) for b in range(256)]


def write(path):
    random = np.random.default_rng(3)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("random llama")
    writer.add_context_length(512)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(HEAD)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(VOCAB)
    bytes_ = alphabet()
    tokens = bytes_ + [bytes_[32] + "t", "<|end|>"]
    tokens += [f"[PAD{i}]" for i in range(len(tokens), VOCAB)]
    types = [1] * 257 + [3] + [5] * (VOCAB - 258)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges([f"{bytes_[32]} t"])
    writer.add_eos_token_id(257)
    writer.add_bos_token_id(257)
    writer.add_add_bos_token(False)

    def matrix(name, rows, cols, scale=1.5):
        writer.add_tensor(name, (random.standard_normal((rows, cols)) * scale / cols**0.5).astype(np.float32))

    def norm(name):
        writer.add_tensor(name, (1 + 0.3 * random.standard_normal(HIDDEN)).astype(np.float32))

    matrix("token_embd.weight", VOCAB, HIDDEN, 20)
    matrix("output.weight", VOCAB, HIDDEN, 3)
    norm("output_norm.weight")
    for layer in range(LAYERS):
        norm(f"blk.{layer}.attn_norm.weight")
        norm(f"blk.{layer}.ffn_norm.weight")
        matrix(f"blk.{layer}.attn_q.weight", HEADS * HEAD, HIDDEN)
        matrix(f"blk.{layer}.attn_k.weight", KV_HEADS * HEAD, HIDDEN)
        matrix(f"blk.{layer}.attn_v.weight", KV_HEADS * HEAD, HIDDEN)
        matrix(f"blk.{layer}.attn_output.weight", HIDDEN, HEADS * HEAD)
        matrix(f"blk.{layer}.ffn_gate.weight", FFN, HIDDEN)
        matrix(f"blk.{layer}.ffn_up.weight", FFN, HIDDEN)
        matrix(f"blk.{layer}.ffn_down.weight", HIDDEN, FFN)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    with tempfile.TemporaryDirectory() as folder:
        plain = pathlib.Path(folder) / "plain.gguf"
        write(plain)
        for name, kind in MIXES.items():
            out = DATA / f"kquant-{name}.gguf"
            quantise(plain, out, kind)
            llama = Llama(dequantised(out, folder))
            logits = llama.feed([(37 * i + 11) % 256 for i in range(POSITIONS)], 0, every=True)
            logits.astype("<f4").tofile(out.with_suffix(".logits"))
            cases = []
            for text in PROMPTS:
                prompt = llama.tokenize(text)
                tokens, margins = llama.greedy(prompt, COUNT)
                cases.append({"text": text, "prompt": prompt, "tokens": tokens, "margins": margins})
            lines = ",\n".join(f"  {json.dumps(case, ensure_ascii=False)}" for case in cases)
            out.with_suffix(".json").write_text(f'{{"made_with": {json.dumps(about())}, "cases": [\n{lines}\n]}}\n')
            types = {t.name: t.tensor_type.name for t in gguf.GGUFReader(out).tensors}
            print(name, out.stat().st_size, sorted(set(types.values())), "sigma", float(logits.std()))


if __name__ == "__main__":
    main()
