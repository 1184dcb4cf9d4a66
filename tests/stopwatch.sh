#!/usr/bin/env bash
# From `plugin new` to a parser on a running server, as docs/plugins.md says it, with a stopwatch beside it.
#
# usage: tests/stopwatch.sh TOKENLOOM [LANGUAGE...]
# Runs the lines of that page's block `sh first-plugin` for each language in an empty folder and writes the transcript to
# docs/stopwatch.md. Fails when a line fails, when the answer is not the parser's, or when a language takes ten minutes.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
binary=$(realpath "${1:?usage: tests/stopwatch.sh TOKENLOOM [LANGUAGE...]}")
shift
languages=("$@")
[ ${#languages[@]} -gt 0 ] || languages=(rust c python javascript)
page=$root/docs/plugins.md
transcript=$root/docs/stopwatch.md
limit_s=600
port=$((20000 + RANDOM % 20000))
# Nothing that an earlier build left, and no cache of compiled components.
unset CARGO_TARGET_DIR
scratch=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server" 2>/dev/null || true; rm -rf "$scratch"' EXIT
# The tools stay where they are; what they and tokenloom cache is new.
export CARGO_HOME=${CARGO_HOME:-$HOME/.cargo} RUSTUP_HOME=${RUSTUP_HOME:-$HOME/.rustup} PYENV_ROOT=${PYENV_ROOT:-$HOME/.pyenv}
export HOME=$scratch/home
mkdir -p "$scratch/bin" "$HOME"
ln -s "$binary" "$scratch/bin/tokenloom"
export PATH=$scratch/bin:$PATH

now() { date +%s.%N; }
since() { echo "$(now) $1" | awk '{printf "%.1f", $1 - $2}'; }
# A fenced block of the page, by the word after its language.
block() { awk -v fence="\`\`\`sh $1" '$0 == fence {inside = 1; next} inside && /^```/ {exit} inside' "$page"; }

run_line() {
    local line=$1
    case $line in
    *'&')
        # The server goes on; the next lines find it on its port.
        bash -c "exec ${line%&}" > server.log 2>&1 &
        server=$!
        for _ in $(seq 600); do
            curl -sf "localhost:$port/ready" > /dev/null && break
            kill -0 "$server" 2>/dev/null || { cat server.log; return 1; }
            sleep 0.1
        done
        grep -m1 -o 'output stage.*capabilities=none' server.log | cut -c1-100 || true
        ;;
    *) bash -c "$line" 2>&1 ;;
    esac
}

{
    echo "# The stopwatch"
    echo
    echo "Written by \`tests/stopwatch.sh\`: the lines of [plugins.md](plugins.md), \"The first plugin\", run one after the"
    echo "other in an empty folder, with the seconds that each took. The compilers that the page names were installed;"
    echo "no earlier build and no compiled component was there."
    echo
    echo "$(date -u +%Y-%m-%d), $(nproc) cores, $(awk -F': ' '/model name/ {print $2; exit}' /proc/cpuinfo)."
} > "$transcript"

for language in "${languages[@]}"; do
    work=$scratch/$language
    mkdir "$work"
    cd "$work"
    started=$(now)
    {
        echo
        echo "## $language"
        echo
        echo '```'
    } >> "$transcript"
    { block "first-plugin"; } | sed "s/LANGUAGE/$language/; s/localhost:8000/localhost:$port/; s/^tokenloom serve /&--port $port /" > lines
    block "first-plugin-$language" > before
    sed -i "/^tokenloom plugin new/r before" lines
    while IFS= read -r line; do
        [ -n "$line" ] || continue
        # As the page says of components that are larger than a server takes unasked.
        case $line in "tokenloom serve"*) [ ! -f mine/server.toml ] || line=${line/ &/ --config mine/server.toml &} ;; esac
        at=$(now)
        echo "$language: $line" >&2
        run_line "$line" > out 2>&1 < /dev/null || { cat out >&2; echo "failed: $line" >&2; exit 1; }
        seconds=$(since "$at")
        printf '%7s s  $ %s\n' "$seconds" "$line" | sed "s/ --port $port//; s/localhost:$port/localhost:8000/" >> "$transcript"
        sed "s#$scratch#.#g; s#$HOME#~#g; s/^/           /" out | cut -c1-400 | tail -n 8 >> "$transcript"
    done < lines
    # Text of an invented format became a call, or reasoning, and none of its marks is left.
    case $language in
    rust | javascript) grep -q '"tool_calls":\[{' out && ! grep -q '"content":"[^"]*!weather' out ;;
    *) grep -q '"reasoning":"The capital of France\."' out && ! grep -q '\[\[' out ;;
    esac || { cat out >&2; echo "$language: the answer is not the parser's" >&2; exit 1; }
    kill "$server"
    wait "$server" 2>/dev/null || true
    server=
    total=$(since "$started")
    printf '%7s s  in all\n```\n' "$total" >> "$transcript"
    awk -v total="$total" -v limit=$limit_s 'BEGIN {exit !(total < limit)}' || { echo "$language took $total s" >&2; exit 1; }
    port=$((port + 1))
done
echo "written: docs/stopwatch.md"
