#!/usr/bin/env bash
# compute-sanitizer over gpu-check's smallest shapes: out-of-bounds and misaligned accesses, then races in shared memory.
# usage: tests/gpu/sanitize.sh [GPU_CHECK [memcheck|racecheck]] (default: target/release/gpu-check, both tools)
#
# racecheck knows nothing of copies that a barrier object announces, and so reports every Hopper kernel that reads what
# such a copy wrote: the library's (nvjet) and attend_prefill_sm90. Those reports are left out; `arch=80` runs the other
# prefill kernel in its place.
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
  # Minutes, most of them in the library's kernels; leaving those out by name makes the library's calls fail.
  compute-sanitizer --tool racecheck --print-limit 100000 "$check" smallest arch=80 > "$found" 2>&1 || status=$?
  grep -E "^ok|^FAIL|ERROR SUMMARY|RACECHECK SUMMARY" "$found"
  ours=$(grep -oE "at [A-Za-z_0-9:<>]+\+0x" "$found" | sort | uniq -c | grep -vE "nvjet|cublas|cutlass|attend_prefill_sm90")
  if [ -n "$ours" ]; then
    echo "races in our kernels:"
    echo "$ours"
    status=1
  fi
  rm -f "$found"
fi
exit $status
