#!/usr/bin/env bash
# test-stories.sh [PROGRAM...] — runs the long stories, as root: tests in tests/ that are ignored with the name of this
# target. PROGRAM is commands, databases, preload or host.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/require-rust.sh
scripts/story-packages.sh
# shellcheck source=scripts/story-runs.sh
source scripts/story-runs.sh
logs=$(mktemp --directory)
trap 'rm -rf "$logs"' EXIT
linted scripts/test-programs.sh --with-packages --workspace >"$logs/programs"

# long_stories PROGRAM: prints the full names of its long stories, one per line.
long_stories() {
    local file module
    find "tests/$1" -name '*.rs' | sort | while read -r file; do
        module=${file#"tests/$1/"}
        module=${module%.rs}
        awk -v module="${module//\//::}" '
            /^#\[ignore = ".*make test-stories"\]$/ { long = 1 }
            long && match($0, /^fn [a-z0-9_]+/) { print module "::" substr($0, 4, RLENGTH - 3); long = 0 }
        ' "$file"
    done
}
# stories PROGRAM: runs its long stories; modules whose guards watch all databases run in their own PID namespace.
stories() {
    local names others failed=0 all
    all="^($(IFS='|' && echo "${all_databases[*]}"))"
    mapfile -t names < <(long_stories "$1" | grep --extended-regexp "$all")
    [ "${#names[@]}" -eq 0 ] || secluded "$1" --ignored --exact "${names[@]}" || failed=$?
    mapfile -t others < <(long_stories "$1" | grep --extended-regexp --invert-match "$all")
    [ "${#others[@]}" -eq 0 ] || story "$1" --ignored --exact "${others[@]}" || failed=$?
    return "$failed"
}

# all_stories PROGRAM...: runs the long stories of each program.
all_stories() {
    local program failed=0
    for program in "$@"; do
        stories "$program" || failed=$?
    done
    return "$failed"
}

[ $# -gt 0 ] || set -- commands databases preload host
status=0
all_stories "$@" 2>&1 | tee "$logs/all" || status=$?
scripts/slowest-tests.sh "$logs/all"
scripts/count-tests.sh "$logs/all" "$status"
