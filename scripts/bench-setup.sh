#!/usr/bin/env bash
# Installs the peers that benchmarks compare with; pagers goes into the target directory.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}

scripts/require-rust.sh
scripts/packages.sh "the peers of the benchmarks: vmtouch util-linux-extra fio sysbench mariadb-server mariadb-client librocksdb-dev g++ postgresql mariadb-plugin-rocksdb rocksdb-tools nocache" \
    "the programs under run: rsync borgbackup restic pigz zstd nodejs nginx-light curl sudo" \
    "the XFS on a slow disk: xfsprogs"
"$cargo" install pagers --version 0.2.2 --locked --root "${CARGO_TARGET_DIR:-target}/peers"
