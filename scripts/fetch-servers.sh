#!/usr/bin/env bash
# fetch-servers.sh NAME... — fetches servers that stable Debian does not have (kafka, cassandra, opensearch, mysql) into the target
# directory, if they are not there yet, and prints the assignments by which tests and benchmarks find them:
#   eval "$(scripts/fetch-servers.sh kafka)"
set -euo pipefail
cd "$(dirname "$0")/.."

found() {
    printf 'export %s=%q\n' "$1" "$2"
}

for name in "$@"; do
    # Not in an argument of `found`: there a failure would not end this.
    case $name in
    kafka)
        jars=$(scripts/fetch-jars.sh kafka-4.1.1 org.apache.kafka:kafka_2.13:4.1.1)
        found PAGEKEEPER_KAFKA "$jars"
        ;;
    cassandra)
        jars=$(scripts/fetch-jars.sh cassandra-5.0.6 org.apache.cassandra:cassandra-all:5.0.6)
        found PAGEKEEPER_CASSANDRA "$jars"
        ;;
    opensearch)
        jars=$(scripts/fetch-jars.sh opensearch-2.19.0 org.opensearch:opensearch:2.19.0 \
            org.opensearch.plugin:transport-netty4-client:2.19.0 org.opensearch:opensearch-plugin-classloader:2.19.0 \
            org.apache.logging.log4j:log4j-core:2.21.0)
        found PAGEKEEPER_OPENSEARCH "$jars"
        ;;
    mysql)
        root=$(realpath --canonicalize-missing "${CARGO_TARGET_DIR:-target}")/mysql/root
        [ -x "$root/usr/sbin/mysqld" ] || scripts/debian-unstable.sh "$root" mysql-server-core mysql-client-core >&2
        found PAGEKEEPER_MYSQL_ROOT "$root"
        ;;
    *)
        echo "fetch-servers.sh: \"$name\" is none of kafka, cassandra, opensearch, mysql" >&2
        exit 2
        ;;
    esac
done
