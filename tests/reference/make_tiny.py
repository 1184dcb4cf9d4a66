"""Writes tiny random models as GGUF, with the logits that transformers computes for them in fp32.

    python tests/reference/make_tiny.py            (needs: torch transformers gguf; writes to tests/reference/data)

For each model NAME: NAME.gguf, and NAME.logits with the f32 logits of every position of the token sequence
token(i) = (37 i + 11) mod vocab, i < POSITIONS, row-major [POSITIONS][vocab]. The seeds are fixed.
The folder NAME holds the same model as transformers saves it, for those of SAVED: whole, or in shards.
"""

import pathlib

import gguf
import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

POSITIONS = 150  # more than two KV pages
VOCAB = 256
SAVED = {"tiny-llama3-rope": "200KB", "tiny-qwen3": "1MB"}  # largest shard
DATA = pathlib.Path(__file__).parent / "data"
SHAPE = dict(
    vocab_size=VOCAB,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    max_position_embeddings=512,
    attention_bias=False,
)
LLAMA3_ROPE = dict(
    rope_type="llama3",
    rope_theta=10000.0,
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=64,
)


def interleave(weight, heads):
    """The row order of q and k in GGUF files of the llama architecture: rows j and j + head_dim / 2 side by side."""
    rows, cols = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, cols).swapaxes(1, 2).reshape(rows, cols)


def layer_names(layer, qk_norm):
    hf, gg = f"model.layers.{layer}.", f"blk.{layer}."
    pairs = {
        "input_layernorm": "attn_norm",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "post_attention_layernorm": "ffn_norm",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }
    if qk_norm:
        pairs |= {"self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"}
    return {f"{hf}{a}.weight": f"{gg}{b}.weight" for a, b in pairs.items()}


def write(name, arch, model, config, rope_divisors=None):
    torch.manual_seed(7)
    for key, tensor in model.named_parameters():
        # Wide enough that logits differ clearly; norms off 1, so that a norm left out is seen.
        if "norm" in key:
            tensor.data = 1 + 0.3 * torch.randn_like(tensor)
        else:
            tensor.data = torch.randn_like(tensor) * (1.5 / tensor.shape[-1] ** 0.5)
    model = model.eval().float()
    if config.tie_word_embeddings:
        model.tie_weights()

    writer = gguf.GGUFWriter(DATA / f"{name}.gguf", arch)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)

    state = {key: value.detach().numpy() for key, value in model.state_dict().items()}
    names = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
    if not config.tie_word_embeddings:
        names["lm_head.weight"] = "output.weight"
    for layer in range(config.num_hidden_layers):
        names |= layer_names(layer, qk_norm=arch == "qwen3")
    for hf, gg in names.items():
        weight = state[hf]
        if arch == "llama" and "q_proj" in hf:
            weight = interleave(weight, config.num_attention_heads)
        if arch == "llama" and "k_proj" in hf:
            weight = interleave(weight, config.num_key_value_heads)
        writer.add_tensor(gg, np.ascontiguousarray(weight, dtype=np.float32))
    if rope_divisors is not None:
        writer.add_tensor("rope_freqs.weight", rope_divisors.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    if name in SAVED:
        model.save_pretrained(DATA / name, max_shard_size=SAVED[name])

    tokens = (37 * torch.arange(POSITIONS) + 11) % VOCAB
    with torch.no_grad():
        logits = model(tokens[None]).logits[0]
    logits.numpy().astype("<f4").tofile(DATA / f"{name}.logits")
    print(name, "sigma", float(logits.std()), "params", sum(p.numel() for p in model.parameters()))


def main():
    DATA.mkdir(exist_ok=True)
    torch.manual_seed(1)
    plain = dict(rope_type="default", rope_theta=10000.0)

    config = LlamaConfig(**SHAPE, rope_parameters=plain, tie_word_embeddings=True, rms_norm_eps=1e-5)
    config._attn_implementation = "eager"
    write("tiny-llama", "llama", LlamaForCausalLM(config), config)

    config = LlamaConfig(**SHAPE, rope_parameters=LLAMA3_ROPE, tie_word_embeddings=False, rms_norm_eps=1e-5)
    config._attn_implementation = "eager"
    model = LlamaForCausalLM(config)
    base = 10000.0 ** (-torch.arange(0, SHAPE["head_dim"], 2).double() / SHAPE["head_dim"])
    divisors = (base / model.model.rotary_emb.inv_freq.double()).numpy()
    write("tiny-llama3-rope", "llama", model, config, divisors)

    config = Qwen3Config(**SHAPE, rope_parameters=plain | {"rope_theta": 1e6}, tie_word_embeddings=False, rms_norm_eps=1e-6)
    config._attn_implementation = "eager"
    write("tiny-qwen3", "qwen3", Qwen3ForCausalLM(config), config)


if __name__ == "__main__":
    main()
