#!/usr/bin/env bash
# All checks and all tests. Ends with the counts of every test binary added up: "N passed, N failed, N skipped".
#
# A test that can't run prints one line that begins with "SKIPPED:" and returns; libtest calls it passed, the counts
# here call it skipped. As root nothing may skip (PAGEKEEPER_REQUIRE_ALL=1): such a test fails instead.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}

scripts/require-rust.sh
scripts/packages.sh \
    "the tests against MariaDB (they skip without): mariadb-server mariadb-client mariadb-backup sysbench" \
    "the tests against vmtouch, fincore and fio (they skip without): vmtouch util-linux-extra fio" \
    "the tests on XFS and btrfs images (they skip without): xfsprogs btrfs-progs" \
    "the tests against PostgreSQL (they skip without): postgresql" \
    "the tests against RocksDB (they skip without): rocksdb-tools" \
    "the tests of the man pages (they skip without): man-db"
if [ "$(id -u)" -eq 0 ]; then
    export PAGEKEEPER_REQUIRE_ALL=${PAGEKEEPER_REQUIRE_ALL:-1}
else
    echo "Not root: tests that start a database under another user or mount an image will be skipped." >&2
fi

scripts/lint.sh

# The same random cases each time, so that a change is judged by itself; PROPTEST_RNG_SEED=N gives others.
export PROPTEST_RNG_SEED=${PROPTEST_RNG_SEED:-20260101}

log=$(mktemp)
trap 'rm -f "$log"' EXIT
status=0
"$cargo" test --workspace --no-fail-fast -- --show-output 2>&1 | tee "$log" || status=$?
scripts/count-tests.sh "$log" "$status"
