"""llama.cpp as a reference: logits and greedy text, through the C API of llama-cpp-python.

Written for llama-cpp-python 0.3.36, built from source (`pip install --no-binary llama-cpp-python llama-cpp-python`).
"""

import ctypes
import pathlib
import sys

import llama_cpp
import numpy as np


class Llama:
    def __init__(self, path, context=512, vocabulary_only=False):
        self.log = llama_cpp.llama_log_callback(lambda level, text, data: None)
        llama_cpp.llama_log_set(self.log, None)
        llama_cpp.llama_backend_init()
        params = llama_cpp.llama_model_default_params()
        # Weights as they are stored: what is repacked for speed may round in another order.
        params.use_extra_bufts = False
        params.vocab_only = vocabulary_only
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
        if not self.model:
            sys.exit(f"llama.cpp cannot load {path}")
        self.vocabulary = llama_cpp.llama_model_get_vocab(self.model)
        self.vocab = llama_cpp.llama_vocab_n_tokens(self.vocabulary)
        if vocabulary_only:
            return
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = context
        params.n_threads = params.n_threads_batch = 2
        # Keys and values unrounded, and attention too.
        params.type_k = params.type_v = llama_cpp.GGML_TYPE_F32
        params.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self.context = llama_cpp.llama_init_from_model(self.model, params)

    def tokenize(self, text, special=True):
        """Ids of a text; no begin token is added, control tokens in the text are recognised."""
        data = text.encode()
        room = len(data) + 8
        ids = (ctypes.c_int32 * room)()
        count = llama_cpp.llama_tokenize(self.vocabulary, data, len(data), ids, room, False, special)
        if count < 0:
            sys.exit(f"llama_tokenize failed with {count}")
        return list(ids[:count])

    def restart(self):
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)

    def feed(self, tokens, position, every=False):
        """Logits after the last token, or after every one."""
        batch = llama_cpp.llama_batch_init(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, position + i, 1
            batch.seq_id[i][0] = 0
            batch.logits[i] = every or i == len(tokens) - 1
        status = llama_cpp.llama_decode(self.context, batch)
        llama_cpp.llama_batch_free(batch)
        if status != 0:
            sys.exit(f"llama_decode failed with {status}")
        wanted = range(len(tokens)) if every else [len(tokens) - 1]
        rows = [np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(self.context, i), (self.vocab,)) for i in wanted]
        return np.array(rows, dtype=np.float32)

    def greedy(self, prompt, count):
        """The best tokens one by one, and how far each is above the second best in log probability."""
        self.restart()
        logits = self.feed(prompt, 0)[-1]
        tokens, margins = [], []
        for i in range(count):
            best, second = np.argsort(logits)[-1:-3:-1]
            tokens.append(int(best))
            margins.append(round(float(logits[best] - logits[second]), 4))
            logits = self.feed([int(best)], len(prompt) + i)[-1]
        return tokens, margins


def quantise(source, target, kind):
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype, params.nthread, params.allow_requantize = kind, 2, True
    if llama_cpp.llama_model_quantize(str(source).encode(), str(target).encode(), params) != 0:
        sys.exit(f"llama.cpp does not write {target}")


def dequantised(path, folder):
    """The same weights as f32, so that products are computed without rounding activations."""
    plain = pathlib.Path(folder) / f"{path.stem}-f32.gguf"
    quantise(path, plain, llama_cpp.LLAMA_FTYPE_ALL_F32)
    return plain


def about():
    return f"llama-cpp-python {llama_cpp.__version__}, {llama_cpp.llama_print_system_info().decode().strip(' |')}"
