"""18 rounds, 250 requests, one seed: what single tests do not meet, for two schedulers on the same requests.

    python3 tests/bench/stress.py --binary target/release/tokenloom --model FILE.gguf [--schedulers stall-free fcfs]

Each round mixes a long prefill with short requests put in between, cancels in every state, two streams and requests of
mixed length. Afterwards nothing may be left: no error, no running request, every page free or cached. Needs nothing but
Python; `script:FILE.json` serves as a model too. Prints p95s per kind and writes tests/bench/results/stress-*.json.
"""

import argparse
import random
import time
from serving import Server, ask, idle, ids, quantile, record, start

ROUNDS = 18
# Requests of a round by kind; 250 over all rounds with the extra ones of the last.
KINDS = dict(long=1, short=5, cancelled=2, stream=2, mixed=3)


def plan(args):
    """The same rounds for every scheduler: (delay, kind, prompt tokens, output tokens, cancel)."""
    rng = random.Random(args.seed)
    rounds = []
    for number in range(ROUNDS):
        wanted = [kind for kind, count in KINDS.items() for _ in range(count)]
        wanted += ["mixed"] * 16 if number == ROUNDS - 1 else []
        one = []
        for kind in wanted:
            if kind == "long":
                job = (0.0, args.long, 4, None)
            elif kind == "short":
                job = (rng.random() * args.spread, rng.randrange(8, 64), 8, None)
            elif kind == "cancelled":
                # While it waits or is prefilled, or after a few tokens.
                cancel = rng.random() * args.spread if rng.random() < 0.6 else rng.randrange(1, 4)
                job = (rng.random() * args.spread, rng.randrange(100, args.long), 64, cancel)
            elif kind == "stream":
                job = (0.0, rng.randrange(20, 100), 60, None)
            else:
                job = (rng.random() * args.spread, rng.choice([5, 40, 200, 600]), rng.choice([1, 4, 20]), None)
            one.append((kind, *job, rng.randrange(1 << 30)))
        rounds.append(sorted(one, key=lambda job: job[1]))
    return rounds


def run(args, scheduler, rounds):
    server = Server(args.binary, args.model, "--scheduler", scheduler, *args.flag)
    answers, dirty, started = {kind: [] for kind in KINDS}, [], time.perf_counter()
    try:
        for number, jobs in enumerate(rounds):
            tasks, begin = [], time.perf_counter()
            for kind, delay, prompt, output, cancel, seed in jobs:
                time.sleep(max(0.0, begin + delay - time.perf_counter()))
                prompt = ids(random.Random(seed), prompt)
                tasks.append((kind, start(lambda p=prompt, o=output, c=cancel: ask(server, p, o, cancel=c))))
            for kind, task in tasks:
                answers[kind].append(task.wait())
            if not idle(server):
                dirty.append(number)
        metric = server.metric
        figures = dict(
            scheduler=scheduler,
            requests=sum(map(len, answers.values())),
            seconds=round(time.perf_counter() - started, 1),
            errors=[a.error for kind, all in answers.items() for a in all if a.error and kind != "cancelled"],
            rounds_with_leaks=dirty,
            preemptions=metric("vllm:num_preemptions_total"),
            fallbacks=metric("tokenloom_policy_fallbacks_total"),
            violations=metric("tokenloom_policy_violations_total"),
        )
        for kind, all in answers.items():
            figures[f"{kind}_ttft_p95_s"] = quantile([a.ttft() for a in all], 0.95)
            gaps = quantile([gap for a in all for gap in a.gaps()], 0.95)
            figures[f"{kind}_itl_p95_ms"] = gaps and gaps * 1e3
        return figures
    finally:
        server.close()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--binary", default="target/release/tokenloom")
    p.add_argument("--model", required=True)
    p.add_argument("--schedulers", nargs="+", default=["stall-free", "fcfs"])
    p.add_argument("--long", type=int, default=1500)
    p.add_argument("--spread", type=float, default=2.0, help="seconds over which a round's requests arrive")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--flag", action="append", default=[], help="a further word for the server's command line")
    args = p.parse_args()
    rounds = plan(args)
    figures = [run(args, scheduler, rounds) for scheduler in args.schedulers]
    names = [f"{kind}_{what}" for kind in KINDS for what in ("ttft_p95_s", "itl_p95_ms")]
    print(f"{'':<24}" + "".join(f"{figure['scheduler']:>16}" for figure in figures))
    for name in ["requests", "seconds", *names, "preemptions", "fallbacks", "violations"]:
        cells = [figure[name] for figure in figures]
        print(f"{name:<24}" + "".join(f"{cell:>16.3f}" if cell is not None else f"{'-':>16}" for cell in cells))
    for figure in figures:
        print(f"{figure['scheduler']}: errors {figure['errors'] or 'none'}, rounds with leaks {figure['rounds_with_leaks'] or 'none'}")
    record("stress", {key: value for key, value in vars(args).items() if key not in ("binary", "model")}, figures)
    if any(figure["errors"] or figure["rounds_with_leaks"] for figure in figures):
        raise SystemExit(1)


main()
