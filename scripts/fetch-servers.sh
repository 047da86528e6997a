#!/usr/bin/env bash
# fetch-servers.sh NAME... — fetches servers that stable Debian does not have into the target directory, if they are not there yet, and
# prints the assignments by which tests and benchmarks find them:
#   eval "$(scripts/fetch-servers.sh kafka)"
# kafka, which is Kafka 4, kafka-3.9, cassandra, opensearch and elasticsearch are from Maven Central; mysql, which is MySQL 9, from
# Debian unstable; mysql-8.4, mysql-8.0 and mongodb, which is MongoDB 3.6, from Ubuntu 26.04, 24.04 and 20.04. One of the three MySQLs
# is found at a time, and one of the two Kafkas. newer is etcd, NATS and Prometheus as Debian unstable has them, instead of those that
# are installed.
set -euo pipefail
cd "$(dirname "$0")/.."

found() {
    printf 'export %s=%q\n' "$1" "$2"
}

target=$(realpath --canonicalize-missing "${CARGO_TARGET_DIR:-target}")

unpacked() { # unpacked VARIABLE FOLDER PROGRAM debian|ubuntu SUITE PACKAGE...
    local variable=$1 root=$target/$2/root program=$3
    shift 3
    [ -x "$root/$program" ] || scripts/unpack-suite.sh "$root" "$@" >&2
    found "$variable" "$root"
}

for name in "$@"; do
    # Not in an argument of `found`: there a failure would not end this.
    case $name in
    kafka)
        jars=$(scripts/fetch-jars.sh kafka-4.1.1 org.apache.kafka:kafka_2.13:4.1.1)
        found PAGEKEEPER_KAFKA "$jars"
        ;;
    kafka-3.9)
        jars=$(scripts/fetch-jars.sh kafka-3.9.1 org.apache.kafka:kafka_2.13:3.9.1)
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
    elasticsearch)
        jars=$(scripts/fetch-jars.sh elasticsearch-7.17.28 org.elasticsearch:elasticsearch:7.17.28 \
            org.elasticsearch.plugin:transport-netty4-client:7.17.28 org.elasticsearch:elasticsearch-plugin-classloader:7.17.28 \
            org.apache.logging.log4j:log4j-core:2.17.1)
        found PAGEKEEPER_ELASTICSEARCH "$jars"
        ;;
    mysql) unpacked PAGEKEEPER_MYSQL_ROOT mysql usr/sbin/mysqld debian unstable mysql-server-core mysql-client-core ;;
    mysql-8.4) unpacked PAGEKEEPER_MYSQL_ROOT mysql-8.4 usr/sbin/mysqld ubuntu resolute mysql-server-core mysql-client-core ;;
    mysql-8.0) unpacked PAGEKEEPER_MYSQL_ROOT mysql-8.0 usr/sbin/mysqld ubuntu noble mysql-server-core-8.0 mysql-client-core-8.0 ;;
    mongodb) unpacked PAGEKEEPER_MONGODB_ROOT mongodb usr/bin/mongod ubuntu focal mongodb-server-core ;;
    newer)
        root=$target/newer/root
        [ -x "$root/usr/bin/prometheus" ] || scripts/unpack-suite.sh "$root" debian unstable etcd-server nats-server prometheus >&2
        # By themselves: other programs of that root are not to be found instead of this machine's.
        mkdir -p "$target/newer/bin"
        for program in bin/etcd sbin/nats-server bin/prometheus; do
            ln --symbolic --force --no-dereference "$root/usr/$program" "$target/newer/bin/"
        done
        found PATH "$target/newer/bin:$PATH"
        ;;
    *)
        echo "fetch-servers.sh: \"$name\" is none of kafka, kafka-3.9, cassandra, opensearch, elasticsearch, mysql, mysql-8.4, mysql-8.0, mongodb," \
            "newer" >&2
        exit 2
        ;;
    esac
done
