#!/usr/bin/env bash
# compute-sanitizer over gpu-check's smallest shapes: out-of-bounds and misaligned accesses, then races in shared memory.
# usage: tests/gpu/sanitize.sh [GPU_CHECK [memcheck|racecheck]] (default: target/release/gpu-check, both tools)
#
# racecheck knows nothing of copies that a barrier object announces, and so reports every Hopper kernel that reads what
# such a copy wrote: `arch=80` runs the other kernels in their place. In the library's kernels it spends minutes, and
# leaving those out by name makes the library's calls fail: `few` takes steps that need none of them. What runs beside
# the library alone (quantised rows, silu_mul, many decoding rows) is not raced.
set -uo pipefail
check=${1:-target/release/gpu-check}
status=0
if [ "${2:-memcheck}" = memcheck ]; then
  echo "== memcheck"
  compute-sanitizer --tool memcheck --error-exitcode 9 --print-limit 20 "$check" smallest || status=$?
fi
if [ "${2:-racecheck}" = racecheck ]; then
  echo "== racecheck"
  found=$(mktemp)
  compute-sanitizer --tool racecheck --print-limit 100000 "$check" smallest few arch=80 > "$found" 2>&1 || status=$?
  grep -E "^ok|^FAIL|ERROR SUMMARY|RACECHECK SUMMARY" "$found"
  races=$(grep -oE "at [A-Za-z_0-9:<>]+\+0x" "$found" | sort | uniq -c)
  if [ -n "$races" ]; then
    echo "races:"
    echo "$races"
    status=1
  fi
  rm -f "$found"
fi
exit $status
