#!/usr/bin/env bash
# Tests the preloaded library in many programs: every call with unusual arguments, torture, system calls that fail, and
# real programs with their long runs, on ext4, XFS and btrfs; and MariaDB's own test suites for binary logs, replication
# and recovery. As root it installs the packages it needs (mariadb-test is large). PAGEKEEPER_SEED repeats a random run.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}

scripts/require-rust.sh
scripts/packages.sh \
    "the programs that copy, archive and store: gcc libc6-dev tar rsync git sqlite3 fio rocksdb-tools util-linux-extra" \
    "PostgreSQL, crashed and checked: postgresql" \
    "XFS and btrfs images: xfsprogs btrfs-progs" \
    "MariaDB's own tests: mariadb-server mariadb-client mariadb-test mariadb-backup mariadb-plugin-rocksdb"
if [ "$(id -u)" -eq 0 ]; then
    export PAGEKEEPER_REQUIRE_ALL=${PAGEKEEPER_REQUIRE_ALL:-1}
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
status=0
"$cargo" test --package pagekeeper --test preload --no-fail-fast -- archives:: calls:: report:: torture:: programs:: \
    --include-ignored --show-output 2>&1 | tee "$log" || status=$?
scripts/count-tests.sh "$log" "$status"
