#!/usr/bin/env bash
# keep-idle-pages.sh COMMAND... — runs COMMAND while the kernel leaves idle pages in memory.
#
# Some machines have DAMON page out what nobody has touched for some seconds, however much memory is free. Tests and benchmarks
# look at what is resident, and could not tell that from what pagekeeper does. Where this may, it stops DAMON for as long as COMMAND runs.
set -euo pipefail

stopped=()
for thread in /sys/kernel/mm/damon/admin/kdamonds/[0-9]*; do
    [ -w "$thread/state" ] && [ "$(<"$thread/state")" = on ] || continue
    grep --quiet --line-regexp pageout "$thread"/contexts/*/schemes/*/action 2>/dev/null || continue
    if echo off >"$thread/state"; then
        stopped+=("$thread")
    fi
done
go_on() {
    for thread in "${stopped[@]}"; do
        echo on >"$thread/state" || echo "$thread is off and does not go on: echo on > $thread/state" >&2
    done
}
trap go_on EXIT
trap 'exit 143' TERM
trap 'exit 130' INT
[ ${#stopped[@]} -eq 0 ] || echo "DAMON pages out what is idle on this machine: stopped meanwhile." >&2

"$@"
