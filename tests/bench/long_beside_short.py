"""A long prompt beside short requests: who waits for whom, by scheduler.

    python3 tests/bench/long_beside_short.py --binary target/release/tokenloom --model SmolLM2-135M-Instruct.Q4_1.gguf

Per scheduler, on a server of its own: the long prompt alone; then the same length again with short requests arriving at a
steady pace while it is prefilled; then once more, cancelled in the middle, and how long its pages stay in use. Needs
nothing but Python. Prints a table and writes tests/bench/results/long-beside-short-*.json.
"""

import argparse
import random
import time
from serving import Server, ask, idle, ids, quantile, record, start


def run(args, scheduler):
    rng = random.Random(args.seed)
    server = Server(args.binary, args.model, "--scheduler", scheduler, *args.flag)
    try:
        # The first requests pay for memory and teach the engine what a step costs.
        ask(server, ids(rng, 600), 8)
        ask(server, ids(rng, args.short), 4)
        calm = [ask(server, ids(rng, args.short), args.output).ttft() for _ in range(5)]
        alone = ask(server, ids(rng, args.long), 1).ttft()
        gap = args.gap or alone / (args.count + 2)
        long = start(lambda: ask(server, ids(random.Random(args.seed + 1), args.long), 1))
        time.sleep(0.2)
        shorts = []
        for _ in range(args.count):
            if long.done():
                break
            prompt = ids(rng, args.short)
            shorts.append(start(lambda prompt=prompt: ask(server, prompt, args.output)))
            time.sleep(gap)
        mixed = long.wait()
        shorts = [short.wait() for short in shorts]
        errors = [answer.error for answer in [mixed, *shorts] if answer.error]
        gaps = [gap for short in shorts for gap in short.gaps()]
        idle(server)
        cancelled = start(lambda: ask(server, ids(random.Random(args.seed + 2), args.long), 1, cancel=alone / 4))
        time.sleep(alone / 4 + 0.01)
        sent = time.perf_counter()
        while server.metric("vllm:num_requests_running") > 0 and time.perf_counter() - sent < 10:
            time.sleep(0.002)
        freed = time.perf_counter() - sent
        clean = idle(server)
        cancelled.wait()
        ttft = [short.ttft() for short in shorts]
        return dict(
            scheduler=scheduler,
            long_alone_s=alone,
            long_mixed_s=mixed.ttft(),
            long_factor=mixed.ttft() / alone,
            shorts=len(shorts),
            short_calm_p50_s=quantile(calm, 0.5),
            short_p50_s=quantile(ttft, 0.5),
            short_p95_s=quantile(ttft, 0.95),
            short_p95_of_alone=quantile(ttft, 0.95) / alone,
            short_itl_p50_ms=(quantile(gaps, 0.5) or 0) * 1e3,
            short_itl_p99_ms=(quantile(gaps, 0.99) or 0) * 1e3,
            cancel_to_idle_s=freed,
            pages_free_after=clean,
            errors=errors,
        )
    finally:
        server.close()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--binary", default="target/release/tokenloom")
    p.add_argument("--model", required=True)
    p.add_argument("--schedulers", nargs="+", default=["stall-free", "fcfs"])
    p.add_argument("--long", type=int, default=7000)
    p.add_argument("--short", type=int, default=32)
    p.add_argument("--output", type=int, default=8)
    p.add_argument("--count", type=int, default=20)
    p.add_argument("--gap", type=float, help="seconds between short requests; without it spread over the long prefill")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--flag", action="append", default=[], help="a further word for the server's command line")
    args = p.parse_args()
    figures = [run(args, scheduler) for scheduler in args.schedulers]
    columns = ["long_alone_s", "long_mixed_s", "long_factor", "short_p50_s", "short_p95_s", "short_p95_of_alone", "short_itl_p99_ms", "cancel_to_idle_s"]
    print(f"{'scheduler':<24}" + "".join(f"{column:>20}" for column in columns))
    for figure in figures:
        print(f"{figure['scheduler']:<24}" + "".join(f"{figure[column]:>20.3f}" for column in columns))
        print(f"    {figure['shorts']} short requests, pages free after the cancel: {figure['pages_free_after']}, errors: {figure['errors'] or 'none'}")
    record("long-beside-short", {key: value for key, value in vars(args).items() if key not in ("binary", "model")}, figures)


main()
