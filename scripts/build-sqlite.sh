#!/usr/bin/env bash
# build-sqlite.sh DIRECTORY — builds pagekeeper_sqlite.so in a directory: a VFS that SQLite 3.14 or newer can load.
# Needs only Rust.
set -euo pipefail
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}
to=${1:?a directory to build it in}

scripts/require-rust.sh
"${CARGO:-cargo}" build --quiet --package pagekeeper-sqlite --release
install -D --mode 644 "$target/release/libpagekeeper_sqlite.so" "$to/pagekeeper_sqlite.so"
