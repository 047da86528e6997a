#!/usr/bin/env bash
# The guard beside servers that Debian does not have, or that take longer than `make test` may: jars of Kafka, Cassandra and OpenSearch
# come from Maven Central into the target directory, a runtime for them, a client and ClickHouse from Debian.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}

scripts/require-rust.sh
scripts/packages.sh "the servers and a client: default-jre-headless kcat clickhouse-server gcc libc6-dev libwiredtiger-dev util-linux-extra"

PAGEKEEPER_KAFKA=$(scripts/fetch-jars.sh kafka-4.1.1 org.apache.kafka:kafka_2.13:4.1.1)
PAGEKEEPER_CASSANDRA=$(scripts/fetch-jars.sh cassandra-5.0.6 org.apache.cassandra:cassandra-all:5.0.6)
PAGEKEEPER_OPENSEARCH=$(scripts/fetch-jars.sh opensearch-2.19.0 org.opensearch:opensearch:2.19.0 \
    org.opensearch.plugin:transport-netty4-client:2.19.0 org.opensearch:opensearch-plugin-classloader:2.19.0 org.apache.logging.log4j:log4j-core:2.21.0)
export PAGEKEEPER_KAFKA PAGEKEEPER_CASSANDRA PAGEKEEPER_OPENSEARCH
if [ "$(id -u)" -eq 0 ]; then
    export PAGEKEEPER_REQUIRE_ALL=${PAGEKEEPER_REQUIRE_ALL:-1}
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
status=0
"$cargo" test --package pagekeeper --test databases -- logged:: --ignored --show-output 2>&1 |
    tee "$log" || status=$?
scripts/count-tests.sh "$log" "$status"
