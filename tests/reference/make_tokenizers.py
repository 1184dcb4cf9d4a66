"""Writes the ids that `tokenizers` and llama.cpp give the texts of data/tokenizers/corpus.json.

    python tests/reference/make_tokenizers.py MODEL.gguf     (needs: tokenizers llama-cpp-python gguf numpy)

For each pre-tokenizer of PRE the file NAME.json holds a small vocabulary, trained on the corpus, as a GGUF file would
hold it, and the ids of every text. Where llama.cpp cuts words by the same rules, its ids must be those of `tokenizers`;
texts for which they are not are listed. smollm2.json has llama.cpp's ids for the vocabulary of SmolLM2 (MODEL.gguf).
"""

import json
import pathlib
import sys
import tempfile

import gguf
from llama import Llama, about
from tokenizers import AddedToken, Regex, Tokenizer, __version__, normalizers, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer

DATA = pathlib.Path(__file__).parent / "data" / "tokenizers"
CORPUS = json.loads((DATA / "corpus.json").read_text())
VOCAB = 700
CONTROL, USER = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"], ["<tool_call>", "</tool_call>"]

# The rules of each name as the models' own tokenizer.json files have them.
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
NEWER = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?LETTERS+|NUMBERS| ?[^\sMARKS\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def newer(letters, numbers, marks=""):
    return NEWER.replace("LETTERS", letters).replace("NUMBERS", numbers).replace("MARKS", marks)


# Name: regex, digits one by one before it, NFC, whole words first.
PRE = {
    "gpt-2": (GPT2, False, False, False),
    "smollm": (GPT2, True, False, False),
    "llama-bpe": (newer(r"\p{L}", r"\p{N}{1,3}"), False, False, True),
    "qwen2": (newer(r"\p{L}", r"\p{N}"), False, True, False),
    "qwen35": (newer(r"[\p{L}\p{M}]", r"\p{N}", r"\p{M}"), False, True, False),
}


def train(regex, digits, nfc, whole_words):
    tokenizer = Tokenizer(BPE(ignore_merges=whole_words))
    if nfc:
        tokenizer.normalizer = normalizers.NFC()
    steps = [pre_tokenizers.Digits(individual_digits=True)] if digits else []
    steps.append(pre_tokenizers.Split(Regex(regex), "isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = BpeTrainer(vocab_size=VOCAB, initial_alphabet=alphabet, show_progress=False)
    # Twice, so that every word counts as a pair worth a merge.
    tokenizer.train_from_iterator(CORPUS * 2, trainer)
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in CONTROL])
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in USER])
    return tokenizer


def vocabulary(tokenizer):
    ids = tokenizer.get_vocab()
    tokens = sorted(ids, key=ids.get)
    types = [3 if token in CONTROL else 4 if token in USER else 1 for token in tokens]
    merges = [" ".join(pair) for pair in json.loads(tokenizer.to_str())["model"]["merges"]]
    return tokens, types, merges


def write_gguf(path, name, tokens, types, merges):
    writer = gguf.GGUFWriter(path, "llama")
    for add, value in [("context_length", 64), ("embedding_length", 32), ("block_count", 1), ("feed_forward_length", 32)]:
        getattr(writer, f"add_{add}")(value)
    writer.add_head_count(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(name)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_add_bos_token(False)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def save(name, head, ids):
    lines = ",\n".join(f"  {json.dumps(line)}" for line in ids)
    (DATA / f"{name}.json").write_text(f'{json.dumps(head, ensure_ascii=False)[:-1]}, "ids": [\n{lines}\n]}}\n')


def main():
    for name, rules in PRE.items():
        tokenizer = train(*rules)
        tokens, types, merges = vocabulary(tokenizer)
        ids = [tokenizer.encode(text).ids for text in CORPUS]
        head = {"made_with": f"tokenizers {__version__}", "pre": name, "tokens": tokens, "token_types": types, "merges": merges}
        save(name, head, ids)
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "vocabulary.gguf"
            write_gguf(path, name, tokens, types, merges)
            other = Llama(path, vocabulary_only=True)
            differ = [text for text, line in zip(CORPUS, ids) if other.tokenize(text) != line]
            print(name, len(tokens), "tokens; llama.cpp differs for", differ)
    smollm = Llama(sys.argv[1], vocabulary_only=True)
    save("smollm2", {"made_with": about()}, [smollm.tokenize(text) for text in CORPUS])


if __name__ == "__main__":
    main()
