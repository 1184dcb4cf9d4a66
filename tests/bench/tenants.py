"""Two tenants and deadlines on a real server: what `fair` and `deadline` do beside `fcfs`.

    python3 tests/bench/tenants.py --binary target/release/tokenloom --model FILE.gguf [--parts tenants deadlines]

What the server can do is measured first, by a burst of the same requests. Tenants: `light` asks for a share of it, first
beside a `heavy` tenant that asks for the same, then beside one that sends ten times as many requests; the figure is how
much the light one's p95 of the first token grows. Deadlines: prompts of mixed length at 90 % of what the server can do,
each with `x-slo-ttft-ms`; the figure is the share of deadlines missed, of those that earliest deadline first meets when it
knows every arrival and loses no time. Needs nothing but Python.
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


def send(server, jobs, waited=lambda job: True):
    """Sends (at, prompt, output, headers) in time; the answers to those that are waited for, in the same order."""
    begin, tasks = time.perf_counter(), []
    for job in jobs:
        at, prompt, output, headers = job
        time.sleep(max(0.0, begin + at - time.perf_counter()))
        tasks.append((job, start(lambda p=prompt, o=output, h=headers: ask(server, p, o, headers=h))))
    return [task.wait() for job, task in tasks if waited(job)]


def capacity(server, rng, prompts, output):
    """Prompt tokens a second when there is always somebody waiting."""
    ask(server, ids(rng, 600), 2)
    started = time.perf_counter()
    send(server, [(0.0, ids(rng, prompt), output, {}) for prompt in prompts])
    return sum(prompts) / (time.perf_counter() - started)


def tenants(args, scheduler):
    server = Server(args.binary, args.model, "--scheduler", scheduler, *args.flag)
    try:
        rng = random.Random(args.seed)
        speed = capacity(server, rng, [args.prompt] * 24, 2)
        mean = args.prompt / (speed * args.share)
        light = [(at, ids(rng, args.prompt), 2, {"x-tenant": "light"}) for at in arrivals(rng, args.seconds, mean)]
        if not light:
            raise SystemExit(f"no request of the light tenant in {args.seconds} s at {speed:.0f} tokens/s: give more --seconds")
        found = {}
        for times in (1, 10):
            heavy = [(at, ids(rng, args.prompt), 2, {"x-tenant": "heavy"}) for at in arrivals(rng, args.seconds, mean / times)]
            jobs = sorted(light + heavy, key=lambda job: job[0])
            # What the heavy tenant has sent too much is still waiting at the end: nobody waits for it.
            answers = send(server, jobs, waited=lambda job: job[3]["x-tenant"] == "light")
            found[times] = dict(
                heavy=len(heavy),
                light_p50_s=quantile([a.ttft() for a in answers], 0.5),
                light_p95_s=quantile([a.ttft() for a in answers], 0.95),
                errors=[a.error for a in answers if a.error],
            )
        return dict(scheduler=scheduler, tokens_per_s=speed, light=len(light), beside_its_equal=found[1], beside_ten_times=found[10],
                    growth=found[10]["light_p95_s"] / found[1]["light_p95_s"])
    finally:
        # What the heavy tenant has sent too much is of no interest.
        server.close(wait=False)


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
        # From a quarter of the typical length to seven quarters.
        length = lambda: rng.randrange(args.prompt // 4, args.prompt * 7 // 4)
        speed = capacity(server, rng, [length() for _ in range(24)], 1)
        jobs = []
        for at in arrivals(rng, args.seconds, args.prompt / (speed * args.load)):
            prompt = length()
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
    p.add_argument("--parts", nargs="+", default=["tenants", "deadlines"], choices=["tenants", "deadlines"])
    p.add_argument("--seconds", type=float, default=60)
    p.add_argument("--prompt", type=int, default=300, help="typical length in tokens")
    p.add_argument("--share", type=float, default=0.4, help="what the light tenant asks for, of what the server can do")
    p.add_argument("--load", type=float, default=0.9, help="of requests with deadlines")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--flag", action="append", default=[], help="a further word for the server's command line")
    p.add_argument("--fair", default="fair", help="the policy for tenants: a name or a file")
    p.add_argument("--deadline", default="deadline", help="the policy for deadlines: a name or a file")
    args = p.parse_args()
    figures = {}
    if "tenants" in args.parts:
        figures["tenants"] = []
        for name in (args.fair, "fcfs"):
            row = tenants(args, name)
            figures["tenants"].append(row)
            before, after = row["beside_its_equal"], row["beside_ten_times"]
            errors = before["errors"] + after["errors"]
            print(f"{row['scheduler']:<10} light p95 {before['light_p95_s']:.3f} s beside its equal, {after['light_p95_s']:.3f} s beside ten times its load: {row['growth']:.2f} times; errors {errors or 'none'}")
    if "deadlines" in args.parts:
        figures["deadlines"] = []
        for name in (args.deadline, "fcfs"):
            row = deadlines(args, name)
            figures["deadlines"].append(row)
            print(f"{row['scheduler']:<10} {row['asked']} deadlines, offline EDF meets {row['met_by_offline_edf']}, missed {row['missed']}, of those it meets {row['missed_of_those_percent']:.1f} %; {row['refused']} refused; errors {row['errors'] or 'none'}")
    record("tenants", {key: value for key, value in vars(args).items() if key not in ("binary", "model")}, figures)


main()
