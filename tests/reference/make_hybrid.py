"""Writes tiny random hybrids (Qwen3.5's form) with the logits that transformers computes for them in fp32.

    python tests/reference/make_hybrid.py          (needs: torch transformers safetensors gguf; writes to tests/reference/data)

For each ratio r of value to key heads, NAME = hybrid-r:
    NAME/          config.json and model.safetensors in bf16, as transformers names the tensors
    NAME.gguf      the same weights as GGUF files of this architecture hold them: value heads tiled, norms with their 1
                   added, the decay instead of its logarithm
    NAME.logits    f32 logits of every position of the sequence token(i) = (37 i + 11) mod vocab, [POSITIONS][vocab]
hybrid-fp8 is a folder as multimodal checkpoints are: names one level deeper, an image encoder and a drafter beside the text
model, projections in FP8 with a scale for each block of 128 x 128. Its scales are powers of two, so that bf16 holds the
products exactly. The seeds are fixed.
"""

import json
import pathlib

import gguf
import numpy as np
import torch
from safetensors.torch import save_file
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

POSITIONS = 210  # three whole blocks of 64, and a part of one
VOCAB = 256
HEAD = 32
DATA = pathlib.Path(__file__).parent / "data"
FP8_LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "in_proj_qkv", "in_proj_z", "out_proj")


def config_of(ratio, tied):
    return Qwen3_5TextConfig(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=HEAD,
        max_position_embeddings=1024,
        rms_norm_eps=1e-6,
        tie_word_embeddings=tied,
        rope_parameters=dict(
            rope_type="default", rope_theta=1e4, partial_rotary_factor=0.5, mrope_interleaved=True, mrope_section=[3, 3, 2]
        ),
        attention_bias=False,
        linear_conv_kernel_dim=4,
        linear_key_head_dim=HEAD,
        linear_value_head_dim=HEAD,
        linear_num_key_heads=2,
        linear_num_value_heads=2 * ratio,
        layer_types=["linear_attention", "linear_attention", "linear_attention", "full_attention"],
        eos_token_id=2,
    )


def randomise(model, seed):
    torch.manual_seed(seed)
    for key, tensor in model.named_parameters():
        # Wide enough that logits differ clearly; norms off their start, so that a missing 1 is seen.
        if "norm" in key:
            start = 1.0 if key.endswith("linear_attn.norm.weight") else 0.0
            value = start + 0.3 * torch.randn_like(tensor)
        elif key.endswith("A_log"):
            value = torch.randn_like(tensor) - 2.0  # decays slow enough that blocks matter to each other
        elif key.endswith("dt_bias"):
            value = 0.5 * torch.randn_like(tensor)
        elif "conv1d" in key:
            value = 0.5 * torch.randn_like(tensor)
        else:
            value = torch.randn_like(tensor) * (1.5 / tensor.shape[-1] ** 0.5)
        tensor.data = value.bfloat16().float()
    return model.eval().float()


def logits_of(model):
    tokens = (37 * torch.arange(POSITIONS) + 11) % VOCAB
    with torch.no_grad():
        return model(tokens[None]).logits[0].numpy().astype("<f4")


def tiled(weight, ratio, width):
    """Rows of value head kh * ratio + s go to head s * key_heads + kh."""
    rest = weight.shape[1:]
    return weight.reshape(-1, ratio, width, *rest).swapaxes(0, 1).reshape(weight.shape)


def gguf_tensors(state, config):
    ratio = config.linear_num_value_heads // config.linear_num_key_heads
    keys = 2 * config.linear_num_key_heads * HEAD
    split = lambda w: np.concatenate([w[:keys], tiled(w[keys:], ratio, HEAD)])
    same, plus = (lambda w: w), (lambda w: 1.0 + w)
    rows = lambda width: lambda w: tiled(w, ratio, width)
    layer = {
        "input_layernorm.weight": ("attn_norm.weight", plus),
        "post_attention_layernorm.weight": ("post_attention_norm.weight", plus),
        "self_attn.q_proj.weight": ("attn_q.weight", same),
        "self_attn.k_proj.weight": ("attn_k.weight", same),
        "self_attn.v_proj.weight": ("attn_v.weight", same),
        "self_attn.o_proj.weight": ("attn_output.weight", same),
        "self_attn.q_norm.weight": ("attn_q_norm.weight", plus),
        "self_attn.k_norm.weight": ("attn_k_norm.weight", plus),
        "linear_attn.in_proj_qkv.weight": ("attn_qkv.weight", split),
        "linear_attn.in_proj_z.weight": ("attn_gate.weight", rows(HEAD)),
        "linear_attn.in_proj_b.weight": ("ssm_beta.weight", rows(1)),
        "linear_attn.in_proj_a.weight": ("ssm_alpha.weight", rows(1)),
        "linear_attn.conv1d.weight": ("ssm_conv1d.weight", lambda w: split(w[:, 0, :])),
        "linear_attn.A_log": ("ssm_a", lambda w: tiled(-np.exp(w), ratio, 1)),
        "linear_attn.dt_bias": ("ssm_dt.bias", rows(1)),
        "linear_attn.norm.weight": ("ssm_norm.weight", same),
        "linear_attn.out_proj.weight": ("ssm_out.weight", lambda w: tiled(w.T, ratio, HEAD).T),
        "mlp.gate_proj.weight": ("ffn_gate.weight", same),
        "mlp.up_proj.weight": ("ffn_up.weight", same),
        "mlp.down_proj.weight": ("ffn_down.weight", same),
    }
    whole = {
        "model.embed_tokens.weight": ("token_embd.weight", same),
        "model.norm.weight": ("output_norm.weight", plus),
        "lm_head.weight": ("output.weight", same),
    }
    for key, weight in state.items():
        if key == "lm_head.weight" and config.tie_word_embeddings:
            continue
        if key in whole:
            name, change = whole[key]
        else:
            _, _, number, rest = key.split(".", 3)
            name, change = layer[rest]
            name = f"blk.{number}.{name}"
        yield name, np.ascontiguousarray(change(weight), dtype=np.float32)


