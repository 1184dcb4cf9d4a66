"""What the scheduling benchmarks share: a server as a child process, timed streams, percentiles and a record."""

import http.client
import json
import platform
import random
import re
import socket
import subprocess
import threading
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
RESULTS = Path(__file__).parent / "results"


class Server:
    """A `tokenloom serve` of its own; leaves with `close`."""

    def __init__(self, binary, model, *flags):
        command = [str(binary), "serve", str(model), "--port", "0", "--served-model-name", "m", *map(str, flags)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.lines, self.port = [], None
        for line in self.process.stdout:
            self.lines.append(line.rstrip())
            found = re.search(r"http://[^:/]+:(\d+)", line)
            if found:
                self.port = int(found.group(1))
                break
        if self.port is None:
            raise RuntimeError("the server did not start:\n" + "\n".join(self.lines[-20:]))
        # A pipe that nobody reads stops the server in the end.
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.process.stdout:
            self.lines.append(line.rstrip())

    def get(self, path):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("GET", path)
        text = connection.getresponse().read().decode()
        connection.close()
        return text

    def metric(self, name):
        """The sum of a metric over its labels."""
        found = re.findall(rf"^{re.escape(name)}(?:\{{[^}}]*\}})? ([0-9.eE+-]+)$", self.get("/metrics"), re.M)
        return sum(map(float, found))

    def close(self, wait=True):
        """Without `wait`, open answers are not ended first."""
        self.process.terminate() if wait else self.process.kill()
        self.process.wait(60)


class Answer:
    """When a request was sent, and when its tokens came."""

    def __init__(self):
        self.sent, self.stamps, self.status, self.error = time.perf_counter(), [], None, None

    def ttft(self):
        return self.stamps[0] - self.sent if self.stamps else None

    def gaps(self):
        return [after - before for before, after in zip(self.stamps, self.stamps[1:])]


def ask(server, prompt, tokens, headers=None, cancel=None, **fields):
    """Streams one completion of forced length. `cancel`: seconds, or a number of tokens when it is an integer."""
    body = dict(model="m", prompt=prompt, max_tokens=tokens, temperature=0, stream=True, ignore_eos=True, **fields)
    answer = Answer()
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=600)
    timer = None
    try:
        connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json", **(headers or {})})
        if isinstance(cancel, float):
            # The connection forgets its socket as soon as the response's head is there.
            sock = connection.sock
            timer = threading.Timer(cancel, lambda: sock.shutdown(socket.SHUT_RDWR))
            timer.start()
        response = connection.getresponse()
        answer.status = response.status
        if response.status != 200:
            answer.error = response.read().decode()[:300]
            return answer
        while line := response.readline():
            if line.startswith(b"data: {"):
                if b'"error"' in line:
                    answer.error = line.decode()[:300]
                    return answer
                answer.stamps.append(time.perf_counter())
                if isinstance(cancel, int) and len(answer.stamps) >= cancel:
                    return answer
    except (OSError, http.client.HTTPException, AttributeError) as error:
        if cancel is None:
            answer.error = repr(error)
    finally:
        if timer:
            timer.cancel()
        connection.close()
    return answer


def start(work):
    """Runs `work` on a thread; `wait` of the result gives its value."""

    class Task:
        def __init__(self):
            self.value = None
            self.thread = threading.Thread(target=self._run, daemon=True)
            self.thread.start()

        def _run(self):
            self.value = work()

        def done(self):
            return not self.thread.is_alive()

        def wait(self):
            self.thread.join()
            return self.value

    return Task()


def ids(rng: random.Random, count, vocab=30_000):
    """Fresh random token ids, which every common vocabulary has: nothing hits a prefix cache by chance."""
    return [rng.randrange(1000, vocab) for _ in range(count)]


def quantile(values, share):
    values = sorted(value for value in values if value is not None)
    return values[min(len(values) - 1, round(share * (len(values) - 1)))] if values else None


def idle(server, seconds=30):
    """Waits until nothing runs; answers whether every page is free or cached."""
    until = time.time() + seconds
    while time.time() < until:
        if server.metric("vllm:num_requests_running") == 0 and server.metric("vllm:num_requests_waiting") == 0:
            return server.metric("vllm:kv_cache_usage_perc") == 0
        time.sleep(0.05)
    return False


def record(name, flags, figures):
    """Writes the figures with commit and machine to tests/bench/results."""
    def output(*words):
        return subprocess.run(words, cwd=ROOT, capture_output=True, text=True).stdout.strip()

    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    commit = output("git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*") or "unknown"
    found = dict(
        name=name,
        date=output("date", "-u", "+%Y-%m-%dT%H:%M:%SZ"),
        commit=commit,
        hardware=dict(cpu=cpu.group(1) if cpu else platform.processor(), cores=len(__import__("os").sched_getaffinity(0))),
        flags=flags,
        figures=figures,
    )
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}-{found['date'].replace(':', '')}-{commit}.json"
    path.write_text(json.dumps(found, indent=2) + "\n")
    print(f"written: {path.relative_to(ROOT)}")
