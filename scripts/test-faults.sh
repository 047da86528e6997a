#!/usr/bin/env bash
# Disks that lose power, fail and lie, under store, redo log and binlog with eight threads each, on files and on ext4 and XFS, and under SQLite, on
# files and ext4; and
# kills after which a second reader must find what the first one does; 10,000 forks beside threads that read the page cache; and tens of
# thousands of lives of stores and logs on a simulated disk. As root, with FUSE. CYCLES: power cuts of each [default: 500].
# `make test` has some tens of them.
#
# In mounts of its own: whatever ends it, nothing stays mounted.
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

export PAGEKEEPER_REQUIRE_ALL=1
PAGEKEEPER_FAULT_CYCLES=${CYCLES:-500} unshare --mount "$cargo" test --package pagekeeper-slow-disk --test faults -- --show-output --test-threads=2
PAGEKEEPER_FORKS=10000 "$cargo" test --package pagekeeper-cache --test story -- --show-output children_forked_beside_readers_end
PAGEKEEPER_KILLS=100 "$cargo" test --package pagekeeper --test commands -- --show-output --include-ignored store_format
"$cargo" test --package pagekeeper-store --package pagekeeper-wal --lib -- --show-output random_crashes damages_are_found lost_or_go_elsewhere
