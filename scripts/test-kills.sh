#!/usr/bin/env bash
# Kills processes that commit to a page store on XFS over a slow but wide disk (2 ms, 64 requests at once), as root.
# `make test` kills on the build's own disk and on XFS.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}

scripts/require-rust.sh
scripts/packages.sh "XFS on the slow disk: xfsprogs"
"$cargo" build --release --package pagekeeper-bench
"$cargo" test --package pagekeeper-store --test kill --no-run

place=$(mktemp --directory)
mkdir "$place/slow" "$place/xfs"
"${CARGO_TARGET_DIR:-target}"/release/pagekeeper-bench slowdisk --latency 2ms --width 64 --size 1G \
    --xfs "$place/xfs" "$place/slow" >"$place/said" &
disk=$!
take_down() {
    kill "$disk" 2>/dev/null || true
    wait "$disk" || true
    rm -f "$place/said"
    rmdir "$place/slow" "$place/xfs" "$place"
}
trap take_down EXIT
until grep -q '^ready' "$place/said"; do
    kill -0 "$disk" 2>/dev/null || { echo "The slow disk did not come up." >&2; exit 1; }
    sleep 0.1
done
PAGEKEEPER_KILLS_IN="$place/xfs" "$cargo" test --package pagekeeper-store --test kill -- \
    --exact acknowledged_commits_survive_kills --nocapture
