"""One scripted server for most tests, routers with two servers behind them, and one server of a small real model.

`cargo xtask clients` builds the server, keeps the packages of `requirements.txt` and `package.json` in a folder of its
own, and runs this folder with pytest.
"""

import json
import os
import re
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PATIENCE_S = 60
WEATHER = {
    "name": "get_weather",
    "description": "The weather in a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


def pytest_addoption(parser):
    parser.addoption("--binary", required=True, help="the tokenloom binary")
    parser.addoption("--node", required=True, help="folder with node_modules")
    parser.addoption("--model", required=True, help="the demo's model; CI must have it")
    parser.addoption("--bin", required=True, help="folder with the commands of the Python packages")


class Front:
    """A base URL, and the workers that do its work."""

    def __init__(self, name, url, workers):
        self.name, self.url, self.workers = name, url, workers

    def running(self):
        """Requests that run or wait, over all workers."""
        total = 0
        for url in self.workers:
            text = urllib.request.urlopen(f"{url}/metrics", timeout=10).read().decode()
            total += sum(float(n) for n in re.findall(r"^vllm:num_requests_(?:running|waiting)\{[^}]*\} (\S+)$", text, re.M))
        return total

    def until_running(self, wanted):
        until(lambda: (self.running() > 0) == wanted, f"running = {wanted} behind {self.name}")


def until(reached, what):
    end = time.monotonic() + PATIENCE_S
    while not reached():
        assert time.monotonic() < end, f"not within {PATIENCE_S} s: {what}"
        time.sleep(0.05)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def answers(url):
    try:
        return urllib.request.urlopen(url, timeout=5).status == 200
    except (OSError, urllib.error.URLError):
        return False


class Processes:
    def __init__(self, logs):
        self.logs, self.all = logs, []

    def start(self, name, words, ready):
        with open(self.logs / f"{name}.log", "wb") as log:
            child = subprocess.Popen([str(word) for word in words], stdout=log, stderr=subprocess.STDOUT)
        self.all.append(child)

        def up():
            code = child.poll()
            assert code is None, f"{name} ended with {code}: {(self.logs / f'{name}.log').read_text()[-2000:]}"
            return answers(ready)

        until(up, f"{name} answers")

    def end(self):
        for child in self.all:
            child.terminate()
        for child in self.all:
            try:
                child.wait(10)
            except subprocess.TimeoutExpired:
                child.kill()


@pytest.fixture(scope="session")
def processes(tmp_path_factory):
    started = Processes(tmp_path_factory.mktemp("logs"))
    yield started
    started.end()


@pytest.fixture(scope="session")
def serve(request, processes):
    binary = request.config.getoption("--binary")

    def start(name, *flags, source=f"script:{HERE / 'script.json'}"):
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        words = [binary, "serve", source, "--served-model-name", "m", "--port", port, "--tool-call-parser", "hermes"]
        processes.start(name, [*words, *flags], f"{url}/ready")
        return url

    return start


@pytest.fixture(scope="session")
def direct(serve):
    url = serve("server", "--reasoning-parser", "qwen3")
    return Front("direct", url, [url])


@pytest.fixture(scope="session")
def replicas(serve):
    # smg refuses a history that has reasoning under both of its names.
    flags = ["--reasoning-parser", "qwen3", "--reasoning-field", "reasoning_content"]
    return [serve(name, *flags) for name in ("replica-1", "replica-2")]


@pytest.fixture(scope="session")
def smollm2(request, serve):
    """A small real model. Only a machine that is not CI may be without it."""
    model = Path(request.config.getoption("--model"))
    if not model.exists() and not os.environ.get("CI"):
        pytest.skip(f"{model} is missing; `cargo xtask demo` fetches it")
    url = serve("smollm2", source=model)
    return Front("smollm2", url, [url])


@pytest.fixture(scope="session", params=["direct", "smg", "vllm-router"])
def front(request, processes):
    """The server itself, and two of it behind each router."""
    if request.param == "direct":
        return request.getfixturevalue("direct")
    workers = request.getfixturevalue("replicas")
    command = Path(request.config.getoption("--bin")) / request.param
    port, metrics = free_port(), free_port()
    words = [command, "launch"] if request.param == "smg" else [command]
    words += ["--worker-urls", *workers, "--policy", "round_robin", "--host", "127.0.0.1", "--port", port]
    words += ["--prometheus-port", metrics]
    url = f"http://127.0.0.1:{port}"
    processes.start(request.param, words, f"{url}/health")
    until(lambda: answers(f"{url}/v1/models"), f"{request.param} knows its workers")
    return Front(request.param, url, workers)


@pytest.fixture(scope="session")
def node(request, direct):
    """Runs a script of `node/` beside the installed packages."""
    folder = Path(request.config.getoption("--node"))

    def run(name):
        for script in (HERE / "node").glob("*.mjs"):
            shutil.copy(script, folder / script.name)
        words = ["node", name, direct.url, json.dumps(WEATHER)]
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run
