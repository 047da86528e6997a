#!/usr/bin/env bash
# test-hostile.sh [SECONDS] — runs a hostile user beside a real MariaDB and a real PostgreSQL, for ten minutes, with the
# release build, as root. Also users whose programs occupy all of the guard's places for directories, or have very many
# logs.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}

scripts/require-rust.sh
scripts/packages.sh \
    "the servers and their loads: mariadb-server mariadb-client sysbench postgresql" \
    "a file system of many names: xfsprogs" \
    "what is opened and resident: strace util-linux-extra"
"$cargo" build --release --package pagekeeper
target=$(realpath "${CARGO_TARGET_DIR:-target}")
export PAGEKEEPER_HOSTILE_PROGRAM=$target/release/pagekeeper PAGEKEEPER_HOSTILE_SECONDS=${1:-600}
if [ "$(id -u)" -eq 0 ]; then
    export PAGEKEEPER_REQUIRE_ALL=${PAGEKEEPER_REQUIRE_ALL:-1}
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
status=0
"$cargo" test --package pagekeeper --test host -- hostile:: guard_budgets::a_server_that_comes guard_budgets::half_a_million --include-ignored --show-output 2>&1 | tee "$log" || status=$?
scripts/count-tests.sh "$log" "$status"
