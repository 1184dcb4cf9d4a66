"""Writes the seed corpora: small inputs that reach deep, so that a minute of fuzzing starts past the first checks.

Run `python3 make_seeds.py` after changing it; the files are committed.
"""

import json
import struct
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"


def write(target, seeds):
    folder = CORPUS / target
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in seeds.items():
        (folder / name).write_bytes(data)


def requests():
    user = {"role": "user", "content": "Hi"}
    function = {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}
    tool = {"type": "function", "function": function}
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    turns = [user, {"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "tool", "tool_call_id": "c1", "content": "2"}]
    sampling = {
        "temperature": 0.5, "top_p": 0.9, "top_k": 20, "min_p": 0.1, "seed": 7, "n": 2, "stop": ["a", "b"], "stop_token_ids": [1],
        "include_stop_str_in_output": True, "max_tokens": 5, "min_tokens": 1, "ignore_eos": True, "presence_penalty": 0.1,
        "frequency_penalty": 0.1, "repetition_penalty": 1.1, "logit_bias": {"3": -100}, "return_token_ids": True,
        "stream": True, "stream_options": {"include_usage": True}, "user": "u", "priority": 1, "cache_salt": "s",
    }  # fmt: skip
    template = {"chat_template_kwargs": {"enable_thinking": False}, "add_generation_prompt": False, "continue_final_message": True}
    parts = [{"role": "system", "content": [{"type": "text", "text": "S"}]}, {"role": "assistant", "content": "A"}]
    return {
        "chat": {"model": "m", "messages": [user]},
        "chat-tools": {"model": "m", "messages": turns, "tools": [tool], "tool_choice": "auto", "parallel_tool_calls": False},
        "chat-sampling": {"model": "m", "messages": [user], "logprobs": True, "top_logprobs": 3, "max_completion_tokens": 5, **sampling},
        "chat-template": {"model": "m", "messages": parts, **template},
        "completion": {"model": "m", "prompt": "Hi", "logprobs": 3, **sampling},
        "completion-ids": {"model": "m", "prompt": [[1, 2], [3]], "echo": False, "suffix": None},
    }


# In the order of `STAGES` in plugins/cases/src/lib.rs.
STAGES = [
    "hermes", "qwen3_json", "qwen3_coder", "qwen3_xml", "llama3_json", "llama4_json", "pythonic", "llama4_pythonic", "olmo3",
    "lfm2", "mistral", "deepseek_v3", "deepseek_v31", "deepseek_v32", "glm45", "glm47", "kimi_k2", "minimax_m2", "gpt_oss",
    "granite", "phi4_mini_json", "gemma4", "seed_oss", "qwen3", "deepseek_r1", "minimax",
]  # fmt: skip


def stage(name, text, cut=3, prefix=0):
    """The three bytes before the text: the stage, characters per piece (0: whole), and how the prompt ended."""
    return bytes([STAGES.index(name), cut, prefix]) + text.encode()


HERMES_CALL = '{"name": "f", "arguments": {"a": 1, "b": "x"}}'
XML_CALL = "<function=f>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\nx\ny\n</parameter>\n</function>"

STAGE_SEEDS = {
    "think-closed": stage("qwen3", "<think>\nWhy?\n</think>\n\nBecause."),
    "think-opened-by-prompt": stage("qwen3", "Why?</think>Because.", prefix=1),
    "think-disabled": stage("qwen3", "Because <think> is a word.", cut=1, prefix=2),
    "think-unclosed": stage("deepseek_r1", "<think>Why", cut=0),
    "think-inner": stage("minimax", "<think>a <tool_call> b</thi nk></think></think> c", cut=2),
    "hermes": stage("hermes", f"Well.\n<tool_call>\n{HERMES_CALL}\n</tool_call>"),
    "hermes-two": stage("hermes", '<tool_call>{"arguments": {}, "name": "f"}</tool_call>\n<tool_call>{"name": "f", "arguments": {"a": [1, {"c": null}]}}</tool_call> end', cut=1),
    "hermes-string": stage("hermes", '<tool_call>{"name": "f", "arguments": {"b": "</tool_call> \\"\\u00e9 \\ud83d\\ude00"}}</tool_call>', cut=2),
    "hermes-broken": stage("hermes", '<tool_call>{"name": "f", "arguments": {"a": ', cut=0),
    "hermes-after-thoughts": stage("hermes", '<tool_call>no</think><tool_call>{"name": "g", "arguments": "{}"}</tool_call>', prefix=1),
    "qwen3_coder": stage("qwen3_coder", f"Well.\n<tool_call>\n{XML_CALL}\n</tool_call>"),
    "qwen3_coder-bare": stage("qwen3_coder", "<function=f><parameter=a>-12</parameter></function> end", cut=1),
    "qwen3_coder-types": stage("qwen3_coder", '<tool_call><function=f><parameter=a>x</parameter><parameter=c>{"d": [1, true]}</parameter></function></tool_call>', cut=2),
    "qwen3_coder-broken": stage("qwen3_coder", "<tool_call>\n<function=f>\n<parameter=b>\n<parameter=a>", cut=0),
    "llama3_json": stage("llama3_json", '{"name": "f", "parameters": {"a": 1}}; {"name": "f", "parameters": {}}'),
    "llama3_json-tag": stage("llama3_json", 'Hm <|python_tag|>{"name": "f", "parameters": {"b": "}"}}', cut=1),
    "pythonic": stage("pythonic", "[f(a=1, b='x\\\\n\\'y'), g(c=[1, {'d': None}])]"),
    "pythonic-marked": stage("lfm2", '<|tool_call_start|>[f(a=.5e3, b="\\ud83d\\ude00")]<|tool_call_end|> end', cut=2),
    "olmo3": stage("olmo3", "<function_calls>\nf(a=-1)\ng()\n</function_calls>", cut=1),
    "mistral": stage("mistral", f"[THINK]a[/THINK][TOOL_CALLS] [{HERMES_CALL}, {HERMES_CALL}]"),
    "mistral-v11": stage("mistral", '[TOOL_CALLS]f[CALL_ID]abc[ARGS]{"a": 1}[TOOL_CALLS]g[ARGS]{}', cut=2),
    "deepseek_v3": stage("deepseek_v3", '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{"a": 1}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>'),
    "deepseek_v31": stage("deepseek_v31", '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"a": 1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>', cut=1),
    "deepseek_v32": stage("deepseek_v32", '<｜DSML｜function_calls>\n<｜DSML｜invoke name="f">\n<｜DSML｜parameter name="b" string="true">x</｜DSML｜parameter>\n<｜DSML｜parameter name="a" string="false">1</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>'),
    "glm45": stage("glm45", "<think>a</think><tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>"),
    "kimi_k2": stage("kimi_k2", 'x<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"a": 1}<|tool_call_end|><|tool_calls_section_end|>y'),
    "minimax_m2": stage("minimax_m2", '<minimax:tool_call>\n<invoke name="f">\n<parameter name="a">1</parameter>\n</invoke>\n</minimax:tool_call>', prefix=2),
    "gpt_oss": stage("gpt_oss", '<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>', prefix=3),
    "gpt_oss-final": stage("gpt_oss", "<|channel|>final<|message|>a < b<|return|>", cut=1, prefix=3),
    "granite": stage("granite", f"Here is my thought process: a Here is my response: b<|tool_call|>[{HERMES_CALL}]"),
    "phi4_mini_json": stage("phi4_mini_json", f"functools functools[{HERMES_CALL}]", cut=1),
    "gemma4": stage("gemma4", '<|channel>thought\na<channel|><|tool_call>call:f{a:1,b:<|"|>x "y"<|"|>,c:[{d:null}]}<tool_call|>'),
    "seed_oss": stage("seed_oss", f"<seed:think>a</seed:think><seed:tool_call>\n{XML_CALL}\n</seed:tool_call>"),
}  # fmt: skip


def text(value):
    return struct.pack("<Q", len(value.encode())) + value.encode()


def value(kind, item):
    match kind:
        case "u32":
            return struct.pack("<II", 4, item)
        case "f32":
            return struct.pack("<If", 6, item)
        case "text":
            return struct.pack("<I", 8) + text(item)
        case "texts":
            return struct.pack("<IIQ", 9, 8, len(item)) + b"".join(map(text, item))
        case "i32s":
            return struct.pack("<IIQ", 9, 5, len(item)) + struct.pack(f"<{len(item)}i", *item)


def gguf(metadata, tensors):
    """Tensors are F32 and count up from 0; `tensors` is (name, dimensions, innermost first)."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    head += b"".join(text(key) + value(*entry) for key, entry in metadata.items())
    data = b""
    for name, dims in tensors:
        data += b"\0" * (-len(data) % 32)
        head += text(name) + struct.pack("<I", len(dims)) + struct.pack(f"<{len(dims)}Q", *dims) + struct.pack("<IQ", 0, len(data))
        count = 1
        for dim in dims:
            count *= dim
        data += struct.pack(f"<{count}f", *range(count))
    return head + b"\0" * (-len(head) % 32) + data


def model(architecture):
    numbers = {
        "embedding_length": 8, "block_count": 1, "feed_forward_length": 12, "context_length": 64,
        "attention.head_count": 2, "attention.head_count_kv": 1,
    }  # fmt: skip
    metadata = {"general.architecture": ("text", architecture)}
    metadata |= {f"{architecture}.{key}": ("u32", number) for key, number in numbers.items()}
    metadata[f"{architecture}.attention.layer_norm_rms_epsilon"] = ("f32", 1e-5)
    layer = {
        "attn_norm": [8], "attn_q": [8, 8], "attn_k": [8, 4], "attn_v": [8, 4], "attn_output": [8, 8],
        "ffn_norm": [8], "ffn_gate": [8, 12], "ffn_up": [8, 12], "ffn_down": [12, 8],
    }  # fmt: skip
    if architecture == "qwen3":
        layer |= {"attn_q_norm": [4], "attn_k_norm": [4]}
    tensors = [("token_embd.weight", [8, 10]), ("output_norm.weight", [8])]
    return metadata, tensors + [(f"blk.0.{name}.weight", dims) for name, dims in layer.items()]


def ggufs():
    tokenizer = {
        "tokenizer.ggml.model": ("text", "gpt2"),
        "tokenizer.ggml.pre": ("text", "smollm"),
        "tokenizer.ggml.tokens": ("texts", ["a", "b", "ab", "<|im_end|>"]),
        "tokenizer.ggml.merges": ("texts", ["a b"]),
        "tokenizer.ggml.token_type": ("i32s", [1, 1, 1, 3]),
        "tokenizer.ggml.eos_token_id": ("u32", 3),
        "tokenizer.chat_template": ("text", "{{ messages }}"),
    }
    llama, qwen3 = model("llama"), model("qwen3")
    return {
        "empty": gguf({}, []),
        "tokenizer": gguf(tokenizer, []),
        "llama": gguf(*llama),
        "qwen3": gguf(*qwen3),
        "llama-cut": gguf(*llama)[:700],
        "llama-huge-head": huge_head(),
    }


def huge_head():
    """A finding: the rotary table was made before the head's size was checked."""
    metadata, tensors = model("llama")
    metadata["llama.embedding_length"] = ("u32", 0x8000_0008)
    return gguf(metadata, tensors)


def hfs():
    tensors = {"a": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}, "b": {"dtype": "BF16", "shape": [2], "data_offsets": [16, 20]}}
    header = json.dumps({"__metadata__": {"format": "pt"}, **tensors}).encode()
    llama = {
        "architectures": ["LlamaForCausalLM"], "vocab_size": 10, "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 1e4,
        "bos_token_id": 1, "eos_token_id": [2, 3], "tie_word_embeddings": True, "hidden_act": "silu",
    }  # fmt: skip
    scaling = {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32,
    }  # fmt: skip
    qwen3 = {**llama, "architectures": ["Qwen3ForCausalLM"], "head_dim": 4, "eos_token_id": 2}
    return {
        "shard": struct.pack("<Q", len(header)) + header + bytes(20),
        "shard-cut": struct.pack("<Q", len(header)) + header + bytes(19),
        "llama": json.dumps(llama).encode(),
        "llama3-rope": json.dumps({**llama, "rope_scaling": scaling}).encode(),
        "qwen3": json.dumps(qwen3).encode(),
    }


write("request", {name: json.dumps(body).encode() for name, body in requests().items()})
write("stages", STAGE_SEEDS)
write("gguf", ggufs())
write("hf", hfs())
