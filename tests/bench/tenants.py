"""Two tenants and deadlines on a real server: what `fair` and `deadline` do beside `fcfs`.

    python3 tests/bench/tenants.py --binary target/release/tokenloom --model FILE.gguf [--parts tenants deadlines]

What the server can do is measured first, by clients that always have requests of the same kind waiting. Tenants: `light`
asks for a share of it, first beside a `heavy` tenant that asks for the same, then beside one that sends ten times as many
requests; the figure is how much the light one's p95 of the first token grows. Deadlines: prompts of mixed length at 90 % of
what the server can do, each with `x-slo-ttft-ms`, the same for each scheduler; the figure is the share of deadlines missed,
of those that earliest deadline first meets when it knows every arrival and loses no time. What the server can do is measured
before and after, and there is no figure when it changed meanwhile. Needs nothing but Python.
"""

import argparse
import random
import time
from serving import Server, ask, ids, quantile, record, start

# Clients while the capacity is measured: enough that a step never ends with nobody waiting.
CLIENTS = 16

# What the capacity may change from one measurement to another. A load of 90 % is up to so much more or less in truth.
CAPACITY_CHANGE_MAX = 0.08

# Of a deadline, whatever the prompt: what HTTP and the steps that run take on any machine. A step without answers takes up to
# five times the target of 50 ms.
DUE_S = 0.3

# Beside it, times what the prompt takes alone. Below the first nobody could be overtaken once, above the second the order
# of arrival would do.
DUE_TIMES = (2, 12)


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


def capacity(server, rng, length, output, seconds):
    """Prompt tokens a second while there is always somebody waiting, from one answer to another."""
    until, ends, errors = time.perf_counter() + seconds, [], []

    def client(rng):
        while time.perf_counter() < until and not errors:
            prompt = length(rng)
            answer = ask(server, ids(rng, prompt), output)
            errors.extend([answer.error] if answer.error else [])
            ends.extend((stamp, prompt) for stamp in answer.stamps[-1:])

    # Each with its own numbers: who is served when does not change what is asked for.
    clients = [start(lambda rng=random.Random(rng.random()): client(rng)) for _ in range(CLIENTS)]
    for one in clients:
        one.wait()
    if errors:
        raise SystemExit(f"while the capacity was measured: {errors[0]}")
    # Without the first answers, until which nothing was waiting, and those to the last requests, behind which nothing is.
    ends = sorted(end for end in ends if end[0] < until)[CLIENTS:]
    if len(ends) < CLIENTS:
        raise SystemExit(f"{len(ends)} answers in {seconds} s are too few for a capacity: give more --capacity-seconds")
    return sum(prompt for _, prompt in ends[1:]) / (ends[-1][0] - ends[0][0])


def tenants(args, scheduler):
    server = Server(args.binary, args.model, "--scheduler", scheduler, *args.flag)
    try:
        rng = random.Random(args.seed)
        speed = capacity(server, rng, lambda _: args.prompt, 2, args.capacity_seconds)
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


def due_jobs(args, length, speed):
    """Arrivals by chance whose prompts are the wanted load to the token: by chance alone it would be some per cent off."""
    rng, at, jobs = random.Random(args.seed), 0.0, []
    while sum(job["prompt"] for job in jobs) < args.load * speed * args.seconds:
        at, prompt = at + rng.expovariate(1), length(rng)
        jobs.append(dict(at=at, prompt=prompt, due=DUE_S + prompt / speed * rng.uniform(*DUE_TIMES)))
    end = at + rng.expovariate(1)
    return [dict(job, at=job["at"] * args.seconds / end) for job in jobs]


