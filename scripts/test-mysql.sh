#!/usr/bin/env bash
# The guard beside MySQL 9. Debian carries MySQL only in unstable: scripts/debian-unstable.sh fetches it into one folder of
# the target directory, and says how its programs are started.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}

scripts/require-rust.sh
scripts/packages.sh "the load and its measurement: sysbench mariadb-client util-linux-extra"

fetched=$(scripts/fetch-servers.sh mysql)
eval "$fetched"
root=$PAGEKEEPER_MYSQL_ROOT
linker=$(echo "$root"/usr/lib/*/ld-linux-*.so.*)
"$linker" --library-path "$(dirname "$linker")" "$root/usr/sbin/mysqld" --version

if [ "$(id -u)" -eq 0 ]; then
    export PAGEKEEPER_REQUIRE_ALL=${PAGEKEEPER_REQUIRE_ALL:-1}
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
status=0
"$cargo" test --package pagekeeper --test databases -- mysql:: --ignored --show-output 2>&1 | tee "$log" || status=$?
scripts/count-tests.sh "$log" "$status"
