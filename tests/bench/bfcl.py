"""Gold calls of the Berkeley Function-Calling Leaderboard, written in each tool-call format and read back.

    python3 tests/bench/bfcl.py            # a table of the bundled stages; exit 1 unless all are equal
    python3 tests/bench/bfcl.py --peers    # the same texts with the parsers of two other projects too

The tables go to `results/` as JSON. Peers are the crates `tool-parser` and `dynamo-parsers`, built by `peers/`, a
workspace of its own. What was written is left in `bfcl-rendered.jsonl` in the build folder.

The data comes with the package `bfcl-eval`, which is installed into a folder of its own under the build folder; nothing
of the package is run. Its schemas are Python's (`dict`, `float`, `tuple`) and become JSON Schema here; of several
answers that it accepts the first is the gold call.
"""

import datetime
import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "bfcl-eval==2026.3.23"
SETS = {
    "simple": "BFCL_v4_simple_python.json",
    "multiple": "BFCL_v4_multiple.json",
    "parallel": "BFCL_v4_parallel.json",
    "parallel_multiple": "BFCL_v4_parallel_multiple.json",
}
TYPES = {"dict": "object", "float": "number", "tuple": "array", "list": "array", "bool": "boolean", "int": "integer", "str": "string"}


def data(build):
    folder = build / "bfcl"
    if not (folder / "bfcl_eval").is_dir():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), PACKAGE]
        subprocess.run(pip, check=True)
    return folder / "bfcl_eval" / "data"


def schema(node):
    """A schema as JSON Schema has it; a type that it does not have stays open."""
    if isinstance(node, list):
        return [schema(item) for item in node]
    if not isinstance(node, dict):
        return node
    out = {}
    for key, value in node.items():
        if key == "type" and isinstance(value, str):
            kind = TYPES.get(value.lower(), value.lower())
            if kind != "any":
                out["type"] = kind
        elif key == "properties":
            out["properties"] = {name: schema(inner) for name, inner in value.items()}
        else:
            out[key] = schema(value)
    return out


def chosen(alternatives):
    """The first answer that is not the word for `may be left out`; `None` where it may only be left out."""
    kept = [value for value in alternatives if value != ""]
    return plain(kept[0]) if kept else None


def plain(value):
    """Inside an answer, the members of an object are lists of alternatives again."""
    if isinstance(value, dict):
        members = {key: chosen(inner) if isinstance(inner, list) else inner for key, inner in value.items()}
        return {key: inner for key, inner in members.items() if inner is not None}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value


def items(folder):
    for name, file in SETS.items():
        questions = [json.loads(line) for line in (folder / file).read_text().splitlines()]
        answers = {}
        for line in (folder / "possible_answer" / file).read_text().splitlines():
            answer = json.loads(line)
            answers[answer["id"]] = answer["ground_truth"]
        for question in questions:
            tools = [{"name": tool["name"], "schema": schema(tool["parameters"])} for tool in question["function"]]
            calls = []
            for call in answers[question["id"]]:
                for function, arguments in call.items():
                    picked = {key: chosen(values) for key, values in arguments.items()}
                    calls.append({"name": function, "arguments": {key: value for key, value in picked.items() if value is not None}})
            yield {"id": question["id"], "set": name, "tools": tools, "calls": calls}


KINDS = {"string": str, "integer": int, "number": (int, float), "boolean": bool, "array": list, "object": dict}


def contradicts(item):
    """A gold call with an undeclared argument, or one of another type than its own schema says, is no call of that tool."""
    schemas = {tool["name"]: tool["schema"] for tool in item["tools"]}
    for call in item["calls"]:
        declared = schemas[call["name"]]["properties"]
        for key, value in call["arguments"].items():
            kind = declared.get(key, {"type": None}).get("type", "any")
            wanted = KINDS.get(kind, object) if kind else ()
            if not isinstance(value, wanted) or (isinstance(value, bool) and kind in ("integer", "number")):
                return f"{item['id']}: `{key}` of `{call['name']}` is {json.dumps(value)}, declared {kind}"
    return None


def main():
    build = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    build.mkdir(parents=True, exist_ok=True)
    gold, rendered = build / "bfcl-gold.jsonl", build / "bfcl-rendered.jsonl"
    lines = []
    for item in items(data(build)):
        if reason := contradicts(item):
            print("left out:", reason)
        else:
            lines.append(json.dumps(item, ensure_ascii=False))
    gold.write_text("\n".join(lines) + "\n")
    print(f"{len(lines)} answers of {PACKAGE}", flush=True)
    scores, ok = ours(gold, rendered)
    if "--peers" in sys.argv[1:]:
        scores.update(peers(build, rendered))
    table(scores)
    commit = subprocess.run(["git", "describe", "--always", "--dirty", "--abbrev=12"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    date = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H%M%SZ")
    result = {"name": "bfcl", "date": date, "commit": commit, "package": PACKAGE, "answers": len(lines), "equal_of_all": scores}
    path = ROOT / "tests/bench/results" / f"bfcl-{date}-{commit}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    print("written:", path)
    return 0 if ok else 1


def ours(gold, rendered):
    """Streamed in three cuttings, and nothing but the calls may come out: format, set, equal and all."""
    cargo = ["cargo", "run", "--quiet", "--package", "cases", "--example", "score", "--", str(gold), str(rendered)]
    run = subprocess.run(cargo, cwd=ROOT / "plugins", stdout=subprocess.PIPE, text=True)
    head, *rows = run.stdout.splitlines()
    sets, scores = head.split()[1:], {}
    for row in rows:
        cells = row.split()
        counts = [list(map(int, cell.split("/"))) for cell in cells[-len(sets):]]
        scores[" ".join(cells[: -len(sets)])] = dict(zip(sets, counts))
    return {"tokenloom": scores}, run.returncode == 0 and bool(rows)


def peers(build, rendered):
    """Whole texts at once, and text beside the calls does not count."""
    cargo = ["cargo", "run", "--quiet", "--locked", "--target-dir", str(build / "peers"), "--", str(rendered)]
    run = subprocess.run(cargo, cwd=ROOT / "tests/bench/peers", stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(run.stdout)


def table(scores):
    formats = scores["tokenloom"]
    print(f"{'format':<28}" + "".join(f"{parser:>16}" for parser in scores))
    for name in formats:
        cells = []
        for parser in scores.values():
            counts = parser.get(name, {}).values()
            cells.append(f"{sum(c[0] for c in counts)}/{sum(c[1] for c in counts)}" if counts else "-")
        print(f"{name:<28}" + "".join(f"{cell:>16}" for cell in cells))


sys.exit(main())
