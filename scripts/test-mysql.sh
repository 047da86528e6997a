#!/usr/bin/env bash
# Tests the guard beside MySQL 8.0, 8.4 and 9. Stable Debian has none of them: scripts/fetch-servers.sh fetches each
# into a folder of the target directory. ARGS=8.4 tests only that version.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}
[ $# -gt 0 ] || set -- 8.0 8.4 9

scripts/require-rust.sh
scripts/packages.sh "the load and its measurement: sysbench mariadb-client util-linux-extra"
. scripts/server-tests.sh
fetch_mysql "$@"

if [ "$(id -u)" -eq 0 ]; then
    export PAGEKEEPER_REQUIRE_ALL=${PAGEKEEPER_REQUIRE_ALL:-1}
fi
run_mysql "$@"
scripts/count-tests.sh "$log" "$status"
