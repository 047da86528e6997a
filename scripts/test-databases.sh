#!/usr/bin/env bash
# The guard beside every server that has a profile, but ScyllaDB, TiKV and MongoDB's own: those of `make test`, and those that stable
# Debian does not have, or that take longer than `make test` may (scripts/fetch-servers.sh), with Debian's clients, ClickHouse and
# WiredTiger. The doctor's advice on servers of other versions is left to `make test-advice`, which fetches these.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}

scripts/require-rust.sh
scripts/packages.sh \
    "the servers that Debian has: mariadb-server mariadb-client mariadb-plugin-rocksdb postgresql rocksdb-tools etcd-server nats-server rabbitmq-server prometheus clickhouse-server libwiredtiger-dev" \
    "what runs or compiles the others: default-jre-headless gcc libc6-dev" \
    "clients, load and measurement: kcat sysbench util-linux-extra chromium bindfs e2fsprogs"

fetched=$(scripts/fetch-servers.sh kafka cassandra opensearch mysql)
eval "$fetched"
if [ "$(id -u)" -eq 0 ]; then
    export PAGEKEEPER_REQUIRE_ALL=${PAGEKEEPER_REQUIRE_ALL:-1}
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
status=0
"$cargo" test --package pagekeeper --test databases -- --include-ignored --show-output \
    --skip advice::advice_is_accepted_and_taken_back_by_fetched_servers 2>&1 |
    tee "$log" || status=$?
scripts/count-tests.sh "$log" "$status"
