#!/usr/bin/env bash
# Installs the peers of the benchmarks, and the servers for `guard --server` and `bulk --server` that Debian has. For
# the other servers, which scripts/fetch-servers.sh fetches, it installs what they need to run and their clients. Builds
# pagers in the target directory.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}

scripts/require-rust.sh
scripts/packages.sh "the peers of the benchmarks: vmtouch util-linux-extra fio sysbench mariadb-server mariadb-client librocksdb-dev g++ postgresql mariadb-plugin-rocksdb rocksdb-tools nocache sqlite3 python3-lmdb" \
    "the servers that the guard and run are measured beside: etcd-server nats-server rabbitmq-server prometheus clickhouse-server libwiredtiger-dev" \
    "what runs or compiles others, and clients: default-jre-headless gcc libc6-dev kcat python3-pymongo" \
    "the programs under run: rsync borgbackup restic pigz zstd nodejs nginx-light curl sudo" \
    "the XFS on a slow disk: xfsprogs"
"$cargo" install pagers --version 0.2.2 --locked --root "${CARGO_TARGET_DIR:-target}/peers"
