#!/usr/bin/env bash
# Tests the guard beside every server that has a profile, except ScyllaDB and TiKV: those of `make test`, those that
# Debian 12 does not have or that take too long for `make test` (scripts/fetch-servers.sh), Debian's clients, ClickHouse
# and WiredTiger. Then MySQL in three versions, as `make test-mysql`; Kafka 3.9; and versions newer than Debian 12's of
# etcd, NATS, Prometheus, PostgreSQL, MariaDB and RabbitMQ. `make test-advice` tests the doctor's advice on servers of
# other versions, and fetches them.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}
mysql=(8.0 8.4 9)

scripts/require-rust.sh
scripts/packages.sh \
    "the servers that Debian has: mariadb-server mariadb-client mariadb-plugin-rocksdb postgresql rocksdb-tools librocksdb-dev etcd-server nats-server rabbitmq-server prometheus clickhouse-server libwiredtiger-dev" \
    "what runs or compiles the others: default-jre-headless gcc libc6-dev" \
    "clients, load and measurement: kcat python3-pymongo sysbench util-linux-extra chromium bindfs e2fsprogs" \
    "the comparison of the doctor's reports with their schema: python3-jsonschema"
. scripts/server-tests.sh
fetched=$(scripts/fetch-servers.sh kafka cassandra opensearch elasticsearch mongodb)
older_kafka=$(scripts/fetch-servers.sh kafka-3.9)
newer=$(scripts/fetch-servers.sh newer postgresql-18 mariadb-11.8 rabbitmq-4.0)
newest_rabbitmq=$(scripts/fetch-servers.sh rabbitmq-4)
fetch_mysql "${mysql[@]}"

if [ "$(id -u)" -eq 0 ]; then
    export PAGEKEEPER_REQUIRE_ALL=${PAGEKEEPER_REQUIRE_ALL:-1}
fi
eval "$fetched"
run_tests "all but MySQL" --include-ignored --skip mysql --skip advice::advice_is_accepted_and_taken_back_by_fetched_servers
run_mysql "${mysql[@]}"
eval "$older_kafka"
run_tests "Kafka 3.9" --include-ignored kafka hundreds_of_partitions
eval "$newer"
for program in etcd nats-server prometheus; do
    [[ $(command -v "$program") == */newer/bin/* ]] || { echo "test-databases: the newer $program is not found" >&2 && exit 1; }
    "$program" --version
done
# is_version BEGINNING SAID: prints a server's version string SAID; fails unless it starts with BEGINNING.
is_version() {
    echo "$2"
    [[ $2 == "$1"* ]] || { echo "test-databases: this is not $1" >&2 && exit 1; }
}
is_version "postgres (PostgreSQL) 18." "$("$PAGEKEEPER_POSTGRESQL_ROOT/bin/postgres" --version)"
mariadb=$PAGEKEEPER_MARIADB_ROOT
libraries=("$mariadb"/usr/lib/*-linux-gnu)
linker=("${libraries[0]}"/ld-linux-*)
# Without the long path by which it was called.
said=$("${linker[0]}" --library-path "${libraries[0]}" "$mariadb/usr/sbin/mariadbd" --version)
is_version "mariadbd  Ver 11.8." "${said/#"$mariadb/usr/sbin/"/}"
rabbitmq_version() {
    basename "$PAGEKEEPER_RABBITMQ_ROOT"/usr/lib/rabbitmq/lib/rabbitmq_server-*
}
is_version rabbitmq_server-4.0. "$(rabbitmq_version)"
run_tests "newer versions" --include-ignored logged::the_wal_of_etcd logged::the_wal_of_prometheus logged::old_blocks_of_jetstream \
    logged::the_wal_of_postgresql postgresql_readers::wal_that_a_polled_slot logged::the_binlog_of_mariadb logged::the_log_of_myrocks \
    logged::the_log_of_rabbitmqs
eval "$newest_rabbitmq"
is_version rabbitmq_server-4.3. "$(rabbitmq_version)"
run_tests "the newest RabbitMQ" logged::the_log_of_rabbitmqs
scripts/count-tests.sh "$log" "$status"
