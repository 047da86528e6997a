#!/usr/bin/env bash
# keep-idle-pages.sh COMMAND... — runs COMMAND while the kernel leaves idle pages in memory.
#
# Some machines have DAMON page out what nobody has touched for some seconds, however much memory is free. Tests and benchmarks
# look at what is resident, and could not tell that from what pagekeeper does. Where this may, it stops DAMON for as long as COMMAND
# runs. Of several runs at a time the first stops it, and the last lets it go on.
#
# Each run shares a lock on the file "users": the kernel gives it up however the run ends, so no run is counted that is dead. Who
# begins or ends holds the lock on "change" meanwhile; "stopped" names what goes on when nobody is left, even if those who stopped it
# were killed.
set -euo pipefail

# Others may be given for a test of this script.
damon=${KEEP_IDLE_PAGES_DAMON:-/sys/kernel/mm/damon/admin/kdamonds}
state=${KEEP_IDLE_PAGES_STATE:-/run/pagekeeper-keep-idle-pages}

pages_out() {
    [ -w "$1/state" ] && grep --quiet --line-regexp pageout "$1"/contexts/*/schemes/*/action 2>/dev/null
}

# Under the lock on "change", which no COMMAND inherits.
begin() {
    exec {users}>>"$state/users" {change}>>"$state/change"
    flock "$change"
    flock --shared "$users"
    local thread
    for thread in "${threads[@]}"; do
        if [ "$(<"$thread/state")" = on ] && echo off >"$thread/state"; then
            echo "$thread" >>"$state/stopped"
            echo "DAMON pages out what is idle on this machine: stopped meanwhile." >&2
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
            echo on >"$thread/state" || echo "$thread is off and does not go on: echo on > $thread/state" >&2
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
