"""Two tenants and deadlines on a real server: what `fair` and `deadline` do beside `fcfs`.

    python3 tests/bench/tenants.py --binary target/release/tokenloom --model FILE.gguf

Tenants: `light` sends a request now and then, first beside a `heavy` tenant of its own rate, then beside one that sends ten
times as many; the figure is how much its p95 of the first token grows. Deadlines: requests of mixed length at 90 % of the
prefill rate that the server showed, each with `x-slo-ttft-ms`; the figure is the share of deadlines missed, of those that
earliest deadline first meets when it knows every arrival and loses no time. Needs nothing but Python.
"""

import argparse
import random
import time
from serving import Server, ask, ids, quantile, record, start


def arrivals(rng, seconds, mean):
    at, found = 0.0, []
    while (at := at + rng.expovariate(1 / mean)) < seconds:
        found.append(at)
    return found


def send(server, jobs):
    """Sends (at, prompt, output, headers) in time; answers in the same order."""
    begin, tasks = time.perf_counter(), []
    for at, prompt, output, headers in jobs:
        time.sleep(max(0.0, begin + at - time.perf_counter()))
        tasks.append(start(lambda p=prompt, o=output, h=headers: ask(server, p, o, headers=h)))
    return [task.wait() for task in tasks]


def rate(server, rng):
    """Prompt tokens a second with nothing else running."""
    ask(server, ids(rng, 600), 2)
    return 600 / ask(server, ids(rng, 600), 1).ttft()


def tenants(args, scheduler):
    server = Server(args.binary, args.model, "--scheduler", scheduler, *args.flag)
    try:
        rng = random.Random(args.seed)
        speed = rate(server, rng)
        # The light tenant asks for a twentieth of the prefill rate, so ten times that is half of it.
        mean = args.prompt / (speed / 20)
        light = [(at, ids(rng, args.prompt), 2, {"x-tenant": "light"}) for at in arrivals(rng, args.seconds, mean)]
        found = {}
        for times in (1, 10):
            heavy = [(at, ids(rng, args.prompt), 2, {"x-tenant": "heavy"}) for at in arrivals(rng, args.seconds, mean / times)]
            jobs = sorted(light + heavy, key=lambda job: job[0])
            answers = send(server, jobs)
            ttft = [a.ttft() for a, job in zip(answers, jobs) if job[3]["x-tenant"] == "light"]
            found[times] = quantile(ttft, 0.95)
            found[f"errors_{times}"] = [a.error for a in answers if a.error]
        return dict(scheduler=scheduler, light=len(light), light_p95_s_at_1=found[1], light_p95_s_at_10=found[10],
                    growth=found[10] / found[1], errors=found["errors_1"] + found["errors_10"])
    finally:
        server.close()


def offline(jobs, speed):
    """Which deadlines earliest deadline first meets when it knows everything."""
    opened, met, now, todo = [], set(), 0.0, sorted(range(len(jobs)), key=lambda n: jobs[n]["at"])
    while todo or opened:
        until = jobs[todo[0]]["at"] if todo else float("inf")
        while opened and now < until:
            opened = [job for job in opened if now + job[2] <= job[0]]
            if not opened:
                break
            job = min(opened)
            used = min(job[2], until - now)
            now, job[2] = now + used, job[2] - used
            if job[2] <= 1e-9:
                met.add(job[1])
                opened.remove(job)
        now = max(now, until) if todo else now
        if todo:
            n = todo.pop(0)
            opened.append([jobs[n]["at"] + jobs[n]["due"], n, jobs[n]["prompt"] / speed])
    return met


def deadlines(args, scheduler):
    server = Server(args.binary, args.model, "--scheduler", scheduler, *args.flag)
    try:
        rng = random.Random(args.seed + 1)
        speed = rate(server, rng)
        jobs = []
        for at in arrivals(rng, args.seconds, args.prompt * 2 / (speed * args.load)):
            prompt = rng.randrange(args.prompt // 2, args.prompt * 4 - args.prompt // 2)
            jobs.append(dict(at=at, prompt=prompt, due=0.3 + prompt / speed * rng.uniform(2, 12)))
        sent = [(job["at"], ids(rng, job["prompt"]), 1, {"x-slo-ttft-ms": str(round(job["due"] * 1e3))}) for job in jobs]
        answers = send(server, sent)
        met = offline(jobs, speed)
        late = [n for n, (a, job) in enumerate(zip(answers, jobs)) if a.ttft() is None or a.ttft() > job["due"]]
        missed = sum(n in met for n in late)
        return dict(scheduler=scheduler, asked=len(jobs), tokens_per_s=speed, met_by_offline_edf=len(met), missed=len(late),
                    missed_of_those_percent=100 * missed / max(1, len(met)),
                    refused=sum(a.status == 429 for a in answers), errors=[a.error for a in answers if a.error and a.status != 429])
    finally:
        server.close()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--binary", default="target/release/tokenloom")
    p.add_argument("--model", required=True)
    p.add_argument("--seconds", type=float, default=60)
    p.add_argument("--prompt", type=int, default=100, help="typical length in tokens")
    p.add_argument("--load", type=float, default=0.9)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--flag", action="append", default=[], help="a further word for the server's command line")
    args = p.parse_args()
    figures = dict(tenants=[tenants(args, name) for name in ("fair", "fcfs")], deadlines=[deadlines(args, name) for name in ("deadline", "fcfs")])
    for row in figures["tenants"]:
        print(f"{row['scheduler']:<10} light p95 {row['light_p95_s_at_1']:.3f} s beside its equal, {row['light_p95_s_at_10']:.3f} s beside ten times its load: {row['growth']:.2f} times; errors {row['errors'] or 'none'}")
    for row in figures["deadlines"]:
        print(f"{row['scheduler']:<10} {row['asked']} deadlines, offline EDF meets {row['met_by_offline_edf']}, missed {row['missed']}, of those it meets {row['missed_of_those_percent']:.1f} %; {row['refused']} refused; errors {row['errors'] or 'none'}")
    record("tenants", {key: value for key, value in vars(args).items() if key not in ("binary", "model")}, figures)


main()
