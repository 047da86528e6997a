#!/usr/bin/env bash
# Installs the packages that the stories in tests/ need, or prints which stories skip without them.
set -euo pipefail
cd "$(dirname "$0")/.."
exec scripts/packages.sh \
    "the tests against MariaDB (they skip without): mariadb-server mariadb-client mariadb-backup mariadb-plugin-rocksdb sysbench" \
    "the tests against vmtouch, fincore and fio (they skip without): vmtouch util-linux-extra fio" \
    "the tests on XFS and btrfs images (they skip without): xfsprogs btrfs-progs e2fsprogs" \
    "the tests against PostgreSQL (they skip without): postgresql" \
    "the tests against RocksDB (they skip without): rocksdb-tools librocksdb-dev" \
    "the tests of programs under run (they skip without): tar rsync git sqlite3 libsqlite3-dev zstd musl-tools busybox-static restic sudo opendoas xz-utils nginx-light b3sum nodejs borgbackup bup rclone mydumper pgbackrest barman squashfs-tools rdiff-backup p7zip-full" \
    "the tests of the C library (they skip without): gcc g++ pkg-config cmake make python3 binutils" \
    "the tests against ClickHouse (they skip without): clickhouse-server" \
    "the tests against etcd, NATS and RabbitMQ (they skip without): etcd-server nats-server rabbitmq-server" \
    "the tests of metrics (they skip without): prometheus chromium" \
    "the test of a file system that hangs (it skips without): bindfs" \
    "the tests of the screen (they skip without): tmux" \
    "the test of SQLite's drivers (it skips without): python3-apsw" \
    "the test of read-ahead (it skips without): python3-lmdb" \
    "the test of a database without a profile (it skips without): victoria-metrics" \
    "the comparison of the doctor's reports with their schema (it skips without): python3-jsonschema" \
    "the tests of completions (they skip without): bash zsh fish" \
    "the tests of the man pages (they skip without): man-db"
