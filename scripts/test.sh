#!/usr/bin/env bash
# All checks and all tests. Ends with the counts of every test binary added up: "N passed, N failed, N skipped".
#
# A test that can't run prints one line that begins with "SKIPPED:" and returns; libtest calls it passed, the counts
# here call it skipped. As root nothing may skip (PAGEKEEPER_REQUIRE_ALL=1): such a test fails instead, but for the machines with other
# kernels.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}

scripts/require-rust.sh
scripts/packages.sh \
    "the tests against MariaDB (they skip without): mariadb-server mariadb-client mariadb-backup mariadb-plugin-rocksdb sysbench" \
    "the tests against vmtouch, fincore and fio (they skip without): vmtouch util-linux-extra fio" \
    "the tests on XFS and btrfs images (they skip without): xfsprogs btrfs-progs" \
    "the tests against PostgreSQL (they skip without): postgresql" \
    "the tests against RocksDB (they skip without): rocksdb-tools librocksdb-dev" \
    "the tests of programs under run (they skip without): tar rsync git sqlite3 libsqlite3-dev zstd musl-tools busybox-static restic sudo opendoas nginx-light b3sum nodejs borgbackup bup rclone mydumper pgbackrest barman squashfs-tools rdiff-backup p7zip-full" \
    "the tests of the C library (they skip without): gcc g++ pkg-config cmake make python3 binutils" \
    "the tests against ClickHouse (they skip without): clickhouse-server" \
    "the tests against etcd, NATS and RabbitMQ (they skip without): etcd-server nats-server rabbitmq-server" \
    "the tests of metrics (they skip without): prometheus chromium" \
    "the test of a file system that hangs (it skips without): bindfs" \
    "the tests of the screen (they skip without): tmux" \
    "the comparison of the doctor's reports with their schema (it skips without): python3-jsonschema" \
    "the tests of completions (they skip without): bash zsh fish" \
    "the tests of the man pages (they skip without): man-db" \
    "the tests on other kernels, in virtual machines (they skip without): qemu-system-x86 kmod cpio e2fsprogs xz-utils"
if [ "$(id -u)" -eq 0 ]; then
    export PAGEKEEPER_REQUIRE_ALL=${PAGEKEEPER_REQUIRE_ALL:-1}
else
    echo "Not root: tests that start a database under another user or mount an image will be skipped." >&2
fi

scripts/lint.sh --without-unused

# The same random cases each time, so that a change is judged by itself; PROPTEST_RNG_SEED=N and PAGEKEEPER_SEED=N give others.
export PROPTEST_RNG_SEED=${PROPTEST_RNG_SEED:-20260101}
export PAGEKEEPER_SEED=${PAGEKEEPER_SEED:-20260101}

# Half a minute of random input for each parser of what others write, two or so at a time.
export PAGEKEEPER_FUZZ_SECONDS=${PAGEKEEPER_FUZZ_SECONDS:-30}

# Stories of users wait for databases and disks, the crates' tests for the processor: they go side by side, and stories, which end
# later, go first. What watches the whole machine, or lowers its dirty limits (tests/host), goes after them, beside nothing that reads
# or writes files: it waits most of its time, and models of threads and random input take what it leaves.
stories=(--test commands --test databases --test docs)
preloaded=(--test preload)
random=(--test random_input)
alone=(--test host)
crates=()
for test in {bench,crates/*,integrations/*}/tests/{*.rs,*/main.rs}; do
    [ -e "$test" ] || continue
    test=$(basename "${test%/main.rs}" .rs)
    [ "$test" = "${random[1]}" ] || crates+=(--test "$test")
done

logs=$(mktemp --directory)
declare -A beside=()
end() {
    for group in "${!beside[@]}"; do
        kill "${beside[$group]}" 2>/dev/null || true
        shown "$logs/$group"
    done
    # Where it was ended: what still ran is not among them.
    [ "${#beside[@]}" -eq 0 ] || cat "$logs/times"
    rm -rf "$logs"
}
trap end EXIT
trap 'exit 1' INT TERM

tests() {
    "$cargo" test --no-fail-fast "$@" -- --show-output 2>&1
}

# The guard's unit tests, from their directory as by cargo, which would build what they stand on once more if asked for them alone.
guard_tests() {
    local program
    program=$(scripts/test-programs.sh --workspace | grep -E '/pagekeeper_guard-[0-9a-f]+$')
    echo "     Running unittests ($program)"
    (cd crates/guard && "$program" --show-output) 2>&1
}

