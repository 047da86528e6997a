#!/usr/bin/env bash
# keep-idle-pages.sh COMMAND... — runs COMMAND while the kernel leaves idle pages in memory.
#
# On some machines DAMON pages out memory that was not used for some seconds, even if memory is free. Tests and
# benchmarks inspect resident pages, and could not tell DAMON's work from pagekeeper's. If permitted, this script stops
# DAMON while COMMAND runs. With several runs at a time, the first one stops DAMON and the last one starts it again.
#
# Each run holds a shared lock on the file "users". The kernel releases it however the run ends, so dead runs do not
# count. A run holds the lock on "change" while it begins or ends. "stopped" lists the threads to start again when no
# run is left, even if the runs that stopped them were killed.
set -euo pipefail

# A test of this script sets other directories.
damon=${KEEP_IDLE_PAGES_DAMON:-/sys/kernel/mm/damon/admin/kdamonds}
state=${KEEP_IDLE_PAGES_STATE:-/run/pagekeeper-keep-idle-pages}

pages_out() {
    [ -w "$1/state" ] && grep --quiet --line-regexp pageout "$1"/contexts/*/schemes/*/action 2>/dev/null
}

# Runs with the lock on "change" held; no COMMAND inherits that lock.
begin() {
    exec {users}>>"$state/users" {change}>>"$state/change"
    flock "$change"
    flock --shared "$users"
    local thread
    for thread in "${threads[@]}"; do
        if [ "$(<"$thread/state")" = on ] && echo off >"$thread/state"; then
            echo "$thread" >>"$state/stopped"
            echo "DAMON pages out idle memory on this machine: stopped until the end of this command." >&2
        fi
    done
    flock --unlock "$change"
}
end() {
    flock "$change"
    flock --unlock "$users"
    if flock --exclusive --nonblock "$users" && [ -e "$state/stopped" ]; then
        local thread
        while read -r thread; do
            echo on >"$thread/state" || echo "$thread could not be started again: echo on > $thread/state" >&2
        done <"$state/stopped"
        rm "$state/stopped"
    fi
}

threads=()
for thread in "$damon"/[0-9]*; do
    if pages_out "$thread"; then
        threads+=("$thread")
    fi
done
if [ ${#threads[@]} -eq 0 ] || ! mkdir --parents --mode=0700 "$state"; then
    exec "$@"
fi
trap 'exit 143' TERM
trap 'exit 130' INT
begin
trap end EXIT

"$@" {users}>&- {change}>&-
