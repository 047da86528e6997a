#!/usr/bin/env bash
# The tests that `make test` leaves out, as root: test-all.sh [PART...]. Each part is a target of the Makefile, `make test-PART` or `make PART`,
# and goes alone; docs/src/internals/testing.md says what each is, and how long it takes. Ends with what passed and what failed.
set -euo pipefail
cd "$(dirname "$0")/.."

[ $# -gt 0 ] || set -- stories crates faults kills hostile torture preload databases advice sqlite kernels cgroup-v2 packages helm sanitize fuzz cross deny docs
results=()
failed=0
for part in "$@"; do
    target=test-$part
    case $part in sanitize | fuzz | cross | deny | docs) target=$part ;; esac
    # What was given on make's command line is for this script alone.
    arguments=(ARGS=)
    case $part in
    # Each parser for a minute.
    fuzz) arguments=(ARGS="all 60") ;;
    # The page of kernels stays as it is: a kernel that it describes otherwise fails.
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
