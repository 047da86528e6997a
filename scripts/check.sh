#!/usr/bin/env bash
# Checks to run before each commit: formatting, clippy, unit tests and doc tests of all crates. Needs neither root nor
# packages. Leaves the models of threads to `make test`.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}

# Half of these tests wait, those of the guard for its ticks.
export RUST_TEST_THREADS=${RUST_TEST_THREADS:-$(($(nproc) * 4))}
# The number of random lives of a store or log in each test; `make test` runs more.
export PAGEKEEPER_CRASHES=${PAGEKEEPER_CRASHES:-500}

scripts/require-rust.sh
scripts/lint.sh text clippy
log=$(mktemp)
trap 'rm -f "$log"' EXIT
status=0
tests() {
    "$cargo" test --no-fail-fast --workspace --exclude pagekeeper-bench "$@" 2>&1 | tee --append "$log" || status=$?
}
tests --lib --bins -- --skip model::
tests --doc
scripts/count-tests.sh "$log" "$status"
