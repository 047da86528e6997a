#!/usr/bin/env bash
# test-all.sh [PART...] — runs the tests that `make test` leaves out, as root. Each part is a target of the Makefile,
# `make test-PART` or `make PART`, and runs alone; docs/src/internals/testing.md describes the parts and their
# durations. Ends with a list of passed and failed parts.
set -euo pipefail
cd "$(dirname "$0")/.."

[ $# -gt 0 ] || set -- stories crates faults kills hostile torture preload databases advice sqlite valgrind kernels cgroup-v2 packages helm sanitize fuzz cross deny lint docs
results=()
failed=0
for part in "$@"; do
    target=test-$part
    case $part in sanitize | fuzz | cross | deny | lint | docs) target=$part ;; esac
    # Variables on make's command line are for this script only.
    arguments=(ARGS=)
    case $part in
    # Each parser for a minute.
    fuzz) arguments=(ARGS="all 60") ;;
    # The page of kernels is compared, not written.
    kernels) arguments=(ARGS=--compare) ;;
    esac
    echo "== make $target"
    begin=$SECONDS
    if make --no-print-directory "$target" "${arguments[@]}"; then
        ended=passed
    else
        ended=FAILED
        failed=1
    fi
    results+=("$(printf '%-12s %-7s %4d min' "$part" "$ended" $(((SECONDS - begin + 59) / 60)))")
done
printf '%s\n' "${results[@]}"
exit "$failed"
