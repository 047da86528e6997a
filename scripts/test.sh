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
touch "$logs/times"
declare -A beside=()
status=0

# start NAME COMMAND...: starts a group of tests.
start() {
    { "${@:2}" && timed "$1 ended" || { timed "$1 failed" && false; }; } >"$logs/$1" 2>&1 </dev/null &
    beside[$!]=$1
}
# finish NAME...: waits for these groups, and prints the output of each.
finish() {
    local group code
    for group in "${!beside[@]}"; do
        [[ " $* " == *" ${beside[$group]} "* ]] || continue
        code=0
        wait "$group" || code=$?
        [ "$code" -eq 0 ] || status=$code
        shown "$logs/${beside[$group]}"
        unset "beside[$group]"
    done
}
end() {
    local group
    for group in "${!beside[@]}"; do
        kill -- "-$group" 2>/dev/null || true
        # The group may not have begun.
        shown "$logs/${beside[$group]}" || true
    done
    # After an early end, a group that was still running has no status.
    [ "${#beside[@]}" -eq 0 ] || cat "$logs/times"
    rm -rf "$logs"
}
trap end EXIT
trap 'exit 1' INT TERM

# Records the time at which a part ended, and the processor time (user, system) of its row so far.
timed() {
    local row=$logs/row-$BASHPID
    times >"$row"
    echo "$1: $((SECONDS / 60)) min $((SECONDS % 60)) s after the start, $(sed --quiet 2p "$row") of processors" >>"$logs/times"
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
export PAGEKEEPER_CRASHES=${PAGEKEEPER_CRASHES:-1500}

# A line for each test program: kind, directory of its package, path.
linted scripts/test-programs.sh --with-packages --workspace >"$logs/programs"
timed "all was built"
finish packages
[ "$status" -eq 0 ] || exit "$status"

# Stories of `host` that do not change dirty limits and do not inspect the whole page cache.
part_of_host=(probe:: hung:: guard_budgets:: guard_cgroups:: doctor_settings::)

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
commands() {
    as_stories
    secluded commands
}
databases() {
    local failed=0
    secluded databases "${all_databases[@]}" || failed=$?
    # shellcheck disable=SC2046
    story databases $(all_but "${all_databases[@]}") || failed=$?
    return "$failed"
}
preload() {
    as_stories
    # These tests mostly wait for programs that wait for disks.
    RUST_TEST_THREADS=$(($(nproc) * 3)) story preload
}
# The test programs that are no stories.
of_crates() { others commands databases docs preload host random_input; }
units() {
    # Half of these tests wait, those of the guard for its ticks.
    local failed=0 RUST_TEST_THREADS=$(($(nproc) * 2))
    export RUST_TEST_THREADS
    of_crates | grep --invert-match ^test | run --skip model:: || failed=$?
    linted "$cargo" test --no-fail-fast --workspace --doc -- --show-output || failed=$?
    return "$failed"
}
crates() { of_crates | grep ^test | run; }
part_of_host() { secluded host "${part_of_host[@]}"; }
lint() { check no_warnings scripts/lint.sh library documentation; }

models() {
    chrt --idle --pid 0 "$BASHPID"
    of_crates | grep --invert-match ^test | run model::
}

# Stories wait for databases and disks, and so do many other tests, so they run in parallel.
stories() { in_turn databases part_of_host; }
# after_stories PART...: runs these parts at a lower priority than stories.
after_stories() {
    renice --priority 5 --pid "$BASHPID" >/dev/null
    in_turn "$@"
}
# Gives a part the priority of stories, which only root can have back.
as_stories() { renice --priority 0 --pid "$BASHPID" >/dev/null 2>&1 || true; }
start stories stories
start units after_stories units lint preload
start crates after_stories crates commands
finish stories units crates

# Other stories of `host` watch the whole machine or lower its dirty limits, and the documents show a quiet disk, so nothing
# else reads or writes files during them. They mostly wait; models of threads and random input, which need no files, use the
# remaining processor time.
host() {
    local failed=0
    story docs || failed=$?
    # shellcheck disable=SC2046
    story host $(all_but "${part_of_host[@]}") || failed=$?
    return "$failed"
}
random_input() {
    chrt --idle --pid 0 "$BASHPID"
    story random_input
}
start models models
start random_input random_input
start host host
finish models random_input host

groups=(stories units crates models random_input host)
cat "${groups[@]/#/$logs/}" >"$logs/all"
scripts/slowest-tests.sh "$logs/all"
cat "$logs/times"
scripts/count-tests.sh "$logs/all" "$status"