def deadlines(args, scheduler, length, jobs=None):
    """Sends the jobs, made for what this server can do if there are none yet; their answers, and the prompt tokens a second
    that it computed before, meanwhile (while it computed at all) and after."""
    server = Server(args.binary, args.model, "--scheduler", scheduler, *args.flag)
    try:
        rng = random.Random(args.seed + 1)
        measure = lambda: capacity(server, rng, length, 1, args.capacity_seconds)
        steps = lambda: [server.metric(name) for name in ("vllm:iteration_tokens_total_sum", "tokenloom_step_seconds_sum")]
        # The first seconds of a server are not like the others.
        measure()
        before = measure()
        jobs = jobs or due_jobs(args, length, before)
        sent = [(job["at"], ids(rng, job["prompt"]), 1, {"x-slo-ttft-ms": str(round(job["due"] * 1e3))}) for job in jobs]
        tokens, seconds = steps()
        answers = send(server, sent)
        tokens, seconds = (now - then for now, then in zip(steps(), (tokens, seconds)))
        return jobs, answers, [before, tokens / seconds, measure()]
    finally:
        server.close()


def steady(speeds):
    """Ends the run when the machine's own ups and downs would be taken for a scheduler's."""
    if max(speeds) > min(speeds) * (1 + CAPACITY_CHANGE_MAX):
        raise SystemExit(f"no figure: the server computed {', '.join(f'{speed:.0f}' for speed in speeds)} tokens/s, one after another. "
                         f"More than {CAPACITY_CHANGE_MAX:.0%} apart, the load is not the one that was asked for: leave the machine alone and try again.")


def beside_offline(args):
    # From a quarter of the typical length to seven quarters.
    length = lambda rng: rng.randrange(args.prompt // 4, args.prompt * 7 // 4)
    jobs, answers, speeds = deadlines(args, args.deadline, length)
    steady(speeds)
    runs = [(args.deadline, answers, speeds)]
    _, answers, speeds_beside = deadlines(args, "fcfs", length, jobs)
    steady(speeds + speeds_beside)
    runs.append(("fcfs", answers, speeds_beside))
    # One load and one capacity for both, that which the policy in question had around its run.
    speed = (speeds[0] + speeds[2]) / 2
    met, offered = offline(jobs, speed), sum(job["prompt"] for job in jobs) / (speed * args.seconds)
    rows = []
    for scheduler, answers, (before, meanwhile, after) in runs:
        late = [n for n, (a, job) in enumerate(zip(answers, jobs)) if a.ttft() is None or a.ttft() > job["due"]]
        missed = sum(n in met for n in late)
        # With 429, or on a stream that was open already.
        refused = [a.status == 429 or "deadline-unreachable" in (a.error or "") for a in answers]
        rows.append(dict(scheduler=scheduler, asked=len(jobs), offered_load=offered, tokens_per_s=speed, tokens_per_s_before=before,
                         tokens_per_s_meanwhile=meanwhile, tokens_per_s_after=after, met_by_offline_edf=len(met), missed=len(late),
                         missed_of_those_percent=100 * missed / max(1, len(met)), refused=sum(refused),
                         errors=[a.error for a, was in zip(answers, refused) if a.error and not was]))
    return rows


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--binary", default="target/release/tokenloom")
    p.add_argument("--model", required=True)
    p.add_argument("--parts", nargs="+", default=["tenants", "deadlines"], choices=["tenants", "deadlines"])
    p.add_argument("--seconds", type=float, default=60)
    p.add_argument("--prompt", type=int, default=300, help="typical length in tokens")
    p.add_argument("--share", type=float, default=0.4, help="what the light tenant asks for, of what the server can do")
    p.add_argument("--load", type=float, default=0.9, help="of requests with deadlines")
    p.add_argument("--capacity-seconds", type=float, default=20, help="of each measurement of what the server can do")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--flag", action="append", default=[], help="a further word for the server's command line, as in --flag=--threads --flag=1")
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
        figures["deadlines"] = beside_offline(args)
        for row in figures["deadlines"]:
            print(f"{row['scheduler']:<10} {row['asked']} deadlines at a load of {row['offered_load']:.3f}, offline EDF meets {row['met_by_offline_edf']}, missed {row['missed']}, of those it meets {row['missed_of_those_percent']:.1f} %; {row['refused']} refused; errors {row['errors'] or 'none'}")
    record("tenants", {key: value for key, value in vars(args).items() if key not in ("binary", "model")}, figures)


if __name__ == "__main__":
    main()
