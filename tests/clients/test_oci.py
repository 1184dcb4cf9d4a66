"""Plugins from a real registry: pushed, pulled by digest, served, and refused in each way that a registry can fail."""

import json
import os
import re
import shutil
import subprocess
import urllib.error
import urllib.request

import pytest

from conftest import HERE, free_port, until

DIST = HERE.parent.parent / "plugins/dist"
CALL = "The weather in Paris?"


@pytest.fixture(scope="module")
def registry(processes, tmp_path_factory):
    """Only a machine that is not CI may be without one."""
    own = shutil.which("docker-registry")
    if not own and not os.environ.get("CI"):
        pytest.skip("docker-registry is missing (on Debian: `bash xtask/ci-tools.sh`)")
    return start(processes, own, tmp_path_factory.mktemp("registry"), "")


def start(processes, own, folder, more):
    port = free_port()
    (folder / "config.yml").write_text(
        "version: 0.1\nlog: {level: error}\n"
        f"storage: {{filesystem: {{rootdirectory: {folder}/data}}}}\nhttp: {{addr: '127.0.0.1:{port}'}}\n{more}"
    )
    log = open(folder / "log", "wb")
    child = subprocess.Popen([own, "serve", str(folder / "config.yml")], stdout=log, stderr=subprocess.STDOUT)
    processes.all.append(child)
    until(lambda: reachable(f"http://127.0.0.1:{port}/v2/"), "the registry answers")
    return f"127.0.0.1:{port}", folder / "data"


def reachable(url):
    try:
        urllib.request.urlopen(url, timeout=5)
        return True
    except urllib.error.HTTPError as error:
        return error.code == 401
    except OSError:
        return False


@pytest.fixture(scope="module")
def tokenloom(request):
    binary = request.config.getoption("--binary")

    def run(*words):
        done = subprocess.run([binary, "plugin", *map(str, words)], capture_output=True, text=True, timeout=120)
        return done.returncode, done.stdout.strip(), done.stderr

    return run


@pytest.fixture(scope="module")
def pushed(registry, tokenloom, tmp_path_factory):
    folder = tmp_path_factory.mktemp("plugin")
    for ending in ("wasm", "toml"):
        shutil.copy(DIST / f"hermes.{ending}", folder / f"hermes.{ending}")
    (folder / "hermes.cases.jsonl").write_text("{}\n")
    code, reference, errors = tokenloom("push", folder / "hermes.wasm", f"oci://{registry[0]}/team/hermes")
    assert code == 0, errors
    assert re.fullmatch(r"oci://127\.0\.0\.1:\d+/team/hermes@sha256:[0-9a-f]{64}", reference)
    return reference


def test_pull(pushed, tokenloom, tmp_path):
    code, path, errors = tokenloom("pull", pushed, "--to", tmp_path)
    assert (code, path) == (0, str(tmp_path / "hermes.wasm")), errors
    assert (tmp_path / "hermes.wasm").read_bytes() == (DIST / "hermes.wasm").read_bytes()
    assert (tmp_path / "hermes.toml").read_bytes() == (DIST / "hermes.toml").read_bytes()
    assert (tmp_path / "hermes.cases.jsonl").read_text() == "{}\n"


def config(folder, reference, cache):
    (folder / "tokenloom.toml").write_text(
        f"[server]\nplugin_cache = '{cache}'\n[engine.main]\nsource = 'script:{HERE / 'script.json'}'\n"
        f"[[model]]\nname = 'm'\noutput = ['parser']\n[plugin.parser]\ncomponent = '{reference}'\n"
    )
    return folder / "tokenloom.toml"


def serve(request, processes, name, folder, reference, cache):
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    words = [request.config.getoption("--binary"), "serve", "--config", config(folder, reference, cache), "--port", port]
    processes.start(name, words, f"{url}/ready")
    return url


def called(url):
    tools = [{"type": "function", "function": {"name": "get_weather"}}]
    body = {"model": "m", "messages": [{"role": "user", "content": CALL}], "tools": tools}
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"})
    message = json.load(urllib.request.urlopen(request, timeout=60))["choices"][0]["message"]
    return message["tool_calls"][0]["function"]["name"]


def test_serve_and_serve_again_offline(request, processes, pushed, tmp_path):
    assert called(serve(request, processes, "oci", tmp_path, pushed, tmp_path / "cache")) == "get_weather"
    # Nobody listens there; what the digest names is in the cache.
    gone = re.sub(r":\d+/", f":{free_port()}/", pushed, count=1)
    assert called(serve(request, processes, "oci-offline", tmp_path, gone, tmp_path / "cache")) == "get_weather"
    # A file of the cache that is not what the digest says is fetched again, and cannot be without the registry.
    (damaged,) = (tmp_path / "cache/oci").glob("*/parser.wasm")
    damaged.write_bytes(b"x")
    binary = request.config.getoption("--binary")
    words = [binary, "serve", "--config", str(config(tmp_path, gone, tmp_path / "cache"))]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "cannot be reached" in done.stderr, done.stderr


def test_refusals(pushed, registry, tokenloom, tmp_path):
    def refused(reference, *needles):
        code, _, errors = tokenloom("pull", reference, "--to", tmp_path)
        assert code == 1 and all(needle in errors for needle in needles), errors

    place, _, digest = pushed.rpartition(":")
    refused(f"{place}:{'0' * 64}", "does not have it")
    refused(pushed.replace("team/hermes", "team/nothing"), "does not have it")
    refused(pushed.split("@")[0] + ":latest", "is no reference to a plugin", "@sha256:DIGEST")
    refused(pushed.replace(registry[0], f"127.0.0.1:{free_port()}"), "cannot be reached")
    assert not list(tmp_path.iterdir()), "nothing is left of what was refused"


def test_a_registry_that_lies(pushed, registry, tokenloom, tmp_path):
    """Its blob is another one than the digest says."""
    data = registry[1] / "docker/registry/v2/blobs/sha256"
    blob = next(path for path in data.glob("*/*/data") if path.read_bytes() == (DIST / "hermes.wasm").read_bytes())
    whole = blob.read_bytes()
    blob.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    try:
        code, _, errors = tokenloom("pull", pushed, "--to", tmp_path)
    finally:
        blob.write_bytes(whole)
    assert code == 1 and "has the digest sha256:" in errors, errors
    assert not list(tmp_path.iterdir())


def test_logins(processes, tokenloom, tmp_path_factory, registry):
    folder = tmp_path_factory.mktemp("locked")
    # The password `secret`, as `htpasswd -B` writes it.
    (folder / "users").write_text("user:$2y$05$abcdefghijklmnopqrstuuOQiyCxlgf/oeuTqixKmWdcYUh4Hjl0a\n")
    more = f"auth: {{htpasswd: {{realm: test, path: {folder}/users}}}}\n"
    host, _ = start(processes, shutil.which("docker-registry"), folder, more)

    def push(*logins):
        return tokenloom("push", DIST / "hermes.wasm", f"oci://{host}/hermes", *logins)

    code, _, errors = push()
    assert code == 1 and "refuses the access" in errors and "registry_logins" in errors, errors
    # "user:secret"; a login for another registry is not sent here.
    for at, expected in ((host, 0), ("elsewhere", 1)):
        (folder / "logins.json").write_text(json.dumps({"auths": {at: {"auth": "dXNlcjpzZWNyZXQ="}}}))
        code, reference, errors = push("--logins", folder / "logins.json")
        assert code == expected, errors
        if code == 0:
            code, _, errors = tokenloom("pull", reference, "--to", folder / "to", "--logins", folder / "logins.json")
            assert code == 0, errors
