#!/usr/bin/env bash
# Runs all checks and all tests, except those of `make test-all` (docs/src/internals/testing.md). Ends with the slowest
# twenty tests, and the sums over all test programs: "N passed, N failed, N skipped".
#
# A test that can't run prints one line that begins with "SKIPPED:" and returns; libtest counts it as passed, the sums
# here count it as skipped. As root no test may skip (PAGEKEEPER_REQUIRE_ALL=1): such a test fails instead.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}

# Groups of tests run in parallel, each in its own process group, which ends with this script.
set -m
logs=$(mktemp --directory)
declare -A beside=()
status=0

# start NAME COMMAND...: starts a group of tests.
start() {
    { "${@:2}" && timed "$1 ended" || { timed "$1 failed" && false; }; } >"$logs/$1" 2>&1 </dev/null &
    beside[$!]=$1
}
# Waits for all groups, and prints the output of each when it ends.
finish() {
    local ended code
    while [ "${#beside[@]}" -gt 0 ]; do
        code=0
        wait -n -p ended "${!beside[@]}" || code=$?
        [ "$code" -eq 0 ] || status=$code
        shown "$logs/${beside[$ended]}"
        unset "beside[$ended]"
    done
}
end() {
    local group
    for group in "${!beside[@]}"; do
        kill -- "-$group" 2>/dev/null || true
        shown "$logs/${beside[$group]}"
    done
    # After an early end, a group that was still running has no status.
    [ "${#beside[@]}" -eq 0 ] || cat "$logs/times"
    rm -rf "$logs"
}
trap end EXIT
trap 'exit 1' INT TERM

# Records the time at which a part ended.
timed() {
    echo "$1: $((SECONDS / 60)) min $((SECONDS % 60)) s after the start" >>"$logs/times"
}
# Removes the output of passed tests, which includes expected panics, except their SKIPPED lines.
shown() {
    awk '/^successes:$/ { passed = 1 } /^(failures:$|test result: )/ { passed = 0 } !passed || /^SKIPPED: / { print; fflush() }' "$@"
}

scripts/require-rust.sh
scripts/lint.sh text
# shellcheck source=scripts/story-runs.sh
source scripts/story-runs.sh
# Not needed for the build.
start packages scripts/story-packages.sh
# Some seconds of random input for each parser of foreign input, about two at a time.
export PAGEKEEPER_FUZZ_SECONDS=${PAGEKEEPER_FUZZ_SECONDS:-5}
# The number of random lives of a store or log on a simulated disk in each test; `make test-faults` runs many more.
export PAGEKEEPER_CRASHES=${PAGEKEEPER_CRASHES:-3000}

# A line for each test program: kind, directory of its package, path.
scripts/test-programs.sh --with-packages --workspace >"$logs/programs"
timed "all was built"
finish
[ "$status" -eq 0 ] || exit "$status"

# Stories of `host` that do not change dirty limits and do not inspect the whole page cache.
part_of_host=(probe:: hung:: guard_cgroups:: doctor_settings::)

# in_turn FUNCTION...: runs all, one after the other; fails if one fails.
in_turn() {
    local failed=0 part
    for part in "$@"; do
        "$part" || failed=$?
        timed "$part"
    done
    return "$failed"
}
# check NAME COMMAND...: runs a command, and counts its failure as a failed test.
check() {
    "${@:2}" || { printf 'test %s ... FAILED\ntest result: FAILED. 0 passed; 1 failed\n' "$1" && false; }
}
commands() { secluded commands; }
databases() {
    local failed=0
    secluded databases "${all_databases[@]}" || failed=$?
    # shellcheck disable=SC2046
    story databases $(all_but "${all_databases[@]}") || failed=$?
    return "$failed"
}
preload() {
    # These tests mostly wait for programs that wait for disks.
    RUST_TEST_THREADS=$(($(nproc) + 1)) story preload
}
crates() {
    local failed=0 grouped=(commands databases docs preload host random_input)
    others "${grouped[@]}" | grep --invert-match ^test | run --skip model:: || failed=$?
    others "${grouped[@]}" | grep ^test | run || failed=$?
    "$cargo" test --no-fail-fast --workspace --doc -- --show-output || failed=$?
    return "$failed"
}
part_of_host() { secluded host "${part_of_host[@]}"; }
lint() { check no_warnings scripts/lint.sh code; }

# Stories wait for databases and disks, other tests for the processor, so they run in parallel.
stories() { in_turn commands databases preload part_of_host; }
rest() {
    renice --priority 5 --pid "$BASHPID" >/dev/null
    in_turn crates lint
}
start stories stories
start rest rest
finish

# Other stories of `host` watch the whole machine or lower its dirty limits, and the documents show a quiet disk, so nothing
# else reads or writes files during them. They mostly wait; models of threads and random input use the remaining processor time.
host() {
    local failed=0
    story docs || failed=$?
    # shellcheck disable=SC2046
    story host $(all_but "${part_of_host[@]}") || failed=$?
    return "$failed"
}
models() {
    local failed=0
    chrt --idle --pid 0 "$BASHPID"
    others commands databases docs preload host random_input | grep --invert-match ^test | run model:: || failed=$?
    story random_input || failed=$?
    return "$failed"
}
start models models
start host host
finish

groups=(stories rest models host)
cat "${groups[@]/#/$logs/}" >"$logs/all"
scripts/slowest-tests.sh "$logs/all"
cat "$logs/times"
scripts/count-tests.sh "$logs/all" "$status"
