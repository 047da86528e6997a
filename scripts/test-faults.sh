#!/usr/bin/env bash
# Tests on disks that lose power, fail and lie: store, redo log and binlog with eight threads each, on files, ext4 and
# XFS; and SQLite, on files and ext4. Also: kills after which a second reader must find the same as the first; 10,000
# forks each beside threads that use a cache, a file table, a store, each log, and all of them from C; and tens of
# thousands of random lives of stores and logs on a simulated disk. As root, with FUSE. CYCLES is the number of power cuts
# of each test [default: 500]; `make test` makes some tens.
#
# Runs in its own mount namespace, so that nothing stays mounted however it ends.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}

scripts/require-rust.sh
scripts/packages.sh "XFS on a disk that fails: xfsprogs" "SQLite on one: sqlite3"
if [ "$(id -u)" -ne 0 ]; then
    echo "A disk that fails has to be mounted: run this as root." >&2
    exit 1
fi
"$cargo" test --package pagekeeper-slow-disk --test faults --no-run
"$cargo" test --package pagekeeper --test commands --no-run
"$cargo" test --package pagekeeper-cache --test story --no-run
"$cargo" test --package pagekeeper-capi --test programs --no-run

export PAGEKEEPER_REQUIRE_ALL=1
PAGEKEEPER_FAULT_CYCLES=${CYCLES:-500} unshare --mount "$cargo" test --package pagekeeper-slow-disk --test faults -- --show-output --test-threads=2
export PAGEKEEPER_FORKS=10000
"$cargo" test --package pagekeeper-cache --test story -- --show-output children_forked_beside_readers_end
"$cargo" test --package pagekeeper-file-table --lib -- --show-output children_forked_beside
"$cargo" test --package pagekeeper-store --test forks -- --show-output
"$cargo" test --package pagekeeper-capi --test programs -- --show-output a_forked_child_in_c
PAGEKEEPER_KILLS=100 "$cargo" test --package pagekeeper --test commands -- --show-output --include-ignored store_format
"$cargo" test --package pagekeeper-store --package pagekeeper-wal --lib -- --show-output random_crashes damages_are_found lost_or_go_elsewhere
