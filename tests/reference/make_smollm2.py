"""Writes the first greedy tokens that llama.cpp gives SmolLM2-135M-Instruct Q4_1 for twenty prompts.

    python tests/reference/make_smollm2.py MODEL.gguf       (needs: llama-cpp-python numpy; writes data/smollm2.json)

`tokens` come from the weights as llama.cpp dequantises them, computed in f32; `rounded` are those of the file as it is,
for which llama.cpp rounds activations to int8. Each margin is the log probability of a token of `tokens` over that of
the second best. The two part in most texts, at margins of up to 0.2: that is what such rounding does to this model.
"""

import hashlib
import json
import pathlib
import sys
import tempfile

from llama import Llama, about, dequantised

COUNT = 32
OUT = pathlib.Path(__file__).parent / "data" / "smollm2.json"

PLAIN = [
    "The capital of France is",
    "Once upon a time, in a village by the sea, there lived",
    "Water boils at a temperature of",
    "def fibonacci(n):\n    ",
    "The three primary colours are",
    "In 1969, two astronauts",
    "Les quatre saisons de l'année sont",
    "SELECT name, age FROM users WHERE",
    "1, 2, 3, 4, 5, 6,",
    "To make a cup of tea, first",
]
CHAT = [
    "Why is the sky blue?",
    "Write a haiku about autumn.",
    "Explain what a hash table is in two sentences.",
    "Translate 'good morning' into Spanish.",
    "What is 17 + 25?",
    "List three uses of a brick.",
    "Who wrote Romeo and Juliet?",
    "Write a Python function that reverses a string.",
    "Summarise: The cat sat on the mat. It was warm. The cat slept.",
    "Give me a name for a coffee shop.",
]


def chat(text):
    system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    return f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"


def main():
    path = pathlib.Path(sys.argv[1])
    rounded = Llama(path)
    with tempfile.TemporaryDirectory() as folder:
        llama = Llama(dequantised(path, folder))
    cases = []
    for text in PLAIN + [chat(text) for text in CHAT]:
        prompt = llama.tokenize(text)
        tokens, margins = llama.greedy(prompt, COUNT)
        others, _ = rounded.greedy(prompt, COUNT)
        cases.append({"text": text, "prompt": prompt, "tokens": tokens, "margins": margins, "rounded": others})
    lines = ",\n".join(f"  {json.dumps(case, ensure_ascii=False)}" for case in cases)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    head = f'"made_with": {json.dumps(about())}, "model_sha256": "{digest}"'
    OUT.write_text(f'{{{head}, "cases": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