# Notes when a part of it ended.
timed() {
    echo "$1: $((SECONDS / 60)) min $((SECONDS % 60)) s after the begin" >>"$logs/times"
}

# Without what tests that passed have printed (panics that they asked for among it), but for what they skipped.
shown() {
    awk '/^successes:$/ { passed = 1 } /^(failures:$|test result: )/ { passed = 0 } !passed || /^SKIPPED: / { print; fflush() }' "$@"
}

timed "checks ended"
"$cargo" test --workspace --no-run 2>&1 | tee "$logs/built"
timed "all was built"

status=0
{
    crates_status=0
    renice --priority 5 --pid "$BASHPID" >/dev/null
    "$cargo" test --no-fail-fast --workspace --exclude pagekeeper-guard --lib --bins -- --show-output --skip model:: 2>&1 || crates_status=$?
    tests --workspace --exclude pagekeeper-guard "${crates[@]}" || crates_status=$?
    tests --workspace --doc || crates_status=$?
    timed "the crates' tests ended"
    exit "$crates_status"
} >"$logs/crates" &
beside[crates]=$!
{
    chrt --idle --pid 0 "$BASHPID"
    scripts/unused-dependencies.sh 2>&1 || {
        printf 'test no_dependency_is_unused ... FAILED\ntest result: FAILED. 0 passed; 1 failed\n'
        exit 1
    }
} >"$logs/unused" &
beside[unused]=$!
# An old kernel and a new one: commands that take an emulated processor little. `make test-kernels` has the others, and the rest.
if [ "$(id -u)" -ne 0 ] || ! command -v qemu-system-x86_64 >/dev/null || [ "$(uname -m)" != x86_64 ]; then
    printf 'SKIPPED: %s\ntest result: ok. 1 passed; 0 failed\n' "the tests on other kernels need root, x86-64 and qemu-system-x86" >"$logs/kernels"
else
    # What runs alone waits for the stories' end, so these leave them the processor. A kernel that no mirror has any more is skipped by name.
    PAGEKEEPER_REQUIRE_ALL=0 CRATES=none STORIES="stat|evict|run|guard|doctor|top" MACHINE_SECONDS=1500 nice -n 5 scripts/test-kernels.sh --compare bullseye trixie >"$logs/kernels" 2>&1 &
    beside[kernels]=$!
fi
tests --workspace "${stories[@]}" | tee "$logs/stories" | shown || status=$?
timed "stories of commands and databases ended"
# The guards that the stories start find the databases that the guard's own tests play, and serve them, too: beside none of them.
guard_tests >"$logs/guard" &
beside[guard]=$!
# These wait for programs that wait for disks.
RUST_TEST_THREADS=$(($(nproc) + 1)) tests --workspace "${preloaded[@]}" | tee "$logs/preloaded" | shown || status=$?
timed "stories of programs under run ended"
wait "${beside[guard]}" || status=$?
unset 'beside[guard]'
shown "$logs/guard"
wait "${beside[crates]}" || status=$?
unset 'beside[crates]'
shown "$logs/crates"
[ -z "${beside[kernels]:-}" ] || wait "${beside[kernels]}" || status=$?
unset 'beside[kernels]'
timed "the tests on other kernels ended"
shown "$logs/kernels"
wait "${beside[unused]}" || status=$?
unset 'beside[unused]'
shown "$logs/unused"
{
    chrt --idle --pid 0 "$BASHPID"
    random_status=0
    tests --workspace --exclude pagekeeper-guard --lib --bins model:: || random_status=$?
    timed "models ended"
    tests --workspace "${random[@]}" || random_status=$?
    timed "random input ended"
    exit "$random_status"
} >"$logs/random" &
beside[random]=$!
tests --workspace "${alone[@]}" | tee "$logs/alone" | shown || status=$?
timed "what runs alone ended"
wait "${beside[random]}" || status=$?
unset 'beside[random]'
shown "$logs/random"

cat "$logs"/{stories,preloaded,guard,crates,kernels,unused,random,alone} >"$logs/all"
built=$(grep --count '^ *Executable ' "$logs/built")
# By their names: some are run twice, with and without models.
run=$(sed --quiet 's/^ *Running .*[(/]\([^/)]*\))$/\1/p' "$logs/all" | sort --unique | wc --lines)
if [ "$built" != "$run" ]; then
    echo "$built test programs were built, but $run were run: scripts/test.sh does not know them all" >&2
    status=1
fi
cat "$logs/times"
scripts/count-tests.sh "$logs/all" "$status"