def write_gguf(name, state, config):
    writer = gguf.GGUFWriter(DATA / f"{name}.gguf", "qwen35")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(HEAD)
    writer.add_value_length(HEAD)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(1e4)
    writer.add_rope_dimension_count(HEAD // 2)
    for key, value in {
        "full_attention_interval": 4,
        "ssm.conv_kernel": 4,
        "ssm.state_size": HEAD,
        "ssm.group_count": config.linear_num_key_heads,
        "ssm.time_step_rank": config.linear_num_value_heads,
        "ssm.inner_size": config.linear_num_value_heads * HEAD,
    }.items():
        writer.add_uint32(f"qwen35.{key}", value)
    plain = ("norm.weight", "ssm_a", "ssm_dt.bias", "ssm_conv1d.weight")
    for tensor, weight in gguf_tensors(state, config):
        if tensor.endswith(plain):
            writer.add_tensor(tensor, weight)
        else:
            # The weights are bf16 numbers, so nothing is rounded here.
            raw = (weight.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
            writer.add_tensor(tensor, raw, raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def settings(config):
    table = json.loads(config.to_json_string(use_diff=False))
    for key in ("transformers_version", "_name_or_path", "torch_dtype", "dtype"):
        table.pop(key, None)
    return table


def write_folder(name, table, tensors):
    folder = DATA / name
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(table, indent=1) + "\n")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def write(ratio):
    name, config = f"hybrid-{ratio}", config_of(ratio, tied=ratio == 1)
    model = randomise(Qwen3_5ForCausalLM(config), seed=ratio)
    state = {key: value.detach() for key, value in model.state_dict().items()}
    write_gguf(name, {key: value.numpy() for key, value in state.items()}, config)
    keep = {key: value.bfloat16().contiguous() for key, value in state.items() if key != "lm_head.weight" or ratio != 1}
    write_folder(name, settings(config) | {"architectures": ["Qwen3_5ForCausalLM"]}, keep)
    logits = logits_of(model)
    logits.tofile(DATA / f"{name}.logits")
    print(name, "sigma", float(logits.std()), "params", sum(p.numel() for p in model.parameters()))


def quantised(weight):
    """e4m3 codes and power-of-two scales of blocks of 128 x 128."""
    rows, cols = weight.shape
    scales = torch.zeros((rows + 127) // 128, (cols + 127) // 128)
    codes = torch.zeros_like(weight, dtype=torch.float8_e4m3fn)
    back = torch.zeros_like(weight)
    for i in range(scales.shape[0]):
        for j in range(scales.shape[1]):
            at = (slice(128 * i, 128 * (i + 1)), slice(128 * j, 128 * (j + 1)))
            scales[i, j] = 2.0 ** torch.ceil(torch.log2(weight[at].abs().max() / 448))
            codes[at] = (weight[at] / scales[i, j]).to(torch.float8_e4m3fn)
            back[at] = codes[at].float() * scales[i, j]
    return codes, scales, back


def write_fp8():
    name, config = "hybrid-fp8", config_of(2, tied=False)
    model = randomise(Qwen3_5ForCausalLM(config), seed=8)
    tensors = {}
    for key, parameter in model.named_parameters():
        deep = key.replace("model.", "model.language_model.", 1)
        if key.split(".")[-2] in FP8_LINEARS:
            codes, scales, back = quantised(parameter.data)
            parameter.data = back
            tensors |= {deep: codes, f"{deep}_scale_inv": scales.bfloat16()}
        else:
            tensors[deep] = parameter.data.bfloat16()
    tensors["model.visual.patch_embed.proj.weight"] = torch.ones(4, 3, 2, 2, 2, dtype=torch.bfloat16)
    tensors["mtp.fc.weight"] = torch.ones(4, 8, dtype=torch.bfloat16)
    quantization = dict(quant_method="fp8", fmt="e4m3", activation_scheme="dynamic", weight_block_size=[128, 128])
    table = {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "text_config": settings(config),
        "tie_word_embeddings": False,
        "quantization_config": quantization,
    }
    write_folder(name, table, tensors)
    logits = logits_of(model)
    logits.tofile(DATA / f"{name}.logits")
    print(name, "sigma", float(logits.std()))


if __name__ == "__main__":
    for ratio in (1, 2, 3):
        write(ratio)
    write_fp8()
