#!/usr/bin/env bash
# test-torture.sh [SECONDS] — runs real tools at random under pagekeeper run, beside three busy loops, for ten minutes,
# as root. PAGEKEEPER_SEED repeats a random run.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}

scripts/require-rust.sh
scripts/packages.sh \
    "the tools: tar rsync zstd pigz git sqlite3 busybox-static restic python3 util-linux-extra" \
    "a server to dump: mariadb-server mariadb-client sysbench"
export PAGEKEEPER_TORTURE_SECONDS=${1:-600}
if [ "$(id -u)" -eq 0 ]; then
    export PAGEKEEPER_REQUIRE_ALL=${PAGEKEEPER_REQUIRE_ALL:-1}
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
status=0
"$cargo" test --package pagekeeper --test preload -- tools:: --include-ignored --show-output 2>&1 | tee "$log" || status=$?
scripts/count-tests.sh "$log" "$status"
