#!/usr/bin/env bash
# All checks and all tests, but for what `make test-all` has (docs/src/internals/testing.md). Ends with the slowest twenty tests, and the
# counts of every test program added up: "N passed, N failed, N skipped".
#
# A test that can't run prints one line that begins with "SKIPPED:" and returns; libtest calls it passed, the counts
# here call it skipped. As root nothing may skip (PAGEKEEPER_REQUIRE_ALL=1): such a test fails instead.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}

# Groups of tests go side by side, each in a process group of its own, which ends with this.
set -m
logs=$(mktemp --directory)
declare -A beside=()
status=0

# start NAME COMMAND...: a group of tests.
start() {
    { "${@:2}" && timed "$1 ended" || { timed "$1 failed" && false; }; } >"$logs/$1" 2>&1 </dev/null &
    beside[$!]=$1
}
# Waits for all groups, and shows each when it ends.
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
    # Ended early: a group that still ran is not among these.
    [ "${#beside[@]}" -eq 0 ] || cat "$logs/times"
    rm -rf "$logs"
}
trap end EXIT
trap 'exit 1' INT TERM

# Notes when a part of it ended.
timed() {
    echo "$1: $((SECONDS / 60)) min $((SECONDS % 60)) s after the begin" >>"$logs/times"
}
# Without what tests that passed have printed (panics that they asked for among it), but for what they skipped.
shown() {
    awk '/^successes:$/ { passed = 1 } /^(failures:$|test result: )/ { passed = 0 } !passed || /^SKIPPED: / { print; fflush() }' "$@"
}

scripts/require-rust.sh
scripts/lint.sh text
# Nothing of it is needed to build.
start packages scripts/packages.sh \
    "the tests against MariaDB (they skip without): mariadb-server mariadb-client mariadb-backup mariadb-plugin-rocksdb sysbench" \
    "the tests against vmtouch, fincore and fio (they skip without): vmtouch util-linux-extra fio" \
    "the tests on XFS and btrfs images (they skip without): xfsprogs btrfs-progs e2fsprogs" \
    "the tests against PostgreSQL (they skip without): postgresql" \
    "the tests against RocksDB (they skip without): rocksdb-tools librocksdb-dev" \
    "the tests of programs under run (they skip without): tar rsync git sqlite3 libsqlite3-dev zstd musl-tools busybox-static restic sudo opendoas xz-utils nginx-light b3sum nodejs borgbackup bup rclone mydumper pgbackrest barman squashfs-tools rdiff-backup p7zip-full" \
    "the tests of the C library (they skip without): gcc g++ pkg-config cmake make python3 binutils" \
    "the tests against ClickHouse (they skip without): clickhouse-server" \
    "the tests against etcd, NATS and RabbitMQ (they skip without): etcd-server nats-server rabbitmq-server" \
    "the tests of metrics (they skip without): prometheus chromium" \
    "the test of a file system that hangs (it skips without): bindfs" \
    "the tests of the screen (they skip without): tmux" \
    "the test of SQLite's drivers (it skips without): python3-apsw" \
    "the comparison of the doctor's reports with their schema (it skips without): python3-jsonschema" \
    "the tests of completions (they skip without): bash zsh fish" \
    "the tests of the man pages (they skip without): man-db"
if [ "$(id -u)" -eq 0 ]; then
    export PAGEKEEPER_REQUIRE_ALL=${PAGEKEEPER_REQUIRE_ALL:-1}
    # A PID namespace with its own /proc; the shell takes in what their parents leave behind.
    own_processes=(unshare --pid --fork --kill-child --mount-proc -- sh -c '"$@"; exit $?' sh)
    if ! "${own_processes[@]}" true; then
        echo "No PID namespace can be made here: guards find databases of other stories, which may fail of it." >&2
        own_processes=()
    fi
else
    echo "Not root: tests that start a database under another user or mount an image will be skipped." >&2
    own_processes=()
fi

# The same random cases each time, so that a change is judged by itself; PROPTEST_RNG_SEED=N and PAGEKEEPER_SEED=N give others.
export PROPTEST_RNG_SEED=${PROPTEST_RNG_SEED:-20260101}
export PAGEKEEPER_SEED=${PAGEKEEPER_SEED:-20260101}

# Half a minute of random input for each parser of what others write, two or so at a time.
export PAGEKEEPER_FUZZ_SECONDS=${PAGEKEEPER_FUZZ_SECONDS:-30}

# A line for each test program: kind, directory of its package, path.
scripts/test-programs.sh --with-packages --workspace >"$logs/programs"
timed "all was built"
finish
[ "$status" -eq 0 ] || exit "$status"

# programs NAME...: prints their lines; others NAME...: prints all lines but theirs.
programs() { grep --extended-regexp "/($(IFS='|' && echo "$*"))-[0-9a-f]+$" "$logs/programs"; }
others() { grep --invert-match --extended-regexp "/($(IFS='|' && echo "$*"))-[0-9a-f]+$" "$logs/programs"; }
# all_but MODULE...: prints the arguments that leave these modules out.
all_but() { printf -- '--skip %s ' "$@"; }

# Runs the test programs of these lines with the given arguments, started by the command in "starter". RUSTC_BOOTSTRAP lets a stable
# compiler's test programs show the time of each test.
starter=()
run() {
    local kind directory program failed=0
    while IFS=$'\t' read -r kind directory program; do
        echo "     Running $kind $program"
        (cd "$directory" && RUSTC_BOOTSTRAP=1 exec "${starter[@]}" "$program" -Z unstable-options --report-time --show-output "$@" </dev/null) || failed=$?
    done
    return "$failed"
}
story() { programs "$1" | run "${@:2}"; }
# Runs a test program among processes of its own: a guard that it starts sees no other program's databases.
secluded() {
    local starter=("${own_processes[@]}")
    story "$@"
}

# Modules of tests/databases with guards for all databases, which have to see no others'.
all_databases=(containers:: discovery:: hint:: mariadb:: metrics:: mysql:: postgresql:: recycled::)
# Stories of the host that need neither its dirty limits nor its whole page cache.
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
# check NAME COMMAND...: counts as a failed test if it fails.
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
    # These wait for programs that wait for disks.
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
unused() { check no_dependency_is_unused scripts/lint.sh unused; }

# Stories of users wait for databases and disks, the rest for the processor: they go side by side.
stories() { in_turn commands databases preload; }
rest() {
    renice --priority 5 --pid "$BASHPID" >/dev/null
    in_turn crates part_of_host lint unused
}
start stories stories
start rest rest
finish

# The rest of the host's stories watch the whole machine, or lower its dirty limits, and the documents show what a quiet disk has: nothing
# beside them reads or writes files. They wait most of their time; models of threads and random input take what processor time they leave.
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
