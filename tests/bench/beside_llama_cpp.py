"""The CPU backend beside llama.cpp: both measured by turns in one run, so that a noisy machine hits both alike.

    VENV/bin/python tests/bench/beside_llama_cpp.py --model FILE.gguf --bench target/release/bench

The Python that runs it needs llama-cpp-python built from source, so that llama.cpp has this machine's native
instructions (`pip install --no-binary llama-cpp-python llama-cpp-python`), and numpy, which comes with it. `bench` is
built by `cargo build --release -p bench`. Prints one line per cell and writes tests/bench/results/beside-llama-cpp-*.json.

Both sides get token ids. Ours runs through its engine, greedy sampling included. llama.cpp is called through its C API
as `llama-batched-bench` does: one batch per step, nothing sampled, which favours it.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import llama_cpp

RESULTS = Path(__file__).parent / "results"
CELLS = ["prefill:512", "decode:1x128", "decode:8x128"]


def tokens(count, seed, vocab):
    return [((i + 1) * 2654435761 + seed * 40503 >> 8) % vocab for i in range(count)]


class Llama:
    """One model; a context per cell, because its size is fixed at creation."""

    def __init__(self, path, threads):
        # The log of a load is long and says nothing about speed.
        self.log = llama_cpp.llama_log_callback(lambda level, text, data: None)
        llama_cpp.llama_log_set(self.log, None)
        llama_cpp.llama_backend_init()
        params = llama_cpp.llama_model_default_params()
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
        if not self.model:
            sys.exit(f"llama.cpp cannot load {path}")
        self.vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        self.threads = threads

    def measure(self, cell, timed, seed):
        kind, numbers = cell.split(":")
        streams, prompt = (1, int(numbers)) if kind == "prefill" else map(int, numbers.split("x"))
        context = self.open(streams, prompt + timed + 1)
        try:
            # Once without a clock: memory is touched, kernels are chosen.
            self.prefill(context, 0, tokens(min(prompt, 64), seed, self.vocab))
            llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
            if kind == "prefill":
                started = time.perf_counter()
                self.prefill(context, 0, tokens(prompt, seed, self.vocab))
                return prompt / (time.perf_counter() - started)
            for stream in range(streams):
                self.prefill(context, stream, tokens(prompt, seed * streams + stream, self.vocab))
            started = time.perf_counter()
            for step in range(timed):
                rows = [(token, prompt + step, stream) for stream, token in enumerate(tokens(streams, step, self.vocab))]
                self.decode(context, rows, range(streams))
            return timed * streams / (time.perf_counter() - started)
        finally:
            llama_cpp.llama_free(context)

    def open(self, streams, length):
        params = llama_cpp.llama_context_default_params()
        # A sequence gets its part of the context, in whole blocks of 256.
        params.n_ctx = streams * -(-length // 256) * 256
        params.n_seq_max = streams
        params.n_batch = 2048
        params.n_ubatch = 512
        params.n_threads = params.n_threads_batch = self.threads
        context = llama_cpp.llama_init_from_model(self.model, params)
        if not context:
            sys.exit(f"llama.cpp makes no context of {params.n_ctx} tokens")
        return context

    def prefill(self, context, stream, prompt):
        for start in range(0, len(prompt), 2048):
            part = prompt[start : start + 2048]
            rows = [(token, start + i, stream) for i, token in enumerate(part)]
            self.decode(context, rows, [len(part) - 1])

    def decode(self, context, rows, outputs):
        batch = llama_cpp.llama_batch_init(len(rows), 0, 1)
        try:
            batch.n_tokens = len(rows)
            for i, (token, position, stream) in enumerate(rows):
                batch.token[i] = token
                batch.pos[i] = position
                batch.n_seq_id[i] = 1
                batch.seq_id[i][0] = stream
                batch.logits[i] = 0
            for i in outputs:
                batch.logits[i] = 1
            status = llama_cpp.llama_decode(context, batch)
            if status != 0:
                sys.exit(f"llama_decode failed with {status}")
            llama_cpp.llama_synchronize(context)
        finally:
            llama_cpp.llama_batch_free(batch)


def ours(args):
    words = [args.bench, "cpu", "--model", args.model, "--threads", args.threads, "--cells", args.cells, "--rounds", 1, "--stdout"]
    words += ["--quick"] if args.quick else []
    done = subprocess.run(list(map(str, words)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"{args.bench} failed:\n{done.stderr}")
    return json.loads(done.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, type=Path)
    parser.add_argument("--bench", default=Path("target/release/bench"), type=Path)
    parser.add_argument("--threads", default=2, type=int)
    parser.add_argument("--cells", default=",".join(CELLS), help="prefill:TOKENS or decode:STREAMSxCONTEXT, comma separated")
    parser.add_argument("--rounds", default=5, type=int)
    parser.add_argument("--quick", action="store_true", help="few tokens, to see that it works")
    args = parser.parse_args()
    if args.quick:
        args.rounds = 1
    cells = args.cells.split(",")
    llama = Llama(args.model, args.threads)
    rates = {cell: {"ours": [], "llama_cpp": []} for cell in cells}
    shares = {}
    for number in range(args.rounds):
        record = ours(args)
        for cell, row in zip(cells, record["figures"], strict=True):
            if "left_out" in row:
                sys.exit(f"{cell}: {row['left_out']}")
            rates[cell]["ours"].append(row["tokens_per_s"])
            # Of our last round: against memory bandwidth or VNNI peak, as measured beside it.
            shares[cell] = {key: value for key, value in row.items() if key.endswith("_share_percent")}
            rates[cell]["llama_cpp"].append(llama.measure(cell, 8 if args.quick else 64, number))
    print(f"{'cell':<16} {'ours':>10} {'llama.cpp':>10} {'ratio':>7}   tokens/s, medians of {args.rounds}")
    figures = []
    for cell, sides in rates.items():
        ratio = statistics.median(a / b for a, b in zip(sides["ours"], sides["llama_cpp"], strict=True))
        medians = {side: round(statistics.median(values), 1) for side, values in sides.items()}
        rounds = {side: [round(value, 1) for value in values] for side, values in sides.items()}
        print(f"{cell:<16} {medians['ours']:>10} {medians['llama_cpp']:>10} {ratio:>7.2f}")
        figures.append({"cell": cell, "ratio": round(ratio, 3), **medians, **shares[cell], "rounds": rounds})
    record["name"] = "beside-llama-cpp"
    record["flags"] |= {"threads": args.threads, "rounds": args.rounds}
    record["llama_cpp"] = {"package": llama_cpp.__version__, "system": llama_cpp.llama_print_system_info().decode().strip(" |")}
    record["figures"] = figures
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"beside-llama-cpp-{record['date'].replace(':', '')}-{record['commit']}.json"
    path.write_text(json.dumps(record, indent=2) + "\n")
    print(f"written: {path}")


if __name__ == "__main__":
    main()
